//! The only `unsafe` of this program: calls that neither rustix nor socket2 wraps.
#![expect(
    unsafe_code,
    reason = "recvmmsg, sendmmsg, process CPU clocks and IP_BIND_ADDRESS_NO_PORT have no safe wrapper here"
)]

use socket2::{SockAddrStorage, Socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Datagrams moved by one system call.
pub const BATCH: usize = 64;
/// Room for one datagram; the stub and the subjects answer over UDP in less.
pub const MSG: usize = 1500;

/// CPU time of a whole process in nanoseconds, threads that have ended included. `None` once it is gone.
///
/// /proc/PID/stat has the same number cut to 10 ms ticks, which is 2 % of a short run.
pub fn process_cpu_ns(pid: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` outlives the call, which writes one clockid_t to it.
    if unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } != 0 {
        return None;
    }
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` outlives the call, which writes one timespec to it.
    if unsafe { libc::clock_gettime(clock, &raw mut t) } != 0 {
        return None;
    }
    Some(u64::try_from(t.tv_sec).ok()? * 1_000_000_000 + u64::try_from(t.tv_nsec).ok()?)
}

/// Choose the source port at connect time, so that one port serves many destinations (ip(7)).
pub fn bind_address_no_port(s: &Socket) -> io::Result<()> {
    let one: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `one`, which outlives the call.
    let r = unsafe {
        libc::setsockopt(
            s.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const one).cast(),
            size_of_val(&one) as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Datagrams of one recvmmsg or sendmmsg call.
pub struct Batch {
    /// Contents; `lens` says how much of each counts.
    pub bufs: Vec<[u8; MSG]>,
    /// Length of each datagram.
    pub lens: [usize; BATCH],
    addrs: Vec<SockAddrStorage>,
    addr_lens: [libc::socklen_t; BATCH],
}

/// What a call should do about datagrams that are not there yet, and about addresses.
#[derive(Clone, Copy, PartialEq)]
pub enum Peer {
    /// A connected socket: no addresses; never wait.
    Connected,
    /// An unconnected socket: keep each sender's address; wait for the first datagram.
    Any,
}

impl Batch {
    /// Room for `BATCH` datagrams.
    pub fn new() -> Batch {
        Batch {
            bufs: vec![[0; MSG]; BATCH],
            lens: [0; BATCH],
            addrs: (0..BATCH).map(|_| SockAddrStorage::zeroed()).collect(),
            addr_lens: [0; BATCH],
        }
    }

    /// Exchange two datagrams, addresses included.
    pub fn swap(&mut self, a: usize, b: usize) {
        if a != b {
            self.bufs.swap(a, b);
            self.lens.swap(a, b);
            self.addrs.swap(a, b);
            self.addr_lens.swap(a, b);
        }
    }

    fn headers(
        &mut self,
        n: usize,
        receive: bool,
        peer: Peer,
    ) -> ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) {
        // SAFETY: both are plain C structs for which all-zero is a valid value (no name, no vectors, no control).
        let (mut iov, mut hdr): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        for i in 0..n {
            iov[i].iov_base = self.bufs[i].as_mut_ptr().cast();
            iov[i].iov_len = if receive { MSG } else { self.lens[i] };
            if peer == Peer::Any {
                hdr[i].msg_hdr.msg_name = (&raw mut self.addrs[i]).cast();
                hdr[i].msg_hdr.msg_namelen =
                    if receive { self.addrs[i].size_of() } else { self.addr_lens[i] };
            }
        }
        (iov, hdr)
    }

    /// Receive up to `BATCH` datagrams; 0 when none is there.
    pub fn recv(&mut self, s: impl AsFd, peer: Peer) -> io::Result<usize> {
        let (mut iov, mut hdr) = self.headers(BATCH, true, peer);
        for (h, v) in hdr.iter_mut().zip(&mut iov) {
            h.msg_hdr.msg_iov = v;
            h.msg_hdr.msg_iovlen = 1;
        }
        let flags = if peer == Peer::Any { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: `hdr` has BATCH entries, each with one vector over a live buffer of MSG bytes and, where named,
        // a live address of msg_namelen bytes; nothing else touches them during the call.
        let n = unsafe {
            libc::recvmmsg(
                s.as_fd().as_raw_fd(),
                hdr.as_mut_ptr(),
                BATCH as u32,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {
                    Ok(0)
                }
                _ => Err(e),
            };
        }
        let n = n.unsigned_abs() as usize;
        for (i, h) in hdr.iter().take(n).enumerate() {
            self.lens[i] = h.msg_len as usize;
            self.addr_lens[i] = h.msg_hdr.msg_namelen;
        }
        Ok(n)
    }

    /// Send the first `n` datagrams. What the peer has no room for is dropped, as UDP does: the query times out.
    pub fn send(&mut self, s: impl AsFd, n: usize, peer: Peer) {
        let (mut iov, mut hdr) = self.headers(n, false, peer);
        for (h, v) in hdr.iter_mut().zip(&mut iov).take(n) {
            h.msg_hdr.msg_iov = v;
            h.msg_hdr.msg_iovlen = 1;
        }
        let mut at = 0;
        while at < n {
            let rest = &mut hdr[at..n];
            // SAFETY: `rest` holds the headers of the datagrams not sent yet, built over live buffers as above.
            let r = unsafe { libc::sendmmsg(s.as_fd().as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            match usize::try_from(r) {
                Ok(sent) => at += sent,
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}
