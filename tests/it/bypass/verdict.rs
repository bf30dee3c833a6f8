//! Whether what happened is what the case wants: its verdict, the default checks, and its assertions.

use super::{
    assertion::Assertion,
    case::{Expect, Verdict},
    evidence::{Bytes, Dns, Evidence, Exchange},
    input::LOAD_FRACTION,
};

/// Judges the evidence; the error says what was wrong. A second acceptable outcome (`alt`) counts as well, for each of
/// several exchanges by itself.
pub fn judge(expect: &Expect, evidence: &mut Evidence<'_>, layer: &str) -> Result<(), String> {
    let Some(alt) = &expect.alt else { return judge_one(&[expect], evidence, layer) };
    let mut alt = (**alt).clone();
    if alt.assert.is_empty() && alt.verdict == expect.verdict {
        // The same verdict in another form: what it must not do stays.
        alt.assert.clone_from(&expect.assert);
    }
    let Err(first) = judge_one(&[expect], evidence, layer) else { return Ok(()) };
    let Err(second) = judge_one(&[&alt], evidence, layer) else { return Ok(()) };
    let refused = expect.verdict != Verdict::Allow && alt.verdict != Verdict::Allow;
    if refused && judge_one(&[expect, &alt], evidence, layer).is_ok() {
        return Ok(());
    }
    Err(format!("{first}; nor the second outcome: {second}"))
}

/// Judges each exchange by any of the forms, and all of it by the assertions of the first.
fn judge_one(forms: &[&Expect], evidence: &mut Evidence<'_>, layer: &str) -> Result<(), String> {
    let [expect, ..] = forms else { return Ok(()) };
    let read = |text: &String| {
        let text = scaled(text, evidence);
        Assertion::parse(&text).map_err(|error| format!("{text}: {error}")).map(|parsed| (text, parsed))
    };
    let assertions = expect.assert.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    // A budget lets so many through: which of them, no exchange tells by itself.
    let is_budget = expect.assert.iter().any(|text| text.starts_with("answered<="));
    for exchange in evidence.exchanges.iter().filter(|_| !is_budget) {
        let mut judged = forms.iter().map(|form| judge_exchange(form, exchange, evidence, layer));
        let first = judged.next().unwrap_or(Ok(()));
        if first.is_err() && !judged.any(|other| other.is_ok()) {
            return first;
        }
    }
    let about_upstream = assertions.iter().any(|(_, assertion)| assertion.subject().starts_with("upstream"));
    if expect.verdict != Verdict::Allow && !about_upstream {
        nothing_went_out(evidence)?;
    }
    for (text, assertion) in assertions {
        assertion.check(evidence).map_err(|error| format!("{text}: {error}"))?;
    }
    Ok(())
}

fn judge_exchange(
    expect: &Expect,
    exchange: &Exchange,
    evidence: &Evidence<'_>,
    layer: &str,
) -> Result<(), String> {
    match exchange {
        // A case of several steps says "multi" and what holds over all; an "allow" there is about the log.
        Exchange::Bytes(bytes)
            if layer == "log" && evidence.exchanges.len() > 1 && expect.verdict == Verdict::Allow =>
        {
            // A captured connection may be refused without HTTP: it is closed.
            if bytes.responses.is_empty() && !bytes.ended { Err("no answer".into()) } else { Ok(()) }
        }
        Exchange::Bytes(bytes) => judge_bytes(expect, bytes, evidence),
        Exchange::Dns(dns) => judge_dns(expect, dns),
        Exchange::Command { status } => match (expect.verdict, *status == Some(0)) {
            (Verdict::Allow, true) | (Verdict::Deny | Verdict::Error, false) => Ok(()),
            // Assertions outrank a command's exit status.
            _ if !expect.assert.is_empty() => Ok(()),
            (verdict, _) => Err(format!("{verdict:?} wanted, exit status {status:?}")),
        },
        Exchange::Probe { address, inside, response } => {
            let allowed = response.is_tunnel();
            let wanted = (expect.verdict == Verdict::Allow) == *inside;
            if allowed == wanted && (allowed || response.status == 403) {
                Ok(())
            } else {
                Err(format!("{address}: status {} {:?}", response.status, response.reason()))
            }
        }
        Exchange::Timed { last, .. } => {
            last.iter().try_for_each(|exchange| judge_exchange(expect, exchange, evidence, layer))
        }
        Exchange::Many { statuses, .. } => {
            let wrong = statuses.iter().filter(|status| match (expect.verdict, expect.status) {
                (_, Some(wanted)) => **status != wanted,
                (Verdict::Allow, None) => **status >= 400,
                (_, None) => **status < 400,
            });
            match wrong.count() {
                0 => Ok(()),
                wrong => {
                    Err(format!("{wrong} of {} answers were others: {:?}", statuses.len(), statuses.first()))
                }
            }
        }
    }
}

fn judge_bytes(expect: &Expect, bytes: &Bytes, evidence: &Evidence<'_>) -> Result<(), String> {
    let last = bytes.responses.last();
    let status = last.map(|response| response.status);
    let seen = || match last {
        Some(last) => format!("status {} {:?}, ended {}", last.status, last.reason(), bytes.ended),
        None => format!("no response, {:?}, ended {}", String::from_utf8_lossy(&bytes.received), bytes.ended),
    };
    let wrong = |what: &str| Err(format!("{what} wanted: {}", seen()));
    match expect.verdict {
        Verdict::Allow => {
            let Some(status) = status else { return wrong("an answer") };
            if expect.status.map_or(status >= 400, |wanted| wanted != status) {
                return wrong(&format!("{:?}", expect.status));
            }
            if !bytes.sent_in_tunnel.is_empty() {
                let sent = &bytes.sent_in_tunnel;
                if !evidence.contacts.iter().any(|contact| contact.received().ends_with(sent)) {
                    return wrong("the tunnel's bytes at the origin");
                }
            } else if bytes.tunnel().is_some() && bytes.ended {
                return wrong("a tunnel that stands");
            }
            Ok(())
        }
        Verdict::Deny | Verdict::Error => {
            if let Some(wanted) = expect.status {
                // Of several requests on one connection any may be the refused one; what reached the origin is checked beside.
                // 403 and 407 are both right for a client that nobody knows.
                let right = |status: u16| status == wanted || (wanted == 407 && status == 403);
                let some = bytes.responses.iter().any(|response| right(response.status));
                return if some { Ok(()) } else { wrong(&wanted.to_string()) };
            }
            if bytes.socks_reply() == Some(0) {
                return wrong("a SOCKS refusal");
            }
            if bytes.tunnel().is_some() {
                return if bytes.ended { Ok(()) } else { wrong("a closed tunnel") };
            }
            match status {
                Some(status) if status >= 400 => Ok(()),
                None if bytes.ended => Ok(()),
                _ => wrong("a refusal"),
            }
        }
    }
}

fn judge_dns(expect: &Expect, dns: &Dns) -> Result<(), String> {
    let Some(rcode) = dns.rcode() else {
        // RFC 9619 allows silence to what is no question at all; everything else must be answered.
        return match (expect.verdict, dns.query.len() < 12) {
            (Verdict::Error, true) => Ok(()),
            _ => Err("no answer".into()),
        };
    };
    let empty_is_right = expect.assert.iter().any(|assert| assert == "answers==0");
    let right = match &expect.rcode {
        Some(wanted) if wanted == "NOERROR" => {
            rcode == "NOERROR" || empty_is_right && rcode == "NOERROR-empty"
        }
        Some(wanted) => rcode == *wanted,
        None if !expect.rcode_any.is_empty() => expect.rcode_any.contains(&rcode),
        // Several look-ups of which some are allowed: the assertions say which.
        None => true,
    };
    if right {
        return Ok(());
    }
    let asked = dns
        .message()
        .and_then(|message| message.queries.first().map(ToString::to_string))
        .unwrap_or_default();
    Err(format!("{asked}: {:?} {:?} wanted, rcode {rcode}", expect.rcode, expect.rcode_any))
}

/// An assertion that names the count of a load case means the count that was run.
fn scaled(text: &str, evidence: &Evidence<'_>) -> String {
    let mut text = text.to_owned();
    for exchange in &evidence.exchanges {
        if let Exchange::Many { statuses, .. } = exchange {
            let written = statuses.len() as u64 * LOAD_FRACTION;
            text = text.replace(&format!("=={written}"), &format!("=={}", statuses.len()));
        }
    }
    text
}

/// The default for everything refused: no origin was dialled. Where the gateway had said yes before (a tunnel that its hello
/// betrayed, an earlier request on the connection), the refused part must be absent.
fn nothing_went_out(evidence: &Evidence<'_>) -> Result<(), String> {
    let responses = || {
        evidence
            .exchanges
            .iter()
            .filter_map(|exchange| if let Exchange::Bytes(bytes) = exchange { Some(bytes) } else { None })
    };
    let tunnels = responses().any(|bytes| bytes.tunnel().is_some());
    let yes = responses().flat_map(|bytes| &bytes.responses).filter(|response| response.status < 400).count();
    // Probes have neighbours that are allowed; a command may do allowed things before the denied one.
    let mixed = |exchange: &Exchange| matches!(exchange, Exchange::Probe { .. } | Exchange::Command { .. });
    if evidence.exchanges.iter().any(mixed) {
        return Ok(());
    }
    if tunnels {
        let before: u64 = responses().map(|bytes| bytes.upstream_before).sum();
        return match evidence.upstream_bytes() - before {
            0 => Ok(()),
            bytes => Err(format!("{bytes} bytes reached an origin")),
        };
    }
    if yes > 0 {
        let requests = evidence.requests().len();
        return if requests <= yes {
            Ok(())
        } else {
            Err(format!("{requests} requests reached an origin, {yes} were allowed"))
        };
    }
    match evidence.dials().as_slice() {
        [] => Ok(()),
        dialled => Err(format!("dialled {dialled:?}")),
    }
}

/// One word for what became of an exchange, for `verdicts[n]`.
pub fn verdict_of(exchange: &Exchange) -> &'static str {
    match exchange {
        Exchange::Bytes(bytes) => match bytes.responses.last().map(|last| last.status) {
            Some(403 | 407 | 421) => "deny",
            Some(status) if status >= 400 => "error",
            Some(_) if bytes.ended && bytes.tunnel().is_some() => "deny",
            Some(_) => "allow",
            None => "error",
        },
        Exchange::Dns(dns) => match dns.rcode().as_deref() {
            Some("NOERROR") => "allow",
            Some("FORMERR" | "SERVFAIL") | None => "error",
            Some(_) => "deny",
        },
        _ => "other",
    }
}
