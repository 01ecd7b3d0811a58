//! How much memory a connection's data takes, and what is limited when all connections
//! together take too much (Linux `tcp_mem`).
//!
//! The engine counts only its own memory. The owner of many connections adds up
//! [`Connection::memory`] and reports the level of the sum by
//! [`Connection::set_memory_pressure`]. The engine applies it when it accepts, announces
//! and releases.

use super::assembler::ReceiveLimits;
use super::connection::Connection;
use super::out_of_order::QueueLimits;
use super::push_marks::RECORD_SPACE;

/// The memory that a connection may hold in each direction under any memory pressure;
/// more if a segment is longer. It keeps the connection going (the first number of
/// `tcp_rmem` and `tcp_wmem` in Linux).
const LEAST: u32 = 4096;

/// Segments to which a window grows while memory is short (as Linux).
const SHORT_WINDOW: u32 = 4;

/// Level of the memory of all connections together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum MemoryPressure {
    /// There is enough.
    #[default]
    None = 0,
    /// Memory is short. Nothing is held beyond holes, windows grow to four segments only,
    /// and send buffers not at all. Empty buffers are freed at once.
    Short = 1,
    /// No memory is left. In addition, no connection takes more than 4 KiB, or a segment,
    /// in either direction. Further data is dropped, to be retransmitted.
    Exhausted = 2,
}

/// Limits of the receive buffer; computed only when they decide.
pub(super) struct Limits<'a> {
    pub(super) pressure: &'a MemoryPressure,
    /// Bytes of the receive buffer.
    pub(super) buffer: &'a u32,
    /// The payload of full segments.
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
    /// Bytes of memory that data takes: unread, beyond holes, or written and not
    /// acknowledged. Counts the allocated bytes, not the filled ones.
    #[inline]
    pub fn memory(&self) -> usize {
        self.receive.assembler.capacity()
            + self.receive.assembler.out_of_order_memory()
            + self.send.buffer.capacity()
    }

    /// Sets the level of the memory of all connections together.
    #[inline]
    pub fn set_memory_pressure(&mut self, pressure: MemoryPressure) {
        self.pressure = pressure;
    }

    /// Frees memory without loss to the application: data beyond holes, which the peer
    /// sends again (RFC 2018 §8), and unused buffer space.
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

    /// Bytes to which a window may grow while memory is short.
    #[cold]
    pub(super) fn short_receive_room(&self) -> u32 {
        let unread = self.receive.assembler.unread();
        let most = match self.pressure {
            MemoryPressure::Exhausted => self.least().saturating_sub(unread),
            _ => SHORT_WINDOW * u32::from(self.config.mss),
        };
        self.receive.buffer_limit.saturating_sub(unread).min(most)
    }

    /// The window to offer while memory is short: the promised window `held`, or a good
    /// step more.
    #[cold]
    pub(super) fn short_window(&self, held: u32, step: u32) -> u32 {
        let room = self.short_receive_room();
        if room >= held.saturating_add(step) {
            room
        } else {
            held
        }
    }

    /// The send buffer's size under the current memory pressure.
    #[cold]
    pub(super) fn short_send_limit(&self, limit: u32) -> u32 {
        match self.pressure {
            MemoryPressure::None => limit,
            // A size set by the application stays (as Linux).
            MemoryPressure::Short if self.send.buffer_limit != 0 => limit,
            MemoryPressure::Short => limit.min(self.config.send_buffer),
            MemoryPressure::Exhausted => limit.min(self.least()),
        }
    }
}
