//! How many descriptors the process may have open, and so how many clients it can serve.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process opens for itself: listeners, upstreams of DNS, the audit, idle connections to origins, pipes.
const OWN: u64 = 256;

/// A client and what it is connected to.
const EACH: u64 = 2;

/// Asks for as many descriptors as the system gives (getrlimit(2): the soft limit may be raised to the hard one), and
/// says for how many clients they are.
pub(crate) fn clients() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Where it cannot be raised there are fewer clients.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most.saturating_sub(OWN.min(most / 2)) / EACH).unwrap_or(usize::MAX)
}
