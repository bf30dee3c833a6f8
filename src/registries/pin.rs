//! From what was found to `[registry.X]` tables that a person can pin.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use policy::special::{AddressBook, AddressClass, canonical};
use policy::{LocalAddresses, Port};

use super::{Found, Reached};

/// A note is no longer than the config takes.
const LONGEST_NOTE: usize = 256;

/// A `[registry.X]` table.
#[derive(Debug, PartialEq)]
pub struct Pinned {
    /// Its name: the client's, with a number where one client needs several tables.
    pub name: String,
    /// `HOST`, or `HOST:PORT` where that is not [`Pinned::port`].
    pub hosts: Vec<String>,
    /// `ports`, where it is not 443.
    pub port: Option<u16>,
    /// Of a private mirror.
    pub addresses: Vec<IpNet>,
    /// Reading is all that these hosts are asked for, and over plain HTTP it can be seen.
    pub reads_only: bool,
    /// Where it was read from.
    pub from: String,
}

/// Puts the hosts of a client into tables, and says what no table can open. Hosts with private addresses and those that
/// speak plain HTTP have tables of their own: `addresses` and `methods` hold for a whole table.
#[must_use]
pub fn pin(found: &Found, local: &LocalAddresses) -> (Vec<Pinned>, Vec<String>) {
    let mut groups: Vec<(Kind, Vec<Reached>, BTreeSet<&str>)> = Vec::new();
    let mut notes = Vec::new();
    for index in &found.indexes {
        for host in &index.hosts {
            let kind = match Kind::of(host, local) {
                Ok(kind) => kind,
                Err(note) => {
                    notes.push(note);
                    continue;
                }
            };
            let at = groups.iter().position(|(known, ..)| *known == kind).unwrap_or_else(|| {
                groups.push((kind, Vec::new(), BTreeSet::new()));
                groups.len() - 1
            });
            if let Some((_, hosts, from)) = groups.get_mut(at) {
                from.insert(&index.from);
                if !hosts.iter().any(|known| known.url.destination() == host.url.destination()) {
                    hosts.push(host.clone());
                }
            }
        }
    }
    let tables = groups.into_iter().zip(1_u32..).map(|((kind, hosts, from), number)| {
        let name = if number == 1 { found.client.to_owned() } else { format!("{}-{number}", found.client) };
        table(name, kind, &hosts, from)
    });
    (tables.collect(), notes)
}

/// What parts the tables of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    plain: bool,
    private: bool,
}

impl Kind {
    fn of(host: &Reached, local: &LocalAddresses) -> Result<Self, String> {
        let plain = host.url.is_plain() && host.url.destination().port != Port::HTTPS;
        let class = host.address.map(|address| AddressBook::default().classify(address, local));
        let private = match class {
            None | Some(AddressClass::Public) => false,
            // A literal that a rule lists is opened whatever it is.
            Some(AddressClass::NotPublic) => host.url.destination().host.name().is_some(),
            Some(AddressClass::Gateway) => {
                return Err(format!(
                    "{} is this host: write an [internal.X] table with host_port for it",
                    host.url.destination()
                ));
            }
            Some(AddressClass::Metadata | AddressClass::Forbidden) => {
                return Err(format!("{} has an address that no rule opens", host.url.destination()));
            }
        };
        Ok(Self { plain, private })
    }
}

fn table(name: String, kind: Kind, hosts: &[Reached], from: BTreeSet<&str>) -> Pinned {
    let all_on_80 = hosts.iter().all(|host| host.url.destination().port == Port::HTTP);
    let port = if kind.plain && all_on_80 { Port::HTTP } else { Port::HTTPS };
    let entry = |host: &Reached| {
        let to = host.url.destination();
        if to.port == port { to.host.to_string() } else { to.to_string() }
    };
    let single = |address: IpAddr| IpNet::from(canonical(address));
    let mut addresses: Vec<_> =
        hosts.iter().filter(|_| kind.private).filter_map(|host| host.address.map(single)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let from = from.into_iter().collect::<Vec<_>>().join("; ");
    Pinned {
        name,
        hosts: hosts.iter().map(entry).collect(),
        port: (port != Port::HTTPS).then_some(port.get()),
        addresses,
        reads_only: kind.plain,
        from: from.chars().filter(|letter| !letter.is_control()).take(LONGEST_NOTE).collect(),
    }
}

/// As the config takes it.
impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
        writeln!(f, "[registry.{}]", self.name)?;
        writeln!(f, "hosts = [{}]", list(&mut self.hosts.iter().map(|host| quoted(host))))?;
        if let Some(port) = self.port {
            writeln!(f, "ports = [{port}]")?;
        }
        if !self.addresses.is_empty() {
            let nets = list(&mut self.addresses.iter().map(|net| quoted(&net.to_string())));
            writeln!(f, "addresses = [{nets}]")?;
        }
        if self.reads_only {
            writeln!(f, "methods = [\"GET\", \"HEAD\"]")?;
        }
        writeln!(f, "from = {}", quoted(&self.from))
    }
}

/// A TOML basic string: what JSON escapes, TOML reads (TOML 1.0, String).
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests;
