//! A tiny authoritative DNS server on UDP: upstream of the servers under test, and the limit that they are
//! compared with.

use crate::common::{Res, guard};
use crate::sys::{BATCH, Batch, MSG, Peer};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "127.0.0.1:15353")]
    listen: SocketAddr,
    /// A record given for every name
    #[arg(long, default_value = "127.0.0.1")]
    ip: Ipv4Addr,
    #[arg(long, default_value_t = 3600)]
    ttl: u32,
    #[arg(long)]
    allow_non_loopback: bool,
}

/// Answer A with --ip, other types with no data; names that start with "nx" get NXDOMAIN. Both come with an SOA, or no
/// resolver could keep them (RFC 2308 section 2). AA is set; OPT is not echoed.
pub fn run(a: Args) -> Res<()> {
    guard(a.listen, a.allow_non_loopback)?;
    let s = UdpSocket::bind(a.listen)?;
    eprintln!("dns-stub: {}", a.listen);
    let mut b = Batch::new();
    loop {
        let n = b.recv(&s, Peer::Any)?.min(BATCH);
        let mut keep = 0;
        for i in 0..n {
            if let Some(len) = answer(&mut b.bufs[i], b.lens[i], a.ip, a.ttl) {
                b.lens[i] = len;
                b.swap(i, keep);
                keep += 1;
            }
        }
        b.send(&s, keep, Peer::Any);
    }
}

/// Turn a query into its answer; the length. `None`: not a query that can be answered.
fn answer(m: &mut [u8; MSG], len: usize, ip: Ipv4Addr, ttl: u32) -> Option<usize> {
    let end = question_end(&m[..len])?;
    let qtype = u16::from_be_bytes([m[end - 4], m[end - 3]]);
    let nx = m[12] >= 2 && m[13..15].eq_ignore_ascii_case(b"nx");
    m[2] = 0x84 | (m[2] & 1);
    m[3] = if nx { 3 } else { 0 };
    m[6..12].fill(0);
    if nx || qtype != 1 {
        // Owner as asked, root as server and mailbox, then serial, refresh, retry, expire and minimum.
        let rr = m.get_mut(end..end + 34)?;
        rr.fill(0);
        rr[..6].copy_from_slice(&[0xc0, 12, 0, 6, 0, 1]);
        rr[6..10].copy_from_slice(&ttl.to_be_bytes());
        rr[11] = 22;
        rr[30..].copy_from_slice(&ttl.to_be_bytes());
        m[9] = 1;
        return Some(end + 34);
    }
    let rr = m.get_mut(end..end + 16)?;
    rr[..6].copy_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
    rr[6..10].copy_from_slice(&ttl.to_be_bytes());
    rr[10..12].copy_from_slice(&[0, 4]);
    rr[12..].copy_from_slice(&ip.octets());
    m[7] = 1;
    Some(end + 16)
}

/// Offset just past the first question, or None for a malformed query.
fn question_end(m: &[u8]) -> Option<usize> {
    if m.len() < 17 || m[2] & 0x80 != 0 || m[5] != 1 {
        return None;
    }
    let mut p = 12;
    loop {
        let l = *m.get(p)? as usize;
        if l == 0 {
            break;
        }
        if l > 63 {
            return None;
        }
        p += 1 + l;
    }
    (p + 5 <= m.len()).then_some(p + 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::encode;

    #[test]
    fn question_bounds() {
        let q = encode("a.example", 1, false);
        assert_eq!(question_end(&q), Some(q.len()));
        let e = encode("a.example", 1, true);
        assert_eq!(question_end(&e), Some(e.len() - 11));
        for cut in 0..q.len() {
            assert_eq!(question_end(&q[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn no_data_may_be_kept() {
        let q = encode("a.example", 28, false);
        let mut m = [0; MSG];
        m[..q.len()].copy_from_slice(&q);
        let n = answer(&mut m, q.len(), Ipv4Addr::LOCALHOST, 60).expect("answered");
        assert_eq!((n, m[7], m[9]), (q.len() + 34, 0, 1));
        assert_eq!(m[n - 4..n], [0, 0, 0, 60]);
    }

    #[test]
    fn address_is_answered() {
        let q = encode("a.example", 1, true);
        let mut m = [0; MSG];
        m[..q.len()].copy_from_slice(&q);
        let n = answer(&mut m, q.len(), Ipv4Addr::new(192, 0, 2, 7), 60).expect("answered");
        assert_eq!(m[n - 4..n], [192, 0, 2, 7]);
        assert_eq!((m[2], m[3], m[7], m[11]), (0x85, 0, 1, 0));
    }
}
