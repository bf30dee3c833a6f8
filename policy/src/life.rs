//! The life of a sandbox: active, paused, or over.

use crate::reason::Reason;
use crate::time::Timestamp;

/// How far a sandbox is in its life. One of the config is active for as long as it stands there, unless it is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Life {
    /// It is paused, and this happens to its open streams meanwhile.
    pub paused: Option<Meanwhile>,
    /// It is over, whatever `ends` says.
    pub over: bool,
    /// It is over from then on.
    pub ends: Option<Timestamp>,
}

/// What happens to the open streams of a sandbox that is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// They stand still: no byte passes, and they go on when it is resumed.
    Hold,
    /// They are cut.
    Cut,
}

/// Where a sandbox is in its life at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What its policies allow is let through.
    Active,
    /// Nothing is let through.
    Paused(Meanwhile),
    /// Nothing will be let through again.
    Over,
}

/// What a live stream may do after it was judged anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Its bytes pass.
    Flows,
    /// It stands still: its sandbox is paused.
    Held,
}

impl Stage {
    /// The reason for which nothing is let through.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Active => None,
            Self::Paused(_) => Some(Reason::SandboxPaused),
            Self::Over => Some(Reason::SandboxExpired),
        }
    }
}

impl Life {
    /// The stage at `now`.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Stage {
        match self.paused {
            _ if self.over || self.ends.is_some_and(|ends| ends <= now) => Stage::Over,
            Some(meanwhile) => Stage::Paused(meanwhile),
            None => Stage::Active,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_that_is_over_stays_over_whatever_else_is_said() {
        let (before, end, after) =
            (Timestamp::from_secs(9), Timestamp::from_secs(10), Timestamp::from_secs(11));
        let mut life = Life { ends: Some(end), ..Life::default() };
        assert_eq!([before, end, after].map(|now| life.at(now)), [Stage::Active, Stage::Over, Stage::Over]);
        life.paused = Some(Meanwhile::Hold);
        assert_eq!(life.at(before), Stage::Paused(Meanwhile::Hold));
        assert_eq!(life.at(after), Stage::Over);
        life.over = true;
        assert_eq!(life.at(before), Stage::Over);
        assert_eq!(Life::default().at(after), Stage::Active);
        let reasons = [Stage::Active, Stage::Paused(Meanwhile::Hold), Stage::Over].map(Stage::reason);
        assert_eq!(reasons, [None, Some(Reason::SandboxPaused), Some(Reason::SandboxExpired)]);
    }
}
