//! Real clients that know of no proxy, in a sandbox with a network of its own: what is listed works by its name, and all else
//! fails at once and is in the log with its name.

use std::{
    io::{Read as _, Write as _},
    process::Output,
};

use tidegate::lab::origin::Behaviour;

use crate::support::{ClientCertificate, Inside, TestAuthority};

const POLICY: &str = r#"
[sandbox.s1]
policies = ["base"]
identify = [{ default = true }]
[policy.base]
allow = ["web.example.com:80,443", "git.example.com:22", "db.example.com:5432"]
"#;

/// What the stand-in database says to whoever has spoken first.
const DATABASE: &str = "the stand-in database has heard you";

fn inside(authority: &TestAuthority) -> Option<Inside> {
    let https = authority.https(&["web.example.com", "other.example.com"], ClientCertificate::Unasked);
    let database = Behaviour::Custom(std::sync::Arc::new(|mut stream, _| {
        // SSLRequest is answered with N; the startup message with an error (PostgreSQL protocol 3.0).
        stream.read_exact(&mut [0; 8])?;
        stream.write_all(b"N")?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let fields = format!("SFATAL\0C28000\0M{DATABASE}\0\0");
        let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        stream.write_all(&[&b"E"[..], &length, fields.as_bytes()].concat())
    }));
    Inside::new(POLICY)
        .resolving("web.example.com", &["A 203.0.113.11", "AAAA 2001:db8:cafe::11"])
        .resolving("git.example.com", &["A 203.0.113.17"])
        .resolving("db.example.com", &["A 203.0.113.18"])
        .resolving("other.example.com", &["A 203.0.113.66"])
        .origins(&[22, 80, 443, 5432], move |to| match to.port() {
            80 => Behaviour::Http,
            443 => https.clone(),
            5432 => database.clone(),
            _ => Behaviour::Banner(b"SSH-2.0-standin\r\n".to_vec()),
        })
        .start()
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    format!("{} {out}{err}", output.status)
}

fn have(inside: &Inside, program: &str) -> bool {
    let found = inside.shell(&format!("command -v {program}"), "").status.success();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// A client as a command; `HOST` is the host that it asks for `/page`, by the scheme that it names.
const CLIENTS: &[(&str, &str)] = &[
    ("curl", "curl -sS --fail --max-time 8 --noproxy '*' http://HOST/page"),
    ("curl", "curl -sS --fail --max-time 8 https://HOST/page"),
    ("curl", "curl -6 -sS --fail --max-time 8 https://HOST/page"),
    ("curl", "http_proxy=http://127.0.0.1:3128 curl -sS --fail --max-time 8 http://HOST/page"),
    ("curl", "https_proxy=http://127.0.0.1:3128 curl -sS --fail --max-time 8 https://HOST/page"),
    ("wget", "timeout 8 wget -q -O - -T 8 -t 1 http://HOST/page"),
    (
        "python3",
        "timeout 8 /usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"http://HOST/page\").read())'",
    ),
    (
        "python3",
        "timeout 8 /usr/bin/python3 -c 'import socket\ns = socket.create_connection((\"HOST\", 80))\n\
         s.sendall(b\"GET /page HTTP/1.0\\r\\nHost: HOST\\r\\n\\r\\n\")\nprint(s.recv(4096))'",
    ),
    ("node", "timeout 8 node -e 'require(\"http\").get(\"http://HOST/page\", r => r.pipe(process.stdout))'"),
    (
        "node",
        "timeout 8 node -e 'fetch(\"https://HOST/page\").then(r => r.text()).then(console.log).catch(e => { console.log(e); process.exit(1) })'",
    ),
    (
        "openssl",
        "(printf 'GET /page HTTP/1.1\\r\\nHost: HOST\\r\\n\\r\\n'; sleep 1) | timeout 8 openssl s_client -quiet -no_ign_eof \
         -verify_return_error -connect HOST:443 -servername HOST",
    ),
];

#[test]
fn clients_that_know_of_no_proxy_reach_what_is_listed_and_nothing_else() {
    let authority = TestAuthority::new();
    let Some(inside) = inside(&authority) else { return };
    for (program, command) in CLIENTS {
        if !have(&inside, program) {
            continue;
        }
        let allowed = inside.shell(&command.replace("HOST", "web.example.com"), &authority.pem());
        assert!(said(&allowed).contains("/page"), "{command}: {}", said(&allowed));
        let before = inside.events().len();
        let denied = inside.shell(&command.replace("HOST", "other.example.com"), &authority.pem());
        assert!(!denied.status.success(), "{command}: {}", said(&denied));
        // 124 is what timeout(1) says.
        assert_ne!(denied.status.code(), Some(124), "{command} is kept waiting");
        let told = inside.events().split_off(before);
        let named = |event: &String| event.contains("deny not_listed") && event.contains("other.example.com");
        assert!(told.iter().any(named), "{command}: {told:?}");
    }
    let wrong =
        |address: &str| inside.contacts().iter().any(|contact| contact.dialled.ip().to_string() == address);
    assert!(!wrong("203.0.113.66") && inside.asked().iter().all(|name| name == "web.example.com"));
}

#[test]
fn servers_that_speak_first_and_other_protocols_work_by_name() {
    let authority = TestAuthority::new();
    let Some(inside) = inside(&authority) else { return };
    const SSH: &str = "timeout 8 ssh -v -o BatchMode=yes -o ConnectTimeout=5 -F none";
    for (program, listed, heard, other) in [
        ("ssh", format!("{SSH} git.example.com"), "standin", format!("{SSH} other.example.com")),
        (
            "psql",
            "timeout 8 psql -w 'host=db.example.com user=x dbname=x connect_timeout=5'".to_owned(),
            DATABASE,
            "timeout 8 psql -w 'host=other.example.com user=x dbname=x connect_timeout=5'".to_owned(),
        ),
        (
            "nc",
            "timeout 8 nc git.example.com 22 < /dev/null".to_owned(),
            "standin",
            "timeout 8 nc other.example.com 22 < /dev/null".to_owned(),
        ),
    ] {
        if !have(&inside, program) {
            continue;
        }
        let output = inside.shell(&listed, "");
        assert!(said(&output).contains(heard), "{listed}: {}", said(&output));
        let output = inside.shell(&other, "");
        assert!(!output.status.success() && output.status.code() != Some(124), "{other}: {}", said(&output));
        assert!(
            inside.events().iter().any(|event| event.starts_with("dns deny not_listed other.example.com"))
        );
    }
    // By the address, which names nobody: reset, and in the log.
    let output = inside.shell("timeout 8 bash -c 'exec 3<>/dev/tcp/203.0.113.66/3306; head -c1 <&3'", "");
    assert_ne!(output.status.code(), Some(124), "{}", said(&output));
    assert!(inside.events().contains(&"tcp deny address_literal_not_listed 203.0.113.66:3306".to_owned()));
}
