//! SYN cookies (RFC 4987 §3.6): a handshake without per-connection memory.
//!
//! `bpf/cookie.h` makes and checks the same bits in the driver, and explains them there.
//! The initial sequence number of the answer is a MAC. It covers the flow, the peer's
//! initial sequence number, the time and the rounded maximum segment size. Window scale,
//! SACK and ECN are in the low bits of the answer's timestamp, which the peer echoes. A
//! cookie is valid for 64 to 128 seconds, and one in 2^28 guesses hits one.

use core::time::Duration;

use tidewall_wire::acp::VERSION;
use tidewall_wire::tcp::{Flags, Header, Options, Timestamps, before};

use super::segment::{Outgoing, Segment};
use super::{Config, Ecn, FourTuple, Handshake, Time, acp, ecn, isn, keyed, timestamp};

/// The longest time for which a cookie is accepted.
pub const LIFETIME: Duration = Duration::from_secs(2 * PERIOD);

/// Seconds per step of the clock in cookies.
const PERIOD: u64 = 64;
/// Maximum segment sizes that a cookie can encode.
const SIZES: [u16; 8] = [536, 1220, 1300, 1400, 1440, 1460, 4036, 8940];
/// Bits of a timestamp that hold options.
const OPTIONS: u32 = 63;
const SACK: u32 = 16;
const ECN: u32 = 32;
const SCALE: u32 = 15;
const NO_SCALE: u8 = 15;

/// Makes and checks the cookies of one listener.
#[derive(Clone, Debug)]
pub struct Cookies {
    key: [u8; 16],
    config: Config,
}

impl Cookies {
    /// `key` is [`Secrets::cookie`](super::Secrets::cookie). The configuration holds what
    /// to offer; see [`Listener::new`](super::Listener::new) about its maximum segment
    /// size.
    #[must_use]
    pub fn new(config: &Config, key: [u8; 16]) -> Self {
        Self {
            key,
            config: config.framed(),
        }
    }

    fn make(&self, flow: &FourTuple, remote_isn: u32, count: u32, size: u32) -> u32 {
        let rest = 1 << 31 | (count << 3 & 0x7fff_ffff) | size;
        let word = u64::from(remote_isn) << 32 | u64::from(rest);
        let mac = keyed::hash(&self.key, flow, Some(word)) as u32;
        (mac & !15) | (count & 1) << 3 | size
    }

    /// The SYN-ACK that answers a SYN with a cookie. Without timestamps it offers neither
    /// window scale nor SACK: they could not be remembered.
    ///
    /// `None` for a maximum segment size below 536, which no cookie can encode.
    pub fn answer(&self, syn: &Segment<'_>, now: Time) -> Option<Outgoing<'static>> {
        let (flow, peer) = (&syn.flow, &syn.header.options);
        let mss = peer_mss(flow, peer);
        let size = SIZES.iter().rposition(|&size| size <= mss)? as u32;
        let mut options =
            Options::default().with_acp(acp::answers(&self.config, peer).then_some(VERSION));
        let mut takes_ecn = false;
        if let Some(timestamps) = peer.timestamps
            && self.config.timestamps
        {
            options.sack_permitted = peer.sack_permitted && self.config.sack;
            let scale = peer.window_scale.filter(|_| self.config.window_scaling);
            options.window_scale = scale.map(|_| self.config.window_scale());
            takes_ecn = ecn::accepts(&self.config, syn);
            let kept = u32::from(scale.map_or(NO_SCALE, |scale| scale.min(14)))
                | (u32::from(options.sack_permitted) * SACK)
                | (u32::from(takes_ecn) * ECN);
            let clock = timestamp(now, isn::timestamp_offset(&self.key, flow));
            let mut value = clock & !OPTIONS | kept;
            // Never ahead of the clock: later segments must not be older.
            if before(clock, value) {
                value = value.wrapping_sub(OPTIONS + 1);
            }
            options.timestamps = Some(Timestamps {
                value,
                echo: timestamps.value,
            });
        }
        let count = (now.as_secs() / PERIOD) as u32;
        let remote_isn = syn.header.sequence;
        let sequence = self.make(flow, remote_isn, count, size);
        Some(syn_ack(
            flow,
            &self.config,
            sequence,
            remote_isn,
            options,
            takes_ecn,
        ))
    }

    /// Returns what the handshake of a cookie's ACK agreed on; `None` for a segment that
    /// is not an ACK of one of our cookies.
    pub fn check(&self, ack: &Segment<'_>, now: Time) -> Option<Handshake> {
        let header = &ack.header;
        let unfit = Flags::SYN | Flags::RST;
        if !header.flags.contains(Flags::ACK) || header.flags.intersects(unfit) {
            return None;
        }
        let cookie = header.acknowledgment.wrapping_sub(1);
        let remote_isn = header.sequence.wrapping_sub(1);
        let count = (now.as_secs() / PERIOD) as u32;
        let count = count.wrapping_sub((count ^ cookie >> 3) & 1);
        let flow = &ack.flow;
        if self.make(flow, remote_isn, count, cookie & 7) != cookie {
            return None;
        }
        let timestamps = header.options.timestamps.filter(|_| self.config.timestamps);
        let kept = timestamps.map(|timestamps| timestamps.echo & OPTIONS);
        let scale = kept.map_or(NO_SCALE, |kept| (kept & SCALE) as u8);
        let mut timestamp_offset = isn::timestamp_offset(&self.key, flow);
        if let Some(timestamps) = timestamps {
            // The CPU that answered the SYN may have had a clock slightly ahead.
            let clock = timestamp(now, timestamp_offset);
            if before(clock, timestamps.echo) {
                let ahead = timestamps.echo.wrapping_sub(clock);
                timestamp_offset = timestamp_offset.wrapping_add(ahead);
            }
        }
        Some(Handshake {
            flow: *flow,
            local_isn: cookie,
            remote_isn,
            mss: SIZES.get((cookie & 7) as usize).copied()?,
            window_scale: (scale != NO_SCALE).then_some(scale),
            local_window_scale: self.config.window_scale(),
            sack: kept.is_some_and(|kept| kept & SACK != 0) && self.config.sack,
            ecn: kept.is_some_and(|kept| kept & ECN != 0) && self.config.ecn != Ecn::Off,
            timestamps,
            timestamp_offset,
            window: header.window,
            round_trip: None,
            fast_open: None,
        })
    }
}

/// The maximum segment size that a SYN names or implies (RFC 9293 §3.7.1).
pub fn peer_mss(flow: &FourTuple, options: &Options) -> u16 {
    let assumed = if flow.remote.is_ipv4() { 536 } else { 1220 };
    let named = options.maximum_segment_size.filter(|&mss| mss != 0);
    named.unwrap_or(assumed)
}

/// The size that a listener announces: see [`Listener::new`](super::Listener::new).
fn announced_mss(flow: &FourTuple, config: &Config) -> u16 {
    let longer = if flow.remote.is_ipv4() { 0 } else { 20 };
    config.mss.saturating_sub(longer).min(config.mss_max)
}

/// Returns a SYN-ACK; `options` lack only the maximum segment size.
pub(super) fn syn_ack(
    flow: &FourTuple,
    config: &Config,
    sequence: u32,
    remote_isn: u32,
    options: Options,
    takes_ecn: bool,
) -> Outgoing<'static> {
    let mss = announced_mss(flow, config);
    let mut flags = Flags::SYN | Flags::ACK;
    if takes_ecn {
        flags |= Flags::ECE;
    }
    Outgoing {
        header: Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            sequence,
            acknowledgment: remote_isn.wrapping_add(1),
            flags,
            window: config.syn_window(),
            urgent: 0,
            options: Options {
                maximum_segment_size: Some(mss),
                ..options
            },
        },
        payload: [&[]; 2],
        segment_size: mss,
        traffic_class: config.traffic_class & !3,
    }
}
