//! `tidewall atm show` lists the circuits and calls of live stacks; `atm pvc` adds and
//! removes their permanent circuits by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use tidewall::control::{self, Operated};
use tidewall::snapshot::{
    CallSnapshot, CellSwitchSnapshot, SocketSnapshot, StackSnapshot, SwitchedEnd,
};

use crate::end::{Failure, Outcome, say_json, say_line};
use crate::stat::{snapshot, stacks};
use crate::table::Table;
use crate::units::count;

/// Show circuits and calls of all live stacks, or of one process: states, VPI and VCI,
/// numbers, counts
///
/// States are those of Q.2931, with the side of the link before them: U10 and N10 are
/// active; U1, U3, N3, N6 and N9 are being set up; U11, U12, N11 and N12 are released. In
/// a switch, each call has two ends.
#[derive(clap::Args)]
pub struct ShowArguments {
    /// Process whose circuits to show [default: all live stacks]
    #[arg(value_name = "PID")]
    process: Option<u32>,
    /// Print JSON, one line per stack
    #[arg(long)]
    json: bool,
}

/// Add, remove and list permanent circuits of a running program: a cell switch, or IP
/// over circuits
///
/// In a switch, an end is INTERFACE/VPI.VCI, as in its file, and a circuit has both
/// directions. A circuit added by hand lasts until SIGHUP makes the switch read its file
/// again. For `tidewall atm ip`, an end is VPI.VCI[=ADDRESS]. Other programs manage their
/// own circuits.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall atm pvc list\n  \
    tidewall atm pvc add 4711 eth1/0.100 eth2/0.200 --priority 0\n  \
    tidewall atm pvc remove 4711 eth1/0.100\n  \
    tidewall atm pvc add 4712 0.101=10.9.0.3\n\n\
    Exit codes: 0 done; 1 the program refused, and why; 2 wrong arguments, or not root.")]
pub struct PvcArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Add a circuit to the program
    Add(Add),
    /// Remove a circuit of the program, with the cells waiting in it
    Remove {
        /// Process of the switch or of `tidewall atm ip`
        #[arg(value_name = "PID")]
        process: u32,
        /// One end of the circuit
        #[arg(value_name = "END")]
        end: String,
    },
    /// List permanent circuits of all live stacks, or of one process
    List(ShowArguments),
}

#[derive(clap::Args)]
struct Add {
    /// Process of the switch or of `tidewall atm ip`
    #[arg(value_name = "PID")]
    process: u32,
    /// An end of the circuit
    #[arg(value_name = "END")]
    end: String,
    /// The other end (switch only)
    #[arg(value_name = "END")]
    to: Option<String>,
    /// The queue, 0 (served first) to 3 (switch only)
    #[arg(long, value_name = "N", requires = "to")]
    priority: Option<usize>,
    /// From the first end to the second only (switch only)
    #[arg(long, requires = "to")]
    one_way: bool,
}

/// The part of a stack that is shown.
#[derive(Serialize)]
struct Shown<'a> {
    process: u32,
    interface: &'a str,
    circuits: Vec<Circuit<'a>>,
    /// Includes calls without a circuit.
    calls: &'a [CallSnapshot],
    switch: Option<&'a CellSwitchSnapshot>,
}

/// A circuit that ends in a stack.
#[derive(Serialize)]
struct Circuit<'a> {
    circuit: &'a str,
    /// `None` for a permanent circuit.
    call: Option<&'a CallSnapshot>,
    received: u64,
    waiting: u32,
    dropped: u64,
}

impl<'a> Shown<'a> {
    fn of(stack: &'a StackSnapshot, only_permanent: bool) -> Self {
        let calls = stack.calls.iter();
        let by_circuit: BTreeMap<&str, &CallSnapshot> = calls
            .filter_map(|call| Some((call.circuit.as_deref()?, call)))
            .collect();
        let circuit = |socket: &'a SocketSnapshot| Circuit {
            circuit: &socket.local,
            call: by_circuit.get(socket.local.as_str()).copied(),
            received: socket.received,
            waiting: socket.occupancy,
            dropped: socket.dropped_full,
        };
        let sockets = stack.sockets.iter();
        // A call whose circuit has no name yet is listed among the calls.
        let circuits = sockets.filter(|it| it.protocol == "aal5" && !it.local.is_empty());
        let circuits = circuits.map(circuit);
        let wanted = |it: &Circuit<'_>| !only_permanent || it.call.is_none();
        Shown {
            process: stack.process,
            interface: &stack.interface,
            circuits: circuits.filter(wanted).collect(),
            calls: if only_permanent { &[] } else { &stack.calls },
            switch: stack.cell_switch.as_ref(),
        }
    }

    fn is_empty(&self) -> bool {
        self.circuits.is_empty() && self.calls.is_empty() && self.switch.is_none()
    }

    fn text(&self) -> String {
        let what = match self.switch {
            Some(_) => "switch of cells",
            None => "circuits",
        };
        let mut text = format!("process {} on {}: {what}\n", self.process, self.interface);
        if !self.circuits.is_empty() {
            let mut table = Table::of(2, "circuit|call|peer|>received|>waiting|>lost");
            for circuit in &self.circuits {
                let call = circuit.call;
                let (state, peer) = match call {
                    Some(call) => (call.state.clone(), call.peer.clone().unwrap_or_default()),
                    None => ("permanent".to_owned(), String::new()),
                };
                table.row([
                    circuit.circuit.to_owned(),
                    state,
                    peer,
                    count(circuit.received),
                    count(circuit.waiting.into()),
                    count(circuit.dropped),
                ]);
            }
            text += &table.text();
        }
        let shown = |call: &&CallSnapshot| {
            let named = call.circuit.as_deref();
            !self.circuits.iter().any(|it| Some(it.circuit) == named)
        };
        for call in self.calls.iter().filter(shown) {
            let from = if call.ours { "to" } else { "from" };
            let _ = writeln!(
                text,
                "  call {from} {}: {} ({})",
                call.peer.as_deref().unwrap_or("a number that is not said"),
                call.state,
                call.held
            );
        }
        if let Some(switch) = self.switch {
            text += &of_switch(switch);
        }
        text
    }
}

fn of_switch(switch: &CellSwitchSnapshot) -> String {
    let mut ports = Table::of(2, "port|mode|signalling|link|>cells wait");
    for port in &switch.ports {
        let link = match (&port.side, port.link_up) {
            (None, _) => "",
            (_, true) => "up",
            (_, false) => "down",
        };
        ports.row([
            port.interface.clone(),
            port.mode.clone(),
            port.side.clone().unwrap_or_default(),
            link.to_owned(),
            count(port.waiting.iter().sum()),
        ]);
    }
    let mut table = Table::of(2, "from|to|by|>priority|>cells");
    for route in &switch.table {
        let by = if route.call { "call" } else { "permanent" };
        table.row([
            route.from.clone(),
            route.to.clone(),
            by.to_owned(),
            route.priority.to_string(),
            count(route.cells),
        ]);
    }
    let mut text = ports.text();
    if !switch.table.is_empty() {
        text += &table.text();
    }
    if !switch.calls.is_empty() {
        let mut calls = Table::of(2, "caller||called|");
        let end = |end: Option<&SwitchedEnd>| {
            end.map_or(String::new(), |end| {
                let circuit = end.circuit.as_deref().unwrap_or("-");
                format!("{}/{circuit} {}", end.interface, end.state)
            })
        };
        for call in &switch.calls {
            calls.row([
                call.calling
                    .clone()
                    .unwrap_or_else(|| "not said".to_owned()),
                end(call.ends.first()),
                call.called.clone(),
                end(call.ends.get(1)),
            ]);
        }
        text += &calls.text();
    }
    text
}

/// Shows circuits and calls.
pub fn show(arguments: &ShowArguments) -> Outcome {
    list(arguments, false)
}

fn list(arguments: &ShowArguments, only_permanent: bool) -> Outcome {
    let mut any = false;
    for path in stacks(arguments.process)? {
        let mut stack = snapshot(&path)?;
        if only_permanent && let Some(switch) = &mut stack.cell_switch {
            switch.table.retain(|route| !route.call);
            switch.calls.clear();
        }
        let shown = Shown::of(&stack, only_permanent);
        if shown.is_empty() {
            continue;
        }
        any = true;
        match arguments.json {
            true => say_json(&shown)?,
            false => say_line(shown.text().trim_end())?,
        }
    }
    if !any && !arguments.json {
        say_line("no circuits and no calls: what runs here uses none")?;
    }
    Ok(())
}

/// Adds, removes and lists permanent circuits.
pub fn pvc(arguments: &PvcArguments) -> Outcome {
    match &arguments.what {
        What::List(arguments) => list(arguments, true),
        What::Remove { process, end } => ask(*process, &format!("remove {end}")),
        What::Add(add) => {
            let mut request = format!("add {}", add.end);
            if let Some(to) = &add.to {
                let _ = write!(request, " {to} {}", add.priority.unwrap_or(1));
                request += if add.one_way { " one-way" } else { "" };
            }
            ask(add.process, &request)
        }
    }
}

/// Asks one of a process's stacks to do it; for a switch, that of its first port.
fn ask(process: u32, request: &str) -> Outcome {
    let mut why = String::new();
    for path in stacks(Some(process))? {
        let answer = operate(&path, request)?;
        match (answer.done, answer.error) {
            (Some(done), _) => return say_line(&done),
            (None, Some(error)) => why = if why.is_empty() { error } else { why },
            (None, None) => {}
        }
    }
    Err(Failure::answer(format!("process {process}: {why}")))
}

fn operate(path: &Path, request: &str) -> Result<Operated, Failure> {
    let what = format!("asking {}", path.display());
    let answer = control::ask(path, &format!("pvc {request}"));
    let answer = answer.map_err(|error| Failure::io(&what, &error))?;
    serde_json::from_str(&answer).map_err(|error| {
        Failure::answer(format!(
            "{} answers in another form ({error}); use the tidewall command of the same version",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuits_have_their_calls() {
        let mut stack = StackSnapshot::default();
        stack.process = 4711;
        stack.interface = "eth1".to_owned();
        for (circuit, received) in [("0.32", 3), ("0.100", 4)] {
            let mut socket = SocketSnapshot::default();
            socket.protocol = "aal5".to_owned();
            socket.local = circuit.to_owned();
            socket.received = received;
            stack.sockets.push(socket);
        }
        for (circuit, state) in [(Some("0.32"), "U10"), (None, "U1")] {
            let mut call = CallSnapshot::default();
            call.circuit = circuit.map(str::to_owned);
            (call.state, call.held) = (state.to_owned(), "socket".to_owned());
            (call.ours, call.peer) = (true, Some("47aa".to_owned()));
            stack.calls.push(call);
        }
        let text = Shown::of(&stack, false).text();
        let expected = "process 4711 on eth1: circuits
  circuit  call       peer  received  waiting  lost
  0.32     U10        47aa         3        0     0
  0.100    permanent               4        0     0
  call to 47aa: U1 (socket)
";
        assert_eq!(text, expected);
        let permanent = Shown::of(&stack, true);
        assert_eq!((permanent.circuits.len(), permanent.calls.len()), (1, 0));
    }
}
