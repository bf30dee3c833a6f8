//! What people have approved, as the running gateway tells those who explain.

use std::path::Path;

use policy::approval::Approvals;
use policy::{Approval, Approver, Ask, AttemptId, Consent, Destination, SandboxId, Term, Timestamp};
use serde_json::Value;

use super::admin::Admin;

/// What stands for a sandbox now. Nothing where no gateway runs with the config at `path`, or where it does not hear the
/// caller: then a rule asks for everything.
pub(super) fn approved(path: &Path, sandbox: &SandboxId) -> Approvals {
    let Ok(Some(admin)) = Admin::of_config(path) else { return Approvals::default() };
    let answer = admin.ask("GET", &format!("/v1/approvals?sandbox={sandbox}"), None).unwrap_or_default();
    let listed = answer.get("approvals").and_then(Value::as_array).into_iter().flatten();
    listed.filter_map(|item| approval(sandbox, item)).collect()
}

/// One that is for any attempt.
fn approval(sandbox: &SandboxId, item: &Value) -> Option<Approval> {
    if item["term"] == "once" {
        return None;
    }
    let host = item["host"].as_str()?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let destination = Destination::from_authority(format!("{host}:{}", item["port"]).as_bytes()).ok()?;
    let asked = match (item["method"].as_str(), item["path"].as_str()) {
        (Some(method), Some(path)) => Ask::Request { destination, method: method.into(), path: path.into() },
        _ => Ask::Stream(destination),
    };
    // It holds now, and nobody explains for longer.
    let then = Timestamp::default();
    let uid = item["by"].as_u64().and_then(|uid| u32::try_from(uid).ok());
    let name = || item["by_certificate"].as_str().map(|name| Approver::Certificate(name.into()));
    let by = uid.map(Approver::Uid).or_else(name)?;
    let consent = Consent { term: Term::Session, path: None, at: then, by };
    Approval::new(AttemptId::parse(item["id"].as_str()?)?, sandbox, (asked, then), consent)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_stands_for_any_attempt_is_read() {
        let sandbox = SandboxId::parse("s").expect("a name");
        let read = |term: &str, host: &str, method: Option<&str>| {
            let item = json!({
                "id": "01KBCD4Q3H0000000000000007", "host": host, "port": 80, "term": term, "by": 7,
                "method": method, "path": method.map(|_| "/v1"),
            });
            approval(&sandbox, &item).map(|approval| approval.asked)
        };
        let to = |text: &str| Destination::from_authority(text.as_bytes()).expect("a destination");
        assert_eq!(read("once", "a.example.com", None), None);
        assert_eq!(read("session", "a.example.com", None), Some(Ask::Stream(to("a.example.com:80"))));
        assert_eq!(read("until", "2001:db8::1", None), Some(Ask::Stream(to("[2001:db8::1]:80"))));
        let request =
            Ask::Request { destination: to("a.example.com:80"), method: "GET".into(), path: "/v1".into() };
        assert_eq!(read("session", "a.example.com", Some("GET")), Some(request));
    }
}
