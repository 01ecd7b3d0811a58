//! The intermediary between peer and members.

use std::net::SocketAddr;

use super::star::{INTERFACES, PORT, PROXY, VIRTUAL, ip, mac, peer_ports};
use super::{Case, Load};
use crate::worker::{
    ForwardJob, ForwardSide, Job, Program, SpliceJob, SplitJob, SplitWaiting, SwitchJob,
    SwitchModule,
};

/// Headers of IPv4 and TCP.
const HEADERS: u16 = 40;

/// The intermediary between peer and members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// The transport switch.
    Switch(SwitchModule, Manner),
    /// A proxy.
    Proxy(SplitWaiting),
    /// A proxy that examines no byte, and assigns each connection to one member.
    Splice,
    /// A third-party program.
    Program(Installed),
    /// The kernel's forwarding: a connection to the first member only.
    Nobody,
    /// Frames from interface to interface over the device crate only: the same.
    Bare,
    /// No network at all: a thread on the ends' processor wakes one on the
    /// intermediary's.
    WakeUp,
}

impl Between {
    pub(super) fn name(self) -> &'static str {
        match self {
            Between::Switch(_, Manner::Usual) => "switch",
            Between::Switch(_, Manner::Sleeping) => "switch-sleeping",
            Between::Switch(_, Manner::Copying) => "switch-copies",
            Between::Proxy(SplitWaiting::Select) => "select-proxy",
            Between::Proxy(SplitWaiting::Epoll) => "epoll-proxy",
            Between::Splice => "splice-proxy",
            Between::Program(Installed::Haproxy) => "haproxy",
            Between::Program(Installed::Twemproxy) => "twemproxy",
            Between::Nobody => "direct",
            Between::Bare => "bare",
            Between::WakeUp => "wake-up",
        }
    }

    /// Returns the Debian package that is missing for it.
    pub(super) fn missing(self) -> Option<&'static str> {
        let Between::Program(program) = self else {
            return None;
        };
        let program = program.with(&[]);
        (!program.is_there()).then_some(program.executable())
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Between::Switch(_, Manner::Usual) => {
                "the loop of `tidewall switch`, AF_XDP in copy mode, in-place forwarding; \
                 kernel TCP at its ends"
            }
            Between::Switch(_, Manner::Sleeping) => {
                "the same, but it does not poll before it sleeps: its processor's idle time shows \
                 what work costs"
            }
            Between::Switch(_, Manner::Copying) => {
                "as switch-sleeping, and two copies of every payload"
            }
            Between::Proxy(SplitWaiting::Select) => {
                "kernel TCP ended on both sides; one thread, select(2), reads of up to 64 KiB, \
                 whole frames written on, blocking; receiving steered to its processor (RPS)"
            }
            Between::Proxy(SplitWaiting::Epoll) => "the same with epoll(7)",
            Between::Splice => {
                "kernel TCP ended on both sides; one thread, edge-triggered epoll(7), splice(2) \
                 through a pipe of 256 KiB a direction: no byte is copied or looked at, so a \
                 connection is one member's; receiving steered to its processor (RPS)"
            }
            Between::Program(Installed::Haproxy) => {
                "Debian's, one thread, mode tcp, splice(2) where it chooses it, no logs; a \
                 connection is one member's"
            }
            Between::Program(Installed::Twemproxy) => {
                "Debian's nutcracker, one thread; keys by ketama and fnv1a_64"
            }
            Between::Nobody => "one connection to one member, forwarded by the kernel",
            Between::Bare => {
                "the driver's poll, the driver program, two link addresses, the other interface's \
                 transmit ring, over the device crate alone; no connection is known"
            }
            Between::WakeUp => {
                "no network: half of the round trip of a byte through pipes between threads of the \
                 ends' and the intermediary's processors, both asleep"
            }
        }
    }
}

/// Programs that an operator may have installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Installed {
    /// HAProxy in TCP mode, which assigns each connection to one member.
    Haproxy,
    /// Twemproxy, which sends each command of Redis to the owner of its key.
    Twemproxy,
}

impl Installed {
    fn with(self, members: &[SocketAddr]) -> Program {
        let servers = members.to_vec();
        match self {
            Installed::Haproxy => Program::Haproxy { servers },
            Installed::Twemproxy => Program::Twemproxy { servers },
        }
    }
}

/// How a switch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// The default: it polls for an answer to what it has sent before it sleeps.
    Usual,
    /// It sleeps whenever there is nothing to do.
    Sleeping,
    /// It sleeps likewise, and copies every payload twice.
    Copying,
}

/// Starts the intermediary, if any; returns the address to which the peer connects.
pub(super) fn middle(
    between: Between,
    members: &[SocketAddr],
    case: &Case,
) -> (Option<Job>, SocketAddr) {
    let job = match between {
        Between::Switch(module, manner) => Job::Switch(SwitchJob {
            interfaces: INTERFACES.map(str::to_owned),
            address: VIRTUAL,
            members: members.to_vec(),
            local: ip(1, 1),
            segment: case.mtu.saturating_sub(HEADERS),
            module,
            ring: case.ring,
            copies: if manner == Manner::Copying { 2 } else { 0 },
            sleeps: manner != Manner::Usual,
        }),
        Between::Proxy(waiting) => Job::Split(SplitJob {
            listen: PROXY,
            members: members.to_vec(),
            waiting,
            by_block: case.load != Load::Frames,
        }),
        Between::Splice => Job::Splice(SpliceJob {
            listen: PROXY,
            members: members.to_vec(),
        }),
        Between::Program(program) => Job::Program(program.with(members), PROXY.port()),
        Between::Bare => {
            let first = SocketAddr::new(ip(1, 2), PORT);
            return (Some(Job::Forward(bare(case.connections))), first);
        }
        Between::Nobody | Between::WakeUp => {
            return (None, SocketAddr::new(ip(1, 2), PORT));
        }
    };
    let address = match job {
        Job::Switch(_) => VIRTUAL,
        _ => PROXY,
    };
    (Some(job), address)
}

/// Returns a forwarder between the peer and the first member.
fn bare(connections: u32) -> ForwardJob {
    let side = |link: u8, ports| ForwardSide {
        interface: INTERFACES[usize::from(link)].to_owned(),
        // For the other side.
        addresses: vec![ip(1 - link, 2)],
        ports,
        next_hop: mac(link, 2).0,
    };
    ForwardJob {
        sides: [side(0, vec![PORT]), side(1, peer_ports(connections))],
    }
}
