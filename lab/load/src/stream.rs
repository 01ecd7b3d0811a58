//! One TCP connection: round trips, or a bulk transfer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::report::{Latency, StreamReport, histogram, per_second};
use crate::spec::{StreamKind, StreamSpec};
use crate::tcp::{bytes_acknowledged, poll_much};

/// How long the connection may take to open.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest sleep before checking whether the run has ended.
const SLEEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
/// The histogram's longest round trip, ns.
const LATENCY_MAX: u64 = 60_000_000_000;

/// A running stream.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: TcpStream,
    kind: StreamKind,
    sleeps: bool,
    bytes: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes of the present request that were written, and that returned.
    written: usize,
    returned: usize,
    sent_at: u64,
    /// Total bytes that returned.
    echoed: u64,
    /// Bytes done when measuring began.
    mark: u64,
    latency: Histogram<u64>,
}

impl Stream {
    pub(crate) fn open(spec: &StreamSpec) -> io::Result<Self> {
        let open = || {
            let stream = TcpStream::connect_timeout(&spec.destination, TIMEOUT)?;
            stream.set_nodelay(true)?;
            if let Some(bytes) = spec.buffer {
                set_socket_send_buffer_size(&stream, bytes as usize)?;
            }
            // Without CAP_NET_ADMIN, arriving segments are received by interrupt.
            let _ = poll_much(&stream);
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = open().map_err(|error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot connect to {}: {error}", spec.destination),
            )
        })?;
        let size = spec.size as usize;
        Ok(Stream {
            stream,
            kind: spec.kind,
            sleeps: spec.sleeps,
            bytes: vec![0x5a; size],
            buffer: vec![0; size.max(4096)],
            written: 0,
            returned: 0,
            sent_at: 0,
            echoed: 0,
            mark: 0,
            latency: histogram(LATENCY_MAX)?,
        })
    }

    /// Sends and receives as much as possible.
    pub(crate) fn poll(&mut self, now: impl Fn() -> u64) -> io::Result<()> {
        match self.kind {
            StreamKind::Echo => self.echo(now),
            StreamKind::Bulk => self.bulk(),
        }
    }

    fn echo(&mut self, now: impl Fn() -> u64) -> io::Result<()> {
        if self.returned == self.bytes.len() || self.sent_at == 0 {
            (self.written, self.returned) = (0, 0);
            self.sent_at = now().max(1);
        }
        if let Some(rest) = self
            .bytes
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            self.written += later(self.stream.write(rest))?.unwrap_or(0);
        }
        // Polls the device as well.
        match later(self.stream.read(&mut self.buffer))? {
            Some(0) => return Err(ended()),
            Some(count) => {
                self.returned += count;
                self.echoed += count as u64;
            }
            None => {}
        }
        if self.returned >= self.bytes.len() {
            self.returned = self.bytes.len();
            self.latency
                .saturating_record(now().saturating_sub(self.sent_at));
        }
        Ok(())
    }

    fn bulk(&mut self) -> io::Result<()> {
        if later(self.stream.write(&self.bytes))?.is_some() {
            return Ok(());
        }
        if self.sleeps {
            let mut room = [PollFd::new(&self.stream, PollFlags::OUT)];
            return match poll(&mut room, Some(&SLEEP)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        // No room: only acknowledgements make some, and the receive call polls the device
        // for them.
        match later(self.stream.read(&mut self.buffer))? {
            Some(0) => Err(ended()),
            _ => Ok(()),
        }
    }

    pub(crate) fn begin_measuring(&mut self) -> io::Result<()> {
        self.mark = self.done()?;
        self.latency.reset();
        Ok(())
    }

    fn done(&self) -> io::Result<u64> {
        match self.kind {
            StreamKind::Echo => Ok(self.echoed),
            StreamKind::Bulk => bytes_acknowledged(&self.stream),
        }
    }

    pub(crate) fn report(self, measured: bool, duration: Duration) -> io::Result<StreamReport> {
        let bytes = match measured {
            true => self.done()?.saturating_sub(self.mark),
            false => 0,
        };
        Ok(StreamReport {
            bytes,
            rate: per_second(bytes, duration),
            duration,
            latency: Latency::of(&self.latency).filter(|_| measured),
        })
    }
}

/// Returns `None` for an operation that would block.
fn later(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server has closed the stream",
    )
}
