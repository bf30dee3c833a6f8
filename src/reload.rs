//! Reloading: a changed config is put in force whole, or not at all.
//!
//! The config is looked at four times a second and read when it has been the same for a second, so that a file that an
//! editor is still writing is not read. A bad, half-written or vanished config leaves the old policy in force and says
//! so in the log, the audit, a metric and on `/readyz`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use policy::Generation;
use policy::file::Mistake;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::app::Core;
use crate::audit::{By, Notice};
use crate::config::{self, Beside, Config, ConfigError, Fingerprint};
use crate::listeners;
use crate::logging::LogLevel;

/// How often the config is looked at: one stat(2).
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long it must stay the same before it is read.
const SETTLES_IN: Duration = Duration::from_secs(1);

/// Puts changed configs in force.
#[derive(Debug)]
pub struct Reloader {
    core: Core,
    path: PathBuf,
    log: LogLevel,
    /// What the tables that are read at the start only say.
    started_with: Config,
    /// What other files held when the config in force was read.
    beside: Beside,
    watched: Watched,
}

impl Reloader {
    /// Reloads the config at `path` for a gateway that was started with it. `seen` is what stood there before it was
    /// read for the start.
    pub(crate) fn new(
        core: Core,
        path: PathBuf,
        log: LogLevel,
        started_with: Config,
        seen: Option<Fingerprint>,
    ) -> Self {
        let beside = started_with.beside.clone();
        let seen = seen.map(|seen| seen.beside(beside.seen()));
        Self { core, path, log, started_with, beside, watched: Watched::new(seen) }
    }

    /// Waits until the config has changed and settled.
    pub async fn changed(&mut self) {
        loop {
            sleep(LOOK_EVERY).await;
            if self.watched.look(look_at_all(&self.path, &self.beside), Instant::now()) {
                return;
            }
        }
    }

    /// Reads the config and puts it in force, or says why not. `by` is who asked through the admin API.
    ///
    /// # Errors
    /// Why the old policy stays in force.
    pub async fn reload(&mut self, by: Option<&By>) -> Result<Generation, ConfigError> {
        let config_seen = look(&self.path);
        let seen = look_at_all(&self.path, &self.beside);
        let (path, local) = (self.path.clone(), self.core.gate.local_addresses());
        let before = self.beside.clone();
        let read =
            spawn_blocking(move || config::load_again(&path, dns::clock::now(), &local, &before)).await;
        // What changed while it was read is read again once it has settled.
        self.watched.read(seen);
        match read {
            Ok(Ok(config)) => {
                self.watched.read(config_seen.map(|seen| seen.beside(config.beside.seen())));
                // Its own listeners are those of the config that it started with, whatever [listen] says now.
                if let Some(port) = self.started_with.listen.taken(&config.host_ports) {
                    let why =
                        format!("host_port {port} is a listener of the gateway itself until it restarts");
                    return Err(self.fail(why, by));
                }
                match self.install(&config, by).await {
                    Ok(generation) => {
                        self.note_beside(&config);
                        Ok(generation)
                    }
                    Err(why) => Err(self.fail(why, by)),
                }
            }
            Ok(Err(error)) => {
                self.keep(&error, by);
                Err(error)
            }
            // It has panicked: the old policy stays, as after any other mistake.
            Err(error) => Err(self.fail(format!("reading it has failed: {error}"), by)),
        }
    }

    /// Puts in force what the TLS listeners are made of, where it is not what it was.
    async fn trust(&self, config: &Config) -> Result<(), String> {
        let (core, beside) = (&self.core, &config.beside);
        for (trust, tls) in [(&core.trust, &beside.tls), (&core.admin_trust, &beside.admin_tls)] {
            let (Some(trust), Some(tls)) = (trust, tls) else { continue };
            if Arc::ptr_eq(&trust.material(), &tls.material) {
                continue;
            }
            let (trust, material) = (Arc::clone(trust), Arc::clone(&tls.material));
            let replaced = spawn_blocking(move || trust.replace(&material)).await;
            replaced.map_err(|error| format!("judging the clients' certificates has failed: {error}"))?;
        }
        Ok(())
    }

    /// Notes what the other files held. A config that names no certificate any more waits for a restart, and so the one in
    /// use is followed on.
    fn note_beside(&mut self, config: &Config) {
        let Beside { lists, tls, admin_tls } = config.beside.clone();
        let tls = tls.or_else(|| self.beside.tls.take());
        let admin_tls = admin_tls.or_else(|| self.beside.admin_tls.take());
        self.beside = Beside { lists, tls, admin_tls };
    }

    async fn install(&self, config: &Config, by: Option<&By>) -> Result<Generation, String> {
        let core = &self.core;
        let sockets = config.doors(&self.started_with.listen);
        // The streams of what is not trusted any more end with the policy that follows.
        let (base, trust) = (Arc::clone(&config.policy), self.trust(config));
        let (generation, policy) = core.sandboxes.install(base, &sockets, trust).await?;
        core.roles.set(config.admin.clone());
        core.files.set(self.started_with.own_files().and(config.own_files()));
        if let Err(error) = listeners::admit(&self.started_with.listen, config) {
            tracing::error!(error = %crate::error_chain(&error), "some users may not reach the admin socket");
        }
        self.log.set(config.log);
        let now = dns::clock::now();
        core.metrics.reloaded(generation, &policy, now);
        core.status.generation(generation);
        let waits = config.needs_restart(&self.started_with);
        let detail = (!waits.is_empty()).then(|| {
            format!("changed [{}] needs a restart; until then the old one stays", waits.join("], ["))
        });
        if let Some(detail) = &detail {
            tracing::warn!("{detail}");
        }
        core.status.reloaded(true, now, detail);
        drop(core.audit.note(Notice::Reload { generation, error: None, by }));
        tracing::info!(%generation, "the config is in force");
        Ok(generation)
    }

    /// Keeps the old policy for a reason that no place in the config has.
    fn fail(&self, why: String, by: Option<&By>) -> ConfigError {
        let error = ConfigError::Mistakes(vec![Mistake::of_file(self.path.to_string_lossy(), why, "")]);
        self.keep(&error, by);
        error
    }

    fn keep(&self, error: &ConfigError, by: Option<&By>) {
        let core = &self.core;
        let generation = core.gate.generation();
        core.metrics.reload_failed();
        core.status.reloaded(false, dns::clock::now(), Some(error.brief()));
        drop(core.audit.note(Notice::Reload { generation, error: Some(&error.brief()), by }));
        tracing::error!(%generation, "the config is refused, the old policy stays in force:\n{error}");
    }
}

fn look(path: &Path) -> Option<Fingerprint> {
    Fingerprint::of(path).ok()
}

/// A config with the other files that it names.
fn look_at_all(path: &Path, beside: &Beside) -> Option<Fingerprint> {
    Some(look(path)?.beside(beside.look().iter()))
}

/// What is known of a config between looks; `None` stands for one that has vanished.
#[derive(Debug)]
struct Watched {
    read: Option<Fingerprint>,
    changing: Option<(Option<Fingerprint>, Instant)>,
}

impl Watched {
    const fn new(read: Option<Fingerprint>) -> Self {
        Self { read, changing: None }
    }

    /// Takes in what stands there now; tells whether it is to be read.
    fn look(&mut self, now: Option<Fingerprint>, at: Instant) -> bool {
        if now == self.read {
            self.changing = None;
            return false;
        }
        match &self.changing {
            Some((seen, since)) if *seen == now => at.duration_since(*since) >= SETTLES_IN,
            Some(_) | None => {
                self.changing = Some((now, at));
                false
            }
        }
    }

    /// Notes what stood there when it was read.
    fn read(&mut self, seen: Option<Fingerprint>) {
        self.read = seen;
        self.changing = None;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A config that is written in steps; looks come every quarter of a second.
    struct Desk {
        folder: tempfile::TempDir,
        watched: Watched,
        at: Instant,
    }

    impl Desk {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let desk = Self { folder, watched: Watched::new(None), at: Instant::now() };
            desk.write("[policy.a]\n");
            let seen = look(&desk.path());
            Self { watched: Watched::new(seen), ..desk }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("tidegate.toml")
        }

        fn write(&self, text: &str) {
            fs::write(self.path(), text).expect("a file");
        }

        /// How many looks it takes until the config is to be read; none within ten.
        fn looks(&mut self) -> Option<usize> {
            (1..=10).find(|_| {
                self.at += LOOK_EVERY;
                self.watched.look(look(&self.path()), self.at)
            })
        }
    }

    #[test]
    fn an_unchanged_config_is_not_read_again() {
        assert_eq!(Desk::new().looks(), None);
    }

    #[test]
    fn a_changed_config_is_read_once_it_has_been_the_same_for_a_second() {
        let mut desk = Desk::new();
        desk.write("[policy.a]\nallow = []\n");
        assert_eq!(desk.looks(), Some(5), "seen first, and four looks later");
        desk.watched.read(look(&desk.path()));
        assert_eq!(desk.looks(), None);
    }

    #[test]
    fn a_config_that_is_still_being_written_is_not_read() {
        let mut desk = Desk::new();
        for length in 1..20 {
            desk.write(&"#".repeat(length));
            desk.at += LOOK_EVERY;
            assert!(!desk.watched.look(look(&desk.path()), desk.at));
        }
        assert_eq!(desk.looks(), Some(4));
    }

    #[test]
    fn a_vanished_config_is_noticed_once_and_its_return_too() {
        let mut desk = Desk::new();
        fs::remove_file(desk.path()).expect("it was there");
        assert_eq!(desk.looks(), Some(5));
        desk.watched.read(None);
        assert_eq!(desk.looks(), None);
        desk.write("[policy.a]\n");
        assert_eq!(desk.looks(), Some(5));
    }

    #[test]
    fn a_change_that_is_taken_back_is_none() {
        let mut desk = Desk::new();
        let (aside, path) = (desk.folder.path().join("aside"), desk.path());
        fs::hard_link(&path, &aside).expect("a second name");
        fs::remove_file(&path).expect("it was there");
        desk.at += LOOK_EVERY;
        assert!(!desk.watched.look(look(&path), desk.at));
        let before = desk.watched.read.clone();
        fs::rename(&aside, &path).expect("it is back");
        desk.watched.read(look(&path));
        assert!(before.is_some());
        assert_eq!(desk.looks(), None);
    }
}
