//! The beginning and end of this server's own responses, with files or without.

use std::io::Write;

use super::connection::Connection;
use super::site::Clock;
use super::status::Status;

/// Largest content that is copied behind its head, to leave in one call; longer content
/// is sent from its own memory.
pub(super) const COPY_MAX: usize = 16 * 1024;

/// Whether a response is the connection's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    No,
    /// It is, and the peer has nothing more to send.
    Close,
    /// It is, and the peer may still be sending.
    Linger,
}

impl Last {
    /// Combines whether it is the last, and whether the peer may still be sending.
    pub(super) fn of(last: bool, linger: bool) -> Self {
        match (last, linger) {
            (false, _) => Last::No,
            (true, false) => Last::Close,
            (true, true) => Last::Linger,
        }
    }
}

impl Connection {
    /// Writes the status line and the fields that every response has.
    pub(super) fn begin(&mut self, status: Status, clock: &Clock) {
        let out = self.out();
        if status == Status::OK {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\nServer: tidewall\r\nDate: ");
        } else {
            let (code, reason) = (status.0, status.reason());
            // Writing to a vector cannot fail.
            let _ = write!(
                out,
                "HTTP/1.1 {code} {reason}\r\nServer: tidewall\r\nDate: "
            );
        }
        out.extend_from_slice(clock.date().as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// States to a client of this minor version of HTTP whether the connection persists,
    /// and ends the head.
    pub(super) fn finish(&mut self, version: u8, last: Last) {
        let out = self.out();
        match last {
            // HTTP/1.0 has no default.
            Last::No if version == 0 => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            Last::No => {}
            Last::Close | Last::Linger => out.extend_from_slice(b"Connection: close\r\n"),
        }
        out.extend_from_slice(b"\r\n");
        if last != Last::No {
            self.close_after(last == Last::Linger);
        }
    }

    /// Ends a head that has been begun, with a line of content if requested; returns the
    /// line's length.
    pub(super) fn line(&mut self, line: &str, content: bool, version: u8, last: Last) -> u64 {
        let length = line.len();
        let _ = write!(
            self.out(),
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n"
        );
        self.finish(version, last);
        if !content {
            return 0;
        }
        self.out().extend_from_slice(line.as_bytes());
        length as u64
    }
}
