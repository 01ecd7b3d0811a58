//! The error queue of a socket (`MSG_ERRQUEUE`): when what was sent with
//! MSG_ZEROCOPY may be used again, and when bytes were sent and acknowledged
//! (`SO_TIMESTAMPING`).

use core::time::Duration;
use std::collections::VecDeque;

/// `linux/net_tstamp.h`
pub(super) const TX_SOFTWARE: u32 = 1 << 1;
pub(super) const SOFTWARE: u32 = 1 << 4;
pub(super) const OPT_ID: u32 = 1 << 7;
pub(super) const TX_SCHED: u32 = 1 << 8;
pub(super) const TX_ACK: u32 = 1 << 9;

/// What `recvmsg` with MSG_ERRQUEUE tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notification {
    /// Calls with MSG_ZEROCOPY are over (`SO_EE_ORIGIN_ZEROCOPY`): their numbers,
    /// first and last, from 0. The bytes were copied
    /// (`SO_EE_CODE_ZEROCOPY_COPIED`).
    Zerocopy {
        /// `ee_info`.
        first: u32,
        /// `ee_data`.
        last: u32,
    },
    /// Something happened to the last byte of a call
    /// (`SO_EE_ORIGIN_TIMESTAMPING`).
    Timestamp {
        /// `ee_info`: 0 sent by the device (`SCM_TSTAMP_SND`), 1 given to it
        /// (`SCM_TSTAMP_SCHED`), 2 acknowledged (`SCM_TSTAMP_ACK`).
        what: u32,
        /// `ee_data`: which byte, from 0, since the option was set.
        byte: u32,
        /// When, by the host's clock.
        at: Duration,
    },
}

/// A byte whose ways are told.
#[derive(Clone, Copy)]
struct Watched {
    /// The offset after it.
    end: u64,
    sent: bool,
}

/// The error queue of one connection.
#[derive(Default)]
pub(super) struct ErrorQueue {
    queue: VecDeque<Notification>,
    /// Calls with MSG_ZEROCOPY.
    calls: u32,
    /// The offset after the last byte of each, and its number.
    zerocopy: VecDeque<(u64, u32)>,
    /// `SO_TIMESTAMPING`.
    pub(super) flags: u32,
    /// The offset from which bytes are counted.
    pub(super) base: u64,
    watched: VecDeque<Watched>,
}

impl ErrorQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Notification> {
        self.queue.pop_front()
    }

    /// A call with MSG_ZEROCOPY ends at an offset.
    pub(super) fn zerocopy(&mut self, end: u64) {
        self.zerocopy.push_back((end, self.calls));
        self.calls = self.calls.wrapping_add(1);
    }

    /// A call ends at an offset; `same_packet` is where the packet begins that
    /// its last byte is in: only one byte of a packet is told of.
    pub(super) fn watch(&mut self, end: u64, same_packet: u64) {
        if self.flags & (TX_SCHED | TX_SOFTWARE | TX_ACK) == 0 {
            return;
        }
        if let Some(last) = self.watched.back()
            && !last.sent
            && last.end > same_packet
        {
            self.watched.pop_back();
        }
        self.watched.push_back(Watched { end, sent: false });
    }

    /// Takes how far the connection has come; true when there is news.
    pub(super) fn update(&mut self, sent: u64, acknowledged: u64, now: Duration) -> bool {
        let mut news = false;
        while let Some(&(end, number)) = self.zerocopy.front()
            && end <= acknowledged
        {
            news = true;
            self.zerocopy.pop_front();
            match self.queue.back_mut() {
                Some(Notification::Zerocopy { last, .. }) if last.wrapping_add(1) == number => {
                    *last = number;
                }
                _ => self.queue.push_back(Notification::Zerocopy {
                    first: number,
                    last: number,
                }),
            }
        }
        let (flags, base) = (self.flags, self.base);
        let mut tell = |flag: u32, what, end: u64| {
            if flags & flag != 0 && flags & SOFTWARE != 0 {
                news = true;
                let byte = if flags & OPT_ID != 0 {
                    end.saturating_sub(base).saturating_sub(1) as u32
                } else {
                    0
                };
                let at = now;
                self.queue
                    .push_back(Notification::Timestamp { what, byte, at });
            }
        };
        for watched in &mut self.watched {
            if !watched.sent && watched.end <= sent {
                watched.sent = true;
                tell(TX_SCHED, 1, watched.end);
                tell(TX_SOFTWARE, 0, watched.end);
            }
        }
        while let Some(&Watched { end, .. }) = self.watched.front()
            && end <= acknowledged
        {
            self.watched.pop_front();
            tell(TX_ACK, 2, end);
        }
        news
    }
}
