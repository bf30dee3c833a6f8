//! Everything in deploy/ is what it says: its files parse, and what they name is there.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use yaml_rust2::{Yaml, YamlLoader};

use crate::{
    repository::{files, read, root},
    support::run_here,
};

fn yaml(path: &Path) -> Vec<Yaml> {
    YamlLoader::load_from_str(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The instructions of a Dockerfile, continued lines joined.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(word, rest)| (word.to_owned(), rest.to_owned()))
        .collect()
}

/// A list of words as the JSON form of an instruction holds it, wherever it begins.
fn words(instruction: &str) -> Vec<String> {
    let list = &instruction[instruction.find('[').unwrap_or_else(|| panic!("no list in {instruction}"))..];
    serde_json::from_str(list).unwrap_or_else(|error| panic!("{list}: {error}"))
}

/// Whether the program has such a verb.
fn is_verb(verb: &str) -> bool {
    run_here([verb, "--help"]).status.success()
}

#[test]
fn the_image_is_built_from_what_is_here_and_starts_what_it_holds() {
    let all = instructions(&read("deploy/Dockerfile"));
    let of = |word: &str| {
        all.iter().filter(|(found, _)| found == word).map(|(_, rest)| rest.as_str()).collect::<Vec<_>>()
    };
    let ignored = read(".dockerignore");
    let is_ignored = |path: &str| ignored.lines().any(|line| line.trim_start_matches('/') == path);
    let (from_stages, from_here): (Vec<&str>, Vec<&str>) =
        of("COPY").into_iter().partition(|copy| copy.starts_with("--from="));
    for copy in from_here {
        let (sources, _) = copy.rsplit_once(' ').unwrap();
        for source in sources.split(' ') {
            assert!(
                root().join(source).exists() && !is_ignored(source),
                "{source} is not there to be copied"
            );
        }
    }
    for needed in ["Cargo.toml", "Cargo.lock", "build.rs", "src", "policy", "dns", "proxy", "benches"] {
        assert!(root().join(needed).exists() && !is_ignored(needed), "the build needs {needed}");
    }
    let build = of("RUN").join("\n");
    assert!(build.contains(&format!("--bin {}", env!("CARGO_PKG_NAME"))), "{build}");
    assert!(build.contains("--locked") && build.contains("+crt-static"), "{build}");
    let [copied] = from_stages[..] else { panic!("{from_stages:?}") };
    let [stage, source, target] = copied.split(' ').collect::<Vec<_>>()[..] else { panic!("{copied}") };
    let stage = stage.trim_start_matches("--from=");
    assert!(of("FROM").iter().any(|from| from.ends_with(&format!(" AS {stage}"))), "no stage {stage}");
    assert!(build.ends_with(&format!(" {source}")), "{source} is not what the build leaves");
    assert_eq!(words(of("ENTRYPOINT")[0]), [target]);
    assert!(is_verb(&words(of("CMD")[0])[0]));
    let check = words(of("HEALTHCHECK")[0]);
    assert!(check[0] == target && is_verb(&check[1]), "{check:?}");
    let rust = of("FROM")[0].split([':', '-']).nth(1).unwrap();
    assert!(env!("CARGO_PKG_RUST_VERSION").starts_with(rust), "the image builds with Rust {rust}");
}

#[test]
fn every_yaml_file_parses() {
    let found: Vec<PathBuf> =
        [".yaml", ".yml"].into_iter().flat_map(|ending| files("deploy", ending)).collect();
    assert!(!found.is_empty());
    for path in found {
        assert!(!yaml(&path).is_empty(), "{} is empty", path.display());
    }
}

#[test]
fn the_sidecar_of_compose_finds_its_files_and_its_gateway() {
    let folder = root().join("deploy/compose");
    let compose = yaml(&folder.join("compose.yaml")).remove(0);
    let gateway = &compose["services"]["tidegate"];
    let context = folder.join(gateway["build"]["context"].as_str().unwrap());
    assert!(context.join(gateway["build"]["dockerfile"].as_str().unwrap()).is_file());
    for volume in gateway["volumes"].as_vec().unwrap() {
        let host = volume.as_str().unwrap().split(':').next().unwrap();
        assert!(folder.join(host).is_file(), "{host} is not there to be mounted");
    }
    let check = gateway["healthcheck"]["test"].as_vec().unwrap();
    assert!(is_verb(check[2].as_str().unwrap()));

    let config: toml::Table = read("deploy/compose/tidegate.toml").parse().unwrap();
    let listens = |kind: &str| {
        config["listen"][kind]
            .as_array()
            .unwrap()
            .iter()
            .map(|at| at.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let subnet = compose["networks"]["sandbox"]["ipam"]["config"][0]["subnet"].as_str().unwrap();
    let subnet: ipnet::IpNet = subnet.parse().unwrap();
    let sandbox = &compose["services"]["sandbox"];
    let addresses =
        [gateway, sandbox].map(|service| service["networks"]["sandbox"]["ipv4_address"].as_str().unwrap());
    let inside = addresses.iter().all(|address| subnet.contains(&address.parse::<IpAddr>().unwrap()));
    assert!(inside, "{addresses:?} are not in {subnet}");
    assert_eq!(
        compose["networks"]["sandbox"]["internal"],
        Yaml::Boolean(true),
        "the sandbox has another way out"
    );
    let resolver = sandbox["dns"][0].as_str().unwrap();
    assert!(listens("dns").contains(&format!("{resolver}:53")), "nobody answers at {resolver}");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        let proxy = sandbox["environment"][name].as_str().unwrap();
        let at = proxy.strip_prefix("http://").unwrap();
        assert!(listens("proxy").contains(&at.to_owned()), "{name}: nobody listens at {proxy}");
    }
}
