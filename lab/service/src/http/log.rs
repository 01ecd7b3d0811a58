//! The access log, in the Common Log Format.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use super::site::Clock;
use super::status::Status;

/// Most bytes collected before they are handed over.
const BUFFER: usize = 64 * 1024;
/// Most buffers waiting for the writing thread: 4 MiB.
const WAITING: usize = 64;
/// How long the end waits for buffers handed over.
const END_WITHIN: Duration = Duration::from_secs(1);

/// An access log, with one line per request: `address - - [06/Nov/1994:08:49:37 +0000]
/// "GET / HTTP/1.1" 200 1300`. A separate thread writes the collected lines together,
/// about once per second: the server never waits for a disk or a pipe. Lines that the
/// thread cannot accept are dropped and counted.
pub struct Log {
    buffer: Vec<u8>,
    lines: u64,
    /// `None` once it has ended.
    to: Option<SyncSender<Chunk>>,
    tally: Arc<Tally>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

/// Lines to write together.
struct Chunk {
    bytes: Vec<u8>,
    lines: u64,
}

#[derive(Default)]
struct Tally {
    /// Lines handed to the thread and not written yet.
    waiting: AtomicU64,
    /// Lines dropped since the number was last taken.
    lost: AtomicU64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("collected", &self.lines)
            .field("waiting", &self.tally.waiting)
            .field("lost", &self.tally.lost)
            .finish_non_exhaustive()
    }
}

impl Log {
    /// Creates a log that is written to `to`.
    ///
    /// # Errors
    /// The error of starting a thread.
    pub fn new(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(WAITING);
        let (end, ended) = channel();
        let tally = Arc::new(Tally::default());
        let shared = tally.clone();
        std::thread::Builder::new()
            .name("tidewall-log".to_owned())
            .spawn(move || {
                write(to, &chunks, &shared);
                drop(end);
            })?;
        Ok(Log {
            buffer: Vec::new(),
            lines: 0,
            to: Some(sender),
            tally,
            ended,
        })
    }

    /// Adds a line. `request` is the request line's method, target and minor version,
    /// `None` for an invalid one; `length` is that of the content.
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
        self.lines += 1;
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Hands over the collected lines. If too many buffers wait already, collecting
    /// continues, and the lines are dropped once they exceed a buffer.
    pub fn flush(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let Some(to) = self.to.as_ref().filter(|_| lines > 0) else {
            return;
        };
        let bytes = std::mem::take(&mut self.buffer);
        self.tally.waiting.fetch_add(lines, Ordering::Relaxed);
        let (TrySendError::Full(chunk) | TrySendError::Disconnected(chunk)) =
            match to.try_send(Chunk { bytes, lines }) {
                Ok(()) => return,
                Err(error) => error,
            };
        self.tally.waiting.fetch_sub(lines, Ordering::Relaxed);
        if chunk.bytes.len() < BUFFER {
            (self.buffer, self.lines) = (chunk.bytes, lines);
        } else {
            self.tally.lost.fetch_add(lines, Ordering::Relaxed);
        }
    }

    /// Returns the lines dropped since the last call.
    pub fn take_lost(&self) -> u64 {
        self.tally.lost.swap(0, Ordering::Relaxed)
    }

    /// Hands over all lines and waits, for a second at most, until they have been
    /// written; nothing may be added after it. Lines that are unwritten by then are lost.
    pub fn finish(&mut self) {
        self.flush();
        if self.to.take().is_none() {
            return;
        }
        let mut lost = std::mem::take(&mut self.lines);
        // Nothing is sent on this channel; we wait for its other end to be dropped.
        let waited = self.ended.recv_timeout(END_WITHIN);
        if waited == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            lost += self.tally.waiting.swap(0, Ordering::Relaxed);
        }
        self.tally.lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Writes chunks until there are no more.
fn write(mut to: impl Write, chunks: &Receiver<Chunk>, tally: &Tally) {
    let mut failed = false;
    while let Ok(Chunk { bytes, lines }) = chunks.recv() {
        let written = to.write_all(&bytes).and_then(|()| to.flush());
        tally.waiting.fetch_sub(lines, Ordering::Relaxed);
        // A log that cannot be written is no reason not to serve; it is reported once.
        if let Err(error) = written {
            tally.lost.fetch_add(lines, Ordering::Relaxed);
            if !std::mem::replace(&mut failed, true) {
                eprintln!("tidewall: the access log cannot be written: {error}");
            }
        }
    }
}

/// Escapes characters that could forge a line or end the quotes as `\xhh`.
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
    use std::sync::Mutex;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn clock() -> Clock {
        Clock::new(Duration::ZERO, 784_111_777)
    }

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
        let mut log = Log::new(page.clone()).unwrap();
        let clock = clock();
        log.add(PEER, &clock, Some(("GET", "/a\"\n€", 1)), Status::OK, 1300);
        log.add(PEER, &clock, None, Status::BAD_REQUEST, 16);
        assert!(page.0.lock().unwrap().is_empty(), "collected first");
        log.finish();
        assert_eq!(log.take_lost(), 0);
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a\\x22\\x0a\\xe2\\x82\\xac HTTP/1.1\" 200 1300\n\
             127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"-\" 400 16\n"
        );
    }

    /// Accepts nothing until the other end of its channel has gone.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Nothing is sent on this channel; we wait for its other end to be dropped.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_serves_does_not_wait_for_what_takes_nothing() {
        let (go, stuck) = channel();
        let mut log = Log::new(Stuck(stuck)).unwrap();
        let target = "x".repeat(1000);
        let lines = 2 * (WAITING * BUFFER / target.len()) as u64;
        for _ in 0..lines {
            log.add(PEER, &clock(), Some(("GET", &target, 1)), Status::OK, 1);
            log.flush();
            assert!(log.buffer.capacity() <= 4 * BUFFER);
        }
        let early = log.take_lost();
        assert!(early > 0 && early < lines, "{early}");
        // Nor does its end block for long.
        log.finish();
        assert_eq!(early + log.take_lost(), lines, "nothing was written");
        drop(go);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut log = Log::new(Full).unwrap();
        for _ in 0..3 {
            log.add(PEER, &clock(), None, Status::BAD_REQUEST, 16);
            log.flush();
        }
        log.finish();
        assert_eq!(log.take_lost(), 3);
    }
}
