//! The config of one `tidegate run`: a file's, the command line's, or both, read by the code that reads every config.

use std::path::Path;

use policy::file::{Document, Mistake};
use policy::{LocalAddresses, SandboxId, Timestamp};

use super::{Beside, Config, ConfigError, files, parse};

/// What the command line says of the policy.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// `--sandbox`
    pub sandbox: Option<String>,
    /// `--policy`
    pub policies: Vec<String>,
    /// `--registry`
    pub registries: Vec<String>,
    /// `--allow`
    pub allow: Vec<String>,
    /// `--deny`
    pub deny: Vec<String>,
    /// `--learn`
    pub learn: bool,
}

/// The sandbox of a run that names none.
const UNNAMED: &str = "run";

/// The policy that the entries of a command line make.
const POLICY: &str = "command-line";

/// What mistakes there are reported as coming from, until each gets its own argument.
const COMMAND_LINE: &str = "the command line";

/// A day, in nanoseconds: as long as learn mode may be.
const LONGEST_LEARNING: u64 = 24 * 60 * 60 * 1_000_000_000;

impl Invocation {
    /// Whether it names something that only a config file has.
    #[must_use]
    pub const fn needs_a_file(&self) -> bool {
        self.sandbox.is_some() || !self.policies.is_empty() || !self.registries.is_empty()
    }
}

/// Reads the config at `path`, where there is one, with what the command line adds; tells whose the run is.
///
/// # Errors
/// Every mistake; one in an argument names the argument.
pub fn load_for(
    path: Option<&Path>,
    invocation: &Invocation,
    now: Timestamp,
    local: &LocalAddresses,
) -> Result<(Config, SandboxId), ConfigError> {
    let mut documents = match path {
        Some(path) => files::read(path).map_err(ConfigError::Mistakes)?,
        None => Vec::new(),
    };
    let entries = Entries::new(invocation);
    documents.extend(entries.document.iter().cloned());
    let name = invocation.sandbox.as_deref().unwrap_or(UNNAMED);
    let sandbox = SandboxId::parse(name).ok_or_else(|| {
        let what = "it is no name for a sandbox";
        let hint = "1 to 64 characters of a-z A-Z 0-9 . _ -, starting with a letter or a digit";
        ConfigError::Mistakes(vec![Mistake::of_file(argument("--sandbox", name), what, hint)])
    })?;
    let own = entries.document.is_some().then_some(POLICY);
    let added = policy::file::Invocation {
        sandbox: sandbox.clone(),
        exists: path.map(|_| invocation.sandbox.is_some()),
        policies: invocation.policies.iter().map(String::as_str).chain(own).map(Into::into).collect(),
        learn: invocation.learn.then(|| now.plus_nanos(LONGEST_LEARNING)),
    };
    let config = parse(&documents, now, local, &Beside::default(), Some(&added));
    let config = config.map_err(|mistakes| {
        ConfigError::Mistakes(mistakes.into_iter().map(|mistake| entries.point(mistake)).collect())
    })?;
    Ok((Config { at: path.map(Path::to_owned), ..config }, sandbox))
}

/// The entries of the command line as a config file, a line each.
struct Entries {
    document: Option<Document>,
    /// The argument behind each line.
    lines: Vec<Option<String>>,
}

impl Entries {
    fn new(invocation: &Invocation) -> Self {
        let lists = [
            ("allow", "--allow", &invocation.allow),
            ("deny", "--deny", &invocation.deny),
            ("registries", "--registry", &invocation.registries),
        ];
        let mut text = format!("[policy.{POLICY}]\n");
        let mut lines = vec![None];
        for (key, option, values) in lists.into_iter().filter(|(.., values)| !values.is_empty()) {
            text.push_str(&format!("{key} = [\n"));
            lines.push(None);
            for value in values {
                text.push_str(&format!("{},\n", quoted(value)));
                lines.push(Some(argument(option, value)));
            }
            text.push_str("]\n");
            lines.push(None);
        }
        // It is UTF-8: it was made of strings.
        let document = if lines.len() > 1 { Document::new(COMMAND_LINE, text.as_bytes()).ok() } else { None };
        Self { document, lines }
    }

    /// Names the argument in which a mistake is.
    fn point(&self, mistake: Mistake) -> Mistake {
        if &*mistake.file != COMMAND_LINE {
            return mistake;
        }
        let at = usize::try_from(mistake.line).ok().and_then(|line| line.checked_sub(1));
        match at.and_then(|at| self.lines.get(at)).and_then(Option::as_ref) {
            Some(argument) => Mistake::of_file(argument.as_str(), mistake.what, mistake.hint),
            None => Mistake::of_file(COMMAND_LINE, mistake.what, mistake.hint),
        }
    }
}

fn argument(option: &str, value: &str) -> String {
    format!("{option} {}", value.escape_debug())
}

/// A basic string of TOML 1.0.
fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            _ if letter.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => text.push(letter),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn load(file: Option<&str>, invocation: &Invocation) -> Result<(Config, SandboxId), Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tidegate.toml");
        if let Some(text) = file {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let path = file.map(|_| path.as_path());
        match load_for(path, invocation, NOW, &LocalAddresses::default()) {
            Ok(loaded) => Ok(loaded),
            Err(ConfigError::Mistakes(all)) => Err(all.iter().map(ToString::to_string).collect()),
            Err(other) => Err(vec![other.to_string()]),
        }
    }

    fn sets(loaded: &(Config, SandboxId)) -> Vec<String> {
        let sandbox = loaded.0.policy.sandbox(&loaded.1).expect("the sandbox of the run");
        let rules = sandbox.sets.iter().flat_map(|set| set.rules());
        rules.map(|rule| rule.host().to_string()).collect()
    }

    #[test]
    fn nothing_given_allows_nothing() {
        let loaded = load(None, &Invocation::default()).unwrap();
        assert_eq!((loaded.1.as_str(), sets(&loaded)), ("run", vec![]));
    }

    #[test]
    fn the_command_line_alone_is_a_policy() {
        let invocation = Invocation {
            allow: words(&["a.example", "b.example:22"]),
            deny: words(&["c.example"]),
            ..Invocation::default()
        };
        assert_eq!(sets(&load(None, &invocation).unwrap()), ["a.example", "b.example", "c.example"]);
    }

    #[test]
    fn a_mistake_names_its_argument() {
        let invocation = Invocation {
            allow: words(&["a.example", "https://b.example/", "\u{1b}[2J\"\\"]),
            deny: words(&[""]),
            ..Invocation::default()
        };
        let mistakes = load(None, &invocation).map(|_| ()).unwrap_err();
        let starts = ["--allow https://b.example/: ", "--allow \\u{1b}[2J\\\"\\\\: ", "--deny : "];
        assert_eq!(mistakes.len(), 3, "{mistakes:#?}");
        for (mistake, start) in mistakes.iter().zip(starts) {
            assert!(mistake.starts_with(start), "{mistake}");
        }
    }

    const FILE: &str = "[policy.base]\nallow = [\"a.example\"]\n[policy.more]\nallow = [\"b.example\"]\n\
                        [sandbox.agent]\npolicies = [\"base\"]\n";

    #[test]
    fn a_sandbox_of_the_file_gets_what_is_added() {
        let invocation = Invocation {
            sandbox: Some("agent".into()),
            policies: words(&["more", "base"]),
            allow: words(&["c.example"]),
            ..Invocation::default()
        };
        let loaded = load(Some(FILE), &invocation).unwrap();
        assert_eq!(sets(&loaded), ["a.example", "b.example", "c.example"]);
    }

    #[test]
    fn policies_of_the_file_make_a_sandbox_of_their_own() {
        let invocation = Invocation { policies: words(&["more"]), ..Invocation::default() };
        let loaded = load(Some(FILE), &invocation).unwrap();
        assert_eq!((loaded.1.as_str(), sets(&loaded)), ("run", vec!["b.example".to_owned()]));
    }

    #[test]
    fn names_that_the_file_has_not_are_mistakes() {
        for (invocation, expected) in [
            (
                Invocation { sandbox: Some("agnt".into()), ..Invocation::default() },
                "--sandbox agnt: there is no [sandbox.agnt] — did you mean `agent`?",
            ),
            (
                Invocation { policies: words(&["bas"]), ..Invocation::default() },
                "--policy bas: there is no [policy.bas] — did you mean `base`?",
            ),
        ] {
            assert_eq!(load(Some(FILE), &invocation).map(|_| ()).unwrap_err(), [expected]);
        }
        let unnamed = load(Some("[sandbox.run]\n"), &Invocation::default()).map(|_| ()).unwrap_err();
        assert!(unnamed[0].starts_with("--sandbox: the config has a [sandbox.run]"), "{unnamed:?}");
        let odd = Invocation { sandbox: Some("a b".into()), ..Invocation::default() };
        assert!(load(None, &odd).map(|_| ()).unwrap_err()[0].starts_with("--sandbox a b: it is no name"));
    }

    #[test]
    fn learning_ends_within_a_day() {
        let invocation = Invocation { learn: true, ..Invocation::default() };
        let (config, id) = load(None, &invocation).unwrap();
        let sandbox = config.policy.sandbox(&id).unwrap();
        assert_eq!(sandbox.mode, policy::Mode::Learn { until: NOW.plus_nanos(LONGEST_LEARNING) });
    }
}
