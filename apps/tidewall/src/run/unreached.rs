//! Processes of a run's program without the library, and the ports they serve: nothing
//! else would report that their sockets are the kernel's.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process;

use tidewall_manager::record::{Record, VARIABLE, Verdict};

use super::{executable, library};

/// Files in a process's network namespace that list sockets, and the state of sockets
/// waiting for clients. That is TCP_LISTEN, and TCP_CLOSE for UDP sockets without a peer
/// (`net/tcp_states.h`).
const TABLES: [(&str, &str, &str); 4] = [
    ("tcp", "0A", "listener"),
    ("tcp6", "0A", "listener"),
    ("udp", "07", "datagrams"),
    ("udp6", "07", "datagrams"),
];
/// The auxiliary vector's entry by which the loader distrusts the environment.
const AT_SECURE: u64 = 23;

/// Examines processes again and again.
#[derive(Debug)]
pub struct Unreached {
    library: String,
    /// For each process: its program, and whether the library is there.
    known: HashMap<u32, (PathBuf, bool)>,
}

impl Unreached {
    /// Creates one for programs started with a library.
    pub fn new(library: &Path) -> Self {
        Unreached {
            library: library.display().to_string(),
            known: HashMap::new(),
        }
    }

    /// Returns the sockets that wait for clients in processes without the library. A
    /// process counts as such after two looks: the loader needs a moment.
    pub fn look(&mut self) -> Vec<Record> {
        let mut now = HashMap::new();
        let mut found = Vec::new();
        for number in descendants(process::id()) {
            let root = PathBuf::from(format!("/proc/{number}"));
            // A process that has ended has none.
            let Ok(program) = fs::read_link(root.join("exe")) else {
                continue;
            };
            let before = self.known.get(&number).filter(|known| known.0 == program);
            let has_library = before.is_some_and(|known| known.1)
                || fs::read_to_string(root.join("maps"))
                    .is_ok_and(|maps| maps.contains(&self.library));
            if before.is_some() && !has_library {
                found.extend(sockets(number, &root, &inodes(&root), || reason(&root)));
            }
            now.insert(number, (program, has_library));
        }
        self.known = now;
        found
    }
}

/// Returns the children, their children and so on.
fn descendants(process: u32) -> Vec<u32> {
    let mut all = super::program::children_of(process);
    let mut next = 0;
    while let Some(&process) = all.get(next) {
        all.extend(super::program::children_of(process));
        next += 1;
    }
    all
}

/// Returns the sockets that wait for clients in processes that have the library, but
/// neither a stack to ask nor a run with their records. `with`: the processes that have a
/// stack.
pub fn without_stack(with: &BTreeSet<u32>) -> Vec<Record> {
    let root = |number: u32| PathBuf::from(format!("/proc/{number}"));
    // A parent holds the sockets open that the stack serves for its workers.
    let served: HashSet<String> = with.iter().flat_map(|&it| inodes(&root(it))).collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = Vec::new();
    for number in processes.filter(|number| !with.contains(number)) {
        let root = root(number);
        let maps = fs::read_to_string(root.join("maps")).unwrap_or_default();
        let is_reported = || {
            let environment = fs::read(root.join("environ")).unwrap_or_default();
            let mut variables = environment.split(|&byte| byte == 0);
            variables.any(|it| it.starts_with(format!("{VARIABLE}=").as_bytes()))
        };
        if maps.contains(&format!("/{}", library::NAME)) && !is_reported() {
            let mut inodes = inodes(&root);
            inodes.retain(|inode| !served.contains(inode));
            let why = || {
                format!(
                    "it has no stack that would say why; its standard error does (journalctl \
                     _PID={number})"
                )
            };
            found.extend(sockets(number, &root, &inodes, why));
        }
    }
    found
}

/// Returns the inodes of a process's open sockets.
fn inodes(root: &Path) -> HashSet<String> {
    let descriptors = fs::read_dir(root.join("fd"));
    let descriptors = descriptors.into_iter().flatten().flatten();
    let inode = |file: &Path| {
        let name = file.to_str()?.strip_prefix("socket:[")?;
        Some(name.strip_suffix(']')?.to_owned())
    };
    descriptors
        .filter_map(|descriptor| inode(&fs::read_link(descriptor.path()).ok()?))
        .collect()
}

/// Returns those of these sockets that wait for a client.
fn sockets(
    number: u32,
    root: &Path,
    inodes: &HashSet<String>,
    why: impl FnOnce() -> String,
) -> Vec<Record> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let name = fs::read_to_string(root.join("comm")).unwrap_or_default();
    let mut records = Vec::new();
    for (table, state, what) in TABLES {
        let lines = fs::read_to_string(root.join("net").join(table)).unwrap_or_default();
        for line in lines.lines().skip(1) {
            // Number, local and remote address, state, six more, inode (proc_net_tcp(5)).
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, local, _, its_state, _, _, _, _, _, inode, ..] = fields[..] else {
                continue;
            };
            let address = address(local).filter(|address| address.port() != 0);
            if its_state == state
                && inodes.contains(inode)
                && let Some(address) = address
            {
                records.push(Record {
                    process: number,
                    program: name.trim().to_owned(),
                    verdict: Verdict::Kernel,
                    what: what.to_owned(),
                    address: address.to_string(),
                    why: String::new(),
                });
            }
        }
    }
    if !records.is_empty() {
        let why = why();
        records
            .iter_mut()
            .for_each(|record| record.why.clone_from(&why));
    }
    records
}

/// Explains why the library is missing.
fn reason(root: &Path) -> String {
    if is_secure(&fs::read(root.join("auxv")).unwrap_or_default()) {
        return "it changed its user or its rights before it executed a program, and the loader \
                then takes no library from the environment (AT_SECURE)"
            .to_owned();
    }
    match executable::obstacle_of(&root.join("exe")) {
        Some(obstacle) => obstacle.to_string(),
        None => "it was started without LD_PRELOAD".to_owned(),
    }
}

/// Returns whether AT_SECURE is set in an auxiliary vector: pairs of words
/// (getauxval(3)).
fn is_secure(vector: &[u8]) -> bool {
    let mut words = vector
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_SECURE {
            return value != 0;
        }
    }
    false
}

/// Parses `0100007F:0050`: four-byte words in this processor's byte order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    if let Ok(address) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(SocketAddr::from((Ipv4Addr::from(address), port)));
    }
    let address = <[u8; 16]>::try_from(bytes).ok()?;
    Some(SocketAddr::from((Ipv6Addr::from(address), port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let read = |text| address(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:0050").as_deref(), Some("127.0.0.1:80"));
        let long = "00000000000000000000000001000000:1F90";
        assert_eq!(read(long).as_deref(), Some("[::1]:8080"));
        for wrong in ["", "0100007F", "0100007F:", "01:50", "0100007é:0050"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_auxiliary_vector_says_whether_the_loader_trusts() {
        let vector = |secure: u64| -> Vec<u8> {
            let words = [6, 4096, AT_SECURE, secure, 0, 0];
            words
                .iter()
                .flat_map(|word: &u64| word.to_ne_bytes())
                .collect()
        };
        assert!(is_secure(&vector(1)));
        assert!(!is_secure(&vector(0)) && !is_secure(&[]) && !is_secure(&[1; 7]));
    }

    #[test]
    fn a_process_without_the_library_is_found_by_what_it_serves() {
        // This process was started without the library.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap().to_string();
        let root = Path::new("/proc/self");
        let records = sockets(process::id(), root, &inodes(root), || reason(root));
        let record = records
            .iter()
            .find(|record| record.address == local)
            .unwrap();
        assert_eq!(
            (record.what.as_str(), record.verdict),
            ("listener", Verdict::Kernel)
        );
        assert_eq!(record.why, "it was started without LD_PRELOAD");
    }
}
