//! The one clock of the inbounds: wall time as the gate judges by it.

use std::time::{SystemTime, UNIX_EPOCH};

use policy::Timestamp;

/// The time now. A host clock before 1970 reads as 1970; the gate never lets time run backwards.
#[must_use]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
