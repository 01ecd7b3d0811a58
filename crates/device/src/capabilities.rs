//! The capabilities (capabilities(7)) that the kernel requires of a process before it
//! hands a device over. If the kernel refused although the process has them: other
//! possible causes.

use std::fs::read_to_string;

/// One capability: its number in linux/capability.h and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    number: u32,
    name: &'static str,
}

const fn capability(number: u32, name: &'static str) -> Capability {
    Capability { number, name }
}

/// Attaches a program, sets an interface's knobs.
pub const NET_ADMIN: Capability = capability(12, "CAP_NET_ADMIN");
/// Opens AF_XDP sockets.
pub const NET_RAW: Capability = capability(13, "CAP_NET_RAW");
/// Locks memory beyond RLIMIT_MEMLOCK.
pub const IPC_LOCK: Capability = capability(14, "CAP_IPC_LOCK");
const SYS_ADMIN: Capability = capability(21, "CAP_SYS_ADMIN");
/// Uses real-time scheduling.
pub const SYS_NICE: Capability = capability(23, "CAP_SYS_NICE");
/// Exceeds resource limits.
pub const SYS_RESOURCE: Capability = capability(24, "CAP_SYS_RESOURCE");
/// Allows a program pointer arithmetic and loops.
pub const PERFMON: Capability = capability(38, "CAP_PERFMON");
/// Loads programs and creates maps.
pub const BPF: Capability = capability(39, "CAP_BPF");

/// The command, without the program's path, that grants an embedded stack all it needs.
pub const SETCAP: &str = "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep";
/// Capabilities needed to load the driver program.
pub const LOAD: [Capability; 3] = [BPF, NET_ADMIN, PERFMON];

impl Capability {
    /// Its name, as capabilities(7) writes it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Its number in linux/capability.h.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// The capabilities of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u64);

impl Set {
    /// The effective capabilities of this process; empty if /proc cannot be read.
    pub fn effective() -> Self {
        Self::of_status(&read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// `CapEff` of a /proc/PID/status.
    fn of_status(status: &str) -> Self {
        let bits = field(status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Set(bits.unwrap_or(0))
    }

    /// Whether the set includes a capability, or one that implies it.
    pub fn has(self, capability: Capability) -> bool {
        let includes = |other: Capability| self.0 & 1 << other.number != 0;
        let by_admin = matches!(capability, BPF | PERFMON) && includes(SYS_ADMIN);
        includes(capability) || by_admin
    }

    /// Names of those of `wanted` that are missing.
    pub fn missing(self, wanted: &[Capability]) -> Vec<&'static str> {
        let wanted = wanted.iter().filter(|&&wanted| !self.has(wanted));
        wanted.map(|missing| missing.name()).collect()
    }
}

impl<const N: usize> From<[Capability; N]> for Set {
    fn from(capabilities: [Capability; N]) -> Self {
        Set(capabilities
            .iter()
            .fold(0, |bits, each| bits | 1 << each.number))
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.map(str::trim)
}

/// Explains why the kernel returns EPERM: cause and remedy. `wanted`: the capabilities
/// that the call requires.
pub fn refusal(wanted: &[Capability]) -> (String, String) {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    explain(
        Set::effective(),
        wanted,
        &Surroundings {
            status: read("/proc/self/status"),
            user_map: read("/proc/self/uid_map"),
            lockdown: read("/sys/kernel/security/lockdown"),
        },
    )
}

/// Whether this process is in a user namespace, in which capabilities do not count for the whole
/// host.
pub fn are_confined() -> bool {
    is_user_namespace(&read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// Whether this map is of a user namespace other than the first, which maps every number
/// to itself.
fn is_user_namespace(user_map: &str) -> bool {
    let first: Vec<&str> = user_map.split_whitespace().collect();
    !first.is_empty() && first != ["0", "0", "4294967295"]
}

/// Files that show other causes of a refusal.
struct Surroundings {
    status: String,
    user_map: String,
    lockdown: String,
}

fn explain(effective: Set, wanted: &[Capability], around: &Surroundings) -> (String, String) {
    let missing = effective.missing(wanted);
    if !missing.is_empty() {
        return (
            format!("this process lacks {}", missing.join(", ")),
            format!("run it as root, or: {SETCAP} PROGRAM"),
        );
    }
    let names: Vec<&str> = wanted.iter().map(|each| each.name()).collect();
    let cause = format!("refused although {} are there", names.join(", "));
    if is_user_namespace(&around.user_map) {
        return (
            format!(
                "{cause}: this is a user namespace, in which they do not count for the whole host"
            ),
            "run it outside, or in a container with the host's users".to_owned(),
        );
    }
    if field(&around.status, "Seccomp:") == Some("2") {
        return (
            format!("{cause}: a seccomp filter is in force, as container runtimes set one"),
            "allow bpf(2) in the container's seccomp profile".to_owned(),
        );
    }
    if around.lockdown.contains("[confidentiality]") {
        return (
            format!("{cause}: the kernel is locked down (confidentiality)"),
            "boot without lockdown=confidentiality".to_owned(),
        );
    }
    (
        format!(
            "{cause}: a security module may forbid it, or kernel.unprivileged_bpf_disabled and the like"
        ),
        "see: dmesg; sysctl kernel.unprivileged_bpf_disabled".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "         0          0 4294967295\n";

    fn around(status: &str, user_map: &str, lockdown: &str) -> Surroundings {
        Surroundings {
            status: status.to_owned(),
            user_map: user_map.to_owned(),
            lockdown: lockdown.to_owned(),
        }
    }

    #[test]
    fn the_effective_set_is_read() {
        let set = Set::of_status("Name:\tx\nCapEff:\t000001fffeffffff\nSeccomp:\t0\n");
        assert_eq!(set, Set(0x1ff_feff_ffff));
        assert!(!set.has(SYS_RESOURCE) && set.has(SYS_NICE));
        assert_eq!(Set::of_status("CapEff:\tno number\n"), Set(0));
    }

    #[test]
    fn sys_admin_includes_bpf_and_perfmon_alone() {
        let set = Set::from([SYS_ADMIN]);
        assert_eq!(set.missing(&LOAD), ["CAP_NET_ADMIN"]);
        assert_eq!(
            Set::from([NET_ADMIN]).missing(&LOAD),
            ["CAP_BPF", "CAP_PERFMON"]
        );
        assert!(Set::from(LOAD).missing(&LOAD).is_empty());
    }

    #[test]
    fn each_refusal_has_a_cause_and_a_remedy() {
        let plain = around("Seccomp:\t0\n", ROOT, "[none] integrity confidentiality\n");
        let (cause, remedy) = explain(Set::from([NET_ADMIN, PERFMON]), &LOAD, &plain);
        assert_eq!(cause, "this process lacks CAP_BPF");
        assert!(remedy.contains("cap_bpf"), "{remedy}");
        let all = Set::from(LOAD);
        let cause = |around: &Surroundings| {
            let (cause, remedy) = explain(all, &LOAD, around);
            assert!(!remedy.is_empty());
            cause
        };
        assert!(cause(&plain).contains("security module"));
        let user = around("", "0 1000 1\n", "");
        assert!(cause(&user).contains("user namespace"));
        let filter = around("Seccomp:\t2\n", ROOT, "");
        assert!(cause(&filter).contains("seccomp filter"));
        let locked = around("", ROOT, "none integrity [confidentiality]\n");
        assert!(cause(&locked).contains("locked down"));
        // Without /proc nothing is claimed of namespaces.
        assert!(cause(&around("", "", "")).contains("security module"));
    }
}
