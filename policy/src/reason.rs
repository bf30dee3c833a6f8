//! The closed set of reasons: why an attempt was denied, failed or was cut.

use std::fmt;

/// Declares the enum, its stable codes and its explanations in one table.
macro_rules! reasons {
    ($($variant:ident $code:literal $text:literal)*) => {
        /// Why an attempt was denied, failed or was cut: closed, stable and public.
        ///
        /// The same value feeds the reply, the audit line and the metric. Adding one needs a line in
        /// docs/reasons.md; a test keeps the page and this enum in step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable public code: `lower_snake`, ASCII.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// One sentence for a person who sees the refusal: no full stop, ASCII.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    AddressForbidden "address_forbidden" "the address is unspecified, multicast, broadcast or not a usable destination"
    AddressLiteralNotListed "address_literal_not_listed" "a destination given as an address must be listed as an address"
    AddressNotPublic "address_not_public" "the name resolves only to addresses that are not public"
    ApprovalDenied "approval_denied" "a person declined this attempt"
    ApprovalPending "approval_pending" "this attempt waits for a person"
    ApprovalTimeout "approval_timeout" "nobody answered for this attempt in time"
    AuditUnavailable "audit_unavailable" "the audit log is required and cannot be written"
    BadRequest "bad_request" "the request is malformed"
    DeniedByRule "denied_by_rule" "a deny rule matches"
    EchPresent "ech_present" "the rule refuses an encrypted ClientHello"
    EndedByOperator "ended_by_operator" "an operator has ended this stream"
    GatewayAddress "gateway_address" "the destination is the gateway's own host"
    HelloInvalid "hello_invalid" "the TLS ClientHello is malformed, too large or too slow"
    HostMismatch "host_mismatch" "the Host that the request names is not the one that was allowed"
    IdentityMismatch "identity_mismatch" "two pieces of evidence name different sandboxes"
    LimitConnections "limit_connections" "too many connections at once"
    LimitDownload "limit_download" "the download limit is spent"
    LimitLifetime "limit_lifetime" "the stream has lasted as long as its sandbox allows"
    LimitNames "limit_names" "too many new names under wildcards"
    LimitRate "limit_rate" "too many attempts in a short time"
    LimitUpload "limit_upload" "the upload limit is spent"
    LinkAppeared "link_appeared" "a network link appeared in the sandbox"
    MetadataEndpoint "metadata_endpoint" "cloud metadata endpoints are never reachable"
    MethodNotAllowed "method_not_allowed" "the rules for this host do not allow the method"
    NotListed "not_listed" "no rule lists this host"
    PathNotAllowed "path_not_allowed" "the rules for this host do not allow the path"
    PolicyChanged "policy_changed" "the policy changed and no longer allows this"
    PortNotAllowed "port_not_allowed" "rules list this host, but not this port"
    QtypeNotAllowed "qtype_not_allowed" "the rules for this name do not open the record type"
    SandboxExpired "sandbox_expired" "the sandbox is no longer active"
    SandboxPaused "sandbox_paused" "the sandbox is paused"
    SniMismatch "sni_mismatch" "the TLS ClientHello names another host than the one that was allowed"
    SniMissing "sni_missing" "the TLS ClientHello names no host"
    SpecialUseName "special_use_name" "the name is reserved for special use and not listed by itself"
    TlsRequired "tls_required" "port 443 carries TLS only"
    UnknownSandbox "unknown_sandbox" "the client is no known sandbox"
    UpstreamConnectFailed "upstream_connect_failed" "the destination did not accept the connection"
    UpstreamDnsFailed "upstream_dns_failed" "the name could not be resolved"
    UpstreamTimeout "upstream_timeout" "the destination did not answer in time"
}

impl Reason {
    /// Looks a reason up by its public code.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.code() == code)
    }

    /// Whether it is a limit of a sandbox.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(
            self,
            Self::LimitConnections
                | Self::LimitDownload
                | Self::LimitLifetime
                | Self::LimitNames
                | Self::LimitRate
                | Self::LimitUpload
        )
    }

    /// Of the reasons for which addresses were dropped, the one that names the denial when none is left.
    pub(crate) fn stronger(held: Option<Self>, new: Self) -> Option<Self> {
        held.filter(|held| held.address_rank() >= new.address_rank()).or(Some(new))
    }

    /// The order in which dropped addresses speak: metadata, gateway, forbidden, denied by rule, not public.
    const fn address_rank(self) -> u8 {
        match self {
            Self::MetadataEndpoint => 5,
            Self::GatewayAddress => 4,
            Self::AddressForbidden => 3,
            Self::DeniedByRule => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_sorted_and_found_again() {
        assert!(Reason::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
        for reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(*reason));
            assert_eq!(reason.is_limit(), reason.code().starts_with("limit_"), "{reason:?}");
            assert!(reason.text().is_ascii() && !reason.text().ends_with('.'));
        }
    }
}
