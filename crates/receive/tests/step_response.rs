//! Step response on the memory device: real rounds of the poller, real demux, real
//! channels and credits, on the device's virtual clock.
//!
//! One CPU alternates between the paper's tasks. Each turn's cost moves the clock, and
//! the frames that fall due meanwhile arrive in the device ring.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ChannelId, Tables};
use tidewall_device::memory::{Link, LinkConfig, Side, pair_on_clock};
use tidewall_device::queue::Interrupt;
use tidewall_receive::control::{Activity, Controller, Limits, PolicyKind, Round, Setting, State};
use tidewall_receive::poller::{self, Channel, Done, Poller, Shared};

const PORT: u16 = 7000;
const CHANNEL: u32 = 256;
/// Costs, in nanoseconds: Tp, Ta, an interrupt, a context switch.
const PROTOCOL: u64 = 2_000;
const APPLICATION: u64 = 8_000;
const INTERRUPT: u64 = 2_000;
const SWITCH: u64 = 1_500;
/// Frames per second without any overhead.
const CAPACITY: u64 = 1_000_000_000 / (PROTOCOL + APPLICATION);
const WINDOW: u64 = 50_000_000;
const MS: u64 = 1_000_000;
/// Maximum number of frames of one poll that every device supports.
const POLL: u32 = 64;

/// A UDP datagram to [`PORT`]; the device ignores its checksum (zero: none, RFC 768).
fn datagram() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend(36u16.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = frame[14..34]
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum::<u32>();
    let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(5000u16.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend([0, 16, 0, 0]);
    frame.extend([7; 8]);
    frame
}

/// Counts of a window of [`WINDOW`].
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    goodput: u64,
    overflowed: u64,
    setting: Option<Setting>,
}

struct Machine {
    clock: Arc<AtomicU64>,
    link: Link,
    frame: Vec<u8>,
    /// When each rate begins, nanoseconds, and the rate.
    load: Vec<(u64, u64)>,
    next: u64,
    poller: Poller,
    shared: Arc<Shared>,
    tables: Tables,
    channel: Channel,
    controller: Controller,
    setting: Setting,
    masked: bool,
    last_interrupt: Option<u64>,
    windows: Vec<Window>,
}

impl Machine {
    fn new(kind: PolicyKind, load: Vec<(u64, u64)>) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let reader = clock.clone();
        let (link, _a, mut b) = pair_on_clock(LinkConfig::default(), move || {
            Duration::from_nanos(reader.load(Ordering::Relaxed))
        })
        .unwrap();
        let tables = b.tables.clone();
        tables
            .trusted
            .set_locals(&[Ipv4Addr::new(10, 0, 0, 2).into()])
            .unwrap();
        tables
            .trusted
            .own_port(Protocol::Udp, None, PORT, 0)
            .unwrap();
        let id = ChannelId::new(1, 1);
        tables
            .embedded
            .listen(Protocol::Udp, None, PORT, id)
            .unwrap();
        let queue = b.queues.remove(0);
        let (mut poller, shared, _transmit, _frames) =
            poller::open(0, queue, tables.embedded.clone(), 16);
        let channel = poller.open_channel(id, CHANNEL).unwrap();
        let limits = Limits {
            preempts: true,
            ..kind.limits()
        };
        let controller = Controller::new(kind, limits);
        Machine {
            clock,
            link,
            frame: datagram(),
            load,
            next: 0,
            poller,
            shared,
            tables,
            channel,
            setting: controller.setting(),
            controller,
            masked: false,
            last_interrupt: None,
            windows: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Advances the clock; each frame arrives at its own time.
    fn spend(&mut self, nanoseconds: u64) {
        let end = self.now() + nanoseconds;
        while self.next <= end {
            self.clock.store(self.next, Ordering::Relaxed);
            self.link.inject(Side::B, &self.frame);
            let started = self.load.iter().rev().find(|load| load.0 <= self.next);
            let (_, rate) = started.copied().unwrap_or(self.load[0]);
            self.next += 1_000_000_000 / rate;
        }
        self.clock.store(end, Ordering::Relaxed);
    }

    fn window(&mut self) -> &mut Window {
        let index = (self.now() / WINDOW) as usize;
        if self.windows.len() <= index {
            self.windows.resize(index + 1, Window::default());
        }
        let window = &mut self.windows[index];
        window.setting = Some(self.setting);
        window
    }

    fn used(&self) -> u32 {
        let number = self.channel.id().index();
        let head = self.tables.embedded.head(0, number);
        head.wrapping_sub(self.tables.embedded.tail(0, number))
    }

    /// One round of at most Bp frames: several polls, as one takes no more than [`POLL`],
    /// until one finds less than it could have taken.
    fn round(&mut self, interrupted: bool) {
        let dropped = self.tables.embedded.dropped(0, self.channel.id().index());
        let budget = self.setting.budget;
        let mut taken = 0;
        while taken < budget {
            let part = (budget - taken).min(POLL);
            self.poller.set_budget(part).unwrap();
            let round = self.poller.round(Interrupt::Masked, &mut Vec::new());
            let driven = round.unwrap().driven as u32;
            taken += driven;
            // A frame that the driver drops costs as much as any other.
            self.spend(u64::from(driven) * PROTOCOL);
            if driven < part {
                break;
            }
        }
        let overflowed = self.tables.embedded.dropped(0, self.channel.id().index()) - dropped;
        let round = Round {
            frames: taken,
            exhausted: taken == budget,
            buffer_use: match overflowed {
                0 => self.used() as f32 / CHANNEL as f32,
                _ => 1.0,
            },
            overflowed: overflowed as u32,
        };
        self.masked = round.exhausted;
        self.window().overflowed += overflowed;
        let activity = Activity {
            interrupted,
            sent: 0,
        };
        let now = Duration::from_nanos(self.now());
        if let Some(State { setting, .. }) = self.controller.round(now, &round, activity) {
            self.setting = setting;
        }
    }

    /// True when frames wait in the device ring.
    fn waiting(&self) -> bool {
        let counters = self.link.port_counters(Side::B);
        let driven = self
            .tables
            .trusted
            .counter(0, tidewall_device::demux::layout::Counter::Frames);
        counters.arrived > driven
    }

    fn run(mut self, end: u64) -> Vec<Window> {
        while self.now() < end {
            let interval = self.setting.interrupt_interval.as_nanos() as u64;
            let allowed = self.last_interrupt.map_or(0, |last| last + interval);
            if !self.masked && self.now() >= allowed && self.waiting() {
                self.last_interrupt = Some(self.now());
                self.spend(INTERRUPT);
                self.round(true);
            } else if let Some(frame) = self.channel.remove() {
                self.spend(APPLICATION);
                let mut done = Done::default();
                done.add(&self.shared, frame);
                self.shared.give_back(self.channel.id(), done);
                self.window().goodput += 1;
            } else if self.masked {
                self.spend(SWITCH);
                self.round(false);
                self.spend(SWITCH);
            } else {
                let until = if self.waiting() {
                    allowed
                } else {
                    self.next.max(allowed)
                };
                self.spend(until.min(end) - self.now());
            }
        }
        self.windows.truncate((end / WINDOW) as usize);
        self.windows
    }
}

/// A tenth of `rate`, `rate` from 500 ms to 1 s, a tenth again.
fn step(kind: PolicyKind, rate: u64) -> Vec<Window> {
    let load = vec![(0, rate / 10), (500 * MS, rate), (1_000 * MS, rate / 10)];
    Machine::new(kind, load).run(1_500 * MS)
}

/// Goodput by window from 200 ms after the beginning of half-second `half`.
fn settled(windows: &[Window], half: usize) -> &[Window] {
    &windows[half * 10 + 4..half * 10 + 10]
}

fn check(kind: PolicyKind, rate: u64) {
    let windows = step(kind, rate);
    for (half, load) in [(0, rate / 10), (1, rate), (2, rate / 10)] {
        let settled = settled(&windows, half);
        let goodput: Vec<u64> = settled.iter().map(|window| window.goodput).collect();
        let expected = load.min(CAPACITY) * WINDOW / 1_000_000_000;
        let (least, most) = (goodput.iter().min().unwrap(), goodput.iter().max().unwrap());
        assert!(
            (most - least) * 10 <= expected,
            "{kind} oscillates at {load}/s: {goodput:?}"
        );
        assert!(
            *least * 100 >= expected * 95,
            "{kind} at {load}/s takes {goodput:?} of {expected}"
        );
        let overflowed: u64 = settled.iter().map(|window| window.overflowed).sum();
        assert_eq!(overflowed, 0, "{kind} overflows at {load}/s");
    }
    // The earlier load restores the earlier settings.
    let before = settled(&windows, 0).last().unwrap().setting;
    let after = settled(&windows, 2)[0].setting;
    assert_eq!(before, after, "{kind} after {rate}/s");
}

#[test]
fn rhip_and_adaptive_settle_within_200_ms() {
    for kind in [PolicyKind::Rhip, PolicyKind::Adaptive] {
        for percent in [50, 80, 150, 400] {
            check(kind, CAPACITY * percent / 100);
        }
    }
}

/// The same machine loses frames to the largest budget.
#[test]
fn napi_overflows_at_the_same_load() {
    let windows = step(PolicyKind::Napi, CAPACITY * 4);
    let high = settled(&windows, 1);
    assert!(high.iter().all(|window| window.overflowed > 0));
    let goodput: u64 = high.iter().map(|window| window.goodput).sum();
    let expected = CAPACITY * WINDOW / 1_000_000_000 * high.len() as u64;
    assert!(goodput * 2 < expected, "{goodput} of {expected}");
}
