//! A daemon's log: one line per event on standard error, with a level, the event's name
//! and named values (logfmt). Under systemd, which reads a priority before each line
//! (sd-daemon(3)), the level is one.

use std::fmt::{self, Display, Write};
use std::io;
use std::time::{Duration, Instant};

/// Severity of an event, as syslog(3) numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A request was not carried out.
    Error = 3,
    /// Something is wrong.
    Warning = 4,
    /// Normal operation.
    Info = 6,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
        }
    }
}

/// The output of a daemon's lines. Lines caused by clients are bounded, so that none of
/// them fills a disk.
#[derive(Debug)]
pub struct Log {
    for_systemd: bool,
    /// The least severe level that is written.
    least: Level,
    /// Start of the current second.
    second: Instant,
    events: Share,
    /// The share for refusals: any user can cause these, and must not hide other events.
    refusals: Share,
}

/// A share of a second's lines; the excess is counted.
#[derive(Debug)]
struct Share {
    most: u32,
    /// Lines since the second began.
    lines: u32,
    left_out: u64,
}

impl Share {
    const fn of(most: u32) -> Self {
        Share {
            most,
            lines: 0,
            left_out: 0,
        }
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.lines < self.most;
        match has_room {
            true => self.lines += 1,
            false => self.left_out += 1,
        }
        has_room
    }

    /// Starts a second. Returns how many lines were left out in the last.
    fn begin_second(&mut self) -> u64 {
        self.lines = 0;
        std::mem::take(&mut self.left_out)
    }
}

/// Lines per second, not counting refusals.
const LINES: u32 = 100;
/// Lines of refusals per second.
const REFUSALS: u32 = 20;

impl Default for Log {
    /// Logs to standard error.
    fn default() -> Self {
        Log {
            for_systemd: std::env::var_os("JOURNAL_STREAM").is_some(),
            least: Level::Info,
            second: Instant::now(),
            events: Share::of(LINES),
            refusals: Share::of(REFUSALS),
        }
    }
}

impl Log {
    /// Logs events of at least this severity.
    pub fn of(least: Level) -> Self {
        Log {
            least,
            ..Log::default()
        }
    }

    /// Writes an event and its values.
    pub fn write(&mut self, level: Level, event: &str, values: &[(&str, &dyn Display)]) {
        if self.is_due(level) && self.events.has_room() {
            self.print(level, event, values);
        }
    }

    /// Logs a refusal, within the share for refusals.
    pub fn write_refused(&mut self, values: &[(&str, &dyn Display)]) {
        if self.is_due(Level::Info) && self.refusals.has_room() {
            self.print(Level::Info, "refused", values);
        }
    }

    /// Whether events of a level are written. Reports what the last second left out, if
    /// that is over.
    fn is_due(&mut self, level: Level) -> bool {
        // More severe levels are smaller.
        if level as u8 > self.least as u8 {
            return false;
        }
        if let Some(left_out) = self.begin_second(Instant::now()) {
            self.print(Level::Warning, "lines-left-out", &[("lines", &left_out)]);
        }
        true
    }

    /// Lines that the last second left out, if it is over.
    fn begin_second(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.second) < Duration::from_secs(1) {
            return None;
        }
        self.second = now;
        let left_out = self.events.begin_second() + self.refusals.begin_second();
        Some(left_out).filter(|&left_out| left_out > 0)
    }

    fn print(&self, level: Level, event: &str, values: &[(&str, &dyn Display)]) {
        let mut line = String::new();
        if self.for_systemd {
            // Writing to a String cannot fail.
            let _ = write!(line, "<{}>", level as u8);
        }
        let _ = write_event(&mut line, level, event, values);
        line.push('\n');
        // One call, so that other processes' lines cannot come between. A failure cannot
        // be reported.
        let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    }
}

fn write_event(
    line: &mut String,
    level: Level,
    event: &str,
    values: &[(&str, &dyn Display)],
) -> fmt::Result {
    write!(line, "level={} event={event}", level.name())?;
    for (name, value) in values {
        let value = value.to_string();
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\');
        match !value.is_empty() && value.bytes().all(plain) {
            true => write!(line, " {name}={value}")?,
            false => write!(line, " {name}=\"{}\"", value.escape_debug())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_pass_for_another() {
        let mut line = String::new();
        let text = "bad\nlevel=info \"x\"";
        let values: [(&str, &dyn Display); 3] = [("user", &1000), ("text", &text), ("empty", &"")];
        write_event(&mut line, Level::Error, "refused", &values).unwrap();
        assert_eq!(
            line,
            "level=error event=refused user=1000 text=\"bad\\nlevel=info \\\"x\\\"\" empty=\"\""
        );
    }

    #[test]
    fn a_flood_of_lines_is_cut_and_one_of_refusals_hides_nothing() {
        let mut log = Log::default();
        let start = log.second;
        let written = (0..3 * REFUSALS).filter(|_| log.refusals.has_room());
        assert_eq!(written.count(), REFUSALS as usize);
        let written = (0..3 * LINES).filter(|_| log.events.has_room());
        assert_eq!(written.count(), LINES as usize);
        assert_eq!(log.begin_second(start), None);
        let next = start + Duration::from_secs(1);
        let left_out = 2 * u64::from(LINES + REFUSALS);
        assert_eq!(log.begin_second(next), Some(left_out));
        assert!(log.events.has_room() && log.refusals.has_room());
        assert_eq!(log.begin_second(next + Duration::from_secs(1)), None);
    }
}
