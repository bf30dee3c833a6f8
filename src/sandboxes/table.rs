//! The keys of a `[sandbox.X]` table as they come by JSON: read by the very reader that reads the config.

use policy::file::{Document, Mistake};
use policy::source::SandboxSource;
use policy::{Policy, SandboxId, Timestamp};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value};

/// The keys of a table.
pub type Table = Map<String, Value>;

/// What an entry of `identify` says where the token that is issued is meant.
const ISSUED: &str = "token";

/// Random bytes in a token: as hard to guess as its SHA-256 is to invert.
const TOKEN_BYTES: usize = 32;

/// What every token starts with, so that one in a log or a commit can be told for what it is.
const PREFIX: &str = "tg_";

/// Puts the hash of a fresh token where the table asks for it; gives the token, which is known nowhere else.
///
/// # Errors
/// Where the system has no randomness to give.
pub(super) fn issue(table: &mut Table) -> Result<Option<String>, ring::error::Unspecified> {
    let identify = table.entry("identify").or_insert_with(|| serde_json::json!([{ ISSUED: true }]));
    let entries = identify.as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    let asks = |entry: &&mut Value| entry.get(ISSUED) == Some(&Value::Bool(true));
    let mut asking = entries.iter_mut().filter(asks).peekable();
    if asking.peek().is_none() {
        return Ok(None);
    }
    let mut random = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut random)?;
    let token = format!("{PREFIX}{}", hex(&random));
    let hash = hex(digest(&SHA256, token.as_bytes()).as_ref());
    for entry in asking.filter_map(Value::as_object_mut) {
        entry.remove(ISSUED);
        entry.insert("token_sha256".to_owned(), hash.clone().into());
    }
    Ok(Some(token))
}

/// A name for a sandbox that was given none.
///
/// # Errors
/// Where the system has no randomness to give.
pub(super) fn make_up_name() -> Result<String, ring::error::Unspecified> {
    let mut random = [0; 6];
    SystemRandom::new().fill(&mut random)?;
    Ok(format!("s-{}", hex(&random)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How names of policies that do not exist are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// As mistakes.
    MustExist,
    /// As they are: the config may have lost them since, and may get them back.
    MayBeGone,
}

/// Reads a table.
///
/// # Errors
/// Every mistake, each with its key.
pub(super) fn read(
    id: &SandboxId,
    table: &Table,
    names: Names,
    now: Timestamp,
    policy: &Policy,
) -> Result<SandboxSource, Vec<Mistake>> {
    let document = Document::new("", toml(id, table).as_bytes()).map_err(|mistake| vec![mistake])?;
    let existing = match names {
        Names::MustExist => Some(policy),
        Names::MayBeGone => None,
    };
    policy::file::read_sandbox(&document, now, existing).map_err(|mistakes| {
        // Whoever wrote the table knows nothing of the one around it.
        let around = [format!("sandbox.{id}"), format!("sandbox.\"{id}\"")];
        let inner = |at: &str| {
            let rest = around.iter().find_map(|around| at.strip_prefix(around.as_str()))?;
            Some(rest.trim_start_matches('.').to_owned())
        };
        mistakes
            .into_iter()
            .map(|mistake| Mistake { at: inner(&mistake.at).unwrap_or(mistake.at), ..mistake })
            .collect()
    })
}

/// The table as TOML. What JSON writes in a string, TOML reads the same: RFC 8259 section 7 and TOML 1.0 share their
/// escapes, but for `\/`, which is never written here.
fn toml(id: &SandboxId, table: &Table) -> String {
    let mut text = format!("[sandbox.{}]\n", Value::from(id.as_str()));
    for (key, value) in table {
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push_str(" = ");
        match value {
            // The one time in such a table, which JSON has no type for.
            Value::String(time) if key == "until" => text.push_str(&time.replace(['\n', '\r', '#'], " ")),
            value => write_value(value, &mut text),
        }
        text.push('\n');
    }
    text
}

fn write_value(value: &Value, to: &mut String) {
    match value {
        Value::Array(items) => {
            to.push('[');
            for item in items {
                write_value(item, to);
                to.push(',');
            }
            to.push(']');
        }
        Value::Object(entries) => {
            to.push('{');
            for (place, (key, value)) in entries.iter().enumerate() {
                to.push_str(if place == 0 { "" } else { "," });
                to.push_str(&Value::from(key.as_str()).to_string());
                to.push('=');
                write_value(value, to);
            }
            to.push('}');
        }
        // There is no null in TOML: an empty text is no value of any key, so that it is a mistake with its place.
        Value::Null => to.push_str("\"\""),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => to.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(value: Value) -> Table {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn a_token_is_issued_where_the_table_asks_for_it() {
        let mut plain = table(serde_json::json!({ "policies": [] }));
        let token = issue(&mut plain).expect("randomness").expect("a token");
        let hash = hex(digest(&SHA256, token.as_bytes()).as_ref());
        assert!(token.starts_with(PREFIX) && token.len() == PREFIX.len() + 64);
        assert_eq!(plain["identify"], serde_json::json!([{ "token_sha256": hash }]));
        let mut bound =
            table(serde_json::json!({ "identify": [{ "token": true, "source": "10.0.0.7/32" }] }));
        assert!(issue(&mut bound).expect("randomness").is_some_and(|other| other != token));
        assert_eq!(bound["identify"][0]["source"], "10.0.0.7/32");
        for none in [serde_json::json!([]), serde_json::json!([{ "listener": "127.0.0.1:1" }]), Value::Null] {
            let mut given = table(serde_json::json!({ "identify": none }));
            assert_eq!(issue(&mut given).expect("randomness"), None);
        }
    }

    #[test]
    fn json_is_read_as_the_config_is() {
        let id = SandboxId::parse("a.b-c").expect("a name");
        let given = table(serde_json::json!({
            "labels": { "a": "q\"\\\n\u{1}ü", "b.c": "" },
            "hints": true,
            "mode": "learn",
            "until": "1970-01-01T01:00:00Z",
            "identify": [{ "token_sha256": "ab".repeat(32), "source": "10.0.0.7/32" }],
        }));
        let (now, policy) = (Timestamp::from_secs(1), Policy::default());
        let mistakes =
            read(&id, &given, Names::MustExist, now, &policy).expect_err("a label with a line break");
        let [mistake] = mistakes.as_slice() else { panic!("{mistakes:?}") };
        assert_eq!(mistake.at, "labels.a", "without the table around it");
        let mut given = given;
        given.insert("labels".to_owned(), serde_json::json!({ "a": "q\"\\ü" }));
        let read = read(&id, &given, Names::MustExist, now, &policy).expect("a sandbox");
        assert_eq!((read.id, &*read.labels["a"], read.hints), (id, "q\"\\ü", true));
        assert_eq!(read.identify.len(), 1);
    }

    #[test]
    fn what_json_smuggles_is_a_mistake() {
        let id = SandboxId::parse("a").expect("a name");
        for given in [
            serde_json::json!({ "until": "1970-01-01T01:00:00Z\nhints = true" }),
            serde_json::json!({ "a\"]\n[sandbox.b]\nhints": true }),
            serde_json::json!({ "policies": null }),
            serde_json::json!({ "policies": ["none"] }),
            serde_json::json!({ "hints": [{}] }),
            serde_json::json!({ "identify": [{ "default": true }] }),
        ] {
            let refused = read(
                &id,
                &table(given.clone()),
                Names::MustExist,
                Timestamp::from_secs(1),
                &Policy::default(),
            );
            assert!(refused.is_err(), "{given}: {refused:?}");
        }
        let gone = table(serde_json::json!({ "policies": ["gone"] }));
        let read = read(&id, &gone, Names::MayBeGone, Timestamp::from_secs(1), &Policy::default())
            .expect("a sandbox");
        assert_eq!(read.policies, ["gone".into()]);
    }
}
