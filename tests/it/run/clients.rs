//! Real clients in a run: what is listed works for each of them, and all else fails at once and is in the log by its name.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use serde_json::Value;
use tidegate::lab::origin::{Behaviour, Origin};

use super::world::{Input, World, both, command, text};
use crate::support::{ClientCertificate, TestAuthority};

const LISTED: &str = "listed.example.test";

/// Where every listed name leads; origins of the lab say so in their answers, and nobody inside is told otherwise.
const ADDRESS: &str = "203.0.113.10";

/// How long a client may take to start and to end, on a machine that is busy. Whoever is kept waiting waits longer.
const CLOCK: &str = "90";

struct Client {
    /// What must succeed outside for the client to be here.
    needs: &'static str,
    /// Asks `$HOST`.
    command: &'static str,
    /// What it prints of a listed host's answer.
    hears: &'static str,
}

const fn client(needs: &'static str, command: &'static str, hears: &'static str) -> Client {
    Client { needs, command, hears }
}

const CLIENTS: &[Client] = &[
    client("curl --version", "curl -sS --fail http://$HOST/page", ADDRESS),
    client("curl --version", "curl -sS --fail --cacert ca.pem https://$HOST:8443/page", ADDRESS),
    client("curl --version", "curl -sS --fail --noproxy '*' http://$HOST/page", ADDRESS),
    client(
        "curl --version",
        "curl -sS --fail --noproxy '*' --cacert ca.pem https://$HOST:8443/page",
        ADDRESS,
    ),
    client("curl --version", "curl -6 -sS --fail --noproxy '*' http://$HOST/page", ADDRESS),
    client("wget --version", "wget -q -t 1 -O - http://$HOST/page", ADDRESS),
    client("/usr/bin/python3 -V", "/usr/bin/python3 raw.py $HOST", ADDRESS),
    client("/usr/bin/python3 -c 'import aiohttp'", "/usr/bin/python3 async.py http://$HOST/page", ADDRESS),
    client("node -v", "node -e \"$(cat fetch.js)\" http://$HOST/page", ADDRESS),
    client("node -v", "node -e \"$(cat get.js)\" http://$HOST/page", ADDRESS),
    client("javac -version", "java -cp . Fetch default http://$HOST/page ca.pem", ADDRESS),
    client("javac -version", "java -cp . Fetch default https://$HOST:8443/page ca.pem", ADDRESS),
    client("javac -version", "java -cp . Fetch direct https://$HOST:8443/page ca.pem", ADDRESS),
    client("go version", "./fetch default https://$HOST:8443/page", ADDRESS),
    client("go version", "GODEBUG=netdns=go ./fetch direct http://$HOST/page", ADDRESS),
    client("redis-cli --version", "redis-cli -h $HOST ping", "PONG"),
    client("ssh -V", "ssh -v -o BatchMode=yes -F none $HOST", "remote software version standin"),
    // The stand-in sends back what it is sent, which is no answer of a database; but it has come from there.
    client("psql --version", "psql -w 'host='$HOST' user=x dbname=x'", "invalid response to SSL negotiation"),
];

const RAW: &str = r#"
import socket, sys
s = socket.create_connection((sys.argv[1], 80))
s.sendall(f"GET /page HTTP/1.0\r\nHost: {sys.argv[1]}\r\n\r\n".encode())
print(s.recv(4096))
"#;

/// A session that asks for no proxy, as most programs make it.
const ASYNC: &str = r#"
import aiohttp, asyncio, sys
async def fetch():
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(sys.argv[1]) as response:
        print(await response.text())
asyncio.run(fetch())
"#;

const FETCH: &str = "fetch(process.argv[1]).then(answer => answer.text()).then(console.log)";

const GET: &str = "require('http').get(process.argv[1], answer => answer.pipe(process.stdout))";

/// Ports of the world that are no others' in these tests. Whoever holds them ends them.
fn origins(world: &World, authority: &TestAuthority) -> [Origin; 3] {
    let https = authority.https(&[LISTED, "*.example.test"], ClientCertificate::Unasked);
    let redis = Behaviour::Custom(Arc::new(|mut stream, _| {
        // One command as an array of one string (RESP).
        stream.read_exact(&mut [0; 14])?;
        stream.write_all(b"+PONG\r\n")
    }));
    [(22, Behaviour::Banner(b"SSH-2.0-standin\r\n".to_vec())), (8443, https), (6379, redis)].map(
        |(port, behaviour)| {
            let everywhere = format!("[::]:{port}").parse().unwrap();
            Origin::serve(world.lab().world(), everywhere, move |_| behaviour.clone()).unwrap()
        },
    )
}

/// What succeeds outside; says what does not.
fn is_here(world: &World, needs: &str) -> bool {
    let here = world.outside(&["sh", "-c", needs]).status.success();
    if !here {
        eprintln!("skipped: `{needs}` fails here");
    }
    here
}

/// Makes programs of the sources in tests/clients, in the workspace.
fn build(world: &World) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let workspace = world.workspace();
    if is_here(world, "javac -version") {
        let mut javac = command("javac");
        built(javac.arg("-d").arg(&workspace).arg(sources.join("Fetch.java")).output().unwrap());
    }
    if is_here(world, "go version") {
        let mut go = command("go");
        let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/go");
        go.env("GOCACHE", &cache).env("GOPATH", &cache).env("GOFLAGS", "-mod=mod").env("HOME", &cache);
        go.current_dir(&workspace).args(["build", "-o", "fetch"]).arg(sources.join("fetch.go"));
        built(go.output().unwrap());
    }
}

fn built(output: Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Runs the commands in one sandbox, each for the listed host and for one that is not; tells how each ended, in that order.
fn run_all(world: &World, commands: &[&str]) -> Vec<[(i32, String); 2]> {
    let workspace = world.workspace();
    let mut script = String::new();
    for (number, command) in commands.iter().enumerate() {
        world.write(&workspace.join(format!("{number}.sh")), command);
        for (host, kind) in [(LISTED.to_owned(), "listed"), (other(number), "other")] {
            script.push_str(&format!(
                "HOST={host} timeout {CLOCK} sh ./{number}.sh >{number}.{kind} 2>&1 </dev/null; echo $?\n"
            ));
        }
    }
    let allow = format!("{LISTED}:22,80,5432,6379,8443");
    let mut tidegate = world.as_user(env!("CARGO_BIN_EXE_tidegate"));
    let options = ["--allow", &allow, "--audit", "audit.jsonl"];
    tidegate
        .args(world.words(&options, &["sh", "-c", &script]))
        .env("SSL_CERT_FILE", workspace.join("ca.pem"));
    let output = world.spawn(tidegate, Input::Null).output();
    let statuses: Vec<i32> = text(&output.stdout).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(statuses.len(), 2 * commands.len(), "{}", text(&output.stderr));
    let said =
        |number: usize, kind: &str| text(&fs::read(workspace.join(format!("{number}.{kind}"))).unwrap());
    let pairs = statuses.chunks(2).enumerate();
    pairs.map(|(n, pair)| [(pair[0], said(n, "listed")), (pair[1], said(n, "other"))]).collect()
}

/// A host that is not listed, which nobody but this client asks for.
fn other(number: usize) -> String {
    format!("other-{number}.example.test")
}

/// Every decision of the run that named this host.
fn decisions(world: &World, host: &str) -> Vec<Value> {
    let audit = fs::read_to_string(world.workspace().join("audit.jsonl")).unwrap();
    let lines = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == "decision" && line["host"] == host).collect()
}

/// Nothing but denials by name, and no question to the world's DNS server.
fn assert_denied(world: &World, host: &str, command: &str) {
    let told = decisions(world, host);
    let denied = |line: &Value| line["decision"] == "deny" && line["reason"] == "not_listed";
    assert!(!told.is_empty() && told.iter().all(denied), "{command}: {told:?}");
    assert!(world.asked_under(host).is_empty(), "{command}");
}

#[test]
fn every_client_reaches_what_is_listed_and_is_refused_all_else_at_once() {
    let authority = TestAuthority::new();
    both(|world| {
        let _origins = origins(world, &authority);
        build(world);
        let workspace = world.workspace();
        for (file, text) in [("raw.py", RAW), ("async.py", ASYNC), ("fetch.js", FETCH), ("get.js", GET)] {
            world.write(&workspace.join(file), text);
        }
        world.write(&workspace.join("ca.pem"), &authority.pem());
        let here: Vec<&Client> = CLIENTS.iter().filter(|client| is_here(world, client.needs)).collect();
        let commands: Vec<&str> = here.iter().map(|client| client.command).collect();
        for (number, (client, [listed, other_host])) in here.iter().zip(run_all(world, &commands)).enumerate()
        {
            let Client { command, hears, .. } = client;
            assert!(listed.1.contains(hears), "{command}: {listed:?}");
            assert!(!other_host.1.contains(hears), "{command}: {other_host:?}");
            // 124 is what timeout(1) says. Node's http.get writes a refusal's page as it would any other.
            assert!(
                ![0, 124].contains(&other_host.0) || command.contains("get.js"),
                "{command}: {other_host:?}"
            );
            assert_denied(world, &other(number), command);
        }
    });
}

/// Chromium makes namespaces of its own, which a workload may not: it must be told not to.
const CHROMIUM: &str = "chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --user-data-dir=$(mktemp -d) --dump-dom";

#[test]
fn chromium_loads_a_listed_page_and_is_refused_another() {
    let authority = TestAuthority::new();
    both(|world| {
        if !is_here(world, "command -v chromium") {
            return;
        }
        let _origins = origins(world, &authority);
        let by_proxy = format!("{CHROMIUM} http://$HOST/page");
        let captured =
            format!("{CHROMIUM} --no-proxy-server --ignore-certificate-errors https://$HOST:8443/page");
        for (number, [listed, other_host]) in run_all(world, &[&by_proxy, &captured]).into_iter().enumerate()
        {
            assert!(listed.1.contains(ADDRESS), "{listed:?}");
            assert!(!other_host.1.contains(ADDRESS) && other_host.0 != 124, "{other_host:?}");
            assert_denied(world, &other(number), CHROMIUM);
        }
    });
}
