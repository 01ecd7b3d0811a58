//! When a queue that is polled is to be polled next: how polling and delivering share
//! the processor.
//!
//! The frames of all sockets wait in the device's one ring until a poll sorts them, and
//! what finds the ring full is lost, no matter whose it is. A channel that is full costs
//! its own socket a frame (LRP, Druschel & Banga, OSDI 1996, section 3.1). So the ring
//! comes first:
//!
//! 1. A poll is *due* when a quarter of the ring has filled since the last one, at the
//!    rate at which frames came: after `BURST / rate`. Three quarters are left for a
//!    burst and for an application that is late.
//! 2. It is due at once when the last poll left frames behind.
//! 3. But delivering gets a sixteenth of the time whatever comes: no poll is due before a
//!    sixteenth of what the last one took has passed. That is little, because each frame
//!    that a full channel drops costs a poll less than one that it takes.
//! 4. When polls leave frames behind one after the other, more comes than the processor
//!    can even poll, and the ring overflows whatever is done. Then delivering gets as
//!    much time as polling, so that what is polled is not polled for nothing.
//! 5. While all of the queue's frames are one socket's nobody else's are lost with its
//!    own, and nothing is due: it polls when its channel is empty, and each frame that
//!    is polled is delivered.
//!
//! Each number is a share of the ring or of a poll, and what a poll takes is measured: a
//! machine that is half as fast polls as often for the same frames.

use tidewall_device::queue::BURST;

use crate::poller::WAITED;

/// Delivering gets one part in so many of the time that a poll took.
const DELIVERS: u64 = 16;
/// Polls in a row that used up their budget, after which the ring is taken to fill faster
/// than it can be polled. Two empty a ring into which nothing comes, and twenty one that
/// takes nine tenths of the time.
const OVERLOAD: u32 = 64;
/// Frames in a row of one socket, after which the queue is taken for its own.
const ALONE: u64 = 1 << 16;
/// What [`Schedule::polled`] returns where no poll is due.
pub const NEVER: u64 = u64::MAX;

/// What is known of a queue's polls. Times are ns since any fixed moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    /// When the last poll ended.
    ended: u64,
    /// How fast frames come, ns a frame; a moving average. Zero: not known.
    gap: f64,
    /// Polls in a row that left frames behind.
    behind: u32,
    /// The channel that frames came to last, and how many in a row.
    channel: u16,
    alone: u64,
}

impl Schedule {
    /// Frames came to these channels (perhaps with [`WAITED`]), `frames` in all.
    pub(crate) fn sorted(&mut self, channels: &[u16], frames: usize) {
        self.alone = self.alone.saturating_add(frames as u64);
        for &channel in channels {
            let channel = channel & !WAITED;
            if channel != self.channel {
                self.channel = channel;
                self.alone = 0;
            }
        }
    }

    /// A poll that began and ended then had the driver process `driven` frames; `more`:
    /// it used up its budget. Returns when the next one is due, or [`NEVER`].
    pub fn polled(&mut self, began: u64, ended: u64, driven: u64, more: bool) -> u64 {
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
        let took = ended.saturating_sub(began);
        let share = if self.behind < OVERLOAD {
            took / DELIVERS
        } else {
            took
        };
        let delivered = ended.saturating_add(share);
        if driven == 0 || self.alone >= ALONE {
            return NEVER;
        }
        if more {
            return delivered;
        }
        let fills = (self.gap * f64::from(BURST)) as u64;
        ended.saturating_add(fills).max(delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver on virtual time: what a poll and a datagram cost, ns.
    struct Machine {
        poll: f64,
        frame: f64,
        dropped: f64,
        datagram: f64,
    }

    /// Lost in the ring, dropped at the channel, and delivered, of the frames that come
    /// in `span` ns at `rate` a ns for one socket whose application takes a batch of 4
    /// a call; another socket has next to none.
    fn run(machine: &Machine, rate: f64, span: f64) -> (f64, f64, f64) {
        const RING: f64 = 256.0;
        const LIMIT: f64 = 512.0;
        let mut schedule = Schedule::default();
        let (mut now, mut ring, mut channel, mut due) = (0.0f64, 0.0f64, 0.0f64, NEVER);
        let (mut lost, mut dropped, mut delivered) = (0.0, 0.0, 0.0);
        while now < span {
            let pass = |time: f64, ring: &mut f64, lost: &mut f64| {
                *ring += time * rate;
                if *ring > RING {
                    *lost += *ring - RING;
                    *ring = RING;
                }
            };
            if channel < 1.0 || now as u64 >= due {
                let began = now;
                let taken = f64::min(ring.floor(), 128.0);
                let admitted = f64::min(taken, LIMIT - channel);
                let cost =
                    machine.poll + admitted * machine.frame + (taken - admitted) * machine.dropped;
                ring -= taken;
                channel += admitted;
                dropped += taken - admitted;
                pass(cost, &mut ring, &mut lost);
                now += cost;
                due = schedule.polled(began as u64, now as u64, taken as u64, taken >= 128.0);
            }
            let batch = f64::min(channel.floor(), 4.0);
            channel -= batch;
            delivered += batch;
            let cost = 100.0 + batch * machine.datagram;
            pass(cost, &mut ring, &mut lost);
            now += cost;
        }
        (lost, dropped, delivered)
    }

    /// Whatever the machine's speed and the application's work, no frame is lost in the
    /// ring while polling alone leaves time, and the application is not starved.
    #[test]
    fn the_ring_comes_first_on_any_machine() {
        for speed in [0.25, 0.5, 1.0, 2.0, 4.0] {
            for work in [0.05, 0.2, 1.0, 5.0] {
                let machine = Machine {
                    poll: 3_000.0 / speed,
                    frame: 600.0 / speed,
                    dropped: 450.0 / speed,
                    datagram: 1_000.0 * work / speed,
                };
                for share in [0.3, 0.6, 0.9] {
                    // A batch that takes longer than delivering's share is late.
                    if work > 1.0 && share > 0.6 {
                        continue;
                    }
                    // Of what polling and counting takes.
                    let capacity = 128.0 / (machine.poll + 128.0 * machine.frame);
                    let rate = capacity * share;
                    let (lost, dropped, delivered) = run(&machine, rate, 200e6 / speed);
                    let came = lost + dropped + delivered;
                    assert!(
                        lost <= came / 1000.0,
                        "{speed} {work} {share}: {lost} of {came}"
                    );
                    assert!(delivered > 0.0);
                }
                // Far beyond what fits: half of the time is the application's.
                let (_, _, delivered) = run(&machine, 10.0 * speed / 600.0, 200e6 / speed);
                let alone = 200e6 / speed / machine.datagram;
                let fits = 200e6 / speed / (machine.frame + machine.datagram);
                assert!(
                    delivered >= alone.min(fits) / 2.5,
                    "{speed} {work}: {delivered} of {alone}, {fits}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_due_on_a_queue_that_is_empty() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.polled(0, 3_000, 0, false), NEVER);
        let due = schedule.polled(6_000, 9_000, 6, false);
        assert!(due > 9_000 && due < NEVER, "{due}");
    }

    #[test]
    fn nothing_is_due_while_all_frames_are_for_one_socket() {
        let mut schedule = Schedule::default();
        let mut polled = |channels: &[u16]| {
            schedule.sorted(channels, 128);
            schedule.polled(0, 3_000, 128, true)
        };
        assert_ne!(polled(&[7]), NEVER);
        while polled(&[7, 7]) != NEVER {}
        assert_eq!(polled(&[7 | WAITED, 7]), NEVER);
        assert_ne!(
            polled(&[7, 9, 7]),
            NEVER,
            "another socket's frames may be lost"
        );
    }
}
