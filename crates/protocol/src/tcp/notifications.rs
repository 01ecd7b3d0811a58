//! Timestamps of sent, acknowledged and received bytes (`SO_TIMESTAMPING`), and
//! completions of writes without copying (`MSG_ZEROCOPY`). This is Linux's error queue
//! (`MSG_ERRQUEUE`), without its encoding.
//!
//! A connection that uses none of this holds only a null pointer.

use std::collections::VecDeque;

use super::connection::Connection;
use super::freeze::Codec;
use super::{State, Time};
use tidewall_wire::tcp::before;

/// Limit of write ends that wait to leave or to be acknowledged.
const MARKS_MAX: usize = 1024;

/// Limit of notifications that wait to be taken.
const QUEUE_MAX: usize = 1024;

/// Limit of distinct arrival times kept for unread data.
const ARRIVALS_MAX: usize = 256;

/// Which times are reported (`SO_TIMESTAMPING`); none by default.
///
/// Times come from software, from the clock that the engine is given. A setting applies
/// to writes made, and segments received, from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamping {
    /// When the last byte of a write is about to leave (`SOF_TIMESTAMPING_TX_SCHED`).
    /// There is no queue between here and the device, so it is the same moment as
    /// [`Timestamping::sent`].
    pub scheduled: bool,
    /// When the last byte of a write is handed to the device for the first time
    /// (`SOF_TIMESTAMPING_TX_SOFTWARE`).
    pub sent: bool,
    /// When the whole write is acknowledged (`SOF_TIMESTAMPING_TX_ACK`).
    pub acknowledged: bool,
    /// When the data that is read arrived: see [`Connection::read_timestamp`]
    /// (`SOF_TIMESTAMPING_RX_SOFTWARE`).
    pub received: bool,
    /// How writes are identified.
    pub keys: TimestampKeys,
}

impl Timestamping {
    fn of_writes(self) -> bool {
        self.scheduled || self.sent || self.acknowledged
    }
}

/// The unit of a timestamp's key (`SOF_TIMESTAMPING_OPT_ID`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum TimestampKeys {
    /// Nothing: the key is zero.
    #[default]
    None = 0,
    /// Bytes of the stream, from the first one that was unacknowledged when keys were
    /// asked for. The SYN counts as one byte while it is not acknowledged.
    FromUnacknowledged = 1,
    /// Bytes of the stream, from the first one that was not written then
    /// (`SOF_TIMESTAMPING_OPT_ID_TCP`). This is the better choice: it does not depend on
    /// what the peer has acknowledged meanwhile.
    FromWritten = 2,
}

/// An event of the last byte of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TimestampEvent {
    /// It left (`SCM_TSTAMP_SND`).
    Sent = 0,
    /// It was about to leave (`SCM_TSTAMP_SCHED`).
    Scheduled = 1,
    /// It is acknowledged, with everything before it; selective acknowledgment does not
    /// count (`SCM_TSTAMP_ACK`).
    Acknowledged = 2,
}

/// One entry of the error queue (`MSG_ERRQUEUE`). Its times have type `At`: of the clock
/// that the engine is given, or converted from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notification<At = Time> {
    /// A timestamp that [`Timestamping`] asks for (`SO_EE_ORIGIN_TIMESTAMPING`).
    Time {
        /// The event.
        event: TimestampEvent,
        /// Which byte it happened to, as [`TimestampKeys`] has it.
        key: u32,
        /// When it happened. For sent bytes: when they were put into the device's queue.
        at: At,
    },
    /// Writes without copying are complete (`SO_EE_ORIGIN_ZEROCOPY`): their memory may be
    /// reused. The first such write of a connection has number 0; numbers wrap.
    Free {
        /// The first of these writes.
        first: u32,
        /// The last of these writes.
        last: u32,
        /// Their bytes were copied after all (`SO_EE_CODE_ZEROCOPY_COPIED`): always true
        /// with this engine.
        copied: bool,
    },
}

impl<At> Notification<At> {
    /// Converts the entry's time by `clock`.
    pub fn by<Other>(self, clock: impl FnOnce(At) -> Other) -> Notification<Other> {
        match self {
            Notification::Time { event, key, at } => Notification::Time {
                event,
                key,
                at: clock(at),
            },
            Notification::Free {
                first,
                last,
                copied,
            } => Notification::Free {
                first,
                last,
                copied,
            },
        }
    }
}

#[derive(Clone, Copy)]
struct Mark {
    /// Sequence number of its last byte.
    last: u32,
    key: u32,
    scheduled: bool,
    sent: bool,
    acknowledged: bool,
}

/// The error queue of a connection, and the events that will enter it.
#[derive(Default)]
pub(super) struct ErrorQueue {
    timestamping: Timestamping,
    zero_copy: bool,
    /// The sequence number that keys count from.
    base: u32,
    /// Number of the next write without copying.
    next_write: u32,
    /// In the order of sequence numbers; none is acknowledged.
    marks: VecDeque<Mark>,
    /// How many of them, from the first on, have left.
    left: usize,
    queue: VecDeque<Notification>,
    /// Timestamps dropped for want of room.
    lost: u32,
    /// Notifications ever queued, wrapping.
    queued: u32,
    /// Pairs of sequence number and arrival time for data beyond the bytes read.
    arrivals: VecDeque<(u32, Time)>,
    /// Unread data before this sequence number arrived before times were kept.
    before_arrivals: Option<u32>,
    /// When the last byte that was read had arrived.
    read: Option<Time>,
}

impl ErrorQueue {
    fn push_time(&mut self, event: TimestampEvent, key: u32, at: Time) {
        if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(Notification::Time { event, key, at });
            self.queued = self.queued.wrapping_add(1);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Queues the completion of the next write. Consecutive completions share a
    /// notification, as long as nothing else was queued between them (Linux
    /// `skb_zerocopy_notify_extend`).
    fn complete_zero_copy(&mut self) {
        let number = self.next_write;
        self.next_write = number.wrapping_add(1);
        self.queued = self.queued.wrapping_add(1);
        let full = self.queue.len() >= QUEUE_MAX;
        // In a full queue entries between them are skipped: no completion may be lost.
        let reach = if full { usize::MAX } else { 1 };
        for last_queued in self.queue.iter_mut().rev().take(reach) {
            if let Notification::Free {
                first,
                last,
                copied: true,
            } = last_queued
                && last.wrapping_add(1) == number
                // Not all possible numbers.
                && *first != number
            {
                *last = number;
                return;
            }
        }
        // At most one entry over the limit: the next completion is merged above.
        self.queue.push_back(Notification::Free {
            first: number,
            last: number,
            copied: true,
        });
    }

    /// Returns the codec's values in place of these.
    pub(super) fn with<C: Codec>(&self, codec: &mut C) -> Self {
        let mut copy = Self {
            timestamping: Timestamping {
                scheduled: codec.flag(self.timestamping.scheduled),
                sent: codec.flag(self.timestamping.sent),
                acknowledged: codec.flag(self.timestamping.acknowledged),
                received: codec.flag(self.timestamping.received),
                keys: match codec.u8(self.timestamping.keys as u8) {
                    0 => TimestampKeys::None,
                    1 => TimestampKeys::FromUnacknowledged,
                    _ => TimestampKeys::FromWritten,
                },
            },
            zero_copy: codec.flag(self.zero_copy),
            base: codec.u32(self.base),
            next_write: codec.u32(self.next_write),
            lost: codec.u32(self.lost),
            queued: codec.u32(self.queued),
            ..Self::default()
        };
        for index in 0..count(self.marks.len(), MARKS_MAX, codec) {
            let mark = self.marks.get(index).copied().unwrap_or(Mark {
                last: 0,
                key: 0,
                scheduled: false,
                sent: false,
                acknowledged: false,
            });
            copy.marks.push_back(Mark {
                last: codec.u32(mark.last),
                key: codec.u32(mark.key),
                scheduled: codec.flag(mark.scheduled),
                sent: codec.flag(mark.sent),
                acknowledged: codec.flag(mark.acknowledged),
            });
        }
        copy.left = (codec.u16(self.left as u16) as usize).min(copy.marks.len());
        for index in 0..count(self.queue.len(), QUEUE_MAX + 1, codec) {
            let queued = self.queue.get(index).copied();
            copy.queue.push_back(notification(queued, codec));
        }
        let now = codec.now();
        for index in 0..count(self.arrivals.len(), ARRIVALS_MAX, codec) {
            let (end, at) = self.arrivals.get(index).copied().unwrap_or((0, now));
            copy.arrivals.push_back((codec.u32(end), codec.time(at)));
        }
        copy.before_arrivals = codec.maybe(self.before_arrivals, 0, C::u32);
        copy.read = codec.maybe(self.read, now, C::time);
        copy
    }
}

/// The number of entries that follow, bounded by `most`.
fn count(held: usize, most: usize, codec: &mut impl Codec) -> usize {
    let count = usize::from(codec.u16(held as u16));
    if count > most {
        codec.damaged();
        return 0;
    }
    count
}

fn notification<C: Codec>(queued: Option<Notification>, codec: &mut C) -> Notification {
    let (kind, a, b, at) = match queued {
        Some(Notification::Time { event, key, at }) => (event as u8, key, 0, at),
        Some(Notification::Free {
            first,
            last,
            copied,
        }) => (3 + u8::from(copied), first, last, codec.now()),
        None => (0, 0, 0, codec.now()),
    };
    let (kind, a, b, at) = (codec.u8(kind), codec.u32(a), codec.u32(b), codec.time(at));
    let event = match kind {
        0 => TimestampEvent::Sent,
        1 => TimestampEvent::Scheduled,
        2 => TimestampEvent::Acknowledged,
        _ => {
            return Notification::Free {
                first: a,
                last: b,
                copied: kind > 3,
            };
        }
    };
    Notification::Time { event, key: a, at }
}

impl Connection {
    /// Sets which times are reported from now on (`SO_TIMESTAMPING`). Keys count from the
    /// moment they are first asked for; asking for other times later does not restart
    /// them.
    pub fn set_timestamping(&mut self, timestamping: Timestamping) {
        if timestamping == self.timestamping() {
            return;
        }
        let (una, written) = (self.send.una, self.send.write_seq);
        let old = (self.receive.assembler.unread() > 0).then(|| self.receive.assembler.next());
        let error_queue = self.error_queue.get_or_insert_default();
        let keys = timestamping.keys;
        if keys != TimestampKeys::None && error_queue.timestamping.keys == TimestampKeys::None {
            error_queue.base = if keys == TimestampKeys::FromWritten {
                written
            } else {
                una
            };
        }
        if timestamping.received != error_queue.timestamping.received {
            error_queue.arrivals.clear();
            error_queue.before_arrivals = old;
            error_queue.read = None;
        }
        error_queue.timestamping = timestamping;
    }

    /// See [`Connection::set_timestamping`].
    pub fn timestamping(&self) -> Timestamping {
        match &self.error_queue {
            Some(error_queue) => error_queue.timestamping,
            None => Timestamping::default(),
        }
    }

    /// Sets whether completions of writes without copying are reported (`SO_ZEROCOPY`).
    pub fn set_zero_copy(&mut self, on: bool) {
        if on != self.zero_copy() {
            self.error_queue.get_or_insert_default().zero_copy = on;
        }
    }

    /// See [`Connection::set_zero_copy`].
    pub fn zero_copy(&self) -> bool {
        self.error_queue
            .as_ref()
            .is_some_and(|error_queue| error_queue.zero_copy)
    }

    /// Records that one call of the application has written `bytes` in total by
    /// [`Connection::write`]. It must be called before those bytes leave.
    /// [`Timestamping`] concerns the last byte of the call.
    ///
    /// With `zero_copy` (`MSG_ZEROCOPY`) and [`Connection::set_zero_copy`] the call gets
    /// a number, and [`Notification::Free`] at once: this engine copies written data into
    /// its buffer.
    pub fn end_write(&mut self, bytes: usize, zero_copy: bool) {
        if bytes == 0 {
            return;
        }
        let last = self.send.write_seq.wrapping_sub(1);
        let unsent = !before(last, self.send.nxt);
        let Some(error_queue) = &mut self.error_queue else {
            return;
        };
        let wanted = error_queue.timestamping;
        if wanted.of_writes() {
            if unsent && error_queue.marks.len() < MARKS_MAX {
                let key = match wanted.keys {
                    TimestampKeys::None => 0,
                    _ => last.wrapping_sub(error_queue.base),
                };
                error_queue.marks.push_back(Mark {
                    last,
                    key,
                    scheduled: wanted.scheduled,
                    sent: wanted.sent,
                    acknowledged: wanted.acknowledged,
                });
            } else {
                error_queue.lost = error_queue.lost.saturating_add(1);
            }
        }
        if zero_copy && error_queue.zero_copy {
            error_queue.complete_zero_copy();
        }
    }

    /// True while [`Connection::take_notification`] would return an entry: `EPOLLERR` on
    /// Linux.
    #[inline]
    pub fn has_notifications(&self) -> bool {
        self.error_queue
            .as_ref()
            .is_some_and(|error_queue| !error_queue.queue.is_empty())
    }

    /// The oldest notification not yet taken (`recvmsg` with `MSG_ERRQUEUE`).
    /// Notifications outlive the connection.
    pub fn take_notification(&mut self) -> Option<Notification> {
        self.error_queue.as_mut()?.queue.pop_front()
    }

    /// Number of notifications ever queued, wrapping. Waiters are woken when it changes,
    /// whether notifications are taken or not (edge-triggered epoll).
    #[inline]
    pub fn notification_count(&self) -> u32 {
        self.error_queue
            .as_ref()
            .map_or(0, |error_queue| error_queue.queued)
    }

    /// Timestamps that were not reported because 1024 writes waited to be acknowledged,
    /// or 1024 notifications to be taken. Completions are always reported.
    pub fn notifications_lost(&self) -> u32 {
        self.error_queue
            .as_ref()
            .map_or(0, |error_queue| error_queue.lost)
    }

    /// When the last byte that was read became readable in order, with
    /// [`Timestamping::received`]. `None` if it arrived before that was asked for. If
    /// more than 256 times would have to be kept, the later one counts for both, as on
    /// Linux when two segments are merged.
    pub fn read_timestamp(&self) -> Option<Time> {
        self.error_queue.as_ref()?.read
    }

    /// Records that new bytes have left.
    #[cold]
    pub(super) fn timestamp_sent(&mut self, end: u32, now: Time) {
        let Some(error_queue) = &mut self.error_queue else {
            return;
        };
        while let Some(&mark) = error_queue.marks.get(error_queue.left)
            && before(mark.last, end)
        {
            error_queue.left += 1;
            if mark.scheduled {
                error_queue.push_time(TimestampEvent::Scheduled, mark.key, now);
            }
            if mark.sent {
                error_queue.push_time(TimestampEvent::Sent, mark.key, now);
            }
        }
    }

    /// Records that SND.UNA has moved.
    #[cold]
    pub(super) fn timestamp_acknowledged(&mut self, now: Time) {
        let una = self.send.una;
        let Some(error_queue) = &mut self.error_queue else {
            return;
        };
        while let Some(mark) = error_queue
            .marks
            .pop_front_if(|mark| before(mark.last, una))
        {
            error_queue.left = error_queue.left.saturating_sub(1);
            if mark.acknowledged {
                error_queue.push_time(TimestampEvent::Acknowledged, mark.key, now);
            }
        }
    }

    /// Records that more data is in order.
    #[cold]
    pub(super) fn note_arrival(&mut self, now: Time) {
        let end = self.receive.assembler.next();
        let Some(error_queue) = &mut self.error_queue else {
            return;
        };
        if !error_queue.timestamping.received || self.state == State::Closed {
            return;
        }
        let full = error_queue.arrivals.len() >= ARRIVALS_MAX;
        match error_queue.arrivals.back_mut() {
            Some(last) if full || last.1 == now => *last = (end, now),
            _ => error_queue.arrivals.push_back((end, now)),
        }
    }

    /// Records that data was read.
    #[cold]
    pub(super) fn note_read(&mut self) {
        let unread = self.receive.assembler.unread();
        let position = self.receive.assembler.next().wrapping_sub(unread);
        let Some(error_queue) = &mut self.error_queue else {
            return;
        };
        error_queue.read = None;
        if let Some(old) = error_queue.before_arrivals {
            if !before(old, position) {
                return;
            }
            error_queue.before_arrivals = None;
        }
        while let Some(&(end, at)) = error_queue.arrivals.front() {
            if before(position, end) {
                // Partially read.
                error_queue.read = Some(at);
                return;
            }
            error_queue.arrivals.pop_front();
            if end == position {
                error_queue.read = Some(at);
                return;
            }
        }
    }
}
