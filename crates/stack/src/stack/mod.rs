//! The stack: queues, channels, routes and transmitters of one application, and the one
//! thread at a time that polls them.
//!
//! Lives here: [`StackHandle`], its configuration (`config`, `receiving`), and its start
//! on an interface of Linux, on a manager's device, on a tap and in memory.
//!
//! Does not live here: sockets, and the protocols that a stack starts with
//! ([`Protocols`]).
//!
//! Read first: [`StackHandle::embedded`].

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidewall_device::afxdp::SharedUmem;
use tidewall_device::demux::layout::{self, Metadata};
use tidewall_device::demux::{ApplicationTables, ChannelId};
use tidewall_device::forked::Process;
use tidewall_device::frame::Frame;
use tidewall_device::interface::{UsesReader, queue_count};
use tidewall_device::queue::Queue;
use tidewall_manager::adaptor::Adaptor;
use tidewall_manager::ethtool::NtupleRule;
use tidewall_manager::record::Record;
use tidewall_manager::{AfXdp, Config, XdpMode};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::Sysctl;
use tidewall_receive::architecture::{Architecture, HostThreads, Upcalls};
use tidewall_receive::poller::{self, Shared};
use tidewall_sys::netlink::{Netdev, XDP_NDO_XMIT};
use tidewall_wire::ethernet::MacAddress;

use crate::causes::Causes;
use crate::channels::{ChannelPool, FRAGMENT_CHANNEL};
use crate::clock::Clock;
use crate::control::Control;
use crate::core::Core;
use crate::device_owner::DeviceOwner;
use crate::endpoint::Endpoint;
use crate::helper::Helper;
use crate::host::{self, Interface};
use crate::ip::fragments::FragmentEndpoint;
use crate::ip::routes::Routes;
use crate::ip::transmit::Transmitter;
use crate::ip::{FRAGMENT_LIMIT, Ip};
use crate::link::LinkWatch;
use crate::lock::Mutex;
use crate::netdev::NetDevice;
use crate::operator::Operator;
use crate::output::Output;
use crate::protocol::Protocol;
use crate::receiver::{QueueHandle, Receiver, WakeUp};
use crate::snapshot::{DeviceSnapshot, StackSnapshot};
use crate::timers::Timers;
use crate::trace::TraceLog;

/// Frames a queue keeps for transmission.
const TRANSMIT_FRAMES: usize = 2048;

/// A stack. Clones share it; it closes its device when the last clone and the last socket
/// are gone.
///
/// A stack belongs to its process. In a forked child every call that needs it returns
/// EOWNERDEAD, and dropping it or its sockets does nothing. Descriptors of the interface
/// and the ports that the child inherited are closed at once, so that the parent's close
/// frees them. A program that forks servers forks first and starts a stack in each.
#[derive(Clone)]
pub struct StackHandle {
    /// The stack that clones share.
    pub inner: Arc<Inner>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.core.process.is_current() {
            // Its threads are not here to be ended, nor its memory to be unmapped,
            // and the numbers of its descriptors are other files'.
            let threads = std::mem::take(&mut self._threads);
            std::mem::forget((threads, self._control.take(), self.core.clone()));
            return;
        }
        for protocol in self.core.protocols.iter().rev() {
            protocol.end(&self.core);
        }
        self.core.helper.stop();
    }
}

/// The state behind a [`StackHandle`], with the threads that use it.
pub struct Inner {
    // Dropped first: the threads use everything below.
    _threads: Vec<HostThreads>,
    _control: Option<Control>,
    /// The state that all threads and protocols share.
    pub core: Arc<Core>,
}

impl StackHandle {
    /// Takes over an interface's queues. Frames for ports that no Tidewall socket owns
    /// stay with the kernel, through bounded channels.
    ///
    /// # Errors
    /// - `NotFound` if there is no such interface.
    /// - `Unsupported` if its driver accepts no such program.
    /// - EPERM without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON (and
    ///   CAP_SYS_NICE for host architectures).
    /// - EBUSY when another program is attached to the interface.
    /// - EINVAL for a configuration out of range.
    pub fn embedded(config: EmbeddedConfig, protocols: Protocols) -> io::Result<Self> {
        Self::embedded_on(config, None, protocols)
    }

    /// As [`StackHandle::embedded`], with frames of parts of `umem` if there is one.
    pub fn embedded_on(
        config: EmbeddedConfig,
        umem: Option<&mut SharedUmem>,
        protocols: Protocols,
    ) -> io::Result<Self> {
        let config = config.checked()?;
        let classes = &config.receiving.classes;
        let interface = Interface::read(&config.interface)?;
        let present = queue_count(&config.interface);
        if present.is_some_and(|present| classes.len() > present as usize) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{} traffic classes need as many receive queues; {} has {} (see: ethtool -L)",
                    classes.len(),
                    config.interface,
                    present.unwrap_or(0)
                ),
            ));
        }
        let open = Config {
            queues: config.queues,
            frames: config.frames,
            mode: config.xdp,
            ..Config::new(&config.interface)
        };
        let mut device = AfXdp::open_on(&open, umem)?;
        let tables = device.tables();
        tables
            .trusted
            .set_raw(config.receiving.architecture.has_threads());
        // XDP_TX leaves a veth's peer only where that has a program of its own.
        tables
            .embedded
            .set_cookie_redirect(device.checksum_offload_possible);
        tables.trusted.limit_kernel_frames();
        let uses = UsesReader::new(interface.index).read();
        tables.trusted.set_kernel_uses(uses);
        for (queue, class) in classes.iter().enumerate() {
            for &port in &class.ports {
                for protocol in [layout::Protocol::Udp, layout::Protocol::Tcp] {
                    let flow = NtupleRule {
                        protocol,
                        address: None,
                        port,
                    };
                    device.steer(flow, queue as u32);
                }
            }
        }
        let queues = std::mem::take(&mut device.queues);
        let snapshot = DeviceSnapshot::of(&device, queues.len() as u32);
        let checksum_offload_possible = device.checksum_offload_possible;
        let warnings = device.warnings.clone();
        let device_mode = device.mode;
        let adaptor = (queues.len() > 1)
            .then(|| config.adaptor(device.restorer()?))
            .flatten();
        let owner = DeviceOwner::new(&tables, Some(device));
        owner.set_locals(&interface.addresses)?;
        let parts = Parts {
            queues,
            tables: tables.embedded,
            mac: interface.mac,
            mtu: interface.mtu,
            routes: Routes::of_interface(interface.index, None)?,
            receiving: config.receiving,
            input_options: InputOptions {
                checksum_offload_possible,
                verified: false,
            },
            has_kernel: true,
            helper: true,
            driver_answers: driver_answers(interface.index, checksum_offload_possible, device_mode),
            sysctl: config.tcp.unwrap_or_else(host::sysctl),
            name: config.interface.clone(),
            warnings,
            snapshot: Some(snapshot),
            owner,
            adaptor,
        };
        let tcp = (config.tcp_memory, config.tcp_orphans);
        Self::assemble(parts, config.control, Clock::real(), protocols, tcp)
    }

    /// `tcp`: limits of TCP, in bytes and orphans.
    fn assemble(
        parts: Parts,
        control: bool,
        clock: Clock,
        protocols: Protocols,
        (tcp_memory, tcp_orphans): (Option<u64>, Option<u64>),
    ) -> io::Result<Self> {
        let Parts {
            queues,
            tables,
            mac,
            mtu,
            routes,
            receiving,
            owner,
            snapshot,
            helper,
            driver_answers,
            ..
        } = parts;
        let architecture = receiving.architecture;
        let wake_up = match parts.has_kernel {
            true => WakeUp::measure(),
            false => WakeUp::default(),
        };
        let watch = owner
            .has_driver()
            .then(|| LinkWatch::open(routes.interface(), parts.adaptor));
        let mut handles = Vec::new();
        let mut fragment_channels = Vec::new();
        let fragment_id = ChannelId::new(FRAGMENT_CHANNEL, 1);
        for (number, queue) in queues.into_iter().enumerate() {
            // At most half of a small memory, or nothing could be received.
            let transmit_frames = TRANSMIT_FRAMES.min(queue.frames.len() / 2);
            let (mut poller, shared, transmit, frames) =
                poller::open(number as u32, queue, tables.clone(), transmit_frames);
            fragment_channels.push(poller.open_channel(fragment_id, FRAGMENT_LIMIT)?);
            let memory = shared.memory().clone();
            let class = receiving.classes.get(number);
            let class_budget = class.and_then(|class| class.budget);
            if architecture.is_controlled() {
                let limits = receiving::of_queue(receiving.limits, class_budget, wake_up.time());
                poller.set_policy(receiving.policy, limits);
            }
            let transmitter = Transmitter::new(transmit, memory, frames, mac, mtu);
            handles.push(QueueHandle::new(poller, shared, transmitter, class_budget));
        }
        // Unknown is as many as receive.
        let transmit_queues = snapshot
            .as_ref()
            .map_or(0, |device| device.transmit_queues as usize);
        let transmit_queues = match transmit_queues {
            0 => handles.len(),
            queues => queues.min(handles.len()),
        };
        tables.set_fragment_channel(fragment_id);
        owner.set_device(routes.interface(), mac, mtu);
        owner.own_orphan_fragments();
        let timers = Timers::default();
        let output = Arc::<Output>::default();
        let helper = Arc::new(Helper::new(helper)?);
        let start = Start {
            queues: &handles,
            timers: &timers,
            output: &output,
            helper: &helper,
            sysctl: parts.sysctl,
            tcp_memory,
            tcp_orphans,
            driver_answers,
        };
        let protocols = protocols(start)?;
        let receiver = Receiver::new(
            handles,
            transmit_queues.max(1),
            architecture,
            receiving.spin,
            wake_up,
            !receiving.classes.is_empty(),
        );
        let ip = Ip::new(
            routes,
            fragment_channels,
            parts.input_options,
            // It takes a raw socket, which an application of a manager may not have.
            parts.has_kernel && owner.is_embedded(),
        )?;
        let core = Arc::new(Core {
            process: Process::current()?,
            receiver,
            tables,
            ip,
            channels: ChannelPool::default(),
            timers,
            output,
            helper,
            workers: (protocols.iter().filter(|it| it.works_between_waits()))
                .cloned()
                .collect(),
            protocols,
            causes: Causes::default(),
            trace: TraceLog::default(),
            operator: Operator::default(),
            binding: Mutex::new(()),
            clock,
            unprotected: OnceLock::new(),
            netdev: NetDevice::new(
                parts.name,
                parts.has_kernel,
                owner,
                snapshot,
                parts.warnings,
            )?,
        });
        let fragments: Arc<dyn Endpoint> = Arc::new(FragmentEndpoint);
        core.channels
            .set_endpoint(FRAGMENT_CHANNEL, Some(fragments));
        for protocol in &core.protocols {
            protocol.begin(&core);
        }
        if let Some(losses) = core.losses() {
            let _ = core.netdev.losses_before.set(losses);
        }
        let mut threads = Vec::new();
        if architecture.has_threads() {
            for queue in &core.receiver.queues {
                let upcalls = Arc::new(upcalls(&core));
                threads.push(HostThreads::start(
                    architecture,
                    queue.poller.share(),
                    upcalls,
                    receiving.receiver_cpu,
                )?);
            }
        }
        let _ = core
            .receiver
            .host
            .set(threads.iter().map(HostThreads::counters).collect());
        // A stack in memory has no interface to follow and no client to answer.
        let watch = watch.transpose()?;
        let control = watch.map(|watch| Control::start(&core, control, watch));
        let control = control.transpose()?;
        Ok(StackHandle {
            inner: Arc::new(Inner {
                _threads: threads,
                _control: control,
                core,
            }),
        })
    }

    /// Returns the faults that the stack has noticed: knobs that could not be set at the
    /// start, and later errors of the interface.
    pub fn warnings(&self) -> Vec<String> {
        match self.here() {
            Ok(core) => core.netdev.warnings(&core.receiver.queues),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Has a function called, by a thread of the stack and with the interface's name, when the
    /// interface is no more. Listeners and datagram sockets that a kernel socket holds go on by
    /// that; connections end with ETIMEDOUT.
    pub fn when_interface_is_gone(&self, say: fn(&str)) {
        let _ = self.core().netdev.when_gone.set(say);
    }

    /// Has a function answer which of the process's sockets stay with the kernel, and why: for
    /// `tidewall stat`, `top` and `doctor`. A thread of the stack calls it.
    pub fn answer_unprotected(&self, list: fn() -> Vec<Record>) {
        let _ = self.core().unprotected.set(list);
    }

    /// Returns true once the interface is gone.
    pub fn interface_is_gone(&self) -> bool {
        self.core().netdev.is_gone()
    }

    #[doc(hidden)] // For `tidewall serve --record`.
    /// Records what receive control sees of the next `rounds` rounds of each
    /// queue, from the beginning.
    pub fn record_rounds(&self, rounds: usize) {
        for queue in self.here().iter().flat_map(|core| &core.receiver.queues) {
            queue.shared.recorder().start(rounds);
        }
    }

    #[doc(hidden)]
    /// Returns what [`StackHandle::record_rounds`] recorded: a CSV text per queue, whose
    /// first line names the columns.
    pub fn recorded_rounds(&self) -> Vec<String> {
        let queues = self
            .here()
            .into_iter()
            .flat_map(|core| &core.receiver.queues);
        queues.map(|queue| queue.shared.recorder().text()).collect()
    }

    /// Counters of everything, by cause and place; in a forked child none.
    pub fn snapshot(&self) -> StackSnapshot {
        let Ok(core) = self.here() else {
            return StackSnapshot {
                process: std::process::id(),
                warnings: self.warnings(),
                ..StackSnapshot::default()
            };
        };
        core.snapshot()
    }

    /// Starts the helper thread, which otherwise begins with the first TCP socket: for a
    /// process that will not be allowed to make threads by then.
    ///
    /// # Errors
    /// EAGAIN; EOWNERDEAD in a forked child.
    pub fn start_helper(&self) -> io::Result<()> {
        Helper::start(self.here()?)
    }

    /// Makes the stack check at once, and often from now on, whether another process accepts
    /// by an adopted listener: one has just been forked. Async-signal-safe.
    pub fn note_fork(&self) {
        if let Ok(core) = self.here() {
            core.netdev.link.wake.signal();
        }
    }

    /// Returns a count that each call of an application thread changes if it accepts,
    /// reads, writes or waits; 0 in a forked child.
    pub fn calls(&self) -> u32 {
        self.here().map_or(0, |core| core.helper.calls())
    }

    /// Carries out an operator's request about this program's circuits (`tidewall atm pvc
    /// add` and `remove`), if there is one. `serve` gets the words behind `pvc`, and
    /// returns what was done, or why not.
    ///
    /// To be called regularly, at least twice a second; a call without a request costs
    /// next to nothing. The circuits of a program that never calls it are left alone.
    pub fn answer_operator(&self, serve: impl FnOnce(&str) -> Result<String, String>) {
        if let Ok(core) = self.here() {
            core.operator.answer(serve);
        }
    }

    /// Returns true when both are handles of one stack.
    #[inline]
    pub fn is(&self, other: &StackHandle) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the state that its threads share.
    ///
    /// # Errors
    /// EOWNERDEAD in a forked child.
    #[inline]
    pub fn here(&self) -> io::Result<&Arc<Core>> {
        match self.inner.core.process.is_current() {
            true => Ok(&self.inner.core),
            false => Err(io::Error::from_raw_os_error(libc::EOWNERDEAD)),
        }
    }

    /// Returns the state that its threads share, also in a forked child.
    #[inline]
    pub fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }
}

/// The parts of a starting stack from which its protocols are made.
pub struct Start<'a> {
    /// The queues of the device.
    pub queues: &'a [QueueHandle],
    /// The stack's timers.
    pub timers: &'a Timers,
    /// The pending output of the stack.
    pub output: &'a Arc<Output>,
    /// The thread that serves sockets while the application is elsewhere.
    pub helper: &'a Arc<Helper>,
    /// Returns TCP's kernel parameters.
    pub sysctl: Sysctl,
    /// Bytes that data of TCP connections may take; `None`: a part of the machine's memory.
    pub tcp_memory: Option<u64>,
    /// Connections that are closed and driven at most; `None`: as Linux.
    pub tcp_orphans: Option<u64>,
    /// True if the driver program's own answers leave the interface.
    pub driver_answers: bool,
}

/// Makes the protocols of a stack. Those looked up most often come first; an operator sees
/// them in the reverse order, and so they end.
pub type Protocols = fn(Start<'_>) -> io::Result<Vec<Arc<dyn Protocol>>>;

/// The parts in which kinds of stack differ.
struct Parts {
    queues: Vec<Queue>,
    tables: Arc<ApplicationTables>,
    mac: MacAddress,
    mtu: usize,
    routes: Routes,
    receiving: Receiving,
    input_options: InputOptions,
    has_kernel: bool,
    /// Whether a thread may see to connections that the application leaves
    /// alone.
    helper: bool,
    /// [`driver_answers`]
    driver_answers: bool,
    sysctl: Sysctl,
    name: String,
    warnings: Vec<String>,
    owner: DeviceOwner,
    snapshot: Option<DeviceSnapshot>,
    /// The adaptor that may give a flooded port a queue of its own.
    adaptor: Option<Box<dyn Adaptor>>,
}

/// Returns true if the driver program's own answers leave an interface. A veth
/// (`virtual_`) has them redirected: they leave while the peer has a program or GRO, and
/// are lost otherwise. They also leave if the program runs generically. Checked once,
/// while the process still may.
fn driver_answers(interface: u32, virtual_: bool, mode: XdpMode) -> bool {
    let features = || Netdev::open()?.xdp_features(interface);
    !virtual_ || mode == XdpMode::Generic || features().is_ok_and(|it| it & XDP_NDO_XMIT != 0)
}

fn upcalls(core: &Arc<Core>) -> Upcalls {
    let weak = || Arc::downgrade(core);
    let (input, ready, sent, kernel_delivered, doubt) = (weak(), weak(), weak(), weak(), weak());
    Upcalls {
        input: Box::new(move |shared: &Shared, frame: &Frame, metadata: &Metadata| {
            input
                .upgrade()
                .is_some_and(|core| core.ip.verify(&core, shared, frame, metadata))
        }),
        ready: Box::new(move |channel| {
            if let Some(core) = ready.upgrade() {
                core.channels.on_frames(&core, channel);
            }
        }),
        sent: Box::new(move || {
            sent.upgrade().map_or(0, |core| {
                core.receiver.queues.iter().map(QueueHandle::sent).sum()
            })
        }),
        kernel_delivered: Box::new(move |from, payload| {
            if let Some(core) = kernel_delivered.upgrade() {
                core.deliver_from_kernel(from, payload);
            }
        }),
        doubt: Box::new(move || {
            if let Some(core) = doubt.upgrade() {
                core.netdev.link.doubt();
            }
        }),
    }
}

mod config;
mod managed;
#[cfg(any(test, feature = "testutil"))]
mod memory;
mod receiving;
mod tap;
mod virtual_time;

pub use config::EmbeddedConfig;
#[cfg(any(test, feature = "testutil"))]
pub use memory::MemoryConfig;
pub use receiving::ReceiveControl;
use receiving::Receiving;
pub use tap::TapConfig;
