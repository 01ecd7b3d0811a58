//! Locks, and the order in which a thread takes them.
//!
//! Each lock has its place in the order, a [`Rank`], in its type, so the declaration
//! shows it. A debug build panics when a thread takes a lock that comes before one it
//! holds. It also panics when a thread that holds a lock waits for another process
//! ([`check_none_held`]). A release build has the standard library's locks and nothing
//! beside them. Work that must be done without a held lock is collected and done
//! afterwards (`Deferred` in `tcp::frames`).

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{self, Arc, PoisonError, TryLockError};

/// A place in the order of locks.
pub trait Ranked {
    /// The rank.
    const RANK: Rank;
    /// A thread may hold several locks of this rank; the rank documents their order.
    const NESTS: bool;
}

macro_rules! order {
    ($($(#[$doc:meta])+ $rank:ident $($nests:ident)?,)+) => {
        /// The order of locks: a thread that holds one takes only later ones.
        /// [`Mutex::try_lock`], which does not wait, may take any.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rank {
            $($(#[$doc])+ $rank),+
        }

        /// The ranks as types, for the declarations of locks.
        pub mod rank {
            use super::{Rank, Ranked};
            $(
                $(#[$doc])+
                #[derive(Debug)]
                #[allow(dead_code)] // Some are a feature's.
                pub enum $rank {}

                impl Ranked for $rank {
                    const RANK: Rank = Rank::$rank;
                    const NESTS: bool = false $(|| order!($nests))?;
                }
            )+
        }

        const RANKS: [Rank; [$(Rank::$rank),+].len()] = [$(Rank::$rank),+];
    };
    (nests) => { true };
}

order! {
    /// The tie of a socket to a `mio` loop.
    EventSource,
    /// That one thread at a time signals such a loop.
    EventSignal,
    /// The thread that signals them, and what it signals.
    EventLoop,
    /// The numbers that a descriptor table has allocated: a parent's, then its child's.
    DescriptorTable nests,
    /// That one thread at a time puts a set into a set.
    EpollNesting,
    /// The state that a thread's `select` and `poll` keep of its descriptors.
    ThreadState,
    /// The members of an epoll set: an outer set's, then those of the sets in it.
    EpollSet nests,
    /// The contexts that the helper thread serves.
    Helper,
    /// A listener.
    Listener,
    /// A connection.
    Connection,
    /// The calls of an interface's circuits.
    Signalling,
    /// That one thread at a time binds, connects or closes a socket, or opens a
    /// connection's channel.
    Binding,
    /// Datagrams and PDUs that wait in a UDP socket or a circuit.
    UdpReceive,
    /// A circuit's constant rate.
    CircuitRate,
    /// Connections in TIME-WAIT.
    TimeWait,
    /// A queue's receiving half.
    Poller,
    /// A queue's sending half.
    Transmitter,
    /// All UDP sockets.
    UdpSockets,
    /// The owner of each channel.
    Endpoints,
    /// The waiters that a change of a socket notifies, with the socket locked: a
    /// socket's, then those of the sets that it is in, outwards.
    WaitQueue nests,
    /// The users of each TCP port.
    Ports,
    /// Every other lock. Its holder takes no lock at all.
    Leaf,
}

/// Whether the order is checked: loom runs its threads in one.
const CHECKED: bool = cfg!(all(debug_assertions, not(loom)));

thread_local! {
    /// The number of locks of each rank that the thread holds.
    static HELD: Cell<[u8; RANKS.len()]> = const { Cell::new([0; RANKS.len()]) };
}

/// Panics in a debug build if the calling thread holds a lock. To be called before a
/// thread waits for a manager: a waiter for one of its locks would wait for that process,
/// too.
pub fn check_none_held() {
    if CHECKED {
        let mut held = RANKS.into_iter().zip(HELD.get());
        if let Some((rank, _)) = held.find(|&(_, count)| count > 0) {
            panic!("lock order: a manager is waited for by who holds {rank:?}");
        }
    }
}

/// That a thread holds a lock of a rank.
#[derive(Debug)]
struct Held<R: Ranked>(PhantomData<R>);

impl<R: Ranked> Held<R> {
    /// Before a thread waits for a lock.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn check() {
        if CHECKED {
            let first = R::RANK as usize + usize::from(R::NESTS);
            let held = RANKS.into_iter().zip(HELD.get()).skip(first);
            let later = held.into_iter().find(|&(_, count)| count > 0);
            if let Some((later, _)) = later {
                panic!("lock order: {:?} is taken by who holds {later:?}", R::RANK);
            }
        }
    }

    #[inline]
    fn new() -> Self {
        Self::change(|count| count + 1);
        Held(PhantomData)
    }

    #[inline]
    fn change(to: impl Fn(u8) -> u8) {
        if CHECKED {
            let mut held = HELD.get();
            if let Some(count) = held.get_mut(R::RANK as usize) {
                *count = to(*count);
            }
            HELD.set(held);
        }
    }
}

impl<R: Ranked> Drop for Held<R> {
    #[inline]
    fn drop(&mut self) {
        Self::change(|count| count - 1);
    }
}

/// The standard library's mutex, with a rank.
#[derive(Debug)]
pub struct Mutex<T, R: Ranked> {
    inner: sync::Mutex<T>,
    rank: PhantomData<fn() -> R>,
}

impl<T, R: Ranked> Mutex<T, R> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Mutex {
            inner: sync::Mutex::new(value),
            rank: PhantomData,
        }
    }

    /// Takes the lock if no thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        try_ranked(&self.inner)
    }

    /// Returns the guarded value of a lock that has no other user.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default, R: Ranked> Default for Mutex<T, R> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// Takes a lock, even a poisoned one. After a panic elsewhere counters and queues are at
/// worst out of date. Refusing service for that would turn one bug into an outage.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn lock<T, R: Ranked>(mutex: &Mutex<T, R>) -> MutexGuard<'_, T, R> {
    ranked(&mutex.inner)
}

#[inline]
#[cfg_attr(debug_assertions, track_caller)]
fn ranked<T, R: Ranked>(mutex: &sync::Mutex<T>) -> MutexGuard<'_, T, R> {
    Held::<R>::check();
    MutexGuard {
        inner: mutex.lock().unwrap_or_else(PoisonError::into_inner),
        _held: Held::new(),
    }
}

#[inline]
fn try_ranked<T, R: Ranked>(mutex: &sync::Mutex<T>) -> Option<MutexGuard<'_, T, R>> {
    let inner = match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(MutexGuard {
        inner,
        _held: Held::new(),
    })
}

/// A lock that is held.
#[derive(Debug)]
pub struct MutexGuard<'a, T, R: Ranked> {
    inner: sync::MutexGuard<'a, T>,
    _held: Held<R>,
}

impl<T, R: Ranked> MutexGuard<'_, T, R> {
    /// Waits on `condition`, without the lock.
    pub fn wait(self, condition: &sync::Condvar) -> Self {
        let inner = condition.wait(self.inner);
        MutexGuard {
            inner: inner.unwrap_or_else(PoisonError::into_inner),
            ..self
        }
    }
}

impl<T, R: Ranked> Deref for MutexGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, R: Ranked> DerefMut for MutexGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A mutex shared with threads of the layers below, which know no ranks: locks that they
/// take under it are not checked.
#[derive(Debug)]
pub struct SharedMutex<T, R: Ranked> {
    inner: Arc<sync::Mutex<T>>,
    rank: PhantomData<fn() -> R>,
}

impl<T, R: Ranked> SharedMutex<T, R> {
    /// Creates a mutex that can be shared with the layers below.
    pub fn new(value: T) -> Self {
        SharedMutex {
            inner: Arc::new(sync::Mutex::new(value)),
            rank: PhantomData,
        }
    }

    /// For the layers below.
    pub fn share(&self) -> Arc<sync::Mutex<T>> {
        self.inner.clone()
    }

    /// As [`lock`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        ranked(&self.inner)
    }

    /// As [`Mutex::try_lock`].
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        try_ranked(&self.inner)
    }
}

/// The standard library's lock for one writer or many readers, with a rank.
#[derive(Debug)]
pub struct RwLock<T, R: Ranked> {
    inner: sync::RwLock<T>,
    rank: PhantomData<fn() -> R>,
}

impl<T, R: Ranked> RwLock<T, R> {
    /// Creates a lock.
    pub const fn new(value: T) -> Self {
        RwLock {
            inner: sync::RwLock::new(value),
            rank: PhantomData,
        }
    }

    /// Takes the lock to read, as [`lock`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T, R> {
        Held::<R>::check();
        ReadGuard {
            inner: self.inner.read().unwrap_or_else(PoisonError::into_inner),
            _held: Held::new(),
        }
    }

    /// Takes the lock to write, as [`lock`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> WriteGuard<'_, T, R> {
        Held::<R>::check();
        WriteGuard {
            inner: self.inner.write().unwrap_or_else(PoisonError::into_inner),
            _held: Held::new(),
        }
    }
}

impl<T: Default, R: Ranked> Default for RwLock<T, R> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

/// A lock that is held to read.
#[derive(Debug)]
pub struct ReadGuard<'a, T, R: Ranked> {
    inner: sync::RwLockReadGuard<'a, T>,
    _held: Held<R>,
}

impl<T, R: Ranked> Deref for ReadGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// A lock that is held to write.
#[derive(Debug)]
pub struct WriteGuard<'a, T, R: Ranked> {
    inner: sync::RwLockWriteGuard<'a, T>,
    _held: Held<R>,
}

impl<T, R: Ranked> Deref for WriteGuard<'_, T, R> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, R: Ranked> DerefMut for WriteGuard<'_, T, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_order() {
        let (connection, table) = (
            Mutex::<_, rank::Connection>::new(1),
            RwLock::<_, rank::Endpoints>::new(2),
        );
        let held = lock(&connection);
        assert_eq!(*held + *table.read(), 3);
    }

    #[test]
    #[should_panic(expected = "lock order: Connection is taken by who holds Endpoints")]
    fn a_lock_taken_against_the_order_is_a_panic() {
        let (connection, table) = (
            Mutex::<_, rank::Connection>::new(()),
            RwLock::<_, rank::Endpoints>::new(()),
        );
        let _held = table.read();
        let _ = lock(&connection);
    }

    #[test]
    #[should_panic(expected = "lock order: Leaf is taken by who holds Leaf")]
    fn who_holds_a_leaf_takes_nothing() {
        let leaf = || Mutex::<_, rank::Leaf>::new(());
        let (first, second) = (leaf(), leaf());
        let _held = lock(&first);
        let _ = lock(&second);
    }

    #[test]
    #[should_panic(expected = "lock order: a manager is waited for by who holds Binding")]
    fn a_manager_is_not_waited_for_under_a_lock() {
        check_none_held();
        let binding = Mutex::<_, rank::Binding>::new(());
        let _held = lock(&binding);
        check_none_held();
    }

    #[test]
    fn a_rank_that_nests_is_taken_again_and_what_is_dropped_is_not_held() {
        let set = || Mutex::<_, rank::EpollSet>::new(());
        let (outer, inner) = (set(), set());
        let nested = (lock(&outer), lock(&inner));
        drop(nested);
        let leaf = Mutex::<_, rank::Leaf>::new(());
        drop(lock(&leaf));
        drop(lock(&outer));
        // A thread that does not wait cannot be part of a deadlock.
        let _held = lock(&leaf);
        assert!(outer.try_lock().is_some());
    }
}
