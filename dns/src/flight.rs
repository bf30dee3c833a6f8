//! Identical questions under way at once share one upstream exchange.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Notify;

use crate::cache::Key;

/// The exchanges under way, each with its outcome `T`.
#[derive(Debug)]
pub(crate) struct Flights<T>(Mutex<HashMap<Key, Arc<Flight<T>>>>);

#[derive(Debug)]
struct Flight<T> {
    /// `None` where the lead gave up.
    outcome: OnceLock<Option<T>>,
    over: Notify,
}

/// What the caller of [`Flights::join`] is to do.
pub(crate) enum Role<'f, T> {
    /// Nobody asks yet: ask, and land the outcome.
    Lead(Lead<'f, T>),
    /// Somebody asks already.
    Follow(Follow<T>),
}

/// The duty to end an exchange. Dropped without an outcome, it lets the followers go and ask for themselves.
pub(crate) struct Lead<'f, T> {
    flights: &'f Flights<T>,
    key: Key,
    flight: Arc<Flight<T>>,
}

/// The wait for somebody else's exchange.
pub(crate) struct Follow<T>(Arc<Flight<T>>);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Flights<T> {
    pub(crate) fn join(&self, key: &Key) -> Role<'_, T> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = under_way.get(key) {
            return Role::Follow(Follow(Arc::clone(flight)));
        }
        let flight = Arc::new(Flight { outcome: OnceLock::new(), over: Notify::new() });
        under_way.insert(key.clone(), Arc::clone(&flight));
        Role::Lead(Lead { flights: self, key: key.clone(), flight })
    }
}

impl<T> Lead<'_, T> {
    /// Ends the exchange with its outcome.
    pub(crate) fn land(self, outcome: T) {
        let _ = self.flight.outcome.set(Some(outcome));
    }
}

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        // Nothing happens where an outcome landed.
        let _ = self.flight.outcome.set(None);
        self.flight.over.notify_waiters();
    }
}

impl<T: Clone> Follow<T> {
    /// The outcome; `None` where the lead gave up.
    pub(crate) async fn outcome(self) -> Option<T> {
        let mut over = std::pin::pin!(self.0.over.notified());
        // Registered before looking, so that an end between the two is not missed.
        over.as_mut().enable();
        if self.0.outcome.get().is_none() {
            over.await;
        }
        self.0.outcome.get().cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use policy::{Hostname, QType};

    use super::*;

    fn key() -> Key {
        Key::shared(Hostname::parse("a.example").unwrap(), QType::A)
    }

    #[tokio::test]
    async fn followers_get_the_outcome_of_the_lead() {
        let flights = Flights::default();
        let Role::Lead(lead) = flights.join(&key()) else { panic!("the first leads") };
        let Role::Follow(early) = flights.join(&key()) else { panic!("the second follows") };
        let Role::Follow(late) = flights.join(&key()) else { panic!("the third follows") };
        let early = tokio::spawn(early.outcome());
        tokio::task::yield_now().await;
        lead.land(7);
        assert_eq!((early.await.unwrap(), late.outcome().await), (Some(7), Some(7)));
        assert!(matches!(flights.join(&key()), Role::Lead(_)), "the next one asks anew");
    }

    #[tokio::test]
    async fn a_lead_that_gives_up_lets_the_followers_go() {
        let flights: Flights<u8> = Flights::default();
        let Role::Lead(lead) = flights.join(&key()) else { panic!("the first leads") };
        let Role::Follow(follow) = flights.join(&key()) else { panic!("the second follows") };
        drop(lead);
        assert_eq!(follow.outcome().await, None);
    }
}
