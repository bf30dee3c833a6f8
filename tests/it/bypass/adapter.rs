//! Turns the corpus' generic policy into a config file, and its words for upstreams into origins. The only place that does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use hickory_proto::{
    op::Message,
    rr::{RData, Record, RecordType, rdata::NULL},
};
use serde_json::Value;
use tidegate::lab::{HostFile, Zone, dns::Question, origin::Behaviour};

use super::{
    case::{Case, Input, Step, bytes},
    input::LOG_FULL,
    inside,
};
use crate::support::{ClientCertificate, Scene, SceneBuilder, TestAuthority, UNLIMITED};

/// What the harness or the product cannot do yet, in words.
#[derive(Debug)]
pub struct Unsupported(pub String);

type Result<T> = std::result::Result<T, Unsupported>;

/// The value that stands for `$REAL`, a secret that the sandbox never holds.
pub const REAL: &str = "real-secret-of-the-corpus";

/// Where the sandbox `other` finds the proxy.
pub const OTHER_PROXY: &str = "127.0.0.1:3128";

/// Fills in the harness' own values.
pub fn fill_in(text: &str) -> String {
    text.replace("$PROXY_HOSTPORT", crate::support::PROXY)
        .replace("$PROXY", &format!("http://{}", crate::support::PROXY))
        .replace("$UNKNOWN", "bm9ib2R5Om5vdGhpbmc=")
        .replace("$REAL", REAL)
        // `s1:token-of-s1` and `s2:token-of-s2`.
        .replace("$S1", "czE6dG9rZW4tb2YtczE=")
        .replace("$S2", "czI6dG9rZW4tb2YtczI=")
}

/// The scene that a case plays in, without its policy text; `dir` holds files that the config names.
pub fn scene(case: &Case, authority: &Arc<TestAuthority>, dir: &Path) -> Result<SceneBuilder> {
    let mut scene = Scene::new().ports(ports_of(case));
    if let Some(zone) = &case.dns_zone {
        scene = scene.zone(Zone::from_json(zone).map_err(|error| Unsupported(error.to_string()))?);
    }
    let mut behaviours = BTreeMap::new();
    for (at, does) in &case.upstream {
        if at == "dns" {
            scene = upstream_dns(scene, does)?;
        } else if does != "refuse" {
            let at: SocketAddr = at.parse().map_err(|_| Unsupported(format!("upstream at {at}")))?;
            behaviours.insert(at, behaviour(does, case, authority)?);
        }
    }
    if case.upstream.values().any(|does| does == "refuse") {
        let refused: BTreeSet<SocketAddr> = case
            .upstream
            .iter()
            .filter(|(_, does)| *does == "refuse")
            .filter_map(|(at, _)| at.parse().ok())
            .collect();
        let ports: BTreeSet<u16> = refused.iter().map(SocketAddr::port).collect();
        let others = zone_addresses(case)
            .into_iter()
            .flat_map(|ip| ports.iter().map(move |port| SocketAddr::new(ip, *port)));
        scene = scene.only_listening_on(others.filter(|at| !refused.contains(at)).collect::<Vec<_>>());
    }
    // A TLS client without a stated origin wants one that speaks TLS.
    let speaks_tls = |input: &Input| matches!(input, Input::Tls(_) | Input::TlsScript { .. });
    let tls = match &case.input {
        Input::Multi { steps } => {
            steps.iter().any(|step| matches!(step, Step::Do(input) if speaks_tls(input)))
        }
        input => speaks_tls(input),
    };
    // One name, one server, whichever of its addresses is dialled.
    let tls = tls || case.upstream.values().any(|does| does == "https");
    let https = tls.then(|| authority.https(&names_of(case), ClientCertificate::Unasked));
    scene = scene.origins(move |to| match (behaviours.get(&to), &https) {
        (Some(behaviour), _) => behaviour.clone(),
        (None, Some(https)) if to.port() == 443 => https.clone(),
        _ if to.port() == 80 => Behaviour::Http,
        _ => Behaviour::Echo,
    });
    if let Input::Multi { steps } = &case.input
        && steps.iter().any(|step| matches!(step, Step::Do(Input::Fault { what }) if what == LOG_FULL))
    {
        // Every write to it fails with ENOSPC (full(4)).
        scene = scene.configure(|config| config.audit = Some("/dev/full".into()));
    }
    let mut scene = apply_policy(scene, case, dir)?;
    if inside::is_needed(case) {
        // Whoever attaches a namespace needs the admin socket, and to own the sandbox.
        let owners = format!("owners = [{}]\nidentify = ", rustix::process::geteuid().as_raw());
        let policy = scene.policy_text().replace("identify = ", &owners);
        scene = scene
            .policy(&policy)
            .configure(|config| config.listen = "admin = \"unix:{dir}/admin.sock\"\n".into());
    }
    let beside = case.expect.assert.iter().any(|assert| assert.starts_with("other_sandbox."));
    Ok(if beside { with_other_sandbox(scene) } else { scene })
}

/// Tells two sandboxes apart by source: the case's own from where clients are, and `other` on the host's loopback.
fn with_other_sandbox(scene: SceneBuilder) -> SceneBuilder {
    let policy = scene.policy_text().replace("{ default = true }", "{ source = \"10.200.0.1/32\" }");
    let other = "\n[sandbox.other]\npolicies = [\"case\"]\nidentify = [{ source = \"127.0.0.1/32\" }]\n";
    scene.policy(&(policy + other)).configure(|config| config.proxy.push(OTHER_PROXY.into()))
}

/// Every port that the case mentions: a host of the world must be there, or a wrong dial would only look refused.
fn ports_of(case: &Case) -> BTreeSet<u16> {
    let mut text = format!("{} {:?} {:?}", case.policy, case.upstream, case.input);
    text = text.replace("\\r", " ");
    text.split(':')
        .skip(1)
        .filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u16>().ok()
        })
        // The DNS server has its own.
        .filter(|&port| port != 0 && port != 53)
        .collect()
}

fn zone_addresses(case: &Case) -> Vec<IpAddr> {
    let text = case.dns_zone.as_ref().map(Value::to_string).unwrap_or_default();
    text.split('"').filter_map(|word| word.split_once(' ')?.1.parse().ok()).collect()
}

fn names_of(case: &Case) -> Vec<&str> {
    let zone = case.dns_zone.as_ref().and_then(Value::as_object);
    zone.map(|zone| zone.keys().map(String::as_str).collect()).unwrap_or_default()
}

fn behaviour(does: &str, case: &Case, authority: &Arc<TestAuthority>) -> Result<Behaviour> {
    let names = names_of(case);
    Ok(match does {
        "echo_request" | "record_raw" | "reply_200_ignoring_upgrade" => Behaviour::Http,
        "reply_426_keepalive" => Behaviour::Reply(
            b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ),
        "send_banner" => Behaviour::Banner(b"220 stand-in ready\r\n".to_vec()),
        "echo" => Behaviour::Echo,
        "https" | "https_echo_request" | "https_h1_record_raw" => {
            authority.https(&names, ClientCertificate::Unasked)
        }
        "https_require_client_cert" => authority.https(&names, ClientCertificate::Required),
        raw if raw.starts_with("HTTP/1.") => Behaviour::Reply(bytes(raw)),
        _ => {
            if let Some(to) = does.strip_prefix("redirect_to ") {
                return Ok(Behaviour::Reply(
                    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes(),
                ));
            }
            if let Some(name) = does.strip_prefix("https cert=") {
                return Ok(authority.https(&[name.trim_start_matches("ip:")], ClientCertificate::Unasked));
            }
            return Err(Unsupported(format!("upstream behaviour {does:?}")));
        }
    })
}

/// The corpus describes broken DNS servers in prose; here each is, once.
fn upstream_dns(scene: SceneBuilder, does: &str) -> Result<SceneBuilder> {
    if does == "down" {
        return Ok(scene.without_dns());
    }
    let truth = || Zone::new().with("api.example.com", &["A 203.0.113.10"]).expect("a record");
    if does.starts_with("send 50 forged replies") {
        return Ok(scene.zone(truth()).dns_answers(Box::new(forge)));
    }
    if does.starts_with("500 DNSKEY") {
        return Ok(scene.zone(truth()).dns_answers(Box::new(key_flood)));
    }
    Err(Unsupported(format!("DNS upstream {does:?}")))
}

/// Fifty replies with a wrong id, a wrong question or from a wrong port, all with the attacker's address; then the true one.
fn forge(question: Question<'_>) -> Vec<Vec<u8>> {
    let Some(usual) = question.usual.clone() else { return Vec::new() };
    let mut replies = Vec::new();
    for n in 0..50_u16 {
        let mut forged = Message::from_vec(&usual).expect("our own reply");
        for record in &mut forged.answers {
            record.data = RData::A("203.0.113.66".parse::<std::net::Ipv4Addr>().expect("an address").into());
        }
        match n % 3 {
            0 => forged.metadata.id = forged.metadata.id.wrapping_add(n + 1),
            1 => {
                for query in &mut forged.queries {
                    query.set_name("other.example.com.".parse().expect("a name"));
                }
            }
            _ => {
                question.send_from_another_port(&forged.to_vec().expect("a message"));
                continue;
            }
        }
        replies.push(forged.to_vec().expect("a message"));
    }
    replies.push(usual);
    replies
}

/// As many keys and signatures with one key tag as a message holds, and no address.
fn key_flood(question: Question<'_>) -> Vec<Vec<u8>> {
    let Some(mut reply) = question.usual.as_deref().and_then(|wire| Message::from_vec(wire).ok()) else {
        return Vec::new();
    };
    if !question.over_tcp {
        reply.answers.clear();
        reply.metadata.truncation = true;
        return vec![reply.to_vec().expect("a message")];
    }
    let Some(owner) = reply.queries.first().map(|query| query.name().clone()) else { return Vec::new() };
    reply.answers.clear();
    for n in 0..500_u16 {
        let [high, low] = n.to_be_bytes();
        for (kind, rdata) in [
            (RecordType::from(48), vec![1, 1, 3, 13, high, low, low, high]),
            (
                RecordType::from(46),
                [
                    &[0, 1, 13, 2, 0, 0, 0, 60, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0][..],
                    &[high, low].repeat(8),
                ]
                .concat(),
            ),
        ] {
            reply.add_answer(Record::from_rdata(
                owner.clone(),
                60,
                RData::Unknown { code: kind, rdata: NULL::with(rdata) },
            ));
        }
    }
    vec![reply.to_vec().expect("a message")]
}

/// One long-form rule in the making.
#[derive(Default)]
struct Rule {
    ports: BTreeSet<String>,
    lines: Vec<String>,
}

fn apply_policy(scene: SceneBuilder, case: &Case, dir: &Path) -> Result<SceneBuilder> {
    if matches!(case.input, Input::Policy { .. } | Input::PolicyWrite { .. }) {
        return Ok(scene);
    }
    let policy = &case.policy;
    let strings = |key: &str| -> Vec<String> {
        let list = policy.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|entry| entry.as_str().map(str::to_owned)).collect()
    };
    for key in policy.as_object().into_iter().flat_map(|map| map.keys()) {
        const KNOWN: &[&str] = &[
            "allow",
            "deny",
            "default",
            "rules",
            "intercept",
            "no_intercept",
            "raw",
            "allow_private",
            "tls",
            "dns",
            "nat64_prefixes",
            "gateway_addrs",
            "inject",
            "transparent",
            "gateway_env",
            "sandbox",
            "other",
        ];
        if !KNOWN.contains(&key.as_str()) {
            return Err(Unsupported(format!("policy key {key}")));
        }
    }
    let mut plain = strings("allow");
    let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
    // A long form stands for its host instead of the plain entry, with that entry's ports.
    let mut lengthen = |plain: &mut Vec<String>, host: &str, line: String| {
        let rule = rules.entry(host.to_owned()).or_default();
        plain.retain(|entry| {
            let (name, ports) = split(entry);
            if name == host {
                rule.ports.extend(ports.split(',').map(str::to_owned));
            }
            name != host
        });
        rule.lines.push(line);
    };
    for rule in policy.get("rules").and_then(Value::as_array).into_iter().flatten() {
        let host = rule["host"].as_str().unwrap_or_default();
        for (key, value) in rule.as_object().into_iter().flatten().filter(|(key, _)| *key != "host") {
            lengthen(&mut plain, host, format!("{key} = {value}"));
        }
    }
    for entry in strings("intercept") {
        lengthen(&mut plain, split(&entry).0, "inspect = true".into());
    }
    for entry in strings("raw") {
        lengthen(&mut plain, split(&entry).0, "raw = true".into());
    }
    if let Some(ech) = policy.pointer("/tls/ech").and_then(Value::as_str) {
        for entry in plain.clone() {
            lengthen(&mut plain, split(&entry).0, format!("ech = {ech:?}"));
        }
    }
    for (host, headers) in policy.get("inject").and_then(Value::as_object).into_iter().flatten() {
        for (header, value) in headers.as_object().into_iter().flatten() {
            let file = dir.join(format!("secret-{header}"));
            fs::write(&file, fill_in(value.as_str().unwrap_or_default()))
                .expect("a file in the test's folder");
            lengthen(
                &mut plain,
                host,
                format!("inject = [{{ header = {header:?}, value_file = {file:?} }}]"),
            );
        }
    }
    // Types are opened beside what the plain entry opens, by a rule of their own.
    for (host, types) in policy.pointer("/dns/types").and_then(Value::as_object).into_iter().flatten() {
        let entries = plain.iter().map(|entry| split(entry)).filter(|(name, _)| name == host);
        let rule = rules.entry(host.clone()).or_default();
        rule.ports.extend(entries.map(|(_, ports)| ports.to_owned()));
        rule.lines.push(format!("qtypes = {types}"));
    }
    let mut internals = String::new();
    let mut internal_names = Vec::new();
    for (host, addresses) in policy.get("allow_private").and_then(Value::as_object).into_iter().flatten() {
        let ports: Vec<String> =
            plain.iter().filter(|entry| split(entry).0 == host).map(|entry| split(entry).1.into()).collect();
        plain.retain(|entry| split(entry).0 != host);
        let name = format!("internal-{}", internal_names.len());
        writeln!(
            internals,
            "[internal.{name}]\nhost = {host:?}\naddresses = {addresses}\nports = [{}]\n",
            ports.join(", ")
        )
        .expect("a string");
        internal_names.push(name);
    }

    let mut toml = format!("[policy.case]\nallow = {plain:?}\ndeny = {:?}\n", strings("deny"));
    for (n, (host, rule)) in rules.into_iter().enumerate() {
        writeln!(toml, "\n[[policy.case.rule]]\nid = \"rule-{n}\"\nhost = {host:?}").expect("a string");
        if !rule.ports.is_empty() {
            let ports = Vec::from_iter(rule.ports);
            writeln!(toml, "ports = [{}]", ports.join(", ")).expect("a string");
        }
        writeln!(toml, "{}", rule.lines.join("\n")).expect("a string");
    }
    if policy.get("default").and_then(Value::as_str) == Some("allow") {
        toml += "\n[[policy.case.rule]]\nid = \"default\"\nhost = \"*\"\nports = \"*\"\nbroad = true\n";
    }
    let name = policy.get("sandbox").and_then(Value::as_str).unwrap_or("s1");
    let others = policy.get("other").and_then(Value::as_object);
    let identify = |name| if others.is_some() { token_of(name) } else { Ok("{ default = true }".to_owned()) };
    write!(
        toml,
        "\n{internals}[sandbox.{name}]\npolicies = [\"case\"]\ninternal = {internal_names:?}\nidentify = [{}]\n",
        identify(name)?
    )
    .expect("a string");
    // The cases go fast; only the limit on new names is what one of them is about.
    toml += &UNLIMITED.replace("s1", name);
    for (other, its) in others.into_iter().flatten() {
        write!(
            toml,
            "\n[policy.of-{other}]\nallow = {}\n[sandbox.{other}]\npolicies = [\"of-{other}\"]\nidentify = [{}]\n",
            its["allow"],
            token_of(other)?
        )
        .expect("a string");
    }

    let (own, nat64) = (strings("gateway_addrs"), strings("nat64_prefixes"));
    let mut scene = scene.policy(&toml).configure(|config| {
        config.own.extend(own);
        config.nat64.extend(nat64);
    });
    for (path, content) in policy.get("gateway_env").and_then(Value::as_object).into_iter().flatten() {
        let shows = dir.join(path.replace('/', "_"));
        let mut content = content.as_str().unwrap_or_default().to_owned();
        if path == "/etc/resolv.conf" {
            // The file is the gateway's upstream then; the corpus names only what it adds.
            content += "nameserver 198.51.100.53\n";
            scene = scene.configure(|config| config.upstreams = vec!["system".into()]);
        }
        fs::write(&shows, content).expect("a file in the test's folder");
        scene = scene.host_file(HostFile { at: path.into(), shows });
    }
    Ok(scene)
}

/// How a sandbox is known where a case has several: by the token that `$S1` and `$S2` present.
fn token_of(sandbox: &str) -> Result<String> {
    let hash = match sandbox {
        "s1" => "3fb44e6c4bef5d50ae1c497f6c17bc61a7aa3a9e919dd27236f6218d8c523dc3",
        "s2" => "0c5bb086ed2c282b87c8ad61d558a7c2cf14a47cb4759330be202040d56981cb",
        other => return Err(Unsupported(format!("the token of sandbox {other}"))),
    };
    Ok(format!("{{ token_sha256 = {hash:?} }}"))
}

/// The host of an entry and its ports; a bare host means 443.
fn split(entry: &str) -> (&str, &str) {
    match entry.rsplit_once(':') {
        Some((host, ports)) if !ports.contains(']') => (host, ports),
        _ => (entry, "443"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml_of(policy: Value) -> String {
        let case: Case = serde_json::from_value(serde_json::json!({
            "id": "x", "layer": "http", "title": "t", "policy": policy, "source": "", "severity": "low",
            "input": {"kind": "tcp", "to": "proxy", "send": []}, "expect": {"verdict": "deny"},
        }))
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        scene(&case, &Arc::new(TestAuthority::new()), dir.path())
            .map_err(|Unsupported(why)| why)
            .unwrap()
            .policy_text()
    }

    #[test]
    fn a_long_form_replaces_the_plain_entry_and_takes_its_ports() {
        let toml = toml_of(serde_json::json!({
            "allow": ["web.example.com:80", "api.example.com:443"],
            "rules": [{"host": "web.example.com", "methods": ["GET"]}],
        }));
        assert!(toml.contains(r#"allow = ["api.example.com:443"]"#), "{toml}");
        assert!(toml.contains("host = \"web.example.com\"\nports = [80]\nmethods = [\"GET\"]"), "{toml}");
    }

    #[test]
    fn a_private_range_becomes_an_internal_of_that_name_alone() {
        let toml = toml_of(serde_json::json!({
            "allow": ["a.test:5000", "api.example.com:443"], "allow_private": {"a.test": ["10.20.0.0/16"]},
        }));
        assert!(toml.contains("host = \"a.test\"\naddresses = [\"10.20.0.0/16\"]\nports = [5000]"), "{toml}");
        assert!(toml.contains(r#"internal = ["internal-0"]"#), "{toml}");
    }

    #[test]
    fn a_policy_key_that_nobody_maps_is_not_passed_over() {
        let case: Case = serde_json::from_value(serde_json::json!({
            "id": "x", "layer": "http", "title": "t", "policy": {"colour": "red"}, "source": "", "severity": "low",
            "input": {"kind": "tcp", "to": "proxy", "send": []}, "expect": {"verdict": "deny"},
        }))
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        assert!(scene(&case, &Arc::new(TestAuthority::new()), dir.path()).is_err());
    }
}
