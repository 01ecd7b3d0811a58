//! One host of a flow: the engine, and the reading and writing application above it.

use std::time::Duration;

use tidewall_protocol::tcp::{
    self, Config, Connection, Errno, Info, Listener, Reaction, Secrets, Segment, Shutdown, State,
    Time,
};

use super::packet::{Packet, Side, cut};
use super::stream::Stream;
use super::{FlowId, Reading};
use crate::random::Random;

/// The goal of the application above a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Bytes that must have been written since the connection began.
    pub(super) written: u64,
    /// Whether to close after that.
    pub(super) close: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostError {
    /// Bytes arrived that were not sent, or not at that position.
    Corrupt,
    /// The connection failed.
    Failed(Errno),
    /// The engine requests output, but sends nothing.
    Stuck,
}

/// Sums over the connections of a host.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Totals {
    pub(super) retransmissions: u64,
    pub(super) timeouts: u64,
    pub(super) fast_recoveries: u64,
    pub(super) segments_sent: u64,
}

impl Totals {
    pub(super) fn add(&mut self, info: &Info) {
        self.retransmissions += u64::from(info.retransmissions);
        self.timeouts += u64::from(info.timeouts);
        self.fast_recoveries += u64::from(info.fast_recoveries);
        self.segments_sent += u64::from(info.segments_sent);
    }
}

pub(super) struct Host {
    pub(super) config: Config,
    /// The server's listener.
    listener: Option<Listener>,
    pub(super) connection: Option<Connection>,
    outgoing: Stream,
    incoming: Stream,
    written: u64,
    pub(super) read: u64,
    /// The application has closed.
    closed: bool,
    /// The end of the stream was read.
    pub(super) ended: bool,
    next_read: Duration,
    /// The device has no room until this time.
    pub(super) blocked: Option<Duration>,
    /// When this host must be examined, if nothing happens before.
    pub(super) wake: Option<Duration>,
    /// A packet has arrived.
    pub(super) dirty: bool,
    pub(super) totals: Totals,
    /// Bytes read on earlier connections.
    pub(super) read_before: u64,
}

impl Host {
    pub(super) fn new(config: Config, listens: bool, random: &mut Random) -> Self {
        let mut key = || {
            let halves = [random.bits().to_ne_bytes(), random.bits().to_ne_bytes()];
            let mut key = [0; 16];
            for (place, byte) in key.iter_mut().zip(halves.as_flattened()) {
                *place = *byte;
            }
            key
        };
        let secrets = Secrets {
            sequence: key(),
            cookie: key(),
        };
        Self {
            config,
            listener: listens.then(|| Listener::new(&config, 128, secrets)),
            connection: None,
            outgoing: Stream::new(0),
            incoming: Stream::new(0),
            written: 0,
            read: 0,
            closed: false,
            ended: false,
            next_read: Duration::ZERO,
            blocked: None,
            wake: None,
            dirty: false,
            totals: Totals::default(),
            read_before: 0,
        }
    }

    /// Prepares for another connection.
    pub(super) fn reset(&mut self, outgoing: Stream, incoming: Stream) {
        if let Some(connection) = self.connection.take() {
            self.totals.add(&connection.info());
        }
        self.outgoing = outgoing;
        self.incoming = incoming;
        self.written = 0;
        self.read_before += self.read;
        self.read = 0;
        self.closed = false;
        self.ended = false;
        self.blocked = None;
        self.wake = None;
        self.dirty = true;
    }

    /// The end of the stream was read, and everything written is acknowledged.
    pub(super) fn is_over(&self) -> bool {
        let state = self.connection.as_ref().map(Connection::state);
        self.ended && matches!(state, Some(State::Closed | State::TimeWait))
    }

    /// Processes a segment; an immediate answer of the listener goes to `emit`.
    pub(super) fn input(
        &mut self,
        segment: &Segment<'_>,
        time: Time,
        id: FlowId,
        emit: &mut dyn FnMut(Packet),
    ) {
        self.dirty = true;
        if let Some(connection) = &mut self.connection {
            connection.input(segment, time);
            return;
        }
        let Some(listener) = &mut self.listener else {
            return;
        };
        let reaction = listener.input(segment, time, &mut |_, outgoing| {
            cut(id, Side::Server, outgoing, emit);
        });
        if let Reaction::Established(handshake) = reaction {
            let mut connection = Connection::accept(&handshake, &self.config, time);
            connection.input(segment, time);
            self.connection = Some(connection);
        }
    }

    /// Runs expired timers.
    pub(super) fn expire(&mut self, time: Time, id: FlowId, emit: &mut dyn FnMut(Packet)) {
        if let Some(listener) = &mut self.listener
            && listener.next_timeout().is_some_and(|at| at <= time)
        {
            let mut send = |_: &tcp::FourTuple, outgoing: &tcp::Outgoing<'_>, _| {
                cut(id, Side::Server, outgoing, emit);
            };
            listener.timeout(time, &mut send, &mut |_| {});
        }
        if let Some(connection) = &mut self.connection
            && connection.next_timeout().is_some_and(|at| at <= time)
        {
            connection.timeout(time);
        }
    }

    /// Reads the available data, as far as permitted.
    pub(super) fn receive(&mut self, now: Duration, reading: Reading) -> Result<(), HostError> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        if let Some(error) = connection.take_error() {
            return Err(HostError::Failed(error));
        }
        while now >= self.next_read {
            let mut length = 0;
            for piece in connection.received() {
                let piece = &piece[..piece.len().min(reading.at_once - length)];
                if !self.incoming.matches(self.read + length as u64, piece) {
                    return Err(HostError::Corrupt);
                }
                length += piece.len();
            }
            if length == 0 {
                break;
            }
            connection.consume(length);
            self.read += length as u64;
            self.next_read = now + reading.pause;
        }
        let unread = connection.received().iter().any(|piece| !piece.is_empty());
        self.ended = !unread && connection.receive_closed();
        Ok(())
    }

    /// Writes as much of the goal as fits, and closes after it.
    pub(super) fn transmit(&mut self, goal: Goal, time: Time) -> Result<(), HostError> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        while self.written < goal.written {
            let bytes = self.outgoing.at(self.written, goal.written - self.written);
            match connection.write(bytes) {
                Ok(length) => self.written += length as u64,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(HostError::Failed(error)),
            }
        }
        let open = matches!(
            connection.state(),
            State::Established | State::CloseWait | State::SynReceived
        );
        if goal.close && !self.closed && open && self.written == goal.written {
            self.closed = true;
            if let Err(error) = connection.shutdown(Shutdown::Write, time) {
                return Err(HostError::Failed(error));
            }
        }
        Ok(())
    }

    /// Sends what may be sent. Returns false when the device, which has room for `room`
    /// bytes, refused some.
    pub(super) fn output(
        &mut self,
        time: Time,
        id: FlowId,
        side: Side,
        mut room: Option<u64>,
        emit: &mut dyn FnMut(Packet),
    ) -> Result<bool, HostError> {
        let Some(connection) = &mut self.connection else {
            return Ok(true);
        };
        if !connection.wants_output() {
            return Ok(true);
        }
        let mut refused = false;
        connection.output(time, &mut |outgoing| {
            if let Some(room) = &mut room {
                if *room == 0 {
                    refused = true;
                    return false;
                }
                // The last burst may exceed the room.
                *room = room.saturating_sub(outgoing.payload_len() as u64 + 60);
            }
            cut(id, side, outgoing, emit);
            true
        });
        if !refused && connection.wants_output() {
            return Err(HostError::Stuck);
        }
        Ok(!refused)
    }

    /// Computes when this end must be examined; `epoch` is how far its clock is ahead.
    pub(super) fn plan(&mut self, now: Duration, epoch: Duration) {
        let connection = self.connection.as_ref();
        let timer = connection.and_then(Connection::next_timeout);
        let answers = self.listener.as_ref().and_then(Listener::next_timeout);
        let timers = [timer, answers].map(|at| at.map(|at| at.saturating_sub(epoch)));
        let readable = connection.is_some_and(Connection::readable) && !self.ended;
        let read = (readable && self.next_read > now).then_some(self.next_read);
        self.wake = timers
            .into_iter()
            .chain([read, self.blocked])
            .flatten()
            .min();
        self.dirty = false;
    }
}
