//! Many connections that are opened and then only kept.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Instant;

use super::request;
use super::response::{Outcome, Response};
use crate::raw_tcp::{Epoll, abort_on_close, connect, raise_descriptors};
use crate::report::IdleReport;
use crate::spec::{IdleSpec, Reuse};

/// Connections that are being opened at once: fewer than any sensible backlog.
const AT_ONCE: usize = 256;
/// Descriptors beside the connections.
const OTHERS: u64 = 512;
/// Longest sleep while nothing happens, ms.
const LOOK: i32 = 20;

/// Open connections.
#[derive(Debug)]
pub(crate) struct Idle {
    streams: Vec<TcpStream>,
    opening_ms: u64,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Opening {
    stream: TcpStream,
    asked: bool,
    response: Response,
}

impl Idle {
    /// Opens all, or as many as can be opened in the time given.
    pub(crate) fn open(spec: &IdleSpec) -> io::Result<Self> {
        raise_descriptors(u64::from(spec.connections) + OTHERS)?;
        let begun = Instant::now();
        let wanted = spec.connections as usize;
        let mut opener = Opener {
            spec,
            request: request(spec.destination, None, false, &spec.path, Reuse::KeepAlive),
            epoll: Epoll::new()?,
            openings: Vec::new(),
            streams: Vec::with_capacity(wanted),
            turn: 0,
        };
        opener.openings.resize_with(AT_ONCE, || None);
        let mut events = Vec::new();
        while opener.streams.len() < wanted && begun.elapsed() < spec.patience {
            opener.begin(wanted)?;
            opener.epoll.wait(LOOK, &mut events)?;
            for event in &events {
                opener.go_on(event.token as usize);
            }
        }
        Ok(Idle {
            streams: opener.streams,
            opening_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Looks at each once and closes all.
    pub(crate) fn report(self) -> IdleReport {
        let kept = self.streams.iter().filter(|stream| {
            let peeked = stream.peek(&mut [0]);
            matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        });
        IdleReport {
            kept: kept.count() as u32,
            opened: self.streams.len() as u32,
            opening_ms: self.opening_ms,
        }
    }
}

struct Opener<'a> {
    spec: &'a IdleSpec,
    request: Vec<u8>,
    epoll: Epoll,
    openings: Vec<Option<Opening>>,
    streams: Vec<TcpStream>,
    /// Whose turn it is to be connected from.
    turn: usize,
}

impl Opener<'_> {
    /// Begins connections until enough are on their way. An error that many
    /// connections cause (no port, no descriptor) ends the opening.
    fn begin(&mut self, wanted: usize) -> io::Result<()> {
        let under_way = self.openings.iter().flatten().count();
        let mut missing = wanted.saturating_sub(self.streams.len() + under_way);
        for (token, place) in self.openings.iter_mut().enumerate() {
            if missing == 0 {
                break;
            }
            if place.is_some() {
                continue;
            }
            missing -= 1;
            let sources = &self.spec.sources;
            let source = sources.get(self.turn % sources.len().max(1)).copied();
            self.turn = self.turn.wrapping_add(1);
            let stream = connect(self.spec.destination, source).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "after {} connections: {error} (each needs a port of a source address and \
                         a descriptor)",
                        self.streams.len() + under_way
                    ),
                )
            })?;
            // Ports in TIME-WAIT would be missing for the next to open.
            abort_on_close(stream.as_fd())?;
            self.epoll.add(&stream, token as u64)?;
            *place = Some(Opening {
                stream,
                asked: false,
                response: Response::default(),
            });
        }
        Ok(())
    }

    /// Goes on with a connection that something happened to; one that failed is
    /// begun anew.
    fn go_on(&mut self, token: usize) {
        let Some(place) = self.openings.get_mut(token) else {
            return;
        };
        let Some(opening) = place else { return };
        match opening.go_on(&self.request, !self.spec.path.is_empty()) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(opening) = place.take() {
                    self.streams.push(opening.stream);
                }
            }
            Err(_) => *place = None,
        }
    }
}

impl Opening {
    /// True when it is open and has been answered if it was to be.
    fn go_on(&mut self, request: &[u8], ask: bool) -> io::Result<bool> {
        if !self.asked {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            // Connected?
            if self.stream.peer_addr().is_err() {
                return Ok(false);
            }
            if !ask {
                return Ok(true);
            }
            self.stream.write_all(request)?;
            self.asked = true;
        }
        let mut buffer = [0; 4096];
        loop {
            let outcome = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.response.take(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            match outcome {
                Outcome::Incomplete => {}
                Outcome::Complete { close: false, .. } => return Ok(true),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}
