//! An operator's view of a live stack: every frame that was dropped, by cause and by the
//! place where it happened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidewall_device::demux::layout::Counter;
use tidewall_manager::AfXdp;
use tidewall_manager::client::Application;
use tidewall_manager::record::Record;
use tidewall_receive::poller::Shared;

mod switches;

pub use switches::{
    CellRoute, CellSwitchPort, CellSwitchSnapshot, SwitchMember, SwitchSnapshot, SwitchedCall,
    SwitchedEnd,
};

/// The state of a stack at one moment. Counters only grow; take two snapshots for rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StackSnapshot {
    /// Process that owns the stack.
    pub process: u32,
    /// Its interface.
    pub interface: String,
    /// Its architecture's name.
    pub architecture: String,
    /// Its device, if that is an interface it has taken over.
    #[serde(default)]
    pub device: Option<DeviceSnapshot>,
    /// True while interrupts are deferred, that is, while frames come for the stack.
    #[serde(default)]
    pub deferred: bool,
    /// The flooded UDP port with a reserved receive queue, and the queue.
    #[serde(default)]
    pub steered: Option<(u16, u32)>,
    /// Microseconds since it started.
    pub microseconds: u64,
    /// Packets that the interface has received, as the kernel counts them (`ip -s link`),
    /// read after all other counters. `None` without an interface that was taken over, or
    /// if procfs does not show it.
    #[serde(default)]
    pub received: Option<u64>,
    /// The device's losses since the stack started; `None` as for `received`.
    #[serde(default)]
    pub losses: Option<DeviceLosses>,
    /// One entry per queue.
    pub queues: Vec<QueueSnapshot>,
    /// One entry per open UDP socket, circuit and TCP listener.
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
    /// Counters of the stages after the channel.
    #[serde(flatten)]
    pub counters: StackCounters,
    /// Faults that the stack has noticed ([`crate::StackHandle::warnings`]).
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Sockets that stay with the kernel, of a program that has the stack without knowing
    /// it ([`crate::StackHandle::answer_unprotected`]).
    #[serde(default)]
    pub unprotected: Vec<Record>,
}

/// Frames that an interface's device has lost, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceLosses {
    /// Frames for which its receive ring had no room.
    pub receive_ring: u64,
    /// Frames sent that it dropped; for a veth, frames for which its peer's ring had no
    /// room.
    pub sent: u64,
}

impl DeviceLosses {
    /// Returns the losses since `before`.
    pub fn since(self, before: DeviceLosses) -> Self {
        DeviceLosses {
            receive_ring: self.receive_ring.saturating_sub(before.receive_ring),
            sent: self.sent.saturating_sub(before.sent),
        }
    }
}

/// The device of an embedded stack, as it was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceSnapshot {
    /// Name of its driver; empty if the driver reports none.
    pub driver: String,
    /// The place at which the driver program runs:
    /// [`XdpMode::name`](tidewall_manager::XdpMode::name).
    pub xdp: String,
    /// True when frames are moved without copying.
    pub zero_copy: bool,
    /// Receive queues, all of which the stack has.
    pub receive_queues: u32,
    /// Transmit queues.
    pub transmit_queues: u32,
    /// The party that computes the checksums of long frames that are sent, and the
    /// reason, in words.
    pub checksums: String,
    /// The party that cuts long TCP segments into packets, and the reason, in words.
    #[serde(default)]
    pub segmentation: String,
}

impl DeviceSnapshot {
    /// Describes an open device with so many receive queues.
    pub fn of(device: &AfXdp, receive_queues: u32) -> Self {
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

    /// Describes the device as a manager's application sees it.
    pub fn of_application(device: &Application, receive_queues: u32) -> Self {
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
    /// Those frames sent whose checksum the device computes.
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
    /// The state of receive control.
    pub control: ControlSnapshot,
}

/// Receive control of one queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ControlSnapshot {
    /// Policy that decides, by name.
    pub policy: String,
    /// Bp: the most frames per round now.
    pub budget: u32,
    /// T: least time between two interrupts, in nanoseconds; 0: one interrupt per frame.
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
    /// True if this end set it up.
    pub ours: bool,
    /// Its reference, which is its own among those that this end, or the other, set up.
    pub reference: u32,
    /// The circuit, once one is allotted: VPI and VCI.
    pub circuit: Option<String>,
    /// The state by Q.2931, as U10 or N10.
    pub state: String,
    /// `socket`; `waiting` until the application accepts it; `releasing` when no socket
    /// here has it.
    pub held: String,
    /// The number at this end.
    pub local: Option<String>,
    /// The number at the other end, if it is known.
    pub peer: Option<String>,
}

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
    /// Those that went through the kernel.
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
    /// How many it may take (`Stack::set_tcp_memory`).
    #[serde(default)]
    pub memory_max: u64,
    /// Half-open connections of all listeners.
    pub half_open: u64,
    /// Listeners whose SYNs the driver answers with cookies.
    pub cookies: u64,
    /// Timers that are armed or late.
    pub timers: u64,
    /// Events since the start, by name:
    /// - connections `opened`, `closed`, `accepted`, `accepted-by-kernel`;
    /// - `refused` for want of room in the driver's tables;
    /// - `time-wait-evicted`: evicted from TIME-WAIT to make room there;
    /// - `channels-taken` from a connection for one that had more to do;
    /// - `held-up`: sending was delayed by the device or an unresolved neighbour;
    /// - `orphans-reset`: orphans reset for their number or for memory;
    /// - `no-memory`: segments of connections not yet there that were dropped since
    ///   memory was exhausted.
    pub counters: BTreeMap<String, u64>,
    /// Frames dropped in the driver at the channels that connections share, or for a
    /// flow's share of them, by channel. `shared` is the channel of connections without
    /// one of their own, `time-wait` that of TIME-WAIT. Only those that dropped some.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
}

impl ControlSnapshot {
    /// Reads the state of a queue's receive control.
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

impl StackSnapshot {
    /// Frames that the driver program saw.
    pub fn frames(&self) -> u64 {
        self.driver(Counter::Frames)
    }

    /// Counts owned frames that went through the kernel because the device gives no room
    /// for metadata. They are received all the same, but at the kernel's cost and without
    /// early discard.
    pub fn no_metadata(&self) -> u64 {
        self.driver(Counter::NoMetadata)
    }

    /// A counter of the driver program, of all queues.
    fn driver(&self, counter: Counter) -> u64 {
        let count = |queue: &QueueSnapshot| queue.driver.get(counter.name()).copied();
        self.queues.iter().filter_map(count).sum()
    }
}

/// Counters of the stages after the channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StackCounters {
    /// Drops of the protocol stage by cause; only causes that occurred.
    pub protocol: BTreeMap<String, u64>,
    /// Reassembly counters by name; only those that are not zero.
    pub fragments: BTreeMap<String, u64>,
    /// AAL5 PDUs and cells of circuits by outcome; only outcomes that occurred.
    #[serde(default)]
    pub circuits: BTreeMap<String, u64>,
    /// Complete datagrams whose socket was gone.
    pub no_socket: u64,
    /// Reassembled datagrams for a socket that took no more.
    pub socket_full: u64,
    /// ICMP errors about the stack's flows.
    pub icmp_errors: u64,
    /// Datagrams moved out of frames because frame memory was short.
    pub copied_out: u64,
    /// Datagrams that came through the kernel while polls were learned.
    #[serde(rename = "strays")]
    pub kernel_delivered: u64,
}
