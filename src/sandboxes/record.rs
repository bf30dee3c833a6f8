//! What is remembered of a sandbox that was added, paused or ended at run time: one JSON file each.

use std::path::PathBuf;

use policy::life::{Life, Meanwhile};
use policy::{SandboxId, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::audit::By;

/// The record, version 1. Fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    v: u32,
    /// Whose it is.
    #[serde(serialize_with = "write_id", deserialize_with = "read_id")]
    pub id: SandboxId,
    /// What it was added with: the keys of a `[sandbox.X]` table. None: it stands in the config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<Added>,
    /// It is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Tunnels>,
    /// Its time is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// What a sandbox was added with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// The keys of a `[sandbox.X]` table. Tokens stand in it as their SHA-256 alone.
    pub table: Map<String, Value>,
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// Who added it.
    pub by: By,
    /// When its time is over, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<u64>,
    /// It is over once it has been idle for so many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Folders that were made for its unix sockets, and are removed with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<PathBuf>,
}

/// What happens to the tunnels of a paused sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tunnels {
    /// They stand still.
    #[default]
    Keep,
    /// They are cut.
    Cut,
}

impl Record {
    /// A sandbox that is added.
    #[must_use]
    pub const fn added(id: SandboxId, added: Added) -> Self {
        Self { v: 1, id, added: Some(added), paused: None, over: false }
    }

    /// A sandbox of the config.
    #[must_use]
    pub const fn of_config(id: SandboxId, paused: Option<Tunnels>) -> Self {
        Self { v: 1, id, added: None, paused, over: false }
    }

    /// The same, paused or not.
    #[must_use]
    pub fn with_paused(self, paused: Option<Tunnels>) -> Self {
        Self { paused, ..self }
    }

    /// What it says of the sandbox's life.
    #[must_use]
    pub fn life(&self) -> Life {
        let ends = self.added.as_ref().and_then(|added| added.ends).map(Timestamp::from_nanos);
        Life { paused: self.paused.map(Tunnels::meanwhile), over: self.over, ends }
    }
}

impl Tunnels {
    const fn meanwhile(self) -> Meanwhile {
        match self {
            Self::Keep => Meanwhile::Hold,
            Self::Cut => Meanwhile::Cut,
        }
    }
}

fn write_id<S: Serializer>(id: &SandboxId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(id.as_str())
}

fn read_id<'de, D: Deserializer<'de>>(from: D) -> Result<SandboxId, D::Error> {
    let text = String::deserialize(from)?;
    SandboxId::parse(&text).ok_or_else(|| serde::de::Error::custom("no sandbox's name"))
}
