//! Chooses the sleeping thread that receives for the others.
//!
//! One of the threads that sleep on sockets of a stack *leads*. It sleeps on the device
//! too, and when frames arrive it sorts them and wakes the threads that they are for. A
//! leader that returns to its application wakes another sleeper, which leads in its
//! place. So an idle stack has no thread that runs, and a frame wakes one thread, not
//! all.
//!
//! The sleeper of the highest priority leads: frames for it would otherwise wait until a
//! lower thread gets the processor. A higher thread that goes to sleep *takes the lead
//! over*, and a leader whose priority falls gives it up.
//!
//! A leader resigns after frames for others alone have woken it again and again. An
//! example is a thread that only accepts beside one that serves. It would otherwise be
//! woken for each request before the thread that serves it. The serving thread leads when
//! it sleeps next, and leaves without waking the thread that resigned. Meanwhile the
//! helper looks, as it does for one thread. A leader also resigns after a higher thread
//! has taken the lead from it as often. No leader resigns in favour of lower threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::{Sleepers, ThreadList, Waker};
use crate::lock::{Mutex, lock, rank};

/// The leader: at most one sleeper at a time.
#[derive(Default)]
pub struct Leadership {
    /// The address of `leader`, with whose lock it is changed; 0: none.
    led_by: AtomicUsize,
    leader: Mutex<Option<Arc<Waker>>, rank::Leaf>,
    /// Everyone asleep on this stack.
    sleepers: ThreadList,
    sleeper_count: AtomicU32,
}

fn address(waker: &Arc<Waker>) -> usize {
    Arc::as_ptr(waker).addr()
}

impl Leadership {
    fn sleepers(&self) -> Sleepers<'_> {
        Sleepers {
            count: &self.sleeper_count,
            threads: &self.sleepers,
        }
    }

    /// Enters the sleepers; true when the caller leads.
    pub fn enter(&self, waker: &Arc<Waker>) -> bool {
        self.sleepers().enter(waker, false);
        self.lead(waker)
    }

    /// Returns true while a thread leads.
    pub fn is_taken(&self) -> bool {
        self.led_by.load(Ordering::Relaxed) != 0
    }

    /// Returns true while the caller leads: another may have taken the lead over.
    pub fn is_led_by(&self, waker: &Arc<Waker>) -> bool {
        self.led_by.load(Ordering::Relaxed) == address(waker)
    }

    /// Makes the leader look at the device again. A thread that is just taking
    /// the lead looks anyway.
    pub fn wake_leader(&self) {
        if let Some(leader) = &*lock(&self.leader) {
            leader.wake();
        }
    }

    /// Tries to lead, for a sleeper without data. A leader of a lower priority is woken, and
    /// finds that it leads no more.
    pub fn lead(&self, waker: &Arc<Waker>) -> bool {
        if self.is_led_by(waker) {
            return true;
        }
        let mut leader = lock(&self.leader);
        if let Some(other) = &*leader {
            let takes_over =
                waker.priority() > other.priority() && !waker.has_resigned.load(Ordering::Relaxed);
            if !takes_over {
                return false;
            }
            other.wake();
        }
        *leader = Some(waker.clone());
        self.led_by.store(address(waker), Ordering::SeqCst);
        true
    }

    /// Returns true if another sleeper of no lower priority has been woken and has not
    /// looked yet.
    pub fn has_woken_another(&self, waker: &Arc<Waker>) -> bool {
        self.sleepers().is_other_signalled(waker)
    }

    /// The caller is not to be woken to lead, and leads no more, but sleeps on. Another that
    /// has not resigned is woken to, if one sleeps and no thread leads.
    pub fn resign(&self, waker: &Arc<Waker>) {
        waker.has_resigned.store(true, Ordering::Relaxed);
        self.pass_on(waker);
    }

    /// Gives up the caller's lead, and wakes a higher sleeper to lead. Returns false
    /// without a higher one: nothing changes.
    pub fn give_way(&self, waker: &Arc<Waker>) -> bool {
        let gives_way = self.sleepers().has_higher(waker);
        if gives_way {
            self.pass_on(waker);
        }
        gives_way
    }

    /// Leaves the sleepers, and wakes one of them to lead if no other thread does. That
    /// is so if the caller led, or was woken to lead while it was leaving.
    pub fn leave(&self, waker: &Arc<Waker>) {
        self.sleepers().leave(waker);
        waker.has_resigned.store(false, Ordering::Relaxed);
        self.pass_on(waker);
    }

    fn pass_on(&self, waker: &Arc<Waker>) {
        // Only the leader itself ceases to be one without another's taking it over.
        if self.is_led_by(waker) {
            let mut leader = lock(&self.leader);
            if self.is_led_by(waker) {
                *leader = None;
                self.led_by.store(0, Ordering::SeqCst);
            }
        }
        // A newcomer enters the sleepers before it looks for the leader under the lock.
        // So either we see its entry, or it sees that no thread leads.
        if self.led_by.load(Ordering::SeqCst) == 0 {
            self.sleepers().wake_highest(waker);
        }
    }
}
