//! `tidewall atm`: permanent virtual circuits by hand, a switch of their cells, and IP
//! over them.

mod config;
mod ip;
mod switch;

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde::Serialize;
use tidewall_socket::{AtmOptions, AtmSocket, Circuit, EmbeddedConfig, Stack};

use crate::end::{Failure, Outcome, check_interface, say_json, say_line, stop_flag};
use crate::units::{self, nanoseconds};

/// How often a command that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of a payload that are shown.
const SHOWN: usize = 16;

/// Send, receive and ping on permanent virtual circuits, and switch their cells: AAL5 over ATM in Ethernet (RFC 4717).
///
/// Both ends name the same circuit, VPI.VCI, and each the other's address, which is found as
/// any neighbour on the link. The interface's queues are taken for the time of the command.
#[derive(clap::Args)]
#[command(after_help = "Examples, on two hosts of a link:\n  \
    tidewall atm receive --interface eth1 --next-hop 10.0.0.1 --circuit 0.100\n  \
    tidewall atm send --interface eth1 --next-hop 10.0.0.2 --circuit 0.100 --size 9180 --count 10\n  \
    tidewall atm ping --interface eth1 --next-hop 10.0.0.2 --circuit 0.100\n\n\
    Loopback cells are answered by a program that receives on the circuit.\n\
    Exit codes: 0 done; 1 nothing was answered, or sending failed; 2 it could not begin.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send payloads
    Send(SendArguments),
    /// Receive payloads, and say of each how long it is and how it begins, until Ctrl-C
    Receive(ReceiveArguments),
    /// Send loopback cells to the circuit's other end (OAM F5, I.610), and time their return
    Ping(PingArguments),
    Switch(switch::Arguments),
    Ip(ip::Arguments),
}

#[derive(clap::Args)]
struct End {
    /// The interface that the circuit leaves by
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Address of the neighbour that the circuit leads to: a host, or a switch of cells
    #[arg(long, value_name = "ADDRESS")]
    next_hop: IpAddr,
    /// The circuit: virtual path 0 to 14, virtual channel 0 to 65535
    #[arg(long, value_name = "VPI.VCI", value_parser = circuit)]
    circuit: Circuit,
    /// Print each line as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct SendArguments {
    #[command(flatten)]
    end: End,
    /// What to send
    #[arg(long, conflicts_with = "size")]
    text: Option<String>,
    /// Bytes of each payload, which counts up from its number, if no text is given
    #[arg(long, value_name = "BYTES", default_value_t = 40, value_parser = payload_length())]
    size: u16,
    /// Payloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// From one payload to the next
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    interval: Duration,
}

#[derive(clap::Args)]
struct ReceiveArguments {
    #[command(flatten)]
    end: End,
    /// End after so many payloads
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Bytes of the longest payload that is taken
    #[arg(long, value_name = "BYTES", default_value_t = u16::MAX, value_parser = payload_length())]
    longest: u16,
}

#[derive(clap::Args)]
struct PingArguments {
    #[command(flatten)]
    end: End,
    /// Cells
    #[arg(long, value_name = "N", default_value_t = 4)]
    count: u64,
    /// From one cell to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    interval: Duration,
    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    timeout: Duration,
}

fn payload_length() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

/// Reads `VPI.VCI`.
fn circuit(text: &str) -> Result<Circuit, String> {
    let read = || {
        let (vpi, vci) = text.split_once('.')?;
        Some(Circuit {
            vpi: vpi.parse().ok()?,
            vci: vci.parse().ok()?,
        })
    };
    read().ok_or_else(|| "not a circuit such as 0.100".to_owned())
}

impl End {
    /// Opens the circuit, with payloads of so many bytes.
    fn open(&self, longest: usize) -> Result<AtmSocket, Failure> {
        check_interface(&self.interface)?;
        let opening = |error| Failure::io(&format!("opening {}", self.interface), &error);
        let stack = Stack::embedded(EmbeddedConfig::new(&self.interface)).map_err(opening)?;
        for warning in stack.warnings() {
            eprintln!("tidewall: {warning}");
        }
        stack.attach_atm(self.next_hop).map_err(opening)?;
        let options = AtmOptions {
            send_max: longest,
            receive_max: longest,
            ..AtmOptions::default()
        };
        AtmSocket::bind_with(&stack, self.circuit, options).map_err(|error| {
            let what = format!("opening circuit {} of {}", self.circuit, self.interface);
            match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    Failure::usage(format!("{what}: 0.0 and VPIs over 14 are none"))
                }
                _ => Failure::io(&what, &error),
            }
        })
    }

    fn say(&self, text: &str, value: &impl Serialize) -> Outcome {
        match self.json {
            true => say_json(value),
            false => say_line(text),
        }
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let stop = stop_flag()?;
    match &arguments.command {
        Command::Send(arguments) => send(arguments, &stop),
        Command::Receive(arguments) => receive(arguments, &stop),
        Command::Ping(arguments) => ping(arguments, &stop),
        Command::Switch(arguments) => switch::run(arguments),
        Command::Ip(arguments) => ip::run(arguments, &stop),
    }
}

/// Waits for the time of the next; false when it is to end.
fn wait_until(next: Instant, stop: &AtomicBool) -> bool {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if stop.load(Ordering::Relaxed) || left.is_zero() {
            return !stop.load(Ordering::Relaxed);
        }
        thread::sleep(left.min(LOOK));
    }
}

#[derive(Serialize)]
struct Sent {
    payloads: u64,
    bytes: u64,
}

fn send(arguments: &SendArguments, stop: &AtomicBool) -> Outcome {
    let end = &arguments.end;
    let length = match &arguments.text {
        Some(text) => text.len(),
        None => arguments.size.into(),
    };
    if !(1..=usize::from(u16::MAX)).contains(&length) {
        return Err(Failure::usage(format!(
            "a payload has 1 to 65535 bytes, and this text {length}"
        )));
    }
    let socket = end.open(length)?;
    let mut sent = Sent {
        payloads: 0,
        bytes: 0,
    };
    let began = Instant::now();
    while sent.payloads < arguments.count {
        let number = u32::try_from(sent.payloads).unwrap_or(u32::MAX);
        if !wait_until(began + arguments.interval.saturating_mul(number), stop) {
            break;
        }
        let payload = match &arguments.text {
            Some(text) => text.as_bytes().to_vec(),
            None => (0..length)
                .map(|n| (n as u64 + sent.payloads) as u8)
                .collect(),
        };
        let failed = |error| Failure::io(&format!("sending to {}", end.next_hop), &error);
        sent.bytes += socket.send(&payload).map_err(failed)? as u64;
        sent.payloads += 1;
    }
    let Sent { payloads, bytes } = sent;
    let text = format!(
        "sent {payloads} payloads ({bytes} bytes) on {}",
        end.circuit
    );
    end.say(&text, &sent)
}

#[derive(Serialize)]
struct Received {
    bytes: usize,
    begins: String,
    user_to_user: u8,
    congested: bool,
    low_priority: bool,
}

fn receive(arguments: &ReceiveArguments, stop: &AtomicBool) -> Outcome {
    let end = &arguments.end;
    let socket = end.open(arguments.longest.into())?;
    let failed = |error| Failure::io(&format!("receiving on {}", end.circuit), &error);
    socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let ready = format!(
        "circuit {} of {}, next hop {}",
        end.circuit, end.interface, end.next_hop
    );
    if !end.json {
        say_line(&ready)?;
    }
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let mut came = Vec::new();
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(64);
        let got = socket.recv_batch(most, |received| {
            let shown = received.payload.iter().take(SHOWN);
            came.push(Received {
                bytes: received.payload.len(),
                begins: shown.fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                }),
                user_to_user: received.user_to_user,
                congested: received.congested,
                low_priority: received.low_priority,
            });
        });
        match got {
            Ok(_) => {}
            Err(error)
                if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted]
                    .contains(&error.kind()) => {}
            Err(error) => return Err(failed(error)),
        }
        left -= came.len() as u64;
        for received in came {
            let more = if received.bytes > SHOWN { "…" } else { "" };
            let text = format!("{} bytes: {}{more}", received.bytes, received.begins);
            end.say(&text, &received)?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Pinged {
    cell: u64,
    /// `None`: no answer came.
    nanoseconds: Option<u64>,
}

fn ping(arguments: &PingArguments, stop: &AtomicBool) -> Outcome {
    let end = &arguments.end;
    let socket = end.open(AtmOptions::default().receive_max)?;
    // Of receiving, not of `ping`.
    let failed = |error| Failure::io(&format!("receiving on {}", end.circuit), &error);
    socket.set_nonblocking(true).map_err(failed)?;
    let (mut sent, mut answered) = (0, 0);
    let began = Instant::now();
    while sent < arguments.count {
        let number = u32::try_from(sent).unwrap_or(u32::MAX);
        if !wait_until(began + arguments.interval.saturating_mul(number), stop) {
            break;
        }
        sent += 1;
        // Payloads that nobody takes would use up the circuit's credit, and an answer be lost.
        match socket.recv_batch(usize::from(u16::MAX), |_| {}) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed(error)),
            _ => {}
        }
        let (text, time) = match socket.ping(arguments.timeout) {
            Ok(time) => {
                answered += 1;
                let nanoseconds_taken = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                let text = nanoseconds(nanoseconds_taken as f64);
                (text, Some(nanoseconds_taken))
            }
            Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
                ("no answer".to_owned(), None)
            }
            // It is to end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
            Err(error) => {
                let what = format!("a loopback cell to {}", end.next_hop);
                return Err(Failure::io(&what, &error));
            }
        };
        let pinged = Pinged {
            cell: sent,
            nanoseconds: time,
        };
        end.say(&format!("cell {sent}: {text}"), &pinged)?;
    }
    if !end.json {
        say_line(&format!("{sent} cells sent, {answered} answered"))?;
    }
    if answered == 0 {
        return Err(Failure::answer(format!(
            "no answer on circuit {}: is a program receiving on it at {}?",
            end.circuit, end.next_hop
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_is_two_numbers() {
        assert_eq!(circuit("1.100"), Ok(Circuit { vpi: 1, vci: 100 }));
        for wrong in ["", "100", "1.", "-1.5", "1.2.3", "0.65536"] {
            assert!(circuit(wrong).is_err(), "{wrong}");
        }
    }
}
