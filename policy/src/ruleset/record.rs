//! A rule in 24 bytes. Nearly every rule of a long list says no more than a name, its ports and where it stands.

use crate::pattern::{HostPattern, PortSet};
use crate::rule::{Action, Rule, RuleName};

/// What is stored of every rule.
#[derive(Debug)]
pub(super) struct Record {
    /// The number of its name, or its place among the rules that are stored in full.
    pub(super) what: u32,
    /// The next rule that is anchored at the same place.
    pub(super) next: u32,
    pub(super) place: u32,
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) ports: PortsId,
    pub(super) kind: Kind,
    pub(super) action: Action,
}

/// What the name of a record stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Exact,
    Below,
    ApexAndBelow,
    /// A rule that is stored in full.
    Full,
}

impl Kind {
    /// The form in which a rule can be stored, all but its ports.
    pub(super) fn of(rule: &Rule) -> Self {
        match &rule.host {
            _ if rule.terms.is_some()
                || !matches!(rule.name, RuleName::Listed(action, _) if action == rule.action) =>
            {
                Self::Full
            }
            HostPattern::Exact(_) => Self::Exact,
            HostPattern::Below(_) => Self::Below,
            HostPattern::ApexAndBelow(_) => Self::ApexAndBelow,
            HostPattern::InnerStar(_) | HostPattern::Any | HostPattern::Net(_) => Self::Full,
        }
    }
}

/// The number of a set of ports among those that records share; of no meaning in a rule that is stored in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortsId(u16);

/// The sets of ports that records share: few, since most lists say nothing of ports.
#[derive(Debug, Default)]
pub(super) struct SharedPorts(Vec<PortSet>);

impl SharedPorts {
    /// More than this, and rules with yet another set are stored in full: looking through them would take too long.
    const LIMIT: usize = 64;

    pub(super) fn share(&mut self, ports: &PortSet) -> Option<PortsId> {
        let at = match self.0.iter().position(|shared| shared == ports) {
            Some(at) => at,
            None if self.0.len() < Self::LIMIT => {
                self.0.push(ports.clone());
                self.0.len() - 1
            }
            None => return None,
        };
        u16::try_from(at).ok().map(PortsId)
    }

    #[expect(clippy::indexing_slicing, reason = "the number was made here, and nothing is removed")]
    pub(super) fn get(&self, id: PortsId) -> &PortSet {
        &self.0[usize::from(id.0)]
    }
}
