//! The library that replaces the C library's socket calls in the program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;

use super::executable;
use crate::end::{Failure, check_interface};

/// Its file's name.
pub const NAME: &str = "libtidewall.so";
/// Variable with the library's path; empty for none.
const VARIABLE: &str = "TIDEWALL_LIBRARY";
/// The loader's variable; names are separated by colons and blanks (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";
/// Directories that may hold the library, relative to the one of this program: as built,
/// then as installed.
const PLACES: [&str; 4] = ["", "deps", "../lib", "../lib/tidewall"];

/// The library for a program.
pub enum Library {
    /// The library is at this path.
    At(PathBuf),
    /// The variable is empty: the program is written for Tidewall.
    NotWanted,
    /// It is in none of the directories; the text names them.
    Missing(String),
}

/// Finds the library.
///
/// # Errors
/// Exit code 2: the variable names no file, or the loader cannot handle the name.
pub fn find() -> Result<Library, Failure> {
    let path = match env::var_os(VARIABLE) {
        Some(path) if path.is_empty() => return Ok(Library::NotWanted),
        Some(path) => PathBuf::from(path),
        None => {
            let program = env::current_exe().unwrap_or_default();
            let Some(path) = beside(&program) else {
                return Ok(Library::Missing(format!(
                    "there is no {NAME} beside {} nor in ../lib (name it by {VARIABLE}; set that empty \
                     for a program that is written for Tidewall)",
                    program.display()
                )));
            };
            path
        }
    };
    let absolute = std::path::absolute(&path).unwrap_or(path);
    if !absolute.is_file() {
        return Err(Failure::usage(format!(
            "{VARIABLE} names {}, and no such file is there",
            absolute.display()
        )));
    }
    let separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if absolute.as_os_str().as_bytes().iter().any(separator) {
        return Err(Failure::usage(format!(
            "the loader takes no name with colons or blanks ({}); copy it and name the copy by \
             {VARIABLE}",
            absolute.display()
        )));
    }
    Ok(Library::At(absolute))
}

fn beside(program: &Path) -> Option<PathBuf> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let mut places = PLACES.iter().map(|place| directory.join(place).join(NAME));
    places.find(|path| path.is_file())
}

/// Describes the absence of the interface.
pub fn no_interface(name: &str) -> Option<String> {
    let missing = check_interface(name).err();
    missing.map(|failure| failure.to_string())
}

/// Explains why the program's sockets stay with the kernel: because of the program, or of
/// the interface it would use.
pub fn obstacle(words: &[OsString], interface: &str) -> Option<String> {
    if let Some((path, obstacle)) = executable::obstacle(words) {
        return Some(format!("{}: {obstacle}", path.display()));
    }
    if let Some(why) = no_interface(interface) {
        return Some(why);
    }
    match routable(interface) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{interface} has no address that is reached from beyond its link; see: ip address add"
        )),
        Err(error) => Some(format!("reading the addresses of {interface}: {error}")),
    }
}

fn routable(interface: &str) -> io::Result<bool> {
    let index = interface::index(interface)?;
    let addresses = Rtnetlink::open()?.addresses_at(index)?;
    Ok(addresses.iter().any(|address| match address {
        std::net::IpAddr::V4(address) => !address.is_link_local(),
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    }))
}

/// Puts the library in front of the loader's list, but behind what the program needs
/// first.
pub fn put(command: &mut Command, library: &Path) {
    let program = command.get_program().to_owned();
    let first = executable::first_library(&[program]);
    let before = env::var_os(PRELOAD);
    command.env(
        PRELOAD,
        joined([
            first.as_deref(),
            Some(library.as_os_str()),
            before.as_deref(),
        ]),
    );
}

/// Joins these names as the loader expects them.
fn joined(names: [Option<&OsStr>; 3]) -> OsString {
    let names = names.into_iter().flatten().filter(|name| !name.is_empty());
    names.collect::<Vec<_>>().join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_behind_it() {
        let library = "/lib/libtidewall.so";
        for (first, before, after) in [
            (None, None, "/lib/libtidewall.so"),
            (None, Some(""), "/lib/libtidewall.so"),
            (None, Some("a.so b.so"), "/lib/libtidewall.so:a.so b.so"),
            (
                Some("libasan.so.8"),
                Some("a.so"),
                "libasan.so.8:/lib/libtidewall.so:a.so",
            ),
        ] {
            let names = [first, Some(library), before];
            assert_eq!(joined(names.map(|name| name.map(OsStr::new))), after);
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_obstacle() {
        let words = [OsString::from("/bin/sh")];
        let said = obstacle(&words, "tw-no-such").unwrap();
        assert!(said.contains("no interface tw-no-such"), "{said}");
        let said = obstacle(&words, "lo").unwrap_or_default();
        // Addresses of other interfaces reach lo, if there are any.
        assert!(said.is_empty() || said.contains("no address"), "{said}");
    }
}
