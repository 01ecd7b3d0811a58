//! What an application is told of its bytes beside the bytes themselves: when
//! they left, were acknowledged and came (`SO_TIMESTAMPING`), and when the memory
//! that they were written from is free again (`MSG_ZEROCOPY`). Linux's error
//! queue (`MSG_ERRQUEUE`), without its encoding.
//!
//! Asked of a connection that wants none of it, all of this is one pointer that is
//! null.

use std::collections::VecDeque;

use super::connection::Connection;
use super::freeze::Codec;
use super::{State, Time};
use tidewall_wire::tcp::before;

/// Ends of writes that wait to leave or to be acknowledged, at most.
const MARKS_MAX: usize = 1024;

/// Notifications that wait to be taken, at most.
const QUEUE_MAX: usize = 1024;

/// Moments of arrival that are told apart in what is not read, at most.
const ARRIVALS_MAX: usize = 256;

/// Which times are told (`SO_TIMESTAMPING`); none unless said.
///
/// Times are software's, of the clock that the engine is given. What is asked
/// for counts for calls that write, or segments that come, from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamping {
    /// When the last byte of a write is about to leave
    /// (`SOF_TIMESTAMPING_TX_SCHED`). There is no queue between here and the
    /// device: the same moment as [`Timestamping::sent`].
    pub scheduled: bool,
    /// When the last byte of a write is handed to the device for the first time
    /// (`SOF_TIMESTAMPING_TX_SOFTWARE`).
    pub sent: bool,
    /// When all of a write is acknowledged (`SOF_TIMESTAMPING_TX_ACK`).
    pub acknowledged: bool,
    /// When what is read has come: see [`Connection::read_timestamp`]
    /// (`SOF_TIMESTAMPING_RX_SOFTWARE`).
    pub received: bool,
    /// What tells one write from another.
    pub keys: TimestampKeys,
}

impl Timestamping {
    /// Something of what is written is to be told.
    fn of_writes(self) -> bool {
        self.scheduled || self.sent || self.acknowledged
    }
}

/// What the key of a time counts (`SOF_TIMESTAMPING_OPT_ID`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum TimestampKeys {
    /// Nothing: it is zero.
    #[default]
    None = 0,
    /// Bytes of the stream, from the first that was not acknowledged when keys
    /// were asked for. The SYN counts as one while it is not acknowledged.
    FromUnacknowledged = 1,
    /// Bytes of the stream, from the first that was not written then
    /// (`SOF_TIMESTAMPING_OPT_ID_TCP`): the better choice, for it does not depend
    /// on what the peer has acknowledged meanwhile.
    FromWritten = 2,
}

/// What has happened to the last byte of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TimestampEvent {
    /// It left (`SCM_TSTAMP_SND`).
    Sent = 0,
    /// It was about to leave (`SCM_TSTAMP_SCHED`).
    Scheduled = 1,
    /// It is acknowledged, and all before it; selective acknowledgment does not
    /// count (`SCM_TSTAMP_ACK`).
    Acknowledged = 2,
}

/// One entry of the error queue (`MSG_ERRQUEUE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notification {
    /// A time that [`Timestamping`] asks for (`SO_EE_ORIGIN_TIMESTAMPING`).
    Time {
        /// What happened.
        event: TimestampEvent,
        /// Which byte it happened to, as [`TimestampKeys`] has it.
        key: u32,
        /// When, by the clock that the engine is given.
        at: Time,
    },
    /// Writes without copying are done (`SO_EE_ORIGIN_ZEROCOPY`): the memory that
    /// they were made from may be used again. The first such write of a
    /// connection has number 0; numbers wrap.
    Free {
        /// The first of them.
        first: u32,
        /// The last of them.
        last: u32,
        /// Their bytes were copied all the same (`SO_EE_CODE_ZEROCOPY_COPIED`):
        /// always, by this engine.
        copied: bool,
    },
}

/// The end of a write.
#[derive(Clone, Copy)]
struct Mark {
    /// Sequence number of its last byte.
    last: u32,
    key: u32,
    scheduled: bool,
    sent: bool,
    acknowledged: bool,
}

/// Of a connection whose application wants to be told.
#[derive(Default)]
pub(super) struct Notices {
    timestamping: Timestamping,
    zero_copy: bool,
    /// The sequence number that keys count from.
    base: u32,
    /// Number of the next write without copying.
    next_write: u32,
    /// In the order of sequence numbers; none is acknowledged.
    marks: VecDeque<Mark>,
    /// The first so many of them have left.
    left: usize,
    queue: VecDeque<Notification>,
    /// What there was no room for.
    lost: u32,
    /// Everything that was ever put into the queue.
    told: u32,
    /// Sequence numbers up to which had come at a time, beyond what was read.
    arrivals: VecDeque<(u32, Time)>,
    /// Of what was not read, what is before it had come before times were kept.
    before_arrivals: Option<u32>,
    /// When the last byte that was read had come.
    read: Option<Time>,
}

impl Notices {
    fn tell(&mut self, event: TimestampEvent, key: u32, at: Time) {
        if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(Notification::Time { event, key, at });
            self.told = self.told.wrapping_add(1);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Tells that the next write is done. Those that follow each other are told at
    /// once, as long as nothing else was told between them (Linux
    /// `skb_zerocopy_notify_extend`).
    fn tell_free(&mut self) {
        let number = self.next_write;
        self.next_write = number.wrapping_add(1);
        self.told = self.told.wrapping_add(1);
        let full = self.queue.len() >= QUEUE_MAX;
        // In a full queue what was told between them does not count: nobody may
        // wait for memory for ever.
        let reach = if full { usize::MAX } else { 1 };
        for told in self.queue.iter_mut().rev().take(reach) {
            if let Notification::Free {
                first,
                last,
                copied: true,
            } = told
                && last.wrapping_add(1) == number
                // Not all numbers that there are.
                && *first != number
            {
                *last = number;
                return;
            }
        }
        // One more than there is room for, at most: the next is found above.
        self.queue.push_back(Notification::Free {
            first: number,
            last: number,
            copied: true,
        });
    }

    /// What a codec has, in place of these.
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
            told: codec.u32(self.told),
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
            let told = self.queue.get(index).copied();
            copy.queue.push_back(notification(told, codec));
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

/// How many follow, and no more than there may be.
fn count(held: usize, most: usize, codec: &mut impl Codec) -> usize {
    let count = usize::from(codec.u16(held as u16));
    if count > most {
        codec.damaged();
        return 0;
    }
    count
}

fn notification<C: Codec>(told: Option<Notification>, codec: &mut C) -> Notification {
    let (kind, a, b, at) = match told {
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
    /// Which times are told from now on (`SO_TIMESTAMPING`). Keys begin to count
    /// when they are asked for, not again when other times are.
    pub fn set_timestamping(&mut self, timestamping: Timestamping) {
        if timestamping == self.timestamping() {
            return;
        }
        let (first, written) = (self.send.first, self.send.written);
        let old = (self.receive.assembler.unread() > 0).then(|| self.receive.assembler.next());
        let notices = self.notices.get_or_insert_default();
        let keys = timestamping.keys;
        if keys != TimestampKeys::None && notices.timestamping.keys == TimestampKeys::None {
            notices.base = if keys == TimestampKeys::FromWritten {
                written
            } else {
                first
            };
        }
        if timestamping.received != notices.timestamping.received {
            notices.arrivals.clear();
            notices.before_arrivals = old;
            notices.read = None;
        }
        notices.timestamping = timestamping;
    }

    /// See [`Connection::set_timestamping`].
    #[must_use]
    pub fn timestamping(&self) -> Timestamping {
        match &self.notices {
            Some(notices) => notices.timestamping,
            None => Timestamping::default(),
        }
    }

    /// Whether writes without copying are told of (`SO_ZEROCOPY`).
    pub fn set_zero_copy(&mut self, on: bool) {
        if on != self.zero_copy() {
            self.notices.get_or_insert_default().zero_copy = on;
        }
    }

    /// See [`Connection::set_zero_copy`].
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.notices
            .as_ref()
            .is_some_and(|notices| notices.zero_copy)
    }

    /// A call of the application's has written `bytes` in all, by
    /// [`Connection::write`], and no more: to be told before they leave. Its last
    /// byte is the one that [`Timestamping`] is about.
    ///
    /// With `zero_copy` (`MSG_ZEROCOPY`) and [`Connection::set_zero_copy`] it gets
    /// a number, and [`Notification::Free`] at once: this engine copies what is
    /// written into its buffer.
    pub fn end_write(&mut self, bytes: usize, zero_copy: bool) {
        if bytes == 0 {
            return;
        }
        let last = self.send.written.wrapping_sub(1);
        let unsent = !before(last, self.send.next);
        let Some(notices) = &mut self.notices else {
            return;
        };
        let wanted = notices.timestamping;
        if wanted.of_writes() {
            if unsent && notices.marks.len() < MARKS_MAX {
                let key = match wanted.keys {
                    TimestampKeys::None => 0,
                    _ => last.wrapping_sub(notices.base),
                };
                notices.marks.push_back(Mark {
                    last,
                    key,
                    scheduled: wanted.scheduled,
                    sent: wanted.sent,
                    acknowledged: wanted.acknowledged,
                });
            } else {
                notices.lost = notices.lost.saturating_add(1);
            }
        }
        if zero_copy && notices.zero_copy {
            notices.tell_free();
        }
    }

    /// True while [`Connection::take_notification`] has something to give:
    /// `EPOLLERR` on Linux.
    #[inline]
    #[must_use]
    pub fn has_notifications(&self) -> bool {
        self.notices
            .as_ref()
            .is_some_and(|notices| !notices.queue.is_empty())
    }

    /// The oldest notification that was not taken (`recvmsg` with `MSG_ERRQUEUE`).
    /// They outlive the connection's end.
    pub fn take_notification(&mut self) -> Option<Notification> {
        self.notices.as_mut()?.queue.pop_front()
    }

    /// Counts what was notified, wrapping: who waits for notifications is woken
    /// when it changes, be they taken or not (an edge of epoll).
    #[inline]
    #[must_use]
    pub fn notification_count(&self) -> u32 {
        self.notices.as_ref().map_or(0, |notices| notices.told)
    }

    /// Times that were not told, for too many waited: 1024 writes to be
    /// acknowledged, or 1024 notifications to be taken. Memory that is free again
    /// is always told.
    #[must_use]
    pub fn notifications_lost(&self) -> u32 {
        self.notices.as_ref().map_or(0, |notices| notices.lost)
    }

    /// When the last byte that was read had come, in order and to be read, with
    /// [`Timestamping::received`]; nothing if it came before that was asked for.
    /// Where more than 256 moments would have to be told apart the later one
    /// counts for both, as on Linux where two segments are put together.
    #[must_use]
    pub fn read_timestamp(&self) -> Option<Time> {
        self.notices.as_ref()?.read
    }

    /// New bytes have left.
    #[cold]
    pub(super) fn tell_sent(&mut self, end: u32, now: Time) {
        let Some(notices) = &mut self.notices else {
            return;
        };
        while let Some(&mark) = notices.marks.get(notices.left)
            && before(mark.last, end)
        {
            notices.left += 1;
            if mark.scheduled {
                notices.tell(TimestampEvent::Scheduled, mark.key, now);
            }
            if mark.sent {
                notices.tell(TimestampEvent::Sent, mark.key, now);
            }
        }
    }

    /// SND.UNA has moved.
    #[cold]
    pub(super) fn tell_acknowledged(&mut self, now: Time) {
        let first = self.send.first;
        let Some(notices) = &mut self.notices else {
            return;
        };
        while let Some(mark) = notices.marks.pop_front_if(|mark| before(mark.last, first)) {
            notices.left = notices.left.saturating_sub(1);
            if mark.acknowledged {
                notices.tell(TimestampEvent::Acknowledged, mark.key, now);
            }
        }
    }

    /// More is in order.
    #[cold]
    pub(super) fn note_arrival(&mut self, now: Time) {
        let end = self.receive.assembler.next();
        let Some(notices) = &mut self.notices else {
            return;
        };
        if !notices.timestamping.received || self.state == State::Closed {
            return;
        }
        let full = notices.arrivals.len() >= ARRIVALS_MAX;
        match notices.arrivals.back_mut() {
            Some(last) if full || last.1 == now => *last = (end, now),
            _ => notices.arrivals.push_back((end, now)),
        }
    }

    /// Something was read.
    #[cold]
    pub(super) fn note_read(&mut self) {
        let unread = self.receive.assembler.unread();
        let position = self.receive.assembler.next().wrapping_sub(unread);
        let Some(notices) = &mut self.notices else {
            return;
        };
        notices.read = None;
        if let Some(old) = notices.before_arrivals {
            if !before(old, position) {
                return;
            }
            notices.before_arrivals = None;
        }
        while let Some(&(end, at)) = notices.arrivals.front() {
            if before(position, end) {
                // Read in part.
                notices.read = Some(at);
                return;
            }
            notices.arrivals.pop_front();
            if end == position {
                notices.read = Some(at);
                return;
            }
        }
    }
}
