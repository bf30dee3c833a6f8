//! Evidence that comes and goes while the rest stays.

use super::{Evidence, Identities, Keys};
use crate::sandbox::SandboxId;
use crate::shared::SharedMap;

impl Identities {
    /// Knows a sandbox by one more entry. It must overlap no other: [`Identities::overlapping`] tells.
    pub(crate) fn insert(&mut self, id: &SandboxId, evidence: &Evidence) {
        match evidence {
            Evidence::All(keys) => self.insert_keys(id, keys),
            Evidence::Default => self.default = Some(id.clone()),
        }
    }

    fn insert_keys(&mut self, id: &SandboxId, keys: &Keys) {
        self.with_token += usize::from(keys.token.is_some());
        self.with_certificate += usize::from(keys.asks_for_certificate());
        for presented in keys.presented() {
            self.presented.get_or_default(presented).push((id.clone(), keys.clone()));
        }
        if let Some(name) = &keys.listener {
            let reserved = self.listeners.get_or_default(name.clone());
            reserved.sandboxes.insert(id.clone());
            reserved.takes_tokens |= keys.token.is_some();
            if !keys.asks() {
                reserved.plain.push((id.clone(), keys.clone()));
            }
        } else if let (false, Some(net)) = (keys.asks(), keys.source) {
            self.sources.entry(net.prefix_len()).or_default().insert(net.trunc(), id.clone());
        }
    }

    /// Knows a sandbox no longer by an entry.
    pub(crate) fn remove(&mut self, id: &SandboxId, evidence: &Evidence) {
        let Evidence::All(keys) = evidence else {
            self.default.take_if(|default| default == id);
            return;
        };
        let is_it = |(other, held): &(SandboxId, Keys)| other == id && held == keys;
        self.with_token -= usize::from(keys.token.is_some());
        self.with_certificate -= usize::from(keys.asks_for_certificate());
        for presented in keys.presented() {
            if let Some(owners) = self.presented.get_mut(&presented) {
                owners.retain(|owner| !is_it(owner));
                if owners.is_empty() {
                    self.presented.remove(&presented);
                }
            }
        }
        if let Some(name) = &keys.listener
            && let Some(reserved) = self.listeners.get_mut(name)
        {
            reserved.plain.retain(|entry| !is_it(entry));
            let presenting = || {
                let all = self.presented.values().flatten();
                all.filter(|(_, keys)| keys.listener.as_ref() == Some(name))
            };
            reserved.takes_tokens = presenting().any(|(_, keys)| keys.token.is_some());
            reserved.sandboxes = presenting().chain(&reserved.plain).map(|(id, _)| id.clone()).collect();
            if reserved.sandboxes.is_empty() {
                self.listeners.remove(name);
            }
        }
        if let (false, None, Some(net)) = (keys.asks(), &keys.listener, keys.source)
            && let Some(nets) = self.sources.get_mut(&net.prefix_len())
        {
            if nets.get(&net.trunc()) == Some(id) {
                nets.remove(&net.trunc());
            }
            if nets.is_empty() {
                self.sources.remove(&net.prefix_len());
            }
        }
    }

    /// A sandbox as which some client would be known by an entry as well, or whose default would be somebody who only
    /// lacks what that entry asks for.
    pub(crate) fn overlapping(&self, evidence: &Evidence) -> Option<&SandboxId> {
        let Evidence::All(keys) = evidence else {
            let known = self.entries().map(|(id, _)| id).next();
            return self.default.as_ref().or(known);
        };
        // As at load: a stranger would pass for the default sandbox.
        if (keys.listener.is_none() || keys.asks())
            && let Some(default) = &self.default
        {
            return Some(default);
        }
        // What is presented by itself overlaps nothing but itself. This is what ten thousand sandboxes have.
        if keys.asks() && keys.listener.is_none() && keys.source.is_none() {
            let mut owners =
                keys.presented().filter_map(|presented| self.presented.get(&presented)).flatten();
            return owners.find(|(_, held)| held.overlap(keys)).map(|(id, _)| id);
        }
        self.entries().find(|(_, held)| held.overlap(keys)).map(|(id, _)| id)
    }

    /// Every entry but the default one.
    fn entries(&self) -> impl Iterator<Item = (&SandboxId, Keys)> {
        let presenting = self.presented.values().flatten();
        let by_listener = self.listeners.values().flat_map(|reserved| &reserved.plain);
        let written = presenting.chain(by_listener).map(|(id, keys)| (id, keys.clone()));
        let by_source = self.sources.values().flat_map(SharedMap::iter);
        written.chain(by_source.map(|(net, id)| (id, Keys { source: Some(*net), ..Keys::default() })))
    }
}
