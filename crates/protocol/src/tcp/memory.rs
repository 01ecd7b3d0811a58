//! What a connection's data takes, and what it does without when all connections
//! together take too much (Linux `tcp_mem`).
//!
//! The engine counts for itself only. The owner of many connections adds up
//! [`Connection::memory`] and says by [`Connection::set_memory_pressure`] how the
//! sum stands; the engine acts on that when it takes, announces and releases.

use super::assembler::ReceiveLimits;
use super::connection::Connection;
use super::out_of_order::QueueLimits;
use super::push_marks::RECORD_SPACE;

/// What a connection may hold either way however short memory is, if a segment is
/// no longer: so that it goes on (the first number of Linux's `tcp_rmem` and
/// `tcp_wmem`).
const LEAST: u32 = 4096;

/// Segments that a window grows to while memory is short (as Linux).
const SHORT_WINDOW: u32 = 4;

/// How the memory of all connections together stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum MemoryPressure {
    /// There is enough.
    #[default]
    None = 0,
    /// Memory is short: nothing is held beyond holes, windows grow to four segments
    /// only and send buffers not at all, empty buffers are given back at once.
    Short = 1,
    /// There is none left: besides, no connection takes more than 4 KiB, or a
    /// segment, in either direction; what more comes is dropped, to be retransmitted.
    Exhausted = 2,
}

/// What the receive buffer may take: looked at only when that decides.
pub(super) struct Limits<'a> {
    pub(super) pressure: &'a MemoryPressure,
    /// Bytes of the receive buffer.
    pub(super) buffer: &'a u32,
    /// What full segments carry.
    pub(super) mss: &'a u16,
}

impl ReceiveLimits for Limits<'_> {
    fn beyond(&self) -> QueueLimits {
        match self.pressure {
            MemoryPressure::None => QueueLimits::new(*self.buffer, *self.mss),
            _ => QueueLimits::NOTHING,
        }
    }

    fn in_order(&self, unread: u32, bytes: usize) -> bool {
        let little = unread == 0 || unread as usize + bytes <= LEAST as usize;
        *self.pressure != MemoryPressure::Exhausted || little
    }
}

impl Connection {
    /// Bytes of memory that data takes: what waits to be read, lies beyond holes, or
    /// was written and not acknowledged. What was allocated counts, not what is
    /// filled.
    #[inline]
    pub fn memory(&self) -> usize {
        self.receive.assembler.capacity()
            + self.receive.assembler.out_of_order_memory()
            + self.send.buffer.capacity()
    }

    /// Says how the memory of all connections together stands.
    #[inline]
    pub fn set_memory_pressure(&mut self, pressure: MemoryPressure) {
        self.pressure = pressure;
    }

    /// Gives back what can be had without loss to the application: what lies beyond
    /// holes, which the peer sends again (RFC 2018 §8), and room in buffers that is
    /// not used.
    pub fn prune(&mut self) {
        self.receive.assembler.prune();
        self.send.buffer.fit();
    }

    #[inline]
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.pressure != MemoryPressure::None
    }

    fn least(&self) -> u32 {
        LEAST.max(u32::from(self.config.mss) + RECORD_SPACE)
    }

    /// Bytes that a window may grow to while memory is short.
    #[cold]
    pub(super) fn short_receive_room(&self) -> u32 {
        let unread = self.receive.assembler.unread();
        let most = match self.pressure {
            MemoryPressure::Exhausted => self.least().saturating_sub(unread),
            _ => SHORT_WINDOW * u32::from(self.config.mss),
        };
        self.receive.buffer_limit.saturating_sub(unread).min(most)
    }

    /// The window to offer while memory is short: what `held` says was promised, or a
    /// good step more.
    #[cold]
    pub(super) fn short_window(&self, held: u32, step: u32) -> u32 {
        let room = self.short_receive_room();
        if room >= held.saturating_add(step) {
            room
        } else {
            held
        }
    }

    /// The send buffer's size as far as memory goes.
    #[cold]
    pub(super) fn short_send_limit(&self, limit: u32) -> u32 {
        match self.pressure {
            MemoryPressure::None => limit,
            // A size that the application has asked for stays (as Linux).
            MemoryPressure::Short if self.send.buffer_limit != 0 => limit,
            MemoryPressure::Short => limit.min(self.config.send_buffer),
            MemoryPressure::Exhausted => limit.min(self.least()),
        }
    }
}
