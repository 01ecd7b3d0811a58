//! A flooded port with a receive queue of its own: when that queue is polled, and the
//! looks that decide which port it is ([`tidewall_receive::steering`]).
//!
//! The frames of the flood wait in the reserved queue's ring. When it is full they are
//! dropped there: on the card, before they cost the host anything. So that queue is
//! polled last, and only for what its channel accepts. The other queues are polled often,
//! since their frames are for sockets that are not flooded.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::{Counter, Protocol};
use tidewall_manager::adaptor::Adaptor;
use tidewall_manager::ethtool::NtupleRule;
use tidewall_receive::poller::Round;
use tidewall_receive::share::Share;
use tidewall_receive::steering::{Look, Order, Polls, PortLoad, Refusal, Steering};

use super::classes::nanoseconds;
use super::{QueueHandle, Receiver};
use crate::core::Core;

/// Longest interval between polls of the reserved queue, whatever waits in its channel.
/// The device's timer (5 ms), which would have it polled in softirq, restarts with each
/// poll.
const KEEPS_MASKED: Duration = Duration::from_millis(4);
/// The time for which a flood is assumed to continue after it was seen: many such polls.
const FLOOD_LASTS: u64 = 50_000_000;
/// The cost of a frame while no poll has taken any, ns. An application that never empties
/// its channel makes none, and nothing shows what the kernel's interrupts cost it.
pub const UNMEASURED: f64 = 400.0;
/// Interval of the looks for a flooded port, while frames come.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The queue reserved for a flooded port, as rounds see it.
#[derive(Debug, Default)]
pub struct Reserved {
    /// Its number in the upper half, the port's channel in the lower; 0: none.
    place: AtomicU32,
    /// The port.
    port: AtomicU32,
    /// Its [`Share`] of the polls.
    share: AtomicU32,
    /// When the queue was last polled, ns since the start.
    polled: AtomicU64,
    /// The flood is assumed to continue until then, in ns since the start.
    flooded_until: AtomicU64,
    /// Frames that the channel had dropped there at the last poll.
    dropped: AtomicU64,
}

impl Reserved {
    /// Number of the queue, and of the channel whose frames come there.
    #[inline]
    pub(super) fn get(&self) -> Option<(usize, u16)> {
        match self.place.load(Ordering::Relaxed) {
            0 => None,
            place => Some(((place >> 16) as usize, place as u16)),
        }
    }

    /// The UDP port that has the queue, and the queue's number.
    pub fn port(&self) -> Option<(u16, u32)> {
        let (queue, _) = self.get()?;
        Some((self.port.load(Ordering::Relaxed) as u16, queue as u32))
    }

    fn set(&self, queue: usize, channel: u16, port: u16) {
        self.port.store(port.into(), Ordering::Relaxed);
        self.share.store(Share::default().0, Ordering::Relaxed);
        let place = (queue as u32) << 16 | u32::from(channel);
        self.place.store(place, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.place.store(0, Ordering::Relaxed);
    }

    /// Notes a poll of another queue, which began and ended then, ns. Returns when the next
    /// one is due. Threads that poll at once may lose a look.
    pub(super) fn looked(&self, queue: &QueueHandle, round: &Round, began: u64, ended: u64) -> u64 {
        let found = round.driven > 0 || round.frames > 0;
        let mut share = Share(self.share.load(Ordering::Relaxed));
        // The first queue stands for all that find nothing in a round.
        if found || queue.shared.queue() == 0 {
            share = share.looked(found);
            self.share.store(share.0, Ordering::Relaxed);
        }
        share.due(began, ended)
    }

    /// Notes that the flood continues at `now`, in ns.
    fn note_flood(&self, now: u64) {
        let until = now.saturating_add(FLOOD_LASTS);
        self.flooded_until.store(until, Ordering::Relaxed);
    }
}

impl Receiver {
    /// Returns whether a moved port is flooded. No device is armed then. Interrupts of
    /// its queue would never end, and would bring back the cost of the flood.
    pub(super) fn holds_flood(&self, now: Duration) -> bool {
        let reserved = &self.reserved;
        reserved.get().is_some()
            && nanoseconds(now) < reserved.flooded_until.load(Ordering::Relaxed)
    }

    /// Notes a round on the reserved queue. It shows a flood when it left frames behind,
    /// or when the channel has dropped some, in an interrupt perhaps.
    pub(super) fn note_reserved(
        &self,
        core: &Core,
        queue: &QueueHandle,
        channel: u16,
        exhausted: bool,
        now: Duration,
    ) {
        let dropped = core.tables.dropped(queue.shared.queue(), channel);
        let before = self.reserved.dropped.swap(dropped, Ordering::Relaxed);
        if exhausted || dropped != before {
            self.reserved.note_flood(nanoseconds(now));
        }
    }

    /// Frames of a poll of the reserved queue in this round; `None`: it is not polled. It is
    /// where its channel takes what a poll brings, and fewer wait there than that.
    /// `sleeps`: the caller is about to sleep on the devices.
    pub(super) fn wants_reserved(
        &self,
        core: &Core,
        queue: &QueueHandle,
        channel: u16,
        sleeps: bool,
        now: Duration,
    ) -> Option<u32> {
        let (number, reserved) = (queue.shared.queue(), &self.reserved);
        let share = Share(reserved.share.load(Ordering::Relaxed));
        let budget = share.budget(core.tables.limit(number, channel));
        let head = core.tables.head(number, channel);
        let waits = head.wrapping_sub(core.tables.tail(number, channel));
        let polled = Duration::from_nanos(reserved.polled.load(Ordering::Relaxed));
        let wants = waits < budget
            || sleeps && !self.holds_flood(now)
            || now.saturating_sub(polled) >= KEEPS_MASKED;
        if wants {
            reserved.polled.store(nanoseconds(now), Ordering::Relaxed);
        }
        wants.then_some(budget)
    }
}

/// Returns the cost of a frame that a full channel drops, in ns. It is that of any frame:
/// the time of polls divided by the frames that they took. An interrupt's frames cost the
/// same.
pub fn frame_cost(core: &Core) -> f64 {
    let of = |queue: &QueueHandle| {
        let counters = queue.shared.counters();
        let took = counters.timed.load(Ordering::Relaxed);
        (took, counters.timed_frames.load(Ordering::Relaxed))
    };
    let sums = core.receiver.queues.iter().map(of);
    let (took, frames) = sums.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    match frames {
        0 => UNMEASURED,
        frames => took as f64 / frames as f64,
    }
}

/// The counts up to a look.
#[derive(Debug, Default)]
struct Counts {
    dropped: u64,
    polls: Polls,
    frames: u64,
    reserved: Polls,
    channels: Channels,
}

/// By channel: frames admitted, modulo 2^32, and dropped.
type Channels = BTreeMap<u32, (u32, u64)>;

/// The control thread's looks. It alone waits for the device.
#[derive(Debug)]
pub struct SteeringWatch {
    adaptor: Option<Box<dyn Adaptor>>,
    steering: Steering,
    next: Option<Instant>,
    before: Counts,
}

impl SteeringWatch {
    /// Creates a watch. `adaptor`: the means of steering; `None` if steering is not
    /// allowed.
    pub fn new(adaptor: Option<Box<dyn Adaptor>>) -> Self {
        SteeringWatch {
            adaptor,
            steering: Steering::default(),
            next: None,
            before: Counts::default(),
        }
    }

    /// Returns the time until the next look; `None`: until frames come.
    pub fn timeout(&self) -> Option<Duration> {
        let next = self.next?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks, if a look is due, and moves the flooded port or gives its queue back.
    pub fn poll(&mut self, core: &Core) {
        let now = Instant::now();
        if self.adaptor.is_none() || self.next.is_some_and(|next| now < next) {
            return;
        }
        if self.next.is_some() {
            self.look(core);
        }
        let looks = core.receiver.deferral.is_on() || self.steering.is_busy();
        self.next = (looks && self.adaptor.is_some()).then(|| now + LOOK_EVERY);
    }

    fn look(&mut self, core: &Core) {
        let receiver = &core.receiver;
        let last = receiver.queues.len().saturating_sub(1);
        let is_reserved = self.steering.moved().is_some();
        let mut counts = Counts::default();
        for (number, queue) in receiver.queues.iter().enumerate() {
            let of = queue.shared.counters();
            let polls = if is_reserved && number == last {
                &mut counts.reserved
            } else {
                let frames = queue.shared.driver().counter(Counter::Frames);
                counts.frames = counts.frames.wrapping_add(frames);
                let dropped = core.tables.total_dropped(queue.shared.queue());
                counts.dropped = counts.dropped.wrapping_add(dropped);
                &mut counts.polls
            };
            polls.polls += of.rounds.load(Ordering::Relaxed);
            polls.exhausted += of.exhausted_rounds.load(Ordering::Relaxed);
        }
        let since = |now: Polls, before: Polls| Polls {
            polls: now.polls.saturating_sub(before.polls),
            exhausted: now.exhausted.saturating_sub(before.exhausted),
        };
        let before = &self.before;
        let dropped = counts.dropped.saturating_sub(before.dropped);
        let mut look = Look {
            now: nanoseconds(core.now()),
            wasted: (dropped as f64 * frame_cost(core)) as u64,
            polls: since(counts.polls, before.polls),
            frames: counts.frames.saturating_sub(before.frames),
            reserved: since(counts.reserved, before.reserved),
            ..Look::default()
        };
        let mut ports = Vec::new();
        let mut sockets = Vec::new();
        if self.steering.needs_ports(&look) {
            sockets = core
                .protocols
                .iter()
                .flat_map(|it| it.datagram_ports())
                .collect();
            ports = count_ports(core, &sockets, &before.channels, &mut counts.channels);
            look.has_neighbours = sockets.len() > 1
                || core.tables.flows() > 0
                || core.protocols.iter().any(|it| it.has_listeners());
        }
        look.ports = &ports;
        let order = self.steering.look(&look);
        self.before = counts;
        match order {
            Some(Order::Move(port)) => {
                let channel = sockets.iter().find(|it| it.0 == port);
                if let Some((_, channel)) = channel {
                    self.move_port(core, last, port, channel.index());
                }
            }
            Some(Order::PutBack(_)) => self.put_back(core, last),
            None => {}
        }
    }

    fn move_port(&mut self, core: &Core, queue: usize, port: u16, channel: u16) {
        let flow = NtupleRule {
            protocol: Protocol::Udp,
            address: None,
            port,
        };
        let steered = match &mut self.adaptor {
            Some(adaptor) => adaptor.steer(flow, queue as u32),
            None => return,
        };
        if let Err(error) = steered {
            let refusal = match error.kind() {
                io::ErrorKind::Unsupported => Refusal::ForGood,
                _ => Refusal::ForNow,
            };
            core.netdev.warn(format!(
                "UDP port {port} is flooded and cannot be given a receive queue of its own: {error}"
            ));
            self.steering.refused(refusal);
            if self.steering.has_ended() {
                self.adaptor = None;
            }
            return;
        }
        let reserved = &core.receiver.reserved;
        reserved.set(queue, channel, port);
        reserved.note_flood(nanoseconds(core.now()));
        // Its counts belong to another channel from now on.
        self.before = Counts {
            channels: std::mem::take(&mut self.before.channels),
            ..Counts::of_future()
        };
    }

    fn put_back(&mut self, core: &Core, queue: usize) {
        core.receiver.reserved.clear();
        if let Some(handle) = core.receiver.queues.get(queue) {
            handle.poller.lock().limit_budget(None);
        }
        if let Some(adaptor) = &mut self.adaptor {
            adaptor.put_back();
        }
        self.before = Counts {
            channels: std::mem::take(&mut self.before.channels),
            ..Counts::of_future()
        };
    }
}

/// Counts the load of each port since `before`, for ports that one socket has; `now` gets
/// the counts. If several sockets share a port, one channel does not show the load of the
/// others.
fn count_ports(
    core: &Core,
    sockets: &[(u16, ChannelId)],
    before: &Channels,
    now: &mut Channels,
) -> Vec<PortLoad> {
    let mut ports = Vec::with_capacity(sockets.len());
    let mut sharing: BTreeMap<u16, u32> = BTreeMap::new();
    for &(port, id) in sockets {
        let mut counts = (0u32, 0u64);
        for queue in &core.receiver.queues {
            let queue = queue.shared.queue();
            counts.0 = counts.0.wrapping_add(core.tables.head(queue, id.index()));
            counts.1 += core.tables.dropped(queue, id.index());
        }
        now.insert(id.value(), counts);
        *sharing.entry(port).or_default() += 1;
        // One that was not counted before has no load yet.
        let before = before.get(&id.value()).unwrap_or(&counts);
        let dropped = counts.1.saturating_sub(before.1);
        ports.push(PortLoad {
            port,
            frames: u64::from(counts.0.wrapping_sub(before.0)) + dropped,
            dropped,
        });
    }
    ports.retain(|load| sharing.get(&load.port) == Some(&1));
    ports
}

impl Counts {
    /// Beyond what there will be: the next look sees nothing new but channels.
    fn of_future() -> Self {
        let polls = Polls {
            polls: u64::MAX,
            exhausted: u64::MAX,
        };
        Counts {
            dropped: u64::MAX,
            polls,
            frames: u64::MAX,
            reserved: polls,
            channels: Channels::new(),
        }
    }
}
