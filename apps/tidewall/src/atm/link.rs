//! The link that a command's circuits use, and how to open a circuit: by its name, or by
//! calling a number.

use std::io;
use std::net::IpAddr;

use serde::Serialize;
use tidewall::{
    AtmControl, AtmOptions, AtmSocket, CallOptions, Circuit, EmbeddedConfig, Nsap, Side, Stack,
};

use super::circuit;
use crate::end::{Failure, Outcome, check_interface, say_json, say_line};
use crate::units;

/// An ATM interface.
#[derive(clap::Args)]
pub struct Link {
    /// Interface that carries the circuit
    #[arg(long, value_name = "IF")]
    pub interface: String,
    /// Address of the neighbour at the other end of the circuit: a host, or a cell switch
    #[arg(long, value_name = "ADDRESS", value_parser = units::address::<IpAddr>)]
    pub next_hop: IpAddr,
    /// This host's ATM address, for calls (signalling on circuit 0.5, UNI 3.1)
    #[arg(long, value_name = "NSAP")]
    pub number: Option<Nsap>,
    /// Name the circuits of calls, as a switch does: required of one of two hosts linked
    /// directly
    #[arg(long, requires = "number")]
    pub network_side: bool,
}

/// How to print lines.
#[derive(clap::Args)]
pub struct Lines {
    /// Print each line as JSON
    #[arg(long)]
    pub json: bool,
}

impl Lines {
    pub fn say(&self, text: &str, value: &impl Serialize) -> Outcome {
        match self.json {
            true => say_json(value),
            false => say_line(text),
        }
    }
}

/// The other end of a circuit.
#[derive(clap::Args)]
pub struct Peer {
    #[command(flatten)]
    pub link: Link,
    /// The circuit: virtual path 0 to 14, virtual channel 0 to 65535
    #[arg(long, value_name = "VPI.VCI", value_parser = circuit, required_unless_present = "to")]
    circuit: Option<Circuit>,
    /// Call this number instead; needs --number
    #[arg(
        long,
        value_name = "NSAP",
        requires = "number",
        conflicts_with = "circuit"
    )]
    to: Option<Nsap>,
    #[command(flatten)]
    pub lines: Lines,
}

impl Link {
    /// Takes the interface, and signals on it if the command has a number.
    pub fn open(&self) -> Result<Stack, Failure> {
        let interface = &self.interface;
        check_interface(interface)?;
        let opening = |error| Failure::io(&format!("opening {interface}"), &error);
        let stack = Stack::embedded(EmbeddedConfig::new(interface)).map_err(opening)?;
        for warning in stack.warnings() {
            eprintln!("tidewall: {warning}");
        }
        stack.attach_atm(self.next_hop).map_err(opening)?;
        if let Some(number) = self.number {
            let side = match self.network_side {
                true => Side::Network,
                false => Side::User,
            };
            let control = AtmControl { number, side };
            stack.control_atm(control).map_err(opening)?;
        }
        Ok(stack)
    }

    /// Opens a permanent circuit for payloads of at most `longest` bytes.
    pub fn bind(
        &self,
        stack: &Stack,
        circuit: Circuit,
        longest: usize,
    ) -> Result<AtmSocket, Failure> {
        AtmSocket::bind_with(stack, circuit, options(longest)).map_err(|error| {
            let what = format!("opening circuit {circuit} of {}", self.interface);
            match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    Failure::usage(format!("{what}: 0.0 and VPIs over 14 are none"))
                }
                _ => Failure::io(&what, &error),
            }
        })
    }
}

impl Peer {
    /// Opens the circuit or calls, for payloads of at most `longest` bytes.
    pub fn open(&self, longest: usize) -> Result<AtmSocket, Failure> {
        let stack = self.link.open()?;
        if let Some(circuit) = self.circuit {
            return self.link.bind(&stack, circuit, longest);
        }
        // clap requires one of the two.
        let to = self.to.unwrap_or_default();
        let call = CallOptions {
            circuit: options(longest),
            ..CallOptions::default()
        };
        let called = AtmSocket::connect_with(&stack, to, &call);
        called.map_err(|error| refused(&to, self.link.next_hop, &error))
    }

    /// Returns the other end's name for display.
    pub fn name(&self) -> String {
        match (self.circuit, self.to) {
            (Some(circuit), _) => circuit.to_string(),
            (None, to) => to.unwrap_or_default().to_string(),
        }
    }
}

fn options(longest: usize) -> AtmOptions {
    AtmOptions {
        send_max: longest,
        receive_max: longest.max(1),
        ..AtmOptions::default()
    }
}

/// Explains why a call failed, and the remedy.
pub fn refused(to: &Nsap, next_hop: IpAddr, error: &io::Error) -> Failure {
    let why = match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            "nobody has that number (cause 1)\n  is it that of the host there, but for the last byte? \
             see its --number"
        }
        Some(libc::ECONNREFUSED) => {
            "nobody there takes the call, or too many wait\n  begin one: tidewall atm receive --number …"
        }
        Some(libc::EHOSTUNREACH) => {
            "no way, or no circuit there is free (causes 3, 45, 47)\n  \
             see numbers in the switch's file, and its calls: tidewall atm show"
        }
        Some(libc::EHOSTDOWN) => {
            return Failure::answer(format!(
                "calling {to}: the signalling link is down: {next_hop} does not answer on circuit 0.5\n  \
                 it must signal: a port of a switch with signalling = \"network\", or a host with --number \
                 and --network-side"
            ));
        }
        Some(libc::ETIMEDOUT) => {
            "no answer (causes 18, 102)\n  is the host there up? tidewall atm show"
        }
        _ => return Failure::io(&format!("calling {to}"), error),
    };
    Failure::answer(format!("calling {to}: {why}"))
}
