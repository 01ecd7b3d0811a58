//! The library that takes the place of the C library's socket calls in the program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;

use super::executable;
use crate::end::Failure;

/// Its file's name.
const NAME: &str = "libtidewall.so";
/// Variable with its path; empty for none.
const VARIABLE: &str = "TIDEWALL_LIBRARY";
/// The loader's variable; names are separated by colons and blanks (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";
/// Where it may be, seen from the directory of this program: built, then installed.
const PLACES: [&str; 4] = ["", "deps", "../lib", "../lib/tidewall"];

/// Where it is; `None` where the variable says that there shall be none, and, said so, where
/// none is found.
///
/// # Errors
/// Exit code 2: what the variable names is not there.
pub fn find() -> Result<Option<PathBuf>, Failure> {
    let path = match env::var_os(VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => beside(&env::current_exe().unwrap_or_default()),
    };
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
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
    Ok(Some(absolute))
}

/// Empty where it is in none of the places.
fn beside(program: &Path) -> PathBuf {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let mut places = PLACES.iter().map(|place| directory.join(place).join(NAME));
    places.find(|path| path.is_file()).unwrap_or_else(|| {
        eprintln!(
            "tidewall: there is no {NAME} beside {} nor in ../lib: programs that are not written for \
             Tidewall run on the kernel's sockets (name it by {VARIABLE}; set that empty for none)",
            program.display()
        );
        PathBuf::new()
    })
}

/// Why the program's sockets stay with the kernel: itself, or the interface it would use.
pub fn obstacle(words: &[OsString], interface: &str) -> Option<String> {
    if let Some((path, obstacle)) = executable::obstacle(words) {
        return Some(format!("{}: {obstacle}", path.display()));
    }
    let index = match interface::index(interface) {
        Ok(index) => index,
        Err(_) => {
            return Some(format!(
                "no interface {interface} in this network namespace; see: ip link"
            ));
        }
    };
    match routable(index) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{interface} has no address that is reached from beyond its link; see: ip address add"
        )),
        Err(error) => Some(format!("reading the addresses of {interface}: {error}")),
    }
}

fn routable(index: u32) -> io::Result<bool> {
    let addresses = Rtnetlink::open()?.addresses_at(index)?;
    Ok(addresses.iter().any(|address| match address {
        std::net::IpAddr::V4(address) => !address.is_link_local(),
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    }))
}

/// Puts it in front of what the loader is told to take.
pub fn put(command: &mut Command, library: &Path) {
    command.env(PRELOAD, in_front(library, env::var_os(PRELOAD).as_deref()));
}

fn in_front(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_behind_it() {
        let library = Path::new("/lib/libtidewall.so");
        for (before, after) in [
            (None, "/lib/libtidewall.so"),
            (Some(""), "/lib/libtidewall.so"),
            (Some("a.so b.so"), "/lib/libtidewall.so:a.so b.so"),
        ] {
            assert_eq!(in_front(library, before.map(OsStr::new)), after);
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_obstacle() {
        let words = [OsString::from("/bin/sh")];
        let said = obstacle(&words, "tw-no-such").unwrap();
        assert!(said.contains("no interface tw-no-such"), "{said}");
        let said = obstacle(&words, "lo").unwrap_or_default();
        // lo is reached by addresses of other interfaces, where there are any.
        assert!(said.is_empty() || said.contains("no address"), "{said}");
    }
}
