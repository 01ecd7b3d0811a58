//! Configuration of an embedded stack.

use std::io;
use std::time::Duration;

use tidewall_manager::XdpMode;
use tidewall_manager::adaptor::{Adaptor, Card, SteeringVeth};
use tidewall_manager::restore::Restorer;
use tidewall_protocol::tcp::Sysctl;
use tidewall_receive::architecture::Architecture;
use tidewall_receive::control::PolicyKind;

use super::receiving::{ReceiveControl, Receiving, check_budget, invalid};
use crate::receiver::TrafficClass;

/// Least [`EmbeddedConfig::frames`].
const FRAMES_MIN: u32 = 4096;

/// Configuration of an embedded stack: one process that owns an interface's queues and
/// everything above them.
///
/// Only the interface is required. Each other parameter has a setter. Its text states the
/// meaning, the range and the default, a reason to set it, and the symptom of a wrong
/// value. [`StackHandle::embedded`] checks all parameters before it changes anything.
///
/// ```
/// use tidewall_stack::stack::EmbeddedConfig;
///
/// let config = EmbeddedConfig::new("eth0").tcp_memory(1 << 30);
/// assert_eq!(config.interface(), "eth0");
/// ```
///
/// [`StackHandle::embedded`]: crate::StackHandle::embedded
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    pub(super) interface: String,
    pub(super) queues: u32,
    pub(super) frames: u32,
    pub(super) xdp: Option<XdpMode>,
    pub(super) receiving: Receiving,
    budget: Option<u32>,
    interrupt_interval: Option<Duration>,
    pub(super) tcp: Option<Sysctl>,
    pub(super) tcp_memory: Option<u64>,
    pub(super) tcp_orphans: Option<u64>,
    pub(super) control: bool,
    steers: bool,
    /// The veth's other end that steers in a card's place: its namespace and name.
    steering_peer: Option<(String, String)>,
}

impl EmbeddedConfig {
    /// Creates the default configuration for the interface of this name, in the caller's
    /// network namespace.
    ///
    /// Wrong: `NotFound`; `Unsupported` for a VLAN, a bridge or a bond, with the name of
    /// the interface below.
    pub fn new(interface: impl Into<String>) -> Self {
        EmbeddedConfig {
            interface: interface.into(),
            queues: 0,
            frames: 8192,
            xdp: None,
            receiving: Receiving {
                spin: None,
                ..Receiving::default()
            },
            budget: None,
            interrupt_interval: None,
            tcp: None,
            tcp_memory: None,
            tcp_orphans: None,
            control: true,
            steers: true,
            steering_peer: None,
        }
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the frames of memory per queue.
    pub fn frames_of_queue(&self) -> u32 {
        self.frames
    }

    // ---- The device ---------------------------------------------------------

    /// Sets the number of receive queues, 1 to 8; the stack takes all queues of the
    /// interface. 0, which is the default: as many as it has, 8 at most.
    ///
    /// Why: an interface with more than 8 must have fewer first (`ethtool -L IF combined
    /// 8`). Wrong: EINVAL names how many there are; `stat`: `no-socket` grows if queues
    /// were added later.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets the frames of memory per queue: a power of two from 4096, 8192 by default. A
    /// frame has 2 KiB, or 4 KiB if the MTU or zero-copy mode needs it.
    ///
    /// Why: many sockets with long queues. Wrong: `stat`: `copied-out` or
    /// `application-full` grows.
    #[must_use]
    pub fn frames(mut self, frames: u32) -> Self {
        self.frames = frames;
        self
    }

    /// Sets the place at which the driver program runs. `None`, which is the default: in
    /// the driver, or, on a card whose driver has no native XDP, generically.
    ///
    /// Why: to measure the difference. Wrong: `doctor` reports generic on a driver that
    /// has native XDP.
    #[must_use]
    pub fn xdp(mut self, mode: impl Into<Option<XdpMode>>) -> Self {
        self.xdp = mode.into();
        self
    }

    // ---- Receiving ----------------------------------------------------------

    /// Sets which thread runs which stage. [`Architecture::Tidewall`] by default, and
    /// outside comparisons.
    #[must_use]
    pub fn architecture(mut self, architecture: Architecture) -> Self {
        self.receiving.architecture = architecture;
        self
    }

    /// CPU of the threads that the architectures to compare with need. `None`, which is
    /// the default: any. Wrong: EINVAL for a CPU that is not there.
    #[must_use]
    pub fn receiver_cpu(mut self, cpu: impl Into<Option<usize>>) -> Self {
        self.receiving.receiver_cpu = cpu.into();
        self
    }

    /// Sets the receive control policy, which sets Bp (frames per round) and T (least
    /// time between two interrupts). [`PolicyKind::Adaptive`] by default.
    ///
    /// Why: to compare. Wrong: `stat --watch`: the mode alternates, or the device's ring
    /// overflows.
    #[must_use]
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.receiving.policy = policy;
        self
    }

    /// Sets the largest Bp, in frames per round, [`BUDGET_MIN`] to [`BUDGET_MAX`]; for
    /// `napi` the Bp. `None`, which is the default: 3000, or 256 if the receiver polls
    /// for itself.
    ///
    /// Why: a round takes too long for other queues or classes. Wrong: classes below the
    /// first starve.
    ///
    /// [`BUDGET_MIN`]: tidewall_receive::control::BUDGET_MIN
    /// [`BUDGET_MAX`]: tidewall_receive::control::BUDGET_MAX
    #[must_use]
    pub fn budget(mut self, frames: impl Into<Option<u32>>) -> Self {
        self.budget = frames.into();
        self
    }

    /// Longest T, up to [`INTERVAL_MAX`]; of `napi` the T. `None`, which is the default:
    /// 200 µs, in which a device ring of 256 frames does not overflow; of `napi` zero.
    ///
    /// Why: the ring is large and processor time matters more than latency. Wrong:
    /// `stat`: the ring overflows at rates that the processor bears.
    ///
    /// [`INTERVAL_MAX`]: tidewall_receive::control::INTERVAL_MAX
    #[must_use]
    pub fn interrupt_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.interrupt_interval = interval.into();
        self
    }

    /// Sets the traffic classes, at most as many as receive queues: frames of the first
    /// come on queue 0 and are polled first. None by default: all queues are equal.
    ///
    /// Why: one service must keep its rate while another is flooded. Wrong: the flooded
    /// class delays the others; `doctor` reports whether flows can be steered.
    #[must_use]
    pub fn classes(mut self, classes: impl Into<Vec<TrafficClass>>) -> Self {
        self.receiving.classes = classes.into();
        self
    }

    /// Sets the longest time that a blocking call polls before it sleeps; zero: not at
    /// all.
    ///
    /// `None`, which is the default: it polls for the processor time of a sleep, which is
    /// measured when the stack begins. Polling in vain then costs no more than it could
    /// have saved. It polls for longer, up to two late wake-ups, if a trial shows that an
    /// answer then costs at most a tenth more processor time. This is so for a client
    /// that waits for each answer.
    ///
    /// A call polls if something was sent since the wait before, and the more rarely the
    /// more often polling was in vain. So a client that asks again at once is answered
    /// without a wake-up (`tidewall lab run lrp-base`), and an idle stack does not poll.
    ///
    /// Why: answers are owed at intervals longer than that. Wrong: a service that seldom
    /// receives anything uses processor time.
    #[must_use]
    pub fn spin(mut self, spin: impl Into<Option<Duration>>) -> Self {
        self.receiving.spin = spin.into();
        self
    }

    /// Sets whether a flooded UDP port may get the last receive queue for itself, by the
    /// card's own rules, while the flood lasts. True by default. It needs two queues and
    /// a card with ntuple rules, and no traffic classes.
    ///
    /// Why: another program sets the card's rules. Wrong: a flood at one port costs the
    /// others; the warnings report that the device cannot steer.
    #[must_use]
    pub fn steer(mut self, steers: bool) -> Self {
        self.steers = steers;
        self
    }

    /// Has the other end of a veth steer in a card's place (`bpf/adaptor.bpf.c`): for
    /// tests and the laboratory.
    #[doc(hidden)]
    #[must_use]
    pub fn steering_peer(mut self, namespace: &str, interface: &str) -> Self {
        self.steering_peer = Some((namespace.to_owned(), interface.to_owned()));
        self
    }

    // ---- TCP ----------------------------------------------------------------

    /// Sets the parameters that TCP connections begin with. `None`, which is the default:
    /// those of the caller's network namespace when the stack starts, as for a program on
    /// Linux. They are read from `/proc/sys/net/ipv4/tcp_…`, those of [`Sysctl::NAMES`].
    ///
    /// Why: this program's connections are to differ from the host's.
    #[must_use]
    pub fn tcp(mut self, sysctl: impl Into<Option<Sysctl>>) -> Self {
        self.tcp = sysctl.into();
        self
    }

    /// Bytes of memory that data of all TCP connections may take
    /// (`Stack::set_tcp_memory`). `None`, which is the default: 3/32 of the
    /// memory that there is for this process, as Linux's `tcp_mem`.
    ///
    /// Why: other programs need the memory, or windows are large. Wrong: `stat`:
    /// `no-memory` grows, and "memory of data" stands at its limit.
    #[must_use]
    pub fn tcp_memory(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.tcp_memory = bytes.into();
        self
    }

    /// Closed TCP connections that the stack drives at most
    /// (`Stack::set_tcp_orphans`). 65,536 by default, as `tcp_max_orphans`.
    ///
    /// Why: very many slow clients. Wrong: `stat`: `orphans-reset` grows.
    #[must_use]
    pub fn tcp_orphans(mut self, connections: u64) -> Self {
        self.tcp_orphans = Some(connections);
        self
    }

    // ---- The operator -------------------------------------------------------

    /// Sets whether this process serves `tidewall stat` and `tidewall trace`. True by
    /// default.
    ///
    /// Why: a process that may not write to `/run`. Wrong: `stat` does not list it.
    #[must_use]
    pub fn control(mut self, serve: bool) -> Self {
        self.control = serve;
        self
    }

    /// Returns the adaptor that gives a flooded port a separate queue; `None` if that is
    /// not allowed.
    pub(super) fn adaptor(&self, restorer: &Restorer) -> Option<Box<dyn Adaptor>> {
        let receiving = &self.receiving;
        if !self.steers || !receiving.classes.is_empty() || receiving.architecture.has_threads() {
            return None;
        }
        Some(match &self.steering_peer {
            Some((namespace, peer)) => Box::new(SteeringVeth::new(namespace, peer, restorer)),
            None => Box::new(Card::new(&self.interface, restorer)),
        })
    }

    /// Checks everything that can be before anything is touched, and finds the limits of
    /// receive control.
    pub(super) fn checked(mut self) -> io::Result<Self> {
        if self.frames < FRAMES_MIN {
            return invalid(format!("frames must be at least {FRAMES_MIN}"));
        }
        let Receiving {
            architecture,
            classes,
            policy,
            ..
        } = &self.receiving;
        let control = ReceiveControl {
            policy: *policy,
            budget: self.budget,
            interrupt_interval: self.interrupt_interval,
        };
        let limits = control.limits(*architecture)?;
        for class in classes {
            check_budget(class.budget)?;
        }
        let mut ports = classes.iter().flat_map(|class| &class.ports);
        if ports.any(|&port| port == 0) {
            return invalid("port 0 is nobody's traffic class".to_owned());
        }
        if !classes.is_empty() && architecture.has_threads() {
            return invalid(format!(
                "traffic classes are for {}: under {architecture} threads receive, a queue each",
                Architecture::Tidewall,
            ));
        }
        self.receiving.limits = limits;
        Ok(self)
    }
}
