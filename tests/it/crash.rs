//! The gateway is killed under load: what an origin saw is in the log.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Client, EndsClients, PROXY, Scene, UNLIMITED, eventually};

/// Each connection goes to an address of its own, so that each can be found in the log.
#[test]
fn after_kill_9_every_connection_that_an_origin_saw_has_its_line() {
    let policy = "[[policy.case.rule]]\nid = \"many\"\nhost = \"[2001:db8:cafe::/48]\"\nports = [8443]\nbroad = true\n\n\
                  [sandbox.s1]\npolicies = [\"case\"]\nidentify = [{ default = true }]\n";
    let policy = format!("{policy}{UNLIMITED}");
    let Some(mut scene) = Scene::new().policy(&policy).ports([8443]).start() else { return };
    let running = AtomicBool::new(true);
    let next = AtomicU64::new(1);
    thread::scope(|scope| {
        let _end = EndsClients(&running);
        for _ in 0..16 {
            scope.spawn(|| {
                while running.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Ok(mut client) = Client::try_connect(scene.lab(), PROXY.parse().unwrap()) else {
                        return;
                    };
                    let (high, low) = (number >> 16 & 0xffff, number & 0xffff);
                    let head = format!("CONNECT [2001:db8:cafe::a:{high:x}:{low:x}]:8443 HTTP/1.1\r\n\r\n");
                    client.send(head.as_bytes());
                    client.wait_for(0, b"\r\n\r\n");
                }
            });
        }
        eventually("load", || (next.load(Ordering::Relaxed) > 1000).then_some(()));
        scene.gateway().signal(Signal::KILL);
        eventually("connections fail", || {
            let failed = Client::try_connect(scene.lab(), PROXY.parse().unwrap()).is_err();
            failed.then_some(())
        });
        running.store(false, Ordering::Relaxed);
    });
    eventually("the gateway is gone", || (!scene.gateway_mut().alive()).then_some(()));
    let text = scene.gateway().audit_text();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(whole.len() + 1, text.len(), "the last line is torn: {:?}", &text[whole.len()..]);
    let logged: BTreeSet<IpAddr> = lines
        .iter()
        .filter(|line| line["event"] == "decision" && line["decision"] == "allow" && line["reason"].is_null())
        .map(|line| line["addr"].as_str().unwrap().parse().unwrap())
        .collect();
    // Only what a client could use counts: the origin may have accepted a connection whose 200 never left.
    let contacts = scene.contacts();
    assert!(contacts.len() > 500, "too few connections to tell: {}", contacts.len());
    let missing: Vec<_> =
        contacts.iter().map(|contact| contact.dialled.ip()).filter(|ip| !logged.contains(ip)).collect();
    // A connection that was dialled and not yet recorded when the gateway died carried no byte: it was never answered.
    let carried: Vec<_> = contacts
        .iter()
        .filter(|contact| missing.contains(&contact.dialled.ip()) && contact.total() > 0)
        .map(|contact| contact.dialled)
        .collect();
    assert_eq!(carried, Vec::new(), "connections that carried bytes have no line");
    assert!(missing.len() <= 16, "more than the connections in flight have no line: {missing:?}");
}
