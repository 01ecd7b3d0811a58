//! Packets in and out, and what they do to sockets.

use std::net::SocketAddr;

use tidewall_protocol::tcp::{
    self, Checksum, Connection, FourTuple, Handshake, Link, Outgoing, Reaction, Segment, State,
    TimeWaitReaction,
};
use tidewall_protocol::{InputOptions, icmp};
use tidewall_wire::Protocol;
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};

use super::{ConnectionId, Entry, Fd, Host};

/// The largest packet: an IP datagram with an Ethernet header before it.
const FRAME_MAX: usize = 65_535 + HEADER_LEN;

/// Nobody sees the Ethernet header.
const LINK: Link = Link {
    source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
    destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
    hop_limit: 64,
    checksum: Checksum::Software,
};

const INPUT: InputOptions = InputOptions {
    checksum_offload_possible: true,
    verified: false,
};

/// The datagram of a segment, from its IP header on; nothing for one that cannot
/// be.
pub(super) fn datagram(flow: &FourTuple, outgoing: &Outgoing<'_>) -> Option<Vec<u8>> {
    let mut frame = vec![0; (outgoing.payload_len() + 128).min(FRAME_MAX)];
    let length = tcp::output(&mut frame, &LINK, flow, outgoing).ok()?;
    frame.truncate(length);
    (length >= HEADER_LEN).then(|| frame.split_off(HEADER_LEN))
}

/// Takes what listeners and the TIME-WAIT table send.
pub(super) fn collector(sent: &mut Vec<Vec<u8>>) -> impl FnMut(&FourTuple, &Outgoing<'_>) {
    |flow, outgoing| sent.extend(datagram(flow, outgoing))
}

/// What wakes those who wait for a connection.
#[derive(PartialEq, Eq)]
struct Seen {
    received: u64,
    state: State,
    closed: bool,
    error: bool,
}

impl Seen {
    fn of(connection: &Connection) -> Self {
        Self {
            received: connection.info().bytes_received,
            state: connection.state(),
            closed: connection.receive_closed(),
            error: connection.has_error(),
        }
    }
}

impl Host {
    /// A packet arrives: an IP datagram from its first byte on. What is not for a
    /// socket is dropped or answered as Linux does.
    pub fn packet_in(&mut self, datagram: &[u8]) {
        self.changes += 1;
        let (transport_offset, protocol) = match datagram {
            [first, ..] if first >> 4 == 4 => (
                usize::from(first & 15) * 4,
                datagram.get(9).copied().unwrap_or_default(),
            ),
            [first, ..] if first >> 4 == 6 => (40, datagram.get(6).copied().unwrap_or_default()),
            _ => return,
        };
        match Protocol(protocol) {
            Protocol::TCP => {
                if let Ok(segment) = tcp::input(datagram, transport_offset, &INPUT) {
                    self.segment_in(&segment);
                }
            }
            Protocol::ICMP | Protocol::ICMPV6 => {
                if let Ok(error) = icmp::tcp_error(datagram, transport_offset) {
                    let flow = FourTuple {
                        local: error.local,
                        remote: error.remote,
                    };
                    if let Some(&id) = self.flows.get(&flow) {
                        let now = self.now;
                        self.on_connection(id, |connection| connection.icmp_error(&error, now));
                    } else if let Some(fd) = self.listener_of(flow.local)
                        && let Some(listening) = self.listeners.get_mut(&fd)
                    {
                        listening.protocol.icmp_error(&error);
                    }
                }
            }
            _ => {}
        }
    }

    fn segment_in(&mut self, segment: &Segment<'_>) {
        let now = self.now;
        if let Some(&id) = self.flows.get(&segment.flow) {
            self.on_connection(id, |connection| connection.input(segment, now));
            return;
        }
        let mut sent = Vec::new();
        let reaction = self
            .time_wait
            .input(segment, now, &mut collector(&mut sent));
        let reused = match reaction {
            TimeWaitReaction::Handled => return self.emit(sent),
            TimeWaitReaction::Reuse(sequence) => Some(sequence),
            TimeWaitReaction::Unknown => None,
        };
        let Some(fd) = self.listener_of(segment.flow.local) else {
            if let Some(reset) = tcp::reset_for(segment) {
                sent.extend(datagram(&segment.flow, &reset));
            }
            return self.emit(sent);
        };
        let Some(listening) = self.listeners.get_mut(&fd) else {
            return;
        };
        let mut send = collector(&mut sent);
        let reaction = match reused {
            Some(sequence) => listening
                .protocol
                .input_reusing(segment, sequence, now, &mut send),
            None => listening.protocol.input(segment, now, &mut send),
        };
        drop(send);
        self.emit(sent);
        if let Reaction::Established(handshake) = reaction {
            self.established(fd, &handshake, segment);
        }
    }

    /// A handshake is complete.
    fn established(&mut self, fd: Fd, handshake: &Handshake, segment: &Segment<'_>) {
        let v4 = handshake.flow.remote.is_ipv4();
        let Ok(config) = self.engine_config(fd, v4) else {
            return;
        };
        let now = self.now;
        let id = self.add_connection(Connection::accept(handshake, &config, now));
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.listener = Some(fd);
            entry.opened_at = handshake.fast_open.map(|_| fd);
        }
        let _ = self.adopt_options(fd, id);
        if let Some(listening) = self.listeners.get_mut(&fd) {
            listening.queue.push_back(id);
            listening.protocol.set_accept_queue(listening.queue.len());
            listening.wakeups += 1;
        }
        self.on_connection(id, |connection| connection.input(segment, now));
    }

    /// The listener of an address: one bound to it before one to the wildcard,
    /// which over IPv6 takes IPv4 too unless it may not.
    fn listener_of(&self, local: SocketAddr) -> Option<Fd> {
        let mut found = None;
        for &fd in self.listeners.keys() {
            let Some(socket) = self.sockets.get(&fd) else {
                continue;
            };
            let Some(bound) = socket.bound.map(super::address::canonical) else {
                continue;
            };
            if bound.port() != local.port() {
                continue;
            }
            if bound.ip() == local.ip() {
                return Some(fd);
            }
            let family =
                bound.is_ipv4() == local.is_ipv4() || (bound.is_ipv6() && !socket.options.only_v6);
            if bound.ip().is_unspecified() && family {
                found = Some(fd);
            }
        }
        found
    }

    /// A connection's timers expire.
    pub(super) fn on_timer(&mut self, id: ConnectionId) {
        let now = self.now;
        if let Some(entry) = self.connections.get_mut(&id) {
            let before = Seen::of(&entry.connection);
            entry.connection.timeout(now);
            if before != Seen::of(&entry.connection) {
                entry.readings += 1;
                entry.writings += 1;
            }
        }
        self.settle(id);
    }

    /// Does something to a connection, wakes who waits for what came of it, and
    /// lets it send.
    pub(super) fn on_connection(&mut self, id: ConnectionId, action: impl FnOnce(&mut Connection)) {
        self.changes += 1;
        if let Some(entry) = self.connections.get_mut(&id) {
            let before = Seen::of(&entry.connection);
            action(&mut entry.connection);
            let after = Seen::of(&entry.connection);
            if before != after {
                entry.readings += 1;
            }
            if before.state != after.state || before.error != after.error {
                entry.writings += 1;
            }
        }
        self.settle(id);
    }

    /// Lets a connection send, and forgets one that is over. What it gives leaves
    /// as it is.
    pub(super) fn settle(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(entry) = self.connections.get_mut(&id) else {
            return;
        };
        if entry.deferred {
            return;
        }
        let flow = *entry.connection.flow();
        let mut sent = Vec::new();
        entry.refused = false;
        // Once is enough for an engine with room; a bound in case it is not.
        for _ in 0..4 {
            if !entry.connection.wants_output() {
                break;
            }
            let mut room = None;
            entry.connection.output(now, &mut |outgoing| {
                let room = *room.get_or_insert_with(&mut self.room);
                if room {
                    sent.extend(datagram(&flow, outgoing));
                }
                room
            });
            entry.refused = room == Some(false);
            if entry.refused {
                break;
            }
        }
        self.emit(sent);
        self.settle_fast_open(id);
        if let Some(entry) = self.connections.get_mut(&id) {
            // As `sk_error_report`: everybody is woken.
            let notified = entry.connection.notification_count();
            if entry.notified != notified {
                entry.notified = notified;
                entry.readings += 1;
                entry.writings += 1;
                self.changes += 1;
            }
        }
        if let Some(entry) = self.connections.get_mut(&id)
            && entry.no_space
            && entry.connection.writable()
        {
            entry.no_space = false;
            entry.writings += 1;
            self.changes += 1;
        }
        self.bury(id);
    }

    /// Has those send that the device had no room for, as whoever owns an engine
    /// does.
    pub(super) fn output_refused(&mut self) {
        let refused: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, entry)| entry.refused)
            .map(|(&id, _)| id)
            .collect();
        for id in refused {
            self.settle(id);
        }
    }

    fn bury(&mut self, id: ConnectionId) {
        let Some(entry) = self.connections.get(&id) else {
            return;
        };
        let flow = *entry.connection.flow();
        let over = entry.connection.state() == State::Closed && !entry.connection.wants_output();
        if over && self.flows.get(&flow) == Some(&id) {
            self.flows.remove(&flow);
        }
        let Entry {
            fd: None,
            listener: None,
            ..
        } = entry
        else {
            return;
        };
        if let Some(entry) = entry.connection.time_wait() {
            self.time_wait.insert(&entry, self.now);
            self.flows.remove(&flow);
            self.connections.remove(&id);
        } else if over {
            self.connections.remove(&id);
        }
    }

    /// Packets leave.
    pub(super) fn emit(&mut self, sent: Vec<Vec<u8>>) {
        let now = self.now;
        self.out
            .extend(sent.into_iter().map(|datagram| (now, datagram)));
    }
}
