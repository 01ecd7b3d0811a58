//! How to start an embedded stack.

use std::io;
use std::time::Duration;

use tidewall_manager::XdpMode;
use tidewall_protocol::tcp::Sysctl;
use tidewall_receive::architecture::Architecture;
use tidewall_receive::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, Limits, PolicyKind};

use crate::receiver::TrafficClass;
use crate::tcp::memory::ORPHANS_MAX;

/// Largest Bp of a receiver that polls for itself, unless told otherwise: half
/// of what a channel holds by default. A larger round overflows it before
/// anybody can read, and after each pause a policy tries the largest again
/// (RHIP lost 15,000 frames/s so).
const OWN_BUDGET: u32 = crate::udp::DEFAULT_RECEIVE_LIMIT / 2;

/// How to start an embedded stack: one process that owns an interface's queues
/// and everything above them.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Interface name, in the caller's network namespace.
    pub interface: String,
    /// Receive queues of the interface, all of which are taken; 0: as many as
    /// it has, 8 at most.
    pub queues: u32,
    /// Who runs which stage; [`Architecture::NiLrp`] outside comparisons.
    pub architecture: Architecture,
    /// CPU of the threads that the host architectures need; `None`: any.
    pub receiver_cpu: Option<usize>,
    /// Receive control policy, which sets Bp and T.
    pub policy: PolicyKind,
    /// Largest Bp, frames a round, 2 to 3000; of `napi` the Bp. `None`: 3000,
    /// or 256 where the receiver polls for itself.
    pub budget: Option<u32>,
    /// Longest T, up to 1 ms; of `napi` the T. `None`: 200 µs, in which a device
    /// ring of 256 frames does not overflow; of `napi` zero.
    pub interrupt_interval: Option<Duration>,
    /// Traffic classes, the first of which comes on queue 0 and is polled first.
    /// None: all queues are equal.
    pub classes: Vec<TrafficClass>,
    /// How long, at most, a blocking call polls before it sleeps; zero: not at
    /// all. It does so after a wait that would have ended within that time and
    /// in which an answer was owed, and until one does not: a client that asks
    /// again at once is answered without a wake-up (3.6 µs for 19.8 µs,
    /// docs/results.md), and an idle stack polls for nobody.
    pub spin: Duration,
    /// Frames of memory a queue, 2 KiB each; a power of two from 4096.
    pub frames: u32,
    /// Where the driver program is to run. `None`: in the driver, or, on a card
    /// whose driver has no native XDP, generically.
    pub xdp: Option<XdpMode>,
    /// What TCP connections begin with. `None`: what the caller's network namespace
    /// says when the stack starts (`/proc/sys/net/ipv4/tcp_…`, those of
    /// [`Sysctl::NAMES`]), as a program on Linux has it.
    pub tcp: Option<Sysctl>,
    /// Bytes of memory that data of all TCP connections may take
    /// ([`crate::Stack::set_tcp_memory`]). `None`: 3/32 of the memory that there is for this
    /// process, as Linux's `tcp_mem`.
    pub tcp_memory: Option<u64>,
    /// Closed TCP connections that the stack drives at most
    /// ([`crate::Stack::set_tcp_orphans`]).
    pub tcp_orphans: u64,
    /// Serve `tidewall stat` and `tidewall trace` for this process.
    pub control: bool,
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        EmbeddedConfig {
            interface: String::new(),
            queues: 0,
            architecture: Architecture::NiLrp,
            receiver_cpu: None,
            policy: PolicyKind::default(),
            budget: None,
            interrupt_interval: None,
            classes: Vec::new(),
            spin: Duration::from_micros(20),
            frames: 8192,
            xdp: None,
            tcp: None,
            tcp_memory: None,
            tcp_orphans: ORPHANS_MAX,
            control: true,
        }
    }
}

impl EmbeddedConfig {
    /// The limits of receive control, checked before anything is touched.
    pub(super) fn limits(&self) -> io::Result<Limits> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let of_classes = self.classes.iter().filter_map(|class| class.budget);
        for budget in self.budget.into_iter().chain(of_classes) {
            if !(BUDGET_MIN..=BUDGET_MAX).contains(&budget) {
                return invalid(format!(
                    "budget is {budget}; it must be {BUDGET_MIN} to {BUDGET_MAX} frames"
                ));
            }
        }
        if self
            .classes
            .iter()
            .flat_map(|class| &class.ports)
            .any(|&port| port == 0)
        {
            return invalid("port 0 is nobody's traffic class".to_owned());
        }
        if !self.classes.is_empty() && self.architecture.has_threads() {
            return invalid(format!(
                "traffic classes are for {}: under {} threads receive, a queue each",
                Architecture::NiLrp,
                self.architecture
            ));
        }
        if let Some(interval) = self.interrupt_interval
            && interval > INTERVAL_MAX
        {
            return invalid(format!(
                "interval is {interval:?}; it must be at most {INTERVAL_MAX:?}"
            ));
        }
        let usual = self.policy.limits();
        let preempts = self.architecture.has_threads();
        let most = if preempts { usual.budget } else { OWN_BUDGET };
        Ok(Limits {
            budget: self.budget.unwrap_or(usual.budget.min(most)),
            interrupt_interval: self.interrupt_interval.unwrap_or(usual.interrupt_interval),
            preempts,
            ..usual
        })
    }
}
