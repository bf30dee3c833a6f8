//! What the corpus' assertions can look up in the evidence, name by name.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use hickory_proto::{
    op::Message,
    rr::{RData, Record, rdata::svcb::SvcParamKey},
};
use serde_json::{Value, json};
use tidegate::lab::{dns::Asked, http::Request, tap::Sent};

use super::{
    adapter::{OTHER_PROXY, fill_in},
    assertion::{Facts, Step, Term},
    case::bytes,
    evidence::{Bytes, Dns, Evidence, Exchange},
    input::{generate, pause},
};
use crate::support::{Client, PROXY, Response, eventually};

impl Evidence<'_> {
    fn bytes(&self) -> impl Iterator<Item = &Bytes> {
        self.exchanges
            .iter()
            .filter_map(|exchange| if let Exchange::Bytes(bytes) = exchange { Some(bytes) } else { None })
    }

    fn replies(&self) -> Vec<Message> {
        self.dns().filter_map(Dns::message).collect()
    }

    fn dns(&self) -> impl Iterator<Item = &Dns> {
        self.exchanges
            .iter()
            .filter_map(|exchange| if let Exchange::Dns(dns) = exchange { Some(dns) } else { None })
    }

    fn many(&self) -> impl Iterator<Item = (&str, &[u16])> {
        self.exchanges.iter().filter_map(|exchange| match exchange {
            Exchange::Many { pattern, statuses } => Some((pattern.as_str(), statuses.as_slice())),
            _ => None,
        })
    }

    /// How long another sandbox's denial takes to be answered and logged while the pattern goes on.
    fn other_sandbox_delay(&self) -> Result<Value, String> {
        let (pattern, statuses) = self.many().next().ok_or("no load")?;
        let (lab, stop) = (self.scene.lab(), AtomicBool::new(false));
        let took = thread::scope(|scope| {
            scope.spawn(|| {
                for n in (0..statuses.len() as u64).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let mut client = Client::connect(lab, PROXY.parse().expect("an address"));
                    client.send(&bytes(&generate(pattern, n)));
                    client.response();
                }
            });
            let started = Instant::now();
            let mut client = Client::connect(lab, OTHER_PROXY.parse().expect("an address"));
            client.send(b"CONNECT other.attacker.test:443 HTTP/1.1\r\n\r\n");
            client.response();
            eventually("the other sandbox's line", || {
                self.scene.gateway().audit().into_iter().find(|event| event["sandbox"] == "other")
            });
            stop.store(true, Ordering::Relaxed);
            started.elapsed()
        });
        Ok((took.as_millis() as u64).into())
    }

    fn events(&self) -> Result<Vec<Value>, String> {
        self.log
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")))
            .collect()
    }

    fn response(&self, index: usize) -> Result<&Response, String> {
        self.bytes()
            .flat_map(|bytes| &bytes.responses)
            .nth(index)
            .ok_or_else(|| format!("there is no response {index}"))
    }

    fn last_response(&self) -> Result<&Response, String> {
        self.bytes().flat_map(|bytes| &bytes.responses).last().ok_or_else(|| "there is no response".into())
    }

    fn response_fact(&self, step: &Step, of: &Step) -> Result<Value, String> {
        let response = match step.index {
            Some(index) => self.response(index)?,
            None => self.last_response()?,
        };
        Ok(match of.name.as_str() {
            "status" => response.status.into(),
            "body" => String::from_utf8_lossy(&response.body).into_owned().into(),
            "no_header" => response.header(text(of)?).is_none().into(),
            // Over the whole of what the client read: a head reflects as well as a body.
            "no_substring" => {
                let part = text(of)?.as_bytes();
                self.bytes()
                    .all(|bytes| !bytes.received.windows(part.len()).any(|window| window == part))
                    .into()
            }
            // A client that did not ask for JSON gets the same field as a header.
            "json" => {
                let field = text(of)?;
                let in_body = response.json().and_then(|body| body.get(field).cloned());
                in_body
                    .or_else(|| response.header(&format!("tidegate-{field}")).map(Value::from))
                    .unwrap_or_default()
            }
            _ => return unknown(of),
        })
    }

    fn upstream_fact(&self, of: &Step) -> Result<Value, String> {
        let requests = self.requests();
        let last = || requests.last().ok_or_else(|| "no whole request reached an origin".to_owned());
        Ok(match of.name.as_str() {
            "request_count" => match of.arguments.first() {
                Some((_, host)) => {
                    let host = host.as_str().ok_or("a host")?;
                    let of_host =
                        |request: &&Request| request.headers_named("host").any(|value| value.contains(host));
                    requests.iter().filter(of_host).count().into()
                }
                None => requests.len().into(),
            },
            "body" => String::from_utf8_lossy(&last()?.body).into_owned().into(),
            "body_len" => last()?.body.len().into(),
            "header" => last()?.header(text(of)?).map_or(Value::Null, Value::from),
            "header_count" => last()?.headers_named(text(of)?).count().into(),
            "no_header" => last()?.header(text(of)?).is_none().into(),
            "host" => last()?.header("host").map_or(Value::Null, Value::from),
            "paths" => requests.iter().map(|request| request.target.clone()).collect::<Vec<_>>().into(),
            "no_bare_lf" => self
                .contacts
                .iter()
                .all(|contact| {
                    let received = contact.received();
                    received
                        .iter()
                        .enumerate()
                        .all(|(at, &byte)| byte != b'\n' || at > 0 && received[at - 1] == b'\r')
                })
                .into(),
            "sni" => self
                .contacts
                .iter()
                .find_map(|contact| contact.server_name())
                .map_or(Value::Null, Value::from),
            _ => return unknown(of),
        })
    }

    fn log_fact(&mut self, of: &Step) -> Result<Value, String> {
        let text_argument =
            |n: usize| of.arguments.get(n).and_then(|(_, term)| term.as_str()).ok_or("a text");
        Ok(match of.name.as_str() {
            "valid_json" => self.events().is_ok().into(),
            "no_bytes_below_0x20" => self.log.bytes().all(|byte| byte >= 0x20 || byte == b'\n').into(),
            "not_contains" => of
                .arguments
                .iter()
                .all(|(_, term)| term.as_str().is_some_and(|secret| !self.log.contains(secret)))
                .into(),
            "line_bytes" => self.log.lines().map(str::len).max().unwrap_or(0).into(),
            "lines_added" | "events" => self.log.lines().count().into(),
            "bytes" => self.log.len().into(),
            "sum" => {
                let field = text_argument(0)?;
                // What is counted in one event for many is written each second.
                let attempts: usize = self.many().map(|(_, statuses)| statuses.len()).sum();
                let scene = &self.scene;
                let sum =
                    || scene.gateway().audit().iter().filter_map(|event| event[field].as_u64()).sum::<u64>();
                let until = Instant::now() + Duration::from_secs(3);
                while sum() < attempts as u64 && Instant::now() < until {
                    pause(Duration::from_millis(50));
                }
                sum().into()
            }
            "has" => {
                let wanted: Vec<_> = of
                    .arguments
                    .iter()
                    .filter_map(|(key, term)| Some((key.as_deref()?, term.as_str()?)))
                    .collect();
                let has = |event: &Value| wanted.iter().all(|(key, value)| event[*key] == *value);
                self.events()?.iter().any(has).into()
            }
            "has_fields" => {
                // The tunnel's two events share an id; its end is logged when the client has gone.
                let scene = &self.scene;
                let events = eventually("the tunnel's end is logged", || {
                    let events = scene.gateway().audit();
                    events.iter().any(|event| event["event"] == "close").then_some(events)
                });
                let present = |field: &str| events.iter().any(|event| event.get(field).is_some());
                let missing: Vec<_> = of
                    .arguments
                    .iter()
                    .filter_map(|(_, term)| term.as_str())
                    .filter(|field| !present(field))
                    .collect();
                if missing.is_empty() {
                    true.into()
                } else {
                    return Err(format!("no event has {missing:?}"));
                }
            }
            field => {
                let events = self.events()?;
                let event = events.iter().rev().find(|event| event.get(field).is_some());
                event.map_or(Value::Null, |event| event[field].clone())
            }
        })
    }
}

impl Facts for Evidence<'_> {
    fn look_up(&mut self, path: &[Step]) -> Result<Value, String> {
        let [step, rest @ ..] = path else { return Err("an empty path".into()) };
        match (step.name.as_str(), rest) {
            ("response", [of]) => return self.response_fact(step, of),
            ("upstream", [of]) => return self.upstream_fact(of),
            ("log", [of]) => return self.log_fact(of),
            ("metrics", [of]) if of.name == "series" => {
                let (_, text) = self.scene.gateway().metrics(self.scene.lab(), "/metrics");
                return Ok(text
                    .lines()
                    .filter(|line| !line.starts_with('#') && !line.is_empty())
                    .count()
                    .into());
            }
            ("other_sandbox", [of]) if of.name == "log_delay_ms" => return self.other_sandbox_delay(),
            ("upstream_query", [of]) => return upstream_query_fact(&self.asked, &self.exchanges, of),
            (_, []) => {}
            _ => return unknown(step),
        }
        Ok(match step.name.as_str() {
            "dns_upstream_queries" => self.asked.len().into(),
            // An alert stands on the metric of the limits (deploy/).
            "alert" if text(step)? == "dns_tunnel" => {
                let (_, metrics) = self.scene.gateway().metrics(self.scene.lab(), "/metrics");
                metrics.contains("tidegate_limits_hit_total{limit=\"limit_names\"}").into()
            }
            "upstream_dials" => self.dials().len().into(),
            "upstream_bytes_sent" => self.upstream_bytes().into(),
            "upstream_first_bytes" => {
                let all: Vec<u8> = self.contacts.iter().flat_map(|contact| contact.received()).collect();
                String::from_utf8_lossy(&all).into_owned().into()
            }
            "upstream_connection_not_reused" => {
                self.contacts.iter().all(|contact| contact.requests().len() <= 1).into()
            }
            "client_received_bytes_from_upstream" => {
                self.bytes().filter_map(Bytes::tunnel).map(<[u8]>::len).sum::<usize>().into()
            }
            "dialled" => {
                let all: BTreeSet<String> = self.dials().iter().map(|to| to.ip().to_string()).collect();
                match all.len() {
                    1 => all.into_iter().next().into(),
                    _ => all.into_iter().collect::<Vec<_>>().into(),
                }
            }
            "never_dialled" => {
                let address = text(step)?;
                (!self.dials().iter().any(|to| to.ip().to_string() == address)).into()
            }
            "no_packet_to" => {
                let address = text(step)?;
                let to = |sent: &Sent| match sent {
                    Sent::Dial { to, .. } | Sent::Datagram { to } => to.ip(),
                    Sent::Other { to, .. } => *to,
                };
                (!self.sent.iter().any(|sent| to(sent).to_string() == address)).into()
            }
            "no_query_under" => {
                let name = text(step)?;
                self.scene.dns().asked_under(name).is_empty().into()
            }
            "queries" => {
                let [(_, name), (_, kind)] = &step.arguments[..] else {
                    return Err("a name and a type".into());
                };
                let of = |asked: &&Asked| {
                    Some(asked.name.trim_end_matches('.')) == name.as_str()
                        && Some(asked.kind.to_string().as_str()) == kind.as_str()
                };
                self.asked.iter().filter(of).count().into()
            }
            "gateway_alive" => self.scene.gateway_mut().alive().into(),
            "response_count" => self.bytes().map(|bytes| bytes.responses.len()).sum::<usize>().into(),
            "not_in_response" => {
                let secret = fill_in(text(step)?);
                self.bytes()
                    .all(|bytes| {
                        !bytes.received.windows(secret.len()).any(|window| window == secret.as_bytes())
                    })
                    .into()
            }
            "answers" => {
                let records: Vec<_> =
                    self.replies().into_iter().flat_map(|message| message.answers).collect();
                answers(&records)
            }
            "answered" => self.dns().filter(|dns| dns.rcode().as_deref() == Some("NOERROR")).count().into(),
            "ttl" => self
                .replies()
                .iter()
                .flat_map(|message| &message.answers)
                .map(|record| record.ttl)
                .max()
                .into(),
            "no_svcparam" => {
                let key = match text(step)? {
                    "ech" => SvcParamKey::EchConfigList,
                    other => return Err(format!("service parameter {other}")),
                };
                let replies = self.replies();
                let svcb = |data: &RData| match data {
                    RData::HTTPS(https) => {
                        Some(https.0.svc_params.iter().map(|(key, _)| *key).collect::<Vec<_>>())
                    }
                    RData::SVCB(svcb) => Some(svcb.svc_params.iter().map(|(key, _)| *key).collect()),
                    _ => None,
                };
                let params = replies
                    .iter()
                    .flat_map(|message| &message.answers)
                    .filter_map(|record| svcb(&record.data));
                (!params.flatten().any(|present| present == key)).into()
            }
            "handled_ms" => {
                let took = self.dns().map(|dns| dns.took).chain(self.bytes().map(|bytes| bytes.took)).max();
                (took.unwrap_or_default().as_millis() as u64).into()
            }
            "closed_within_s" => {
                let [(_, limit)] = &step.arguments[..] else { return Err("a number".into()) };
                let Term::Literal(limit) = limit else { return Err("a number".into()) };
                let limit = limit.as_f64().ok_or("a number")?;
                self.bytes().all(|bytes| bytes.ended && bytes.took.as_secs_f64() <= limit).into()
            }
            "not_allowed_after" => {
                let to = text(step)?;
                let mut client = Client::connect(self.scene.lab(), PROXY.parse().expect("an address"));
                client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes());
                (client.response().status == 403).into()
            }
            "timing_indistinguishable" => timing_fact(&self.exchanges)?,
            "verdicts" => {
                let index = step.index.ok_or("an index")?;
                self.verdicts.get(index).copied().map_or(Value::Null, Value::from)
            }
            "verdict_after" => self.verdicts.last().copied().map_or(Value::Null, Value::from),
            _ => return unknown(step),
        })
    }
}

/// The answer records as the corpus compares them: a number, or the list of addresses.
fn answers(records: &[Record]) -> Value {
    let addresses: Vec<String> =
        records.iter().filter_map(|record| record.data.ip_addr()).map(|ip| ip.to_string()).collect();
    if addresses.is_empty() { json!(records.len()) } else { json!(addresses) }
}

fn text(step: &Step) -> Result<&str, String> {
    step.arguments
        .first()
        .and_then(|(_, term)| term.as_str())
        .ok_or_else(|| format!("{} wants a text", step.name))
}

fn unknown<T>(step: &Step) -> Result<T, String> {
    Err(format!("nobody knows `{}`", step.name))
}

/// What the gateway's own question looked like: nothing of the client's may ride on it.
fn upstream_query_fact(asked: &[Asked], exchanges: &[Exchange], of: &Step) -> Result<Value, String> {
    if asked.is_empty() {
        return Err("nothing was asked upstream".into());
    }
    Ok(match of.name.as_str() {
        "clean" => {
            let client_ids: Vec<_> = exchanges
                .iter()
                .filter_map(
                    |exchange| if let Exchange::Dns(dns) = exchange { dns.query.get(..2) } else { None },
                )
                .collect();
            let clean = |asked: &Asked| {
                let Ok(message) = Message::from_vec(&asked.wire) else { return false };
                // RFC 1035 §4.1.1: RD alone; opcode, AA, TC, RA, Z, AD, CD and RCODE are zero.
                asked.wire.get(2..4) == Some(&[0x01, 0x00])
                    && message.queries.len() == 1
                    && message.to_vec().is_ok_and(|again| again.len() == asked.wire.len())
                    && !client_ids.contains(&&asked.wire[..2])
            };
            asked.iter().all(clean).into()
        }
        "edns_options" => {
            let options = asked.iter().filter_map(|asked| Message::from_vec(&asked.wire).ok()?.edns);
            let codes = options.flat_map(|edns| {
                edns.options().as_ref().iter().map(|(code, _)| u16::from(*code)).collect::<Vec<_>>()
            });
            codes.collect::<Vec<_>>().into()
        }
        _ => return unknown(of),
    })
}

/// Equal status and body, and medians within half of each other: no answer tells whether a private address is up.
fn timing_fact(exchanges: &[Exchange]) -> Result<Value, String> {
    let Some(Exchange::Timed { a, b, last }) = exchanges.first() else {
        return Err("nothing was timed".into());
    };
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64()
    };
    let (a, b) = (median(a), median(b));
    let [Exchange::Bytes(first), Exchange::Bytes(second)] = &last[..] else {
        return Err("two byte scripts".into());
    };
    let statuses = |bytes: &Bytes| bytes.responses.iter().map(|response| response.status).collect::<Vec<_>>();
    if statuses(first) != statuses(second) {
        return Err("the statuses differ".into());
    }
    if a.max(b) > 1.5 * a.min(b) { Err(format!("medians {a} s and {b} s")) } else { Ok(true.into()) }
}
