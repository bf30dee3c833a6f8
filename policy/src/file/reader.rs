//! Reads parsed TOML key by key: every wrong type, unknown key and missing key becomes a mistake with its place.
//!
//! A reader takes each key that it knows from a [`Table`] and then calls [`Table::finish`], which reports what is
//! left. Nothing stops at the first mistake.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};
use toml::value::Datetime;

use super::document::{Document, Tree};
use super::mistake::{Mistake, Report, did_you_mean, quoted};
use crate::source::Place;

/// Several config files, parsed; a table may stand in one of them only.
#[derive(Debug)]
pub struct Parsed<'d> {
    trees: Vec<Tree<'d>>,
    report: Report,
}

impl<'d> Parsed<'d> {
    /// Parses the files; what is no TOML is reported in the end, with everything else.
    pub fn new(documents: impl IntoIterator<Item = &'d Document>) -> Parsed<'d> {
        let report = Report::default();
        let trees = documents.into_iter().map(|document| Tree::parse(document, &report)).collect();
        Parsed { trees, report }
    }

    /// The top of the config, to be read once.
    pub fn config(&self) -> Config<'_> {
        Config { trees: &self.trees, report: &self.report, known: Vec::new() }
    }

    /// What was read, if there was no mistake at all.
    ///
    /// # Errors
    /// Every mistake, by file, line and column.
    pub fn finish<T>(self, value: T) -> Result<T, Vec<Mistake>> {
        if self.report.is_empty() {
            return Ok(value);
        }
        let files: Vec<Arc<str>> = self.trees.iter().map(|tree| Arc::clone(tree.document.file())).collect();
        Err(self.report.into_sorted(&files))
    }
}

/// The top level of the config, over all its files.
#[derive(Debug)]
pub struct Config<'a> {
    trees: &'a [Tree<'a>],
    report: &'a Report,
    known: Vec<&'static str>,
}

impl<'a> Config<'a> {
    /// Takes a table that exists once, such as `[dns]`.
    pub fn table(&mut self, name: &'static str) -> Option<Table<'a>> {
        let mut found = self.items(name).into_iter();
        let first = found.next();
        for other in found {
            self.twice(&other, first.as_ref());
        }
        first?.table()
    }

    /// Takes every table of a group, such as `[policy.X]`, in file order. Each name stands in one file only.
    pub fn group(&mut self, name: &'static str) -> Vec<(&'a str, Table<'a>)> {
        let mut seen: HashMap<&'a str, Item<'a>> = HashMap::new();
        let mut tables = Vec::new();
        for group in self.items(name).iter().filter_map(Item::table) {
            for (member, item) in group.into_entries() {
                if let Some(first) = seen.get(member) {
                    self.twice(&item, Some(first));
                } else if item.is_table() {
                    tables.extend(item.table().map(|table| (member, table)));
                    seen.insert(member, item);
                } else if item.is_list()
                    && item.list().is_some_and(|mut list| list.all(|item| item.is_table()))
                {
                    let hint = format!("write [{name}.{}] in single brackets", member.escape_debug());
                    item.mistake("the table is written as a list of tables", hint);
                } else {
                    let what = format!("[{name}] holds named tables, and {} is none", quoted(member));
                    item.mistake(what, format!("write [{name}.NAME] above it"));
                }
            }
        }
        tables
    }

    /// Reports every table at the top level that nobody took.
    pub fn finish(self) {
        for tree in self.trees {
            for (key, item) in Table::root(tree, self.report).into_entries() {
                if !self.known.contains(&key) {
                    item.spot.unknown(key, &self.known);
                }
            }
        }
    }

    /// Where mistakes are added that have their place from elsewhere.
    pub fn report(&self) -> &'a Report {
        self.report
    }

    /// Whether every file was read to its end: only then can something be missing from the config.
    pub fn is_whole(&self) -> bool {
        self.trees.iter().all(Tree::is_whole)
    }

    fn items(&mut self, name: &'static str) -> Vec<Item<'a>> {
        self.known.push(name);
        let roots = self.trees.iter().map(|tree| Table::root(tree, self.report));
        roots.filter_map(|mut root| root.take(name)).collect()
    }

    fn twice(&self, item: &Item<'a>, first: Option<&Item<'a>>) {
        let place = first.map(|first| first.spot.place());
        let first = place.map_or_else(String::new, |place| format!("{}:{}", place.file, place.line));
        item.mistake(format!("the table already stands in {first}"), "a table may stand in one file only");
    }
}

/// A place in the config and the path of its key.
#[derive(Clone, Debug)]
pub struct Spot<'a> {
    tree: &'a Tree<'a>,
    report: &'a Report,
    span: Range<usize>,
    base: Rc<str>,
    index: Option<usize>,
}

impl<'a> Spot<'a> {
    /// Reports a mistake here.
    pub fn mistake(&self, what: impl Into<String>, hint: impl Into<String>) {
        if self.tree.trusts(&self.span) {
            self.report.add(Mistake::at(self.place(), self.path(), what, hint));
        }
    }

    /// Where this is.
    pub fn place(&self) -> Place {
        self.tree.document.place(self.span.start)
    }

    /// `policy.base.allow[2]`
    pub fn path(&self) -> String {
        match self.index {
            Some(index) => format!("{}[{index}]", self.base),
            None => self.base.to_string(),
        }
    }

    fn unknown(&self, key: &str, known: &[&'static str]) {
        let hint = match did_you_mean(key, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        self.mistake(format!("unknown key {}", quoted(key)), hint);
    }

    fn below(&self, key: &str, span: Range<usize>) -> Spot<'a> {
        let bare =
            !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let key = if bare { key.to_owned() } else { format!("{key:?}") };
        let path = self.path();
        let base = if path.is_empty() { key } else { format!("{path}.{key}") };
        Spot { span, base: base.into(), index: None, ..self.clone() }
    }
}

/// A table and the keys that its reader knows.
#[derive(Debug)]
pub struct Table<'a> {
    spot: Spot<'a>,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'a> Table<'a> {
    fn root(tree: &'a Tree<'a>, report: &'a Report) -> Table<'a> {
        let spot = Spot { tree, report, span: 0..0, base: "".into(), index: None };
        Table { spot, table: &tree.root, known: Vec::new() }
    }

    /// Where the table stands.
    pub fn spot(&self) -> &Spot<'a> {
        &self.spot
    }

    /// How many keys are written in it.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is written in it.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Takes a key that may be there. A value that did not parse was reported, and counts as absent.
    pub fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let value = self.table.get(key)?;
        self.spot.tree.trusts(&value.span()).then(|| self.item_at(key, value.span(), value))
    }

    /// Takes a key that must be there; `hint` says what to write.
    pub fn require(&mut self, key: &'static str, hint: &str) -> Option<Item<'a>> {
        let item = self.take(key);
        if item.is_none() && self.spot.tree.is_whole() {
            self.spot.mistake(format!("`{key}` is missing"), hint);
        }
        item
    }

    /// Reports the keys that were not taken.
    pub fn finish(self) {
        for (key, value) in self.table {
            let name: &str = key.get_ref();
            if !self.known.contains(&name) {
                self.item_at(name, key.span(), value).spot.unknown(name, &self.known);
            }
        }
    }

    /// Every key with its value, in file order: for tables whose keys are names.
    pub fn into_entries(self) -> Vec<(&'a str, Item<'a>)> {
        let trusted = self.table.iter().filter(|(key, _)| self.spot.tree.trusts(&key.span()));
        let entries = trusted.map(|(key, value)| {
            let name: &'a str = key.get_ref();
            (key.span().start, name, self.item_at(name, key.span(), value))
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|(start, ..)| *start);
        entries.into_iter().map(|(_, name, item)| (name, item)).collect()
    }

    fn item_at(&self, key: &str, span: Range<usize>, value: &'a Spanned<DeValue<'a>>) -> Item<'a> {
        Item { spot: self.spot.below(key, span), value: value.get_ref() }
    }
}

/// A value with its place. The readers report another type and give `None`.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    spot: Spot<'a>,
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    /// Where the value stands.
    pub fn spot(&self) -> &Spot<'a> {
        &self.spot
    }

    /// Reports a mistake about the value.
    pub fn mistake(&self, what: impl Into<String>, hint: impl Into<String>) {
        self.spot.mistake(what, hint);
    }

    /// Reports that the value asks for something of a later version. `hint` says how to do without.
    pub fn not_built_yet(&self, what: &str, hint: impl Into<String>) {
        self.spot.mistake(format!("{what}: not built yet"), hint);
    }

    /// A string.
    pub fn string(&self) -> Option<&'a str> {
        let found = self.value.as_str();
        self.expect("a string", found)
    }

    /// A string, where the type may also be another one.
    pub fn as_string(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    /// Whether the value is a table.
    pub fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// Whether the value is a list.
    pub fn is_list(&self) -> bool {
        self.value.is_array()
    }

    /// Whether the value is a number.
    pub fn is_number(&self) -> bool {
        self.value.is_integer()
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        self.expect("true or false", self.value.as_bool())
    }

    /// A whole number in a range.
    pub fn number(&self, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let integer = self.expect("a whole number", self.value.as_integer())?;
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let fits = number.filter(|number| range.contains(number));
        if fits.is_none() {
            let what = format!("a whole number from {} to {} is expected", range.start(), range.end());
            self.mistake(what, "");
        }
        fits
    }

    /// A date and time.
    pub fn datetime(&self) -> Option<&'a Datetime> {
        let found = self.value.as_datetime();
        self.expect("a date and time", found)
    }

    /// A table.
    pub fn table(&self) -> Option<Table<'a>> {
        let table: &'a DeTable<'a> = self.expect("a table", self.value.as_table())?;
        Some(Table { spot: self.spot.clone(), table, known: Vec::new() })
    }

    /// A list, entry by entry.
    pub fn list(&self) -> Option<impl Iterator<Item = Item<'a>> + use<'a>> {
        let array: &'a DeArray<'a> = self.expect("a list", self.value.as_array())?;
        let spot = self.spot.clone();
        // Inside nested lists the path is that of the outer entry.
        let base: Rc<str> = spot.path().into();
        Some(array.iter().enumerate().map(move |(index, value)| {
            let spot =
                Spot { span: value.span(), base: Rc::clone(&base), index: Some(index), ..spot.clone() };
            Item { spot, value: value.get_ref() }
        }))
    }

    /// A list of strings, each with its place; entries of another type are reported and left out.
    pub fn strings(&self) -> Option<Vec<(&'a str, Item<'a>)>> {
        Some(self.list()?.filter_map(|item| Some((item.string()?, item))).collect())
    }

    /// One of a few words.
    pub fn one_of<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.string()?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.mistake(format!("unknown value {}", quoted(text)), format!("write {}", all.join(" or ")));
        }
        found.map(|(_, value)| *value)
    }

    fn expect<T>(&self, wanted: &str, found: Option<T>) -> Option<T> {
        if found.is_none() {
            let kind = match self.value {
                DeValue::String(_) => "a string",
                DeValue::Integer(_) => "a whole number",
                DeValue::Float(_) => "a number with a fraction",
                DeValue::Boolean(_) => "true or false",
                DeValue::Datetime(_) => "a date",
                DeValue::Array(_) => "a list",
                DeValue::Table(_) => "a table",
            };
            let hint = match self.value {
                DeValue::String(text) if wanted == "a list" => format!("write [{:?}]", &**text),
                _ if wanted == "a date and time" => "write 2027-01-31T00:00:00Z, without quotes".to_owned(),
                DeValue::String(text) if wanted == "true or false" && matches!(&**text, "true" | "false") => {
                    "leave the quotes out".to_owned()
                }
                DeValue::Table(_) if wanted == "a list" => "write it in square brackets: [ ... ]".to_owned(),
                _ => String::new(),
            };
            self.mistake(format!("{wanted} is expected, this is {kind}"), hint);
        }
        found
    }
}
