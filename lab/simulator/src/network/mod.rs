//! Hosts on links, and a clock that jumps from event to event.
//!
//! ```text
//! Application ─► Host (engine) ─► cut ─► Link ─► Link ─► … ─► Host (engine) ─► Application
//!  what to       Connection,     as a   one route for         what was read is
//!  write, read   Listener       device  each direction        compared byte by byte
//! ```
//!
//! Everything is processed in one order: by time, then by creation. Every draw comes from
//! the network's seed, so the same seed gives the same result. Packets that arrive at a
//! host at the same instant are passed to it together, as a device does.

mod flow;
mod host;
mod packet;
mod stream;
mod trace;

use std::time::Duration;

use tidewall_protocol::tcp::{Errno, Segment};

pub use flow::{Application, Reading, Report, Setup};
pub use trace::TraceEntry;

use crate::link::{Counters, Ecn, Impairment, Link};
use crate::random::Random;
use flow::Flow;
use host::HostError;
use packet::{Packet, Side};

/// The engines' clock at a network's time zero.
const EPOCH: Duration = Duration::from_secs(10_000);

/// Events at one instant above which the network counts as stuck.
const INSTANT_MAX: u32 = 100_000;

/// One direction of a link of a [`Network`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkId(usize);

/// A flow of a [`Network`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowId(pub(crate) usize);

/// Why a run was ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// An application read data that differs from its peer's.
    #[error("{flow:?} read wrong bytes at {at:?}")]
    Corrupt {
        /// The flow.
        flow: FlowId,
        /// The time.
        at: Duration,
    },
    /// A connection failed.
    #[error("{flow:?} failed at {at:?}: {error:?}")]
    Connection {
        /// The flow.
        flow: FlowId,
        /// The time.
        at: Duration,
        /// The application's error.
        error: Errno,
    },
    /// An engine requests output or a timeout at once, again and again.
    #[error("an engine runs in circles at {at:?}")]
    Stuck {
        /// The time.
        at: Duration,
    },
}

/// Links, flows over them, and a clock.
pub struct Network {
    now: Duration,
    random: Random,
    links: Vec<Link<Packet>>,
    /// For each watched link: how long each packet waited, in microseconds.
    waits: Vec<Option<Vec<u32>>>,
    flows: Vec<Flow>,
    /// Kept to reuse its memory.
    outbox: Vec<Packet>,
    trace_entries: Option<Vec<TraceEntry>>,
}

impl Network {
    /// An empty network at time zero.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            random: Random::new(seed),
            links: Vec::new(),
            waits: Vec::new(),
            flows: Vec::new(),
            outbox: Vec::new(),
            trace_entries: None,
        }
    }

    /// Adds one direction of a link.
    pub fn link(&mut self, impairment: Impairment) -> LinkId {
        self.links.push(Link::new(impairment, self.random.bits()));
        self.waits.push(None);
        LinkId(self.links.len() - 1)
    }

    /// Adds a flow.
    pub fn flow(&mut self, setup: Setup) -> FlowId {
        let id = FlowId(self.flows.len());
        self.flows.push(Flow::new(id, setup, &mut self.random));
        id
    }

    /// Records from now on how long packets wait for a link's transmitter.
    pub fn watch(&mut self, link: LinkId) {
        if let Some(waits) = self.waits.get_mut(link.0) {
            *waits = Some(Vec::new());
        }
    }

    /// Records from now on every segment that a host sends or receives.
    pub fn trace(&mut self) {
        self.trace_entries = Some(Vec::new());
    }

    /// The records since [`Network::trace`], in the order of time.
    pub fn trace_entries(&self) -> &[TraceEntry] {
        self.trace_entries.as_deref().unwrap_or_default()
    }

    fn see(&mut self, packet: &Packet, arrived: bool) {
        if let Some(trace_entries) = &mut self.trace_entries {
            trace_entries.push(TraceEntry {
                at: self.now,
                flow: packet.flow,
                from_client: packet.from == Side::Client,
                arrived,
                header: packet.header,
                length: packet.payload.len(),
            });
        }
    }

    /// How long each packet has waited for a watched link's transmitter, in
    /// microseconds, in the order of sending.
    pub fn waits(&self, link: LinkId) -> &[u32] {
        let waits = self.waits.get(link.0).and_then(Option::as_deref);
        waits.unwrap_or_default()
    }

    /// The counters of a link so far.
    pub fn counters(&self, link: LinkId) -> Counters {
        let link = self.links.get(link.0);
        link.map(Link::counters).unwrap_or_default()
    }

    /// The results of a flow so far; `None` for a flow of another network.
    pub fn report(&self, flow: FlowId) -> Option<Report> {
        self.flows.get(flow.0).map(Flow::report)
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Runs until a time, or until every flow is done.
    ///
    /// # Errors
    /// See [`Failure`]; the network is then unusable.
    pub fn run(&mut self, until: Duration) -> Result<(), Failure> {
        let mut events = 0;
        loop {
            let arrivals = self.links.iter().filter_map(Link::next_arrival);
            let wakes = self.flows.iter().filter_map(Flow::wake);
            let Some(next) = arrivals.chain(wakes).min().filter(|&at| at <= until) else {
                self.now = self.now.max(until);
                return Ok(());
            };
            events += 1;
            if next > self.now {
                self.now = next;
                events = 0;
            }
            if events > INSTANT_MAX {
                return Err(Failure::Stuck { at: self.now });
            }
            for link in 0..self.links.len() {
                while self.links[link]
                    .next_arrival()
                    .is_some_and(|at| at <= self.now)
                    && let Some((mut packet, marked)) = self.links[link].receive(self.now)
                {
                    if marked {
                        packet.traffic_class = Ecn::mark(packet.traffic_class);
                    }
                    self.forward(packet);
                }
            }
            let mut working = false;
            for flow in 0..self.flows.len() {
                self.work(flow)?;
                working |= !self.flows[flow].is_done();
            }
            if !working {
                return Ok(());
            }
        }
    }

    /// Sends a packet onto the next link of its route, or to its host.
    fn forward(&mut self, mut packet: Packet) {
        if packet.hops == 0 {
            self.see(&packet, false);
        }
        let flow = &mut self.flows[packet.flow.0];
        let route = match packet.from {
            Side::Client => &flow.setup.forward,
            Side::Server => &flow.setup.back,
        };
        if let Some(&LinkId(link)) = route.get(packet.hops)
            && let Some(place) = self.links.get_mut(link)
        {
            packet.hops += 1;
            let capable = Ecn::of(packet.traffic_class).is_capable();
            let wait = place.queueing_delay(self.now);
            let dropped = place.counters().dropped;
            place.send(self.now, packet.bytes(), capable, packet);
            if let Some(waits) = &mut self.waits[link]
                && place.counters().dropped == dropped
            {
                waits.push(u32::try_from(wait.as_micros()).unwrap_or(u32::MAX));
            }
            return;
        }
        let to = packet.from.other();
        let addresses = flow.addresses(to);
        let header = &packet.header;
        let current = [header.destination_port, header.source_port]
            == [addresses.local.port(), addresses.remote.port()];
        // A late packet has no connection any more.
        if !current || flow.is_done() || flow.is_waiting() {
            return;
        }
        self.see(&packet, true);
        let flow = &mut self.flows[packet.flow.0];
        let segment = Segment {
            flow: addresses,
            header: packet.header,
            payload: &packet.payload,
            traffic_class: packet.traffic_class,
        };
        let outbox = &mut self.outbox;
        flow.hosts[to as usize].input(&segment, EPOCH + self.now, packet.flow, &mut |answer| {
            outbox.push(answer);
        });
        self.send_outbox();
    }

    fn send_outbox(&mut self) {
        let mut outbox = std::mem::take(&mut self.outbox);
        for packet in outbox.drain(..) {
            self.forward(packet);
        }
        self.outbox = outbox;
    }

    /// Makes a flow do everything that it can do now.
    fn work(&mut self, index: usize) -> Result<(), Failure> {
        let (now, time, id) = (self.now, EPOCH + self.now, FlowId(index));
        let flow = &mut self.flows[index];
        if flow.is_done() || flow.wake().is_none_or(|at| at > now) {
            return Ok(());
        }
        flow.begin(now, time, &mut self.random);
        let failure = |trouble| match trouble {
            HostError::Corrupt => Failure::Corrupt { flow: id, at: now },
            HostError::Failed(error) => Failure::Connection {
                flow: id,
                at: now,
                error,
            },
            HostError::Stuck => Failure::Stuck { at: now },
        };
        for side in Side::BOTH {
            let flow = &mut self.flows[index];
            let host = &mut flow.hosts[side as usize];
            if !host.dirty && host.wake.is_none_or(|at| at > now) {
                continue;
            }
            let outbox = &mut self.outbox;
            host.expire(time, id, &mut |packet| outbox.push(packet));
            host.blocked = host.blocked.filter(|&at| at > now);
            host.receive(now, flow.setup.reading).map_err(failure)?;
            flow.advance(now);
            let goal = flow.goal(side);
            let host = &mut flow.hosts[side as usize];
            host.transmit(goal, time).map_err(failure)?;
            if host.blocked.is_none() {
                self.output(index, side).map_err(failure)?;
            }
            self.send_outbox();
            let flow = &mut self.flows[index];
            flow.hosts[side as usize].plan(now, EPOCH);
            flow.advance(now);
        }
        Ok(())
    }

    fn output(&mut self, index: usize, side: Side) -> Result<(), HostError> {
        let (now, time, id) = (self.now, EPOCH + self.now, FlowId(index));
        let flow = &mut self.flows[index];
        let route = match side {
            Side::Client => &flow.setup.forward,
            Side::Server => &flow.setup.back,
        };
        let first = route.first().and_then(|link| self.links.get_mut(link.0));
        let room = match (flow.setup.device_queue, first) {
            (Some(limit), Some(link)) => Some(u64::from(limit).saturating_sub(link.queued(now))),
            _ => None,
        };
        let outbox = &mut self.outbox;
        let host = &mut flow.hosts[side as usize];
        let sent = host.output(time, id, side, room, &mut |packet| outbox.push(packet))?;
        if sent {
            return Ok(());
        }
        flow.refusals += 1;
        self.send_outbox();
        let flow = &mut self.flows[index];
        let route = match side {
            Side::Client => &flow.setup.forward,
            Side::Server => &flow.setup.back,
        };
        let first = route.first().and_then(|link| self.links.get(link.0));
        let wait = first.map(|link| link.queueing_delay(now) / 2);
        let wait = wait.unwrap_or_default().max(Duration::from_micros(1));
        flow.hosts[side as usize].blocked = Some(now + wait);
        Ok(())
    }
}
