//! Response policy zones (draft-vixie-dnsop-dns-rpz): zone files whose owners are the names to block.

use super::Blocked;
use super::line::{Bad, Line, name};

/// What a zone file has said so far.
#[derive(Debug, Default)]
pub(super) struct Zone {
    /// The name of the zone, which absolute owners end with; of `$ORIGIN`, else the owner of the SOA.
    origin: Option<String>,
    /// Open parentheses: a record goes on over lines (RFC 1035 section 5.1).
    depth: usize,
}

impl Zone {
    pub(super) const fn is_within_parentheses(&self) -> bool {
        self.depth > 0
    }

    /// Follows the parentheses of a line of a record that blocks nothing.
    pub(super) fn skip(&mut self, line: &str) {
        for byte in line.split(';').next().unwrap_or_default().bytes() {
            match byte {
                b'(' => self.depth += 1,
                b')' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Reads a directive or a record.
    pub(super) fn record<'l>(&mut self, line: &str) -> Result<Line<'l>, Bad> {
        let text = line.split(';').next().unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        // A line that begins with a space has the owner of the one before; only NS records of the zone do.
        let owner = if text.starts_with([' ', '\t']) { "@" } else { words.next().unwrap_or_default() };
        if owner.eq_ignore_ascii_case("$TTL") {
            return Ok(Line::Nothing);
        }
        if owner.eq_ignore_ascii_case("$ORIGIN") {
            let origin = words.next().ok_or(Bad::Unknown)?;
            self.origin = Some(origin.trim_end_matches('.').to_ascii_lowercase());
            return Ok(Line::Nothing);
        }
        let is_class_or_ttl =
            |word: &&str| word.eq_ignore_ascii_case("IN") || word.bytes().all(|byte| byte.is_ascii_digit());
        let mut words = words.skip_while(is_class_or_ttl);
        let kind = words.next().unwrap_or_default().to_ascii_uppercase();
        match kind.as_str() {
            "SOA" => {
                if owner.ends_with('.') && self.origin.is_none() {
                    self.origin = Some(owner.trim_end_matches('.').to_ascii_lowercase());
                }
                self.skip(text);
                Ok(Line::Nothing)
            }
            "NS" => Ok(Line::Nothing),
            "CNAME" => {
                let target = words.next().ok_or(Bad::Unknown)?.trim_end_matches('.');
                let lets_through = ["rpz-passthru", "rpz-tcp-only"];
                if lets_through.iter().any(|action| target.eq_ignore_ascii_case(action)) {
                    return Err(Bad::Action);
                }
                self.blocked(owner).map(Line::Blocks)
            }
            // Other data in the place of the true ones: the name leads elsewhere, which here is nowhere.
            "A" | "AAAA" | "TXT" | "MX" | "SRV" | "PTR" | "HTTPS" | "SVCB" => {
                words.next().ok_or(Bad::Unknown)?;
                self.blocked(owner).map(Line::Blocks)
            }
            _ => Err(Bad::Unknown),
        }
    }

    fn blocked(&self, owner: &str) -> Result<Blocked, Bad> {
        let lower = owner.to_ascii_lowercase();
        let relative = match lower.strip_suffix('.') {
            Some(absolute) => {
                let origin = self.origin.as_deref().ok_or(Bad::Outside)?;
                let inside = absolute.strip_suffix(origin).and_then(|rest| rest.strip_suffix('.'));
                inside.ok_or(Bad::Outside)?
            }
            None => &lower,
        };
        let last = relative.rsplit('.').next().unwrap_or_default();
        if matches!(last, "rpz-ip" | "rpz-client-ip" | "rpz-nsip" | "rpz-nsdname") {
            return Err(Bad::Trigger);
        }
        match relative.strip_prefix("*.") {
            Some(suffix) => name(suffix).map(Blocked::Below),
            None => name(relative).map(Blocked::Exact),
        }
    }
}
