//! Threads that sleep in the kernel, in an epoll set that is the kernel's alone, while it
//! gets its first socket of ours: they have to come here and sleep on both.
//!
//! They are woken by the set itself, into which a descriptor is put that is always ready:
//! the eventfd that wakes them, whose data is a number chosen at random, which nobody else
//! has. It stays until the last of them has left.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::protected::out_of_the_way;
use crate::raw;

/// Sets are below this. Pages that no number is in take no memory.
const NUMBERS: usize = 1 << 20;
/// Bits of a word that count; those above tell one file of the number from the next.
const COUNT: u32 = 0xffff;
/// So long the eventfd stays in a set at most: a thread that was counted may have left by a
/// jump.
const LONGEST: Duration = Duration::from_secs(1);

static SLEEPING: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
static WAKE_UP: OnceLock<WakeUp> = OnceLock::new();
/// When it was entered last, in nanoseconds since it was made.
static WOKEN: AtomicU64 = AtomicU64::new(0);

struct WakeUp {
    ready: OwnedFd,
    mark: u64,
    made: Instant,
}

/// A thread that is counted.
pub(crate) struct Sleeper {
    set: i32,
    word: u32,
}

fn place(set: i32) -> Option<&'static AtomicU32> {
    SLEEPING.get(usize::try_from(set).ok()?)
}

/// One that has left a number which has `word`, having entered it at `entered`.
fn left(word: u32, entered: u32) -> Option<u32> {
    let same = word & !COUNT == entered & !COUNT;
    (same && word & COUNT > 0).then(|| word - 1)
}

impl Sleeper {
    /// Counts this thread. What becomes ours from here on rings; so who sleeps looks first
    /// whether it is that already.
    pub(crate) fn enter(set: i32) -> Self {
        let count = |place: &AtomicU32| place.fetch_add(1, Ordering::SeqCst);
        let word = place(set).map_or(0, count);
        fence(Ordering::SeqCst);
        Sleeper { set, word }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(place) = place(self.set) {
            let _ = place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
                left(word, self.word)
            });
        }
    }
}

fn is_slept_in(set: i32) -> bool {
    place(set).is_some_and(|place| place.load(Ordering::SeqCst) & COUNT > 0)
}

/// The number names nothing any more: who sleeps in what it named does so for ever.
pub(crate) fn forget(set: i32) {
    if let Some(place) = place(set)
        && place.load(Ordering::Relaxed) & COUNT > 0
    {
        let next = |word: u32| Some((word & !COUNT).wrapping_add(COUNT + 1));
        let _ = place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }
}

/// The set is ours from now on: wakes who sleeps in the kernel's part of it.
pub(crate) fn wake(set: i32) {
    fence(Ordering::SeqCst);
    if !is_slept_in(set) {
        return;
    }
    let Some(wake_up) = wake_up() else { return };
    WOKEN.store(wake_up.age(), Ordering::Relaxed);
    let data = epoll::EventData::new_u64(wake_up.mark);
    if let Some(set) = raw::borrow(set) {
        // It is there already where another thread has rung.
        let _ = epoll::add(set, &wake_up.ready, data, epoll::EventFlags::IN);
    }
}

/// Made by the first that rings.
fn wake_up() -> Option<&'static WakeUp> {
    if WAKE_UP.get().is_none() {
        let ready = eventfd(1, EventfdFlags::CLOEXEC).ok()?;
        let mark = RandomState::new().hash_one(std::process::id());
        let made = Instant::now();
        // Of two that make one, one is kept, and the other's number is protected for nothing.
        let _ = WAKE_UP.set(WakeUp {
            ready: out_of_the_way(ready),
            mark,
            made,
        });
    }
    WAKE_UP.get()
}

impl WakeUp {
    fn age(&self) -> u64 {
        self.made.elapsed().as_nanos() as u64
    }
}

/// Whether an event is the eventfd's that wakes, and none of the program's.
#[inline]
pub(crate) fn is_wake_up(data: u64) -> bool {
    WAKE_UP.get().is_some_and(|wake_up| wake_up.mark == data)
}

/// The eventfd that wakes was seen, in a set or by its being ready: it is taken out of it with the
/// last that was to hear it.
pub(crate) fn heard(set: i32) {
    let Some(wake_up) = WAKE_UP.get() else { return };
    let since = wake_up.age().saturating_sub(WOKEN.load(Ordering::Relaxed));
    if (!is_slept_in(set) || since > LONGEST.as_nanos() as u64)
        && let Some(set) = raw::borrow(set)
    {
        // Another thread may have taken it.
        let _ = epoll::delete(set, wake_up.ready.as_fd());
    }
}
