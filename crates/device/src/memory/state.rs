//! Everything behind the link's one lock: the clock, the wire in both
//! directions, and both ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tidewall_wire::checksum;

use crate::demux::Tables;
use crate::frame::{FrameMemory, Part};
use crate::queue::{Offload, POLL_MAX};

use super::config::{Impairments, LinkConfig};
use super::port::{PortState, QueueState};
use super::queue::Parts;
use super::wire::{Arrival, Wire};
use super::{Captured, Side, Sides};

const ETHERNET_HEADER: usize = 14;

/// The source of the time.
pub(super) enum Clock {
    /// Moved by `advance_to` only.
    Virtual(Duration),
    /// The caller's clock.
    Given(Box<dyn Fn() -> Duration + Send>),
}

/// A frame in flight.
struct Flight {
    to: Side,
    bytes: Vec<u8>,
}

pub(super) struct State {
    clock: Clock,
    mtu: usize,
    /// By sender.
    pub wires: Sides<Wire>,
    pub ends: Sides<PortState>,
    /// By time of arrival, then in the order sent.
    flights: BTreeMap<(Duration, u64), Flight>,
    order: u64,
    pub taps: Vec<Weak<Mutex<Vec<Captured>>>>,
}

impl State {
    /// Creates the state, the parts of each end's queues, and its tables. The first end's
    /// queues use `parts`, as far as they suffice.
    pub(super) fn new(
        config: &LinkConfig,
        clock: Clock,
        parts: Vec<Part>,
    ) -> io::Result<(Self, Sides<Vec<Parts>>, Sides<Tables>)> {
        let tables = Sides {
            a: Tables::in_memory()?,
            b: Tables::in_memory()?,
        };
        let make = |tables: &Tables, on: Vec<Part>| -> io::Result<(PortState, Vec<Parts>)> {
            let mtu = if config.joins { config.mtu } else { 0 }.into();
            let mut parts = Vec::new();
            let mut states = Vec::new();
            let mut on = on.into_iter();
            for queue in 0..config.queues {
                let (memory, frames) = match on.next() {
                    Some(part) => part,
                    None => Part::whole(FrameMemory::new(config.frames)?),
                }
                .into_frames();
                let state = QueueState::new(memory.clone(), config.rings, POLL_MAX, mtu)?;
                parts.push(Parts {
                    memory,
                    frames,
                    counters: tables.trusted.counters(queue),
                    descriptor: state.descriptor(),
                    checksum_offload: config.checksum_offload,
                    joins: config.joins,
                });
                states.push(state);
            }
            Ok((
                PortState::new(tables.clone(), states, config.rings.kernel),
                parts,
            ))
        };
        let (a, a_parts) = make(&tables.a, parts)?;
        let (b, b_parts) = make(&tables.b, Vec::new())?;
        let state = State {
            clock,
            mtu: usize::from(config.mtu),
            wires: Sides {
                a: Wire::new(config.a_to_b, config.seed),
                // Far from the other direction's position in the sequence.
                b: Wire::new(config.b_to_a, config.seed ^ 0xb000_0000_0000_0000),
            },
            ends: Sides { a, b },
            flights: BTreeMap::new(),
            order: 0,
            taps: Vec::new(),
        };
        Ok((
            state,
            Sides {
                a: a_parts,
                b: b_parts,
            },
            tables,
        ))
    }

    pub(super) fn now(&self) -> Duration {
        match &self.clock {
            Clock::Virtual(now) => *now,
            Clock::Given(clock) => clock(),
        }
    }

    pub(super) fn advance_to(&mut self, time: Duration) {
        let until = match self.clock {
            Clock::Virtual(now) => time.max(now),
            Clock::Given(_) => self.now(),
        };
        self.deliver_until(until);
        if let Clock::Virtual(now) = &mut self.clock {
            *now = until;
        }
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.flights.keys().next().map(|(time, _)| *time)
    }

    /// Carries out everything due at `until` or before, each at its own time.
    fn deliver_until(&mut self, until: Duration) {
        while self.next_due().is_some_and(|time| time <= until)
            && let Some(((time, _), flight)) = self.flights.pop_first()
        {
            self.ends.of_mut(flight.to).arrive(flight.bytes, time);
            self.answer(flight.to, time);
        }
    }

    /// Sends the frames that an end's driver answered with.
    fn answer(&mut self, from: Side, now: Duration) {
        for bytes in self.ends.of_mut(from).take_answers() {
            self.send(now, from, bytes);
        }
    }

    fn capture(&mut self, time: Duration, from: Side, lost: bool, bytes: &[u8]) {
        self.taps.retain(|tap| {
            let Some(captured) = tap.upgrade() else {
                return false;
            };
            captured
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Captured {
                    time,
                    from,
                    lost,
                    bytes: bytes.to_vec(),
                });
            true
        });
    }

    pub(super) fn inject(&mut self, to: Side, frames: Vec<Vec<u8>>) {
        let now = self.now();
        self.deliver_until(now);
        for bytes in &frames {
            self.capture(now, to.peer(), false, bytes);
        }
        self.ends.of_mut(to).arrive_together(frames, now);
        self.answer(to, now);
        self.deliver_until(now);
    }

    pub(super) fn kernel_send(&mut self, from: Side, bytes: Vec<u8>) {
        if !self.ends.of(from).down {
            let now = self.now();
            self.send(now, from, bytes);
            self.deliver_until(now);
        }
    }

    /// Puts a frame on the wire.
    fn send(&mut self, now: Duration, from: Side, bytes: Vec<u8>) {
        let wire = self.wires.of_mut(from);
        if bytes.len() < ETHERNET_HEADER || bytes.len() > ETHERNET_HEADER + self.mtu {
            wire.counters.invalid += 1;
            return;
        }
        let sent = (!self.taps.is_empty()).then(|| bytes.clone());
        let mut arrivals = Vec::new();
        let carried = wire.send(now, bytes, &mut arrivals);
        if let Some(sent) = sent {
            self.capture(now, from, !carried, &sent);
        }
        let to = from.peer();
        for Arrival { time, bytes } in arrivals {
            self.flights
                .insert((time, self.order), Flight { to, bytes });
            self.order += 1;
        }
    }

    /// Sends the frames that a queue has to transmit. Returns how many are left because
    /// their completions have no room.
    pub(super) fn flush(&mut self, from: Side, queue: u32, offloads: bool) -> io::Result<u32> {
        if self.ends.of(from).down {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        let now = self.now();
        while let Some((mut bytes, offload)) =
            self.ends.of_mut(from).queue_mut(queue)?.next_transmit()
        {
            match offload.filter(|_| offloads) {
                Some(offload) if !finish_checksum(&mut bytes, offload) => {
                    self.wires.of_mut(from).counters.invalid += 1;
                }
                _ => self.send(now, from, bytes),
            }
        }
        self.deliver_until(now);
        Ok(self.ends.of_mut(from).queue_mut(queue)?.left())
    }

    /// The receiver's poll of a queue.
    pub(super) fn poll(&mut self, side: Side, queue: u32, armed: bool) -> io::Result<()> {
        let now = self.now();
        self.deliver_until(now);
        let result = self.ends.of_mut(side).poll(queue, armed, now);
        self.answer(side, now);
        self.deliver_until(now);
        result
    }

    /// A queue, for operations on its rings only.
    pub(super) fn queue_mut(&mut self, side: Side, queue: u32) -> io::Result<&mut QueueState> {
        self.ends.of_mut(side).queue_mut(queue)
    }

    pub(super) fn set_impairments(&mut self, from: Side, new: Impairments) -> io::Result<()> {
        new.check()?;
        if matches!(self.clock, Clock::Given(_)) && new.takes_time() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.wires.of_mut(from).impairments = new;
        Ok(())
    }
}

/// Finishes a checksum whose field holds the sum of the pseudo-header, as
/// Linux does for a device that cannot (`skb_checksum_help`). False when the
/// request does not fit the frame.
fn finish_checksum(bytes: &mut [u8], offload: Offload) -> bool {
    let Some(covered) = bytes.get_mut(usize::from(offload.checksum_start)..) else {
        return false;
    };
    let place = usize::from(offload.checksum_offset);
    if covered.get(place..place + 2).is_none() {
        return false;
    }
    // A sum of zero is sent as all ones: over UDP zero means "none".
    let sum = match checksum::checksum(covered) {
        0 => 0xffff,
        sum => sum,
    };
    if let Some(field) = covered.get_mut(place..place + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    true
}
