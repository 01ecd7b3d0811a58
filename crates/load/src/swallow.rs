//! Answers to addresses that nobody has.

use std::io;
use std::os::fd::OwnedFd;

use crate::neighbour;
use crate::prefix::Prefix;
use crate::raw_bpf::attach_swallowing;

/// An XDP program on an interface that drops what comes for the sources of a
/// flood. Nobody would send an attacker the answers to addresses that are not
/// his; a generator that gets them all loses those of its own clients in
/// between. It goes when this is dropped.
#[derive(Debug)]
pub struct Swallow {
    _link: OwnedFd,
}

impl Swallow {
    /// Attaches it in the calling thread's namespace. Needs CAP_BPF and
    /// CAP_NET_ADMIN. A veth with GRO whose interrupts are deferred is to be at
    /// rest: one that is between two polls forgets to poll again.
    ///
    /// # Errors
    /// `PermissionDenied` for an interface that is no veth in a namespace of
    /// its own; EBUSY where another program is attached; what the kernel
    /// reports.
    pub fn attach(interface: &str, destination: &Prefix) -> io::Result<Self> {
        let link = neighbour::link(interface)?;
        neighbour::permit(&link, neighbour::in_own_namespace(), false, false)?;
        let link = attach_swallowing(link.index, destination).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no XDP program on {interface}: {error}"),
            )
        })?;
        Ok(Swallow { _link: link })
    }
}
