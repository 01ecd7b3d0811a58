//! Common parts of fuzz targets in an ordinary test run: their seeds, which code makes
//! and the repository keeps, and inputs that are a seed with changes.
//!
//! A test's seeds are in `tests/__fuzz__/<target>/corpus` of its package, where `bolero`
//! looks for them. Random bytes alone are short and rarely get far, so each input is also
//! tried as a list of changes to one of the seeds.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An input that is tried in every run.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Its target.
    pub target: &'static str,
    /// Name of its file.
    pub name: &'static str,
    /// The input.
    pub bytes: Vec<u8>,
}

impl From<(&'static str, &'static str, Vec<u8>)> for Seed {
    fn from((target, name, bytes): (&'static str, &'static str, Vec<u8>)) -> Self {
        Seed {
            target,
            name,
            bytes,
        }
    }
}

/// A target during a run.
#[derive(Debug)]
pub struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    test: fn(&[u8]),
    /// Inputs that were one of the seeds.
    seen: AtomicUsize,
}

impl Target {
    /// Creates the target of this name, with its own seeds out of `seeds`; `test` panics
    /// if an input shows a defect.
    pub fn new(name: &'static str, seeds: &[Seed], test: fn(&[u8])) -> Self {
        let own = seeds.iter().filter(|seed| seed.target == name);
        Target {
            name,
            seeds: own.map(|seed| seed.bytes.clone()).collect(),
            test,
            seen: AtomicUsize::new(0),
        }
    }

    /// Tries an input, and then the seed that its first byte selects, changed by its
    /// other bytes in pairs: position, and bits to flip.
    pub fn input(&self, bytes: &[u8]) {
        if self.seeds.iter().any(|seed| seed == bytes) {
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
        (self.test)(bytes);
        let Some((&choice, changes)) = bytes.split_first() else {
            return;
        };
        let index = usize::from(choice) % self.seeds.len().max(1);
        let Some(mut changed) = self.seeds.get(index).cloned() else {
            return;
        };
        let length = changed.len().max(1);
        for change in changes.chunks_exact(2) {
            if let [place, bits] = *change
                && let Some(byte) = changed.get_mut(usize::from(place) % length)
            {
                *byte ^= bits;
            }
        }
        (self.test)(&changed);
    }

    /// Ends the run.
    ///
    /// # Panics
    /// Panics if the seeds were not among the inputs: a corpus in the wrong folder would
    /// otherwise be silently ignored.
    pub fn finish(self) {
        assert!(
            self.seen.into_inner() >= self.seeds.len(),
            "the corpus of {} was not read",
            self.name
        );
    }
}

/// Defines `fn fuzz(name, test)`, which runs a [`Target`] with the seeds that a function
/// makes, for this long in an ordinary test run. A macro, since `bolero::check!` looks
/// for the corpus beside the file in which it is expanded.
#[macro_export]
macro_rules! targets {
    ($seeds:path, $time:expr) => {
        fn fuzz(name: &'static str, test: fn(&[u8])) {
            let target = $crate::Target::new(name, &$seeds(), test);
            ::bolero::check!(name = name)
                .with_test_time($time)
                .for_each(|bytes: &[u8]| target.input(bytes));
            target.finish();
        }
    };
}

/// Checks that the files of a package's corpus are those that its code makes; other files
/// may lie beside them. Rewrites them if `TIDEWALL_WRITE_CORPUS` is set. `package`: its
/// `CARGO_MANIFEST_DIR`.
///
/// # Panics
/// Panics if a file is missing or different, or cannot be written.
pub fn check_corpus(package: &str, seeds: &[Seed]) {
    for seed in seeds {
        let folder = Path::new(package)
            .join("tests/__fuzz__")
            .join(seed.target)
            .join("corpus");
        let path = folder.join(seed.name);
        let checked = |result: std::io::Result<Vec<u8>>| match result {
            Ok(bytes) => bytes,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        if std::env::var_os("TIDEWALL_WRITE_CORPUS").is_some() {
            let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, &seed.bytes));
            checked(written.map(|()| Vec::new()));
        }
        assert_eq!(checked(fs::read(&path)), seed.bytes, "{}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Seed> {
        let seeds = [
            ("a", "one", vec![1, 2, 3]),
            ("b", "other", vec![9]),
            ("a", "two", vec![4, 5]),
        ];
        seeds.map(Seed::from).to_vec()
    }

    #[test]
    fn an_input_is_tried_as_it_is_and_as_changes_to_a_seed() {
        fn test(bytes: &[u8]) {
            let expected: [&[u8]; 2] = [&[3, 1, 0xf0, 7], &[4, 5 ^ 0xf0]];
            assert!(expected.contains(&bytes), "{bytes:?}");
        }
        Target::new("a", &seeds(), test).input(&[3, 1, 0xf0, 7]);
        // Without seeds there is nothing to change.
        Target::new("c", &seeds(), test).input(&[3, 1, 0xf0, 7]);
    }

    #[test]
    #[should_panic(expected = "the corpus of a was not read")]
    fn a_corpus_that_was_not_read_is_noticed() {
        let target = Target::new("a", &seeds(), |_| ());
        target.input(&[1, 2, 3]);
        target.finish();
    }

    #[test]
    fn all_seeds_were_inputs() {
        let target = Target::new("a", &seeds(), |_| ());
        target.input(&[1, 2, 3]);
        target.input(&[4, 5]);
        target.finish();
    }

    #[test]
    fn files_are_what_the_code_makes() {
        let package = std::env::temp_dir().join(format!("tw-fuzz-{}", std::process::id()));
        let folder = package.join("tests/__fuzz__/a/corpus");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("one"), [1, 2, 3]).unwrap();
        let [one, _, two] = seeds().try_into().unwrap();
        let check = |seed| {
            let package = package.to_str().unwrap();
            std::panic::catch_unwind(|| check_corpus(package, &[seed])).is_ok()
        };
        assert!(check(one.clone()));
        assert!(!check(two), "it is missing");
        fs::write(folder.join("one"), [1, 2]).unwrap();
        assert!(!check(one), "it is different");
        fs::remove_dir_all(&package).unwrap();
    }
}
