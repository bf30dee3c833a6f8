//! What verbs print: results on stdout, complaints on stderr, never a panic where nobody reads.

use std::fmt::Display;
use std::io::Write as _;

/// Prints a result. A reader that has gone (`| head`) is no error of ours.
pub(super) fn print(text: impl Display) {
    let _ = write!(std::io::stdout().lock(), "{text}");
}

/// Prints a complaint with the verb that has it.
pub(super) fn complain(verb: &str, complaint: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "tidegate {verb}: {complaint}");
}

/// A text from a peer as a terminal may show it: what controls a terminal or turns the direction of writing is escaped.
pub(super) fn harmless(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in String::from_utf8_lossy(text).chars() {
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_move_the_cursor() {
        let said = "no\x1b[2J\r\u{202e} it's — so".as_bytes();
        assert_eq!(harmless(said), "no\\u{1b}[2J\\r\\u{202e} it's — so");
    }
}
