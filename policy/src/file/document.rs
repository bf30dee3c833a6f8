//! One config file as text, with the way from byte offsets back to lines and columns.

use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, Error};

use super::mistake::{Mistake, Report};
use crate::source::Place;

/// A config file: decoded, not yet parsed.
#[derive(Clone, Debug)]
pub struct Document {
    file: Arc<str>,
    text: String,
    line_starts: Vec<usize>,
    /// Then a column is a difference of offsets: a list of a million names on one line is counted only so.
    is_ascii: bool,
}

impl Document {
    /// Decodes a file. A UTF-8 byte order mark and CRLF are tolerated; UTF-16 is not.
    ///
    /// # Errors
    /// Where the bytes are not UTF-8.
    pub fn new(file: impl Into<Arc<str>>, bytes: &[u8]) -> Result<Document, Mistake> {
        let file = file.into();
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err(Mistake::of_file(file, "the file is UTF-16", "save it as UTF-8"));
        }
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Document::from_text(file, text.to_owned())),
            Err(error) => {
                let (good, _) = bytes.split_at(error.valid_up_to());
                let document = Document::from_text(file, String::from_utf8_lossy(good).into_owned());
                let place = document.place(error.valid_up_to());
                Err(Mistake::at(place, String::new(), "the file is not UTF-8", "save it as UTF-8"))
            }
        }
    }

    fn from_text(file: Arc<str>, text: String) -> Document {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(breaks).collect();
        let is_ascii = text.is_ascii();
        Document { file, text, line_starts, is_ascii }
    }

    /// The file's name, as it was given.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub(super) fn place(&self, offset: usize) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|before| self.line_starts.get(before)).copied().unwrap_or(0);
        let before = match self.is_ascii {
            true => offset.saturating_sub(start),
            false => self.text.get(start..offset).map_or(0, |text| text.chars().count()),
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Place { file: Arc::clone(&self.file), line: count(line), column: count(before + 1) }
    }
}

/// A parsed file: its root table, and how far the parser's recovery can be trusted.
#[derive(Debug)]
pub(super) struct Tree<'d> {
    pub(super) document: &'d Document,
    pub(super) root: DeTable<'d>,
    /// From here on the parser guessed: an unclosed bracket swallows what follows. Only its own errors count.
    guessed_from: Option<usize>,
    /// Values that did not parse have a stand-in, about which nothing more is said.
    bad_values: Vec<Range<usize>>,
}

impl<'d> Tree<'d> {
    pub(super) fn parse(document: &'d Document, report: &Report) -> Tree<'d> {
        let (root, mut errors) = DeTable::parse_recoverable(&document.text);
        errors.sort_by_key(start);
        let mut tree =
            Tree { document, root: Spanned::into_inner(root), guessed_from: None, bad_values: Vec::new() };
        for error in errors {
            if tree.guessed_from.is_some() {
                break;
            }
            let place = document.place(start(&error));
            let what = format!("not valid TOML: {}", error.message());
            report.add(Mistake::at(place, String::new(), what, hint(error.message())));
            if is_about_a_value(error.message()) {
                let at = start(&error);
                tree.bad_values.push(error.span().unwrap_or(at..at));
            } else {
                tree.guessed_from = Some(start(&error));
            }
        }
        tree
    }

    /// Whether what the parser found at `span` is what the author wrote.
    pub(super) fn trusts(&self, span: &Range<usize>) -> bool {
        let touches = |bad: &Range<usize>| bad.start <= span.end && span.start <= bad.end;
        self.guessed_from.is_none_or(|from| span.start < from) && !self.bad_values.iter().any(touches)
    }

    /// Whether everything that the author wrote was found: only then can something be missing.
    pub(super) fn is_whole(&self) -> bool {
        self.guessed_from.is_none() && self.bad_values.is_empty()
    }
}

fn start(error: &Error) -> usize {
    error.span().map_or(0, |span| span.start)
}

/// Whether the structure around an error is sound: the parser goes on with the next key.
fn is_about_a_value(message: &str) -> bool {
    ["duplicate key", "invalid ", "string values must be quoted", "missing escaped value"]
        .iter()
        .any(|known| message.starts_with(known))
}

fn hint(message: &str) -> &'static str {
    if message.starts_with("duplicate key") {
        "each key and each table is written once"
    } else if message.starts_with("string values must be quoted") {
        "put the value in quotes"
    } else if message.starts_with("unclosed array") || message.starts_with("missing comma") {
        "close the list with `]`, with commas between its entries"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let document = Document::new("f", "\u{feff}a = 1\r\nbü = 2\n".as_bytes()).expect("text");
        let place = |offset| {
            let place = document.place(offset);
            (place.line, place.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(4), (1, 5));
        assert_eq!(place(7), (2, 1));
        // `ü` is two bytes and one column.
        assert_eq!(place(11), (2, 4));
        assert_eq!(place(15), (3, 1));
    }

    #[test]
    fn other_encodings_are_refused() {
        let utf16: Vec<u8> = "\u{feff}a = 1".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(Document::new("f", &utf16).map(|_| ()).expect_err("UTF-16").what, "the file is UTF-16");
        let mistake = Document::new("f", b"a = 1\nb = \"\xff\"").map(|_| ()).expect_err("not UTF-8");
        assert_eq!((mistake.line, mistake.column), (2, 6));
    }

    #[test]
    fn an_unclosed_list_is_one_mistake_and_what_it_swallowed_is_none() {
        let text = "[policy.case]\nallow = [\"api.example.com:443\"\n\n[sandbox.s1]\npolicies = [\"case\"]\n";
        let document = Document::new("f", text.as_bytes()).expect("text");
        let report = Report::default();
        let tree = Tree::parse(&document, &report);
        let mistakes = report.into_sorted(&[]);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(!tree.is_whole());
        assert!(tree.trusts(&(14..19)) && !tree.trusts(&(46..58)));
    }

    #[test]
    fn values_that_do_not_parse_do_not_hide_the_rest() {
        let text = "a = 1\na = 2\nb = tru\nc = foo\nd = \"\\q\"\n";
        let document = Document::new("f", text.as_bytes()).expect("text");
        let report = Report::default();
        let tree = Tree::parse(&document, &report);
        let lines: Vec<u32> = report.into_sorted(&[]).iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [2, 3, 4, 5]);
        assert!(tree.trusts(&(0..5)) && !tree.trusts(&(16..19)));
    }
}
