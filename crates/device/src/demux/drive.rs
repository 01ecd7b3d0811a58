//! The driver program's function in Rust, step by step in its order.
//!
//! Change `bpf/demux.bpf.c` with it: `tests/demux_agreement.rs` runs both.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use tidewall_wire::checksum;

use super::cookie::{Answer, Strict, strict};
use super::headers::{
    Datagram, Ends, ICMP, ICMPV6, NETWORK, Part, Refused, TCP, UDP, V4_HEADER, V6_HEADER,
    local_slot, parse_v4, parse_v6, read, read_u16,
};
use super::kernel::group_class;
use super::layout::{
    CHANNELS, Class, Counter, FragmentKey, Kind, LISTEN_CONNECTED, LISTEN_LOCAL, LISTEN_TCP_STRICT,
    LOCAL_PROBES, LOCALS, Metadata, OVER_SHARE, OWNER_ANY, OWNER_APPLICATION, OWNER_BY_ADDRESS,
    OwnerKey, Queue,
};
use super::{ApplicationTables, ChannelId, Tables};

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the kernel; its class had a token.
    Kernel {
        /// The class that paid.
        class: Class,
    },
    /// Nowhere.
    Drop {
        /// What was counted: why it was dropped, or, for a kernel-bound frame
        /// over the rate of its class, why it was kernel-bound
        /// ([`Counter::Frames`] when no other counter says so, as for ARP).
        counter: Counter,
    },
    /// To the channel that the metadata names, within its limit.
    Channel(Metadata),
    /// To the application, which demultiplexes itself.
    Raw(Metadata),
    /// To the kernel's helper socket, with the ports rewritten.
    NapiProbe,
    /// Back to where it came from: a SYN cookie.
    Answered(Answer),
}

/// Decides where a frame goes, as the driver program would at the time `now_ns`
/// on this queue: counts, fills the channel's account and the buckets, and
/// rewrites a NAPI probe's port in `frame`. One caller at a time for
/// each queue. A queue that the tables do not have is the kernel's.
pub fn drive(tables: &Tables, queue: u32, frame: &mut [u8], now_ns: u64) -> Verdict {
    let Some(counts) = tables.trusted.queue(queue) else {
        return Verdict::Kernel {
            class: Class::Other,
        };
    };
    let trace = begin_trace(tables);
    let driver = Driver {
        tables,
        counts,
        queue,
        now_ns,
        trace,
    };
    driver.demux(frame).unwrap_or_else(|verdict| verdict)
}

/// Takes a trace id if there are frames left to sample; else 0.
fn begin_trace(tables: &Tables) -> u32 {
    let control = &tables.device().control;
    let remaining = control.trace_remaining.load(Relaxed);
    let taken = remaining != 0
        && control
            .trace_remaining
            .compare_exchange(remaining, remaining - 1, AcqRel, Relaxed)
            .is_ok();
    if taken {
        control.trace_next.fetch_add(1, Relaxed).wrapping_add(1)
    } else {
        0
    }
}

/// One more, by the only writer.
pub(super) fn add_one(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

pub(super) struct Driver<'a> {
    pub(super) tables: &'a Tables,
    pub(super) counts: &'a Queue,
    pub(super) queue: u32,
    pub(super) now_ns: u64,
    trace: u32,
}

impl Driver<'_> {
    fn count(&self, counter: Counter) {
        if let Some(place) = self.counts.counters.get(counter as usize) {
            add_one(place);
        }
    }

    fn drop(&self, counter: Counter) -> Verdict {
        self.count(counter);
        Verdict::Drop { counter }
    }

    fn kernel(&self, counter: Counter, class: Class, frame: &[u8]) -> Verdict {
        self.count(counter);
        self.to_kernel(counter, class, frame, None)
    }

    fn datagram_to_kernel(&self, counter: Counter, frame: &[u8], datagram: &Datagram) -> Verdict {
        self.count(counter);
        self.to_kernel(counter, datagram.class(frame), frame, Some(datagram))
    }

    /// Both arms are answers; the error arm is the one found early.
    fn demux(&self, frame: &mut [u8]) -> Result<Verdict, Verdict> {
        let tables = self.tables;
        let control = &tables.device().control;
        self.count(Counter::Frames);
        let datagram = self.parse(frame)?;
        if !is_local(tables, datagram.destination) {
            return Err(self.kernel(Counter::NotLocal, Class::Forwarded, frame));
        }
        let (owner, kind, ends) = self.owner(frame, &datagram)?;
        if owner != u32::from(tables.embedded.number()) {
            return Err(self.datagram_to_kernel(Counter::Unowned, frame, &datagram));
        }
        let probe = control
            .probe_port
            .get(self.queue as usize)
            .map_or(0, |port| port.load(Acquire));
        // Of a segment behind extension headers, the last of them would have to
        // change.
        let plain = datagram.version == 4 || datagram.transport == NETWORK + V6_HEADER;
        if probe != 0
            && kind == Kind::Datagram
            && (datagram.protocol == UDP || plain)
            && let Some(probe) = self.probe_napi(frame, &datagram)
        {
            return Err(probe);
        }
        let metadata = metadata(&datagram, self.trace);
        if control.raw.load(Relaxed) != 0 {
            self.count(Counter::Raw);
            return Ok(Verdict::Raw(Metadata {
                kind: Kind::Raw as u8,
                ..metadata
            }));
        }
        let channel = match ends {
            Some(ends) => {
                let strict = kind != Kind::IcmpError && is_strict(&tables.embedded, &ends);
                let channel = if strict {
                    self.strict(frame, &datagram, &ends)?
                } else {
                    find_channel(&tables.embedded, &ends)
                };
                if channel.is_none() {
                    return Err(self.datagram_to_kernel(Counter::Unowned, frame, &datagram));
                }
                channel
            }
            None => ChannelId::from_value(tables.application().fragment_channel.load(Relaxed)),
        };
        let credit = self.admit(channel).map_err(|counter| self.drop(counter))?;
        self.count(Counter::Channel);
        let (channel, kind) = (channel.value(), kind as u8);
        Ok(Verdict::Channel(Metadata {
            channel,
            credit,
            kind,
            ..metadata
        }))
    }

    /// Channel of a segment at a strict port.
    fn strict(&self, frame: &[u8], datagram: &Datagram, ends: &Ends) -> Result<ChannelId, Verdict> {
        let (reset, checked) =
            match strict(&self.tables.embedded, frame, datagram, ends, self.now_ns) {
                Strict::Channel(channel) => return Ok(channel),
                Strict::Cookie(channel) => {
                    self.count(Counter::CookieValid);
                    if !channel.is_none() {
                        return Ok(channel);
                    }
                    (true, false)
                }
                Strict::Answered(answer) => {
                    self.count(Counter::CookieSent);
                    return Err(Verdict::Answered(answer));
                }
                Strict::NoConnection { reset, checked } => (reset, checked),
            };
        if checked {
            self.count(Counter::CookieFailed);
        }
        Err(if reset {
            let (counter, class) = (Counter::NoConnection, Class::NoConnection);
            self.count(counter);
            self.to_kernel(counter, class, frame, Some(datagram))
        } else {
            self.drop(Counter::NoConnection)
        })
    }

    /// Up to the transport header of a unicast datagram whose lengths hold.
    fn parse(&self, frame: &[u8]) -> Result<Datagram, Verdict> {
        let Some(ethertype) = read_u16(frame, 12) else {
            return Err(self.drop(Counter::Truncated));
        };
        if frame.len() > usize::from(u16::MAX) {
            // Offsets would not fit; no device makes such frames.
            return Err(self.drop(Counter::Malformed));
        }
        let multicast =
            |ethertype| self.kernel(Counter::Multicast, group_class(frame, ethertype), frame);
        if frame.first().is_some_and(|byte| byte & 1 != 0) {
            return Err(multicast(ethertype));
        }
        let parsed = match ethertype {
            0x0800 => parse_v4(frame),
            0x86dd => parse_v6(frame),
            0x0806 => return Err(self.to_kernel(Counter::Frames, Class::Arp, frame, None)),
            0x8100 | 0x88a8 => return Err(self.kernel(Counter::Tagged, Class::Forwarded, frame)),
            _ => return Err(self.kernel(Counter::Unknown, Class::Forwarded, frame)),
        };
        parsed.map_err(|refused| match refused {
            Refused::Truncated => self.drop(Counter::Truncated),
            Refused::Malformed => self.drop(Counter::Malformed),
            Refused::Multicast => multicast(ethertype),
        })
    }

    /// Trusted level: the application, how its protocol code will read the
    /// frame, and the flow to look for; none for a later fragment.
    fn owner(
        &self,
        frame: &[u8],
        datagram: &Datagram,
    ) -> Result<(u32, Kind, Option<Ends>), Verdict> {
        let tables = self.tables;
        let unowned = || Err(self.datagram_to_kernel(Counter::Unowned, frame, datagram));
        if datagram.part == Part::Later {
            let owner = match tables
                .trusted
                .fragment_decision(&fragment_key(frame, datagram))
            {
                Some(0) => return unowned(),
                Some(decision) => decision - 1,
                None => {
                    self.count(Counter::FragmentOrphan);
                    let application = &tables.device().control.fragment_application;
                    match application.load(Relaxed) {
                        0 => {
                            let (counter, class) = (Counter::FragmentOrphan, Class::Other);
                            return Err(self.to_kernel(counter, class, frame, Some(datagram)));
                        }
                        application => application - 1,
                    }
                }
            };
            return Ok((owner, Kind::Fragment, None));
        }
        let first = datagram.part == Part::First;
        let decide = |decision: u32| {
            if first {
                tables
                    .trusted
                    .decide_fragments(fragment_key(frame, datagram), decision);
            }
        };
        match (datagram.protocol, datagram.version) {
            (UDP | TCP, _) => {
                let ends = self.transport(frame, datagram)?;
                let owner = find_owner(tables, &ends);
                decide(owner.map_or(0, |owner| owner.wrapping_add(1)));
                let kind = if first {
                    Kind::FirstFragment
                } else {
                    Kind::Datagram
                };
                owner.map_or_else(unowned, |owner| Ok((owner, kind, Some(ends))))
            }
            _ if first => {
                decide(0);
                unowned()
            }
            (ICMP, 4) | (ICMPV6, 6) => {
                let quoted = datagram.quoted_ends(frame);
                let found = quoted.and_then(|ends| Some((find_owner(tables, &ends)?, ends)));
                found.map_or_else(unowned, |(owner, ends)| {
                    Ok((owner, Kind::IcmpError, Some(ends)))
                })
            }
            _ => unowned(),
        }
    }

    /// Checks the transport header and reads the ports.
    fn transport(&self, frame: &[u8], datagram: &Datagram) -> Result<Ends, Verdict> {
        let Datagram {
            transport,
            end,
            protocol,
            ..
        } = *datagram;
        let header = if protocol == UDP { 8 } else { 20 };
        let ports = read(frame, transport).filter(|_| transport + header <= end);
        let Some(ports) = ports else {
            return Err(self.drop(Counter::Truncated));
        };
        if protocol == UDP {
            let length = read_u16(frame, transport + 4).map_or(0, usize::from);
            let whole = datagram.part == Part::Whole;
            if length < 8 || (whole && transport + length > end) {
                return Err(self.drop(Counter::Malformed));
            }
        }
        Ok(datagram.ends(ports))
    }

    /// Gives an owned datagram to the helper socket of its queue; `None` for a
    /// frame that is no probe.
    fn probe_napi(&self, frame: &mut [u8], datagram: &Datagram) -> Option<Verdict> {
        let control = &self.tables.device().control;
        let queue = self.queue as usize;
        let port_place = control.probe_port.get(queue)?;
        let source_place = control.probe_source.get(queue)?;
        let (port, source) = (port_place.load(Acquire), source_place.load(Acquire));
        let segment = datagram.protocol != UDP;
        let length = datagram.end - datagram.transport;
        if segment {
            let [offset, flags]: [u8; 2] = read(frame, datagram.transport + 12)?;
            if flags & 0x3f != 0x10 || length != usize::from(offset >> 4) * 4 {
                return None;
            }
        }
        let link: [u8; 6] = read(frame, 6)?;
        let header: &mut [u8; 8] = frame
            .get_mut(datagram.transport..)
            .and_then(<[u8]>::first_chunk_mut)?;
        let sender = u16::from_be_bytes([header[0], header[1]]);
        let original = u16::from_be_bytes([header[2], header[3]]);
        let checksum = u16::from_be_bytes([header[6], header[7]]);
        header[..2].copy_from_slice(&source.to_be_bytes());
        header[2..4].copy_from_slice(&port.to_be_bytes());
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let updated = |checksum, old, new| match checksum::update(checksum, old, new) {
            _ if checksum == 0 => 0,
            // Zero is written as its other form (RFC 768).
            0 => 0xffff,
            updated => updated,
        };
        let checksum = if segment {
            header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            0
        } else {
            updated(updated(checksum, original, port), sender, source)
        };
        header[6..8].copy_from_slice(&checksum.to_be_bytes());
        if segment {
            become_udp(frame, datagram.version);
            control.probed_sequence.get(queue)?.store(sequence, Release);
        }
        for (place, byte) in control.probed_link.get(queue)?.iter().zip(link) {
            place.store(byte, Release);
        }
        source_place.store(sender, Release);
        control
            .probed_protocol
            .get(queue)?
            .store(datagram.protocol, Release);
        control.probed_port.get(queue)?.store(original, Release);
        port_place.store(0, Release);
        self.count(Counter::NapiProbe);
        Some(Verdict::NapiProbe)
    }

    /// Takes a place in a channel: its head after this frame, or why not.
    fn admit(&self, channel: ChannelId) -> Result<u32, Counter> {
        let index = channel.index();
        if channel.value() & OVER_SHARE != 0 {
            if let Some(driver) = self
                .tables
                .embedded
                .driver(self.queue, index % CHANNELS as u16)
            {
                add_one(&driver.dropped);
            }
            return Err(Counter::OverShare);
        }
        let (Some(bounds), Some(driver)) = (
            self.tables.embedded.channel(self.queue, index),
            self.tables.embedded.driver(self.queue, index),
        ) else {
            return Err(Counter::ChannelClosed);
        };
        let limit = bounds.limit.load(Relaxed);
        if limit == 0 {
            return Err(Counter::ChannelClosed);
        }
        let head = driver.head.load(Relaxed);
        if head.wrapping_sub(bounds.tail.load(Acquire)) >= limit {
            add_one(&driver.dropped);
            return Err(Counter::ChannelFull);
        }
        let credit = head.wrapping_add(1);
        driver.head.store(credit, Release);
        Ok(credit)
    }
}

fn metadata(datagram: &Datagram, trace: u32) -> Metadata {
    // Frames longer than 65535 bytes were refused: every offset fits.
    Metadata {
        trace,
        version: datagram.version,
        protocol: datagram.protocol,
        network: NETWORK as u16,
        transport: datagram.transport as u16,
        end: datagram.end as u16,
        fragment: datagram.fragment as u16,
        ..Metadata::default()
    }
}

/// True for an address of this host.
fn is_local(tables: &Tables, address: [u64; 2]) -> bool {
    let first = local_slot(address);
    (0..LOCAL_PROBES).any(|probe| {
        let place = tables.device().control.locals.get((first + probe) % LOCALS);
        place.is_some_and(|place| [place[0].load(Relaxed), place[1].load(Relaxed)] == address)
    })
}

/// Index in the tables that hold UDP, then TCP, by the port as it stands in a
/// header.
pub(super) fn port_index(ends: &Ends) -> usize {
    (if ends.protocol == TCP { 65536 } else { 0 }) + usize::from(ends.local_port.to_be())
}

/// The application that owns a flow.
fn find_owner(tables: &Tables, ends: &Ends) -> Option<u32> {
    let entry = tables.device().ports.get(port_index(ends))?.load(Relaxed);
    if entry & OWNER_BY_ADDRESS != 0 {
        let mut key: OwnerKey = [0; 20];
        for (bytes, word) in key.chunks_exact_mut(8).zip(ends.local) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        key[16..18].copy_from_slice(&ends.local_port.to_be_bytes());
        key[18] = ends.protocol;
        if let Some(owner) = tables.trusted.owner_by_address(&key) {
            return Some(owner);
        }
    }
    (entry & OWNER_ANY != 0).then_some((entry & OWNER_APPLICATION).wrapping_sub(1))
}

fn is_strict(tables: &ApplicationTables, ends: &Ends) -> bool {
    let listener = tables.map().listeners.get(port_index(ends));
    listener.is_some_and(|listener| listener.flags.load(Acquire) & LISTEN_TCP_STRICT != 0)
}

/// Channel of a flow: exact, then, but for a strict port, whoever listens.
pub(super) fn find_channel(tables: &ApplicationTables, ends: &Ends) -> ChannelId {
    let Some(listener) = tables.map().listeners.get(port_index(ends)) else {
        return ChannelId::NONE;
    };
    let flags = listener.flags.load(Acquire);
    if flags & LISTEN_CONNECTED != 0 {
        let channel = tables.find_flow(ends);
        if !channel.is_none() {
            return channel;
        }
    }
    if flags & LISTEN_TCP_STRICT != 0 {
        return ChannelId::NONE;
    }
    find_listener(tables, ends)
}

/// Channel of whoever listens: by local address, then any address.
pub(super) fn find_listener(tables: &ApplicationTables, ends: &Ends) -> ChannelId {
    let Some(listener) = tables.map().listeners.get(port_index(ends)) else {
        return ChannelId::NONE;
    };
    if listener.flags.load(Acquire) & LISTEN_LOCAL != 0 {
        let listening = Ends {
            remote: [0; 2],
            remote_port: 0,
            ..*ends
        };
        let channel = tables.find_flow(&listening);
        if !channel.is_none() {
            return channel;
        }
    }
    let [v4, v6] = &listener.channel;
    let any = if ends.is_v4() { v4 } else { v6 };
    ChannelId::from_value(any.load(Acquire))
}

/// Which datagram a fragment is part of (RFC 791 §3.2, RFC 8200 §4.5).
fn fragment_key(frame: &[u8], datagram: &Datagram) -> FragmentKey {
    let mut key: FragmentKey = [0; 40];
    let words = datagram.source.into_iter().chain(datagram.destination);
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    let identification = if datagram.version == 4 {
        key[36] = datagram.protocol;
        u32::from(u16::from_ne_bytes(
            read(frame, NETWORK + 4).unwrap_or_default(),
        ))
    } else {
        u32::from_ne_bytes(read(frame, datagram.fragment + 4).unwrap_or_default())
    };
    key[32..36].copy_from_slice(&identification.to_ne_bytes());
    key
}

/// Makes the IP header one of a UDP datagram.
fn become_udp(frame: &mut [u8], version: u8) {
    let Some(network) = frame.get_mut(NETWORK..) else {
        return;
    };
    if version != 4 {
        if let Some(next) = network.get_mut(6) {
            *next = UDP;
        }
        return;
    }
    let Some(header) = network.first_chunk_mut::<V4_HEADER>() else {
        return;
    };
    let old = u16::from_be_bytes([header[8], header[9]]);
    header[9] = UDP;
    let new = u16::from_be_bytes([header[8], header[9]]);
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    let updated = checksum::update(checksum, old, new);
    header[10..12].copy_from_slice(&updated.to_be_bytes());
}
