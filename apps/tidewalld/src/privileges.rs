//! The root privileges that the daemon keeps (capabilities(7)), and why it keeps no more.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use tidewall_device::capabilities::{
    BPF, Capability, IPC_LOCK, NET_ADMIN, NET_RAW, PERFMON, SYS_NICE,
};

/// The capabilities that the daemon cannot work without:
/// - CAP_BPF and CAP_PERFMON for programs and maps
/// - CAP_NET_ADMIN for attaching them, settings and neighbours
/// - CAP_NET_RAW for AF_XDP sockets
const KEPT: [Capability; 4] = [NET_ADMIN, NET_RAW, BPF, PERFMON];

/// Capability numbers are below this.
const NUMBERS: u32 = 64;

/// Drops for good every privilege of this process beyond [`KEPT`]. For private mode it
/// keeps CAP_SYS_NICE, if it has that. Must be called before another thread exists.
///
/// # Errors
/// PermissionDenied, with the remedy, if one of those is missing; otherwise the kernel's
/// error.
pub fn reduce(private: bool) -> io::Result<()> {
    let effective = capabilities(None)?.effective;
    let missing: Vec<&str> = (KEPT.iter())
        .filter(|kept| effective.bits() & bit(**kept) == 0)
        .map(|kept| kept.name())
        .collect();
    if !missing.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            cure(&missing),
        ));
    }
    allow_descriptors();
    // A container usually cannot raise the limit.
    let locks = (!unlock_memory()).then_some(IPC_LOCK);
    let locks = locks.filter(|&locks| effective.bits() & bit(locks) != 0);
    set_no_new_privs(true)?;
    let nice = private.then_some(SYS_NICE);
    let nice = nice.filter(|&nice| effective.bits() & bit(nice) != 0);
    let kept: u64 = KEPT.into_iter().chain(locks).chain(nice).map(bit).sum();
    for number in (0..NUMBERS).filter(|number| kept & 1 << number == 0) {
        let other = CapabilitySet::from_bits_retain(1 << number);
        // Fails beyond the last capability, and without CAP_SETPCAP. The set stays then,
        // but nothing draws on it: this process executes no program.
        let _ = remove_capability_from_bounding_set(other);
    }
    // Older kernels have no ambient set.
    let _ = clear_ambient_capability_set();
    let kept = CapabilitySet::from_bits_retain(kept);
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

fn bit(capability: Capability) -> u64 {
    1 << capability.number()
}

fn cure(missing: &[&str]) -> String {
    let missing = missing.join(", ");
    format!(
        "this process lacks {missing}: run it as root; in a container with --cap-add for each of \
         NET_ADMIN, NET_RAW, BPF and PERFMON; or see packaging/systemd/tidewalld@.service"
    )
}

/// Raises the descriptor limit to its maximum: each connection takes one descriptor, and
/// so does each queue of a private application. No program inherits the limit, since this
/// process executes none.
fn allow_descriptors() {
    let hard = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: hard,
        maximum: hard,
    };
    // On failure the initial limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Lifts RLIMIT_MEMLOCK, against which the frame memory of all the user's processes
/// counts unless they have CAP_IPC_LOCK. Returns whether there is no limit now.
fn unlock_memory() -> bool {
    let hard = getrlimit(Resource::Memlock).maximum;
    let set = |most| {
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(Resource::Memlock, limit).is_ok()
    };
    set(None) || (set(hard) && hard.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_leaves_what_is_kept() {
        let unit = include_str!("../../../packaging/systemd/tidewalld@.service");
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let names: Vec<&str> = line.unwrap().split(' ').collect();
        let kept = KEPT.into_iter().chain([SYS_NICE]);
        assert_eq!(names, kept.map(Capability::name).collect::<Vec<_>>());
    }
}
