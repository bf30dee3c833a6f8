//! What can go wrong between a name that is allowed and its addresses.

use policy::Reason;

/// Why a name that may be resolved was not. A fault of the upstream, never a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No upstream answered within the budget.
    #[error("no DNS upstream answered in time")]
    Timeout,
    /// No upstream could be reached.
    #[error("no DNS upstream could be reached")]
    Unreachable,
    /// The answer breaks its own format, or does not fit the question.
    #[error("the DNS upstream sent a malformed answer")]
    Malformed,
    /// Aliases lead in a circle, or over more than eight names.
    #[error("the aliases of the name loop or do not end")]
    Endless,
    /// The upstream answered with an error, such as SERVFAIL or REFUSED.
    #[error("the DNS upstream answered with response code {0}")]
    Failed(u8),
    /// Too many questions wait for upstreams.
    #[error("too many DNS questions are waiting")]
    Overloaded,
}

impl LookupError {
    /// The reason that a decision carries for it.
    #[must_use]
    pub const fn reason(self) -> Reason {
        Reason::UpstreamDnsFailed
    }

    /// The extended error of a DNS answer that reports it (RFC 8914 section 4), with its text.
    pub(crate) const fn extended(self) -> (u16, &'static str) {
        match self {
            Self::Timeout => (22, "upstream timed out"),
            Self::Unreachable => (23, "upstream unreachable"),
            Self::Malformed => (24, "upstream answer malformed"),
            Self::Endless => (24, "alias chain does not end"),
            Self::Failed(_) => (0, "upstream failed"),
            Self::Overloaded => (0, "overload"),
        }
    }
}

/// Why a resolver cannot be built from its config.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// `system` was asked for and cannot be read.
    #[error("cannot read the system's name servers")]
    System(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is nobody to ask.
    #[error("no DNS upstream is configured")]
    NoUpstream,
    /// The TLS settings of encrypted upstreams cannot be made.
    #[error("cannot set up TLS for DNS upstreams")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}
