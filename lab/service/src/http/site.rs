//! The state shared by all connections of a server.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use super::Limits;
use super::entry::{Entry, date};
use super::log::Log;
use super::status::Status;

/// The result of looking up a path.
#[derive(Clone, Debug)]
pub enum Found {
    /// A file.
    Entry(Rc<Entry>),
    /// A directory.
    Directory,
    /// Nothing, or an unserved file.
    Missing,
    /// There, but not readable.
    Forbidden,
    /// Unknown for lack of descriptors or memory, which may pass.
    Busy,
    /// It could not be read.
    Failed,
}

/// The source of files.
pub trait Store {
    /// Looks up a path below the root: plain segments, a slash between two, no
    /// NUL ([`super::path::resolve`]); empty for the root itself.
    fn find(&mut self, path: &[u8], clock: &Clock) -> Found;
}

/// The time, read once for everything in an iteration.
#[derive(Clone, Debug)]
pub struct Clock {
    now: Duration,
    unix: u64,
    date: String,
}

impl Clock {
    /// Creates a clock that shows these times.
    pub fn new(now: Duration, unix: u64) -> Self {
        Clock {
            now,
            unix,
            date: date(unix),
        }
    }

    /// Sets it: `now` since any fixed moment and never going back, `unix` in seconds
    /// since 1970. Returns whether another second has begun.
    pub fn set(&mut self, now: Duration, unix: u64) -> bool {
        self.now = now;
        let other = self.unix != unix;
        if other {
            self.unix = unix;
            self.date = date(unix);
        }
        other
    }

    /// Returns the time since any fixed moment.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns the seconds since 1970.
    pub fn unix(&self) -> u64 {
        self.unix
    }

    /// Returns the value of a Date field, formatted once per second.
    pub fn date(&self) -> &str {
        &self.date
    }
}

/// The work of connections since they were last counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests whose head was complete and well-formed.
    pub requests: u64,
    /// Responses begun, including those to invalid requests.
    pub responses: u64,
    /// Requests refused as malformed, excessive or too slow.
    pub refused: u64,
}

/// The state shared by all connections of a server.
#[derive(Debug)]
pub struct Site<S> {
    /// The files, or another source of answers.
    pub store: S,
    /// The time.
    pub clock: Clock,
    /// The limits of a client.
    pub limits: Limits,
    /// Floating-point multiplications to make for each request.
    pub work: u32,
    /// Set once no further requests are wanted: each connection ends with the current
    /// response.
    pub stopping: bool,
    /// The counts since they were last taken.
    pub counts: Counts,
    /// The access log.
    pub log: Option<Log>,
    /// Room for the path of the current request.
    pub(super) path: Vec<u8>,
}

impl<S> Site<S> {
    /// Creates a site of these files, without work or log.
    pub fn new(store: S, clock: Clock, limits: Limits) -> Self {
        Site {
            store,
            clock,
            limits,
            work: 0,
            stopping: false,
            counts: Counts::default(),
            log: None,
            path: Vec::new(),
        }
    }

    /// Counts and logs a response that has begun, to a request with this method, target
    /// and minor version (`None` for an invalid one).
    pub(super) fn account(
        &mut self,
        peer: IpAddr,
        request: Option<(&str, &str, u8)>,
        status: Status,
        length: u64,
    ) {
        self.counts.responses += 1;
        if let Some(log) = &mut self.log {
            log.add(peer, &self.clock, request, status, length);
        }
    }
}
