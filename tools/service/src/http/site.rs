//! What all connections of a server share.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use super::Limits;
use super::entry::{Entry, date};
use super::log::Log;
use super::status::Status;

/// What a path has been found to be.
#[derive(Clone, Debug)]
pub enum Found {
    /// A file.
    Entry(Rc<Entry>),
    /// A directory.
    Directory,
    /// Nothing, or nothing that is served.
    Missing,
    /// There, but not to be read.
    Forbidden,
    /// For want of descriptors or memory, nobody knows: it may pass.
    Busy,
    /// It could not be read.
    Failed,
}

/// Where files come from.
pub trait Store {
    /// Looks up a path below the root: plain segments, a slash between two, no
    /// NUL ([`super::path::resolve`]); empty for the root itself.
    fn find(&mut self, path: &[u8], clock: &Clock) -> Found;
}

/// The time, read once for everything that happens in an iteration.
#[derive(Clone, Debug)]
pub struct Clock {
    now: Duration,
    unix: u64,
    date: String,
}

impl Clock {
    /// A clock that shows these times.
    pub fn new(now: Duration, unix: u64) -> Self {
        Clock {
            now,
            unix,
            date: date(unix),
        }
    }

    /// Sets it: `now` since any fixed moment and never going back, `unix` in
    /// seconds since 1970. Returns whether another second has begun.
    pub fn set(&mut self, now: Duration, unix: u64) -> bool {
        self.now = now;
        let other = self.unix != unix;
        if other {
            self.unix = unix;
            self.date = date(unix);
        }
        other
    }

    /// Time since any fixed moment.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Seconds since 1970.
    pub fn unix(&self) -> u64 {
        self.unix
    }

    /// The value of a Date field, written once a second.
    pub fn date(&self) -> &str {
        &self.date
    }
}

/// What connections have done, since they were last counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests whose head was complete and well-formed.
    pub requests: u64,
    /// Responses begun, those to requests that were no good included.
    pub responses: u64,
    /// Requests refused as malformed, excessive or too slow.
    pub refused: u64,
}

/// What all connections of a server share.
#[derive(Debug)]
pub struct Site<S> {
    /// The files, or what else the answers come from.
    pub store: S,
    /// The time.
    pub clock: Clock,
    /// What a client may take.
    pub limits: Limits,
    /// Floating-point multiplications to make for each request.
    pub work: u32,
    /// Set once no further requests are wanted: each connection ends with the
    /// response at hand.
    pub stopping: bool,
    /// What has been done since somebody last took it.
    pub counts: Counts,
    /// The access log.
    pub log: Option<Log>,
    /// Room for the path of the request at hand.
    pub(super) path: Vec<u8>,
}

impl<S> Site<S> {
    /// A site of these files, without work or log.
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

    /// The response to a request (of this method, target and minor version;
    /// `None` for one that was no good) has begun: counts and logs it.
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
