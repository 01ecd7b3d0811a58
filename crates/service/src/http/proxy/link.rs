//! The two kinds of connections of the proxy, as the event loop has them: a
//! stream, what is known of it, and a turn of reading and writing.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::super::connection::{End, Output};
use super::session::Session;
use super::shared::Shared;
use crate::counters::Counters;
use crate::stream::{Event, Interest, Stream, StreamHost};

/// In a place: it is that of a connection to an origin.
pub(super) const UPSTREAM: usize = 1 << 31;
/// Bytes read at a time.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// Bytes sent for one connection before the others' turn.
const TURN_BYTES: usize = 256 * 1024;

/// A stream and what is known of it.
pub(super) struct Link<S> {
    pub(super) stream: S,
    pub(super) generation: u32,
    /// A read, a write has not come back with `WouldBlock`, or short, since
    /// the last event.
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    /// The peer will send nothing more: read to the end.
    pub(super) hangup: bool,
    /// What it is watched for, if it is.
    pub(super) watched: Option<Interest>,
}

impl<S: Stream> Link<S> {
    pub(super) fn note(&mut self, event: &Event) {
        self.may_read |= event.readable;
        self.may_write |= event.writable;
        self.hangup |= event.hangup;
    }

    /// Watches it for what is wanted now.
    pub(super) fn watch<H: StreamHost<Stream = S>>(
        &mut self,
        host: &H,
        key: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let token = token(key, self.generation);
        match self.watched {
            Some(watched) if watched == interest => Ok(()),
            Some(_) => host.rewatch(&self.stream, token, interest),
            None => host.watch(&self.stream, token, interest),
        }?;
        self.watched = Some(interest);
        Ok(())
    }

    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(room);
        match &result {
            // A short read found no more, but for the end, which is an event of
            // its own.
            Ok(count) if *count > 0 && *count < room.len() && !self.hangup => self.may_read = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_read = false,
            _ => {}
        }
        result
    }

    pub(super) fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let result = self.stream.write(bytes, more);
        match &result {
            // As much as there was room for.
            Ok(count) if *count < bytes.len() => self.may_write = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_write = false,
            _ => {}
        }
        result
    }
}

/// A client.
pub(super) struct Client<S> {
    pub(super) link: Link<S>,
    pub(super) session: Session,
    /// The connection to the origin that it has.
    pub(super) upstream: Option<usize>,
    /// It waits in `runnable`.
    pub(super) queued: bool,
    /// The tick at which the wheel has it.
    pub(super) due: u64,
}

/// A connection to an origin.
pub(super) struct Upstream<S> {
    pub(super) link: Link<S>,
    pub(super) address: SocketAddr,
    /// Whose it is; nobody's while it waits to be used again.
    pub(super) client: Option<usize>,
    /// It is not known to be there.
    pub(super) connecting: bool,
    /// Addresses to try if this one is not.
    pub(super) others: Vec<SocketAddr>,
    pub(super) idle_since: Duration,
    pub(super) due: u64,
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It waits for its peer.
    Waiting,
    /// There is more to do, after the others' turn.
    Runnable,
    /// It is over.
    Closed,
    /// It broke.
    Failed,
}

impl<S: Stream> Client<S> {
    /// Sends, answers and reads while it can, within bounds: one read, one
    /// burst of requests that had waited, [`TURN_BYTES`].
    pub(super) fn go(
        &mut self,
        shared: &mut Shared,
        scratch: &mut [u8],
        tally: &Tally<'_>,
    ) -> Outcome {
        let now = shared.clock.now();
        let mut left = TURN_BYTES;
        let (mut answered, mut read) = (false, false);
        loop {
            if self.link.may_write
                && let Output::Bytes { bytes, more } = self.session.output()
            {
                match self.link.write(bytes, more) {
                    Ok(count) => {
                        tally.counters.sent(tally.number, count as u64);
                        self.session.sent(count, now);
                        left = left.saturating_sub(count);
                        if left == 0 {
                            return Outcome::Runnable;
                        }
                        continue;
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::Interrupted => continue,
                        io::ErrorKind::WouldBlock => {}
                        _ => return Outcome::Failed,
                    },
                }
            }
            match self.session.end() {
                End::Open => {}
                End::Shutdown => {
                    if self.link.stream.shutdown_write().is_err() {
                        return Outcome::Closed;
                    }
                    self.session.linger(now);
                    self.link.may_read = true;
                }
                End::Close => return Outcome::Closed,
            }
            if self.session.has_work() {
                if answered {
                    return Outcome::Runnable;
                }
                answered = true;
                self.session.proceed(shared);
                tally.count(shared, 0);
                continue;
            }
            if !self.link.may_read || !self.session.wants_input() {
                return Outcome::Waiting;
            }
            if read {
                return Outcome::Runnable;
            }
            match self
                .link
                .read(scratch.get_mut(..READ_BYTES).unwrap_or_default())
            {
                Ok(0) => self.session.end_of_input(),
                Ok(count) => {
                    read = true;
                    let bytes = scratch.get(..count).unwrap_or_default();
                    self.session.receive(bytes, shared);
                    tally.count(shared, count as u64);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ => return Outcome::Failed,
                },
            }
        }
    }
}

/// What has come of a turn with an origin.
pub(super) enum Went {
    /// Nothing.
    Nowhere,
    /// Bytes have moved.
    Somewhere,
    /// The connection could not be made, or broke: with this error.
    Wrong(io::Error),
}

impl<S: Stream> Upstream<S> {
    /// Sends and reads while it can: one read.
    pub(super) fn go(
        &mut self,
        session: &mut Session,
        shared: &mut Shared,
        scratch: &mut [u8],
    ) -> Went {
        if self.connecting {
            if !self.link.may_write {
                return Went::Nowhere;
            }
            // Whether it is there or has failed, the first write tells.
            session.connected(false, shared.clock.now());
        }
        let mut went = Went::Nowhere;
        loop {
            let (bytes, more) = session.upstream_output();
            if !bytes.is_empty() && self.link.may_write {
                match self.link.write(bytes, more) {
                    Ok(count) => {
                        self.connecting = false;
                        session.upstream_sent(count, shared);
                        went = Went::Somewhere;
                        continue;
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::Interrupted => continue,
                        io::ErrorKind::WouldBlock => {}
                        // It may have said why before it closed.
                        io::ErrorKind::BrokenPipe if !self.connecting => {
                            self.link.may_write = false;
                            self.link.may_read = true;
                        }
                        _ => return Went::Wrong(error),
                    },
                }
            }
            if self.connecting || !self.link.may_read || !session.upstream_wants_input() {
                return went;
            }
            match self
                .link
                .read(scratch.get_mut(..READ_BYTES).unwrap_or_default())
            {
                Ok(0) => {
                    session.upstream_end(shared);
                    return Went::Somewhere;
                }
                Ok(count) => {
                    let bytes = scratch.get(..count).unwrap_or_default();
                    session.upstream_receive(bytes, shared);
                    return Went::Somewhere;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return went,
                    _ => return Went::Wrong(error),
                },
            }
        }
    }
}

/// Where it is counted.
pub(super) struct Tally<'a> {
    pub(super) counters: &'a Counters,
    pub(super) number: usize,
}

impl Tally<'_> {
    /// Writes down what has been done, before whoever gets the answers can
    /// look.
    pub(super) fn count(&self, shared: &mut Shared, received: u64) {
        let counts = std::mem::take(&mut shared.counts);
        self.counters
            .batch(self.number, counts.requests, received, counts.responses);
        for _ in 0..counts.refused {
            self.counters.error(self.number);
        }
        self.counters.proxy(&std::mem::take(&mut shared.uses));
    }
}

/// The place and the generation that a token is made of.
pub(super) fn parts(token: u64) -> (usize, u32) {
    ((token & 0xffff_ffff) as usize, (token >> 32) as u32)
}

pub(super) fn token(key: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | key as u64
}
