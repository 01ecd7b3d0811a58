//! Where managers and their applications find each other.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::connection::Connection;
use crate::pinned::BPFFS;

/// Directory of managers' sockets.
pub const SOCKETS: &str = "/run/tidewall";
/// What a manager's socket ends with.
pub const MANAGER: &str = "manager";
/// Variable with the path of the manager whose application a process is to be.
pub const VARIABLE: &str = "TIDEWALL_MANAGER";

/// Where the daemon of an interface pins its program.
pub fn pins(interface: &str) -> PathBuf {
    Path::new(BPFFS).join("tidewall").join(interface)
}

/// Where a manager pins it that lives no longer than one program: apart, so that what a
/// killed daemon left for the next one is not taken for leftovers, nor the other way about.
pub fn ephemeral_pins(interface: &str) -> PathBuf {
    Path::new(BPFFS).join("tidewall-run").join(interface)
}

/// Where the manager of an interface listens.
pub fn socket(interface: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{interface}.{MANAGER}"))
}

/// Whether no process listens at a manager's socket that is there: its manager was killed.
pub fn is_dead(socket: &Path) -> bool {
    let connected = Connection::connect(socket);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Sockets of managers, with the interface that each has in its name, in the order of
/// their names. One may be of a manager that has ended.
pub fn managers() -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(SOCKETS).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let managers = paths.filter(|path| path.extension() == Some(OsStr::new(MANAGER)));
    let named = managers.filter_map(|path| {
        let interface = path.file_stem()?.to_str()?.to_owned();
        Some((path, interface))
    });
    let mut all: Vec<_> = named.collect();
    all.sort();
    all
}

/// The manager that this process was started under (`tidewall run`), if it was.
pub fn of_environment() -> Option<PathBuf> {
    let path = env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
    Some(PathBuf::from(path))
}
