//! Plans as values: what is asked for, and what becomes of the mount tree.

use std::collections::BTreeMap;

use super::*;

/// A machine of a few paths; a folder ends in a slash here, a link is `from -> to`.
struct Stage {
    kinds: BTreeMap<PathBuf, Kind>,
    links: BTreeMap<PathBuf, PathBuf>,
    sockets: Vec<PathBuf>,
}

impl Machine for Stage {
    fn kind(&self, path: &Path) -> Option<Kind> {
        self.kinds.get(path).copied()
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        let to = self.links.get(path).map_or(path, PathBuf::as_path);
        self.kinds.contains_key(to).then(|| to.to_owned())
    }

    fn sockets(&self) -> Vec<PathBuf> {
        self.sockets.clone()
    }
}

fn machine(more: &[&str], sockets: &[&str]) -> Stage {
    let usual = ["/tmp/", "/var/tmp/", "/run/", "/dev/shm/", "/home/u/", "/home/u/project/", "/etc/"];
    let (mut kinds, mut links) = (BTreeMap::new(), BTreeMap::from([("/var/run".into(), "/run".into())]));
    for text in usual.iter().chain(more) {
        if let Some((from, to)) = text.split_once(" -> ") {
            links.insert(from.into(), to.into());
        } else {
            let kind = if text.ends_with('/') { Kind::Folder } else { Kind::File };
            kinds.insert(PathBuf::from(text.trim_end_matches('/')), kind);
        }
    }
    Stage { kinds, links, sockets: sockets.iter().map(PathBuf::from).collect() }
}

fn wishes(directory: &str) -> Wishes {
    Wishes {
        files: FileSystem::Workspace,
        directory: directory.into(),
        home: Some("/home/u".into()),
        other_home: None,
        runtime: None,
        write: Vec::new(),
        read: Vec::new(),
        hide: Vec::new(),
        sockets: Vec::new(),
        own: Own::default(),
    }
}

fn paths(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

/// A plan, a line a step.
fn planned(wishes: &Wishes, machine: &Stage) -> Vec<String> {
    let view = wishes.plan(machine).unwrap();
    let shown = view.steps.iter().map(|step| match step {
        Step::ReadOnly => "read-only /".to_owned(),
        Step::Devices => "devices /dev".to_owned(),
        Step::Private { at, mode } => format!("private {} {mode:o}", at.display()),
        Step::Home { at, without } => {
            let without: Vec<_> = without
                .iter()
                .filter(|path| machine.kinds.contains_key(*path))
                .map(|path| path.display().to_string())
                .collect();
            format!("home {} without [{}]", at.display(), without.join(" "))
        }
        Step::Open { at, access } => format!("open {} {access:?}", at.display()),
        Step::Hide { at, kind } => format!("hide {} {kind:?}", at.display()),
        Step::Pin { at } => format!("pin {}", at.display()),
    });
    shown.collect()
}

/// Seen with a socket that a program had bound through a link: every run ended with "Too many levels of symbolic links",
/// since what is covered is found without following any.
#[test]
fn a_socket_is_hidden_where_it_lies_by_whatever_path_it_was_bound() {
    let machine = machine(
        &["/srv/app/", "/srv/app/a.sock", "/srv/link/a.sock -> /srv/app/a.sock"],
        &["/srv/link/a.sock", "/srv/app/a.sock", "/srv/gone.sock"],
    );
    let planned = planned(&wishes("/home/u/project"), &machine);
    let hidden: Vec<_> = planned.iter().filter(|step| step.contains("sock")).collect();
    assert_eq!(hidden, ["hide /srv/app/a.sock File"]);
}

/// Seen with HOME unset, as a service has it, and with HOME set to another folder: ~/.ssh could be read.
#[test]
fn credentials_are_hidden_whatever_home_the_environment_names() {
    let machine = machine(&["/home/u/.ssh/", "/srv/home/"], &[]);
    let (mut elsewhere, mut nowhere) = (wishes("/home/u/project"), wishes("/home/u/project"));
    (elsewhere.home, elsewhere.other_home) = (Some("/srv/home".into()), Some("/home/u".into()));
    (nowhere.home, nowhere.other_home) = (None, Some("/home/u".into()));
    for wishes in [elsewhere, nowhere] {
        assert!(planned(&wishes, &machine).contains(&"hide /home/u/.ssh Folder".to_owned()));
    }
}

#[test]
fn by_default_only_the_working_directory_is_written() {
    let machine = machine(&["/home/u/.ssh/", "/home/u/.config/gh/"], &[]);
    let mut wishes = wishes("/home/u/project");
    wishes.runtime = Some("/run/user/1000".into());
    assert_eq!(
        planned(&wishes, &machine),
        [
            "read-only /",
            "devices /dev",
            "private /tmp 1777",
            "private /var/tmp 1777",
            "private /run 755",
            "private /run/user/1000 700",
            "home /home/u without [/home/u/.config/gh /home/u/.ssh]",
            "open /home/u/project Write",
        ]
    );
}

#[test]
fn options_open_and_hide_the_inner_after_the_outer() {
    let machine = machine(&["/srv/data/", "/srv/data/keys/", "/srv/data/keys/one", "/tmp/in/"], &[]);
    let mut wishes = wishes("/home/u/project");
    wishes.write = paths(&["/tmp/in"]);
    wishes.read = paths(&["/srv/data/keys/one"]);
    wishes.hide = paths(&["/srv/data/keys"]);
    let plan = planned(&wishes, &machine);
    assert_eq!(
        plan[6..],
        [
            "open /tmp/in Write",
            "open /home/u/project Write",
            "hide /srv/data/keys Folder",
            "open /srv/data/keys/one Read",
        ]
    );
}

#[test]
fn sockets_of_the_host_are_hidden_where_they_could_be_connected_to() {
    let sockets =
        ["/var/lib/mysql/mysql.sock", "/run/docker.sock", "/home/u/.agent.sock", "/home/u/project/dev.sock"];
    let machine = machine(&sockets, &sockets);
    let mut wishes = wishes("/home/u/project");
    // Those in /run are gone, and those of the home directory answer nobody through the overlay.
    assert_eq!(
        planned(&wishes, &machine)[7..],
        ["hide /home/u/project/dev.sock File", "hide /var/lib/mysql/mysql.sock File"]
    );
    wishes.sockets = paths(&["/run/docker.sock", "/home/u/project/dev.sock"]);
    assert_eq!(
        planned(&wishes, &machine)[6..],
        [
            "open /run/docker.sock Read",
            "open /home/u/project Write",
            "open /home/u/project/dev.sock Read",
            "hide /var/lib/mysql/mysql.sock File"
        ]
    );
}

#[test]
fn tidegates_own_files_are_hidden_and_cannot_be_moved_away() {
    let machine =
        machine(&["/home/u/project/a/", "/home/u/project/a/b/", "/home/u/project/a/b/tidegate.toml"], &[]);
    let mut wishes = wishes("/home/u/project");
    wishes.own.hidden = paths(&["/home/u/project/a/b/tidegate.toml", "/etc/tidegate"]);
    assert_eq!(
        planned(&wishes, &machine)[7..],
        ["pin /home/u/project/a", "pin /home/u/project/a/b", "hide /home/u/project/a/b/tidegate.toml File"]
    );
    // Whatever was asked for.
    wishes.write = paths(&["/home/u/project/a/b/tidegate.toml"]);
    let plan = planned(&wishes, &machine);
    assert_eq!(plan.last().unwrap(), "hide /home/u/project/a/b/tidegate.toml File");
}

#[test]
fn the_program_itself_is_not_written() {
    let machine = machine(&["/home/u/project/target/", "/home/u/project/target/tidegate"], &[]);
    let mut wishes = wishes("/home/u/project");
    wishes.own.programs = paths(&["/home/u/project/target/tidegate"]);
    assert_eq!(
        planned(&wishes, &machine)[7..],
        ["pin /home/u/project/target", "open /home/u/project/target/tidegate Read"]
    );
}

#[test]
fn a_place_where_a_config_would_be_found_is_not_given_away() {
    let stage = machine(&["/home/u/.config/"], &[]);
    let mut wishes = wishes("/home/u/.config");
    wishes.own.reserved = paths(&["/home/u/.config/tidegate/tidegate.toml"]);
    let path = PathBuf::from("/home/u/.config/tidegate/tidegate.toml");
    assert_eq!(wishes.plan(&stage), Err(ViewError::Reserved { path }));
    // In the home directory it would be thrown away.
    wishes.directory = "/home/u/project".into();
    assert!(wishes.plan(&stage).is_ok());
}

#[test]
fn credentials_stay_hidden_in_what_is_open_and_where_links_lead() {
    let stage =
        machine(&["/home/u/.config/", "/home/u/.config/gh/", "/srv/keys/", "/home/u/.ssh -> /srv/keys"], &[]);
    let plan = planned(&wishes("/home/u/.config"), &stage);
    assert_eq!(
        plan[6..],
        ["hide /srv/keys Folder", "open /home/u/.config Write", "hide /home/u/.config/gh Folder"]
    );
    let mut wishes = wishes("/home/u/.config/gh");
    let path = PathBuf::from("/home/u/.config/gh");
    assert_eq!(wishes.plan(&stage), Err(ViewError::InCredentials { path }));
    wishes.write = paths(&["/home/u/.config/gh"]);
    assert!(planned(&wishes, &stage).contains(&"open /home/u/.config/gh Write".to_owned()));
}

#[test]
fn folders_of_the_system_and_the_home_directory_are_not_the_workspace() {
    let stage = machine(&[], &[]);
    for directory in ["/", "/etc", "/etc/x", "/usr", "/home", "/home/u", "/proc/1"] {
        let view = wishes(directory).plan(&stage).unwrap();
        let opens = |step: &Step| matches!(step, Step::Open { .. });
        assert!(!view.steps.iter().any(opens), "{directory}");
        assert_eq!(view.notes.len(), 1, "{directory}");
    }
    for directory in ["/usr/src/app", "/var/www", "/srv", "/opt/x", "/tmp/x"] {
        let view = wishes(directory).plan(&stage).unwrap();
        let open = Step::Open { at: directory.into(), access: Access::Write };
        assert!(view.steps.contains(&open) && view.notes.is_empty(), "{directory}");
    }
}

#[test]
fn the_hosts_file_system_stays_but_for_sockets_and_tidegates_own() {
    let machine = machine(
        &["/etc/tidegate/", "/home/u/.ssh/", "/home/u/.agent.sock", "/home/u/t/", "/home/u/t/a.jsonl"],
        &["/home/u/.agent.sock"],
    );
    let mut wishes = wishes("/home/u/project");
    wishes.files = FileSystem::Host;
    wishes.own.hidden = paths(&["/etc/tidegate", "/home/u/t/a.jsonl"]);
    assert_eq!(
        planned(&wishes, &machine),
        [
            "private /tmp 1777",
            "private /var/tmp 1777",
            "private /run 755",
            "private /dev/shm 1777",
            "open /home/u/project Write",
            "hide /home/u/.agent.sock File",
            "pin /etc",
            "hide /etc/tidegate Folder",
            "pin /home",
            "pin /home/u",
            "pin /home/u/t",
            "hide /home/u/t/a.jsonl File",
        ]
    );
}

#[test]
fn what_is_named_and_not_there_is_told() {
    let mut wishes = wishes("/home/u/project");
    wishes.read = paths(&["/nowhere"]);
    let missing = ViewError::Missing { option: "--ro", path: "/nowhere".into() };
    assert_eq!(wishes.plan(&machine(&[], &[])), Err(missing));
}
