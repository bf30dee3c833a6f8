//! Deny lists: names by the million that nobody wrote one by one, as files that others publish.
//!
//! A list has one of the forms that are common, told apart line by line:
//!
//! ```text
//! plain:    ads.example.com        *.ads.example.com       .ads.example.com
//! hosts:    0.0.0.0 ads.example.com www.ads.example.com
//! adblock:  ||ads.example.com^
//! RPZ:      ads.example.com CNAME .          *.ads.example.com IN CNAME *.
//! ```
//!
//! A line that asks for something else is a mistake, not a comment: what it was to block would else be open.

mod line;
mod zone;

use std::sync::Arc;

use self::line::{Line, read};
use self::zone::Zone;
use crate::file::Mistake;
use crate::hostname::Hostname;
use crate::names::NameTable;
use crate::source::Place;

/// The names that a file blocks, in about 15 bytes and its own length each.
#[derive(Debug)]
pub struct List {
    file: Arc<str>,
    names: NameTable<Covered>,
}

/// What is blocked at a name.
#[derive(Clone, Copy, Debug, Default)]
struct Covered {
    itself: bool,
    below: bool,
}

/// A name or names that one line blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blocked {
    Exact(Hostname),
    Below(Hostname),
    ApexAndBelow(Hostname),
}

/// So many mistakes of one list are told one by one.
const TOLD: usize = 20;

impl List {
    /// Reads a list; `file` is its name in mistakes and records.
    ///
    /// # Errors
    /// Every line that is not understood, with its place.
    pub fn parse(file: Arc<str>, bytes: &[u8]) -> Result<Self, Vec<Mistake>> {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        let mut list = Self { file, names: NameTable::with_room(lines, bytes.len().saturating_sub(lines)) };
        let (mut zone, mut mistakes, mut wrong) = (Zone::default(), Vec::new(), 0_usize);
        for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1_u32..) {
            let read = std::str::from_utf8(line).map_err(|_| line::Bad::NotText);
            let read = read.and_then(|line| list.add(line, &mut zone));
            if let Err(bad) = read {
                wrong += 1;
                if wrong <= TOLD {
                    let place = Place { file: Arc::clone(&list.file), line: number, column: 1 };
                    mistakes.push(Mistake::at(place, String::new(), bad.to_string(), bad.hint()));
                }
            }
        }
        if wrong > TOLD {
            let what = format!("{} more lines of this list are not understood", wrong - TOLD);
            mistakes.push(Mistake::of_file(Arc::clone(&list.file), what, ""));
        }
        list.names.shrink();
        if mistakes.is_empty() { Ok(list) } else { Err(mistakes) }
    }

    fn add(&mut self, line: &str, zone: &mut Zone) -> Result<(), line::Bad> {
        match read(line, zone)? {
            Line::Nothing => {}
            Line::Blocks(blocked) => self.insert(&blocked)?,
            Line::Hosts(names) => {
                for name in names {
                    self.insert(&Blocked::Exact(line::name(name)?))?;
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, blocked: &Blocked) -> Result<(), line::Bad> {
        let (name, itself, below) = match blocked {
            Blocked::Exact(name) => (name, true, false),
            Blocked::Below(name) => (name, false, true),
            Blocked::ApexAndBelow(name) => (name, true, true),
        };
        let id = self.names.insert(name.as_str()).ok_or(line::Bad::TooMany)?;
        if let Some(covered) = self.names.value_mut(id) {
            covered.itself |= itself;
            covered.below |= below;
        }
        Ok(())
    }

    /// The file, as rules and mistakes name it.
    #[must_use]
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// How many names and suffixes it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether it blocks a name.
    #[must_use]
    pub fn blocks(&self, name: &Hostname) -> bool {
        let itself = self.names.get(name.as_str()).is_some_and(|covered| covered.itself);
        let below = |parent| self.names.get(parent).is_some_and(|covered: &Covered| covered.below);
        itself || name.suffixes().skip(1).any(below)
    }
}

#[cfg(test)]
mod tests;
