//! `[state]`: where what was changed at run time outlives a restart.

use std::path::PathBuf;

use policy::file::Config;

/// The keys of the table.
pub(super) const KEYS: &[&str] = &["path"];

/// The `[state]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The folder; `None`: nothing can be changed at run time.
    pub path: Option<PathBuf>,
}

impl State {
    pub(super) fn read(config: &mut Config<'_>) -> Self {
        let Some(mut table) = config.table("state") else { return Self::default() };
        let path = table.take("path").and_then(|item| {
            let text = item.string()?;
            // The working directory of a daemon is nobody's choice.
            if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
                item.mistake("an absolute path of a folder is expected", "write \"/var/lib/tidegate\"");
                return None;
            }
            Some(text.into())
        });
        table.finish();
        Self { path }
    }
}
