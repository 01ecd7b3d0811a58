//! What a load is to be: plain values, read from and written to JSON.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidewall_wire::ethernet::MacAddress;

use crate::prefix::Prefix;

/// Longest a load may run, warm-up included. A forgotten generator ends.
pub const DURATION_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of UDP payload: what an MTU of 1500 leaves under IPv4. Under
/// IPv6 it is 20 less.
pub const PAYLOAD_MAX: u16 = 1472;

/// Highest rate that can be asked for, packets/s. Above what any sender here
/// reaches; leave the rate out to go as fast as it goes.
pub const RATE_MAX: u64 = 100_000_000;

/// Most changes of rate in a blast.
pub const STEPS_MAX: usize = 64;

/// Most requests that a [`PingSpec`] may keep in flight.
pub const OUTSTANDING_MAX: u16 = 1024;

/// How the packets of a blast are made and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SenderKind {
    /// AF_XDP transmission in copy mode: the kernel builds an skb for each
    /// frame on the sender's processor, so a receiving kernel pays for no
    /// allocation (this flatters it). Needs CAP_NET_RAW. About 1.4 million/s on one
    /// 2 GHz processor.
    Skb,
    /// XDP test run with live frames, redirected to a veth: the frames reach
    /// the peer as `xdp_frame`s, with no skb, as from a NIC. The peer needs an
    /// XDP program or GRO. Needs CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN.
    /// About 1.9 million/s. The frames of a burst are 4 KiB pages to the
    /// receiver's socket buffer, so a kernel socket holds fewer of them.
    /// Source port and source address change once a burst, not with each
    /// packet.
    Frame,
    /// A kernel UDP socket and `sendmmsg`: no privilege, any destination that
    /// the kernel routes to, loopback included. About 0.9 million/s.
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

impl FromStr for SenderKind {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        match text {
            "skb" => Ok(SenderKind::Skb),
            "frame" => Ok(SenderKind::Frame),
            "socket" => Ok(SenderKind::Socket),
            _ => Err(invalid(format!(
                "no sender is called {text:?}: skb, frame or socket"
            ))),
        }
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

/// An open-loop stream of UDP datagrams: sent on schedule, whatever becomes of
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlastSpec {
    /// How the packets are sent.
    pub kind: SenderKind,
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
    /// Number of flows, told apart by source port, 1…4096; taken in turn.
    #[serde(default = "one")]
    pub flows: u16,
    /// Vary the source address pseudo-randomly within this prefix. Only over a
    /// veth in a network namespace or over `lo`, whatever
    /// [`BlastSpec::allow_any_interface`] says; not for
    /// [`SenderKind::Socket`].
    #[serde(default)]
    pub spoof: Option<Prefix>,
    /// Bytes of UDP payload, 0…[`PAYLOAD_MAX`].
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
    /// at most 256 (32 beside a ping).
    #[serde(default)]
    pub burst: Option<u16>,
    /// Transmit queue of the interface, [`SenderKind::Skb`] only.
    #[serde(default)]
    pub queue: u32,
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
            destination,
            interface: None,
            destination_mac: None,
            source: None,
            source_port: None,
            flows: 1,
            spoof: None,
            payload: 14,
            rate: None,
            steps: Vec::new(),
            packets: None,
            burst: None,
            queue: 0,
            allow_any_interface: false,
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        let payload_max = if self.destination.is_ipv6() {
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
        if self
            .rate
            .is_some_and(|rate| !(1..=RATE_MAX).contains(&rate))
        {
            return Err(invalid(format!(
                "the rate must be 1 to {RATE_MAX} packets/s"
            )));
        }
        if self.steps.len() > STEPS_MAX {
            return Err(invalid(format!(
                "the rate may change at most {STEPS_MAX} times"
            )));
        }
        if self
            .steps
            .iter()
            .any(|step| !(1..=RATE_MAX).contains(&step.rate))
        {
            return Err(invalid(format!(
                "the rate of a step must be 1 to {RATE_MAX} packets/s"
            )));
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
        if self.burst.is_some_and(|burst| !(1..=256).contains(&burst)) {
            return Err(invalid("the burst must be 1 to 256 packets"));
        }
        if !(1..=4096).contains(&self.flows) {
            return Err(invalid("the number of flows must be 1 to 4096"));
        }
        let first = self.source_port.unwrap_or(DEFAULT_SOURCE_PORT);
        if first == 0 || u32::from(first) + u32::from(self.flows) > 65536 {
            return Err(invalid(format!(
                "{} flows from source port {first}: ports end at 65535 and begin at 1",
                self.flows
            )));
        }
        let families = [self.source, self.spoof.map(|prefix| prefix.address())];
        if families
            .into_iter()
            .flatten()
            .any(|address| address.is_ipv4() != self.destination.is_ipv4())
        {
            return Err(invalid("source and destination must be of one IP version"));
        }
        if self.spoof.is_some() && self.kind == SenderKind::Socket {
            return Err(invalid(
                "a socket cannot vary its source address: use the skb or the frame sender",
            ));
        }
        if self.destination.port() == 0 {
            return Err(invalid("the destination port must not be 0"));
        }
        Ok(())
    }
}

/// First source port when none is asked for: the first ephemeral one
/// (RFC 6335 §6).
pub(crate) const DEFAULT_SOURCE_PORT: u16 = 49152;

/// What a closed-loop client does between replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Asks the socket again and again: no wake-up in the measured time, one
    /// processor kept busy.
    #[default]
    Spin,
    /// Sleeps until a reply comes, as an ordinary client does; its wake-up is
    /// part of the measured time.
    Block,
}

/// A closed loop of requests to an echo service, over a kernel UDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingSpec {
    /// The echo service.
    pub destination: SocketAddr,
    /// Local address and port to use. `None`: the kernel's choice.
    #[serde(default)]
    pub source: Option<SocketAddr>,
    /// Requests in flight, 1…[`OUTSTANDING_MAX`]. Payloads under 8 bytes hold
    /// only so many numbers: at most 1 with 0 bytes, 128 with 1 byte.
    #[serde(default = "one")]
    pub outstanding: u16,
    /// Bytes of payload, 0…[`PAYLOAD_MAX`]; the first eight (or fewer) number
    /// the request. A late reply to a 0-byte request cannot be told from the
    /// reply to the next.
    pub payload: u16,
    /// A request unanswered for this long is counted lost, and a new one sent.
    /// 10 µs to 60 s.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Least time between two requests of one of the places in flight. Zero:
    /// the next request follows the reply at once.
    #[serde(default, with = "seconds")]
    pub interval: Duration,
    /// What to do between replies.
    #[serde(default)]
    pub wait: Wait,
}

impl PingSpec {
    /// One 8-byte request at a time, spinning, lost after 100 ms.
    pub fn new(destination: SocketAddr) -> Self {
        PingSpec {
            destination,
            source: None,
            outstanding: 1,
            payload: 8,
            timeout: Duration::from_millis(100),
            interval: Duration::ZERO,
            wait: Wait::Spin,
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        if self.payload > PAYLOAD_MAX {
            return Err(invalid(format!(
                "the payload must be 0 to {PAYLOAD_MAX} bytes"
            )));
        }
        let outstanding_max = match self.payload {
            0 => 1,
            // Half of the numbers, so that a late reply seldom fits a new request.
            1 => 128,
            _ => OUTSTANDING_MAX,
        };
        if !(1..=outstanding_max).contains(&self.outstanding) {
            return Err(invalid(format!(
                "requests in flight with {} bytes of payload must be 1 to {outstanding_max}",
                self.payload
            )));
        }
        if !(Duration::from_micros(10)..=Duration::from_secs(60)).contains(&self.timeout) {
            return Err(invalid("the timeout must be 10 µs to 60 s"));
        }
        if self.interval > DURATION_MAX {
            return Err(invalid("the interval must be at most an hour"));
        }
        if self.destination.port() == 0 {
            return Err(invalid("the destination port must not be 0"));
        }
        if self
            .source
            .is_some_and(|source| source.is_ipv4() != self.destination.is_ipv4())
        {
            return Err(invalid("source and destination must be of one IP version"));
        }
        Ok(())
    }
}

/// A whole load: a blast, a closed loop, or both on one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The open-loop stream.
    #[serde(default)]
    pub blast: Option<BlastSpec>,
    /// The closed loop.
    #[serde(default)]
    pub ping: Option<PingSpec>,
    /// Time before measuring begins; the load is already on.
    #[serde(default, with = "seconds")]
    pub warm_up: Duration,
    /// Time measured, over zero; with the warm-up at most [`DURATION_MAX`].
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Processor to run on. `None`: wherever the caller may run.
    #[serde(default)]
    pub cpu: Option<usize>,
}

impl LoadSpec {
    /// Checks every range, those of the parts included.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        if self.blast.is_none() && self.ping.is_none() {
            return Err(invalid("a load needs a blast or a ping"));
        }
        if self.duration.is_zero() || self.duration.saturating_add(self.warm_up) > DURATION_MAX {
            return Err(invalid(
                "the duration must be over zero and, with the warm-up, at most an hour",
            ));
        }
        self.blast.as_ref().map_or(Ok(()), BlastSpec::check)?;
        self.ping.as_ref().map_or(Ok(()), PingSpec::check)
    }
}

fn one() -> u16 {
    1
}

/// An error about what the caller asked for.
pub(crate) fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
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
mod tests {
    use super::*;

    fn blast() -> BlastSpec {
        BlastSpec::new(SenderKind::Skb, "10.0.0.2:9".parse().unwrap())
    }

    #[test]
    fn a_spec_survives_json() {
        let spec = LoadSpec {
            blast: Some(BlastSpec {
                destination_mac: Some("02:00:00:00:00:01".parse().unwrap()),
                spoof: Some("10.1.2.3/16".parse().unwrap()),
                rate: Some(1000),
                ..blast()
            }),
            ping: Some(PingSpec::new("[fd00::1]:7".parse().unwrap())),
            warm_up: Duration::from_millis(100),
            duration: Duration::from_millis(1500),
            cpu: Some(0),
        };
        let json = serde_json::to_string(&spec).unwrap();
        assert!(json.contains(r#""duration":1.5"#), "{json}");
        assert!(json.contains(r#""spoof":"10.1.0.0/16""#), "{json}");
        assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let spec: LoadSpec = serde_json::from_str(
            r#"{"blast":{"kind":"skb","destination":"10.0.0.2:9","payload":14},"duration":1}"#,
        )
        .unwrap();
        assert_eq!(spec.blast, Some(blast()));
        assert!(spec.check().is_ok());
    }

    #[test]
    fn ranges_are_checked() {
        type Change = fn(&mut BlastSpec);
        let step = |milliseconds, rate| RateStep {
            after: Duration::from_millis(milliseconds),
            rate,
        };
        let mut steps = BlastSpec {
            steps: vec![step(10, 5), step(20, 1)],
            ..blast()
        };
        assert!(steps.check().is_ok());
        steps.steps.push(step(20, 7));
        assert!(steps.check().is_err(), "two at one time");
        let bad: [Change; 12] = [
            |b| b.payload = 1473,
            |b| b.rate = Some(0),
            |b| b.burst = Some(257),
            |b| b.flows = 0,
            |b| (b.flows, b.source_port) = (2, Some(65535)),
            |b| b.source = Some("::1".parse().unwrap()),
            |b| b.spoof = Some("fd00::/64".parse().unwrap()),
            |b| (b.kind, b.spoof) = (SenderKind::Socket, Some("10.0.0.0/8".parse().unwrap())),
            |b| b.destination.set_port(0),
            |b| {
                b.steps = vec![RateStep {
                    after: Duration::ZERO,
                    rate: 0,
                }];
            },
            |b| {
                b.packets = Some(1);
                b.steps = vec![RateStep {
                    after: Duration::ZERO,
                    rate: 1,
                }];
            },
            |b| {
                b.steps = (0..=STEPS_MAX as u64)
                    .map(|after| RateStep {
                        after: Duration::from_secs(after),
                        rate: 1,
                    })
                    .collect();
            },
        ];
        assert!(blast().check().is_ok());
        for (number, change) in bad.iter().enumerate() {
            let mut spec = blast();
            change(&mut spec);
            let error = spec.check().expect_err(&format!("case {number}"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn the_duration_is_bounded() {
        let mut spec = LoadSpec {
            blast: Some(blast()),
            ping: None,
            warm_up: Duration::ZERO,
            duration: DURATION_MAX,
            cpu: None,
        };
        assert!(spec.check().is_ok());
        spec.warm_up = Duration::from_nanos(1);
        assert!(spec.check().is_err());
        spec.duration = Duration::ZERO;
        assert!(spec.check().is_err());
        spec.duration = Duration::MAX;
        assert!(spec.check().is_err());
    }

    #[test]
    fn short_payloads_number_few_requests() {
        let mut ping = PingSpec::new("10.0.0.2:7".parse().unwrap());
        for (payload, most) in [(0, 1), (1, 128), (2, OUTSTANDING_MAX)] {
            (ping.payload, ping.outstanding) = (payload, most);
            assert!(ping.check().is_ok());
            ping.outstanding += 1;
            assert!(ping.check().is_err());
        }
    }
}
