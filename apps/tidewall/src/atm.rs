//! `tidewall atm`: permanent and called virtual circuits by hand, a cell switch, and IP
//! over circuits.

mod config;
mod ip;
mod link;
mod show;
mod switch;

use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde::Serialize;
use tidewall::descriptor::Flags;
use tidewall::readiness::{Events, PollFd};
use tidewall::{AtmListener, AtmOptions, AtmSocket, Circuit, Descriptors, OpenFile};
use tidewall_wire::atm::InvalidCircuit;

use crate::end::{Failure, Outcome, say_line, stop_flag};
use crate::units::{self, nanoseconds};
use link::{Lines, Link, Peer};

/// How often a waiting command checks whether to end.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of each payload shown.
const SHOWN: usize = 16;
/// Payloads taken from one circuit before the next circuit's turn.
const BATCH: usize = 64;
/// Calls waiting to be accepted.
const BACKLOG: usize = 64;

/// Send, receive and ping on virtual circuits, switch their cells, and IP over them: AAL5
/// over ATM in Ethernet (RFC 4717).
///
/// A permanent circuit is named VPI.VCI at both ends. A switched circuit is set up by a
/// call to a number, which a switch leads there. The number is an NSAP of forty
/// hexadecimal digits; the receiver chooses the last two. The other end of the link is
/// given by its address, which is resolved like that of any neighbour. The command owns
/// the interface's queues while it runs.
#[derive(clap::Args)]
#[command(after_help = "Examples, on two hosts of a link:\n  \
    tidewall atm receive --interface eth1 --next-hop 10.0.0.1 --circuit 0.100\n  \
    tidewall atm send --interface eth1 --next-hop 10.0.0.2 --circuit 0.100 --size 9180 --count 10\n  \
    tidewall atm ping --interface eth1 --next-hop 10.0.0.2 --circuit 0.100\n\n\
    By calls, over a switch that signals (tidewall atm switch --help):\n  \
    tidewall atm receive --interface eth1 --next-hop 10.0.2.1 --number 47000502…00\n  \
    tidewall atm send --interface eth1 --next-hop 10.0.1.1 --number 47000501…00 --to 47000502…00\n\n\
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
    /// Receive payloads on a circuit, or of the calls to --number; print the length and
    /// first bytes of each, until Ctrl-C
    Receive(ReceiveArguments),
    /// Send loopback cells to the circuit's other end (OAM F5, I.610), and time their return
    Ping(PingArguments),
    Switch(switch::Arguments),
    Show(show::ShowArguments),
    Pvc(show::PvcArguments),
    Ip(ip::Arguments),
}

#[derive(clap::Args)]
struct SendArguments {
    #[command(flatten)]
    end: Peer,
    /// Text to send
    #[arg(long, conflicts_with = "size")]
    text: Option<String>,
    /// Bytes of each payload without a text; the payload counts up from its number
    #[arg(long, value_name = "BYTES", default_value_t = 40, value_parser = payload_length())]
    size: u16,
    /// Number of payloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// Time between two payloads
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    interval: Duration,
}

#[derive(clap::Args)]
struct ReceiveArguments {
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    lines: Lines,
    /// The circuit: virtual path 0 to 14, virtual channel 0 to 65535
    #[arg(long, value_name = "VPI.VCI", value_parser = circuit, required_unless_present = "number")]
    #[arg(conflicts_with = "number")]
    circuit: Option<Circuit>,
    /// End after this many payloads
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Bytes of the longest payload accepted
    #[arg(long, value_name = "BYTES", default_value_t = u16::MAX, value_parser = payload_length())]
    longest: u16,
}

#[derive(clap::Args)]
struct PingArguments {
    #[command(flatten)]
    end: Peer,
    /// Number of cells
    #[arg(long, value_name = "N", default_value_t = 4)]
    count: u64,
    /// Time between two cells
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    interval: Duration,
    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    timeout: Duration,
}

fn payload_length() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

/// Parses `VPI.VCI`.
fn circuit(text: &str) -> Result<Circuit, String> {
    text.parse()
        .map_err(|error: InvalidCircuit| error.to_string())
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.command {
        Command::Send(arguments) => send(arguments, &*stop_flag()?),
        Command::Receive(arguments) => receive(arguments, &*stop_flag()?),
        Command::Ping(arguments) => ping(arguments, &*stop_flag()?),
        Command::Switch(arguments) => switch::run(arguments),
        Command::Ip(arguments) => ip::run(arguments, &*stop_flag()?),
        Command::Show(arguments) => show::show(arguments),
        Command::Pvc(arguments) => show::pvc(arguments),
    }
}

/// Waits until the next is due; returns false when the command is to end.
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
        let failed = |error| Failure::io(&format!("sending to {}", end.link.next_hop), &error);
        sent.bytes += socket.send(&payload).map_err(failed)? as u64;
        sent.payloads += 1;
    }
    let Sent { payloads, bytes } = sent;
    let text = format!("sent {payloads} payloads ({bytes} bytes) on {}", end.name());
    end.lines.say(&text, &sent)
}

#[derive(Serialize)]
struct Received {
    bytes: usize,
    begins: String,
    user_to_user: u8,
    congested: bool,
    low_priority: bool,
    /// The caller of a call, if it names itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

fn receive(arguments: &ReceiveArguments, stop: &AtomicBool) -> Outcome {
    let link = &arguments.link;
    let stack = link.open()?;
    let longest = arguments.longest.into();
    let failed = |error| Failure::io(&format!("receiving by {}", link.interface), &error);
    let descriptors = Descriptors::new(&stack, u32::from(u16::MAX));
    let mut receiver = Receiver {
        arguments,
        descriptors: &descriptors,
        list: Vec::new(),
        left: arguments.count.unwrap_or(u64::MAX),
    };
    let (first, what): (OpenFile, _) = match (arguments.circuit, link.number) {
        (Some(circuit), _) => {
            let socket = link.bind(&stack, circuit, longest)?;
            (socket.into(), format!("circuit {circuit}"))
        }
        (None, number) => {
            // clap requires one of the two.
            let number = number.unwrap_or_default();
            let options = AtmOptions {
                receive_max: longest,
                ..AtmOptions::default()
            };
            let listener = AtmListener::bind(&stack, number, BACKLOG, options);
            (
                listener.map_err(failed)?.into(),
                format!("calls to {number}"),
            )
        }
    };
    receiver.add(first).map_err(failed)?;
    if !arguments.lines.json {
        let Link {
            interface,
            next_hop,
            ..
        } = link;
        say_line(&format!("{what} of {interface}, next hop {next_hop}"))?;
    }
    while receiver.left > 0 && !stop.load(Ordering::Relaxed) {
        match descriptors.poll(&mut receiver.list, Some(LOOK)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => drop(other.map_err(failed)?),
        }
        receiver.turn()?;
    }
    Ok(())
}

/// A listener, circuits, or both.
struct Receiver<'a> {
    arguments: &'a ReceiveArguments,
    descriptors: &'a Descriptors,
    list: Vec<PollFd>,
    /// Payloads still expected.
    left: u64,
}

impl Receiver<'_> {
    fn add(&mut self, file: OpenFile) -> io::Result<()> {
        let fd = self.descriptors.open(file, Flags::NONBLOCK)?;
        self.list.push(PollFd::new(fd, Events::IN));
        Ok(())
    }

    fn turn(&mut self) -> Outcome {
        let failed = |error: io::Error| Failure::io("receiving", &error);
        let ready = |entry: &&PollFd| entry.returned() != Events::default();
        let ready: Vec<_> = self.list.iter().filter(ready).map(|it| it.fd).collect();
        for fd in ready {
            match &*self.descriptors.file(fd).map_err(failed)? {
                OpenFile::CircuitListener(listener) => self.accept(listener)?,
                OpenFile::Circuit(socket) => {
                    let goes_on = self.take(socket)?;
                    if !goes_on {
                        self.list.retain(|entry| entry.fd != fd);
                        self.descriptors.close(fd).map_err(failed)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: &AtmListener) -> Outcome {
        loop {
            let (socket, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error)
                    if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted]
                        .contains(&error.kind()) =>
                {
                    return Ok(());
                }
                // The call is rejected; others may be accepted.
                Err(error) => {
                    eprintln!("tidewall: a call was not taken: {error}");
                    return Ok(());
                }
            };
            if !self.arguments.lines.json {
                let from = from.map_or("a caller without a number".to_owned(), |it| it.to_string());
                let circuit = socket.circuit().map(|it| it.to_string());
                let circuit = circuit.unwrap_or_default();
                say_line(&format!("call from {from} on circuit {circuit}"))?;
            }
            self.add(socket.into())
                .map_err(|error| Failure::io("taking a call", &error))?;
        }
    }

    /// Takes the payloads waiting on a circuit; returns false at the end of a call.
    fn take(&mut self, socket: &AtmSocket) -> Result<bool, Failure> {
        let mut came = Vec::new();
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(BATCH);
        let from = socket.peer_number().map(|it| it.to_string());
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
                from: from.clone(),
            });
        });
        let ReceiveArguments { link, lines, .. } = self.arguments;
        self.left -= came.len() as u64;
        let ended = came.is_empty() && socket.is_released();
        for received in came {
            let more = if received.bytes > SHOWN { "…" } else { "" };
            let text = format!("{} bytes: {}{more}", received.bytes, received.begins);
            lines.say(&text, &received)?;
        }
        match got {
            // The error with which a call ended is the call's own affair.
            Err(_) if socket.is_released() => Ok(false),
            Err(error)
                if ![io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted]
                    .contains(&error.kind()) =>
            {
                Err(Failure::io(
                    &format!("receiving by {}", link.interface),
                    &error,
                ))
            }
            _ => Ok(!ended),
        }
    }
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
    // Errors of receiving, not of `ping`.
    let failed = |error| Failure::io(&format!("receiving on {}", end.name()), &error);
    socket.set_nonblocking(true).map_err(failed)?;
    let (mut sent, mut answered) = (0, 0);
    let began = Instant::now();
    while sent < arguments.count {
        let number = u32::try_from(sent).unwrap_or(u32::MAX);
        if !wait_until(began + arguments.interval.saturating_mul(number), stop) {
            break;
        }
        sent += 1;
        // Unread payloads would use up the circuit's credit, and an answer would be lost.
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
            // The command is to end.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
            Err(error) => {
                let what = format!("a loopback cell to {}", end.link.next_hop);
                return Err(Failure::io(&what, &error));
            }
        };
        let pinged = Pinged {
            cell: sent,
            nanoseconds: time,
        };
        end.lines.say(&format!("cell {sent}: {text}"), &pinged)?;
    }
    if !end.lines.json {
        say_line(&format!("{sent} cells sent, {answered} answered"))?;
    }
    if answered == 0 {
        return Err(Failure::answer(format!(
            "no answer on circuit {}: is a program receiving on it at {}?",
            end.name(),
            end.link.next_hop
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
