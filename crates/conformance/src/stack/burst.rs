//! How segments are put together for a device that cuts them (TSO).
//!
//! The engine gives one segment at a time here; Linux gives its device up to
//! 64 KB and has the size follow the pacing rate (`tcp_tso_autosize`). What
//! counts as a packet for whoever looks on is what the device is given, so a
//! host with segmentation offload puts segments together in the same way.

use std::collections::VecDeque;

use tidewall_protocol::tcp::{Connection, Outgoing};
use tidewall_wire::tcp::{Flags, Header, before};

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

/// Packets that are remembered for [`State::pushed`]; more than a window has.
const PUSHED_MAX: usize = 4096;

/// What a connection remembers from one call to the next.
#[derive(Default)]
pub(super) struct State {
    /// The sequence number after the last byte that was ever sent.
    highest: Option<u32>,
    /// Where packets ended that were sent with PSH: what is sent again from there
    /// has it again.
    pushed: VecDeque<u32>,
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
        for mut piece in pieces {
            if piece.payload.is_empty() {
                merged.push(piece);
                continue;
            }
            let end = piece.end();
            if self.highest.is_some_and(|highest| !before(highest, end)) {
                // Again. One segment a packet: nobody looks for more.
                if self.pushed.contains(&end) {
                    piece.header.flags |= Flags::PSH;
                }
                merged.push(piece);
                continue;
            }
            self.highest = Some(end);
            match merged.last_mut() {
                Some(last) if joins(last, &piece, limit) => {
                    last.payload.extend_from_slice(&piece.payload);
                    // As Linux: whoever puts segments together again is to
                    // deliver them at once.
                    last.header.flags |= piece.header.flags | Flags::PSH;
                }
                _ => merged.push(piece),
            }
        }
        for piece in &merged {
            let end = piece.end();
            let pushed = piece.header.flags.contains(Flags::PSH);
            if pushed && !piece.payload.is_empty() && !self.pushed.contains(&end) {
                self.pushed.push_back(end);
            }
        }
        let excess = self.pushed.len().saturating_sub(PUSHED_MAX);
        self.pushed.drain(..excess);
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
    // At least two packets in flight (`tcp_cwnd_test`).
    let half = (info.congestion_window / mss / 2).max(1);
    (bytes / mss)
        .max(rules.min_segments)
        .min(half)
        .saturating_mul(mss)
}

impl Host {
    pub(super) fn burst_rules(&self) -> Rules {
        Rules {
            min_segments: self.config.sysctl.min_tso_segments,
        }
    }
}
