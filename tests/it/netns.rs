//! A sandbox's network namespace: what is sent in it arrives at the gateway's sockets or nowhere, and only those sockets
//! are served.
#![expect(clippy::disallowed_methods, reason = "these tests run real tools and are the clients inside")]

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tidegate::{
    lab::{Lab, Namespace, tap::Tap},
    netns::{
        self, CAPTURED_PORT, DNS_PORT, Plan, Sockets,
        handover::{self, Checked, HandoverRefused},
        ruleset::Ruleset,
    },
};

const PATIENCE: Duration = Duration::from_secs(3);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A namespace as `tidegate` finds it.
fn namespace() -> Option<Namespace> {
    Namespace::new().inspect_err(|error| eprintln!("skipped: no network namespaces here: {error}")).ok()
}

fn set_up(namespace: &Namespace) -> Sockets {
    namespace
        .run(|| netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other))
        .unwrap_or_else(|error| panic!("{error:?}"))
}

/// Sends what it is given as a hand-over, and tells what the gateway's side makes of it.
fn hand_over(sockets: Sockets) -> Result<Checked, HandoverRefused> {
    let (inside, gateway) = UnixStream::pair().unwrap();
    let sender = thread::spawn(move || handover::send(&inside, sockets));
    let checked = handover::receive(&gateway).and_then(handover::Offered::check);
    handover::acknowledge(&gateway, checked.as_ref().err().map(|refused| refused as _)).unwrap();
    assert_eq!(sender.join().unwrap().is_ok(), checked.is_ok());
    checked
}

/// As [`hand_over`], of any descriptors.
fn hand_over_these(descriptors: &[&dyn AsFd]) -> String {
    let (inside, gateway) = UnixStream::pair().unwrap();
    let all: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&all)));
    let message = io::IoSlice::new(b"tidegate namespace 1\n");
    rustix::net::sendmsg(&inside, &[message], &mut control, SendFlags::empty()).unwrap();
    handover::receive(&gateway).and_then(handover::Offered::check).unwrap_err().to_string()
}

/// Answers the first connection of each listener with the address that its client meant.
fn tell_where_to(listeners: &[TcpListener]) -> Vec<thread::JoinHandle<io::Result<()>>> {
    let serve = |listener: &TcpListener| {
        let listener = listener.try_clone().unwrap();
        listener.set_nonblocking(false).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream?;
                let socket = socket2::SockRef::from(&stream);
                let meant = match stream.local_addr()?.is_ipv4() {
                    true => socket.original_dst_v4(),
                    false => socket.original_dst_v6(),
                };
                let meant = meant?.as_socket().expect("an address of IP");
                stream.write_all(meant.to_string().as_bytes())?;
            }
            Ok(())
        })
    };
    listeners.iter().map(serve).collect()
}

fn ask(namespace: &Namespace, to: &str) -> io::Result<String> {
    let mut stream = namespace.tcp_connect(addr(to), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What a datagram to an address comes to: an answer, or the error that its sender sees.
fn datagram(namespace: &Namespace, to: &str) -> io::Result<usize> {
    namespace.run(|| {
        let to = addr(to);
        let socket = UdpSocket::bind(if to.is_ipv4() { addr("0.0.0.0:0") } else { addr("[::]:0") })?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        socket.send(b"question")?;
        socket.recv(&mut [0; 64])
    })
}

/// Runs nft inside a namespace; `None`, with the reason, where the machine has none.
fn nft(namespace: &Namespace, arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match namespace.spawn(&mut command) {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("skipped: there is no nft");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_kernel_holds_the_rules_that_nft_would_make_of_their_text() {
    let (Some(ours), Some(theirs)) = (namespace(), namespace()) else { return };
    let _sockets = set_up(&ours);
    let text = Ruleset::capturing(CAPTURED_PORT, DNS_PORT).to_string();
    let Some(_) = nft(&theirs, &["-f", "-"], &text) else { return };
    let [ours, theirs] =
        [&ours, &theirs].map(|namespace| nft(namespace, &["list", "table", "inet", "tidegate"], "").unwrap());
    assert_eq!(ours, theirs);
    assert!(ours.contains("redirect to :15001"), "{ours}");
}

#[test]
fn every_stream_arrives_at_the_gateway_with_the_address_that_was_meant() {
    let Some(namespace) = namespace() else { return };
    let checked = hand_over(set_up(&namespace)).unwrap();
    let _served = tell_where_to(&checked.captured);
    for to in [
        "203.0.113.9:443",
        "10.9.9.9:22",
        "169.254.169.254:80",
        "8.8.8.8:1",
        "[2001:db8::1]:8443",
        "[fd00:ec2::254]:80",
    ] {
        assert_eq!(ask(&namespace, to).unwrap(), to);
    }
    // Nobody listens on the sandbox's own loopback but the gateway.
    for own in ["127.0.0.1:443", "[::1]:443", "127.9.9.9:22"] {
        assert_eq!(ask(&namespace, own).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{own}");
    }
}

#[test]
fn a_question_to_any_server_arrives_at_the_gateway_and_other_datagrams_are_refused_at_once() {
    let Some(namespace) = namespace() else { return };
    let checked = hand_over(set_up(&namespace)).unwrap();
    for (udp, _) in &checked.dns {
        let udp = udp.try_clone().unwrap();
        udp.set_nonblocking(false).unwrap();
        thread::spawn(move || {
            let mut question = [0; 64];
            while let Ok((length, from)) = udp.recv_from(&mut question) {
                udp.send_to(&question[..length], from).unwrap();
            }
        });
    }
    for server in ["8.8.8.8:53", "127.0.0.53:53", "[2001:db8::53]:53", "[::1]:53"] {
        assert_eq!(datagram(&namespace, server).unwrap(), 8, "{server}");
    }
    for other in ["203.0.113.9:443", "[2001:db8::9]:443", "8.8.8.8:853", "127.0.0.1:443", "[::1]:443"] {
        let refused = datagram(&namespace, other).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{other}");
    }
    // Not even a socket of the sandbox's own on every address answers: QUIC must fall back to TCP.
    let _everywhere = namespace.udp_bind(addr("0.0.0.0:443")).unwrap();
    let refused = datagram(&namespace, "203.0.113.9:443").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn processes_of_a_sandbox_talk_to_each_other_over_its_loopback() {
    let Some(namespace) = namespace() else { return };
    let _sockets = set_up(&namespace);
    let server = namespace.tcp_listen(addr("127.0.0.1:8080")).unwrap();
    let mut client = namespace.tcp_connect(addr("127.0.0.1:8080"), PATIENCE).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    client.write_all(b"x").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    let udp = namespace.udp_bind(addr("[::1]:8080")).unwrap();
    let sender = namespace.udp_bind(addr("[::1]:0")).unwrap();
    sender.send_to(b"y", addr("[::1]:8080")).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(udp.recv(&mut [0; 4]).unwrap(), 1);
}

#[test]
fn whoever_empties_the_rules_has_less_network() {
    let Some(namespace) = namespace() else { return };
    let checked = hand_over(set_up(&namespace)).unwrap();
    let _served = tell_where_to(&checked.captured);
    assert_eq!(ask(&namespace, "203.0.113.9:443").unwrap(), "203.0.113.9:443");
    if nft(&namespace, &["flush", "ruleset"], "").is_none() {
        return;
    }
    for to in ["203.0.113.9:443", "[2001:db8::1]:443", "8.8.8.8:53"] {
        assert_eq!(ask(&namespace, to).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{to}");
        assert_eq!(datagram(&namespace, to).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{to}");
    }
}

#[test]
fn a_namespace_is_set_up_again_without_its_last_gateway() {
    let Some(namespace) = namespace() else { return };
    drop(hand_over(set_up(&namespace)).unwrap());
    // The gateway has left: there is nothing.
    assert_eq!(ask(&namespace, "203.0.113.9:443").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let checked = hand_over(set_up(&namespace)).unwrap();
    let _served = tell_where_to(&checked.captured);
    assert_eq!(ask(&namespace, "203.0.113.9:443").unwrap(), "203.0.113.9:443");
}

#[test]
fn nobody_shares_the_gateways_ports() {
    let Some(namespace) = namespace() else { return };
    let _sockets = set_up(&namespace);
    for port in ["127.0.0.1:15001", "0.0.0.0:15001", "127.0.0.1:3128", "[::]:15053"] {
        let taken = namespace.run(|| {
            let address = addr(port);
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            socket.listen(1)
        });
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse, "{port}");
    }
}

#[test]
fn a_port_that_was_bound_ahead_of_the_gateway_cannot_be_listened_on() {
    let Some(namespace) = namespace() else { return };
    drop(set_up(&namespace));
    let ahead = namespace.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr("127.0.0.1:15001").into())?;
        Ok(socket)
    });
    let ahead = ahead.unwrap();
    let _sockets = set_up(&namespace);
    assert_eq!(ahead.listen(1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_namespace_with_another_link_is_refused_with_its_name() {
    let Some(lab) = lab() else { return };
    let refused = lab.gateway().run(|| netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other));
    let text = refused.unwrap_err().to_string();
    assert!(text.starts_with("cannot make sure that there is no link but lo ("), "{text}");
}

fn lab() -> Option<Lab> {
    Lab::new().inspect_err(|unavailable| eprintln!("skipped: {unavailable}: {}", unavailable.why)).ok()
}

#[test]
fn a_listener_of_the_gateways_host_is_not_taken_for_a_sandboxs() {
    let Some(namespace) = namespace() else { return };
    // Where the gateway is: any port of it would do as much harm.
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = hand_over_these(&[&host]);
    assert!(
        text.starts_with("a descriptor is none of the sockets of a sandbox's namespace: tcp 127.0.0.1:"),
        "{text}"
    );
    // The right sockets, of the host's namespace.
    let elsewhere = namespace.run(|| {
        let sockets = netns::open_here(&Plan::for_this_kernel()).map_err(io::Error::other)?;
        Ok(hand_over(sockets).unwrap_err())
    });
    assert!(matches!(elsewhere, Ok(HandoverRefused::OwnNamespace)), "{elsewhere:?}");
}

#[test]
fn a_hand_over_of_anything_else_is_refused() {
    let (Some(one), Some(other)) = (namespace(), namespace()) else { return };
    let file = tempfile::tempfile().unwrap();
    assert_eq!(
        hand_over_these(&[&file]),
        "a descriptor is none of the sockets of a sandbox's namespace: no socket"
    );
    let (first, second) = (hand_over(set_up(&one)).unwrap(), hand_over(set_up(&other)).unwrap());
    assert_eq!(hand_over_these(&[&first.proxy[0]]), "there is no socket for tcp 127.0.0.1:15001");
    let all = |proxy: &Checked, rest: &Checked, links: bool| {
        let mut all: Vec<&dyn AsFd> = vec![&proxy.proxy[0]];
        all.extend(rest.proxy.iter().skip(1).map(|socket| socket as &dyn AsFd));
        all.extend(rest.captured.iter().map(|socket| socket as &dyn AsFd));
        all.extend(rest.dns.iter().flat_map(|(udp, tcp)| [udp as &dyn AsFd, tcp as &dyn AsFd]));
        if links {
            all.push(&rest.links);
        }
        hand_over_these(&all)
    };
    assert_eq!(all(&first, &second, true), "the sockets stand in more than one network namespace");
    let text = all(&second, &second, false);
    assert_eq!(text, "a descriptor is none of the sockets of a sandbox's namespace: none tells of links");
    let text = hand_over_these(&[&UnixStream::pair().unwrap().0]);
    assert!(text.contains("a socket that is not of IP"), "{text}");
}

#[test]
fn a_link_that_was_left_in_is_seen_by_the_gateway_itself() {
    let Some(namespace) = namespace() else { return };
    let sockets = set_up(&namespace);
    let made =
        namespace.spawn(Command::new("ip").args(["link", "add", "way0", "type", "veth", "peer", "way1"]));
    let Ok(mut made) = made else {
        eprintln!("skipped: there is no ip");
        return;
    };
    assert!(made.wait().unwrap().success());
    let refused = hand_over(sockets).unwrap_err();
    let HandoverRefused::OtherLinks(names) = refused else { panic!("{refused}") };
    assert_eq!(&*names, "way1, way0");
}

#[test]
fn a_link_that_comes_later_lets_no_frame_pass_with_nobody_to_watch_it() {
    let (Some(inside), Some(outside)) = (namespace(), namespace()) else { return };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split(['.', '-']).take(2).filter_map(|part| part.parse().ok()).collect();
    if version[..] < [6, 18][..] {
        eprintln!("skipped: Linux {release} takes no rules for links that are still to come");
        return;
    }
    outside.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")).unwrap();
    let _sockets = set_up(&inside);
    let tap = Tap::open(&outside).unwrap();
    let run = |namespace: &Namespace, program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        namespace.spawn(&mut command).ok()?.wait().ok()
    };
    let file = format!("/proc/{}/fd/{}", std::process::id(), inside.descriptor().as_raw_fd());
    let made = run(&outside, "ip", &["link", "add", "way0", "type", "veth", "peer", "name", "way1"]);
    let Some(true) = made.map(|status| status.success()) else {
        eprintln!("skipped: there is no ip, or no veth");
        return;
    };
    run(&outside, "ip", &["link", "set", "way1", "up"]).unwrap();
    assert!(run(&outside, "ip", &["link", "set", "way0", "netns", &file, "up"]).unwrap().success());
    let packets = "import socket\ns = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\ns.bind(('way0', 0))\n\
        for _ in range(50):\n    try: s.send(b'\\xff' * 6 + b'\\x02' * 6 + b'\\x88\\xb5' + b'out' * 20)\n    except OSError: pass";
    let Some(sent) = run(&inside, "python3", &["-c", packets]) else {
        eprintln!("skipped: there is no python3");
        return;
    };
    assert!(sent.success(), "the link was up, and packets were sent");
    assert_eq!(tap.frames().unwrap(), 0);
    // The same, outside: the tap sees what passes.
    let seen = packets.replace("way0", "way1");
    assert!(run(&outside, "python3", &["-c", &seen]).unwrap().success());
    assert!(tap.frames().unwrap() > 0);
}

#[test]
fn what_is_no_hand_over_is_refused_in_time() {
    let (mut stranger, gateway) = UnixStream::pair().unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(matches!(handover::receive(&gateway), Err(HandoverRefused::NotAHandover)));
}
