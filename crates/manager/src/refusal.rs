//! Explains why the kernel refuses a driver program, and the remedy.

use std::path::Path;
use std::{fmt, fs, io};

use aya::programs::ProgramError;
use tidewall_device::capabilities::{self, Set};
use tidewall_device::interface::is_physical;
use tidewall_sys::interface;
use tidewall_sys::netlink::{Netdev, Rtnetlink, XDP_BASIC};

/// The kernel's refusal of the driver program or of what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The refused operation, and the reason.
    pub cause: String,
    /// The last lines of the verifier's log, if it was the verifier.
    pub log: Vec<String>,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.cause)?;
        for line in &self.log {
            write!(formatter, "\n    {line}")?;
        }
        write!(formatter, "\n  {}", self.remedy)
    }
}

impl std::error::Error for Refused {}

/// The oldest kernel that the program is tested on: major, minor.
pub const KERNEL_MINIMUM: (u32, u32) = (6, 1);
/// Lines of the verifier's log that are shown: they contain the instruction, its
/// registers and the complaint.
const LOG_LINES: usize = 6;
/// Beginnings of the lines with which the verifier ends every log.
const STATISTICS: [&str; 3] = ["verification time", "stack depth", "processed "];

/// Major and minor number of a kernel release, such as 6.1.0-50-amd64.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first error of a type on the path to an error's root.
fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref())
}

/// The errno at the root of one of aya's errors.
fn root_errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

fn kind_of(errno: Option<i32>) -> io::ErrorKind {
    errno.map_or(io::ErrorKind::Other, |errno| {
        io::Error::from_raw_os_error(errno).kind()
    })
}

pub(crate) fn describe(what: &str, error: impl std::error::Error + 'static) -> io::Error {
    let errno = root_errno(&error);
    if errno == Some(libc::EPERM) {
        return unprivileged(what);
    }
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = find(&error)
    {
        let log = verifier_log.to_string();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let missing = Set::effective().missing(&capabilities::LOAD);
        // Without CAP_PERFMON the verifier forbids what it otherwise permits.
        if missing.is_empty() {
            return refused(what, io_error, &log, release.trim());
        }
        return unprivileged(what);
    }
    let mut text = format!("cannot {what}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    io::Error::new(kind_of(errno), text)
}

fn unprivileged(what: &str) -> io::Error {
    let (cause, remedy) = capabilities::refusal(&capabilities::LOAD);
    let refused = Refused {
        cause: format!("cannot {what}: {cause}"),
        log: Vec::new(),
        remedy,
    };
    io::Error::new(io::ErrorKind::PermissionDenied, refused)
}

/// Describes a program that the kernel did not load for reasons other than privileges.
fn refused(what: &str, error: &io::Error, log: &str, release: &str) -> io::Error {
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| !line.trim().is_empty())
        .filter(|line| !STATISTICS.iter().any(|start| line.starts_with(start)))
        .collect();
    if lines.is_empty() {
        let refused = Refused {
            cause: format!(
                "cannot {what}: Linux {release} refused it ({error}) before its verifier said a word"
            ),
            log: Vec::new(),
            remedy: "a security module may forbid it (see: dmesg), or memory is short".to_owned(),
        };
        return io::Error::new(error.kind(), refused);
    }
    let (major, minor) = KERNEL_MINIMUM;
    let remedy = match version(release) {
        Some(found) if found < KERNEL_MINIMUM => format!(
            "Tidewall is tested on Linux {major}.{minor} and later: install a newer kernel \
             (Debian: apt-get install linux-image-amd64)"
        ),
        _ => format!(
            "Linux {major}.{minor} and later should take it: please report this text; \
             another kernel may help meanwhile"
        ),
    };
    let first = lines.len().saturating_sub(LOG_LINES);
    let refused = Refused {
        cause: format!("cannot {what}: the verifier of Linux {release} refused it ({error})"),
        log: lines
            .get(first..)
            .unwrap_or_default()
            .iter()
            .map(|&line| line.to_owned())
            .collect(),
        remedy,
    };
    io::Error::new(io::ErrorKind::Unsupported, refused)
}

/// Whether the driver runs XDP programs, if the kernel reports it (Linux 6.3).
pub(crate) fn native(name: &str) -> Option<bool> {
    let features = interface::index(name).and_then(|index| Netdev::open()?.xdp_features(index));
    Some(features.ok()? & XDP_BASIC != 0)
}

/// Whether generic XDP helps on an interface.
///
/// # Errors
/// Unsupported for virtual interfaces: their frames were merged (GRO) and counted against
/// the host by the interface below before the program sees them. The text names that
/// interface.
pub fn check_generic(interface: &str) -> io::Result<()> {
    if is_physical(interface) {
        return Ok(());
    }
    let lower = lower_interfaces(interface);
    let text = if lower.is_empty() {
        format!(
            "{interface} cannot be taken over: its driver has no native XDP, and generic XDP would see frames \
             of a virtual interface only after the kernel has worked on them; take a network card or a veth \
             instead"
        )
    } else {
        format!(
            "{interface} has no native XDP, and generic XDP would see its frames only after the interface \
             below has merged them; take over that one: {}",
            lower.join(" or ")
        )
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// The interfaces under a VLAN, a bond or a bridge: its parent or its ports.
pub fn lower_interfaces(interface: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/sys/class/net/{interface}"));
    let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        Some(name.to_str()?.strip_prefix("lower_")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A process that has an interface's XDP program attached by a link (proc_pid_fdinfo(5)).
/// `None` where this process may not look, or if a link is pinned and no process has it
/// open.
fn holder(interface: &str) -> Option<String> {
    let index = interface::index(interface).ok()?;
    let program = Rtnetlink::open().ok()?.link(index).ok()?.xdp_program?;
    // The index of an interface may be another's in another network namespace.
    let wanted = ["link_type:\txdp".to_owned(), format!("prog_id:\t{program}")];
    let is_link = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        wanted.iter().all(|line| text.lines().any(|it| it == line))
    };
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let has_link = |process: &Path| {
        let mut descriptors = entries(&process.join("fdinfo"));
        descriptors.any(|descriptor| is_link(&descriptor.path()))
    };
    let mut processes = entries(Path::new("/proc")).map(|entry| entry.path());
    let process = processes.find(|process| has_link(process))?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let number = process.file_name()?.to_str()?;
    Some(format!("process {number} ({})", name.trim()))
}

pub(crate) fn attach_error(interface: &str, error: io::Error) -> io::Error {
    let errno = error.raw_os_error();
    let refuses = |what: &str| {
        format!(
            "the driver of {interface} refuses the program {what}; dmesg may say why, often it is an offload \
             (ethtool -K {interface} lro off rx-gro-hw off) or the MTU"
        )
    };
    let text = match errno {
        Some(libc::EBUSY) => format!(
            "another XDP program is attached to {interface}{} (see: ip -details link show dev {interface})",
            holder(interface).map_or(String::new(), |holder| format!(" by {holder}"))
        ),
        Some(libc::EOPNOTSUPP) if native(interface) == Some(true) => refuses("as it is set up now"),
        Some(libc::EOPNOTSUPP) => match check_generic(interface) {
            Err(refused) => return refused,
            Ok(()) => {
                format!("the driver of {interface} has no native XDP; generic XDP helps there")
            }
        },
        Some(libc::EINVAL) => refuses("as invalid"),
        Some(libc::ERANGE) => format!(
            "the driver of {interface} takes no XDP program at this MTU; one that knows no frames in several \
             buffers takes it up to 3506: ip link set dev {interface} mtu 1500, and the other end of a veth likewise"
        ),
        _ => return describe(&format!("attach to {interface}"), error),
    };
    io::Error::new(kind_of(errno), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(error: &io::Error) -> &Refused {
        let inner = error.get_ref().unwrap();
        inner.downcast_ref().unwrap()
    }

    #[test]
    fn the_verifier_s_refusal_shows_the_end_of_its_log() {
        let log: String = (0..40)
            .map(|line| format!("{line}: (bf) r1 = r2\n\n"))
            .collect();
        let log = format!("{log}R3 unbounded memory access\nprocessed 41 insns\n");
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = refused("load it", &denied, &log, "6.12.95+deb12-amd64");
        // Not a matter of privileges, though the kernel's answer suggests it.
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let found = parts(&error);
        assert!(
            found
                .cause
                .contains("verifier of Linux 6.12.95+deb12-amd64")
        );
        assert_eq!(found.log.len(), LOG_LINES);
        assert_eq!(found.log[LOG_LINES - 1], "R3 unbounded memory access");
        assert!(found.remedy.contains("report"), "{}", found.remedy);
        let text = error.to_string();
        assert!(
            text.contains("\n    R3 unbounded memory access\n"),
            "{text}"
        );
        assert!(!text.contains("root"), "{text}");
        let old = refused("load it", &denied, &log, "5.10.0-28-amd64");
        assert!(parts(&old).remedy.contains("6.1 and later: install"));
    }

    #[test]
    fn a_refusal_without_a_log_is_not_the_verifier_s() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = refused("load it", &denied, "", "6.12.0");
        assert!(!error.to_string().contains("the verifier of"), "{error}");
        assert!(parts(&error).remedy.contains("security module"));
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(version("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("unheard of"), None);
    }
}
