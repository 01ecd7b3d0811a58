//! What the daemon keeps of root's powers (capabilities(7)), and why no more.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use tidewall_device::capabilities::{
    BPF, Capability, IPC_LOCK, NET_ADMIN, NET_RAW, PERFMON, SYS_NICE,
};

/// What it does not work without: programs and maps (CAP_BPF, CAP_PERFMON), attaching
/// them, settings and neighbours (CAP_NET_ADMIN), AF_XDP sockets (CAP_NET_RAW).
const KEPT: [Capability; 4] = [NET_ADMIN, NET_RAW, BPF, PERFMON];

/// The capabilities that there are have numbers below this.
const NUMBERS: u32 = 64;

/// Gives up, for good, whatever this process may do beyond [`KEPT`]; CAP_SYS_NICE it keeps
/// for private mode, if it has it. To be called before there is another thread.
///
/// # Errors
/// PermissionDenied, with the cure, where one of those is missing; what the kernel reports.
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
    // In a container its limit cannot be raised, as a rule.
    let locks = (!unlock_memory()).then_some(IPC_LOCK);
    let locks = locks.filter(|&locks| effective.bits() & bit(locks) != 0);
    set_no_new_privs(true)?;
    let nice = private.then_some(SYS_NICE);
    let nice = nice.filter(|&nice| effective.bits() & bit(nice) != 0);
    let kept: u64 = KEPT.into_iter().chain(locks).chain(nice).map(bit).sum();
    for number in (0..NUMBERS).filter(|number| kept & 1 << number == 0) {
        let other = CapabilitySet::from_bits_retain(1 << number);
        // Beyond the last there is nothing to take away; without CAP_SETPCAP the set stays,
        // which nothing is taken from any more: nobody here executes a program.
        let _ = remove_capability_from_bounding_set(other);
    }
    // Older kernels have none.
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

/// As many as this process may have: a connection takes one, and each queue of a private
/// application another. Nobody here executes a program, which would inherit it.
fn allow_descriptors() {
    let hard = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: hard,
        maximum: hard,
    };
    // Otherwise it has those that it began with.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Frame memory counts against RLIMIT_MEMLOCK, with that of all processes of the user,
/// unless CAP_IPC_LOCK is there. True where there is no limit now.
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
