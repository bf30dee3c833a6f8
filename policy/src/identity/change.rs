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

    /// Knows a sandbox no longer by an entry.
    pub(crate) fn remove(&mut self, id: &SandboxId, evidence: &Evidence) {
        let Evidence::All(keys) = evidence else {
            self.default.take_if(|default| default == id);
            return;
        };
        let is_it = |(other, held): &(SandboxId, Keys)| other == id && held == keys;
        if let Some(hash) = keys.token
            && let Some(owners) = self.tokens.get_mut(&hash)
        {
            owners.retain(|owner| !is_it(owner));
            if owners.is_empty() {
                self.tokens.remove(&hash);
            }
        }
        if let Some(name) = &keys.listener
            && let Some(reserved) = self.listeners.get_mut(name)
        {
            reserved.plain.retain(|entry| !is_it(entry));
            let of_tokens = self.tokens.values().flatten();
            let mut with_token =
                of_tokens.filter(|(_, keys)| keys.listener.as_ref() == Some(name)).peekable();
            reserved.takes_tokens = with_token.peek().is_some();
            reserved.sandboxes = with_token.chain(&reserved.plain).map(|(id, _)| id.clone()).collect();
            if reserved.sandboxes.is_empty() {
                self.listeners.remove(name);
            }
        }
        if let (None, None, Some(net)) = (&keys.token, &keys.listener, keys.source)
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
        if (keys.listener.is_none() || keys.token.is_some())
            && let Some(default) = &self.default
        {
            return Some(default);
        }
        // A token by itself overlaps nothing but itself. This is what ten thousand sandboxes have.
        if let Keys { token: Some(hash), listener: None, source: None, .. } = keys {
            return self.tokens.get(hash)?.iter().find(|(_, held)| held.overlap(keys)).map(|(id, _)| id);
        }
        self.entries().find(|(_, held)| held.overlap(keys)).map(|(id, _)| id)
    }

    /// Every entry but the default one.
    fn entries(&self) -> impl Iterator<Item = (&SandboxId, Keys)> {
        let by_token = self.tokens.values().flatten();
        let by_listener = self.listeners.values().flat_map(|reserved| &reserved.plain);
        let written = by_token.chain(by_listener).map(|(id, keys)| (id, keys.clone()));
        let by_source = self.sources.values().flat_map(SharedMap::iter);
        written.chain(by_source.map(|(net, id)| (id, Keys { source: Some(*net), ..Keys::default() })))
    }
}
