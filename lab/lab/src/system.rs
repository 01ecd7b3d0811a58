//! The compared systems, by name.

use serde::{Deserialize, Serialize};
use tidewall::tuning::{Architecture, PolicyKind};
use tidewall_service::linux::{self, BusyPoll, Receive};

use crate::bench::{Defence, SYN_LIMIT};
use crate::testbed::Mode;

/// Receive buffer of Linux sockets that do not poll, bytes: over a thousand small
/// packets, as an expert would configure for a busy server. Tidewall's channels hold 512
/// frames.
pub(crate) const RECEIVE_BUFFER: u32 = 1 << 20;
/// Packets per busy poll: the kernel's own limit.
const BUSY_BUDGET: u16 = 64;
/// Default time that a busy-polled receive call polls before it sleeps, µs.
pub(crate) const BUSY_MICROSECONDS: u32 = 50;

/// Receive control under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The policy that sets Bp and T.
    pub policy: PolicyKind,
    /// Largest Bp, frames per round; `None`: the policy's own bound.
    pub budget: Option<u32>,
    /// Longest T, µs; `None`: the policy's own bound.
    pub interval_us: Option<u32>,
    /// Frames that a socket holds, per queue; `None`: the stack's default.
    pub receive_limit: Option<u32>,
}

/// A system under comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum System {
    /// No stack at all, the limit of this machine and link: the driver's poll, count or
    /// reply in place, poll.
    Bare,
    /// Tidewall: demultiplexing in the driver, everything else in the receiver.
    #[default]
    Tidewall,
    /// The same in an unprivileged process, on queues of the device that a manager
    /// (`tidewalld`) handed over.
    Direct,
    /// The same in a process without privileges or trust, behind its own virtual pair.
    Private,
    /// The same below an unmodified program: by `tidewall run`.
    Run,
    /// The same on a device that steers: a flooded port gets its own queue. The paper's
    /// NI-LRP, whose adaptor demultiplexes.
    NiLrp,
    /// The same by generic XDP, as on a card whose driver has no native XDP.
    Generic,
    /// Demultiplexing in an interrupt thread.
    SoftLrp,
    /// The same, with eager protocol processing.
    EarlyDemux,
    /// 4.4BSD's arrangement.
    Bsd,
    /// RHIP's arrangement: a softirq of Bp frames a round.
    Softirq,
    /// Linux, receive packet steering.
    LinuxRps,
    /// Linux, timer-driven NAPI.
    LinuxTimer,
    /// Linux, busy-polled sockets.
    LinuxBusy,
    /// Linux, interrupts suspended while an event loop is busy.
    LinuxSuspend,
    /// The same behind an XDP program that limits SYNs.
    LinuxXdp,
    /// The same behind the kernel's SYN proxy.
    LinuxSynproxy,
    /// Linux by default, receiving on the sender's processor.
    LinuxPlain,
}

impl System {
    /// The kernel's modes that receive on the receiver's processor.
    pub const LINUX: [System; 3] = [System::LinuxRps, System::LinuxTimer, System::LinuxBusy];

    /// Returns its name in results.
    pub fn name(self) -> &'static str {
        match self {
            System::Bare => "bare",
            System::Tidewall => "tidewall",
            System::Direct => "direct",
            System::Private => "private",
            System::Run => "tidewall-run",
            System::NiLrp => "ni-lrp",
            System::Generic => "tidewall-generic",
            System::SoftLrp => "soft-lrp",
            System::EarlyDemux => "early-demux",
            System::Bsd => "bsd",
            System::Softirq => "softirq",
            System::LinuxRps => "linux-rps",
            System::LinuxTimer => "linux-timer",
            System::LinuxBusy => "linux-busy",
            System::LinuxSuspend => "linux-suspend",
            System::LinuxXdp => "linux-xdp",
            System::LinuxSynproxy => "linux-synproxy",
            System::LinuxPlain => "linux-plain",
        }
    }

    /// Returns the interface's mode for it.
    pub fn mode(self) -> Mode {
        match self {
            System::LinuxRps => Mode::Rps,
            System::LinuxTimer => Mode::Timer,
            System::LinuxBusy | System::LinuxXdp | System::LinuxSynproxy => Mode::Busy,
            System::LinuxSuspend => Mode::Suspend,
            System::LinuxPlain => Mode::Plain,
            _ => Mode::Tidewall,
        }
    }

    /// Returns the defence in front of its stack against a SYN flood.
    pub(crate) fn defence(self) -> Option<Defence> {
        match self {
            System::LinuxXdp => Some(Defence::SynLimit),
            System::LinuxSynproxy => Some(Defence::Synproxy),
            _ => None,
        }
    }

    /// Returns the stack's architecture, if it is Tidewall's.
    pub fn architecture(self) -> Option<Architecture> {
        match self {
            System::Tidewall
            | System::NiLrp
            | System::Direct
            | System::Private
            | System::Run
            | System::Generic => Some(Architecture::Tidewall),
            System::SoftLrp => Some(Architecture::SoftLrp),
            System::EarlyDemux => Some(Architecture::EarlyDemux),
            System::Bsd => Some(Architecture::Bsd),
            System::Softirq => Some(Architecture::Softirq),
            _ => None,
        }
    }

    /// Returns true if a manager owns the stack's device.
    pub(crate) fn is_managed(self) -> bool {
        matches!(self, System::Direct | System::Private)
    }

    /// Returns true for the kernel's own stack.
    pub fn is_linux(self) -> bool {
        self != System::Bare && self.architecture().is_none()
    }

    /// Returns true if real-time threads stand for interrupts.
    pub fn needs_real_time(self) -> bool {
        self.architecture().is_some_and(Architecture::has_threads)
    }

    /// Returns the ways of receiving to try; the better one counts.
    pub(crate) fn variants(self) -> &'static [Option<Receive>] {
        match self {
            // An event loop has only one.
            System::LinuxSuspend => &[Some(Receive::Recvmmsg)],
            _ if self.is_linux() => &[Some(Receive::Recv), Some(Receive::Recvmmsg)],
            _ => &[None],
        }
    }

    /// Returns the options of its sockets under Linux, with this `receive`. `spin`: µs of
    /// busy waiting before sleeping, if it polls.
    pub(crate) fn linux_options(
        self,
        receive: Option<Receive>,
        spin: Option<u32>,
    ) -> linux::Options {
        let busy = self.mode() == Mode::Busy;
        let busy_poll = BusyPoll {
            microseconds: spin.unwrap_or(BUSY_MICROSECONDS),
            budget: BUSY_BUDGET,
        };
        linux::Options {
            receive: receive.unwrap_or_default(),
            busy_poll: busy.then_some(busy_poll),
            epoll_busy_poll: (self.mode() == Mode::Suspend).then_some(busy_poll),
            // Draining more than the default between two polls takes longer than the
            // millisecond after which the softirq takes over, and then the softirq does
            // not stop.
            receive_buffer: (!busy).then_some(RECEIVE_BUFFER),
        }
    }

    /// Describes how it is run, for the reader of a result.
    pub fn describe(self) -> String {
        let mode = self.mode().describe();
        match self.architecture() {
            Some(Architecture::Softirq) => format!(
                "{mode}; the device wakes a thread of SCHED_FIFO 1 on the receiver's CPU, which \
                 takes Bp frames a round ahead of the application"
            ),
            Some(architecture) if architecture.has_threads() => format!(
                "{mode}; interrupt and softirq as threads of SCHED_FIFO 2 and 1 on the receiver's CPU"
            ),
            Some(_) if self == System::Direct => format!(
                "{mode}; a process without privileges, on queues that tidewalld handed over; the \
                 receiver polls the driver"
            ),
            Some(_) if self == System::Private => format!(
                "{mode}; a process without privileges, behind a virtual pair of tidewalld's; the \
                 receiver polls the driver, or with a second application a kernel thread does, on \
                 the receiver's CPU"
            ),
            Some(_) if self == System::Run => format!(
                "{mode}; the program by `tidewall run`, its calls taken by libtidewall.so; the \
                 calling thread polls the driver"
            ),
            Some(_) if self == System::NiLrp => format!(
                "{mode}; the receiver polls the driver; the sender's end of the veth steers in a \
                 card's place, a port that is flooded to a queue of its own"
            ),
            Some(_) if self == System::Generic => {
                format!("{mode}; generic XDP; the receiver polls the driver")
            }
            Some(_) => format!("{mode}; the receiver polls the driver"),
            None if self == System::Bare => format!(
                "{mode}; no stack: one thread that polls the driver and counts, or sends the frame back"
            ),
            None if self == System::LinuxXdp => format!(
                "as linux-busy; an XDP program on its interface lets {SYN_LIMIT} SYNs/s to each \
                 port pass and drops the others in the driver"
            ),
            None if self == System::LinuxSynproxy => {
                "as linux-busy; nftables' synproxy before its ports: cookies before any socket, \
                 connections tracked"
                    .to_owned()
            }
            None if self == System::LinuxBusy => format!(
                "{mode}; the better of recv and recvmmsg; SO_BUSY_POLL {BUSY_MICROSECONDS} unless \
                 said otherwise, budget {BUSY_BUDGET}, default receive buffer; for a program that does \
                 not ask for it, sysctl net.core.busy_poll and busy_read {BUSY_MICROSECONDS}"
            ),
            None if self == System::LinuxSuspend => format!(
                "{mode}; an event loop (epoll, recvmmsg) by EPIOCSPARAMS: prefer_busy_poll, \
                 {BUSY_MICROSECONDS} µs, budget {BUSY_BUDGET}; SO_RCVBUFFORCE {RECEIVE_BUFFER}"
            ),
            None => {
                format!("{mode}; the better of recv and recvmmsg; SO_RCVBUFFORCE {RECEIVE_BUFFER}")
            }
        }
    }
}
