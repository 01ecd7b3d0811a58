//! Follows changes of a stack's interface while it runs (rtnetlink(7)).
//!
//! The control thread waits on [`LinkWatch`] and hands each change to the stack:
//! - addresses to the driver's table;
//! - MTU and link address to the transmitters;
//! - routing tables to the routes;
//! - the interface's end to every thread that waits.
//!
//! After a reset of the device it rediscovers NAPI ids and checks that the driver still
//! runs the program.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall_device::afxdp::receivable;
use tidewall_device::demux::layout::Counter;
use tidewall_device::interface::UsesReader;
use tidewall_manager::adaptor::Adaptor;
use tidewall_sys::WakeFd;
use tidewall_sys::netlink::{Change, Link, Monitor, Netdev, Rtnetlink, SocketDiag};
use tidewall_wire::ethernet::MacAddress;

use crate::core::Core;
use crate::ip::routes::TablesReader;
use crate::lock::lock;
use crate::receiver::QueueHandle;
use crate::receiver::deferral::DeferralWatch;
use crate::receiver::steering::SteeringWatch;

/// Intervals of the check whether the program meets frames, after a reset of the device:
/// at first, and once it has been quiet for long.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// The pause before the next look at a manager that was asked for helper sockets.
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// A program that meets no frame after so many attachments will not.
const ATTACHMENTS: u32 = 3;

/// Follows one interface.
pub struct LinkWatch {
    monitor: Monitor,
    netlink: Rtnetlink,
    /// `None` before Linux 6.3.
    netdev: Option<Netdev>,
    /// Finds other processes' listeners; `None` if the kernel cannot report them.
    sockets: Option<SocketDiag>,
    link: Link,
    program: Option<ProgramCheck>,
    /// When NAPI ids are checked again, and whether the device was reset before.
    check: Option<(Instant, bool)>,
    deferral: DeferralWatch,
    steering: SteeringWatch,
    tables: TablesReader,
    uses: UsesReader,
}

/// After a reset of the device: whether its frames meet the driver program.
struct ProgramCheck {
    /// The interface's received frames, and the frames that the program met, at the last
    /// check.
    received: u64,
    met: u64,
    /// The interface received and the program met nothing, at the last look.
    missed: bool,
    attachments: u32,
    next: Instant,
    every: Duration,
}

impl LinkWatch {
    /// Listens to changes of the caller's network namespace. `adaptor`: the means of
    /// steering.
    ///
    /// # Errors
    /// ENODEV when the interface is gone already.
    pub fn open(index: u32, adaptor: Option<Box<dyn Adaptor>>) -> io::Result<Self> {
        // Before the first look, so that no change is missed between.
        let monitor = Monitor::with_routes()?;
        let mut netlink = Rtnetlink::open()?;
        let link = netlink.link(index)?;
        Ok(LinkWatch {
            monitor,
            netlink,
            netdev: Netdev::open().ok(),
            sockets: SocketDiag::open().ok(),
            link,
            program: None,
            check: None,
            deferral: DeferralWatch::new(),
            steering: SteeringWatch::new(adaptor),
            tables: TablesReader::new(),
            uses: UsesReader::new(index),
        })
    }

    /// Readable when something has changed.
    pub fn descriptor(&self) -> i32 {
        self.monitor.descriptor()
    }

    /// Returns the means of finding other sockets of the interface's namespace.
    pub fn sockets(&mut self) -> Option<&mut SocketDiag> {
        self.sockets.as_mut()
    }

    /// Returns the longest wait for a change; `None`: for ever.
    pub fn timeout(&self) -> Option<Duration> {
        let program = self.program.as_ref().map(|it| it.next);
        let next = program.into_iter().chain(self.check.map(|it| it.0)).min();
        let next = next.map(|it| it.saturating_duration_since(Instant::now()));
        let others = [
            self.deferral.timeout(),
            self.steering.timeout(),
            self.tables.timeout(),
        ];
        next.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Hands changes on, and makes the checks that are due.
    pub fn poll(&mut self, core: &Core) {
        let (mut addresses, mut gone, mut look) = (false, false, false);
        let changes = self.monitor.changes();
        let uses = self.uses.note(&changes);
        for change in changes {
            // The kernel does not announce the loss of the routes of an interface that
            // goes down.
            self.tables.change(core);
            match change {
                Change::Link(link) if link.index == self.link.index => self.update(core, link),
                Change::Gone(index) | Change::Moved(index) => gone |= index == self.link.index,
                Change::Address => addresses = true,
                Change::Missed => (addresses, look) = (true, true),
                Change::Link(_) | Change::NeighbourGone(..) | Change::Routes | Change::Settings => {
                }
            }
        }
        if look {
            match self.netlink.link(self.link.index) {
                Ok(link) => self.update(core, link),
                Err(error) => gone |= error.raw_os_error() == Some(libc::ENODEV),
            }
        }
        if gone {
            self.program = None;
            core.lose_device();
            return;
        }
        if addresses {
            core.netdev.read_addresses();
        }
        if uses {
            core.netdev.owner.set_kernel_uses(&mut self.uses);
        }
        if core.netdev.link.doubts.swap(false, Ordering::Relaxed) {
            self.check_napi(core, false);
        }
        if let Some((_, was_reset)) = self.check.take_if(|(at, _)| *at <= Instant::now()) {
            self.check_napi(core, was_reset);
        }
        self.tables.poll(core);
        self.check_program(core);
        self.deferral.poll(core);
        self.steering.poll(core);
    }

    fn update(&mut self, core: &Core, link: Link) {
        let old = std::mem::replace(&mut self.link, link.clone());
        if let (Some(mac), Some(mtu)) = (link.mac, link.mtu)
            && (old.mac, old.mtu) != (link.mac, link.mtu)
        {
            let mut sent = usize::MAX;
            for queue in &core.receiver.queues {
                let mut transmitter = lock(&queue.transmitter);
                transmitter.set_link(MacAddress(mac), mtu);
                sent = sent.min(transmitter.packet_max());
                drop(transmitter);
                queue.poller.lock().set_mtu(mtu);
            }
            for protocol in &core.protocols {
                protocol.set_mtu(sent);
            }
            core.netdev
                .owner
                .set_device(link.index, MacAddress(mac), mtu);
            let frames = core
                .receiver
                .queues
                .iter()
                .map(|q| q.shared.memory().frame_size());
            let most = receivable(frames.min().unwrap_or(0));
            let joins = |queue: &QueueHandle| queue.poller.lock().joins();
            if mtu > most && !core.receiver.queues.iter().all(joins) {
                core.netdev.warn(format!(
                    "{}: the MTU is {mtu} now, and frames were made for another: datagrams longer \
                     than {most} bytes are lost (lost-in-ring) until the service is restarted, or: \
                     ip link set dev {} mtu {most}",
                    core.netdev.name, core.netdev.name
                ));
            }
        }
        if !link.up {
            self.program = None;
            return;
        }
        let was_reset = !old.up || old.mtu != link.mtu || (!old.carrier && link.carrier);
        if was_reset {
            self.check_napi(core, true);
        }
        if was_reset {
            self.program = Some(ProgramCheck {
                received: link.counters.unwrap_or_default().rx_packets,
                met: frames_met(core),
                missed: false,
                // Attaching may itself reset the link.
                attachments: self.program.as_ref().map_or(0, |check| check.attachments),
                next: Instant::now() + LOOK_EVERY[0],
                every: LOOK_EVERY[0],
            });
        }
    }

    /// Rediscovers ids that the kernel no longer lists for the interface. After a reset
    /// it also rediscovers ids that the kernel does not report, and those that were not
    /// found.
    fn check_napi(&mut self, core: &Core, was_reset: bool) {
        let index = self.link.index;
        let known = self.netdev.as_mut().and_then(|it| it.napis(index).ok());
        // A device that is just going down has none.
        let known = known.filter(|ids| !ids.is_empty());
        for queue in &core.receiver.queues {
            let mut poller = queue.poller.lock();
            let state = poller.napi();
            let mut ids = state.ids.into_iter().filter(|&id| id != 0);
            let lost = match &known {
                _ if was_reset && state.blocked => true,
                Some(known) => ids.any(|id| !known.contains(&id)),
                None => was_reset && ids.next().is_some(),
            };
            match if lost { poller.rediscover() } else { Ok(()) } {
                Ok(()) => {}
                // A manager has not answered yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.check = Some((Instant::now() + ASK_AGAIN, was_reset));
                }
                Err(error) => core
                    .netdev
                    .warn(format!("{}: NAPI id discovery: {error}", core.netdev.name)),
            }
        }
    }

    /// Attaches the program again if the interface receives and the program meets
    /// nothing. Some drivers lose the program when they reset their device, and still
    /// report it (vmxnet3 of Linux 6.12). It is not attached otherwise: other drivers
    /// reset the link for it.
    fn check_program(&mut self, core: &Core) {
        let now = Instant::now();
        let Some(check) = self.program.as_mut().filter(|check| now >= check.next) else {
            return;
        };
        // The program has met all frames counted so far, if it meets any.
        let link = self.netlink.link(self.link.index).ok();
        let Some(counters) = link.and_then(|link| link.counters) else {
            return;
        };
        let received = counters.rx_packets;
        if frames_met(core) != check.met {
            self.program = None;
            return;
        }
        let moved = received != check.received;
        check.received = received;
        if moved && check.missed {
            check.missed = false;
            check.attachments += 1;
            if check.attachments > ATTACHMENTS {
                core.netdev.warn(format!(
                    "{}: the driver runs the program no more since the device was reset: \
                     restart this process",
                    core.netdev.name
                ));
                self.program = None;
                return;
            }
            if let Err(error) = core.netdev.owner.attach_again(&core.netdev.name) {
                core.netdev.warn(format!("{}: {error}", core.netdev.name));
            }
        } else {
            check.missed |= moved;
        }
        check.every = if check.missed {
            LOOK_EVERY[0]
        } else {
            LOOK_EVERY[1].min(check.every * 2)
        };
        check.next = now + check.every;
    }
}

fn frames_met(core: &Core) -> u64 {
    let queues = core
        .receiver
        .queues
        .iter()
        .map(|queue| queue.shared.driver());
    queues.fold(0, |sum, driver| {
        sum.wrapping_add(driver.counter(Counter::Frames))
    })
}

/// The state that the stack and its [`LinkWatch`] share.
pub struct LinkState {
    /// The interface is no more.
    pub gone: AtomicBool,
    /// A poll found nothing for some time although the device received.
    pub doubts: AtomicBool,
    /// Wakes the control thread.
    pub wake: WakeFd,
}

impl LinkState {
    pub fn new() -> io::Result<Self> {
        Ok(LinkState {
            gone: false.into(),
            doubts: false.into(),
            wake: WakeFd::new()?,
        })
    }

    /// Makes the control thread check whether NAPI ids still belong to the interface.
    pub fn doubt(&self) {
        if !self.doubts.swap(true, Ordering::Relaxed) {
            self.wake.signal();
        }
    }
}
