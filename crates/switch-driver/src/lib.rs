//! The transport switch over real interfaces: the machine (crates/switch), segments in,
//! emissions out.

#![deny(unsafe_code)]

mod sides;
mod status;
mod sweep;
mod trace;
mod watchdog;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidewall_forward::{Arrived, Forwarder, Heading, Output};
use tidewall_protocol::tcp::{FourTuple, Secrets, Time};
use tidewall_stack::stack::EmbeddedConfig;
use tidewall_switch::modules::Modules;
use tidewall_switch::{
    Config, Emission, Gather, Gathered, Member, MemberError, MemberId, Payload, Switch, append,
};
use tidewall_wire::acp;
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::Flags;

use sides::Sides;
pub use status::counter_names;
use sweep::Sweep;
pub use watchdog::watched;

/// Index of the peers' interface.
const PEERS: usize = 0;

/// Payloads up to this length that could continue in their received frame are copied
/// instead, and wait for the rest of their batch: copying so few bytes costs less than a
/// segment.
const COPIED: usize = 512;

/// Sees the payload of each segment.
pub type Inspect = Box<dyn FnMut(Pieces<'_>)>;

/// A switch and its interfaces.
pub struct Driver {
    switch: Switch,
    forwarder: Forwarder,
    wiring: Wiring,
    began: Instant,
    sweep: Sweep,
    inspect: Option<Inspect>,
    /// Interfaces whose ports towards members the switch owns.
    claimed: Vec<usize>,
    /// Members' interfaces that have disappeared.
    lost: Vec<usize>,
}

/// The change of a members' interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceChange {
    /// It has disappeared, and its members have failed.
    Lost(usize),
    /// It has returned, without members.
    Back(usize),
}

/// Why a switch could not be opened.
#[derive(Debug)]
pub struct OpenError {
    /// The failed operation.
    pub what: String,
    /// The system's error.
    pub error: io::Error,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl std::error::Error for OpenError {}

/// Adds the failed operation to an error.
fn trying(what: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let what = what.into();
    move |error| OpenError { what, error }
}

/// The destination of the switch's emissions.
struct Wiring {
    /// Names of the interfaces.
    interfaces: Vec<String>,
    sides: Sides,
    emissions: Vec<Emission>,
    /// Emissions that wait for the rest of their batch.
    gather: Gather,
    /// The bytes of a null frame, or of parts that share a segment.
    bytes: Vec<u8>,
}

impl Driver {
    /// Takes the queues of these interfaces, the first of which is the peers'. Adds the
    /// virtual address to that interface, and owns its port there. There are no members
    /// yet.
    ///
    /// # Errors
    /// The failed operation, and the system's error; EINVAL for a configuration that is
    /// out of bounds.
    pub fn open(
        interfaces: &[String],
        config: Config,
        modules: Box<dyn Modules>,
    ) -> Result<Self, OpenError> {
        let virtual_address = config.address;
        let configs = interfaces.iter().map(EmbeddedConfig::new).collect();
        let mut forwarder = Forwarder::open(configs)
            .map_err(trying(format!("opening {}", interfaces.join(", "))))?;
        forwarder
            .add_address(PEERS, virtual_address.ip())
            .and_then(|()| forwarder.claim(PEERS, virtual_address))
            .map_err(trying(virtual_address.to_string()))?;
        let secrets = secrets().map_err(trying("reading /dev/urandom"))?;
        let switch = Switch::new(config, secrets, modules)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
            .map_err(trying("the configuration"))?;
        forwarder.begin_stat();
        Ok(Driver {
            switch,
            forwarder,
            wiring: Wiring {
                interfaces: interfaces.to_vec(),
                sides: Sides::new(virtual_address),
                emissions: Vec::new(),
                gather: Gather::default(),
                bytes: Vec::new(),
            },
            began: Instant::now(),
            sweep: Sweep::default(),
            inspect: None,
            claimed: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// Passes the payload of every segment to `inspect` before it is forwarded.
    pub fn set_inspect(&mut self, inspect: Inspect) {
        self.inspect = Some(inspect);
    }

    /// Returns the machine.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Returns the interfaces.
    pub fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.forwarder
    }

    /// Fails the members of interfaces that have disappeared, and reopens interfaces that
    /// have returned. Must be called now and then.
    ///
    /// # Errors
    /// ENODEV, with its name, once the peers' interface has disappeared.
    pub fn follow_interfaces(&mut self) -> io::Result<Vec<InterfaceChange>> {
        if self.forwarder.is_gone(PEERS) {
            let name = self.wiring.interfaces.first().map_or("", String::as_str);
            let gone = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(io::Error::new(gone.kind(), format!("{name}: {gone}")));
        }
        let mut changes = Vec::new();
        for side in PEERS + 1..self.wiring.interfaces.len() {
            if self.forwarder.is_gone(side) && !self.lost.contains(&side) {
                self.lost.push(side);
                self.claimed.retain(|it| *it != side);
                let members: Vec<_> = self.wiring.sides.members_on(side).collect();
                for member in members {
                    self.remove_member(member.address, true);
                }
                changes.push(InterfaceChange::Lost(side));
            }
        }
        for side in self.forwarder.look_again() {
            self.lost.retain(|it| *it != side);
            changes.push(InterfaceChange::Back(side));
        }
        Ok(changes)
    }

    /// Returns whether an interface has disappeared.
    pub fn is_lost(&self, side: usize) -> bool {
        self.lost.contains(&side)
    }

    /// Waits until something arrives or is due, no longer than `most`, and handles it.
    ///
    /// # Errors
    /// The error of the interfaces; EINTR.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        let now = self.began.elapsed();
        let due = self.switch.next_deadline();
        let most = due.map_or(most, |due| most.min(due.saturating_sub(now)));
        self.forwarder.wait(Some(most))?;
        let Driver {
            switch,
            forwarder,
            wiring,
            began,
            sweep,
            inspect,
            claimed: _,
            lost: _,
        } = self;
        let now = began.elapsed();
        forwarder.receive_batch(|output, arrived| {
            let Some(arrived) = arrived else {
                return wiring.end_batch(output);
            };
            let Some(segment) = arrived.segment() else {
                return;
            };
            if let Some(inspect) = inspect {
                inspect(segment.payload);
            }
            let traffic_class = segment.traffic_class;
            if segment.header.flags.contains(Flags::SYN) && wiring.sides.is_of_peer(&segment.flow) {
                // A member's segment causes the answer.
                output.remember_sender(arrived);
            }
            let before = arrived
                .is_followed()
                .then(|| trace::before(switch, &segment, arrived));
            switch.input_in_pieces(now, &segment, &mut |emission| {
                wiring.emissions.push(emission)
            });
            let (flow, flags) = (segment.flow, segment.header.flags);
            if let Some(before) = before {
                trace::after(&before, switch, arrived);
            }
            if wiring.is_let_in(&flow, flags) {
                output.admit(arrived.interface(), &flow);
            }
            wiring.act(output, Some(arrived), traffic_class);
        });
        let output = forwarder.output();
        if sweep.is_due(now, output.admitted(PEERS), switch.len()) {
            output.retain(PEERS, |flow| switch.contains(flow));
        }
        if switch.next_deadline().is_some_and(|due| due <= now) {
            self.with(|switch, now, emit| switch.poll(now, emit));
        }
        let (switch, output) = (&self.switch, self.forwarder.output().counters());
        self.forwarder
            .answer_stat(|| status::snapshot(switch, output));
        Ok(())
    }

    /// Adds a member and resolves its link address: its segments leave by interface
    /// `side`, on which the first member takes the ports towards members.
    ///
    /// # Errors
    /// EEXIST if there is one of this address, EINVAL for other [`MemberError`]s; ENODEV
    /// while the interface is missing; the error of taking the ports. The member is not
    /// added then.
    pub fn add_member(&mut self, member: Member, side: usize) -> io::Result<MemberId> {
        let is_same = |(_, it, up, _): (_, Member, _, _)| up && it.address == member.address;
        if self.switch.members().any(is_same) {
            return Err(refused(MemberError::Exists(member.address)));
        }
        if self.forwarder.is_gone(side) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        if !self.claimed.contains(&side) {
            let ports = self.switch.config().ports.clone();
            self.forwarder.claim_ports(side, ports).map_err(|error| {
                let interface = self.wiring.interfaces.get(side).map_or("", String::as_str);
                let what = format!("ports towards members on {interface}: {error}");
                io::Error::new(error.kind(), what)
            })?;
            self.claimed.push(side);
        }
        let remote = member.address.ip();
        self.forwarder.resolve(side, remote, member.local);
        let members = || self.switch.members().map(|(_, member, ..)| member);
        (self.wiring.sides).set(member, side, |other| members().any(|it| it == *other));
        let added = self.with(|switch, now, emit| switch.add_member(now, member, emit));
        added.map_err(refused)
    }

    /// Removes the member of this address: it finishes its work, or, if it is `dead`, is
    /// abandoned.
    pub fn remove_member(&mut self, address: SocketAddr, dead: bool) {
        let of = |(id, member, up, _): (MemberId, Member, bool, _)| {
            (up && member.address == address).then_some(id)
        };
        let Some(id) = self.switch.members().find_map(of) else {
            return;
        };
        self.with(|switch, now, emit| match dead {
            true => switch.fail_member(now, id, emit),
            false => switch.remove_member(now, id, emit),
        });
    }

    /// Runs something that no segment has caused, and sends its emissions.
    fn with<T>(&mut self, run: impl FnOnce(&mut Switch, Time, &mut dyn FnMut(Emission)) -> T) -> T {
        let wiring = &mut self.wiring;
        let emissions = &mut wiring.emissions;
        let result = run(&mut self.switch, self.began.elapsed(), &mut |emission| {
            emissions.push(emission);
        });
        let output = self.forwarder.output();
        wiring.act(output, None, 0);
        output.flush();
        result
    }
}

fn refused(error: MemberError) -> io::Error {
    let kind = match error {
        MemberError::Exists(_) => io::ErrorKind::AlreadyExists,
        _ => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error)
}

fn secrets() -> io::Result<Secrets> {
    let mut random = File::open("/dev/urandom")?;
    let mut key = || {
        let mut key = [0; 16];
        random.read_exact(&mut key).map(|()| key)
    };
    Ok(Secrets {
        sequence: key()?,
        cookie: key()?,
    })
}

impl Wiring {
    /// Returns true if a peer's segment has caused something to be sent to a member, and
    /// was no SYN: then it belongs to a connection whose handshake is complete.
    fn is_let_in(&self, flow: &FourTuple, flags: Flags) -> bool {
        self.sides.is_of_peer(flow)
            && !flags.intersects(Flags::SYN | Flags::RST)
            && (self.emissions.iter()).any(|emission| emission.flow.local != flow.local)
    }

    /// Sends emissions in order. Payload that directly follows the previous one shares
    /// its segment. The last part of the received payload, if it forms a segment by
    /// itself, leaves in its received frame. So does an emission without payload, if no
    /// payload is forwarded. But payloads that are small, or copied in any case, wait for
    /// the rest of the batch for their connection.
    fn act(
        &mut self,
        output: &mut Output,
        mut arrived: Option<&mut Arrived<'_>>,
        traffic_class: u8,
    ) {
        let has_payload = |emission: &Emission| matches!(emission.payload, Payload::Received(_));
        let emissions = std::mem::take(&mut self.emissions);
        let last = emissions.iter().rposition(has_payload);
        let in_place = last.or(emissions.len().checked_sub(1));
        let mut number = 0;
        for (header, parts) in tidewall_switch::segments(&emissions) {
            let begun = number;
            number += parts.len();
            let Some(Emission { flow, payload, .. }) = parts.first() else {
                continue;
            };
            let Some(side) = self.sides.of(flow) else {
                continue;
            };
            let heading = Heading {
                flow: *flow,
                header,
                traffic_class: class_of(payload, traffic_class),
            };
            if let Some(arrived) = arrived.as_deref() {
                let is_long = parts.len() == 1 && payload.len() > COPIED;
                let goes_on = is_long && Some(begun) == in_place;
                let waits = !(goes_on || arrived.is_followed());
                let received = match payload {
                    Payload::Received(_) => arrived.payload(),
                    _ => Pieces::EMPTY,
                };
                let class = heading.traffic_class;
                let queue = arrived.queue();
                let (earlier, taken) = match waits {
                    true => self.gather.put(&header, parts, received, class, queue),
                    false => (self.gather.release(&header, parts), false),
                };
                if let Some(earlier) = earlier {
                    self.send_gathered(output, earlier);
                }
                if taken {
                    continue;
                }
            }
            let followed = arrived.as_deref().filter(|arrived| arrived.is_followed());
            let before = followed.map(|arrived| {
                trace::translated(flow, &header, parts, arrived);
                output.counters()
            });
            match (payload, arrived.as_deref_mut()) {
                (Payload::Null(size), arrived) => {
                    let null = null_frame(&mut self.bytes, *size);
                    output.send(side, &heading, null, arrived.as_deref());
                }
                (_, Some(arrived)) if parts.len() > 1 => {
                    self.bytes.clear();
                    append(&mut self.bytes, parts, arrived.payload());
                    output.send(side, &heading, &self.bytes, Some(arrived));
                }
                (payload, Some(arrived)) => {
                    let range = match payload {
                        Payload::Received(range) => range.clone(),
                        _ => 0..0,
                    };
                    if Some(begun) == in_place {
                        output.forward(side, &heading, arrived, range);
                    } else {
                        let part = arrived.payload().get(range).unwrap_or(Pieces::EMPTY);
                        let part = in_one(part, &mut self.bytes);
                        output.send(side, &heading, part, Some(arrived));
                    }
                }
                (_, None) => output.send(side, &heading, &[], None),
            }
            if let (Some(before), Some(arrived)) = (before, arrived.as_deref()) {
                let interface = self.interfaces.get(side).map_or("", String::as_str);
                trace::sent(before, output.counters(), interface, arrived);
            }
        }
        // Kept for its memory.
        self.emissions = emissions;
        self.emissions.clear();
    }

    /// Sends waiting emissions: nothing more arrives in this batch.
    fn end_batch(&mut self, output: &mut Output) {
        while let Some(gathered) = self.gather.pop() {
            self.send_gathered(output, gathered);
        }
    }

    fn send_gathered(&mut self, output: &mut Output, gathered: Gathered) {
        if let Some(side) = self.sides.of(&gathered.flow) {
            let heading = Heading {
                flow: gathered.flow,
                header: gathered.header,
                traffic_class: gathered.traffic_class,
            };
            output.send_by(side, gathered.queue, &heading, &gathered.payload);
        }
        self.gather.give_back(gathered);
    }
}

/// Returns bytes in one slice; `buffer` holds them if they lie in several pieces.
fn in_one<'a>(bytes: Pieces<'a>, buffer: &'a mut Vec<u8>) -> &'a [u8] {
    match bytes.as_slice() {
        Some(bytes) => bytes,
        None => {
            buffer.clear();
            bytes.append_to(buffer);
            buffer
        }
    }
}

/// Returns the traffic class of the carrying packet: the DSCP of the received one. No end
/// has agreed on ECN with the switch, so none may send ECT or receive a mark (RFC 3168
/// §6.1.1).
fn class_of(payload: &Payload, received: u8) -> u8 {
    const ECN: u8 = 0b11;
    match payload {
        Payload::Received(range) if !range.is_empty() => received & !ECN,
        _ => 0,
    }
}

/// Returns a null frame of `size` bytes in total.
fn null_frame(buffer: &mut Vec<u8>, size: usize) -> &[u8] {
    buffer.clear();
    if let Some(header) = acp::Header::null(size) {
        buffer.extend(header.bytes());
        buffer.resize(size, 0);
    }
    buffer
}
