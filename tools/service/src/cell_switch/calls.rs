//! Signalling at a switch of cells: the switch's processor is a port of it that has no
//! interface. Circuit 0.5 of each port that signals leads there, so that what a port says is
//! bounded and served in turn as cells of circuits are, and so do answers leave.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use tidewall_atm::exchange::{Exchange, NumberPrefix};
use tidewall_atm::reassembly::{DropReason, Limits, Reassembly};
use tidewall_atm::signalling::{Config, Side};
use tidewall_atm::switch::{End, Mode, Port, QUEUE_MIN, Route, Switch};
use tidewall_wire::atm::pseudowire::{FrameHeader, HEADER_LEN, Label, Packet};
use tidewall_wire::atm::{Circuit, aal5};

use super::{CellPort, Entries};

/// Cells that wait for the switch's processor: of some 200 SETUPs.
const QUEUE: usize = 1024;
/// PDUs, or parts of them, that are dealt with between two rounds of switching.
const BATCH: usize = 32;
/// Bytes of SSCOP's longest PDU, its trailer included.
const PDU_MAX: usize = 4096 + 8;
/// The queue of signalling: before all that users send.
const PRIORITY: usize = 0;

/// How a port signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Which end of the link the switch is. The network's names circuits: what hosts need. The
    /// user's is for another switch that is the network's.
    pub side: Side,
    /// Calls at a time, of both directions.
    pub calls: usize,
}

/// What the switch's own ports are, for these of interfaces: the last is its processor's.
pub fn ports_of(ports: &[CellPort]) -> Vec<Port> {
    let own = Port {
        mode: Mode::Frame,
        queue: QUEUE,
    };
    let port = |port: &CellPort| Port {
        mode: port.way.mode(),
        queue: port.queue,
    };
    ports.iter().map(port).chain([own]).collect()
}

/// What leads to the processor, and back.
pub fn routes_of(ports: &[CellPort]) -> Vec<Route> {
    let signalling = ports.iter().enumerate();
    let signalling = signalling.filter(|(_, port)| port.signals.is_some());
    let both = signalling.flat_map(|(port, _)| {
        let outside = End {
            port,
            circuit: Circuit::SIGNALLING,
        };
        let inside = End {
            port: ports.len(),
            circuit: inside(port),
        };
        [(outside, inside), (inside, outside)]
    });
    both.map(|(from, to)| Route {
        from,
        to,
        priority: PRIORITY,
        aal5: true,
    })
    .collect()
}

/// The processor's circuit of a port.
fn inside(port: usize) -> Circuit {
    let vci = u16::try_from(port).unwrap_or(u16::MAX);
    Circuit {
        vpi: 0,
        vci: Circuit::FIRST_USER_VCI.saturating_add(vci),
    }
}

/// The calls, and what is between them and the processor's port.
pub(super) struct Calls {
    exchange: Exchange,
    /// The processor's port.
    own: usize,
    reassembly: Reassembly,
    began: Instant,
    buffer: Vec<u8>,
}

impl Calls {
    /// `None` where no port signals.
    pub(super) fn new(ports: &[CellPort], prefixes: Vec<(NumberPrefix, usize)>) -> Option<Self> {
        ports.iter().find(|port| port.signals.is_some())?;
        let config = |(number, port): (usize, &CellPort)| {
            let signals = port.signals?;
            let mut config = Config::new(signals.side);
            config.calls = signals.calls;
            // Of an earlier life the other end may still know, and of none it knows 0.
            let random = RandomState::new().hash_one(number);
            config.link.first_sequence = (random % 255) as u8;
            Some(config)
        };
        let configs: Vec<_> = ports.iter().enumerate().map(config).collect();
        let mut exchange = Exchange::new(&configs);
        exchange.set_prefixes(prefixes);
        let mut reassembly = Reassembly::new(Limits {
            memory: 2 * PDU_MAX * ports.len(),
            ..Limits::default()
        });
        for port in 0..ports.len() {
            // Each has a circuit of its own.
            let _ = reassembly.open(inside(port), PDU_MAX);
        }
        Some(Calls {
            exchange,
            own: ports.len(),
            reassembly,
            began: Instant::now(),
            buffer: vec![0; HEADER_LEN + aal5::pdu_len(PDU_MAX)],
        })
    }

    pub(super) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    pub(super) fn exchange_mut(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    /// PDUs of signalling that were refused.
    pub(super) fn dropped(&self) -> u64 {
        DropReason::ALL
            .map(|it| self.reassembly.dropped(it))
            .iter()
            .sum()
    }

    /// How soon there is something to do, if that is known.
    pub(super) fn wait(&self, switch: &Switch) -> Option<Duration> {
        if switch.is_waiting(self.own) {
            return Some(Duration::ZERO);
        }
        let due = self.exchange.poll_timeout()?;
        Some(due.saturating_sub(self.began.elapsed()))
    }

    /// Deals with some of what has come and with what is due, and says what is to be said.
    pub(super) fn serve(&mut self, entries: &mut Entries) {
        for _ in 0..BATCH {
            let Some(length) = entries.switch.transmit(self.own, &mut self.buffer) else {
                break;
            };
            self.part(length, entries);
        }
        let now = self.began.elapsed();
        if self.exchange.poll_timeout().is_some_and(|at| at <= now) {
            (self.exchange).handle_timeout(now, &mut |request| entries.request(request));
        }
        for port in 0..self.own {
            self.answer(now, port, &mut entries.switch);
        }
    }

    /// A PDU, or a part of one, of which so many bytes are in the buffer. Cells of OAM are
    /// passed over.
    fn part(&mut self, length: usize, entries: &mut Entries) {
        let packet = self
            .buffer
            .get(..length)
            .and_then(|it| Packet::new(it).ok());
        let named = packet.and_then(|it| it.label().circuit().zip(it.frame().ok()));
        let Some((circuit, frame)) = named else {
            return;
        };
        let now = self.began.elapsed();
        let part = (self.reassembly).part(now, circuit, frame.bytes, frame.header.last);
        // An error is counted there.
        if let Ok(Some(pdu)) = part {
            let port = usize::from(circuit.vci.saturating_sub(Circuit::FIRST_USER_VCI));
            let mut table = |request| entries.request(request);
            (self.exchange).pdu_received(now, port, pdu.payload(), &mut table);
        }
    }

    /// Gives the switch what a port's link has to say, while it has room.
    fn answer(&mut self, now: Duration, port: usize, switch: &mut Switch) {
        let Some(label) = Label::of_circuit(inside(port)) else {
            return;
        };
        let room = |switch: &Switch| switch.waiting(port)[PRIORITY] < QUEUE_MIN;
        while room(switch) {
            let Some(pdu) = self.exchange.poll_transmit(now, port) else {
                return;
            };
            let length = HEADER_LEN + aal5::pdu_len(pdu.len());
            let Some(packet) = self.buffer.get_mut(..length) else {
                return;
            };
            let header = FrameHeader::whole(label);
            if let Ok(place) = header.emit(packet)
                && aal5::emit(&pdu, 0, place).is_ok()
            {
                switch.input(self.own, packet);
            }
        }
    }
}
