//! SYN cookies in the driver (RFC 4987 §3.6): `bpf/cookie.h` and the strict ports
//! of `bpf/demux.bpf.c`, in their order. The bits are explained there.

use std::sync::atomic::Ordering::Relaxed;

use tidewall_wire::checksum::Sum;
use tidewall_wire::tcp::{self, Flags, Packet, Timestamps};

use super::ApplicationTables;
use super::drive::{find_listener, port_index};
use super::headers::{Datagram, Ends, NETWORK, Part, TCP, cookie_hash, read};
use super::layout::{
    Cookies, LISTEN_CONNECTED, LISTEN_COOKIES, LISTEN_COOKIES_VALID, LISTEN_ECN, LISTEN_SACK,
    LISTEN_SCALE_SHIFT, LISTEN_TIMESTAMPS, LISTEN_WINDOW_SHIFT,
};
use crate::demux::ChannelId;

const COOKIE_PERIOD: u64 = 64_000_000_000;
const COOKIE_OPTIONS: u32 = 63;
const NO_SCALE: u8 = 15;
const COOKIE_MSS: [u16; 8] = [536, 1220, 1300, 1400, 1440, 1460, 4036, 8940];
/// Ethernet, IPv6 and TCP header with the options of an answer.
const ANSWER_MAX: usize = NETWORK + 40 + 40;

/// A frame that the driver sends back in place of the one it got.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    bytes: [u8; ANSWER_MAX],
    length: usize,
}

impl Answer {
    /// The frame, from its Ethernet header on.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Answer").field(&self.as_bytes()).finish()
    }
}

/// What becomes of a TCP segment at a strict port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strict {
    /// To a channel; to the kernel when that is none: nobody listens.
    Channel(ChannelId),
    /// With a valid cookie; refused when nobody listens.
    Cookie(ChannelId),
    Answered(Answer),
    /// Of no connection. `checked`: there was no valid cookie in it either.
    NoConnection {
        reset: bool,
        checked: bool,
    },
}

pub(super) fn strict(
    tables: &ApplicationTables,
    frame: &[u8],
    datagram: &Datagram,
    ends: &Ends,
    now_ns: u64,
) -> Strict {
    let ignored = Strict::NoConnection {
        reset: false,
        checked: false,
    };
    let application = tables.map();
    let (Some(listener), Some(header)) = (
        application.listeners.get(port_index(ends)),
        read::<{ tcp::HEADER_LEN }>(frame, datagram.transport),
    ) else {
        return ignored;
    };
    let flags = listener.flags.load(Relaxed);
    if flags & LISTEN_CONNECTED != 0 {
        let channel = tables.find_flow(ends);
        if !channel.is_none() {
            return Strict::Channel(channel);
        }
    }
    let bits = Flags(header[13]);
    let is = |wanted: Flags| bits.contains(wanted);
    if is(Flags::SYN) && !bits.intersects(Flags::FIN | Flags::RST | Flags::ACK) {
        let channel = find_listener(tables, ends);
        if !channel.is_none()
            && flags & LISTEN_COOKIES != 0
            && let Some(answer) = answer(&application.cookies, frame, datagram, ends, flags, now_ns)
        {
            return Strict::Answered(answer);
        }
        return Strict::Channel(channel);
    }
    // To anything else a listening socket says nothing (RFC 9293 §3.10.7.2).
    if !is(Flags::ACK) || is(Flags::RST) {
        return ignored;
    }
    if flags & LISTEN_COOKIES_VALID == 0 || is(Flags::SYN) {
        return Strict::NoConnection {
            reset: true,
            checked: false,
        };
    }
    let word = |at: usize| u32::from_be_bytes(read(&header, at).unwrap_or_default());
    if is_valid(&application.cookies, ends, word(4), word(8), now_ns) {
        return Strict::Cookie(find_listener(tables, ends));
    }
    // Data may overtake the application, which has yet to enter the flow of the
    // cookie before it: its sender will repeat it.
    let payload = datagram.transport + usize::from(header[12] >> 4) * 4 < datagram.end;
    Strict::NoConnection {
        reset: !payload && !is(Flags::FIN),
        checked: true,
    }
}

/// The application's clock, ns.
fn clock(cookies: &Cookies, now_ns: u64) -> u64 {
    now_ns.saturating_sub(cookies.epoch.load(Relaxed))
}

fn key(cookies: &Cookies) -> [u64; 2] {
    [cookies.key[0].load(Relaxed), cookies.key[1].load(Relaxed)]
}

fn make(cookies: &Cookies, ends: &Ends, remote: u32, count: u32, mss: u32) -> u32 {
    let rest = 1 << 31 | (count << 3 & 0x7fff_ffff) | mss;
    let word = u64::from(remote) << 32 | u64::from(rest);
    let mac = cookie_hash(key(cookies), ends, Some(word)) as u32;
    (mac & !15) | (count & 1) << 3 | mss
}

/// True for an ACK of a cookie of ours that is not too old.
fn is_valid(
    cookies: &Cookies,
    ends: &Ends,
    sequence: u32,
    acknowledgment: u32,
    now_ns: u64,
) -> bool {
    let cookie = acknowledgment.wrapping_sub(1);
    let count = (clock(cookies, now_ns) / COOKIE_PERIOD) as u32;
    let count = count.wrapping_sub((count ^ cookie >> 3) & 1);
    make(cookies, ends, sequence.wrapping_sub(1), count, cookie & 7) == cookie
}

/// The answer to a SYN; `None` for one that no cookie can answer.
fn answer(
    cookies: &Cookies,
    frame: &[u8],
    datagram: &Datagram,
    ends: &Ends,
    flags: u32,
    now_ns: u64,
) -> Option<Answer> {
    if datagram.part != Part::Whole {
        return None;
    }
    let packet = Packet::new(frame.get(datagram.transport..datagram.end)?).ok()?;
    let syn = packet.header();
    let v4 = ends.is_v4();
    // RFC 9293 §3.7.1 and RFC 8200 §5 where it names none.
    let named = syn.options.maximum_segment_size.filter(|&mss| mss != 0);
    let mss = named.unwrap_or(if v4 { 536 } else { 1220 });
    let number = COOKIE_MSS.iter().rposition(|&place| place <= mss)? as u32;
    // Nobody sends from 0/8, 127/8, 224/4 and above, ::/64 (unspecified,
    // loopback, IPv4-mapped) or ff00::/8.
    let remote_bytes = address(ends.remote);
    let martian = if v4 {
        matches!(remote_bytes[12], 0 | 127 | 224..)
    } else {
        remote_bytes[0] == 0xff || ends.remote[0] == 0
    };
    if martian {
        return None;
    }
    // A SYN with an ECN codepoint was mangled (RFC 3168 §6.1.1).
    let service = *frame.get(NETWORK + 1)?;
    let codepoint = if v4 { service } else { service >> 4 } & 3;
    let asks = syn.flags.contains(Flags::ECE | Flags::CWR) && codepoint == 0;
    let mut control = Flags::SYN | Flags::ACK;
    let now = clock(cookies, now_ns);
    let remote = syn.sequence;
    let count = (now / COOKIE_PERIOD) as u32;
    let mut options = tcp::Options {
        maximum_segment_size: Some(cookies.mss[usize::from(!v4)].load(Relaxed)),
        ..tcp::Options::default()
    };
    // Options that no timestamp can remember are as good as not offered.
    if let Some(timestamps) = syn.options.timestamps
        && flags & LISTEN_TIMESTAMPS != 0
    {
        let scale = (flags >> LISTEN_SCALE_SHIFT & 15) as u8;
        options.sack_permitted = syn.options.sack_permitted && flags & LISTEN_SACK != 0;
        let peer = match syn.options.window_scale {
            Some(peer) if scale != NO_SCALE => peer.min(14),
            _ => NO_SCALE,
        };
        let clock =
            ((now / 1_000_000) as u32).wrapping_add(cookie_hash(key(cookies), ends, None) as u32);
        let ecn = asks && flags & LISTEN_ECN != 0;
        if ecn {
            control |= Flags::ECE;
        }
        let rest = u32::from(ecn) << 5 | u32::from(options.sack_permitted) << 4 | u32::from(peer);
        let mut value = clock & !COOKIE_OPTIONS | rest;
        // Never ahead of the clock: later segments must not be older.
        if tcp::before(clock, value) {
            value = value.wrapping_sub(COOKIE_OPTIONS + 1);
        }
        options.timestamps = Some(Timestamps {
            value,
            echo: timestamps.value,
        });
        options.window_scale = (peer != NO_SCALE).then_some(scale);
    }
    let header = tcp::Header {
        source_port: ends.local_port,
        destination_port: ends.remote_port,
        sequence: make(cookies, ends, remote, count, number),
        acknowledgment: remote.wrapping_add(1),
        flags: control,
        window: (flags >> LISTEN_WINDOW_SHIFT) as u16,
        urgent: 0,
        options,
    };
    emit(frame, ends, v4, &header, cookies.hop_limit.load(Relaxed))
}

fn address(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Writes the whole frame, with the SYN's link addresses swapped.
fn emit(
    frame: &[u8],
    ends: &Ends,
    v4: bool,
    header: &tcp::Header,
    hop_limit: u8,
) -> Option<Answer> {
    use tidewall_wire::udp::{Addresses, Checksum};
    let (local, remote) = (address(ends.local), address(ends.remote));
    let length = header.header_len();
    let mut bytes = [0; ANSWER_MAX];
    let (link, rest) = bytes.split_first_chunk_mut::<NETWORK>()?;
    let received: [u8; NETWORK] = read(frame, 0)?;
    link[..6].copy_from_slice(&received[6..12]);
    link[6..12].copy_from_slice(&received[..6]);
    link[12..].copy_from_slice(&received[12..]);
    let (network, addresses) = if v4 {
        let (ip, _) = rest.split_first_chunk_mut::<20>()?;
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((20 + length) as u16).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = hop_limit;
        ip[9] = TCP;
        ip[12..16].copy_from_slice(&local[12..]);
        ip[16..].copy_from_slice(&remote[12..]);
        let sum = Sum::ZERO.bytes(ip).checksum();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let part = |address: [u8; 16]| {
            let [.., a, b, c, d] = address;
            [a, b, c, d].into()
        };
        (20, Addresses::V4(part(local), part(remote)))
    } else {
        let (ip, _) = rest.split_first_chunk_mut::<40>()?;
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        ip[6] = TCP;
        ip[7] = hop_limit;
        ip[8..24].copy_from_slice(&local);
        ip[24..].copy_from_slice(&remote);
        (40, Addresses::V6(local.into(), remote.into()))
    };
    let place = rest.get_mut(network..)?;
    header
        .emit_around(addresses, 0, Checksum::Software, place)
        .ok()?;
    Some(Answer {
        bytes,
        length: NETWORK + network + length,
    })
}
