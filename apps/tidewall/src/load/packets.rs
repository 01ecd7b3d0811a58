//! `tidewall load udp` and `tidewall load syn-flood`: the packets of `tidewall blast`,
//! with the options of a load.

use std::net::{IpAddr, SocketAddr};

use tidewall_load::{BlastSpec, LoadSpec, Prefix, SenderKind, SourceOrder};

use super::{Load, Run};
use crate::end::{Outcome, check_interface};
use crate::units::{self, Rate};

/// Options of all packet loads, including `tidewall blast`.
#[derive(clap::Args)]
pub struct Packets {
    /// Interface to send through [default: the one to which the kernel routes]
    #[arg(short = 'I', long, value_name = "IF")]
    interface: Option<String>,
    /// Destination address and port
    #[arg(long, value_name = "IP:PORT", value_parser = units::address::<SocketAddr>)]
    pub to: SocketAddr,
    /// Packets per second: 300000, 300k, 1.2M, or max
    #[arg(short = 'R', long, value_name = "N", default_value = "1000", value_parser = units::rate)]
    rate: Rate,
    /// How packets are made
    #[arg(long, value_enum, default_value_t = SenderKind::Skb)]
    sender: SenderKind,
    /// Vary the source address within a prefix such as 10.1.0.0/16 (veths inside a
    /// namespace and lo only)
    #[arg(long, value_name = "PREFIX")]
    spoof: Option<Prefix>,
    /// Go through the prefix from its lowest address up instead of pseudo-randomly
    #[arg(long, requires = "spoof")]
    in_order: bool,
    /// Source address [default: the kernel's choice]
    #[arg(long, value_name = "IP", value_parser = units::address::<IpAddr>)]
    source: Option<IpAddr>,
    /// Number of flows, distinguished by source port, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: u16,
    /// Most packets sent back to back, 1 to 256 [default: 100 µs worth, at most 32; of
    /// SYN segments 250 µs, at most 128]
    #[arg(long, value_name = "N")]
    burst: Option<u16>,
    /// Allow interfaces other than lo and veths inside a network namespace
    #[arg(long)]
    allow_any_interface: bool,
}

impl Packets {
    /// Returns datagrams with this many bytes of payload, or SYN segments.
    pub fn blast(&self, payload: Option<u16>) -> BlastSpec {
        BlastSpec {
            interface: self.interface.clone(),
            source: self.source,
            flows: self.flows,
            spoof: self.spoof,
            order: match self.in_order {
                true => SourceOrder::Ascending,
                false => SourceOrder::Scattered,
            },
            rate: self.rate.0,
            burst: self.burst,
            allow_any_interface: self.allow_any_interface,
            ..match payload {
                None => BlastSpec::syn(self.sender, self.to),
                Some(payload) => BlastSpec {
                    payload,
                    ..BlastSpec::new(self.sender, self.to)
                },
            }
        }
    }

    /// Rejects a missing interface before anything begins.
    pub fn check(&self) -> Outcome {
        self.interface.as_deref().map_or(Ok(()), check_interface)
    }
}

/// Send paced UDP datagrams to a port, in an open loop: a blast.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall load udp --to 127.0.0.1:9 --sender socket --rate 10k\n  \
    tidewall load udp --interface tw-a --to 10.77.0.2:9 --rate max --sender frame --for 2s\n\n\
    Senders: skb sends through AF_XDP, frame injects XDP frames as from a NIC (veth only), socket is \
    sendmmsg and needs no privilege. `tidewall blast --help` has more; say which one a figure used.\n\
    Exit codes: 0 sent; 1 sending failed; 2 it could not begin."
)]
pub struct Udp {
    #[command(flatten)]
    packets: Packets,
    /// Bytes of payload, 0 to 1472 (1452 under IPv6)
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 14)]
    size: u16,
    #[command(flatten)]
    run: Run,
}

impl Load for Udp {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        spec.blast = Some(self.packets.blast(Some(self.size)));
        self.packets.check()
    }

    fn name(&self) -> String {
        format!("UDP at {}", self.packets.to)
    }
}

/// Send paced TCP SYN segments that ask for a connection and never continue, as hping
/// --syn.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load syn-flood --interface tw-a --to 10.77.0.2:81 --rate 400k --spoof 10.78.0.0/16\n  \
    tidewall load syn-flood --interface tw-a --to 10.77.0.2:81 --rate max --sender frame --for 2s\n\n\
    The host that the source address belongs to answers a SYN-ACK by a reset, which frees the server's \
    memory: spoof a prefix that nobody has.\n\
    Exit codes: 0 sent; 1 sending failed; 2 it could not begin.")]
pub struct SynFlood {
    #[command(flatten)]
    packets: Packets,
    #[command(flatten)]
    run: Run,
}

impl Load for SynFlood {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        spec.blast = Some(self.packets.blast(None));
        self.packets.check()
    }

    fn name(&self) -> String {
        format!("SYN flood at {}", self.packets.to)
    }
}
