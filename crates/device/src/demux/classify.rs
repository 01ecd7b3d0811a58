//! The application level alone, for architectures that demultiplex on the host
//! (the PCB look-up of 4.4BSD and Early-Demux).

use std::sync::atomic::Ordering::Relaxed;

use super::drive::{find_channel, find_listener};
use super::headers::{Datagram, ICMP, ICMPV6, NETWORK, Part, TCP, UDP, parse_v4, parse_v6, read};
use super::layout::{Kind, Metadata};
use super::{ApplicationTables, ChannelId};

/// Finds the channel of a frame that came as [`Kind::Raw`]: the same look-up as
/// the driver program's, without its account of the channel. Returns the
/// channel and the metadata that the driver would have written, but for a
/// credit of 0. `None` when no channel is for it, or the frame does not bear
/// out what the metadata says.
pub fn classify_host(
    tables: &ApplicationTables,
    frame: &[u8],
    metadata: &Metadata,
) -> Option<(ChannelId, Metadata)> {
    if usize::from(metadata.network) != NETWORK {
        return None;
    }
    let parsed = match metadata.version {
        4 => parse_v4(frame),
        6 => parse_v6(frame),
        _ => return None,
    };
    let datagram = parsed.ok()?;
    let Datagram {
        version,
        protocol,
        transport,
        end,
        ..
    } = datagram;
    let header = match protocol {
        UDP => 8,
        TCP => 20,
        _ => 0,
    };
    let (kind, channel) = match (datagram.part, protocol, version) {
        (Part::Later, ..) => {
            let channel = tables.map().fragment_channel.load(Relaxed);
            (Kind::Fragment, ChannelId::from_value(channel))
        }
        (part, UDP | TCP, _) if transport + header <= end => {
            let ends = datagram.ends(read(frame, transport)?);
            let kind = if part == Part::First {
                Kind::FirstFragment
            } else {
                Kind::Datagram
            };
            let channel = find_channel(tables, &ends);
            // Nothing is checked twice: of a strict port the listener's owner
            // gets what belongs to no flow, too, and looks for cookies in it.
            let channel = if channel.is_none() {
                find_listener(tables, &ends)
            } else {
                channel
            };
            (kind, channel)
        }
        (Part::Whole, ICMP, 4) | (Part::Whole, ICMPV6, 6) => (
            Kind::IcmpError,
            find_channel(tables, &datagram.quoted_ends(frame)?),
        ),
        _ => return None,
    };
    if channel.is_none() {
        return None;
    }
    let found = Metadata {
        channel: channel.value(),
        credit: 0,
        kind: kind as u8,
        protocol,
        transport: u16::try_from(transport).ok()?,
        end: u16::try_from(end).ok()?,
        fragment: u16::try_from(datagram.fragment).ok()?,
        ..*metadata
    };
    Some((channel, found))
}
