//! What verbs print: results on stdout, complaints on stderr, never a panic where nobody reads.

use std::error::Error;
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

/// An error with everything that caused it, on one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// A text from a peer as a terminal may show it: printable ASCII stays, the rest is escaped.
pub(super) fn harmless(text: &[u8]) -> String {
    text.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_move_the_cursor() {
        assert_eq!(harmless(b"no\x1b[2J\r\xe2\x80\xae it's"), "no\\x1b[2J\\r\\xe2\\x80\\xae it's");
    }
}
