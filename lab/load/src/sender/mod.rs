//! The ways in which a burst of packets leaves this process.

mod frame;
mod skb;
mod socket;
mod steered;

use std::io;
use std::net::SocketAddr;

use crate::neighbour::Path;
use crate::pacer::default_burst;
use crate::spec::{
    BlastSpec, Content, DEFAULT_SOURCE_PORT, SYN_FRAMES_MAX, SenderKind, SourceOrder,
};
use crate::template::{Ends, Template, scatter};

/// Packets of one burst; those in neither count were not requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Accepted by the kernel.
    pub(crate) sent: u64,
    /// Abandoned for lack of room.
    pub(crate) ring_full: u64,
}

/// One way of sending.
pub(crate) trait Sender {
    /// Sends the next `count` packets, as many as there is room for.
    fn send(&mut self, count: u32) -> io::Result<Sent>;
}

/// Opens the sender that the specification names. The specification must have been
/// checked.
pub(crate) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Box<dyn Sender>> {
    Ok(match spec.kind {
        SenderKind::Skb if spec.steered => Box::new(steered::SteeredSender::open(spec, path)?),
        SenderKind::Skb => Box::new(skb::SkbSender::open(spec, path)?),
        SenderKind::Frame => Box::new(frame::FrameSender::open(spec, path)?),
        SenderKind::Socket => Box::new(socket::SocketSender::open(spec, path)?),
    })
}

/// Returns the burst for a rate if the specification has none. `answered`: the thread has
/// replies to check as well.
pub(crate) fn burst_of(spec: &BlastSpec, rate: Option<u64>, answered: bool) -> u32 {
    let most = match (spec.content, spec.kind, answered) {
        // A call is expensive to begin.
        (Content::Syn, SenderKind::Frame, _) => SYN_FRAMES_MAX,
        (Content::Syn, _, false) => SYN_BURST_MAX,
        // The more bursts, the more often the thread checks for replies.
        (Content::Syn, SenderKind::Skb, true) => 16,
        (_, SenderKind::Frame, false) => 256,
        (_, SenderKind::Frame, true) | (_, _, false) => 32,
        (_, _, true) => 8,
    };
    match (spec.content, rate) {
        // 250 µs worth.
        (Content::Syn, Some(rate)) if !answered || spec.kind == SenderKind::Frame => {
            default_burst(Some(rate / 2 * 5), most)
        }
        _ => default_burst(rate, most),
    }
}

/// Default maximum of SYN segments per burst: half of a veth's ring.
const SYN_BURST_MAX: u32 = 128;

/// The sources of a stream, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    first: SocketAddr,
    flows: u16,
    spoof: Option<crate::Prefix>,
    order: SourceOrder,
    packet: u64,
}

impl Sources {
    fn new(spec: &BlastSpec, path: &Path) -> Self {
        let port = spec.source_port.unwrap_or(DEFAULT_SOURCE_PORT);
        Sources {
            first: SocketAddr::new(path.source, port),
            flows: spec.flows.max(1),
            spoof: spec.spoof,
            order: spec.order,
            packet: 0,
        }
    }

    /// Returns the source of the next packet.
    fn next(&mut self) -> SocketAddr {
        let packet = self.packet;
        self.packet = packet.wrapping_add(1);
        // Under `flows`, a u16.
        let flow = (packet % u64::from(self.flows)) as u16;
        let address = match self.spoof {
            None => self.first.ip(),
            Some(prefix) if self.order == SourceOrder::Ascending => {
                prefix.with_host_bits(packet.into())
            }
            Some(prefix) => {
                let high = match prefix.address().is_ipv6() {
                    true => u128::from(scatter(!packet)) << 64,
                    false => 0,
                };
                prefix.with_host_bits(high | u128::from(scatter(packet)))
            }
        };
        SocketAddr::new(address, self.first.port().wrapping_add(flow))
    }
}

/// Returns the frame of a stream's first source.
fn template(spec: &BlastSpec, path: &Path, sources: &Sources) -> io::Result<Template> {
    let ends = Ends {
        source_mac: path.link.mac,
        destination_mac: path.destination_mac,
        source: sources.first,
        destination: spec.destination,
    };
    match spec.content {
        Content::Syn => Template::syn(&ends),
        _ => Template::new(&ends, spec.payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn sources(change: impl FnOnce(&mut BlastSpec)) -> Sources {
        let mut spec = BlastSpec::new(SenderKind::Skb, "10.0.0.2:9".parse().unwrap());
        change(&mut spec);
        spec.check().unwrap();
        let source = spec
            .spoof
            .map_or("10.0.0.1".parse().unwrap(), |prefix| prefix.address());
        let path = Path {
            source,
            ..Path::of_tests()
        };
        Sources::new(&spec, &path)
    }

    #[test]
    fn flows_take_turns() {
        let mut sources = sources(|spec| (spec.flows, spec.source_port) = (3, Some(65533)));
        let ports: Vec<u16> = (0..5).map(|_| sources.next().port()).collect();
        assert_eq!(ports, [65533, 65534, 65535, 65533, 65534]);
    }

    #[test]
    fn sources_can_ascend_through_their_prefix() {
        let mut sources = sources(|spec| {
            spec.spoof = Some("10.7.0.0/30".parse().unwrap());
            spec.order = SourceOrder::Ascending;
        });
        let hosts: Vec<String> = (0..6).map(|_| sources.next().ip().to_string()).collect();
        assert_eq!(
            hosts,
            [
                "10.7.0.0", "10.7.0.1", "10.7.0.2", "10.7.0.3", "10.7.0.0", "10.7.0.1"
            ]
        );
    }

    #[test]
    fn a_flood_leaves_time_to_sleep_between_bursts() {
        let destination = "10.0.0.2:80".parse().unwrap();
        let flood = |kind| BlastSpec::syn(kind, destination);
        let skb = flood(SenderKind::Skb);
        for rate in [50_000, 400_000, 600_000] {
            let burst = u64::from(burst_of(&skb, Some(rate), false));
            // In shorter gaps the thread spins.
            assert!(
                burst * 1_000_000 / rate > 60,
                "{rate}/s in bursts of {burst}"
            );
        }
        assert_eq!(burst_of(&flood(SenderKind::Frame), None, false), 64);
        assert_eq!(burst_of(&skb, Some(600_000), true), 16);
        let datagrams = BlastSpec::new(SenderKind::Skb, destination);
        assert_eq!(burst_of(&datagrams, Some(600_000), false), 32);
        assert_eq!(burst_of(&datagrams, Some(50_000), false), 5);
    }

    #[test]
    fn varied_sources_stay_in_their_prefix() {
        for (prefix, destination, most) in [
            ("10.7.0.0/16", "10.0.0.2:9", 65536),
            ("fd07::/48", "[fd00::2]:9", usize::MAX),
        ] {
            let mut sources = sources(|spec| {
                spec.spoof = Some(prefix.parse().unwrap());
                spec.destination = destination.parse().unwrap();
            });
            let seen: HashSet<_> = (0..1000).map(|_| sources.next().ip()).collect();
            let start = &prefix[..5];
            assert!(
                seen.iter()
                    .all(|address| address.to_string().starts_with(start))
            );
            assert!((950..=most).contains(&seen.len()), "{}", seen.len());
        }
    }
}
