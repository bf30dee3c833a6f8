//! `[audit]`: where every contact is written down.

use std::path::PathBuf;

use policy::file::{Config, Item, Table, size};

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["path", "required", "max_size", "keep"];

/// Where an audit goes when nothing else is written: the standard output.
const STDOUT: &str = "-";

/// How many files put aside are kept where `keep` is not written.
const KEEP: u32 = 8;

/// The `[audit]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The file; `None` is the standard output.
    pub path: Option<PathBuf>,
    /// What cannot be written down is denied.
    pub required: bool,
    /// When the file is put aside; `None` leaves that to another program, which then sends SIGHUP.
    pub rotation: Option<Rotation>,
}

/// When the file is put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A file that would grow past this many bytes is put aside first.
    pub size: u64,
    /// How many such files are kept.
    pub keep: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { path: None, required: true, rotation: None }
    }
}

impl Audit {
    pub(super) fn read(config: &mut Config<'_>) -> Self {
        let mut held = Self::default();
        let Some(mut table) = config.table("audit") else { return held };
        held.path = table.take("path").and_then(|item| path(&item));
        if let Some(required) = table.take("required").and_then(|item| item.boolean()) {
            held.required = required;
        }
        held.rotation = rotation(&mut table, held.path.is_some());
        table.finish();
        held
    }
}

fn path(item: &Item<'_>) -> Option<PathBuf> {
    let text = item.string()?;
    if text == STDOUT {
        return None;
    }
    // The working directory of a daemon is nobody's choice.
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        item.mistake(
            "an absolute path is expected",
            "write \"/var/log/tidegate/audit.jsonl\", or \"-\" for stdout",
        );
        return None;
    }
    Some(text.into())
}

fn rotation(table: &mut Table<'_>, is_file: bool) -> Option<Rotation> {
    let (size_item, keep_item) = (table.take("max_size"), table.take("keep"));
    let keep = keep_item.as_ref().map(|item| item.number(1..=1000));
    let Some(item) = size_item else {
        if let Some(item) = keep_item {
            item.mistake(
                "`keep` counts the files that `max_size` puts aside",
                "write max_size = \"256MiB\" too",
            );
        }
        return None;
    };
    let size = size::read(&item, 64 * 1024..=1 << 40);
    if !is_file {
        item.mistake("the standard output is not put aside", "remove it, or write a path");
    }
    let keep = keep.map_or(Some(KEEP), |keep| keep.and_then(|keep| u32::try_from(keep).ok()))?;
    Some(Rotation { size: size?, keep })
}
