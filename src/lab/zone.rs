//! What the stand-in DNS server knows: names and their records, as text.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
};

use hickory_proto::rr::{
    Name, RData, RecordType,
    rdata::{
        A, AAAA, CNAME, HTTPS, MX, SRV, SVCB, TXT,
        svcb::{Alpn, EchConfigList, IpHint, SvcParamKey, SvcParamValue},
    },
};
use serde_json::Value;

const DEFAULT_TTL: u32 = 60;

/// Names and their answers. A name that is not here does not exist; `*.NAME` stands for everything below `NAME`.
#[derive(Debug, Default)]
pub struct Zone {
    names: HashMap<String, Answers>,
}

/// The answers of one name: a list of record sets, of which each question takes the next and the last stays.
#[derive(Debug, Default)]
struct Answers {
    ttl: u32,
    turns: Vec<Vec<RData>>,
    asked: HashMap<RecordType, AtomicUsize>,
}

/// A record text or zone value that cannot be read, and what was read of it.
#[derive(Debug, thiserror::Error)]
#[error("not a record of the stand-in zone: {0}")]
pub struct BadZone(String);

impl Zone {
    /// A zone in which no name exists.
    #[must_use]
    pub fn new() -> Zone {
        Zone::default()
    }

    /// Adds records such as `A 203.0.113.10` or `HTTPS 1 . alpn=h2 ipv4hint=203.0.113.10` to `name`.
    pub fn with(mut self, name: &str, records: &[&str]) -> Result<Zone, BadZone> {
        let set = records.iter().map(|text| record(text)).collect::<Result<Vec<_>, _>>()?;
        let answers =
            self.names.entry(key(name)).or_insert_with(|| Answers { ttl: DEFAULT_TTL, ..Answers::default() });
        match answers.turns.first_mut() {
            Some(first) => first.extend(set),
            None => answers.turns.push(set),
        }
        Ok(self)
    }

    /// Reads a zone value: `{"name": ["A 192.0.2.1"]}`, `{"name": {"seq": [[…], […]], "ttl": 0}}` where the answer changes
    /// with each question, or `{"name": {"generate": "1000 x A 192.0.2.1"}}`.
    pub fn from_json(value: &Value) -> Result<Zone, BadZone> {
        let bad = || BadZone(value.to_string());
        let mut names = HashMap::new();
        for (name, records) in value.as_object().ok_or_else(bad)? {
            let turns = if let Some(turns) = records.get("seq").and_then(Value::as_array) {
                turns.iter().map(record_set).collect::<Result<Vec<_>, _>>()?
            } else if let Some(text) = records.get("generate").and_then(Value::as_str) {
                let (times, text) = text.split_once(" x ").ok_or_else(bad)?;
                vec![vec![record(text)?; times.parse().map_err(|_| bad())?]]
            } else {
                vec![record_set(records)?]
            };
            let ttl = records.get("ttl").and_then(Value::as_u64).and_then(|ttl| u32::try_from(ttl).ok());
            names.insert(key(name), Answers { ttl: ttl.unwrap_or(DEFAULT_TTL), turns, asked: each_type() });
        }
        Ok(Zone { names })
    }

    /// The records of `name` with their TTL, or `None` where the name does not exist. A question for a type advances that
    /// type's turn.
    pub(super) fn look_up(&self, name: &Name, asked: RecordType) -> Option<(u32, Vec<RData>)> {
        let text = key(&name.to_ascii());
        let answers = self.names.get(&text).or_else(|| {
            let mut rest = text.as_str();
            loop {
                (_, rest) = rest.split_once('.')?;
                if let Some(found) = self.names.get(&format!("*.{rest}")) {
                    break Some(found);
                }
            }
        });
        let Some(answers) = answers else {
            // An ancestor of a name that exists, exists (RFC 8020 §2).
            let below = format!(".{text}");
            return self.names.keys().any(|known| known.ends_with(&below)).then(|| (DEFAULT_TTL, Vec::new()));
        };
        let turn = answers.asked.get(&asked).map_or(0, |turn| turn.fetch_add(1, Ordering::Relaxed));
        let set = answers.turns.get(turn).or_else(|| answers.turns.last()).map_or(&[][..], Vec::as_slice);
        let matching =
            set.iter().filter(|data| matches!(data, RData::CNAME(_)) || data.record_type() == asked);
        Some((answers.ttl, matching.cloned().collect()))
    }
}

fn key(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn each_type() -> HashMap<RecordType, AtomicUsize> {
    [RecordType::A, RecordType::AAAA, RecordType::HTTPS, RecordType::TXT]
        .map(|kind| (kind, AtomicUsize::new(0)))
        .into()
}

fn record_set(value: &Value) -> Result<Vec<RData>, BadZone> {
    let bad = || BadZone(value.to_string());
    value.as_array().ok_or_else(bad)?.iter().map(|text| record(text.as_str().ok_or_else(bad)?)).collect()
}

/// One record in the usual text form, without name, TTL and class.
fn record(text: &str) -> Result<RData, BadZone> {
    let bad = || BadZone(text.to_owned());
    let (kind, rest) = text.split_once(' ').ok_or_else(bad)?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: &&str| field.parse::<u16>().map_err(|_| bad());
    let name = |field: &&str| Name::from_ascii(field).map_err(|_| bad());
    Ok(match (kind, fields.as_slice()) {
        ("A", [address]) => RData::A(A(Ipv4Addr::from_str(address).map_err(|_| bad())?)),
        ("AAAA", [address]) => RData::AAAA(AAAA(Ipv6Addr::from_str(address).map_err(|_| bad())?)),
        ("CNAME", [target]) => RData::CNAME(CNAME(name(target)?)),
        ("TXT", _) => RData::TXT(TXT::new(vec![rest.trim_matches('"').to_owned()])),
        ("MX", [preference, exchange]) => RData::MX(MX::new(number(preference)?, name(exchange)?)),
        ("SRV", [priority, weight, port, target]) => {
            RData::SRV(SRV::new(number(priority)?, number(weight)?, number(port)?, name(target)?))
        }
        ("HTTPS", [priority, target, params @ ..]) => RData::HTTPS(HTTPS(SVCB::new(
            number(priority)?,
            name(target)?,
            service_params(params).ok_or_else(bad)?,
        ))),
        ("SVCB", [priority, target, params @ ..]) => {
            RData::SVCB(SVCB::new(number(priority)?, name(target)?, service_params(params).ok_or_else(bad)?))
        }
        _ => return Err(bad()),
    })
}

fn service_params(texts: &[&str]) -> Option<Vec<(SvcParamKey, SvcParamValue)>> {
    let mut params = Vec::new();
    for text in texts {
        let (key, value) = text.split_once('=')?;
        let list = value.split(',');
        params.push(match key {
            "alpn" => (SvcParamKey::Alpn, SvcParamValue::Alpn(Alpn(list.map(str::to_owned).collect()))),
            "port" => (SvcParamKey::Port, SvcParamValue::Port(value.parse().ok()?)),
            "ipv4hint" => {
                let hints = list.map(|hint| hint.parse().ok().map(A)).collect::<Option<_>>()?;
                (SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(hints)))
            }
            "ipv6hint" => {
                let hints = list.map(|hint| hint.parse().ok().map(AAAA)).collect::<Option<_>>()?;
                (SvcParamKey::Ipv6Hint, SvcParamValue::Ipv6Hint(IpHint(hints)))
            }
            "ech" => {
                (SvcParamKey::EchConfigList, SvcParamValue::EchConfigList(EchConfigList(base64(value)?)))
            }
            _ => return None,
        });
    }
    // RFC 9460 §2.2: keys in ascending order.
    params.sort_by_key(|(key, _)| u16::from(*key));
    Some(params)
}

/// RFC 4648 §4, padding optional.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0);
    for symbol in text.trim_end_matches('=').bytes() {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(zone: &Zone, name: &str, kind: RecordType) -> Option<Vec<String>> {
        let (_, records) = zone.look_up(&Name::from_ascii(name).unwrap(), kind)?;
        Some(records.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn answers_change_with_each_question_of_a_type() {
        let zone = Zone::from_json(
            &serde_json::json!({"a.example": {"seq": [["A 192.0.2.1"], ["A 192.0.2.2"]], "ttl": 0}}),
        )
        .unwrap();
        assert_eq!(texts(&zone, "a.example.", RecordType::AAAA), Some(vec![]));
        assert_eq!(texts(&zone, "A.example.", RecordType::A), Some(vec!["192.0.2.1".into()]));
        assert_eq!(texts(&zone, "a.example.", RecordType::A), Some(vec!["192.0.2.2".into()]));
        assert_eq!(texts(&zone, "a.example.", RecordType::A), Some(vec!["192.0.2.2".into()]));
    }

    #[test]
    fn stars_ancestors_and_absent_names() {
        let zone = Zone::new()
            .with("*.w.example", &["A 192.0.2.1"])
            .unwrap()
            .with("x.y.example", &["TXT \"t\""])
            .unwrap();
        assert_eq!(texts(&zone, "p.q.w.example.", RecordType::A), Some(vec!["192.0.2.1".into()]));
        assert_eq!(texts(&zone, "y.example.", RecordType::A), Some(vec![]));
        assert_eq!(texts(&zone, "z.example.", RecordType::A), None);
    }

    #[test]
    fn records_that_cannot_be_read_are_refused() {
        for text in ["A", "A 1.2.3", "SRV 1 2 x.example.", "HTTPS 1 . nokey=1", "HTTPS 1 . ech=?"] {
            assert!(Zone::new().with("a.example", &[text]).is_err(), "{text}");
        }
    }

    #[test]
    fn ech_is_decoded() {
        assert_eq!(base64("AEX+DQBBpQAg").unwrap(), [0x00, 0x45, 0xfe, 0x0d, 0x00, 0x41, 0xa5, 0x00, 0x20]);
        assert_eq!(base64("aGk=").unwrap(), b"hi");
    }
}
