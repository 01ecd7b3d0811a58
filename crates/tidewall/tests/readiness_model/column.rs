//! The operations of both columns.
//!
//! Numbers are small and belong to the test. A column maps them one to one to descriptors
//! of its kind, so that closing and reusing a number means the same in both.
//! Each connection has a *subject*, which has a number and is watched, and a *peer*, which
//! is known by the connection's name alone.

use std::net::Shutdown;

/// A result, or an errno.
pub type Answer<T> = Result<T, i32>;

/// Events and data.
pub type Event = (u32, u64);

/// To be read, to be written, and exceptions.
pub type Selected = [Vec<i32>; 3];

/// Numbers that a test may use: below this.
pub const NUMBERS: i32 = 24;

/// One of the two.
pub trait Column {
    /// A connected pair: the subject, nonblocking, becomes `fd`, which is free.
    fn pair(&mut self, fd: i32, connection: usize);
    /// A listener, nonblocking, becomes `fd`, which is free.
    fn listener(&mut self, fd: i32);
    /// A datagram socket with a peer, nonblocking, becomes `fd`, which is free.
    fn datagram(&mut self, fd: i32, connection: usize);
    /// A nonblocking kernel eventfd becomes `fd`, which is free.
    fn counter(&mut self, fd: i32);
    /// The reading end of a nonblocking kernel pipe becomes `fd`, which is free, and the
    /// writing end `to`.
    fn pipe(&mut self, fd: i32, to: i32);
    /// A regular file of the kernel's becomes `fd`, which is free.
    fn file(&mut self, fd: i32);
    /// A peer begins to connect to the listener `fd`.
    fn peer_connect(&mut self, fd: i32, connection: usize);
    /// Accepts a connection, which becomes `to`, which is free.
    fn accept(&mut self, fd: i32, to: i32) -> Answer<()>;
    /// Begins to connect, nonblocking, to a peer that accepts.
    fn connect(&mut self, fd: i32, connection: usize);

    /// The peer sends so many bytes.
    fn peer_write(&mut self, connection: usize, length: usize);
    /// The peer reads all that is there.
    fn peer_read(&mut self, connection: usize);
    /// The peer closes one half.
    fn peer_shutdown(&mut self, connection: usize, how: Shutdown);
    /// The peer closes; `reset`: by a reset.
    fn peer_close(&mut self, connection: usize, reset: bool);

    /// Reads at most so many bytes.
    fn read(&mut self, fd: i32, length: usize) -> Answer<usize>;
    /// Writes so many bytes.
    fn write(&mut self, fd: i32, length: usize) -> Answer<usize>;
    /// Adds to an eventfd, or (0) reads it.
    fn count(&mut self, fd: i32, add: u64) -> Answer<()>;
    /// Closes one half of a subject, or both.
    fn shutdown(&mut self, fd: i32, how: Shutdown) -> Answer<()>;
    /// SO_ERROR.
    fn take_error(&mut self, fd: i32) -> Answer<i32>;
    /// Closes a number.
    fn close(&mut self, fd: i32) -> Answer<()>;
    /// Another number, which is free, for the same open file.
    fn dup(&mut self, fd: i32, to: i32) -> Answer<()>;

    /// A new set becomes `fd`, which is free.
    fn epoll_create(&mut self, fd: i32);
    /// `epoll_ctl`; `operation` is EPOLL_CTL_*.
    fn epoll_ctl(&mut self, set: i32, operation: i32, fd: i32, event: Option<Event>) -> Answer<()>;
    /// `epoll_wait` without waiting.
    fn epoll_wait(&mut self, set: i32, most: usize) -> Answer<Vec<Event>>;

    /// `select` without waiting, on the numbers below `count` of three sets: those
    /// of each that are ready, rising, and what the call returns.
    fn select(&mut self, sets: &Selected, count: i32) -> Answer<(usize, Selected)>;
    /// `poll` without waiting, on numbers and POLL* bits: the bits returned, and
    /// what the call returns.
    fn poll(&mut self, list: &[(i32, i16)]) -> Answer<(usize, Vec<i16>)>;

    /// Until everything that was sent has arrived and been answered.
    fn quiesce(&mut self);
}
