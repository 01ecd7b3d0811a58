//! Packets of a running script: those that it sends and those that it expects.

use core::time::Duration;
use std::net::SocketAddr;

use super::call::pattern;
use super::compare::{self, Rules};
use super::datagram::{self, Segment};
use super::flow::Flow;
use super::{Run, Wrong, seconds};
use crate::script::{Icmp, IpFields, Packet, Quoted, Tcp, TcpFlags, TcpOptions, Transport};

/// The peer's port for the first connection to us.
pub(super) const FIRST_PORT: u16 = 40_000;

const SYN: u8 = 0x02;

impl Run {
    /// Sends one of the script's packets to the host.
    pub(super) fn inbound(&mut self, packet: &Packet) -> Result<(), Wrong> {
        let now = self.host.now();
        let bytes = match &packet.transport {
            Transport::Tcp(tcp) => {
                let index = self.flow_of(tcp.ports);
                let flow = self.flow_mut(index)?;
                let (local, remote) = (flow.local, flow.remote);
                let scaled = self.settings.scaled_echo;
                let live = self.flow_mut(index)?.inbound(tcp, scaled)?;
                // Data on a SYN comes first.
                let first = if tcp.flags.bits & SYN != 0 {
                    0
                } else {
                    Flow::position(tcp.sequence)
                };
                let payload: Vec<u8> = (0..u64::from(tcp.length))
                    .map(|at| pattern(first.wrapping_add(at)))
                    .collect();
                datagram::segment(remote, local, packet.ip, &live, &payload)?
            }
            Transport::Icmp(icmp) => self.icmp(icmp, packet.ip)?,
            Transport::Udp(_) => return Err("the host has no UDP".to_owned().into()),
        };
        self.note(now, packet);
        self.host.packet_in(&bytes);
        self.run_until_idle()
    }

    fn icmp(&mut self, icmp: &Icmp, ip: IpFields) -> Result<Vec<u8>, Wrong> {
        let (sequence, length) = match icmp.quoted {
            Some(Quoted::Tcp { sequence, length }) => (sequence, length),
            None => (0, 0),
            Some(Quoted::Udp { .. }) => return Err("the host has no UDP".to_owned().into()),
        };
        let flow = self.flow_mut(self.current)?;
        let quoted = Tcp {
            ports: None,
            flags: TcpFlags::default(),
            sequence: flow.live_sequence(sequence),
            length,
            acknowledgment: None,
            window: None,
            urgent: 0,
            options: TcpOptions::List(Vec::new()),
        };
        let (local, remote) = (flow.local, flow.remote);
        Ok(datagram::icmp_error(
            icmp, ip, local, remote, &quoted, length,
        )?)
    }

    /// The flow of an inbound segment; `ports` are the peer's and ours.
    fn flow_of(&mut self, ports: Option<(u16, u16)>) -> usize {
        let found = match ports {
            Some((remote, local)) => self
                .flows
                .iter()
                .position(|flow| flow.ports == Some((local, remote))),
            None => (self.current < self.flows.len()).then_some(self.current),
        };
        if let Some(index) = found {
            self.current = index;
            return index;
        }
        let (remote, local) = ports.unwrap_or((self.next_port, self.settings.bind_port));
        self.next_port = self.next_port.wrapping_add(1).max(FIRST_PORT);
        self.flows.push(Flow::new(
            SocketAddr::new(self.settings.local, local),
            SocketAddr::new(self.settings.remote, remote),
            ports.map(|(remote, local)| (local, remote)),
        ));
        self.current = self.flows.len() - 1;
        self.current
    }

    fn flow_mut(&mut self, index: usize) -> Result<&mut Flow, String> {
        self.flows
            .get_mut(index)
            .ok_or_else(|| "there is no connection that the packet could belong to".to_owned())
    }

    /// Waits for one of the script's packets to leave, between two times, and compares
    /// it.
    pub(super) fn outbound(
        &mut self,
        packet: &Packet,
        start: Duration,
        end: Duration,
        tolerance: Duration,
    ) -> Result<(), Wrong> {
        let Transport::Tcp(expected) = &packet.transport else {
            return Err("the host sends TCP only".to_owned().into());
        };
        let mut rest = expected.clone();
        loop {
            let (at, bytes) = self.wait_for_packet(packet, start, end + tolerance)?;
            let before = self.trace.len();
            let segment = datagram::parse(&bytes)?;
            let taken = self.compare(packet, &rest, &segment, at)?;
            if at + tolerance < start || at > end + tolerance {
                self.trace.truncate(before);
                let when = if start == end {
                    seconds(start)
                } else {
                    format!("{}~{}", seconds(start), seconds(end))
                };
                return Err(format!(
                    "the packet was to leave at {when} but did at {}\n  expected: {packet}",
                    seconds(at)
                )
                .into());
            }
            rest.sequence = rest.sequence.wrapping_add(taken.into());
            rest.length -= taken;
            if rest.length == 0 {
                return Ok(());
            }
        }
    }

    fn wait_for_packet(
        &mut self,
        packet: &Packet,
        start: Duration,
        limit: Duration,
    ) -> Result<(Duration, Vec<u8>), Wrong> {
        loop {
            if let Some(sent) = self.sent.pop_front() {
                return Ok(sent);
            }
            let now = self.host.now();
            // Work that is due now is done once; after that only time helps.
            self.advance(now)?;
            if !self.sent.is_empty() {
                continue;
            }
            match self.next_wake() {
                Some(next) if now < next && next <= limit => self.advance(next)?,
                _ => {
                    self.advance(limit.min(start.max(now)))?;
                    return Err(format!(
                        "no packet has left until {}\n  expected: {packet}",
                        seconds(limit)
                    )
                    .into());
                }
            }
        }
    }

    /// Compares an outbound packet with the rest of a line; returns the bytes of payload
    /// that it covers.
    fn compare(
        &mut self,
        packet: &Packet,
        rest: &Tcp,
        segment: &Segment,
        at: Duration,
    ) -> Result<u16, Wrong> {
        let index = self.flow_of_sent(rest, segment);
        let (settings, strict) = (&self.settings, self.settings.strict_segments);
        let tick = settings.timestamp_tick;
        let tolerance = self.tolerance(at);
        let fragment = !strict && segment.tcp.length < rest.length && segment.tcp.length > 0;
        let rules = Rules {
            tick,
            tolerance,
            fragment,
        };
        let (flow_changed, actual) = {
            let flow = self.flow_mut(index)?;
            flow.learn(&segment.tcp, rest);
            (flow.clone(), flow.outbound(&segment.tcp))
        };
        let (wanted, found) = ((packet.ip, rest), (segment.ip, &actual));
        let shown = compare::shown(wanted, found);
        let mut differ = compare::differences(wanted, found, rules);
        if segment.tcp.length != rest.length && !fragment {
            differ.insert(0, "length");
        }
        if index != self.current && rest.ports.is_none() {
            differ.push("ports");
        }
        let first = if actual.flags.bits & SYN != 0 {
            0
        } else {
            Flow::position(actual.sequence)
        };
        let same = |(byte, position): (&u8, u64)| *byte == pattern(position);
        if differ.is_empty()
            && !self.calls.own_data
            && !segment.payload.iter().zip(first..).all(same)
        {
            differ.push("payload (not the bytes that were written there)");
        }
        if !differ.is_empty() {
            let expected = Packet {
                transport: Transport::Tcp(rest.clone()),
                ..packet.clone()
            };
            return Err(format!(
                "the packet differs in: {}\n  expected: {expected}\n    actual: {shown} at {} \
                 (port {} to {})",
                differ.join(", "),
                seconds(at),
                flow_changed.local.port(),
                flow_changed.remote.port(),
            )
            .into());
        }
        self.note(at, shown);
        Ok(segment.tcp.length)
    }

    /// The flow of an outbound segment: a known one, or a new one that the host has
    /// begun.
    fn flow_of_sent(&mut self, expected: &Tcp, segment: &Segment) -> usize {
        let found = self
            .flows
            .iter()
            .position(|flow| (flow.local, flow.remote) == (segment.source, segment.destination));
        if let Some(index) = found {
            if expected.ports.is_some() {
                self.current = index;
            }
            return index;
        }
        self.flows.push(Flow::new(
            segment.source,
            segment.destination,
            expected.ports,
        ));
        self.current = self.flows.len() - 1;
        self.current
    }

    /// An outbound packet that matches no line, in script notation.
    pub(super) fn unexpected(&mut self, bytes: &[u8]) -> String {
        match datagram::parse(bytes) {
            Ok(segment) => {
                let known = self.flows.iter().find(|flow| {
                    (flow.local, flow.remote) == (segment.source, segment.destination)
                });
                let tcp =
                    known.map_or_else(|| segment.tcp.clone(), |flow| flow.outbound(&segment.tcp));
                format!("> {tcp}")
            }
            Err(error) => error,
        }
    }
}
