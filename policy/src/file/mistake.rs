//! Mistakes in the config: where, what, and what to write instead; all of them in one report.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::source::Place;

/// One mistake in the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file, as it was given to the program.
    pub file: Arc<str>,
    /// Counted from 1; 0 where the mistake is about the file as a whole.
    pub line: u32,
    /// In characters, counted from 1.
    pub column: u32,
    /// The path of the key: `policy.base.allow[2]`. Empty at the top level.
    pub at: String,
    /// What is wrong.
    pub what: String,
    /// What to write instead; may be empty.
    pub hint: String,
}

impl Mistake {
    /// A mistake about a file as a whole: not readable, not text, writable by others.
    pub fn of_file(file: impl Into<Arc<str>>, what: impl Into<String>, hint: impl Into<String>) -> Mistake {
        Mistake {
            file: file.into(),
            line: 0,
            column: 0,
            at: String::new(),
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// A mistake at a place that is known already.
    pub fn at(place: Place, at: String, what: impl Into<String>, hint: impl Into<String>) -> Mistake {
        Mistake {
            file: place.file,
            line: place.line,
            column: place.column,
            at,
            what: what.into(),
            hint: hint.into(),
        }
    }
}

/// `file:line:column: what (at) — hint`
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.what)?;
        if !self.at.is_empty() {
            write!(f, " ({})", self.at)?;
        }
        if !self.hint.is_empty() {
            write!(f, " — {}", self.hint)?;
        }
        Ok(())
    }
}

/// Collects mistakes while the tables are read.
#[derive(Debug, Default)]
pub struct Report {
    mistakes: RefCell<Vec<Mistake>>,
}

impl Report {
    /// Adds a mistake.
    pub fn add(&self, mistake: Mistake) {
        self.mistakes.borrow_mut().push(mistake);
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    /// The mistakes, by file in the order of `files`, then from top to bottom.
    pub(super) fn into_sorted(self, files: &[Arc<str>]) -> Vec<Mistake> {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort_by_cached_key(|mistake| {
            let file = files.iter().position(|file| *file == mistake.file).unwrap_or(files.len());
            (file, mistake.line, mistake.column, mistake.what.clone())
        });
        mistakes.dedup();
        mistakes
    }
}

/// A text from the config inside a message: escaped, so that it cannot move a terminal's cursor.
pub fn quoted(text: &str) -> String {
    format!("`{}`", text.escape_debug())
}

/// The candidate that a person most likely meant, within a third of its letters.
pub(super) fn did_you_mean<'a>(
    wrong: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(wrong, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.chars().count().div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(usize::MAX / 2);
            let replaced = at(&last, j) + usize::from(x != y);
            let mut best = replaced.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(&y) && b.get(j - 1) == Some(&x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_suggested_and_far_ones_are_not() {
        let keys = ["allow", "deny", "ask", "registries", "lists", "rule"];
        for (wrong, right) in
            [("alow", "allow"), ("denny", "deny"), ("alolw", "allow"), ("rules", "rule"), ("ASK", "")]
        {
            assert_eq!(did_you_mean(wrong, keys).unwrap_or_default(), right, "{wrong}");
        }
        assert_eq!(did_you_mean("policies", keys), None);
    }

    #[test]
    fn distances_count_the_fewest_changes() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("abc", "xabc", 1),
            ("abc", "acb", 1),
            ("abc", "cba", 2),
            ("abcd", "badc", 2),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
            ("über", "uber", 1),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
        // Of two as near, the first by name; a third of the letters, rounded up, may be wrong.
        assert_eq!(did_you_mean("bb", ["bc", "ab"]), Some("ab"));
        assert_eq!(did_you_mean("abxy", ["abcd"]), Some("abcd"));
        assert_eq!(did_you_mean("axyz", ["abcd"]), None);
        assert_eq!(did_you_mean("x", []), None);
    }

    #[test]
    fn a_report_goes_by_file_line_and_column_and_says_nothing_twice() {
        let report = Report::default();
        assert!(report.is_empty());
        let mistake = |file: &str, line, column, what: &str| Mistake {
            line,
            column,
            ..Mistake::of_file(file, what, "")
        };
        let all = [
            mistake("b", 1, 1, "y"),
            mistake("a", 2, 1, "x"),
            mistake("z", 1, 1, "x"),
            mistake("a", 1, 9, "x"),
            mistake("b", 1, 1, "x"),
            mistake("a", 1, 10, "x"),
            mistake("a", 1, 9, "x"),
        ];
        all.into_iter().for_each(|mistake| report.add(mistake));
        assert!(!report.is_empty());
        let sorted = report.into_sorted(&["b".into(), "a".into()]);
        let lines: Vec<_> = sorted.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["b:1:1: x", "b:1:1: y", "a:1:9: x", "a:1:10: x", "a:2:1: x", "z:1:1: x"]);
    }

    #[test]
    fn a_mistake_reads_as_one_line() {
        let mistake = Mistake {
            file: "base.toml".into(),
            line: 3,
            column: 9,
            at: "policy.base.allow[2]".into(),
            what: "the entry is empty".into(),
            hint: "remove it".into(),
        };
        assert_eq!(
            mistake.to_string(),
            "base.toml:3:9: the entry is empty (policy.base.allow[2]) — remove it"
        );
        assert_eq!(Mistake::of_file("a", "is not text", "").to_string(), "a: is not text");
        assert_eq!(quoted("a\u{1b}[2J\u{202e}"), "`a\\u{1b}[2J\\u{202e}`");
    }
}
