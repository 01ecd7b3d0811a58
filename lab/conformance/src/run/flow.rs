//! Maps between the script's numbers and the live ones of one connection.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::script::{Tcp, TcpOption, TcpOptions};

/// Offset added to the script's initial sequence number of the peer. It is high, so that
/// every conversation of more than four kilobytes wraps.
const REMOTE_OFFSET: u32 = 0xffff_f000;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// One connection of a script. Sequence numbers in a script are relative to the SYN of
/// their direction, except those of a SYN itself.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// This end's live address.
    pub(super) local: SocketAddr,
    /// The peer's live address.
    pub(super) remote: SocketAddr,
    /// Ports of this end and the peer, if the script names them.
    pub(super) ports: Option<(u16, u16)>,
    /// Live number less script's, for outbound segments.
    local_isn: Isn,
    /// The same for inbound segments.
    remote_isn: Isn,
    /// The last inbound SYN: its number in the script, and its payload.
    syn: Option<(u32, u16)>,
    /// Maps timestamps of the script to those sent.
    timestamps: HashMap<u32, u32>,
    /// The first timestamp sent: the script's and the live one.
    first_timestamp: Option<(u32, u32)>,
}

/// An initial sequence number: the script's and the live one.
#[derive(Clone, Copy, Default, Debug)]
struct Isn {
    script: u32,
    live: u32,
}

impl Isn {
    /// The offset to add to a script's number.
    fn offset(self, syn: bool) -> u32 {
        let script = if syn { self.script } else { 0 };
        self.live.wrapping_sub(script)
    }
}

impl Flow {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr, ports: Option<(u16, u16)>) -> Self {
        Self {
            local,
            remote,
            ports,
            local_isn: Isn::default(),
            remote_isn: Isn {
                script: 0,
                live: REMOTE_OFFSET,
            },
            syn: None,
            timestamps: HashMap::new(),
            first_timestamp: None,
        }
    }

    /// A script's inbound segment with live numbers.
    pub(super) fn inbound(&mut self, tcp: &Tcp, scaled_echo: bool) -> Result<Tcp, String> {
        let syn = tcp.flags.bits & SYN != 0;
        let mut live = tcp.clone();
        if syn && tcp.flags.bits & ACK != 0 {
            // The peer's answer to our SYN carries its initial number.
            self.remote_isn = Isn {
                script: tcp.sequence,
                live: tcp.sequence.wrapping_add(REMOTE_OFFSET),
            };
        }
        if syn && tcp.flags.bits & ACK == 0 {
            self.syn = Some((tcp.sequence, tcp.length));
        }
        live.sequence = if syn {
            tcp.sequence.wrapping_add(REMOTE_OFFSET)
        } else {
            tcp.sequence.wrapping_add(self.remote_isn.offset(false))
        };
        let offset = self.local_isn.offset(syn);
        live.acknowledgment = tcp.acknowledgment.map(|number| number.wrapping_add(offset));
        if let TcpOptions::List(list) = &mut live.options {
            for option in list {
                match option {
                    TcpOption::Sack(blocks) => shift(blocks, offset),
                    TcpOption::Timestamps { echo, .. } if tcp.flags.bits & ACK != 0 => {
                        *echo = self.live_echo(*echo, scaled_echo)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(live)
    }

    fn live_echo(&self, echo: u32, scaled: bool) -> Result<u32, String> {
        match (self.timestamps.get(&echo), self.first_timestamp) {
            (Some(live), _) => Ok(*live),
            (None, Some((script, live))) if scaled => {
                Ok(echo.wrapping_sub(script).wrapping_add(live))
            }
            // Nothing was sent: it cannot be an echo, and stays unchanged.
            (None, None) => Ok(echo),
            (None, Some(_)) => Err(format!(
                "no packet with `TS val {echo}` has gone out that `ecr {echo}` could echo"
            )),
        }
    }

    /// Learns initial sequence numbers and timestamps from a live outbound segment and
    /// the script's segment with which it is compared.
    pub(super) fn learn(&mut self, live: &Tcp, script: &Tcp) {
        if live.flags.bits & SYN != 0 && script.flags.bits & SYN != 0 {
            self.local_isn = Isn {
                script: script.sequence,
                live: live.sequence,
            };
            // A SYN-ACK names the SYN that it answers, which may belong to a new
            // connection between the same ports.
            if let (Some(live), Some(script)) = (live.acknowledgment, script.acknowledgment) {
                let (last, shift) = (script.wrapping_sub(1), live.wrapping_sub(script));
                // It may also have acknowledged data in that SYN.
                let opened = self.syn.filter(|&(syn, length)| {
                    let taken = last.wrapping_sub(syn);
                    taken <= length.into()
                });
                let script = opened.map_or(last, |(syn, _)| syn);
                if shift == REMOTE_OFFSET {
                    self.remote_isn = Isn {
                        script,
                        live: script.wrapping_add(REMOTE_OFFSET),
                    };
                }
            }
        }
        if let (Some((live, _)), Some((script, _))) = (timestamps(live), timestamps(script)) {
            self.timestamps.insert(script, live);
            self.first_timestamp.get_or_insert((script, live));
        }
    }

    /// Converts a live outbound segment to the script's numbers.
    pub(super) fn outbound(&self, tcp: &Tcp) -> Tcp {
        let syn = tcp.flags.bits & SYN != 0;
        let mut script = tcp.clone();
        script.ports = self.ports;
        script.sequence = tcp.sequence.wrapping_sub(self.local_isn.offset(syn));
        // The answer to a SYN names the script's number, others relative ones.
        let offset = self.remote_isn.offset(syn);
        script.acknowledgment = tcp.acknowledgment.map(|number| number.wrapping_sub(offset));
        if let TcpOptions::List(list) = &mut script.options {
            for option in list {
                match option {
                    TcpOption::Sack(blocks) => {
                        shift(blocks, self.remote_isn.offset(false).wrapping_neg());
                    }
                    TcpOption::Timestamps { value, .. } => {
                        if let Some((script, live)) = self.first_timestamp {
                            *value = value.wrapping_sub(live).wrapping_add(script);
                        }
                    }
                    _ => {}
                }
            }
        }
        script
    }

    /// The live sequence number of an outbound segment with the script's number.
    pub(super) fn live_sequence(&self, sequence: u32) -> u32 {
        sequence.wrapping_add(self.local_isn.offset(false))
    }

    /// Position of an outbound segment's first byte in its stream, from the script's
    /// sequence number.
    pub(super) fn position(sequence: u32) -> u64 {
        u64::from(sequence.wrapping_sub(1))
    }
}

fn shift(blocks: &mut [(u32, u32)], offset: u32) {
    for (first, end) in blocks {
        *first = first.wrapping_add(offset);
        *end = end.wrapping_add(offset);
    }
}

/// TSval and TSecr of a segment.
pub(super) fn timestamps(tcp: &Tcp) -> Option<(u32, u32)> {
    let TcpOptions::List(list) = &tcp.options else {
        return None;
    };
    list.iter().find_map(|option| match option {
        TcpOption::Timestamps { value, echo } => Some((*value, *echo)),
        _ => None,
    })
}
