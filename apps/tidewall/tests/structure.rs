//! Arrows between crates and modules that must never be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Crates, and those that none of their files may name.
const NEVER: [(&str, &[&str]); 5] = [
    (
        "crates/stack",
        &[
            "tidewall_readiness",
            "tidewall_socket",
            "tidewall_circuits",
            "tidewall_forward",
        ],
    ),
    (
        "crates/readiness",
        &["tidewall_socket", "tidewall_circuits", "tidewall_forward"],
    ),
    ("crates/circuits", &["tidewall_socket"]),
    ("crates/socket/src/tcp", &["crate::udp"]),
    ("crates/socket/src/udp", &["crate::tcp"]),
];

/// Crates of the laboratory that the product may not depend on.
const LABORATORY: [&str; 5] = [
    "tidewall-lab",
    "tidewall-load",
    "tidewall-service",
    "tidewall-conformance",
    "tidewall-simulator",
];

/// Most modules of the stack in one circle of imports: those that work on the core beside
/// those that it consists of. To be lowered as they part.
const CIRCLE_MOST: usize = 20;

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|it| it == ending) {
            found.push(path);
        }
    }
}

/// A file's text without comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| match line.find("//") {
        Some(comment) => &line[..comment],
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with("tests.rs") || name.contains("/tests/")
}

#[test]
fn no_crate_names_one_above_it() {
    for (folder, never) in NEVER {
        let mut found = Vec::new();
        files(&Path::new(ROOT).join(folder), "rs", &mut found);
        assert!(found.len() > 3, "{folder}");
        for file in found.iter().filter(|it| !is_test(it)) {
            let text = code(file);
            for name in never {
                assert!(!text.contains(name), "{}: {name}", file.display());
            }
        }
    }
}

/// The names of a manifest's dependencies, without those of tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut counts = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            counts = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if counts && let Some((name, _)) = line.split_once(['.', ' ', '=']) {
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn the_product_does_without_the_laboratory() {
    let mut manifests = Vec::new();
    files(&Path::new(ROOT).join("crates"), "toml", &mut manifests);
    let manifests: Vec<_> = manifests
        .iter()
        .filter(|it| it.ends_with("Cargo.toml"))
        .collect();
    assert!(manifests.len() > 15, "{}", manifests.len());
    for manifest in manifests {
        for name in dependencies(&fs::read_to_string(manifest).unwrap()) {
            let is = LABORATORY.contains(&name.as_str());
            assert!(!is, "{}: {name}", manifest.display());
        }
    }
}

/// The module that a file is: `receiver::rounds` of `receiver/rounds.rs`.
fn module(source: &Path, file: &Path) -> String {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let mut parts: Vec<_> = path.iter().map(|it| it.to_str().unwrap()).collect();
    if parts.last() == Some(&"mod") {
        parts.pop();
    }
    parts.join("::")
}

/// The modules that a text imports from its own crate.
fn imports<'a>(text: &str, own: &str, modules: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
    let parent = own.rsplit_once("::").map_or("", |it| it.0);
    let joined = text.replace("super::", &format!("crate::{parent}::"));
    let words = joined.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.filter_map(|word| word.strip_prefix("crate::").map(str::to_owned));
    // A path of a child module: `use child::Type`.
    let uses = text.lines().filter_map(|line| {
        let (_, path) = line.trim_start().split_once("use ")?;
        Some(format!("{own}::{path}"))
    });
    let longest = |path: String| {
        let is_in = |it: &&String| path == **it || path.starts_with(&format!("{it}::"));
        modules.iter().filter(is_in).max_by_key(|it| it.len())
    };
    let found = paths.chain(uses).filter_map(longest).map(String::as_str);
    found.filter(|&it| it != own).collect()
}

#[test]
fn circles_of_imports_in_the_stack_are_small() {
    let source = Path::new(ROOT).join("crates/stack/src");
    let mut found = Vec::new();
    files(&source, "rs", &mut found);
    found.retain(|it| !is_test(it) && !it.ends_with("lib.rs"));
    let modules: BTreeSet<String> = found.iter().map(|it| module(&source, it)).collect();
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in &found {
        let name = module(&source, file);
        let text = code(file);
        // Its unit tests may use what they like.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let own = modules.get(&name).unwrap();
        reached.insert(own, imports(text, own, &modules));
    }
    assert!(reached.values().map(BTreeSet::len).sum::<usize>() > 50);
    // Adds modules that are reached by several imports.
    loop {
        let mut grown = false;
        for name in reached.keys().copied().collect::<Vec<_>>() {
            let further: BTreeSet<_> = reached[name]
                .iter()
                .flat_map(|next| reached[next].clone())
                .collect();
            let all = reached.get_mut(name).unwrap();
            let before = all.len();
            all.extend(further);
            grown |= all.len() > before;
        }
        if !grown {
            break;
        }
    }
    let circle = |name: &str| -> Vec<&str> {
        let mutual = reached[name].iter().copied();
        mutual.filter(|it| reached[it].contains(name)).collect()
    };
    let largest = reached.keys().map(|name| circle(name)).max_by_key(Vec::len);
    let largest = largest.unwrap_or_default();
    println!("largest circle of imports in crates/stack: {largest:?}");
    assert!(largest.len() <= CIRCLE_MOST, "{largest:?}");
}
