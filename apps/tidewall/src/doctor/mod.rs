//! `tidewall doctor`: what stands in Tidewall's way on this machine, and the exact
//! command that fixes it.

mod control;
mod firewall;
mod host;
mod interface;
mod leftovers;
mod manager;
mod queues;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Command, Stdio};

use serde::Serialize;
use tidewall::snapshot::StackSnapshot;

use crate::end::{Failure, Outcome, check_interface, say, say_json};
use crate::run::{self, report, unreached};
use crate::stat::{Pair, pairs};
use crate::table::wrap;

/// Check kernel, privileges, interface and firewall, and print how to fix what is wrong.
///
/// Changes nothing, except with --mend. Checks the interfaces of live stacks, and the one
/// named by --interface. Some checks need root, or ethtool and ip, and report it if those
/// are missing.
#[derive(clap::Args)]
#[command(
    override_usage = "tidewall doctor [--interface IF] [--json | --mend] [-- PROGRAM [ARGUMENT]...]",
    after_help = "Examples:\n  tidewall doctor                     this host and the interfaces of live stacks\n  \
    tidewall doctor --interface eth1    and whether eth1 suits\n  \
    tidewall doctor -- redis-server     and whether Tidewall would have that program's sockets\n  \
    tidewall doctor --mend              what stacks left that were killed with their tw-restorer (docker\n                                      \
    kill, a cgroup out of memory): put back, and nothing else; for a\n                                      \
    service, ExecStopPost=tidewall doctor --mend --interface eth1\n  \
    tidewall doctor --json | jq '.[] | select(.severity == \"problem\")'\n\n\
    Severities: ok; warning (works, but slower, or something to know); problem (does not work, or not \
    safely). Exit codes: 0 no problem; 1 a problem was found; 2 no such interface."
)]
pub struct Arguments {
    /// Interface to check as well
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Print a JSON array of findings
    #[arg(long)]
    json: bool,
    /// Restore the settings of a stack that was killed together with its tw-restorer;
    /// check nothing else
    #[arg(long, conflicts_with = "json")]
    mend: bool,
    /// Program for `tidewall run`: report whether Tidewall would own its sockets, and
    /// otherwise why not. It is not started
    #[arg(value_name = "PROGRAM", last = true, conflicts_with = "mend")]
    program: Vec<OsString>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but slower, or the operator must know something.
    Warning,
    /// Does not work, or not safely.
    Problem,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name: a few words, the same every time.
    pub check: &'static str,
    /// The interface checked, if any.
    pub interface: Option<String>,
    /// How bad it is.
    pub severity: Severity,
    /// The result in words.
    pub text: String,
    /// The command that fixes it.
    pub mend: Option<String>,
}

impl Finding {
    fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        Finding {
            check,
            interface: None,
            severity,
            text: text.into(),
            mend: None,
        }
    }

    fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }

    /// Adds the interface.
    pub fn of(mut self, interface: &str) -> Self {
        self.interface = Some(interface.to_owned());
        self
    }

    /// Creates a finding that all is well.
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, text)
    }

    /// Creates a finding that it works, with a reservation.
    pub fn warning(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::unknown(check, text).mended_by(mend)
    }

    /// Creates a finding that it does not work, or not safely.
    pub fn problem(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(check, Severity::Problem, text).mended_by(mend)
    }

    /// Creates a finding that the check was impossible.
    pub fn unknown(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, text)
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.mend {
        // Also for an interface that is gone: its settings may be all that was left.
        return leftovers::mend(arguments.interface.as_deref());
    }
    if let Some(interface) = &arguments.interface {
        check_interface(interface)?;
    }
    // Before anything looks for live stacks, which removes the sockets of dead ones.
    let mut findings = leftovers::check();
    let pairs = pairs();
    let live: Vec<StackSnapshot> = pairs.iter().map(|pair| pair.now.clone()).collect();
    let mut all = host::check(&live);
    all.append(&mut findings);
    all.extend(firewall::check(&live));
    for stack in &live {
        let warned = |warning| format!("process {}: {warning}", stack.process);
        let warnings = stack.warnings.iter().map(warned);
        all.extend(warnings.map(|text| Finding::unknown("stack", text)));
    }
    let mut interfaces: BTreeSet<&str> =
        live.iter().map(|stack| stack.interface.as_str()).collect();
    interfaces.extend(arguments.interface.as_deref());
    let with_stack = live.iter().map(|stack| stack.process).collect();
    let unprotected = report::of_all(&live).into_iter();
    let unprotected = unprotected.chain(unreached::without_stack(&with_stack));
    all.extend(unprotected.map(|it| Finding::unknown("unprotected", it.to_string())));
    all.extend(manager::check(interfaces.iter().copied()));
    for interface in &interfaces {
        let named = arguments.interface.as_deref() == Some(interface);
        let found = interface::check(interface, &live, named);
        all.extend(found.into_iter().map(|finding| finding.of(interface)));
    }
    let unseen = |pair: &Pair| Some(interface::unseen(pair)?.of(&pair.now.interface));
    all.extend(pairs.iter().filter_map(unseen));
    if !arguments.program.is_empty() {
        all.push(program(&arguments.program, arguments.interface.as_deref()));
    }
    if arguments.json {
        say_json(&all)?;
    } else {
        say(&text(&all))?;
        if interfaces.is_empty() {
            say(
                "no interface was checked: no stack is live and none was named; name one with --interface IF\n",
            )?;
        }
    }
    if all
        .iter()
        .any(|finding| finding.severity == Severity::Problem)
    {
        Err(Failure::said())
    } else {
        Ok(())
    }
}

/// Reports whether `tidewall run` would serve the program.
fn program(words: &[OsString], interface: Option<&str>) -> Finding {
    const CHECK: &str = "program";
    let name = words.first().map(|name| name.display());
    let name = name.map_or_else(String::new, |name| name.to_string());
    match run::foresee(words, interface) {
        Ok(interface) => Finding::ok(
            CHECK,
            format!(
                "`tidewall run --interface {interface}` can serve {name}; it names single sockets \
                 that stay with the kernel when it does"
            ),
        )
        .of(&interface),
        Err(why) => Finding::new(
            CHECK,
            Severity::Problem,
            format!("`tidewall run` would not serve {name}: {why}"),
        ),
    }
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.severity {
            Severity::Ok => "ok     ",
            Severity::Warning => "WARNING",
            Severity::Problem => "PROBLEM",
        };
        let check = match &finding.interface {
            Some(interface) => format!("{interface}: {}", finding.check),
            None => finding.check.to_owned(),
        };
        let lines = wrap(&format!("{check}: {}", finding.text), 9, 98);
        text.push_str(mark);
        text.push_str(lines.get(mark.len()..).unwrap_or(&lines));
        for line in finding.mend.iter().flat_map(|mend| mend.lines()) {
            text.push_str(&format!("           mend: {line}\n"));
        }
    }
    let number = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    text.push_str(&format!(
        "{} ok, {} to know of, {} in the way\n",
        number(Severity::Ok),
        number(Severity::Warning),
        number(Severity::Problem)
    ));
    text
}

/// Returns a tool's output.
///
/// # Errors
/// A description: the tool is not installed, or its own error message.
pub fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("{program} is not installed"),
            _ => format!("{program}: {error}"),
        })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "{program}: {}",
            complaint.lines().next().unwrap_or("failed")
        ))
    }
}

/// Returns a file's only line; `None` without such a file.
pub fn line_of(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_with_their_cures() {
        let findings = [
            Finding::ok("kernel", "6.18.0"),
            Finding::warning("MTU", "a little long", "ip link set dev x mtu 1500"),
            Finding::problem("capabilities", "none ".repeat(30), "first\nsecond"),
        ];
        let text = text(&findings);
        assert!(
            text.starts_with("ok       kernel: 6.18.0\nWARNING  MTU: a little long\n"),
            "{text}"
        );
        assert!(
            text.contains("           mend: ip link set dev x mtu 1500\n"),
            "{text}"
        );
        assert!(
            text.contains("mend: first\n           mend: second\n"),
            "{text}"
        );
        assert!(
            text.ends_with("1 ok, 1 to know of, 1 in the way\n"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 98),
            "{text}"
        );
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        assert_eq!(
            tool("tw-none-such", &[]),
            Err("tw-none-such is not installed".to_owned())
        );
        assert!(tool("false", &[]).is_err());
        assert_eq!(tool("echo", &["x"]), Ok("x\n".to_owned()));
    }
}
