//! When to poll a queue next: how polling and delivering share the processor.
//!
//! The frames of all sockets wait in the device's one ring until a poll sorts them. A
//! full ring loses frames of any socket; a full channel costs its own socket a frame
//! (LRP, Druschel & Banga, OSDI 1996, section 3.1). A host that demultiplexes on its own
//! processor has two goals, and beyond a certain load it cannot meet both:
//!
//! - *Isolation*: the ring is kept empty, so that a flood at one socket costs the others
//!   nothing. Frames that arrive at rate R take a share R·p of the processor, where p is
//!   the cost of polling a frame that a full channel drops.
//! - *A flat total*: no poll is in vain. If an admitted frame costs d more until it is
//!   delivered, at most 1/(p + d) is delivered. Isolation leaves (1 − R·p)/d, which falls
//!   to nothing at R = 1/p.
//!
//! The rules:
//!
//! 1. A poll is *due* when a quarter of the ring has filled since the last one, at the
//!    rate at which frames arrived: after `BURST / rate`. Three quarters are left for a
//!    burst and for a late application.
//! 2. It is due at once when the last poll left frames behind.
//! 3. Delivering always gets a sixteenth of the time: no poll is due before a sixteenth
//!    of the last one's duration has passed.
//! 4. Isolation costs no more than a third of the total. The cost is the share of the
//!    time spent on polling frames that a full channel dropped: without it, the total
//!    would be larger by as much. If rules 1 to 3 cost more, the queue alternates. A
//!    period by these rules is followed by one in which it is polled only for deliverable
//!    frames, and nothing is due while frames wait. Periods are better than a little loss
//!    all the time: in a good one, a neighbour makes many round trips.
//! 5. Consecutive polls that leave frames behind show that more arrives than the
//!    processor can even poll. Isolation is impossible, and the total is kept flat.
//!    Another attempt follows after 31 times as long, and costs a thirty-second. If most
//!    frames are for no socket, delivering gets as much time as polling.
//! 6. Isolation is for neighbours: channels that received frames and dropped none. There
//!    is none where only one channel receives frames, or where each that does has
//!    recently dropped some. Then no poll is due before waiting frames are delivered. A
//!    channel that is delivered first drops nothing, so rules 1 to 3 apply again for a
//!    thirty-second of the time, to find out.
//! 7. While a flooded port has its own queue ([`crate::steering`]), [`crate::share`]
//!    decides when a poll of the others, which finds little, is due.
//!
//! Each number is a share of the ring, of a poll or of the total, and the duration of a
//! poll is measured. A machine that is half as fast polls as often for the same frames.

use tidewall_device::queue::BURST;

use crate::poller::WAITED;

/// Delivering gets one part in this many of the time that a poll took.
pub(crate) const DELIVERS: u64 = 16;
/// Consecutive polls that used up their budget, after which the ring is assumed to fill
/// faster than it can be polled. Two empty a ring into which nothing arrives, and twenty
/// one that takes nine tenths of the time.
const OVERLOAD: u32 = 64;
/// The total stays flat for this many times the duration of a vain attempt at isolation.
const AGAIN: u64 = 31;
/// Polls of a period in which the ring is kept empty: many round trips of a neighbour.
const PERIOD: u32 = 1024;
/// Largest share of the total that isolation may cost.
const COST: f64 = 1.0 / 3.0;
/// Consecutive frames without any of a neighbour, after which there is none.
const ALONE: u64 = 1 << 18;
/// Returned by [`Schedule::polled`] where no poll is due.
pub const NEVER: u64 = u64::MAX;
/// Returned by [`Schedule::polled`] where no poll is due before the frames that wait are
/// delivered.
pub const DELIVER_FIRST: u64 = u64::MAX - 1;

/// A poll of a queue. Times are ns since any fixed moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
    /// When it began.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
    /// Frames that the driver processed.
    pub driven: u64,
    /// Frames among them that were sorted into channels.
    pub sorted: u64,
    /// Frames among them that found their channel full.
    pub dropped: u64,
    /// It used up its budget.
    pub more: bool,
}

/// The history of a queue's polls. Times are ns since any fixed moment.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Time at which the last poll ended.
    ended: u64,
    /// Arrival rate, in ns per frame; a moving average. Zero: not known.
    gap: f64,
    /// Consecutive polls that left frames behind.
    behind: u32,
    /// The channel that last received frames.
    channel: u16,
    /// Frames since the last one of a neighbour.
    alone: u64,
    /// The knowledge of each channel, by its number.
    channels: Vec<Seen>,
    /// Whole attempts at isolation so far.
    attempts: u32,
    period: Period,
}

/// The knowledge of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Its dropped frames when it last received one; `None`: it has received none.
    dropped: Option<u64>,
    /// One more than the number of complete attempts before the one in which it last
    /// dropped a frame; zero: none.
    full: u32,
}

impl Seen {
    /// Whether it has dropped nothing in this attempt and the last one.
    fn is_quiet(self, attempts: u32) -> bool {
        self.full == 0 || self.full < attempts
    }
}

/// The period that the queue is in.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    began: u64,
    /// The total is flat until then. Zero: the ring is kept empty.
    flat_until: u64,
    /// The total is flat because there is no neighbour.
    alone: bool,
    /// Frames arrived at more than one channel.
    mixed: bool,
    polls: u32,
    /// Time spent on polling frames that were dropped, ns.
    wasted: u64,
}

impl Schedule {
    /// Records that a channel is opened: what is known of its number was another's.
    pub(crate) fn opened(&mut self, channel: u16) {
        if let Some(seen) = self.channels.get_mut(usize::from(channel)) {
            *seen = Seen::default();
        }
    }

    /// Records frames for these channels (perhaps with [`WAITED`]), `frames` in all.
    /// `dropped` returns how many a channel has ever dropped.
    pub(crate) fn sorted(&mut self, channels: &[u16], frames: usize, dropped: impl Fn(u16) -> u64) {
        self.alone = self.alone.saturating_add(frames as u64);
        for &channel in channels {
            let channel = channel & !WAITED;
            let place = usize::from(channel);
            if place >= self.channels.len() {
                self.channels.resize(place + 1, Seen::default());
            }
            let Some(seen) = self.channels.get_mut(place) else {
                continue;
            };
            let dropped = Some(dropped(channel));
            if seen.dropped != dropped {
                if seen.dropped.is_some() {
                    seen.full = self.attempts.saturating_add(1);
                }
                seen.dropped = dropped;
            }
            if channel != self.channel {
                self.channel = channel;
                self.period.mixed = true;
                if seen.is_quiet(self.attempts) {
                    self.alone = 0;
                }
            }
        }
    }

    /// Notes a poll. Returns when the next one is due, [`NEVER`], or [`DELIVER_FIRST`].
    pub fn polled(&mut self, poll: Poll) -> u64 {
        let Poll {
            ended,
            driven,
            more,
            ..
        } = poll;
        let since = ended.saturating_sub(self.ended) as f64;
        self.ended = ended;
        // A pause is as long as many polls that find nothing: it counts as one.
        let gap = since / (driven.max(1)) as f64;
        self.gap = if self.gap == 0.0 {
            gap
        } else {
            self.gap + (gap - self.gap) / 4.0
        };
        self.behind = if more {
            self.behind.saturating_add(1)
        } else {
            0
        };
        if driven == 0 {
            return NEVER;
        }
        if self.is_flat(poll) {
            return DELIVER_FIRST;
        }
        let took = ended.saturating_sub(poll.began);
        let is_unowned = poll.sorted.saturating_add(poll.dropped) < driven / 2;
        let share = if self.behind >= OVERLOAD && is_unowned {
            took
        } else {
            took / DELIVERS
        };
        let delivered = ended.saturating_add(share);
        if more {
            return delivered;
        }
        let fills = (self.gap * f64::from(BURST)) as u64;
        ended.saturating_add(fills).max(delivered)
    }

    /// Whether the total must be flat from now on.
    fn is_flat(&mut self, poll: Poll) -> bool {
        let now = poll.ended;
        let is_alone = self.alone >= ALONE;
        let period = self.period;
        if period.flat_until > 0 {
            let goes_on = match period.alone {
                // One channel alone has no other to look for.
                true => is_alone && (now < period.flat_until || !period.mixed),
                false => now < period.flat_until && poll.more,
            };
            return goes_on || self.begin(now, 0);
        }
        if is_alone && !period.mixed {
            self.begin(now, 1);
            self.period.alone = true;
            return true;
        }
        let took = now.saturating_sub(poll.began);
        let wasted = took.saturating_mul(poll.dropped) / poll.driven.max(1);
        if period.wasted == 0 && wasted > 0 {
            // It begins with the first frame that is dropped.
            self.period = Period {
                began: poll.began,
                mixed: period.mixed,
                ..Period::default()
            };
        }
        let period = &mut self.period;
        period.wasted += wasted;
        period.polls += 1;
        let lasted = now.saturating_sub(period.began);
        if self.behind >= OVERLOAD && period.wasted > 0 {
            return self.begin(now, lasted.saturating_mul(AGAIN));
        }
        if period.polls < PERIOD {
            return false;
        }
        self.attempts = self.attempts.saturating_add(1);
        if is_alone && period.wasted > 0 {
            self.begin(now, lasted.saturating_mul(AGAIN));
            self.period.alone = true;
            return true;
        }
        let cost = period.wasted as f64 / lasted.max(1) as f64;
        // Both periods together lose COST.
        self.begin(now, (lasted as f64 * (cost / COST - 1.0)).max(0.0) as u64)
    }

    /// Begins a period, with a flat total for `flat` ns. Returns whether it is flat.
    fn begin(&mut self, now: u64, flat: u64) -> bool {
        if flat > 0 {
            self.behind = 0;
        }
        self.period = Period {
            began: now,
            flat_until: if flat > 0 {
                now.saturating_add(flat)
            } else {
                0
            },
            ..Period::default()
        };
        flat > 0
    }
}

#[cfg(test)]
mod tests;
