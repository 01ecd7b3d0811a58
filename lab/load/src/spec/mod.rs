//! The specification of a load: plain values, read from and written to JSON.

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

/// Longest time that a load may run, warm-up included, so that a forgotten generator
/// ends.
pub const DURATION_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of UDP payload: as much as an MTU of 1500 leaves under IPv4. Under IPv6 it
/// is 20 less.
pub const PAYLOAD_MAX: u16 = 1472;

/// Highest rate, packets/s. No sender here reaches it; leave the rate out to send as fast
/// as possible.
pub const RATE_MAX: u64 = 100_000_000;

/// Most destination ports of a blast: each needs one of the sender's frames.
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
    /// The kernel builds an skb for each frame on the sender's processor, so a receiving
    /// kernel pays for no allocation, which flatters it. About 1.4 million/s on one 2 GHz
    /// processor.
    Skb,
    /// XDP live frames into a veth, as from a NIC; needs CAP_BPF and CAP_NET_ADMIN
    ///
    /// An XDP test run, redirected: the frames reach the peer as `xdp_frame`s, with no
    /// skb. The peer needs an XDP program or GRO. Needs CAP_SYS_ADMIN, too. About 1.9
    /// million/s. The receiver's socket buffer counts each frame of a burst as a 4 KiB
    /// page, so a kernel socket holds fewer of them. Source port and source address
    /// change once per burst, not with each packet.
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
    /// Time of the change, counted from the start of the run, warm-up included.
    #[serde(with = "seconds")]
    pub after: Duration,
    /// Packets/s from then on, 1…[`RATE_MAX`].
    pub rate: u64,
}

/// The order of a prefix's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceOrder {
    /// Pseudo-random, the same in every run.
    #[default]
    Scattered,
    /// From the lowest up, repeatedly.
    Ascending,
}

/// The kind of packets in a blast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// UDP datagrams of zeros.
    #[default]
    Datagrams,
    /// TCP segments that ask for a connection (SYN) and never continue: a SYN flood (RFC
    /// 4987 §2). Their options are those of a Linux client.
    Syn,
    /// AAL5 PDUs of zeros on circuit 0.PORT of the destination's link, in RFC 4717's
    /// frame mode. A PDU too long for a frame goes in several, each of which counts as a
    /// packet of the rate.
    Pdus,
    /// Their cells, in RFC 4717's N-to-one cell mode behind label 16, as many per packet
    /// as fit.
    Cells,
}

/// An open-loop stream of UDP datagrams, TCP SYN segments or AAL5 PDUs: sent on schedule,
/// whatever happens to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlastSpec {
    /// How the packets are sent.
    pub kind: SenderKind,
    /// The kind of the packets.
    #[serde(default)]
    pub content: Content,
    /// Their destination.
    pub destination: SocketAddr,
    /// Interface that sends them. `None`: the one to which the kernel routes.
    #[serde(default)]
    pub interface: Option<String>,
    /// Ethernet address of the receiver or of the router to it. `None`: looked up in the
    /// kernel's neighbour table. Not used by [`SenderKind::Socket`].
    #[serde(default, with = "mac_text")]
    pub destination_mac: Option<MacAddress>,
    /// Source address. `None`: the one that the kernel would use.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// Source port of the first flow; the others follow. `None`: 49152, and for
    /// [`SenderKind::Socket`] the kernel's choice.
    #[serde(default)]
    pub source_port: Option<u16>,
    /// Number of flows, distinguished by source port, 1…4096; taken in turn.
    #[serde(default = "one")]
    pub flows: u16,
    /// Destination ports, 0…1024 of them, one packet to each in turn; list a port more
    /// than once for a larger share. Empty: the destination's own. [`SenderKind::Skb`],
    /// datagrams of one flow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Vary the source address within this prefix with every packet. With
    /// [`SenderKind::Frame`], it varies with every burst of datagrams, and under
    /// [`SourceOrder::Ascending`]. Only over a veth in a network namespace or over `lo`,
    /// whatever [`BlastSpec::allow_any_interface`] says; not for [`SenderKind::Socket`].
    #[serde(default)]
    pub spoof: Option<Prefix>,
    /// The order in which [`BlastSpec::spoof`] uses the addresses of its prefix.
    #[serde(default)]
    pub order: SourceOrder,
    /// Bytes of payload: of UDP, 0…[`PAYLOAD_MAX`]; 0 for [`Content::Syn`]; of a PDU,
    /// from 1.
    pub payload: u16,
    /// Packets/s, 1…[`RATE_MAX`]. `None`: as fast as possible.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Later changes of the rate, in order of time, at most [`STEPS_MAX`]. Not together
    /// with [`BlastSpec::packets`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RateStep>,
    /// Stop after this many packets, warm-up included. `None`: at the end of
    /// the run's duration.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Most packets sent back to back, 1…256. The default, `None`:
    /// - 100 µs worth, at most 32 (8 beside a ping, so that a burst delays its replies
    ///   little).
    /// - For [`SenderKind::Frame`], each of whose bursts costs about 10 µs to begin: at
    ///   most 256 (32 beside a ping).
    /// - For a SYN flood alone: 250 µs worth, at most 128. The generator then sleeps
    ///   between bursts, and other threads on its processor can run.
    ///
    /// For SYN segments sent as frames, 64 is the maximum, also of a given value. A
    /// receiver that answers in place changes the frames that a longer run would send
    /// again.
    #[serde(default)]
    pub burst: Option<u16>,
    /// Transmit queue of the interface, [`SenderKind::Skb`] only.
    #[serde(default)]
    pub queue: u32,
    /// The interface's rule table chooses between queues 0 and 1 (`bpf/adaptor.bpf.c`),
    /// [`SenderKind::Skb`] only.
    #[serde(default)]
    pub steered: bool,
    /// Allow an interface that is neither `lo` nor a veth inside its own network
    /// namespace. Otherwise it is rejected: a blast on a real network is an attack unless
    /// its owner wants it.
    #[serde(default)]
    pub allow_any_interface: bool,
}

impl BlastSpec {
    /// Returns a blast of 14-byte payloads (LRP's) from one flow, as fast as possible.
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

    /// Returns a SYN flood from one source, as fast as possible.
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

/// Most SYN segments sent as frames with one system call: those of one batch, whose pages
/// are all fresh ([`BlastSpec::burst`]).
pub(crate) const SYN_FRAMES_MAX: u32 = 64;

/// Default first source port: the first ephemeral one (RFC 6335 §6).
pub(crate) const DEFAULT_SOURCE_PORT: u16 = 49152;

fn one() -> u16 {
    1
}

/// Creates an error about the caller's input.
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
