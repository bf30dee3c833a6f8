//! Weakenings: the places where a config waives a protection on purpose, so that operators see them add up.

use policy::Policy;
use policy::pattern::HostView;
use policy::policy::Mode;
use policy::rule::Action;
use policy::ruleset::RuleView;

/// A kind of waived protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weakening {
    /// A sandbox in learn mode: what no rule lists is let through.
    Learn,
    /// A rule that covers every public name.
    AnyHost,
    /// A rule whose tunnels pass unread.
    Raw,
    /// A rule that opens DNS types which carry free text.
    FreeText,
    /// A special-purpose range that counts as public.
    TreatedAsPublic,
    /// A command that runs without a sandbox (`run --allow-weak`).
    Uncontained,
}

impl Weakening {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Learn, Self::AnyHost, Self::Raw, Self::FreeText, Self::TreatedAsPublic, Self::Uncontained];

    /// The label in metrics and reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Learn => "learn",
            Self::AnyHost => "any_host",
            Self::Raw => "raw",
            Self::FreeText => "free_text",
            Self::TreatedAsPublic => "treated_as_public",
            Self::Uncontained => "uncontained",
        }
    }

    /// Every weakening of a policy, one for each sandbox, rule or range that has it.
    #[must_use]
    pub fn of(policy: &Policy) -> Vec<Self> {
        let mut found = vec![Self::TreatedAsPublic; policy.addresses.treated_as_public().len()];
        for sandbox in policy.sandboxes.values() {
            if matches!(sandbox.mode, Mode::Learn { .. }) {
                found.push(Self::Learn);
            }
            for rule in sandbox.sets.iter().flat_map(|set| set.rules()) {
                found.extend(Self::of_rule(rule));
            }
        }
        found
    }

    fn of_rule(rule: RuleView<'_>) -> Vec<Self> {
        let opens_text = rule.opens_qtype(policy::QType::TXT);
        let held = [
            (Self::AnyHost, rule.host() == HostView::Any),
            (Self::Raw, rule.is_raw()),
            (Self::FreeText, opens_text),
        ];
        let allows = rule.action() == Action::Allow;
        held.into_iter().filter(|(_, holds)| allows && *holds).map(|(kind, _)| kind).collect()
    }
}
