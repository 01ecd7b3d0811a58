//! How segments are put together for a device that cuts them (TSO).
//!
//! The engine gives one segment at a time here; Linux gives its device up to
//! 64 KB and has the size follow the pacing rate (`tcp_tso_autosize`). What
//! counts as a packet for whoever looks on is what the device is given, so a
//! host with segmentation offload puts segments together in the same way.

use tidewall_protocol::tcp::{Connection, Outgoing};
use tidewall_wire::tcp::{Flags, Header};

use super::Host;

/// The most bytes of one burst (`GSO_LEGACY_MAX_SIZE` less the longest headers).
const BURST_MAX: u32 = 65_536 - 320 - 60;

/// A segment on its way out.
pub(super) struct Piece {
    header: Header,
    payload: Vec<u8>,
    segment_size: u16,
    traffic_class: u8,
}

impl Piece {
    pub(super) fn new(outgoing: &Outgoing<'_>) -> Self {
        Self {
            header: outgoing.header,
            payload: outgoing.payload.concat(),
            segment_size: outgoing.segment_size,
            traffic_class: outgoing.traffic_class,
        }
    }

    pub(super) fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            header: self.header,
            payload: [&self.payload, &[]],
            segment_size: self.segment_size,
            traffic_class: self.traffic_class,
        }
    }

    /// The sequence number after the payload.
    fn end(&self) -> u32 {
        self.header.sequence.wrapping_add(self.payload.len() as u32)
    }
}

/// What of the kernel parameters decides sizes.
pub(super) struct Rules {
    pub(super) min_segments: u32,
}

/// What a connection remembers from one call to the next.
#[derive(Default)]
pub(super) struct State {
    /// The sequence number after the last byte that was ever sent.
    highest: Option<u32>,
}

impl State {
    /// Puts together what one call of output has sent.
    pub(super) fn merge(
        &mut self,
        pieces: Vec<Piece>,
        rules: &Rules,
        connection: &Connection,
    ) -> Vec<Piece> {
        let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
        let limit = burst_limit(rules, connection);
        for piece in pieces {
            let joined = match merged.last_mut() {
                Some(last) if joins(last, &piece, limit) => {
                    let flags = piece.header.flags;
                    last.payload.extend_from_slice(&piece.payload);
                    last.header.flags |= flags;
                    true
                }
                _ => false,
            };
            if !joined {
                merged.push(piece);
            }
        }
        if let Some(last) = merged.last()
            && !last.payload.is_empty()
        {
            self.highest = Some(last.end());
        }
        merged
    }
}

/// Whether a segment goes on where a burst ends, and fits into it.
fn joins(burst: &Piece, next: &Piece, limit: u32) -> bool {
    let plain = |flags: Flags| flags.0 & !(Flags::PSH.0 | Flags::FIN.0) == Flags::ACK.0;
    let size = u32::from(burst.segment_size).max(1);
    let length = burst.payload.len() as u32;
    plain(burst.header.flags)
        && plain(next.header.flags)
        && !burst.header.flags.intersects(Flags::FIN)
        && length > 0
        && length.is_multiple_of(size)
        && !next.payload.is_empty()
        && next.header.sequence == burst.end()
        && next.header.acknowledgment == burst.header.acknowledgment
        && next.segment_size == burst.segment_size
        && length + next.payload.len() as u32 <= limit.max(size)
}

/// Bytes of a burst at most: what the pacing rate lets pass in about a
/// millisecond, more over short paths, two segments at least
/// (`tcp_tso_autosize`).
fn burst_limit(rules: &Rules, connection: &Connection) -> u32 {
    let info = connection.info();
    let mss = info.send_mss.max(1);
    let smoothed = info.round_trip.as_micros().max(1) as u64;
    let window = u64::from(info.congestion_window.max(info.unacknowledged));
    // `tcp_update_pacing_rate`: twice the window a round trip in slow start, 1.2
    // times after it.
    let percent = if info.congestion_window < info.slow_start_threshold / 2 {
        200
    } else {
        120
    };
    let rate = if info.round_trip.is_zero() {
        u64::MAX >> 10
    } else {
        window * percent / 100 * 1_000_000 / smoothed
    };
    let mut bytes = rate >> 10;
    let shift = info.round_trip_min.as_micros() >> 9;
    if shift < 32 {
        bytes += u64::from(BURST_MAX) >> shift;
    }
    let bytes = bytes.min(BURST_MAX.into()) as u32;
    (bytes / mss).max(rules.min_segments).saturating_mul(mss)
}

impl Host {
    pub(super) fn burst_rules(&self) -> Rules {
        Rules {
            min_segments: self.config.sysctl.min_tso_segments,
        }
    }
}
