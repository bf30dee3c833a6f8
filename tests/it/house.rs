//! The house rules: who may depend on whom, where the exceptions to the bans are, how large files are, and that the pages
//! of docs/ list what the code has.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    repository::{files, read, root},
    support::run_here,
};

/// The source files of the program, without those that hold tests only.
fn sources() -> Vec<PathBuf> {
    let all =
        ["src", "policy/src", "dns/src", "proxy/src"].into_iter().flat_map(|folder| files(folder, ".rs"));
    all.filter(|path| !path.ends_with("tests.rs")).collect()
}

/// A file without its tests.
fn code(path: &Path) -> String {
    let text = read(path);
    text.split("\n#[cfg(test)]\n").next().unwrap_or_default().to_owned()
}

fn dependencies(manifest: &str, table: &str) -> BTreeSet<String> {
    let manifest: toml::Table = read(manifest).parse().unwrap();
    manifest
        .get(table)
        .and_then(toml::Value::as_table)
        .into_iter()
        .flat_map(toml::Table::keys)
        .cloned()
        .collect()
}

#[test]
fn packages_form_a_chain() {
    for (package, never) in [
        (
            "policy",
            &["tokio", "hyper", "hickory-resolver", "tracing", "rustix", "prometheus", "dns", "proxy"][..],
        ),
        ("dns", &["hyper", "hyper-util", "toml", "proxy"]),
        ("proxy", &["toml", "clap"]),
    ] {
        let held = dependencies(&format!("{package}/Cargo.toml"), "dependencies");
        for other in never {
            assert!(!held.contains(*other), "{package} must not depend on {other}");
        }
    }
}

#[test]
fn imports_keep_to_their_place() {
    for (folder, never) in [
        (
            "policy/src",
            &["std::fs", "std::env", "std::process", "SystemTime::now", "Instant::now", "TcpStream"][..],
        ),
        ("dns/src", &["std::fs", "std::env", "tokio::signal"]),
        ("proxy/src", &["std::fs", "std::env", "tokio::signal", "toml::"]),
        ("src/netns", &["tokio", "hyper", "dns::", "proxy::"]),
    ] {
        for path in files(folder, ".rs").into_iter().filter(|path| !path.ends_with("tests.rs")) {
            let code = code(&path);
            for word in never {
                assert!(!code.contains(word), "{} uses {word}", path.display());
            }
        }
    }
}

/// The bans of clippy.toml hold everywhere but here, each with its reason in the file.
#[test]
fn exceptions_to_the_bans_are_where_they_are_known() {
    let known: BTreeSet<PathBuf> = [
        "dns/src/upstream/datagram.rs",
        "dns/src/upstream/tcp.rs",
        "proxy/src/dial.rs",
        "src/cli/client.rs",
        "src/config/environment.rs",
        "src/probe/families.rs",
        "src/probe/socket.rs",
        "src/netns/enter.rs",
        "src/registries/asker.rs",
        "src/workload/publish.rs",
        "src/workload/start.rs",
    ]
    .into_iter()
    .map(PathBuf::from)
    .collect();
    let found: BTreeSet<PathBuf> = sources()
        .into_iter()
        .filter(|path| !path.starts_with("src/lab"))
        .filter(|path| {
            let code = code(path);
            code.contains("clippy::disallowed_methods") || code.contains("clippy::disallowed_types")
        })
        .collect();
    assert_eq!(found, known);
}

#[test]
fn files_say_what_they_are_for_and_stay_small() {
    for path in sources() {
        let code = code(&path);
        assert!(code.starts_with("//! "), "{} does not begin with what it is for", path.display());
        let lines = code.lines().count();
        assert!(lines <= 500, "{} has {lines} lines without its tests", path.display());
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let page = read("docs/adr/0000-dependencies.md");
    let listed: BTreeSet<String> = first_cells(&page).map(str::to_owned).collect();
    let manifests = ["Cargo.toml", "policy/Cargo.toml", "dns/Cargo.toml", "proxy/Cargo.toml"];
    let ours = ["policy", "dns", "proxy"].map(str::to_owned);
    let held: BTreeSet<String> = manifests
        .into_iter()
        .flat_map(|manifest| {
            ["dependencies", "dev-dependencies"].into_iter().flat_map(|table| dependencies(manifest, table))
        })
        .filter(|name| !ours.contains(name))
        .collect();
    assert_eq!(listed, held);
}

/// The first cell of each row of a page's tables, without its backticks.
fn first_cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" |").next());
    cells
        .map(|cell| cell.trim_matches('`'))
        .filter(|cell| !["package", "code", "metric", "key", "verb"].contains(cell))
}

#[test]
fn the_page_of_reasons_lists_each_with_its_text() {
    let page = read("docs/reasons.md");
    let rows: Vec<(String, String)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| {
            let mut cells = row.split(" | ");
            Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
        })
        .collect();
    let all: Vec<(String, String)> = policy::Reason::ALL
        .iter()
        .map(|reason| (reason.code().to_owned(), reason.text().to_owned()))
        .collect();
    assert_eq!(rows, all);
}

#[test]
fn the_page_of_metrics_lists_each() {
    let mut names = BTreeSet::new();
    for path in sources() {
        let code = code(&path);
        let literals = code.split('"').skip(1).step_by(2);
        let all = literals.filter(|text| text.starts_with("tidegate_"));
        names.extend(all.map(str::to_owned));
    }
    assert!(names.len() > 15, "{names:?}");
    let page = read("docs/metrics.md");
    let listed: BTreeSet<String> = first_cells(&page).map(str::to_owned).collect();
    assert_eq!(listed, names);
}

#[test]
fn the_page_of_the_command_line_lists_every_verb() {
    let help = String::from_utf8(run_here(["--help"]).stdout).unwrap();
    let verbs = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let verbs: BTreeSet<String> = verbs
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect();
    let page = read("docs/cli.md");
    let listed: BTreeSet<String> = first_cells(&page).map(str::to_owned).collect();
    assert_eq!(listed, verbs);
    for verb in verbs {
        assert!(
            page.contains(&format!("tidegate {verb}")) || page.contains(&format!("-- {verb}")),
            "no example of {verb}"
        );
    }
}

#[test]
fn the_page_of_the_config_lists_every_key() {
    let page = read("docs/config.md");
    for (table, keys) in tidegate::config::keys() {
        let heading = match table {
            "policy.NAME.rule" => "## [[policy.NAME.rule]]".to_owned(),
            "sandbox.NAME.identify" => "## sandbox.NAME.identify".to_owned(),
            table => format!("## [{table}]"),
        };
        let section =
            page.split(&format!("{heading}\n")).nth(1).unwrap_or_else(|| panic!("no section {heading}"));
        let section = section.split("\n## ").next().unwrap();
        let listed: BTreeSet<&str> = first_cells(section).flat_map(|cell| cell.split("`, `")).collect();
        assert_eq!(listed, keys.iter().copied().collect(), "{heading}");
    }
}

#[test]
fn the_schema_of_the_config_has_every_key() {
    let schema: serde_json::Value = serde_json::from_str(&read("docs/config.schema.json")).unwrap();
    for (table, keys) in tidegate::config::keys() {
        let mut at = &schema;
        for part in table.split('.') {
            at = match part {
                "NAME" => &at["additionalProperties"],
                part => &at["properties"][part],
            };
            if at.get("items").is_some() {
                at = &at["items"];
            }
        }
        let listed: BTreeSet<&str> = at["properties"]
            .as_object()
            .unwrap_or_else(|| panic!("{table}"))
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(listed, keys.iter().copied().collect(), "{table}");
        assert_eq!(at["additionalProperties"], false, "{table}");
    }
}

/// The TOML blocks of a page.
fn toml_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_example_config_is_right_by_schema_and_by_check() {
    let schema: serde_json::Value = serde_json::from_str(&read("docs/config.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mut examples: Vec<_> =
        files("deploy", ".toml").into_iter().map(|path| (path.display().to_string(), read(path))).collect();
    for page in ["README.md", "docs/config.md"] {
        examples.extend(toml_blocks(&read(page)).into_iter().map(|block| (page.to_owned(), block)));
    }
    assert!(examples.len() >= 3);
    for (name, text) in examples {
        let value: serde_json::Value =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mistakes: Vec<String> =
            schema.iter_errors(&value).map(|error| format!("{} {error}", error.instance_path())).collect();
        assert!(mistakes.is_empty(), "{name}: {mistakes:#?}");
        let checked = check(&text);
        assert!(checked.0, "{name}: {}", checked.1);
    }
}

/// What a page says of the repository is there: its links, and every path that it names.
#[test]
fn what_a_page_points_to_exists() {
    let pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benches/load/README.md"].map(PathBuf::from);
    let folders = ["src", "policy", "dns", "proxy", "tests", "benches", "deploy", "docs", "fuzz", ".ci"];
    let mut missing = Vec::new();
    for page in pages.into_iter().chain(files("docs", ".md")) {
        let text = read(&page);
        let beside = page.parent().unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let file = link.split('#').next().unwrap();
            if !root().join(beside).join(file).exists() {
                missing.push(format!("{}: {link}", page.display()));
            }
        }
        let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '*');
        for word in text.split(|c: char| !is_of_a_path(c)) {
            let path = word.trim_end_matches(['.', '*', '/']);
            let is_ours = path.split_once('/').is_some_and(|(folder, _)| folders.contains(&folder));
            let is_made = path.contains("/target") || path.contains('*');
            if is_ours && !is_made && !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Runs `tidegate check` on a config.
fn check(text: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let output = run_here(["check", "--config", path.to_str().unwrap()]);
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema: serde_json::Value = serde_json::from_str(&read("docs/config.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for text in [
        "[lisen]",
        "[listen]\nproxy = \"127.0.0.1:3128\"",
        "[listen]\nadmin = \"127.0.0.1:1\"",
        "[admin]\nreaders = [0]",
        "[state]\npath = \"state\"",
        "[dns]\nanswers = \"bound\"",
        "[audit]\npath = \"audit.jsonl\"",
        "[timeouts]\nidle = 10",
        "[registry.r]\nports = [443]",
        "[registry.r]\nhosts = [\"a.example\"]\ninspect = true",
        "[policy.p]\nask = [\"\"]",
        "[[policy.p.rule]]\nports = [443]",
        "[[policy.p.rule]]\nhost = \"a.example\"\nmethods = []",
        "[internal.x]\nhost = \"a.example\"",
        "[sandbox.s]\nidentify = [{ token_sha256 = \"00\" }]",
        "[upstream]\nexcept = []",
    ] {
        let value: serde_json::Value = toml::from_str(text).unwrap();
        assert!(!schema.is_valid(&value), "the schema takes {text}");
        assert!(!check(text).0, "the reader takes {text}");
    }
}

#[test]
fn each_invariant_has_the_test_that_carries_its_name() {
    let tests: String = files("tests/it", ".rs").iter().map(read).collect();
    let page = read("ARCHITECTURE.md");
    let named: Vec<&str> = page.split('`').filter(|word| word.starts_with("invariant_")).collect();
    assert_eq!(named.len(), 10, "{named:?}");
    for name in named {
        assert!(tests.contains(&format!("fn {name}(")), "no test {name}");
    }
}
