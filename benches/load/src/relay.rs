//! Reference relays: how fast can a userspace relay be on this machine?
//!
//! * `copy`    CONNECT proxy, tokio `copy_bidirectional` (two 8 KiB buffers)
//! * `copy64`  the same with 64 KiB buffers
//! * `splice`  CONNECT proxy, splice(2) through a pipe per direction
//! * `hybrid`  small buffer first; splice once a direction has moved 64 KiB
//! * `tcp`     no CONNECT at all: forward to --target by `copy_bidirectional`
//!
//! The policy is one allowed host:port. Names resolve by --map only.

use crate::common::{Res, guard, runtime};
use crate::conn::find_end;
use crate::origin::listener;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Mode {
    Copy,
    Copy64,
    Splice,
    Hybrid,
    Tcp,
}

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "127.0.0.1:13000")]
    listen: SocketAddr,
    #[arg(long, value_enum, default_value = "copy")]
    mode: Mode,
    /// The one allowed host (any port)
    #[arg(long, default_value = "allowed.test")]
    allow: String,
    /// Where the allowed host is
    #[arg(long, default_value = "127.0.0.1")]
    map: std::net::IpAddr,
    /// Target of mode `tcp`
    #[arg(long, default_value = "127.0.0.1:18080")]
    target: SocketAddr,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Permit addresses other than loopback
    #[arg(long)]
    allow_non_loopback: bool,
    /// Pipe size for splice, KiB
    #[arg(long, default_value_t = 256)]
    pipe_kib: usize,
}

pub fn run(a: Args) -> Res<()> {
    guard(a.listen, a.allow_non_loopback)?;
    guard(SocketAddr::new(a.map, 1), a.allow_non_loopback)?;
    guard(a.target, a.allow_non_loopback)?;
    let a: &'static Args = Box::leak(Box::new(a));
    runtime(a.threads)?.block_on(async move {
        let l = listener(a.listen)?;
        eprintln!("relay: {}", a.listen);
        // Accept inside the scheduler, not on the block_on thread.
        tokio::spawn(async move {
            loop {
                match l.accept().await {
                    Ok((s, _)) => {
                        tokio::spawn(async move {
                            let _ = serve(s, a).await;
                        });
                    }
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                }
            }
        })
        .await?;
        Ok(())
    })
}

async fn serve(mut c: TcpStream, a: &'static Args) -> io::Result<()> {
    c.set_nodelay(true)?;
    if a.mode == Mode::Tcp {
        let mut u = TcpStream::connect(a.target).await?;
        u.set_nodelay(true)?;
        tokio::io::copy_bidirectional(&mut c, &mut u).await?;
        return Ok(());
    }
    let Some((port, early)) = read_connect(&mut c, &a.allow).await? else { return Ok(()) };
    let Some(port) = port else {
        c.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await?;
        return Ok(());
    };
    let mut u = TcpStream::connect(SocketAddr::new(a.map, port)).await?;
    u.set_nodelay(true)?;
    c.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    if !early.is_empty() {
        u.write_all(&early).await?;
    }
    match a.mode {
        Mode::Copy => tokio::io::copy_bidirectional(&mut c, &mut u).await.map(|_| ()),
        Mode::Copy64 => {
            tokio::io::copy_bidirectional_with_sizes(&mut c, &mut u, 65536, 65536).await.map(|_| ())
        }
        Mode::Splice => both(&c, &u, 0, a.pipe_kib).await,
        Mode::Hybrid => both(&c, &u, 65536, a.pipe_kib).await,
        Mode::Tcp => unreachable!(),
    }
}

/// The port, if the name is the allowed one, and the bytes past the head.
type Asked = (Option<u16>, Vec<u8>);

/// Read the CONNECT head. `None`: the client went away or sent too much;
/// `Some((None, _))`: not allowed; else the port and any bytes past the head.
async fn read_connect(c: &mut TcpStream, allow: &str) -> io::Result<Option<Asked>> {
    let mut got: Vec<u8> = Vec::new();
    loop {
        c.readable().await?;
        match read_some::<2048>(c, &mut got) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        }
        if let Some(end) = find_end(&got) {
            let port = std::str::from_utf8(&got[..end])
                .ok()
                .and_then(|h| h.strip_prefix("CONNECT "))
                .and_then(|h| h.split(' ').next())
                .and_then(|au| au.rsplit_once(':'))
                .filter(|(h, _)| h.eq_ignore_ascii_case(allow))
                .and_then(|(_, p)| p.parse::<u16>().ok());
            return Ok(Some((port, got.split_off(end))));
        }
        if got.len() > 8192 {
            return Ok(None);
        }
    }
}

/// One read through a stack buffer that no await can hold, so that a waiting
/// tunnel owns no buffer.
fn read_some<const N: usize>(c: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut b = [0u8; N];
    let n = c.try_read(&mut b)?;
    into.extend_from_slice(&b[..n]);
    Ok(n)
}

/// Move what is there from `src` to `dst` through the stack. Returns the bytes
/// read (0 at the end) and what `dst` would not take.
fn pump_once(src: &TcpStream, dst: &TcpStream) -> io::Result<(usize, Vec<u8>)> {
    let mut b = [0u8; 16384];
    let n = src.try_read(&mut b)?;
    if n == 0 {
        return Ok((0, Vec::new()));
    }
    let at = match dst.try_write(&b[..n]) {
        Ok(w) => w,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
        Err(e) => return Err(e),
    };
    Ok((n, b[at..n].to_vec()))
}

async fn both(c: &TcpStream, u: &TcpStream, copy_first: usize, pipe_kib: usize) -> io::Result<()> {
    tokio::try_join!(one_way(c, u, copy_first, pipe_kib), one_way(u, c, copy_first, pipe_kib))?;
    Ok(())
}

/// Move one direction to its end, then half-close. The first `copy_first`
/// bytes go through a stack buffer, the rest through a pipe made on demand.
async fn one_way(src: &TcpStream, dst: &TcpStream, copy_first: usize, pipe_kib: usize) -> io::Result<()> {
    let mut moved = 0;
    while moved < copy_first {
        src.readable().await?;
        let (n, rest) = match pump_once(src, dst) {
            Ok((0, _)) => return half_close(dst),
            Ok(x) => x,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        };
        let mut at = 0;
        while at < rest.len() {
            dst.writable().await?;
            match dst.try_write(&rest[at..]) {
                Ok(w) => at += w,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        moved += n;
    }
    src.readable().await?;
    let (pr, pw) = pipe(pipe_kib * 1024)?;
    loop {
        src.readable().await?;
        let n = match src.try_io(Interest::READABLE, || shift(src, &pw, pipe_kib * 1024)) {
            Ok(0) => return half_close(dst),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        };
        let mut left = n;
        while left > 0 {
            match dst.try_io(Interest::WRITABLE, || shift(&pr, dst, left)) {
                Ok(w) => left -= w,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => dst.writable().await?,
                Err(e) => return Err(e),
            }
        }
    }
}

fn half_close(s: &TcpStream) -> io::Result<()> {
    let _ = socket2::SockRef::from(s).shutdown(std::net::Shutdown::Write);
    Ok(())
}

fn pipe(size: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (r, w) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // Refused above /proc/sys/fs/pipe-max-size or pipe-user-pages-soft: the default of 64 KiB serves.
    let _ = fcntl_setpipe_size(&w, size);
    Ok((r, w))
}

fn shift(from: impl AsFd, to: impl AsFd, len: usize) -> io::Result<usize> {
    Ok(splice(from, None, to, None, len, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?)
}
