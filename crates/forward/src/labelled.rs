//! Frames of virtual circuits: what has come behind a label, and what leaves behind one
//! (RFC 4717). The cells in them are known to who forwards them (`tidewall_atm::switch`).
//!
//! All that leaves by an interface leaves by one queue, so that frames of a circuit keep
//! their order whichever way they take.

use std::io;
use std::net::IpAddr;

use tidewall_stack::ip::transmit::circuits::Relabelled;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::pieces::Pieces;

use super::output::{Missing, Output};
use super::{Arrived, Content};

/// The queue by which frames of circuits leave.
const QUEUE: usize = 0;

/// The result of sending a frame of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelled {
    /// It was sent.
    Sent,
    /// Not now: the device takes no more, or the next hop's link address is being looked for.
    Later,
    /// It does not fit the MTU, or no route leads to the next hop.
    Never,
}

impl Arrived<'_> {
    /// Returns the part of a circuit's frame behind the Ethernet header: label, control word
    /// and cells. `None` for a segment, and once the frame was forwarded.
    pub fn labelled(&self) -> Option<Pieces<'_>> {
        match &self.content {
            Content::InFrame { place, .. } if place.labelled => self.content.packet(place.network),
            _ => None,
        }
    }
}

impl Output {
    /// Bytes behind the Ethernet header that a frame by interface `to` may have; 0 where
    /// there is none.
    pub fn mtu(&mut self, to: usize) -> usize {
        let interface = self.interfaces.get_mut(to);
        let mtu =
            interface.and_then(|it| it.transmit(QUEUE, |transmitter| transmitter.packet_max()));
        mtu.unwrap_or(0)
    }

    /// Forwards a circuit's frame in place by interface `to` to a neighbour on its link, with
    /// another label. Its content is then gone from `arrived`. A frame that is not sent stays
    /// unchanged, and is not counted.
    pub fn relabel(
        &mut self,
        to: usize,
        next_hop: IpAddr,
        label: Label,
        arrived: &mut Arrived<'_>,
    ) -> Labelled {
        let neighbour = match self.next_hop(to, next_hop, None, None) {
            Ok(neighbour) => neighbour,
            Err(Missing::Unresolved | Missing::Unasked) => return Labelled::Later,
            Err(Missing::Unreachable) => return Labelled::Never,
        };
        let are_apart = self.are_apart(arrived.interface, to);
        let Content::InFrame { frame, place, .. } = &mut arrived.content else {
            return Labelled::Never;
        };
        if !place.labelled || are_apart {
            return Labelled::Never;
        }
        let (Some(taken), Some(interface)) = (frame.take(), self.interfaces.get_mut(to)) else {
            return Labelled::Never;
        };
        let mut relabelled = Some(Relabelled {
            frame: taken,
            network: place.network,
            end: place.end,
            neighbour,
            label,
        });
        let sent = interface.transmit(QUEUE, |transmitter| {
            relabelled.take().map(|it| transmitter.relabel(it))
        });
        match sent.flatten() {
            Some(Ok(())) => {
                self.counters.in_place += 1;
                Labelled::Sent
            }
            Some(Err((back, error))) => {
                *frame = Some(back);
                of(&error)
            }
            None => {
                *frame = relabelled.map(|it| it.frame);
                Labelled::Never
            }
        }
    }

    /// Sends a frame of circuits by interface `to` to a neighbour on its link; `bytes` is
    /// what follows the Ethernet header. Counted, unless it may be sent later.
    pub fn send_labelled(&mut self, to: usize, next_hop: IpAddr, bytes: &[u8]) -> Labelled {
        let neighbour = match self.next_hop(to, next_hop, None, None) {
            Ok(neighbour) => neighbour,
            Err(Missing::Unresolved | Missing::Unasked) => return Labelled::Later,
            Err(Missing::Unreachable) => {
                self.counters.unreachable += 1;
                return Labelled::Never;
            }
        };
        let interface = self.interfaces.get_mut(to);
        let sent = interface.and_then(|interface| {
            interface.transmit(QUEUE, |transmitter| {
                transmitter.queue_bytes(neighbour, bytes)
            })
        });
        let result = match sent {
            Some(Ok(())) => Labelled::Sent,
            Some(Err(error)) => of(&error),
            None => Labelled::Never,
        };
        match result {
            Labelled::Sent => self.counters.copied += 1,
            Labelled::Later => {}
            Labelled::Never => self.counters.refused += 1,
        }
        result
    }
}

fn of(error: &io::Error) -> Labelled {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => Labelled::Never,
        _ => Labelled::Later,
    }
}
