//! Runs a script: [`crate::script`] on the production sockets.
//!
//! Lives here: the clock of a run, the mapping of the script's numbers to live ones,
//! building inbound packets, comparing outbound packets, making calls and checking their
//! results. Does not live here: a rule of TCP.
//!
//! Time is virtual, so a script's times are exact. Each event happens at its time or the
//! script fails, unless `--tolerance_usecs` or `--tolerance_percent` permit more. Every
//! packet that leaves must be in the script.

mod argument;
mod call;
mod compare;
mod constant;
mod control;
mod datagram;
mod flow;
mod packet;
mod settings;
mod worker;

use core::fmt;
use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use call::{Calls, Check, Job, Returned};
use flow::Flow;
use settings::Settings;
pub use settings::{Family, families};
use worker::Worker;

use crate::host::{Host, Time};
use crate::script::{
    Action, Assertion, Call, Direction, Event, Expression, ParseError, Position, Script, When,
};

/// Lines of the trace that a failure prints.
const TRACE_SHOWN: usize = 30;

/// How long to wait for a packet whose time does not matter (`*`).
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Why a script has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The event's position in the script.
    pub position: Position,
    /// The family of addresses.
    pub family: Family,
    /// The expected and the actual outcome, possibly in several lines.
    pub message: String,
    /// The preceding events, in the script's notation.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    /// `line:column: …`, to be printed after the file's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.name();
        writeln!(f, "{}: with {family}: {}", self.position, self.message)?;
        let skipped = self.trace.len().saturating_sub(TRACE_SHOWN);
        if skipped > 0 {
            writeln!(f, "  … {skipped} lines before")?;
        }
        for line in self.trace.iter().skip(skipped) {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Runs a script with each of its address families.
///
/// # Errors
/// The first failure; an invalid option line counts as one.
pub fn run(script: &Script) -> Result<(), Failure> {
    let wrong = |error: ParseError| Failure {
        position: error.position,
        family: Family::V4,
        message: error.message,
        trace: Vec::new(),
    };
    for family in families(script).map_err(wrong)? {
        run_with(script, family)?;
    }
    Ok(())
}

/// Runs a script with one address family, whatever the script itself selects.
///
/// # Errors
/// The first event that did not happen as in the script, or a packet or call left over at
/// its end.
pub fn run_with(script: &Script, family: Family) -> Result<(), Failure> {
    let settings = Settings::new(script, family).map_err(|error| Failure {
        position: error.position,
        family,
        message: error.message,
        trace: Vec::new(),
    })?;
    let failed = |error: std::io::Error| Failure {
        position: Position { line: 1, column: 1 },
        family,
        message: format!("no host to run it on: {error}"),
        trace: Vec::new(),
    };
    let host = Host::new(settings.host.clone(), Arc::new(Time::default())).map_err(failed)?;
    let mut run = Run {
        worker: Worker::start(host.posix(), host.time()).map_err(failed)?,
        host,
        calls: Calls::default(),
        flows: Vec::new(),
        current: 0,
        next_port: packet::FIRST_PORT,
        sent: VecDeque::new(),
        pending: None,
        last: Duration::ZERO,
        trace: Vec::new(),
        settings,
    };
    let mut position = Position { line: 1, column: 1 };
    let mut result = Ok(());
    for event in &script.events {
        position = event.position;
        result = run.event(event);
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        result = run.finish();
    }
    result.map_err(|wrong| Failure {
        position: wrong.position.unwrap_or(position),
        family,
        message: wrong.message,
        trace: run.trace,
    })
}

/// An error, and its position if it is not the current event.
struct Wrong {
    position: Option<Position>,
    message: String,
}

impl From<String> for Wrong {
    fn from(message: String) -> Self {
        Self {
            position: None,
            message,
        }
    }
}

/// A call that blocks.
struct Pending {
    position: Position,
    call: Call,
    /// When it must return, according to the script.
    until: Duration,
    /// The time since the previous event, for the tolerance.
    since: Duration,
}

/// A script that runs.
struct Run {
    settings: Settings,
    // Before the worker: dropping it ends a call that still sleeps.
    host: Host,
    worker: Worker,
    calls: Calls,
    flows: Vec<Flow>,
    /// The flow of packets without ports.
    current: usize,
    next_port: u16,
    /// Packets that have left and match no line of the script so far.
    sent: VecDeque<(Duration, Vec<u8>)>,
    pending: Option<Pending>,
    /// When the previous event was over.
    last: Duration,
    trace: Vec<String>,
}

impl Run {
    fn event(&mut self, event: &Event) -> Result<(), Wrong> {
        // Relative times count from now: nothing moves the clock between events.
        let now = self.host.now();
        let (start, end) = match event.when {
            When::Absolute(at) => (at, at),
            When::Relative(after) => (now + after, now + after),
            When::AbsoluteRange(start, end) => (start, end),
            When::RelativeRange(start, end) => (now + start, now + end),
            When::Any => (now, now + TIMEOUT),
        };
        let tolerance = self.tolerance(start.saturating_sub(self.last));
        match &event.action {
            Action::Packet(packet) if packet.direction == Direction::Outbound => {
                let any = event.when == When::Any;
                // A packet whose time does not matter may have left earlier.
                let earliest = if any { Duration::ZERO } else { start };
                self.outbound(packet, earliest, end, tolerance)?;
            }
            action => {
                self.reach(start, tolerance)?;
                match action {
                    Action::Packet(packet) => self.inbound(packet)?,
                    Action::Call(call) => {
                        let until = call.until.map(|until| match event.when {
                            When::Relative(_) => now + until,
                            _ => until,
                        });
                        self.call(event.position, call, until)?;
                    }
                    Action::Command(command) => {
                        let mut sysctl = self.host.sysctl();
                        settings::apply(command, &mut sysctl)?;
                        self.host.set_sysctl(&sysctl);
                    }
                    Action::Assertions(all) => {
                        for assertion in all {
                            self.assert(assertion)?;
                        }
                    }
                }
            }
        }
        self.last = self.host.now();
        Ok(())
    }

    /// The tolerance of an event, given the time since the previous one.
    fn tolerance(&self, since: Duration) -> Duration {
        let part = since.mul_f64(self.settings.tolerance_percent / 100.0);
        self.settings.tolerance.max(part)
    }

    /// Advances the clock to an event that the script causes.
    fn reach(&mut self, at: Duration, tolerance: Duration) -> Result<(), Wrong> {
        let now = self.host.now();
        if at + tolerance < now {
            return Err(format!(
                "the event was to be at {} but it is {} already",
                seconds(at),
                seconds(now)
            )
            .into());
        }
        self.advance(at)
    }

    /// Moves the clock. Collects outbound packets, and repeats a blocking call whenever
    /// something has happened.
    fn advance(&mut self, to: Duration) -> Result<(), Wrong> {
        loop {
            let before = self.host.now();
            let next = self.next_wake().filter(|next| *next > before);
            let step = next.map_or(to, |next| next.min(to)).max(before);
            self.host.advance(step);
            self.run_until_idle()?;
            if step >= to {
                return Ok(());
            }
        }
    }

    /// The time of the next spontaneous event.
    fn next_wake(&self) -> Option<Duration> {
        self.host.next_event()
    }

    /// After any event, collects outbound packets, and checks whether a blocked call has
    /// returned.
    fn run_until_idle(&mut self) -> Result<(), Wrong> {
        self.host.run_until_idle();
        self.collect();
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let Some(check) = self.worker.finished() else {
            self.pending = Some(pending);
            return Ok(());
        };
        let now = self.host.now();
        let here = |message| Wrong {
            position: Some(pending.position),
            message,
        };
        let returned = check(&mut self.calls).map_err(here)?;
        self.note(now, format!("… {} returns {returned}", pending.call.name));
        check_result(&pending.call, returned).map_err(here)?;
        let tolerance = self.tolerance(pending.since);
        if now + tolerance < pending.until || now > pending.until + tolerance {
            return Err(here(format!(
                "{} was to return at {} but did at {}",
                pending.call.name,
                seconds(pending.until),
                seconds(now)
            )));
        }
        Ok(())
    }

    /// Makes a call; returns its check, unless it blocks.
    fn make(&mut self, job: Job) -> Option<Check> {
        self.worker.make(job);
        self.host.run_until_idle();
        self.collect();
        self.worker.finished()
    }

    fn collect(&mut self) {
        while let Some(packet) = self.host.packet_out() {
            self.sent.push_back(packet);
        }
    }

    fn call(
        &mut self,
        position: Position,
        call: &Call,
        until: Option<Duration>,
    ) -> Result<(), Wrong> {
        self.finish_pending()?;
        let now = self.host.now();
        let job = self.calls.prepare(&self.settings, call)?;
        match (self.make(job), until) {
            (Some(finished), _) => {
                let returned = finished(&mut self.calls)?;
                let shown = Call {
                    result: Expression::Word(returned.to_string()),
                    errno: None,
                    ..call.clone()
                };
                self.note(now, shown.to_string());
                check_result(call, returned)?;
                match until {
                    Some(until) if until > now + self.tolerance(until.saturating_sub(now)) => {
                        Err(format!(
                            "{} was to block until {} but returns at once",
                            call.name,
                            seconds(until)
                        )
                        .into())
                    }
                    _ => Ok(()),
                }
            }
            (None, None) => {
                self.note(now, format!("{} …", call.name));
                Err(format!(
                    "{} blocks; if it is to, say until when: +0...TIME {}(…)",
                    call.name, call.name
                )
                .into())
            }
            (None, Some(until)) => {
                self.note(now, format!("{call} …"));
                self.pending = Some(Pending {
                    position,
                    call: call.clone(),
                    until,
                    since: until.saturating_sub(self.last),
                });
                Ok(())
            }
        }
    }

    /// Advances the clock until the blocked call has returned.
    fn finish_pending(&mut self) -> Result<(), Wrong> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let until = pending.until + self.tolerance(pending.since);
        self.advance(until.max(self.host.now()))?;
        match &self.pending {
            None => Ok(()),
            Some(pending) => Err(Wrong {
                position: Some(pending.position),
                message: format!(
                    "{} was to return at {} but still blocks",
                    pending.call.name,
                    seconds(pending.until)
                ),
            }),
        }
    }

    fn assert(&mut self, assertion: &Assertion) -> Result<(), Wrong> {
        let fd = self
            .calls
            .subject
            .ok_or_else(|| "no connection was made that could be asked about".to_owned())?;
        let info = self
            .host
            .posix()
            .tcp_info(fd)
            .map_err(|errno| format!("TCP_INFO is not to be had: {errno:?}"))?;
        // The connection's values, for the message.
        let numbers = RefCell::new(BTreeMap::new());
        let look_up = |name: &str| match info.field(name) {
            Some(value) => {
                numbers.borrow_mut().insert(name.to_owned(), value);
                i64::try_from(value).ok()
            }
            None => constant::of_info(name),
        };
        let here = |message: String| Wrong {
            position: Some(assertion.position),
            message,
        };
        match assertion.condition.evaluate(&look_up) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(here(error.to_string())),
        }
        let mut message = format!("assertion failed: {}", assertion.text);
        for (name, value) in numbers.borrow().iter() {
            message.push_str(&format!("\n  {name} = {value}"));
        }
        if let Some(text) = &assertion.message {
            message.push_str(&format!("\n  {text}"));
        }
        Err(here(message))
    }

    /// Checks that nothing is left over at the end.
    fn finish(&mut self) -> Result<(), Wrong> {
        self.finish_pending()?;
        self.collect();
        let Some((at, bytes)) = self.sent.pop_front() else {
            return Ok(());
        };
        let actual = self.unexpected(&bytes);
        Err(format!(
            "a packet left that is not in the script:\n    actual: {} {actual}",
            seconds(at)
        )
        .into())
    }

    fn note(&mut self, at: Duration, what: impl fmt::Display) {
        self.trace.push(format!("{} {what}", seconds(at)));
    }
}

/// Compares a call's result with the script's.
fn check_result(call: &Call, returned: Returned) -> Result<(), String> {
    let expected = match (&call.result, &call.errno) {
        (Expression::Ellipsis, _) => return Ok(()),
        (_, Some(errno)) => {
            let number = constant::error(errno)
                .ok_or_else(|| format!("the error {errno} is not known here"))?;
            Returned::Errno(number)
        }
        (result, None) => Returned::Value(argument::integer(result)?),
    };
    // `-1` alone is any error.
    let any_error = expected == Returned::Value(-1) && matches!(returned, Returned::Errno(_));
    if returned == expected || any_error {
        Ok(())
    } else {
        Err(format!(
            "{} returns {returned}, expected {expected}",
            call.name
        ))
    }
}

/// A time in script notation.
fn seconds(time: Duration) -> String {
    format!("{:.6}", time.as_secs_f64())
}

#[cfg(test)]
mod tests;
