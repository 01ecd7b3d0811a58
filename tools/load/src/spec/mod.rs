//! What a load is to be: plain values, read from and written to JSON.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidewall_wire::ethernet::MacAddress;

use crate::prefix::Prefix;

mod http;
mod idle;
mod load;
mod ping;
mod s_client;

pub use http::{
    FixedExchange, HTTP_CONNECTIONS_MAX, HttpSpec, ProbeSpec, Reuse, StreamKind, StreamSpec,
};
pub use idle::{Habit, IDLE_CONNECTIONS_MAX, IdleSpec};
pub use load::LoadSpec;
pub use ping::{OUTSTANDING_MAX, PingSpec, Wait};
pub use s_client::{S_CLIENT_OPEN_MAX, S_CLIENT_RATE_MAX, SClientSpec};

/// Longest a load may run, warm-up included. A forgotten generator ends.
pub const DURATION_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of UDP payload: what an MTU of 1500 leaves under IPv4. Under
/// IPv6 it is 20 less.
pub const PAYLOAD_MAX: u16 = 1472;

/// Highest rate that can be asked for, packets/s. Above what any sender here
/// reaches; leave the rate out to go as fast as it goes.
pub const RATE_MAX: u64 = 100_000_000;

/// Most destination ports of a blast: a frame of the sender's for each.
const PORTS_MAX: usize = 1024;

/// Most changes of rate in a blast.
pub const STEPS_MAX: usize = 64;

/// How the packets of a blast are made and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SenderKind {
    /// AF_XDP transmission in copy mode; needs CAP_NET_RAW
    ///
    /// The kernel builds an skb for each frame on the sender's processor, so a
    /// receiving kernel pays for no allocation (this flatters it). About 1.4
    /// million/s on one 2 GHz processor.
    Skb,
    /// XDP live frames into a veth, as from a NIC; needs CAP_BPF and CAP_NET_ADMIN
    ///
    /// An XDP test run, redirected: the frames reach the peer as `xdp_frame`s,
    /// with no skb. The peer needs an XDP program or GRO. Needs CAP_SYS_ADMIN, too.
    /// About 1.9 million/s. The frames of a burst are 4 KiB pages to the
    /// receiver's socket buffer, so a kernel socket holds fewer of them.
    /// Source port and source address change once a burst, not with each
    /// packet.
    Frame,
    /// sendmmsg on a kernel socket; needs nothing
    ///
    /// Goes to any destination that the kernel routes to, loopback included.
    /// About 0.9 million/s.
    Socket,
}

impl fmt::Display for SenderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SenderKind::Skb => "skb",
            SenderKind::Frame => "frame",
            SenderKind::Socket => "socket",
        })
    }
}

/// A change of a blast's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateStep {
    /// When, counted from the start of the run, warm-up included.
    #[serde(with = "seconds")]
    pub after: Duration,
    /// Packets/s from then on, 1…[`RATE_MAX`].
    pub rate: u64,
}

/// Which of the addresses of a prefix comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceOrder {
    /// Pseudo-random, the same in every run.
    #[default]
    Scattered,
    /// From the lowest up, and over again.
    Ascending,
}

/// What the packets of a blast are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// UDP datagrams of zeros.
    #[default]
    Datagrams,
    /// TCP segments that ask for a connection (SYN) and say nothing more: a
    /// SYN flood (RFC 4987 §2). They offer what a Linux client offers.
    Syn,
    /// AAL5 PDUs of zeros on circuit 0.PORT of the destination's link, in RFC 4717's frame
    /// mode. What does not fit into a frame goes in several, each a packet of the rate.
    Pdus,
    /// Their cells, in its N-to-one cell mode behind label 16, as many a packet as fit.
    Cells,
}

/// An open-loop stream of UDP datagrams, TCP SYN segments or AAL5 PDUs: sent on schedule,
/// whatever becomes of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlastSpec {
    /// How the packets are sent.
    pub kind: SenderKind,
    /// What they are.
    #[serde(default)]
    pub content: Content,
    /// Where they go.
    pub destination: SocketAddr,
    /// Interface they leave by. `None`: the one that the kernel routes to.
    #[serde(default)]
    pub interface: Option<String>,
    /// Ethernet address of the receiver or of the router to it. `None`: asked
    /// of the kernel's neighbour table. Not used by [`SenderKind::Socket`].
    #[serde(default, with = "mac_text")]
    pub destination_mac: Option<MacAddress>,
    /// Source address. `None`: the one the kernel would use.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// Source port of the first flow; the others follow. `None`: 49152, and
    /// for [`SenderKind::Socket`] whatever the kernel gives.
    #[serde(default)]
    pub source_port: Option<u16>,
    /// Number of flows, distinguished by source port, 1…4096; taken in turn.
    #[serde(default = "one")]
    pub flows: u16,
    /// Destination ports, a packet to each in turn, 0…1024 of them, one as often as it is to
    /// have a share. Empty: the destination's own. [`SenderKind::Skb`], datagrams of one flow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Vary the source address within this prefix, with every packet; with
    /// every burst where a [`SenderKind::Frame`] sends datagrams or goes by
    /// [`SourceOrder::Ascending`]. Only over a veth in a network namespace or
    /// over `lo`, whatever [`BlastSpec::allow_any_interface`] says; not for
    /// [`SenderKind::Socket`].
    #[serde(default)]
    pub spoof: Option<Prefix>,
    /// In which order [`BlastSpec::spoof`] goes through its prefix.
    #[serde(default)]
    pub order: SourceOrder,
    /// Bytes of UDP payload, 0…[`PAYLOAD_MAX`]; 0 for [`Content::Syn`]; of a PDU's, from 1.
    pub payload: u16,
    /// Packets/s, 1…[`RATE_MAX`]. `None`: as fast as it goes.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Later changes of the rate, each after the one before, at most
    /// [`STEPS_MAX`]. Not together with [`BlastSpec::packets`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RateStep>,
    /// Stop after this many packets, warm-up included. `None`: at the end of
    /// the run's duration.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Most packets sent back to back, 1…256. `None`: 100 µs worth, at most 32
    /// (8 beside a ping, so that a burst delays its replies little). For
    /// [`SenderKind::Frame`], each of whose bursts costs about 10 µs to begin,
    /// at most 256 (32 beside a ping). A SYN flood alone: 250 µs worth, at most
    /// 128, so that the generator sleeps between bursts and who shares its
    /// processor can run; frames at most 64, which is also the most that may
    /// be asked for, since a receiver that answers in place changes the frames
    /// that a longer run would send again.
    #[serde(default)]
    pub burst: Option<u16>,
    /// Transmit queue of the interface, [`SenderKind::Skb`] only.
    #[serde(default)]
    pub queue: u32,
    /// The interface's rule table chooses between queues 0 and 1 (`bpf/adaptor.bpf.c`),
    /// [`SenderKind::Skb`] only.
    #[serde(default)]
    pub steered: bool,
    /// Send through an interface that is neither `lo` nor a veth inside a
    /// network namespace of its own. Refused otherwise: a blast on a real
    /// network is an attack unless its owner wants it.
    #[serde(default)]
    pub allow_any_interface: bool,
}

impl BlastSpec {
    /// A blast of 14-byte payloads (LRP's) from one flow, as fast as it goes.
    pub fn new(kind: SenderKind, destination: SocketAddr) -> Self {
        BlastSpec {
            kind,
            content: Content::Datagrams,
            destination,
            interface: None,
            destination_mac: None,
            source: None,
            source_port: None,
            flows: 1,
            ports: Vec::new(),
            spoof: None,
            order: SourceOrder::Scattered,
            payload: 14,
            rate: None,
            steps: Vec::new(),
            packets: None,
            burst: None,
            queue: 0,
            steered: false,
            allow_any_interface: false,
        }
    }

    /// A SYN flood from one source, as fast as it goes.
    pub fn syn(kind: SenderKind, destination: SocketAddr) -> Self {
        BlastSpec {
            content: Content::Syn,
            payload: 0,
            ..BlastSpec::new(kind, destination)
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        if self.content == Content::Syn {
            self.check_syn()?;
        }
        let circuit = matches!(self.content, Content::Pdus | Content::Cells);
        if circuit {
            self.check_circuit()?;
        }
        let payload_max = if circuit {
            u16::MAX
        } else if self.destination.is_ipv6() {
            PAYLOAD_MAX - 20
        } else {
            PAYLOAD_MAX
        };
        if self.payload > payload_max {
            return Err(invalid(format!(
                "a payload of {} bytes: at most {payload_max} fit a frame",
                self.payload
            )));
        }
        if let Some(rate) = self.rate {
            check_range("the rate", rate, 1..=RATE_MAX, " packets/s")?;
        }
        if self.steps.len() > STEPS_MAX {
            return Err(invalid(format!(
                "the rate may change at most {STEPS_MAX} times"
            )));
        }
        for step in &self.steps {
            check_range("the rate of a step", step.rate, 1..=RATE_MAX, " packets/s")?;
        }
        if self
            .steps
            .iter()
            .zip(self.steps.iter().skip(1))
            .any(|(step, next)| step.after >= next.after)
        {
            return Err(invalid(
                "the steps of the rate must be in the order of their times",
            ));
        }
        if !self.steps.is_empty() && self.packets.is_some() {
            return Err(invalid(
                "a number of packets and a rate that changes do not go together",
            ));
        }
        if let Some(burst) = self.burst {
            check_range("the burst", burst, 1..=256, " packets")?;
        }
        check_range("the number of flows", self.flows, 1..=4096, "")?;
        let first = self.source_port.unwrap_or(DEFAULT_SOURCE_PORT);
        if first == 0 || u32::from(first) + u32::from(self.flows) > 65536 {
            return Err(invalid(format!(
                "{} flows from source port {first}: ports end at 65535 and begin at 1",
                self.flows
            )));
        }
        let families = [self.source, self.spoof.map(|prefix| prefix.address())];
        check_families(self.destination, families.into_iter().flatten())?;
        if !self.ports.is_empty() {
            self.check_ports()?;
        }
        if self.spoof.is_some() && self.kind == SenderKind::Socket {
            return Err(invalid(
                "a socket cannot vary its source address: use the skb or the frame sender",
            ));
        }
        check_port(self.destination)
    }

    fn check_ports(&self) -> io::Result<()> {
        let plain = self.flows == 1 && self.spoof.is_none();
        if self.kind != SenderKind::Skb || self.content != Content::Datagrams || !plain {
            return Err(invalid(
                "several destination ports: datagrams of one flow and source, by the skb sender",
            ));
        }
        check_range("the number of ports", self.ports.len(), 1..=PORTS_MAX, "")?;
        self.ports
            .iter()
            .try_for_each(|&port| check_port(SocketAddr::new(self.destination.ip(), port)))
    }

    fn check_circuit(&self) -> io::Result<()> {
        if self.kind == SenderKind::Socket {
            return Err(invalid(
                "a socket sends no PDUs: use the skb or the frame sender",
            ));
        }
        if self.payload == 0 {
            return Err(invalid("a PDU has 1 to 65535 bytes of payload"));
        }
        if self.flows != 1 || self.spoof.is_some() {
            return Err(invalid("PDUs have no sources to vary"));
        }
        Ok(())
    }

    fn check_syn(&self) -> io::Result<()> {
        if self.kind == SenderKind::Socket {
            return Err(invalid(
                "a UDP socket sends no SYN segments: use the skb or the frame sender",
            ));
        }
        if self.payload != 0 {
            return Err(invalid("a SYN segment has no payload here"));
        }
        let most = u16::try_from(SYN_FRAMES_MAX).unwrap_or(u16::MAX);
        if self.kind == SenderKind::Frame && self.burst.is_some_and(|burst| burst > most) {
            return Err(invalid(format!(
                "the burst of a SYN flood of frames must be 1 to {most} packets"
            )));
        }
        Ok(())
    }
}

/// Most SYN segments that leave as frames with one system call: those of one
/// batch, whose pages are all fresh ([`BlastSpec::burst`]).
pub(crate) const SYN_FRAMES_MAX: u32 = 64;

/// First source port when none is asked for: the first ephemeral one
/// (RFC 6335 §6).
pub(crate) const DEFAULT_SOURCE_PORT: u16 = 49152;

fn one() -> u16 {
    1
}

/// An error about what the caller asked for.
pub(crate) fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

fn check_range<T: PartialOrd + fmt::Display>(
    what: &str,
    value: T,
    range: RangeInclusive<T>,
    unit: &str,
) -> io::Result<()> {
    match range.contains(&value) {
        true => Ok(()),
        false => {
            let (least, most) = range.into_inner();
            Err(invalid(format!("{what} must be {least} to {most}{unit}")))
        }
    }
}

fn check_port(destination: SocketAddr) -> io::Result<()> {
    match destination.port() {
        0 => Err(invalid("the destination port must not be 0")),
        _ => Ok(()),
    }
}

fn check_families(
    destination: SocketAddr,
    sources: impl IntoIterator<Item = IpAddr>,
) -> io::Result<()> {
    let mut sources = sources.into_iter();
    match sources.any(|source| source.is_ipv4() != destination.is_ipv4()) {
        true => Err(invalid("source and destination must be of one IP version")),
        false => Ok(()),
    }
}

/// Durations as a number of seconds.
pub(crate) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// Ethernet addresses as text.
mod mac_text {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        value: &Option<MacAddress>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|address| address.to_string()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<MacAddress>, D::Error> {
        Option::<String>::deserialize(from)?
            .map(|text| text.parse().map_err(serde::de::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests;
