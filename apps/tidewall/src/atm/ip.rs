//! `tidewall atm ip`: a kernel interface whose packets travel over circuits.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipnet::Ipv4Net;
use tidewall::{Circuit, Nsap};
use tidewall_atm::ip::{Config, HEADER_LEN, MTU_DEFAULT, Neighbour};
use tidewall_service::ip_over_atm::IpOverAtm;
use tidewall_wire::atm::aal5::{PAYLOAD_MAX, TRAILER_LEN};
use tidewall_wire::atm::arp::Number;
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, pseudowire};

use super::circuit;
use super::link::Link;
use crate::end::{Failure, Outcome, check_interface, say_line};
use crate::units;

/// How often the command checks whether to end.
const LOOK: Duration = Duration::from_millis(100);

/// Carry IP over circuits: an interface for any program of this host
///
/// Makes a tun interface whose IPv4 packets go over circuits, in AAL5 behind LLC/SNAP
/// (RFC 2225). InATMARP finds the host at the other end of a permanent circuit, if it is
/// a host of the interface's subnetwork; otherwise give it as 0.100=ADDRESS. With
/// --number and --arp-server, calls set up the circuits. One host of the subnetwork is
/// the server, and the others register there. A host with a packet for another asks the
/// server for its number and calls it. When the command ends, for whatever reason, the
/// interface disappears with its address and routes.
#[derive(clap::Args)]
#[command(after_help = "Examples, on two hosts of a link:\n  \
    tidewall atm ip --interface eth1 --next-hop 10.0.0.2 --address 10.9.0.1/24 --circuit 0.100\n  \
    tidewall atm ip --interface eth1 --next-hop 10.0.0.1 --address 10.9.0.2/24 --circuit 0.100\n  \
    ping 10.9.0.2\n\n\
    By calls, over a switch that signals (tidewall atm switch --help); the first is the server:\n  \
    tidewall atm ip --interface eth1 --next-hop 10.0.1.1 --address 10.9.0.1/24 --number 470001…00 --server\n  \
    tidewall atm ip --interface eth1 --next-hop 10.0.2.1 --address 10.9.0.2/24 --number 470002…00 --arp-server 470001…00\n\n\
    A network behind a neighbour: --route 10.20.0.0/16=10.9.0.2, and for the kernel\n  \
    ip route add 10.20.0.0/16 dev atm0\n\n\
    Exit codes: 0 ended by a signal; 1 the device failed; 2 it could not begin.")]
pub struct Arguments {
    #[command(flatten)]
    link: Link,
    /// The new interface's address and the prefix of the subnetwork
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    address: Ipv4Net,
    /// A permanent circuit, and the address at its other end if that does not answer
    /// InATMARP; may be repeated
    #[arg(long = "circuit", value_name = "VPI.VCI[=ADDRESS]", required_unless_present = "number", value_parser = end)]
    circuits: Vec<(Circuit, Option<Ipv4Addr>)>,
    /// Packets to a prefix go to this neighbour; the longest match wins
    #[arg(long = "route", value_name = "PREFIX=ADDRESS", value_parser = route)]
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Name of the new interface
    #[arg(long, value_name = "NAME", default_value = "atm0")]
    name: String,
    /// Bytes of the longest packet [default: the most that fits into a frame of the
    /// interface, at most 9180]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..=i64::from(MTU_MAX)))]
    mtu: Option<u16>,
    /// Register with this ATMARP server, and ask it for neighbours' numbers
    #[arg(
        long,
        value_name = "NSAP",
        requires = "number",
        conflicts_with = "server"
    )]
    arp_server: Option<Nsap>,
    /// Answer ATMARP requests for the neighbours that have registered their ATM addresses
    #[arg(long)]
    server: bool,
    /// Release circuits of calls that have carried no packet for this long
    #[arg(long, value_name = "TIME", default_value = "20m", value_parser = units::duration)]
    idle: Duration,
}

/// A packet and its LLC header are one payload.
const MTU_MAX: u16 = (PAYLOAD_MAX - HEADER_LEN) as u16;

/// Parses `VPI.VCI[=ADDRESS]`.
fn end(text: &str) -> Result<(Circuit, Option<Ipv4Addr>), String> {
    let Some((name, address)) = text.split_once('=') else {
        return Ok((circuit(text)?, None));
    };
    let address = address.parse().map_err(|error| format!("{error}"))?;
    Ok((circuit(name)?, Some(address)))
}

/// Parses `PREFIX=ADDRESS`.
fn route(text: &str) -> Result<(Ipv4Net, Ipv4Addr), String> {
    let parts = text.split_once('=');
    let (prefix, by) = parts.ok_or("not a route such as 10.20.0.0/16=10.9.0.2")?;
    let prefix: Ipv4Net = prefix.parse().map_err(|error| format!("{error}"))?;
    Ok((prefix, by.parse().map_err(|error| format!("{error}"))?))
}

/// Returns the longest packet that one frame carries on an interface of this MTU, or RFC
/// 2225's default.
fn mtu_of(device: usize) -> u16 {
    let cells = device.saturating_sub(pseudowire::HEADER_LEN) / CELL_PAYLOAD_LEN;
    let packet = (cells * CELL_PAYLOAD_LEN).saturating_sub(TRAILER_LEN + HEADER_LEN);
    u16::try_from(packet)
        .unwrap_or(MTU_DEFAULT)
        .min(MTU_DEFAULT)
}

pub fn run(arguments: &Arguments, stop: &AtomicBool) -> Outcome {
    let Arguments {
        link,
        address,
        name,
        ..
    } = arguments;
    let interface = &link.interface;
    check_interface(interface)?;
    let opening = |error| Failure::io(&format!("opening {interface}"), &error);
    let device = tidewall_sys::interface::mtu(interface).map_err(opening)?;
    let mtu = arguments.mtu.unwrap_or_else(|| mtu_of(device));
    let stack = link.open()?;
    let config = Config {
        address: address.addr(),
        prefix_len: address.prefix_len(),
        number: link.number.map_or(Number::None, Number::Nsap),
        server: arguments.server,
        asks: arguments.arp_server,
        idle: arguments.idle,
    };
    let mut served = IpOverAtm::open(&stack, name, mtu, config)
        .map_err(|error| Failure::io(&format!("making {name}"), &error))?;
    for (circuit, neighbour) in &arguments.circuits {
        let what = format!("opening circuit {circuit} of {interface}");
        let added = served.add(*circuit, *neighbour);
        added.map_err(|error| Failure::io(&what, &error))?;
    }
    for (prefix, by) in &arguments.routes {
        let added = served
            .subnetwork()
            .add_route(prefix.addr(), prefix.prefix_len(), *by);
        added.map_err(|error| Failure::usage(error.to_string()))?;
    }
    if let Some(number) = arguments.link.number {
        let what = format!("taking calls to {number} by {interface}");
        let listens = served.listen(number);
        listens.map_err(|error| Failure::io(&what, &error))?;
    }
    let calls = match (link.number, arguments.arp_server) {
        (None, _) => String::new(),
        (Some(number), None) => format!(", calls to {number}"),
        (Some(number), Some(server)) => format!(", calls to {number}, server {server}"),
    };
    say_line(&format!(
        "{name}: {address}, MTU {mtu}, {} circuits of {interface}{calls}; Ctrl-C ends",
        arguments.circuits.len()
    ))?;
    let mut known: Vec<Neighbour> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match served.turn(LOOK) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => other.map_err(|error| Failure::io(&format!("serving {name}"), &error))?,
        }
        stack.answer_operator(|request| operate(&mut served, request));
        let now: Vec<Neighbour> = served.subnetwork().neighbours().collect();
        if now != known {
            for changed in now.iter().filter(|it| !known.contains(it)) {
                match changed.address {
                    Some(address) => say_line(&format!("{address} on {}", changed.circuit))?,
                    None => say_line(&format!("nobody known on {}", changed.circuit))?,
                }
            }
            known = now;
        }
    }
    totals(&mut served)
}

/// Adds or removes a permanent circuit by hand.
fn operate(served: &mut IpOverAtm, request: &str) -> Result<String, String> {
    let words: Vec<&str> = request.split_whitespace().collect();
    match words[..] {
        ["add", text] => {
            let (circuit, neighbour) = end(text)?;
            let added = served.add(circuit, neighbour);
            added.map_err(|error| format!("{circuit}: {error}"))?;
            Ok(format!("circuit {circuit} added"))
        }
        ["remove", text] => {
            let circuit = circuit(text)?;
            let removed = served.remove(circuit);
            removed.map_err(|_| format!("{circuit} is no permanent circuit of this interface"))?;
            Ok(format!("circuit {circuit} removed"))
        }
        _ => Err("a circuit of this interface has one end here: VPI.VCI[=ADDRESS]".into()),
    }
}

fn totals(served: &mut IpOverAtm) -> Outcome {
    let (own, of) = (served.counters(), served.subnetwork().counters());
    let counts = [
        ("packets sent", own.sent),
        ("delivered", own.delivered),
        ("calls", own.calls),
        ("arp", of.arp),
        ("dropped-not-reached", own.not_reached),
        ("dropped-no-circuit", of.no_circuit),
        ("dropped-not-ipv4", own.not_ipv4),
        ("dropped-not-sent", own.not_sent),
        ("dropped-malformed", of.malformed),
        ("dropped-refused", own.refused),
        ("arp-conflicts", of.conflicts),
        ("arp-unanswered", of.unanswered),
    ];
    // Counters at zero are left out, except the first two.
    let mut shown = counts.iter().enumerate();
    let shown = shown.by_ref().filter(|(place, it)| *place < 2 || it.1 > 0);
    let shown = shown.map(|(_, (name, count))| format!("{name} {count}"));
    say_line(&shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_circuits_and_routes_is_read() {
        let of = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let circuit = Circuit { vpi: 0, vci: 100 };
        assert_eq!(end("0.100"), Ok((circuit, None)));
        assert_eq!(end("0.100=10.9.0.2"), Ok((circuit, Some(of("10.9.0.2")))));
        let prefix = "10.20.0.0/16".parse().unwrap();
        assert_eq!(route("10.20.0.0/16=10.9.0.2"), Ok((prefix, of("10.9.0.2"))));
        for wrong in ["0.100=", "0.100=host", "100"] {
            assert!(end(wrong).is_err(), "{wrong}");
        }
        for wrong in ["10.20.0.0/16", "10.20.0.0/33=10.9.0.2", "10.20.0.0/16="] {
            assert!(route(wrong).is_err(), "{wrong}");
        }
    }

    /// 31 cells in 1,500 bytes, of which AAL5 and LLC take 8 bytes each.
    #[test]
    fn the_mtu_is_what_a_frame_carries() {
        assert_eq!(mtu_of(1500), 1472);
        assert_eq!(mtu_of(9000), 8960);
        assert_eq!(mtu_of(65_535), 9180);
        assert_eq!(mtu_of(10), 0);
    }
}
