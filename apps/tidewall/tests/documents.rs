//! Files named in documents and comments exist.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Folders that are searched, and that begin the name of a file.
const FOLDERS: [&str; 6] = ["crates", "apps", "lab", "bpf", "docs", "scripts"];
const ENDINGS: [&str; 7] = ["md", "rs", "c", "h", "sh", "py", "toml"];

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path
            .extension()
            .and_then(|ending| ending.to_str())
            .is_some_and(|ending| ENDINGS.contains(&ending))
        {
            files.push(path);
        }
    }
}

/// Names of files and folders in a text: words of path characters that begin with one
/// of [`FOLDERS`].
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)));
    words.filter_map(|word| {
        let (folder, rest) = word.split_once('/')?;
        let name = word.trim_end_matches(['.', '/', '-']);
        (FOLDERS.contains(&folder) && !rest.is_empty()).then_some(name)
    })
}

#[test]
fn files_that_are_named_are_there() {
    let root = Path::new(ROOT);
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut files);
    }
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        files.push(root.join(name));
    }
    let mut seen = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for name in names(&text) {
            seen += 1;
            let exists = root.join(name).exists() || Path::new(name).is_absolute();
            assert!(exists, "{}: {name}", file.display());
        }
    }
    assert!(seen > 200, "{seen}");
}
