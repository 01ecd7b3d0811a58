//! What an operator sees of a live stack: every frame that was dropped, by
//! cause and by the place where it happened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidewall_device::demux::layout::{Class, Counter};
use tidewall_manager::AfXdp;
use tidewall_manager::client::Application;
use tidewall_manager::record::Record;
use tidewall_protocol::tcp::State;
use tidewall_receive::poller::Shared;

use tidewall_sys::netlink::Rtnetlink;

pub use crate::atm::circuit_counters;
pub use crate::causes::StackCounters;
use crate::forward::Answer;
pub use crate::forward::{
    CellRoute, CellSwitchPort, CellSwitchSnapshot, SwitchMember, SwitchSnapshot, SwitchedCall,
    SwitchedEnd,
};
use crate::lock::lock;
use crate::stack::Core;

/// One moment of a stack. Counters only grow; take two for rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StackSnapshot {
    /// Process that owns the stack.
    pub process: u32,
    /// Its interface.
    pub interface: String,
    /// Its architecture's name.
    pub architecture: String,
    /// Its device, where that is an interface it has taken over.
    #[serde(default)]
    pub device: Option<DeviceSnapshot>,
    /// Interrupts are deferred, which they are while frames come for the stack.
    #[serde(default)]
    pub deferred: bool,
    /// The flooded UDP port that has a receive queue for itself, and the queue.
    #[serde(default)]
    pub steered: Option<(u16, u32)>,
    /// Microseconds since it started.
    pub microseconds: u64,
    /// Packets that the interface has received, as the kernel counts them
    /// (`ip -s link`), read after all other counters; none where there is no
    /// interface that was taken over, or procfs does not show it.
    #[serde(default)]
    pub received: Option<u64>,
    /// What its device has lost since the stack started; none as for `received`.
    #[serde(default)]
    pub losses: Option<DeviceLosses>,
    /// One entry a queue.
    pub queues: Vec<QueueSnapshot>,
    /// One entry an open UDP socket, circuit and TCP listener.
    pub sockets: Vec<SocketSnapshot>,
    /// Calls that the stack controls, those that are being released included.
    #[serde(default)]
    pub calls: Vec<CallSnapshot>,
    /// TCP connections.
    #[serde(default)]
    pub tcp: TcpSnapshot,
    /// The switch whose peers come by this interface.
    #[serde(default)]
    pub switch: Option<SwitchSnapshot>,
    /// The switch of cells whose first port is this interface.
    #[serde(default)]
    pub cell_switch: Option<CellSwitchSnapshot>,
    /// What the stages after the channel count.
    #[serde(flatten)]
    pub counters: StackCounters,
    /// What does not work as it should ([`crate::Stack::warnings`]).
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Sockets that stay with the kernel, of a program that has the stack without knowing
    /// it ([`crate::Stack::answer_unprotected`]).
    #[serde(default)]
    pub unprotected: Vec<Record>,
}

/// Frames that an interface's device has lost, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceLosses {
    /// Frames for which its receive ring had no room.
    pub receive_ring: u64,
    /// Frames sent that it dropped; of a veth, for which its peer's ring had no
    /// room.
    pub sent: u64,
}

impl DeviceLosses {
    /// What has been lost since.
    fn since(self, before: DeviceLosses) -> Self {
        DeviceLosses {
            receive_ring: self.receive_ring.saturating_sub(before.receive_ring),
            sent: self.sent.saturating_sub(before.sent),
        }
    }

    /// What the interface of a stack has lost since it was made; none where there
    /// is no interface that was taken over.
    pub(crate) fn of(core: &Core) -> Option<Self> {
        let device = core.netdev.snapshot.as_ref()?;
        let interface = lock(&core.ip.routes).interface();
        let veth = device.driver == "veth";
        let mut netlink = Rtnetlink::open().ok()?;
        let link = netlink.link(interface).ok()?;
        let of_link = link.counters.unwrap_or_default();
        let mut losses = DeviceLosses {
            receive_ring: of_link.rx_missed_errors + of_link.rx_fifo_errors,
            sent: of_link.tx_dropped,
        };
        // The peer fills a veth's receive ring, and counts what did not fit. Those
        // who may not look into its namespace know only their own side.
        if veth && let Ok(peer) = netlink.peer(&link) {
            losses.receive_ring += peer.counters.unwrap_or_default().tx_dropped;
        }
        Some(losses)
    }
}

/// The device of an embedded stack, as it was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceSnapshot {
    /// Name of its driver; empty where that does not report one.
    pub driver: String,
    /// Where the driver program runs: [`XdpMode::name`](crate::XdpMode::name).
    pub xdp: String,
    /// True when frames are moved without copying.
    pub zero_copy: bool,
    /// Receive queues, all of which the stack has.
    pub receive_queues: u32,
    /// Transmit queues.
    pub transmit_queues: u32,
    /// Who computes the checksums of long frames that are sent, and why, in
    /// words.
    pub checksums: String,
    /// The party that cuts long TCP segments into packets, and the reason, in words.
    #[serde(default)]
    pub segmentation: String,
}

impl DeviceSnapshot {
    /// Of an open device with so many receive queues.
    pub(crate) fn of(device: &AfXdp, receive_queues: u32) -> Self {
        DeviceSnapshot {
            driver: device.driver.clone(),
            xdp: device.mode.name().to_owned(),
            zero_copy: device.zero_copy,
            receive_queues,
            transmit_queues: device.transmit_queues,
            checksums: device.checksums.to_string(),
            segmentation: device.segmentation.to_string(),
        }
    }

    /// As a manager's application has it.
    pub(crate) fn of_application(device: &Application, receive_queues: u32) -> Self {
        DeviceSnapshot {
            driver: device.driver.clone(),
            xdp: device.mode.name().to_owned(),
            zero_copy: device.zero_copy,
            receive_queues,
            transmit_queues: device.transmit_queues,
            checksums: device.checksums.to_string(),
            segmentation: device.segmentation.to_string(),
        }
    }
}

impl fmt::Display for DeviceSnapshot {
    /// As `virtio_net, native XDP, copy mode, 2 receive and 2 transmit queues,
    /// checksums in software (…), segments cut by the device`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = match self.driver.as_str() {
            "" => "unknown driver",
            driver => driver,
        };
        let mode = if self.zero_copy {
            "zero-copy"
        } else {
            "copy mode"
        };
        let plural = if self.transmit_queues == 1 { "" } else { "s" };
        write!(
            formatter,
            "{driver}, {} XDP, {mode}, {} receive and {} transmit queue{plural}, checksums {}, \
             segments cut {}",
            self.xdp, self.receive_queues, self.transmit_queues, self.checksums, self.segmentation
        )
    }
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// The driver program's counters by name; only those that are not zero.
    pub driver: BTreeMap<String, u64>,
    /// Kernel-bound frames by class: passed and dropped over the rate.
    pub kernel: BTreeMap<String, (u64, u64)>,
    /// Frames appended to channels.
    pub delivered: u64,
    /// Frames for a channel that was closed meanwhile.
    pub stale: u64,
    /// Frames that the driver admitted and the receive ring lost.
    pub lost_in_ring: u64,
    /// NAPI ids that polls use, with the interrupt masked and armed; 0: frames
    /// come by interrupt.
    #[serde(default)]
    pub napi: [u32; 2],
    /// Rounds of receiving, and those that found nothing.
    pub rounds: u64,
    /// Frames that rounds had the driver process; the rest came by interrupt.
    #[serde(default)]
    pub driven: u64,
    /// Rounds that found nothing.
    pub empty_rounds: u64,
    /// Frames sent, and those refused for want of a free frame.
    pub transmitted: u64,
    /// Of the frames sent, those whose checksum the device computes.
    #[serde(default)]
    pub checksums_by_device: u64,
    /// Sends refused for want of a free frame.
    pub no_transmit_frame: u64,
    /// Segments longer than a packet, or after one, which the device or the kernel cuts.
    #[serde(default)]
    pub long_segments: u64,
    /// Bytes of payload in them.
    #[serde(default)]
    pub long_bytes: u64,
    /// Long segments that the kernel's output path dropped; sent again.
    #[serde(default)]
    pub long_dropped: u64,
    /// Long segments that the kernel had no room for; sent again.
    #[serde(default)]
    pub long_no_room: u64,
    /// Drops of a host architecture's threads by cause; only those that are not
    /// zero.
    pub host: BTreeMap<String, u64>,
    /// What receive control does.
    pub control: ControlSnapshot,
}

/// Receive control of one queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ControlSnapshot {
    /// Policy that decides, by name.
    pub policy: String,
    /// Bp: most frames a round takes now.
    pub budget: u32,
    /// T: nanoseconds between two interrupts at least; 0: one a frame.
    #[serde(rename = "interval")]
    pub interrupt_interval: u64,
    /// How frames came in the last sampling interval: `idle`, `interrupt`,
    /// `mixed` or `polling`.
    pub mode: String,
    /// Largest use of a channel in the last sampling interval, 0 to 1.
    pub buffer_use: f64,
    /// Rounds that used up their budget.
    pub exhausted_rounds: u64,
    /// Times the poller was woken by the device.
    pub interrupts: u64,
    /// Frames that found their channel full.
    pub overflowed: u64,
}

/// One call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallSnapshot {
    /// This end set it up.
    pub ours: bool,
    /// Its reference, which is its own among those that this end, or the other, set up.
    pub reference: u32,
    /// The circuit, once one is allotted: VPI and VCI.
    pub circuit: Option<String>,
    /// The state by Q.2931, as U10 or N10.
    pub state: String,
    /// `socket`; `waiting` until somebody accepts it; `releasing` when nobody has it here.
    pub held: String,
    /// The number at this end.
    pub local: Option<String>,
    /// The number at the other end, where it is known.
    pub peer: Option<String>,
}

/// Connections at most that are among a snapshot's sockets.
const LOSING_MOST: usize = 64;

/// One socket; of TCP connections those that have lost frames at a full channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SocketSnapshot {
    /// Channel number.
    pub channel: u16,
    /// Protocol name.
    pub protocol: String,
    /// Bound address, or a circuit's VPI and VCI.
    pub local: String,
    /// Peer, if connected.
    pub peer: Option<String>,
    /// Datagrams received, or connections that wait to be accepted.
    pub received: u64,
    /// Of those, through the kernel.
    pub through_kernel: u64,
    /// Frames waiting, all queues.
    pub occupancy: u32,
    /// Most frames that may wait, a queue.
    pub limit: u32,
    /// Dropped by the driver because the channel was at its limit.
    pub dropped_full: u64,
}

/// TCP connections of a stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcpSnapshot {
    /// Connections by state, those in TIME-WAIT included; only states that
    /// occur. Names as in RFC 9293, in small letters.
    pub states: BTreeMap<String, u64>,
    /// Connections that have a channel of their own.
    pub with_channel: u64,
    /// Connections that the application has closed and the stack still drives.
    pub orphans: u64,
    /// How many of those there may be; what is closed then is reset.
    #[serde(default)]
    pub orphans_max: u64,
    /// Bytes of memory that data of all connections takes.
    #[serde(default)]
    pub memory: u64,
    /// How many it may take ([`crate::Stack::set_tcp_memory`]).
    #[serde(default)]
    pub memory_max: u64,
    /// Half-open connections of all listeners.
    pub half_open: u64,
    /// Listeners whose SYNs the driver answers with cookies.
    pub cookies: u64,
    /// Timers that are armed or late.
    pub timers: u64,
    /// What happened since the start, by name: connections `opened`, `closed`,
    /// `accepted`, `accepted-by-kernel`; `refused` for want of room in the
    /// driver's tables; `time-wait-evicted`, in TIME-WAIT, to make room there;
    /// `channels-taken` from a connection for one that had more to do; times that
    /// sending was `held-up` by the device or an unresolved neighbour; orphans that
    /// were reset for their number or for memory (`orphans-reset`); segments of
    /// connections not yet there that were dropped since memory was exhausted
    /// (`no-memory`).
    pub counters: BTreeMap<String, u64>,
    /// Frames dropped in the driver at the channels that connections share, or
    /// for a flow's share of them, by channel: `shared` by connections without
    /// one of their own, `time-wait`. Only those that dropped some.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
}

impl TcpSnapshot {
    fn take(core: &Core) -> Self {
        let mut snapshot = TcpSnapshot {
            orphans: core.tcp.orphans(),
            orphans_max: core.tcp.memory.orphans_max(),
            memory: core.tcp.memory.used(),
            memory_max: core.tcp.memory.limit(),
            timers: core.tcp.timers.armed() as u64,
            counters: core
                .tcp
                .counters
                .values()
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            ..TcpSnapshot::default()
        };
        let channels = &core.tcp.channels;
        for (name, channel) in [
            ("shared", &channels.shared),
            ("time-wait", &channels.time_wait),
        ] {
            let (_, dropped) = channel_counts(core, channel.id.index());
            if dropped > 0 {
                snapshot.dropped.insert(name.to_owned(), dropped);
            }
        }
        for connection in core.tcp.flows.all() {
            let state = connection.lock();
            let name = state_name(state.connection.state());
            *snapshot.states.entry(name.to_owned()).or_default() += 1;
            snapshot.with_channel += u64::from(state.has_channel());
        }
        let waiting = lock(&core.tcp.time_wait.table).len() as u64;
        if waiting > 0 {
            *snapshot
                .states
                .entry(state_name(State::TimeWait).to_owned())
                .or_default() += waiting;
        }
        for listener in core.tcp.all_listeners() {
            let (_, half_open, cookies) = listener.counts();
            snapshot.half_open += half_open as u64;
            snapshot.cookies += u64::from(cookies);
        }
        snapshot
    }
}

/// A state's name.
fn state_name(state: State) -> &'static str {
    match state {
        State::Closed => "closed",
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
    }
}

/// Frames that wait in a channel on all queues, and those that the driver
/// dropped because it was full.
fn channel_counts(core: &Core, number: u16) -> (u32, u64) {
    let (mut occupancy, mut dropped_full) = (0, 0);
    for queue in &core.receiver.queues {
        let queue = queue.shared.queue();
        let host = core
            .receiver
            .host
            .get()
            .and_then(|host| host.get(queue as usize));
        let head = host.map_or_else(
            || core.tables.head(queue, number),
            |host| host.admitted(number),
        );
        // Read after the head, the tail may be ahead of it.
        let waiting = head.wrapping_sub(core.tables.tail(queue, number)) as i32;
        occupancy += waiting.max(0) as u32;
        dropped_full += core.tables.dropped(queue, number);
    }
    (occupancy, dropped_full)
}

impl ControlSnapshot {
    pub(crate) fn of(queue: &Shared) -> Self {
        let counters = queue.counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Some(state) = queue.control() else {
            return ControlSnapshot::default();
        };
        ControlSnapshot {
            policy: state.policy.name().to_owned(),
            budget: state.setting.budget,
            interrupt_interval: u64::try_from(state.setting.interrupt_interval.as_nanos())
                .unwrap_or(u64::MAX),
            mode: state.mode.name().to_owned(),
            buffer_use: state.last.buffer_use.into(),
            exhausted_rounds: read(&counters.exhausted_rounds),
            interrupts: read(&counters.interrupts),
            overflowed: read(&counters.overflowed),
        }
    }
}

fn host_drops(core: &Core, queue: u32) -> BTreeMap<String, u64> {
    let counters = core
        .receiver
        .host
        .get()
        .and_then(|host| host.get(queue as usize));
    counters
        .into_iter()
        .flat_map(|counters| {
            [
                ("ip_queue_full", &counters.ip_queue_full),
                ("channel_full", &counters.channel_full),
                ("no_channel", &counters.no_channel),
            ]
        })
        .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Packets that an interface of this thread's network namespace has received.
fn received(interface: &str) -> Option<u64> {
    let list = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let mut lines = list.lines().filter_map(|line| line.split_once(':'));
    let (_, counts) = lines.find(|(name, _)| name.trim() == interface)?;
    // Bytes, packets, …
    counts.split_whitespace().nth(1)?.parse().ok()
}

impl StackSnapshot {
    /// Frames that the driver program saw.
    pub fn frames(&self) -> u64 {
        self.driver(Counter::Frames)
    }

    /// Owned frames that went through the kernel because the device gives no
    /// room for metadata: received all the same, but at the kernel's cost and
    /// without early discard.
    pub fn no_metadata(&self) -> u64 {
        self.driver(Counter::NoMetadata)
    }

    /// A counter of the driver program, of all queues.
    fn driver(&self, counter: Counter) -> u64 {
        let count = |queue: &QueueSnapshot| queue.driver.get(counter.name()).copied();
        self.queues.iter().filter_map(count).sum()
    }

    pub(crate) fn take(core: &Core) -> Self {
        // Before the clock is read: an answer may take its time.
        let (switch, cell_switch) = match core.forward.get().and_then(|forward| forward.status()) {
            Some(Answer::Segments(switch)) => (Some(switch), None),
            Some(Answer::Cells(switch)) => (None, Some(switch)),
            None => (None, None),
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queues = core.receiver.queues.iter().map(|queue| {
            let number = queue.shared.queue();
            let counters = queue.shared.counters();
            let sent = lock(&queue.transmitter).counts();
            QueueSnapshot {
                driver: Counter::ALL
                    .iter()
                    .map(|counter| {
                        (
                            counter.name().to_owned(),
                            queue.shared.driver().counter(*counter),
                        )
                    })
                    .filter(|(_, count)| *count > 0)
                    .collect(),
                kernel: Class::ALL
                    .iter()
                    .map(|class| {
                        let counts = queue.shared.driver().class(*class);
                        (class.name().to_owned(), (counts.passed, counts.dropped))
                    })
                    .collect(),
                delivered: read(&counters.delivered),
                stale: read(&counters.stale),
                lost_in_ring: read(&counters.lost_in_ring),
                napi: queue.poller.lock().napi().ids,
                rounds: read(&counters.rounds),
                driven: read(&counters.driven),
                empty_rounds: read(&counters.empty_rounds),
                transmitted: sent.sent,
                checksums_by_device: sent.offloaded,
                no_transmit_frame: sent.no_frame,
                long_segments: sent.long.sent,
                long_bytes: sent.long.bytes,
                long_dropped: sent.long.dropped,
                long_no_room: sent.long.no_room,
                host: host_drops(core, number),
                control: ControlSnapshot::of(&queue.shared),
            }
        });
        let sockets = core.udp.all();
        let sockets = sockets.iter().map(|socket| {
            let number = socket.id().index();
            let ends = socket.ends();
            let (received, through_kernel) = socket.counts();
            let (occupancy, dropped_full) = channel_counts(core, number);
            SocketSnapshot {
                channel: number,
                protocol: "udp".to_owned(),
                local: ends.local.to_string(),
                peer: ends.peer.map(|peer| peer.to_string()),
                received,
                through_kernel,
                occupancy,
                limit: socket.limit(),
                dropped_full,
            }
        });
        let circuits = core.atm.all();
        let circuits = circuits.iter().map(|circuit| {
            let number = circuit.id().index();
            let (occupancy, dropped_full) = channel_counts(core, number);
            SocketSnapshot {
                channel: number,
                protocol: "aal5".to_owned(),
                local: (circuit.circuit()).map_or(String::new(), |it| it.to_string()),
                peer: circuit.peer().map(|it| it.to_string()),
                received: circuit.received(),
                through_kernel: 0,
                occupancy,
                limit: circuit.limit(),
                dropped_full,
            }
        });
        let listeners = core.tcp.all_listeners();
        let listeners = listeners.iter().filter_map(|listener| {
            let number = listener.channel()?;
            let (occupancy, dropped_full) = channel_counts(core, number);
            Some(SocketSnapshot {
                channel: number,
                protocol: "tcp".to_owned(),
                local: listener.local().to_string(),
                peer: None,
                received: listener.counts().0 as u64,
                through_kernel: 0,
                occupancy,
                limit: core.tables.limit(0, number),
                dropped_full,
            })
        });
        let connections = core.tcp.flows.all();
        let losing = connections.iter().filter_map(|connection| {
            let (number, dropped) = connection.look().dropped_full(core)?;
            Some(SocketSnapshot {
                channel: number,
                protocol: "tcp".to_owned(),
                local: connection.flow().local.to_string(),
                peer: Some(connection.flow().remote.to_string()),
                occupancy: channel_counts(core, number).0,
                limit: core.tables.limit(0, number),
                dropped_full: dropped.into(),
                ..SocketSnapshot::default()
            })
        });
        let mut snapshot = StackSnapshot {
            process: std::process::id(),
            interface: core.netdev.name.clone(),
            architecture: core.receiver.architecture.name().to_owned(),
            device: core.netdev.snapshot.clone(),
            deferred: core.receiver.deferral.is_on(),
            steered: core.receiver.reserved.port(),
            microseconds: core.now().as_micros() as u64,
            received: None,
            losses: DeviceLosses::of(core).map(|losses| {
                losses.since(core.netdev.losses_before.get().copied().unwrap_or_default())
            }),
            queues: queues.collect(),
            sockets: sockets
                .chain(circuits)
                .chain(listeners)
                .chain(losing.take(LOSING_MOST))
                .collect(),
            calls: core.atm.calls(),
            tcp: TcpSnapshot::take(core),
            switch,
            cell_switch,
            counters: StackCounters::take(core),
            warnings: core.netdev.warnings(&core.receiver.queues),
            unprotected: core.unprotected.get().map_or_else(Vec::new, |list| list()),
        };
        if core.netdev.owner.has_driver() {
            snapshot.received = received(&core.netdev.name);
        }
        snapshot
    }
}
