//! One JSON object a line, in printable ASCII and bounded, whatever its values hold.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use policy::{CutMark, Timestamp};

/// Builds lines, one at a time, in buffers that are used again.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    line: Vec<u8>,
    scratch: String,
    /// The second that `stamp` spells: most lines share theirs with the line before.
    second: u64,
    /// `2026-11-29T16:05:31.`
    stamp: String,
}

impl Encoder {
    /// Starts a line. What the last one held is gone.
    pub(super) fn open(&mut self) {
        self.line.clear();
        self.line.extend_from_slice(b"{\"v\":1");
    }

    /// Ends the line and shows it, with its newline.
    pub(super) fn close(&mut self) -> &[u8] {
        self.line.extend_from_slice(b"}\n");
        &self.line
    }

    fn key(&mut self, key: &str) {
        self.line.extend_from_slice(b",\"");
        self.line.extend_from_slice(key.as_bytes());
        self.line.extend_from_slice(b"\":");
    }

    /// A text of any characters, cut so that it takes at most `limit` bytes between its quotes.
    pub(super) fn text(&mut self, key: &str, value: &str, limit: usize) {
        self.key(key);
        quoted(&mut self.line, value, limit);
    }

    /// A value through its `Display`, cut as [`Encoder::text`] does.
    pub(super) fn shown(&mut self, key: &str, value: &dyn fmt::Display, limit: usize) {
        self.scratch.clear();
        // Writing to a `String` does not fail; a `Display` that does leaves what it wrote.
        let _ = write!(self.scratch, "{value}");
        self.key(key);
        quoted(&mut self.line, &self.scratch, limit);
    }

    /// A whole number.
    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        // Writing to a `Vec` does not fail.
        let _ = write!(self.line, "{value}");
    }

    /// A yes or no.
    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.line.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// A value that is not there.
    pub(super) fn null(&mut self, key: &str) {
        self.key(key);
        self.line.extend_from_slice(b"null");
    }

    /// An object of texts, each key and value cut at `each` bytes, and the pairs left out that pass `all` bytes.
    pub(super) fn texts<'a>(
        &mut self,
        key: &str,
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
        each: usize,
        all: usize,
    ) {
        self.key(key);
        self.line.push(b'{');
        let start = self.line.len();
        for (name, value) in pairs {
            let before = self.line.len();
            if before > start {
                self.line.push(b',');
            }
            quoted(&mut self.line, name, each);
            self.line.push(b':');
            quoted(&mut self.line, value, each);
            if self.line.len() - start > all {
                self.line.truncate(before);
                break;
            }
        }
        self.line.push(b'}');
    }

    /// A point in time, as RFC 3339 in UTC with milliseconds.
    pub(super) fn time(&mut self, key: &str, at: Timestamp) {
        let second = at.millis() / 1000;
        if self.second != second || self.stamp.is_empty() {
            self.stamp.clear();
            let _ = write!(self.stamp, "{at}");
            // `042Z` is written anew on each line.
            self.stamp.truncate(self.stamp.len().saturating_sub(4));
            self.second = second;
        }
        self.key(key);
        self.line.push(b'"');
        self.line.extend_from_slice(self.stamp.as_bytes());
        let _ = write!(self.line, "{:03}Z\"", at.millis() % 1000);
    }
}

/// Room for a [`CutMark`]: `...[`, a length, ` bytes #`, 16 digits, `]`.
const MARK: usize = 48;

/// Writes a JSON string. Only 0x20 to 0x7e leave here: control characters, DEL, bidi marks and everything else beyond
/// ASCII are `\uXXXX`, in surrogate pairs where they need two (RFC 8259 section 7).
fn quoted(out: &mut Vec<u8>, value: &str, limit: usize) {
    out.push(b'"');
    let start = out.len();
    if value.len() <= limit && value.bytes().all(is_plain) {
        out.extend_from_slice(value.as_bytes());
    } else {
        for character in value.chars() {
            escaped(out, character);
        }
        if out.len() - start > limit {
            out.truncate(start);
            for character in value.chars() {
                let before = out.len();
                escaped(out, character);
                if out.len() - start > limit.saturating_sub(MARK) {
                    out.truncate(before);
                    break;
                }
            }
            let _ = write!(out, "{}", CutMark(value.as_bytes()));
        }
    }
    out.push(b'"');
}

const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\'
}

fn escaped(out: &mut Vec<u8>, character: char) {
    match character {
        '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
        ' '..='~' => out.push(character as u8),
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str, limit: usize) -> String {
        let mut encoder = Encoder::default();
        encoder.open();
        encoder.text("t", value, limit);
        String::from_utf8(encoder.close().to_vec()).expect("ASCII")
    }

    #[test]
    fn everything_beyond_printable_ascii_is_escaped() {
        let cases = [
            ("plain", r#""plain""#),
            ("\"\\", r#""\"\\""#),
            ("\u{1b}[2J\n\0\u{7f}", r#""\u001b[2J\u000a\u0000\u007f""#),
            // Bidi override, then a character that takes two UTF-16 units.
            ("\u{202e}\u{1f600}", r#""\u202e\ud83d\ude00""#),
        ];
        for (value, json) in cases {
            assert_eq!(text(value, 64), format!("{{\"v\":1,\"t\":{json}}}\n"));
        }
    }

    #[test]
    fn a_cut_value_tells_its_length_and_its_hash() {
        let long = "a".repeat(4160);
        let line = text(&long, 128);
        assert!(line.contains("aaa...[4160 bytes #"), "{line}");
        assert!(line.len() < 160, "{line}");
        assert_ne!(line, text(&format!("{long}b"), 128).replace("4161", "4160"));
    }

    #[test]
    fn a_cut_never_splits_an_escape() {
        for limit in 0..200 {
            let line = text(&"\u{1f600}\u{1}\"".repeat(40), limit);
            let value: serde_json::Value = serde_json::from_str(&line).expect("valid JSON at every limit");
            assert!(value["t"].is_string());
        }
    }

    #[test]
    fn pairs_that_do_not_fit_are_left_out_whole() {
        let mut encoder = Encoder::default();
        encoder.open();
        let pairs = [("a", "x"), ("b", "\u{1}"), ("c", "y")];
        encoder.texts("labels", pairs.into_iter(), 16, 20);
        assert_eq!(encoder.close(), b"{\"v\":1,\"labels\":{\"a\":\"x\",\"b\":\"\\u0001\"}}\n");
    }

    #[test]
    fn times_are_written_as_the_policy_writes_them() {
        let mut encoder = Encoder::default();
        for nanos in
            [0, 1_999_999, 1_801_353_600_042_000_000, 1_801_353_600_999_000_000, 1_801_353_601_000_000_000]
        {
            let at = Timestamp::from_nanos(nanos);
            encoder.open();
            encoder.time("ts", at);
            assert_eq!(encoder.close(), format!("{{\"v\":1,\"ts\":\"{at}\"}}\n").as_bytes());
        }
    }
}
