//! Closed-loop UDP DNS load with K queries outstanding, by recvmmsg and sendmmsg, so that the generator costs far
//! less than the server under test. Every reply is checked: its id must be outstanding and its question must be
//! the one asked; response codes and replies that hold an answer are counted.

use crate::common::{Res, emit, fields, guard, hist, hist_json, record};
use crate::meter::Meter;
use crate::sys::{BATCH, Batch, MSG, Peer};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// A query without a reply for this long is lost and its slot is used again.
const LOST_AFTER: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    server: SocketAddr,
    /// File with one name a line (first word); else --pattern is used
    #[arg(long)]
    names: Option<String>,
    /// Name with {} for a number below --count, written with leading zeros
    #[arg(long, default_value = "h{}.allowed.test")]
    pattern: String,
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Queries outstanding, over all sockets
    #[arg(long, default_value_t = 64)]
    outstanding: usize,
    /// Client sockets (a server with SO_REUSEPORT threads spreads by source port)
    #[arg(long, default_value_t = 1)]
    sockets: usize,
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Send each name once first (fills caches), not measured
    #[arg(long)]
    prime: bool,
    /// Query type number (1 A, 28 AAAA, 65 HTTPS)
    #[arg(long, default_value_t = 1)]
    qtype: u16,
    /// Add an EDNS0 OPT record
    #[arg(long)]
    edns: bool,
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    #[arg(long, default_value = "")]
    label: String,
    #[arg(long)]
    allow_non_loopback: bool,
}

/// Length of the OPT record that `encode` adds.
const OPT_LEN: usize = 11;

/// A query for `name` with id 0.
pub fn encode(name: &str, qtype: u16, edns: bool) -> Vec<u8> {
    let mut q = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)];
    for l in name.trim_end_matches('.').split('.') {
        q.push(l.len().min(63) as u8);
        q.extend_from_slice(&l.as_bytes()[..l.len().min(63)]);
    }
    q.push(0);
    q.extend_from_slice(&qtype.to_be_bytes());
    q.extend_from_slice(&[0, 1]);
    if edns {
        q.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    }
    q
}

/// The queries of a run, by number.
enum Queries {
    /// One message a name.
    List(Vec<Vec<u8>>),
    /// One message for all: the digits at `at..at + digits` are the number. Millions of names that a cache has
    /// never seen then cost the generator no memory and no cache misses.
    Counter { message: Vec<u8>, at: usize, digits: usize, count: u32 },
}

impl Queries {
    fn from_args(a: &Args) -> Res<Queries> {
        if let Some(path) = &a.names {
            let text = std::fs::read_to_string(path)?;
            let names = text.lines().filter_map(|l| l.split_whitespace().next());
            let list: Vec<_> = names.map(|n| encode(n, a.qtype, a.edns)).collect();
            return if list.is_empty() { Err("no names".into()) } else { Ok(Queries::List(list)) };
        }
        if a.count == 0 {
            return Err("no names".into());
        }
        let digits = (a.count - 1).to_string().len();
        // No name holds this character, so it marks the place in the wire form.
        let message = encode(&a.pattern.replace("{}", &"\u{1}".repeat(digits)), a.qtype, a.edns);
        let at = message.windows(digits).skip(12).position(|w| w.iter().all(|b| *b == 1)).map(|i| i + 12);
        let at = at.ok_or("--pattern needs {}")?;
        Ok(Queries::Counter { message, at, digits, count: a.count })
    }

    fn len(&self) -> u32 {
        match self {
            Queries::List(l) => l.len() as u32,
            Queries::Counter { count, .. } => *count,
        }
    }

    /// Write query `i` with this id; its length.
    fn write(&self, i: u32, id: u16, into: &mut [u8; MSG]) -> usize {
        let len = match self {
            Queries::List(l) => {
                let m = &l[i as usize];
                into[..m.len()].copy_from_slice(m);
                m.len()
            }
            Queries::Counter { message, at, digits, .. } => {
                into[..message.len()].copy_from_slice(message);
                let mut rest = i;
                for b in into[*at..at + digits].iter_mut().rev() {
                    *b = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                message.len()
            }
        };
        into[..2].copy_from_slice(&id.to_be_bytes());
        len
    }

    /// Whether a reply carries the question of query `i`, in any case (0x20).
    fn asked(&self, i: u32, edns: bool, reply: &[u8]) -> bool {
        let mut own = [0; MSG];
        let end = self.write(i, 0, &mut own) - if edns { OPT_LEN } else { 0 };
        reply.get(12..end).is_some_and(|q| q.eq_ignore_ascii_case(&own[12..end]))
    }
}

struct Sock {
    s: UdpSocket,
    /// Per slot (its index is the query id): query number and send time.
    slots: Vec<Option<(u32, Instant)>>,
    /// Slots to send next.
    free: Vec<u16>,
}

/// What came back.
#[derive(Default)]
struct Outcome {
    rcodes: [u64; 16],
    /// Replies with a record in the answer section.
    answered: u64,
    lost: u64,
    /// Replies to nothing that was asked.
    strange: u64,
    done: u64,
}

/// When a loop ends.
enum Until {
    Time(Instant),
    /// So many replies, or the time.
    Replies(u64, Instant),
}

pub fn run(a: Args) -> Res<()> {
    guard(a.server, a.allow_non_loopback)?;
    let queries = Queries::from_args(&a)?;
    let per = (a.outstanding / a.sockets).clamp(1, 65_536);
    let any: IpAddr = match a.server.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut socks = Vec::new();
    for _ in 0..a.sockets {
        let s = UdpSocket::bind((any, 0))?;
        s.connect(a.server)?;
        s.set_nonblocking(true)?;
        socks.push(Sock { s, slots: vec![None; per], free: (0..per).map(|i| i as u16).collect() });
    }
    let mut client = Client { socks, queries, edns: a.edns, next: 0, batch: Batch::new() };
    if a.prime {
        let limit = u64::from(client.queries.len());
        client.drive(&Until::Replies(limit, Instant::now() + Duration::from_secs(60)), None)?;
    }
    if a.warmup > 0.0 {
        client.drive(&Until::Time(Instant::now() + Duration::from_secs_f64(a.warmup)), None)?;
    }
    let mut h = hist();
    let m = Meter::start(&a.pid);
    let o = client.drive(&Until::Time(Instant::now() + Duration::from_secs_f64(a.duration)), Some(&mut h))?;
    let reading = m.stop();
    emit(
        "dns",
        &a.label,
        [
            reading.json(h.len()),
            fields(json!({
                "names": client.queries.len(), "outstanding": per * a.sockets, "sockets": a.sockets,
                "lat": hist_json(&h), "rcodes": rcode_names(&o.rcodes), "answered": o.answered,
                "lost": o.lost, "strange": o.strange,
            })),
        ],
    );
    Ok(())
}

fn rcode_names(counts: &[u64; 16]) -> BTreeMap<String, u64> {
    let named = counts.iter().enumerate().filter(|(_, n)| **n > 0);
    named
        .map(|(i, n)| {
            let name = match i {
                0 => "NOERROR".into(),
                2 => "SERVFAIL".into(),
                3 => "NXDOMAIN".into(),
                5 => "REFUSED".into(),
                i => format!("RCODE{i}"),
            };
            (name, *n)
        })
        .collect()
}

struct Client {
    socks: Vec<Sock>,
    queries: Queries,
    edns: bool,
    /// Number of the query to send next; goes on across warm-up and measurement.
    next: u32,
    batch: Batch,
}

impl Client {
    /// The closed loop: whenever a slot is free, a query goes out.
    fn drive(&mut self, until: &Until, mut h: Option<&mut Histogram<u64>>) -> Res<Outcome> {
        let mut o = Outcome::default();
        let mut swept = Instant::now();
        loop {
            let now = Instant::now();
            let over = match until {
                Until::Time(end) => now >= *end,
                Until::Replies(n, end) => o.done >= *n || now >= *end,
            };
            if over {
                return Ok(o);
            }
            let mut progressed = false;
            for k in &mut self.socks {
                while !k.free.is_empty() {
                    let n = k.free.len().min(BATCH);
                    let sent = Instant::now();
                    for (i, id) in k.free.drain(k.free.len() - n..).enumerate() {
                        self.batch.lens[i] = self.queries.write(self.next, id, &mut self.batch.bufs[i]);
                        k.slots[id as usize] = Some((self.next, sent));
                        self.next = (self.next + 1) % self.queries.len();
                    }
                    self.batch.send(&k.s, n, Peer::Connected);
                }
                let n = self.batch.recv(&k.s, Peer::Connected)?;
                progressed |= n > 0;
                let came = Instant::now();
                for (m, len) in self.batch.bufs.iter().zip(self.batch.lens).take(n) {
                    match settle(k, &m[..len], &self.queries, self.edns) {
                        None => o.strange += 1,
                        Some(sent) => {
                            o.rcodes[usize::from(m[3] & 15)] += 1;
                            o.answered += u64::from(m[6] | m[7] != 0);
                            o.done += 1;
                            if let Some(h) = h.as_deref_mut() {
                                record(h, came - sent);
                            }
                        }
                    }
                }
            }
            if !progressed {
                let mut fds: Vec<_> = self.socks.iter().map(|k| PollFd::new(&k.s, PollFlags::IN)).collect();
                let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
            }
            if now.duration_since(swept) > LOST_AFTER / 5 {
                swept = now;
                o.lost += self.socks.iter_mut().map(|k| forget_lost(k, now)).sum::<u64>();
            }
        }
    }
}

/// Match a reply to its query and free the slot; when it was sent. `None`: nothing like it was asked.
fn settle(k: &mut Sock, reply: &[u8], queries: &Queries, edns: bool) -> Option<Instant> {
    let id = u16::from_be_bytes([*reply.first()?, *reply.get(1)?]);
    let slot = k.slots.get_mut(usize::from(id))?;
    let (number, sent) = (*slot)?;
    if !queries.asked(number, edns, reply) {
        return None;
    }
    *slot = None;
    k.free.push(id);
    Some(sent)
}

fn forget_lost(k: &mut Sock, now: Instant) -> u64 {
    let mut lost = 0;
    for (i, s) in k.slots.iter_mut().enumerate() {
        if s.is_some_and(|(_, t)| now.duration_since(t) > LOST_AFTER) {
            *s = None;
            lost += 1;
            k.free.push(i as u16);
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(pattern: &str, count: u32) -> Queries {
        #[derive(clap::Parser)]
        struct P {
            #[command(flatten)]
            a: Args,
        }
        let count = count.to_string();
        let args = ["p", "--server", "127.0.0.1:1", "--pattern", pattern, "--count", &count];
        Queries::from_args(&<P as clap::Parser>::parse_from(args).a).expect("good arguments")
    }

    #[test]
    fn counter_writes_the_same_bytes_as_the_encoder() {
        let q = counter("h{}.allowed.test", 1000);
        let mut b = [0; MSG];
        for (i, name) in [(0, "h000.allowed.test"), (7, "h007.allowed.test"), (999, "h999.allowed.test")] {
            let n = q.write(i, 0, &mut b);
            assert_eq!(b[..n], encode(name, 1, false));
        }
    }

    #[test]
    fn reply_to_another_question_is_not_taken() {
        let q = counter("h{}.allowed.test", 10);
        assert!(q.asked(3, false, &encode("H3.Allowed.test", 1, false)));
        assert!(!q.asked(3, false, &encode("h4.allowed.test", 1, false)));
        assert!(!q.asked(3, false, &[0; 12]));
    }
}
