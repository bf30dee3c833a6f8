//! Scrubbing: what of an upstream's answer may be delivered to one sandbox, under the policy of this moment.

use std::net::IpAddr;

use policy::{Gate, Hostname, Port, QType, VettedAddrs};

use crate::answer::{Answer, Data};
use crate::reply::Writer;
use crate::service::Judge;
use crate::wire::write_name;

/// Text that a wildcard's name may send down in one answer: enough for a key, too little for a fast tunnel.
const MAX_WILDCARD_TEXT: usize = 512;

/// The gate's word on what stands in an answer besides addresses.
struct Gatekeeper<'g> {
    gate: &'g Gate,
    vetted: &'g VettedAddrs,
}

impl Judge for Gatekeeper<'_> {
    fn allows_target(&self, target: &Hostname) -> bool {
        self.gate.allows_target(self.vetted, target)
    }

    fn allows_port(&self, port: Port) -> bool {
        self.gate.allows_port(self.vetted, port)
    }

    fn allows_hint(&self, address: IpAddr) -> bool {
        self.gate.judge_hint(self.vetted, address).is_ok()
    }
}

/// The records to deliver, apart from addresses, and whether anything was taken out.
#[derive(Debug, Default)]
pub(crate) struct Scrubbed {
    pub(crate) records: Vec<Vec<u8>>,
    pub(crate) edited: bool,
}

impl Scrubbed {
    /// Judges every record of an answer that is not for addresses.
    pub(crate) fn new(answer: &Answer, gate: &Gate, vetted: &VettedAddrs, qtype: QType) -> Self {
        let keeper = Gatekeeper { gate, vetted };
        let mut all = Self::default();
        for data in &answer.data {
            match deliverable(data, &keeper) {
                Some((record, edited)) => {
                    all.edited |= edited;
                    all.records.push(record);
                }
                None => all.edited = true,
            }
        }
        if qtype == QType::TXT && !vetted.permit().is_exact() {
            let mut left = MAX_WILDCARD_TEXT;
            let before = all.records.len();
            all.records.retain(|record| match left.checked_sub(record.len()) {
                Some(rest) => {
                    left = rest;
                    true
                }
                None => false,
            });
            all.edited |= all.records.len() < before;
        }
        all
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>, qtype: QType, ttl: u32) {
        for record in &self.records {
            writer.data(qtype.0, ttl, record);
        }
    }
}

fn deliverable(data: &Data, judge: &impl Judge) -> Option<(Vec<u8>, bool)> {
    let mut out = Vec::new();
    match data {
        Data::Service(service) => return service.scrubbed(judge),
        // A rewriting expression yields whatever name it likes.
        Data::Pointer { rewrites: true, .. } => return None,
        Data::Pointer { fields, target: Some(target), .. } => {
            if !judge.allows_target(target) {
                return None;
            }
            out.extend_from_slice(fields);
            write_name(&mut out, target);
        }
        Data::Pointer { fields, target: None, .. } => {
            out.extend_from_slice(fields);
            out.push(0);
        }
        Data::Name(name) => write_name(&mut out, name),
        Data::Opaque(bytes) => out.extend_from_slice(bytes),
    }
    Some((out, false))
}

/// The names that the gate judges as a chain: those that aliases led through, and those that CNAME records say where
/// CNAME itself was asked for.
pub(crate) fn judged_chain(answer: &Answer, qtype: QType) -> Vec<Hostname> {
    let said = answer.data.iter().filter_map(|data| match data {
        Data::Name(name) if qtype == QType::CNAME => Some(name.clone()),
        _ => None,
    });
    answer.chain.iter().cloned().chain(said).collect()
}
