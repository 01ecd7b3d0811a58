//! The paths at which managers and their applications find each other.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::connection::Connection;
use crate::pinned::BPFFS;

/// Directory of managers' sockets.
pub const SOCKETS: &str = "/run/tidewall";
/// Suffix of a manager's socket.
pub const MANAGER: &str = "manager";
/// Variable with the path of the manager that a process is to join.
pub const VARIABLE: &str = "TIDEWALL_MANAGER";

/// Directory in which an interface's daemon pins its program.
pub fn pins(interface: &str) -> PathBuf {
    Path::new(BPFFS).join("tidewall").join(interface)
}

/// Directory in which a manager pins it that lives no longer than one program. It is
/// separate, so that neither kind takes for leftovers what a killed manager of the other
/// kind left.
pub fn ephemeral_pins(interface: &str) -> PathBuf {
    Path::new(BPFFS).join("tidewall-run").join(interface)
}

/// Path at which an interface's manager listens.
pub fn socket(interface: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{interface}.{MANAGER}"))
}

/// Whether no process listens at an existing manager socket: its manager was killed.
pub fn is_dead(socket: &Path) -> bool {
    let connected = Connection::connect(socket);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Sockets of managers, each with the interface in its name, sorted by name. One may be
/// of a manager that has ended.
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

/// The manager under which this process was started (`tidewall run`), if it was.
pub fn of_environment() -> Option<PathBuf> {
    let path = env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
    Some(PathBuf::from(path))
}
