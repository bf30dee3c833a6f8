//! Forged identities that need another host or another user: a spoofed source, and a nested user namespace.
//!
//! The other kinds: headers in `invariant_7`; wrong tokens, another's token, a token from another address, another's
//! socket in the file above; callers of the admin socket in `admin.rs`.

use std::{
    fs, io,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    process::{Command, Output, Stdio},
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tidegate::lab::Namespace;

use super::{S1, S2, connect_on, decisions, head, scene, token};
use crate::support::{Client, PROXY};

/// Runs a program in a namespace to its end; `None`, with the reason, where there is none of this name.
#[expect(clippy::disallowed_methods, reason = "the tests start the tools of a host")]
fn run(namespace: &Namespace, program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match namespace.spawn(&mut command) {
        Ok(child) => Some(child.wait_with_output().unwrap()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no {program}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Each line is a command of ip(8) or bridge(8); `None`, with the reason, where one of them is missing.
fn configure(namespace: &Namespace, lines: &str) -> Option<()> {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split(' ').collect();
        let output = run(namespace, words[0], &words[1..])?;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Some(())
}

/// Two sandboxes on a bridge of the gateway's host, which is told where each of them is: it learns nothing from frames.
fn bridged(host: &Namespace) -> Option<[Namespace; 2]> {
    // With an address of its own, since it would take that of a port, and forget its neighbours with each change.
    configure(
        host,
        "ip link add br0 address 02:00:00:00:00:01 type bridge\nip address add 10.88.0.1/24 dev br0\nip link set br0 up",
    )?;
    let sandboxes = [7, 8].map(|number| {
        let inside = Namespace::new().unwrap();
        let file = format!("/proc/{}/fd/{}", std::process::id(), inside.descriptor().as_raw_fd());
        let lines = format!(
            "ip link add p{number} type veth peer name q{number} address 02:00:00:00:00:0{number} netns {file}\n\
             ip link set p{number} master br0 up\n\
             ip link set p{number} type bridge_slave learning off\n\
             bridge fdb add 02:00:00:00:00:0{number} dev p{number} master static\n\
             ip neighbour replace 10.88.0.{number} lladdr 02:00:00:00:00:0{number} dev br0 nud permanent"
        );
        configure(host, &lines)?;
        let lines = format!(
            "ip link set lo up\nip address add 10.88.0.{number}/24 dev q{number}\nip link set q{number} up\n\
             ip route add 10.200.0.1 via 10.88.0.1"
        );
        configure(&inside, &lines)?;
        Some(inside)
    });
    let [a, b] = sandboxes;
    Some([a?, b?])
}

/// Connects from an address.
#[expect(clippy::disallowed_methods, reason = "a client of the test")]
fn connect_from(namespace: &Namespace, source: &str) -> io::Result<()> {
    let (source, to): (SocketAddr, SocketAddr) =
        (format!("{source}:0").parse().unwrap(), PROXY.parse().unwrap());
    namespace.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&source.into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(2))
    })
}

#[test]
fn a_spoofed_source_on_a_bridge_is_nobody() {
    let s1 =
        format!("{{ source = \"10.88.0.7/32\" }}, {{ token_sha256 = \"{S1}\", source = \"10.88.0.9/32\" }}");
    let Some(scene) = scene(&s1, "{ source = \"10.88.0.8/32\" }") else { return };
    let Some([_first, second]) = bridged(scene.lab().gateway()) else { return };
    let asks = |to: &str, authorization: Option<&str>| {
        let mut client = Client::try_connect_from(&second, PROXY.parse().unwrap()).unwrap();
        client.send(format!("CONNECT {to} HTTP/1.1\r\n{}\r\n", head(authorization)).as_bytes());
        let response = client.response();
        (response.status, response.reason().map(str::to_owned))
    };
    assert_eq!(asks("two.example.com:443", None), (200, None));
    assert_eq!(asks("one.example.com:443", None).0, 403);
    // Another's token is good from its own address alone.
    let mismatch = (403, Some("identity_mismatch".to_owned()));
    assert_eq!(asks("one.example.com:443", Some("Bearer token-of-s1")), mismatch);
    // The address of the first, and then its hardware address too: the answer goes to the first.
    let before = decisions(&scene);
    configure(&second, "ip address add 10.88.0.7/32 dev q8").unwrap();
    assert_eq!(connect_from(&second, "10.88.0.8").map_err(|error| error.kind()), Ok(()), "as itself");
    for _ in 0..2 {
        assert!(connect_from(&second, "10.88.0.7").is_err(), "an answer came");
        configure(&second, "ip link set q8 address 02:00:00:00:00:07").unwrap();
    }
    assert_eq!(decisions(&scene), before, "nothing was asked in its name");
}

#[test]
fn root_of_a_nested_user_namespace_is_who_it_is_outside() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("s1").join("proxy.sock");
    let s1 = format!("{{ unix = {path:?}, uid = 0 }}");
    let Some(scene) = scene(&s1, &token(S2)) else { return };
    let curl =
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", path.to_str().unwrap()];
    let curl =
        [&curl[..], &["--request-target", "http://one.example.com/", "http://one.example.com/"]].concat();
    let mut expected = Vec::new();
    for (user, status, who) in [
        (&[][..], "200", Some("s1")),
        (&["unshare", "-U", "-r"], "200", Some("s1")),
        (&["setpriv", "--reuid", "61001", "--clear-groups"], "403", None),
        (&["setpriv", "--reuid", "61001", "--clear-groups", "unshare", "-U", "-r"], "403", None),
    ] {
        let words = [user, &curl].concat();
        let Some(output) = run(scene.lab().gateway(), words[0], &words[1..]) else { return };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said.is_empty() {
            eprintln!("skipped: {user:?}: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        }
        assert_eq!(said, status, "{user:?}");
        expected.push(who.map(str::to_owned));
    }
    let who: Vec<_> = decisions(&scene).into_iter().map(|(sandbox, _)| sandbox).collect();
    assert_eq!(who, expected);
    assert_eq!(
        connect_on(&scene, PROXY, "one.example.com:443", None).status,
        407,
        "none of it by another way"
    );
}
