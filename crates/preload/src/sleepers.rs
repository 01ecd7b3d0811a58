//! Threads that sleep in a kernel epoll set while it receives its first socket of the
//! stack. They must return here and sleep on both.
//!
//! The set itself wakes them: a descriptor that is always ready is put into it. This
//! eventfd carries as data a random number that no other entry has. It stays until the
//! last of the threads has left.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::protected::out_of_the_way;
use crate::raw;

/// Sets are below this. Unused pages take no memory.
const NUMBERS: usize = 1 << 20;
/// Bits of a word that count; those above distinguish one file of the descriptor from the
/// next.
const COUNT: u32 = 0xffff;
/// Longest time that the eventfd stays in a set: a counted thread may have left by a jump.
const LONGEST: Duration = Duration::from_secs(1);

static SLEEPING: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
static WAKE_UP: OnceLock<WakeUp> = OnceLock::new();
/// When it was last put into a set, in nanoseconds since its creation.
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

/// Returns the new word after a thread that entered at `entered` leaves a descriptor
/// whose word is `word`.
fn left(word: u32, entered: u32) -> Option<u32> {
    let same = word & !COUNT == entered & !COUNT;
    (same && word & COUNT > 0).then(|| word - 1)
}

impl Sleeper {
    /// Counts this thread. Sockets that the stack adopts from here on wake it. So a thread
    /// that is about to sleep first checks whether one is already adopted.
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

/// Forgets a closed descriptor: threads that sleep in its set sleep for ever.
pub(crate) fn forget(set: i32) {
    if let Some(place) = place(set)
        && place.load(Ordering::Relaxed) & COUNT > 0
    {
        let next = |word: u32| Some((word & !COUNT).wrapping_add(COUNT + 1));
        let _ = place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }
}

/// Wakes the threads that sleep in the kernel's part of a set that the stack has adopted.
pub(crate) fn wake(set: i32) {
    fence(Ordering::SeqCst);
    if !is_slept_in(set) {
        return;
    }
    let Some(wake_up) = wake_up() else { return };
    WOKEN.store(wake_up.age(), Ordering::Relaxed);
    let data = epoll::EventData::new_u64(wake_up.mark);
    if let Some(set) = raw::borrow(set) {
        // It is already there if another thread has put it in.
        let _ = epoll::add(set, &wake_up.ready, data, epoll::EventFlags::IN);
    }
}

/// Returns the wake-up eventfd, which the first caller creates.
fn wake_up() -> Option<&'static WakeUp> {
    if WAKE_UP.get().is_none() {
        let ready = eventfd(1, EventfdFlags::CLOEXEC).ok()?;
        let mark = RandomState::new().hash_one(std::process::id());
        let made = Instant::now();
        // If two threads create one, one is kept, and the other's descriptor is protected
        // without need.
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

/// Reports whether an event is that of the wake-up eventfd, and not the program's.
#[inline]
pub(crate) fn is_wake_up(data: u64) -> bool {
    WAKE_UP.get().is_some_and(|wake_up| wake_up.mark == data)
}

/// Called when the wake-up eventfd was seen, in a set or by its readiness. Removes it with the
/// last thread that was to see it.
pub(crate) fn heard(set: i32) {
    let Some(wake_up) = WAKE_UP.get() else { return };
    let since = wake_up.age().saturating_sub(WOKEN.load(Ordering::Relaxed));
    if (!is_slept_in(set) || since > LONGEST.as_nanos() as u64)
        && let Some(set) = raw::borrow(set)
    {
        // Another thread may have removed it.
        let _ = epoll::delete(set, wake_up.ready.as_fd());
    }
}
