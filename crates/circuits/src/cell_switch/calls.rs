//! Signalling at a cell switch. The switch's processor is one of its ports, without an
//! interface. Circuit 0.5 of each signalling port leads there, so a port's signalling is
//! bounded and served in turn like cells of circuits. Answers leave the same way.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use tidewall_atm::exchange::{Exchange, NumberPrefix};
use tidewall_atm::reassembly::{DropReason, Limits, Reassembly};
use tidewall_atm::signalling::{Config, Side};
use tidewall_atm::switch::{End, Mode, Port, QUEUE_MIN, Route, Switch};
use tidewall_wire::atm::pseudowire::{FrameHeader, HEADER_LEN, Label, Packet};
use tidewall_wire::atm::{Circuit, aal5};

use super::{CellPort, Entries};

/// Cells that may wait for the switch's processor: those of some 200 SETUPs.
const QUEUE: usize = 1024;
/// PDUs, or parts of them, handled between two rounds of switching.
const BATCH: usize = 32;
/// Bytes of SSCOP's longest PDU, its trailer included.
const PDU_MAX: usize = 4096 + 8;
/// The queue of signalling: ahead of everything that users send.
const PRIORITY: usize = 0;

/// How a port signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals {
    /// The switch's side of the link. The network side names circuits, which hosts need.
    /// The user side is for another switch that is the network side.
    pub side: Side,
    /// Most concurrent calls, of both directions.
    pub calls: usize,
}

/// Returns the switch's own ports for these ports of interfaces: the last is its
/// processor's.
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

/// Returns the routes to the processor, and back.
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

/// Returns the processor's circuit of a port.
fn inside(port: usize) -> Circuit {
    let vci = u16::try_from(port).unwrap_or(u16::MAX);
    Circuit {
        vpi: 0,
        vci: Circuit::FIRST_USER_VCI.saturating_add(vci),
    }
}

/// The calls, and the layers between them and the processor's port.
pub(super) struct Calls {
    exchange: Exchange,
    /// The processor's port.
    own: usize,
    reassembly: Reassembly,
    began: Instant,
    buffer: Vec<u8>,
}

impl Calls {
    /// Returns `None` if no port signals.
    pub(super) fn new(ports: &[CellPort], prefixes: Vec<(NumberPrefix, usize)>) -> Option<Self> {
        ports.iter().find(|port| port.signals.is_some())?;
        let config = |(number, port): (usize, &CellPort)| {
            let signals = port.signals?;
            let mut config = Config::new(signals.side);
            config.calls = signals.calls;
            // The other end may remember numbers of an earlier life, and 0 belongs to
            // none.
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
            // Each port has its own circuit.
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

    /// Returns the number of rejected signalling PDUs.
    pub(super) fn dropped(&self) -> u64 {
        DropReason::ALL
            .map(|it| self.reassembly.dropped(it))
            .iter()
            .sum()
    }

    /// Returns the time until there is something to do, if that is known.
    pub(super) fn wait(&self, switch: &Switch) -> Option<Duration> {
        if switch.is_waiting(self.own) {
            return Some(Duration::ZERO);
        }
        let due = self.exchange.poll_timeout()?;
        Some(due.saturating_sub(self.began.elapsed()))
    }

    /// Handles some of the waiting PDUs and everything due, and sends the answers.
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

    /// Handles a PDU, or a part of one, of `length` bytes in the buffer. Skips OAM cells.
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
        // An error is counted by the reassembly.
        if let Ok(Some(pdu)) = part {
            let port = usize::from(circuit.vci.saturating_sub(Circuit::FIRST_USER_VCI));
            let mut table = |request| entries.request(request);
            (self.exchange).pdu_received(now, port, pdu.payload(), &mut table);
        }
    }

    /// Passes the output of a port's link to the switch, while it has room.
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
