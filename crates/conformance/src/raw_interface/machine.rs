//! A host that two threads share: one plays the script (packets, time), the
//! other makes the calls that wait.
//!
//! Nobody waits for real time. The clock moves when the script's thread sleeps or
//! waits for a packet, from event to event, and stands still until whoever an
//! event has woken is done with it and has asked for the time: what a call
//! reports as the end of its waiting is then exact.

use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::environment::{self, Flags};
use crate::stack::{Failure, Host, Result};

/// What the clock shows at the beginning, in seconds since 1970: any time will
/// do.
pub(super) const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How much later than asked a sleeper wakes: the tool sleeps until so shortly
/// before an event and then looks at the clock until it has come.
const SPIN: Duration = Duration::from_micros(20);

/// Looks at the clock in a row that are nobody's waiting; the clock moves by
/// [`TICK`] for each further one.
const LOOKS: u32 = 8;
const TICK: Duration = Duration::from_micros(1);

/// For how long, in real time, whoever was woken is waited for.
const TIMEOUT: Duration = Duration::from_millis(500);

/// How far the clock moves at most while a packet is waited for.
const HORIZON: Duration = Duration::from_secs(3600);

/// A thread in a call that waits.
struct Sleeper {
    thread: ThreadId,
    /// [`Host::changes`] when it last looked.
    seen: u64,
    deadline: Option<Duration>,
}

struct Inner {
    host: Host,
    sleepers: Vec<Sleeper>,
    /// Threads that have waited and have not asked for the time since.
    returning: Vec<ThreadId>,
    /// Looks at the clock since it last moved.
    looks: u32,
}

/// See the module.
pub(super) struct Machine {
    inner: Mutex<Inner>,
    moved: Condvar,
    script: ThreadId,
    flags: Flags,
}

impl Inner {
    /// Whoever was woken is done.
    fn is_settled(&self) -> bool {
        let changes = self.host.changes();
        let now = self.host.now();
        self.returning.is_empty()
            && self.sleepers.iter().all(|sleeper| {
                sleeper.seen == changes && sleeper.deadline.is_none_or(|deadline| now < deadline)
            })
    }

    fn next_event(&self) -> Option<Duration> {
        let deadlines = self.sleepers.iter().filter_map(|sleeper| sleeper.deadline);
        deadlines.chain(self.host.next_event()).min()
    }
}

impl Machine {
    /// A host as the flags and the network namespace say. The calling thread is
    /// the script's.
    pub(super) fn new(flags: Flags) -> Self {
        let mut host = Host::new(flags.config());
        if let Some(mut device) = flags.device() {
            host.set_room(move || device.has_room());
        }
        Self {
            inner: Mutex::new(Inner {
                host,
                sleepers: Vec::new(),
                returning: Vec::new(),
                looks: 0,
            }),
            moved: Condvar::new(),
            script: thread::current().id(),
            flags,
        }
    }

    /// A panic in one call ends that call, not all.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that never waits.
    pub(super) fn now<T>(&self, call: impl FnOnce(&mut Host) -> T) -> T {
        let mut inner = self.lock();
        inner.looks = 0;
        let result = call(&mut inner.host);
        self.moved.notify_all();
        result
    }

    /// As [`Machine::now`], with the kernel parameters as they are now.
    pub(super) fn refreshed<T>(&self, call: impl FnOnce(&mut Host) -> T) -> T {
        let (sysctl, mtu) = (environment::sysctl(), self.flags.mtu());
        let offload = self.flags.segmentation_offload();
        self.now(|host| {
            host.set_sysctl(sysctl);
            host.set_mtu(mtu);
            host.set_segmentation_offload(offload);
            call(host)
        })
    }

    /// A call that may wait: again until it does not, or until `timeout` has
    /// passed, whose end is [`Failure::Blocked`].
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut Host) -> Result<T>,
    ) -> Result<T> {
        let thread = thread::current().id();
        let mut inner = self.lock();
        inner.looks = 0;
        let deadline = timeout.map(|timeout| inner.host.now() + timeout);
        let mut slept = false;
        let result = loop {
            let result = call(&mut inner.host);
            self.moved.notify_all();
            let over = deadline.is_some_and(|deadline| inner.host.now() >= deadline);
            if over || !matches!(result, Err(Failure::Blocked)) {
                break result;
            }
            if thread == self.script {
                // Nobody else would move the clock.
                let event = inner.next_event().into_iter().chain(deadline).min();
                let Some(event) = event else { break result };
                inner = self.step(inner, event);
                continue;
            }
            slept = true;
            let seen = inner.host.changes();
            inner.sleepers.push(Sleeper {
                thread,
                seen,
                deadline,
            });
            self.moved.notify_all();
            inner = self
                .moved
                .wait_while(inner, |inner| {
                    let now = inner.host.now();
                    inner.host.changes() == seen && deadline.is_none_or(|deadline| now < deadline)
                })
                .unwrap_or_else(PoisonError::into_inner);
            inner.sleepers.retain(|sleeper| sleeper.thread != thread);
        };
        if slept {
            inner.returning.push(thread);
        }
        result
    }

    /// Waits until whoever was woken is done.
    fn settle<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        let waited = self
            .moved
            .wait_timeout_while(inner, TIMEOUT, |inner| !inner.is_settled());
        let (mut inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            inner.returning.clear();
        }
        inner
    }

    /// Moves the clock to an event, and lets whoever it wakes go on.
    fn step<'a>(&self, inner: MutexGuard<'a, Inner>, to: Duration) -> MutexGuard<'a, Inner> {
        let mut inner = self.settle(inner);
        inner.host.advance(to);
        inner.looks = 0;
        self.moved.notify_all();
        self.settle(inner)
    }

    /// The script sleeps.
    pub(super) fn sleep(&self, time: Duration) {
        let mut inner = self.settle(self.lock());
        let end = inner.host.now() + time + SPIN;
        while inner.host.now() < end {
            let event = inner.next_event().map_or(end, |event| event.min(end));
            inner = self.step(inner, event);
        }
    }

    /// The next packet that leaves and when it did, since 1970. The clock moves
    /// until there is one; nothing when none will come.
    pub(super) fn receive(&self) -> Option<(Duration, Vec<u8>)> {
        let mut inner = self.settle(self.lock());
        let end = inner.host.now() + HORIZON;
        loop {
            if let Some((at, packet)) = inner.host.packet_out() {
                return Some((EPOCH + at, packet));
            }
            let event = inner.next_event().filter(|&event| event <= end)?;
            inner = self.step(inner, event);
        }
    }

    /// The time since 1970.
    pub(super) fn time(&self) -> Duration {
        let thread = thread::current().id();
        let mut inner = self.lock();
        inner.returning.retain(|&returning| returning != thread);
        self.moved.notify_all();
        if thread == self.script {
            inner.looks += 1;
            if inner.looks > LOOKS {
                let looks = inner.looks;
                let to = inner.host.now() + TICK;
                inner = self.step(inner, to);
                inner.looks = looks;
            }
        }
        EPOCH + inner.host.now()
    }
}
