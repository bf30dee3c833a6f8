//! Captured connections: the client chose an address and a port, and thinks that it has reached them.

use super::{Trace, View};
use crate::attempt::Ask;
use crate::destination::{Host, Port};
use crate::identity::Stranger;
use crate::policy::Verdict;
use crate::reason::Reason;
use crate::sandbox::SandboxId;

impl View<'_> {
    /// Decides a captured connection as far as that needs none of its bytes: by the floor, and by a rule for its address
    /// and port. `None` where the name decides that it will show; one that shows none is decided as its address.
    pub fn decide_captured(
        &self,
        who: Result<&SandboxId, Stranger>,
        ask: &Ask,
        trace: &mut impl Trace,
    ) -> Option<Verdict> {
        let verdict = self.decide(who, ask, trace);
        if !matches!(ask.host(), Some(Host::Address(_))) {
            return Some(verdict);
        }
        let by_address = match &verdict {
            // Learn mode lists nothing.
            Verdict::Allow(_, grant) => grant.rule.is_some(),
            Verdict::Ask(..) => true,
            Verdict::Deny(_, finding) => {
                !matches!(finding.reason, Reason::AddressLiteralNotListed | Reason::PortNotAllowed)
            }
        };
        by_address.then_some(verdict)
    }

    /// Whether some name could be allowed on this port. Most ports of most sandboxes are open to none.
    pub(crate) fn opens_some_name(&self, who: Result<&SandboxId, Stranger>, port: Port) -> bool {
        let sandbox = who.ok().and_then(|id| self.policy.sandbox(id));
        sandbox.is_some_and(|sandbox| {
            sandbox.learns_at(self.now) || sandbox.sets.iter().any(|set| set.opens_some_name(port))
        })
    }
}
