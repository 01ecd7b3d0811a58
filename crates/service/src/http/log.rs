//! The access log, in the Common Log Format.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use super::site::Clock;
use super::status::Status;

/// Bytes that wait at most before they are written.
const BUFFER: usize = 64 * 1024;

/// An access log: `address - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1300`
/// a request. Lines are collected and written together, about once a second.
pub struct Log {
    to: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    failed: bool,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("waiting", &self.buffer.len())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Log {
    /// A log that is written to `to`. Writing blocks the server: a file, not a
    /// pipe to something slow.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Log {
            to: Box::new(to),
            buffer: Vec::new(),
            failed: false,
        }
    }

    /// Adds a line. `request` is the request line's method, target and minor
    /// version, `None` for one that was no good; `length` that of the content.
    pub(super) fn add(
        &mut self,
        peer: IpAddr,
        clock: &Clock,
        request: Option<(&str, &str, u8)>,
        status: Status,
        length: u64,
    ) {
        let date = clock.date().as_bytes();
        let part = |range: std::ops::Range<usize>| {
            std::str::from_utf8(date.get(range).unwrap_or_default()).unwrap_or_default()
        };
        let (day, month, year, time) = (part(5..7), part(8..11), part(12..16), part(17..25));
        // Writing to a vector cannot fail.
        let _ = write!(
            self.buffer,
            "{peer} - - [{day}/{month}/{year}:{time} +0000] \""
        );
        match request {
            Some((method, target, version)) => {
                escape(method, &mut self.buffer);
                self.buffer.push(b' ');
                escape(target, &mut self.buffer);
                let _ = write!(self.buffer, " HTTP/1.{version}");
            }
            None => self.buffer.push(b'-'),
        }
        let _ = writeln!(self.buffer, "\" {} {length}", status.0);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Writes what has been collected.
    pub fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let written: io::Result<()> = self
            .to
            .write_all(&self.buffer)
            .and_then(|()| self.to.flush());
        self.buffer.clear();
        // A log that cannot be written is no reason not to serve; it is said
        // once.
        if let Err(error) = written
            && !self.failed
        {
            self.failed = true;
            eprintln!("tidewall: the access log cannot be written: {error}");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What could forge a line or end the quotes is written as `\xhh`.
fn escape(text: &str, to: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(to, "\\x{byte:02x}");
            }
            byte => to.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_a_request_and_none_forged() {
        let page = Page::default();
        let mut log = Log::new(page.clone());
        let clock = Clock::new(Duration::ZERO, 784_111_777);
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        log.add(peer, &clock, Some(("GET", "/a\"\n€", 1)), Status::OK, 1300);
        log.add(peer, &clock, None, Status::BAD_REQUEST, 16);
        assert!(page.0.lock().unwrap().is_empty(), "collected first");
        drop(log);
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a\\x22\\x0a\\xe2\\x82\\xac HTTP/1.1\" 200 1300\n\
             127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"-\" 400 16\n"
        );
    }
}
