use std::io;
use std::os::fd::AsFd;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::*;

/// A client's and an upstream's end of a running tunnel.
struct Pair<C> {
    client: C,
    upstream: TcpStream,
    meter: Arc<Meter>,
    closed: JoinHandle<Closed>,
}

const HOUR: Duration = Duration::from_secs(3600);

#[expect(clippy::disallowed_methods, reason = "the test is both ends of its own loopback connection")]
async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, far)
}

async fn tunnel(idle: Duration) -> Pair<TcpStream> {
    let (near, client) = tcp().await;
    over(near.into(), client, idle, Vec::new(), Vec::new()).await
}

async fn over<C>(near: Stream, client: C, idle: Duration, up: Vec<u8>, down: Vec<u8>) -> Pair<C> {
    let (upstream_near, upstream) = tcp().await;
    let meter = Arc::new(Meter::default());
    let mut tunnel = Tunnel {
        client: near,
        upstream: upstream_near.into(),
        to_upstream: up,
        to_client: down,
        meter: Arc::clone(&meter),
        idle,
    };
    tunnel.client.tune();
    let closed = tokio::spawn(async move { tunnel.run().await });
    Pair { client, upstream, meter, closed }
}

/// Bytes that show a shift, a loss and a swap.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at ^ (at >> 8) ^ (at >> 17)) as u8).collect()
}

async fn ends(closed: JoinHandle<Closed>) -> Closed {
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("the tunnel ends").unwrap()
}

#[tokio::test]
async fn small_messages_pass_both_ways_and_are_counted_while_they_do() {
    let mut pair = tunnel(HOUR).await;
    let mut got = [0; 4];
    pair.client.write_all(b"ping").await.unwrap();
    pair.upstream.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"ping");
    pair.upstream.write_all(b"pong!").await.unwrap();
    pair.client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"pong");
    assert_eq!((pair.meter.up(), pair.meter.down()), (4, 5));
}

#[tokio::test]
async fn a_client_that_half_closes_still_gets_the_answer() {
    let mut pair = tunnel(HOUR).await;
    pair.client.write_all(b"ask").await.unwrap();
    pair.client.shutdown().await.unwrap();
    let mut asked = Vec::new();
    pair.upstream.read_to_end(&mut asked).await.unwrap();
    assert_eq!(asked, b"ask");
    pair.upstream.write_all(b"answer").await.unwrap();
    pair.upstream.shutdown().await.unwrap();
    let mut answered = Vec::new();
    pair.client.read_to_end(&mut answered).await.unwrap();
    assert_eq!(answered, b"answer");
    let closed = ends(pair.closed).await;
    assert_eq!((closed.up, closed.down, closed.cause), (3, 6, Cause::ClientEof));
}

#[tokio::test]
async fn an_upstream_that_half_closes_still_gets_the_rest() {
    let mut pair = tunnel(HOUR).await;
    pair.upstream.shutdown().await.unwrap();
    assert_eq!(pair.client.read(&mut [0; 8]).await.unwrap(), 0);
    pair.client.write_all(b"late").await.unwrap();
    pair.client.shutdown().await.unwrap();
    let mut late = Vec::new();
    pair.upstream.read_to_end(&mut late).await.unwrap();
    assert_eq!(late, b"late");
    assert_eq!(ends(pair.closed).await.cause, Cause::UpstreamEof);
}

#[tokio::test]
async fn bytes_from_before_the_tunnel_go_first() {
    let (near, client) = tcp().await;
    let mut pair = over(near.into(), client, HOUR, b"early ".to_vec(), b"banner ".to_vec()).await;
    pair.client.write_all(b"late").await.unwrap();
    pair.upstream.write_all(b"hello").await.unwrap();
    pair.client.shutdown().await.unwrap();
    pair.upstream.shutdown().await.unwrap();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    pair.upstream.read_to_end(&mut up).await.unwrap();
    pair.client.read_to_end(&mut down).await.unwrap();
    assert_eq!((up.as_slice(), down.as_slice()), (&b"early late"[..], &b"banner hello"[..]));
    let closed = ends(pair.closed).await;
    assert_eq!((closed.up, closed.down), (4, 5), "the early bytes were counted by whoever took them");
}

/// Both directions at once, more than every buffer on the way, read by a reader that starts late.
async fn bulk<C: AsyncReadExt + AsyncWriteExt + Send + Unpin + 'static>(pair: Pair<C>) {
    const LENGTH: usize = 12 << 20;
    let sent = Arc::new(pattern(LENGTH));
    async fn one<S: AsyncReadExt + AsyncWriteExt + Send + Unpin + 'static>(
        end: S,
        bytes: Arc<Vec<u8>>,
    ) -> Vec<u8> {
        let (mut read, mut write) = tokio::io::split(end);
        let writer = tokio::spawn(async move {
            write.write_all(&bytes).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut got = Vec::new();
        read.read_to_end(&mut got).await.unwrap();
        writer.await.unwrap();
        got
    }
    let client = tokio::spawn(one(pair.client, Arc::clone(&sent)));
    let upstream = tokio::spawn(one(pair.upstream, Arc::clone(&sent)));
    assert!(client.await.unwrap() == *sent, "the client got other bytes than the upstream sent");
    assert!(upstream.await.unwrap() == *sent, "the upstream got other bytes than the client sent");
    let closed = ends(pair.closed).await;
    assert_eq!((closed.up, closed.down), (LENGTH as u64, LENGTH as u64));
}

/// Chunks of many sizes, written and read at different paces, so that a direction changes between copying and splicing
/// in the middle of everything, with bytes held and without.
async fn ragged(mut end: TcpStream, seed: u64, length: usize) -> Vec<u8> {
    let (mut read, mut write) = end.split();
    let mut random = seed;
    let mut next = move || {
        // Knuth's MMIX constants.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    let mut paces = next;
    let bytes = pattern(length);
    let writing = async {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let most = [40, 5_000, 70_000, 400_000][next() % 4];
            let (chunk, after) = rest.split_at(rest.len().min(1 + next() % most));
            write.write_all(chunk).await.unwrap();
            rest = after;
            for _ in 0..next() % 4 {
                tokio::task::yield_now().await;
            }
        }
        write.shutdown().await.unwrap();
    };
    let reading = async {
        let mut got = Vec::new();
        let mut buffer = vec![0; 300_000];
        loop {
            let most = [50, 3_000, 300_000][paces() % 3];
            match read.read(&mut buffer[..1 + paces() % most]).await.unwrap() {
                0 => return got,
                read => got.extend_from_slice(&buffer[..read]),
            }
            for _ in 0..paces() % 8 {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::join!(writing, reading).1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_survive_every_mix_of_sizes_and_paces() {
    const LENGTH: usize = 3 << 20;
    let expected = pattern(LENGTH);
    for seed in 1..=5 {
        let pair = tunnel(HOUR).await;
        let client = tokio::spawn(ragged(pair.client, seed, LENGTH));
        let upstream = tokio::spawn(ragged(pair.upstream, seed << 32, LENGTH));
        assert!(client.await.unwrap() == expected, "down, seed {seed}");
        assert!(upstream.await.unwrap() == expected, "up, seed {seed}");
        let closed = ends(pair.closed).await;
        assert_eq!((closed.up, closed.down), (LENGTH as u64, LENGTH as u64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_arrives_whole_over_tcp() {
    bulk(tunnel(HOUR).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_arrives_whole_over_a_unix_socket() {
    let (near, client) = UnixStream::pair().unwrap();
    bulk(over(near.into(), client, HOUR, Vec::new(), Vec::new()).await).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_bulk_phase_borrows_one_pipe_of_the_thread_and_gives_it_back() {
    assert_eq!(pipe::Pipe::spare(), 0);
    bulk(tunnel(HOUR).await).await;
    assert!((1..=2).contains(&pipe::Pipe::spare()), "{}", pipe::Pipe::spare());
}

// splice(2) does not pass an urgent byte (tcp(7)); a relay that only splices stops there for good.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_urgent_byte_in_the_bulk_phase_does_not_stop_the_tunnel() {
    let mut pair = tunnel(HOUR).await;
    let sent = pattern(4 << 20);
    let reader = tokio::spawn(async move {
        let mut got = Vec::new();
        pair.upstream.read_to_end(&mut got).await.unwrap();
        got.len()
    });
    pair.client.write_all(&sent).await.unwrap();
    rustix::net::send(&pair.client, b"!", rustix::net::SendFlags::OOB).unwrap();
    pair.client.write_all(&sent).await.unwrap();
    pair.client.shutdown().await.unwrap();
    // The urgent byte itself is out of band and lost, as in any relay that does not ask for it.
    assert_eq!(reader.await.unwrap(), 2 * sent.len());
}

#[tokio::test]
async fn a_kill_resets_both_sides_at_once() {
    let mut pair = tunnel(HOUR).await;
    pair.client.write_all(b"x").await.unwrap();
    pair.upstream.read_exact(&mut [0]).await.unwrap();
    pair.meter.kill();
    let closed = ends(pair.closed).await;
    assert_eq!((closed.up, closed.cause), (1, Cause::Killed));
    let client = pair.client.read(&mut [0]).await.unwrap_err();
    let upstream = pair.upstream.read(&mut [0]).await.unwrap_err();
    assert_eq!(client.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(upstream.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_kill_before_the_start_lets_no_byte_through() {
    let (near, client) = tcp().await;
    let (upstream_near, mut upstream) = tcp().await;
    let meter = Arc::new(Meter::default());
    meter.kill();
    let mut tunnel = Tunnel {
        client: near.into(),
        upstream: upstream_near.into(),
        to_upstream: b"secret".to_vec(),
        to_client: Vec::new(),
        meter,
        idle: HOUR,
    };
    assert_eq!(tunnel.run().await.cause, Cause::Killed);
    drop(tunnel);
    assert!(upstream.read(&mut [0]).await.is_err());
    drop(client);
}

#[tokio::test]
async fn a_reset_of_one_side_reaches_the_other() {
    let mut pair = tunnel(HOUR).await;
    pair.upstream.set_zero_linger().unwrap();
    drop(pair.upstream);
    let error = pair.client.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(ends(pair.closed).await.cause, Cause::UpstreamReset);
}

#[tokio::test(start_paused = true)]
async fn a_silent_tunnel_ends_after_the_idle_limit() {
    let limit = Duration::from_secs(100);
    let pair = tunnel(limit).await;
    let closed = pair.closed.await.unwrap();
    assert_eq!(closed.cause, Cause::Idle);
    assert!(closed.duration >= limit && closed.duration <= limit + limit / IDLE_LOOKS, "{closed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_byte_now_and_then_keeps_a_tunnel_alive() {
    let limit = Duration::from_secs(100);
    let mut pair = tunnel(limit).await;
    for _ in 0..5 {
        tokio::time::advance(Duration::from_secs(70)).await;
        pair.upstream.write_all(b".").await.unwrap();
        pair.client.read_exact(&mut [0]).await.unwrap();
    }
    assert!(!pair.closed.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_kept_alive_once_the_tunnel_has_some_age() {
    let ((near, mut client), (upstream_near, mut upstream)) = (tcp().await, tcp().await);
    let seen = upstream_near.as_fd().try_clone_to_owned().unwrap();
    let keeps_alive = || socket2::SockRef::from(&seen).keepalive().unwrap();
    let mut tunnel = Tunnel {
        client: near.into(),
        upstream: upstream_near.into(),
        to_upstream: Vec::new(),
        to_client: Vec::new(),
        meter: Arc::default(),
        idle: HOUR,
    };
    let running = tokio::spawn(async move { tunnel.run().await });
    for (seconds, kept) in [(0, false), (29, false), (2, true)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        client.write_all(b".").await.unwrap();
        upstream.read_exact(&mut [0]).await.unwrap();
        assert_eq!(keeps_alive(), kept, "after {seconds} s");
    }
    assert!(!running.is_finished());
}

#[tokio::test]
async fn a_tunnel_stops_before_a_first_byte_and_loses_nothing() {
    let (near, mut client) = tcp().await;
    let (upstream_near, mut upstream) = tcp().await;
    let mut tunnel = Tunnel {
        client: near.into(),
        upstream: upstream_near.into(),
        to_upstream: Vec::new(),
        to_client: Vec::new(),
        meter: Arc::default(),
        idle: HOUR,
    };
    upstream.write_all(b"banner").await.unwrap();
    let says = async {
        client.read_exact(&mut [0; 6]).await.unwrap();
        client.write_all(b"\x16\x03").await.unwrap();
    };
    let (stopped, ()) = tokio::join!(tunnel.run_unless(0x16), says);
    assert_eq!((stopped, tunnel.to_upstream.as_slice()), (None, &b"\x16\x03"[..]));
    assert_eq!((tunnel.meter.up(), tunnel.meter.down()), (2, 6));
    assert!(upstream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    let run = tokio::spawn(async move { tunnel.run().await });
    client.shutdown().await.unwrap();
    let mut hello = Vec::new();
    upstream.read_to_end(&mut hello).await.unwrap();
    assert_eq!(hello, b"\x16\x03");
    drop(upstream);
    assert_eq!(ends(run).await.cause, Cause::ClientEof);
}

#[tokio::test]
async fn a_tunnel_stops_at_the_first_byte_only() {
    let (near, mut client) = tcp().await;
    let (upstream_near, mut upstream) = tcp().await;
    let run = tokio::spawn(async move {
        let mut tunnel = Tunnel {
            client: near.into(),
            upstream: upstream_near.into(),
            to_upstream: Vec::new(),
            to_client: Vec::new(),
            meter: Arc::default(),
            idle: HOUR,
        };
        tunnel.run_unless(0x16).await.expect("it runs to its end")
    });
    for part in [&b"x"[..], b"\x16\x03"] {
        client.write_all(part).await.unwrap();
        let mut got = vec![0; part.len()];
        upstream.read_exact(&mut got).await.unwrap();
        assert_eq!(got, part);
    }
    drop((client, upstream));
    ends(run).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_back_the_upstream() {
    let pair = tunnel(HOUR).await;
    let bytes = pattern(1 << 20);
    let stuffed = async {
        loop {
            pair.upstream.writable().await.unwrap();
            let _ = pair.upstream.try_write(&bytes);
        }
    };
    // Nobody reads: the writer must come to a stop, and the gateway hold no more than one pipe and the
    // sockets' own buffers.
    assert!(tokio::time::timeout(Duration::from_millis(500), stuffed).await.is_err());
    let held = pair.meter.down();
    assert!(tokio::time::timeout(Duration::from_millis(100), pair.upstream.writable()).await.is_err());
    assert_eq!(pair.meter.down(), held);
}

#[test]
fn an_idle_tunnel_is_small() {
    fn of<F: Future>(_: impl FnOnce(Tunnel) -> F) -> usize {
        size_of::<F>()
    }
    let size = of(async |mut tunnel: Tunnel| tunnel.run().await);
    assert!(size <= 1024, "{size} bytes");
}
