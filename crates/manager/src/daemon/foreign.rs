//! Descriptors that clients have passed. Examining one may block, since its owner may
//! hold the socket's lock. Closing one may block: TCP lingers as long as the owner set,
//! the server of a FUSE file flushes it, and a Unix socket closes unread descriptors. So
//! threads do both, one per user, and a hostile user delays no other.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::CWD;
use tidewall_sys::WakeFd;

use super::manager::ClientId;
use super::ports::{HolderFacts, PortKey};
use crate::connection::Received;

/// How long an idle thread lives.
const IDLE: Duration = Duration::from_secs(1);
/// Number of jobs waiting for a user's thread from which no more of the user's
/// connections are accepted.
const WAITING_MOST: usize = 64;

/// A descriptor that a client has passed, which its user's thread closes.
pub struct ForeignFd {
    /// `None` while being dropped.
    descriptor: Option<OwnedFd>,
    closed_by: Option<Arc<Desk>>,
}

impl From<OwnedFd> for ForeignFd {
    /// Wraps this process's own descriptor, which is closed where it is dropped.
    fn from(descriptor: OwnedFd) -> Self {
        ForeignFd {
            descriptor: Some(descriptor),
            closed_by: None,
        }
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        if let Some(desk) = &self.closed_by {
            desk.give(Job::Close(Box::new(self.descriptor.take())));
        }
    }
}

impl fmt::Debug for ForeignFd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(formatter)
    }
}

/// A message with descriptors that were examined.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) client: ClientId,
    pub(super) bytes: Vec<u8>,
    /// The descriptor beside the message, if there was one.
    pub(super) descriptor: Option<ForeignFd>,
    /// The kernel's facts about it.
    pub(super) facts: Option<HolderFacts>,
}

/// A result of a user's thread.
#[derive(Debug)]
pub(super) enum Found {
    Message(Seen),
    /// A holder's current state, by its cookie.
    Holder(u64, Option<HolderFacts>),
    /// Another user has a socket at the port.
    Anothers(PortKey),
    /// A client's resource is closed; the id of the answer that waited for it.
    Closed(ClientId, u32),
}

/// The threads of all users.
#[derive(Debug)]
pub(super) struct ForeignThreads {
    desks: HashMap<u32, Arc<Desk>>,
    common: Arc<Common>,
}

/// Returns facts about a user's descriptor.
type Facts = dyn Fn(BorrowedFd<'_>, u32) -> Option<HolderFacts> + Send + Sync;
type Ask = dyn FnOnce(&Facts) -> Option<Found> + Send;

/// State shared by all threads.
struct Common {
    facts: Box<Facts>,
    found: Mutex<Vec<Found>>,
    wake: WakeFd,
}

impl fmt::Debug for Common {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Common").finish_non_exhaustive()
    }
}

/// The work of one user's thread.
#[derive(Debug)]
struct Desk {
    work: Mutex<Work>,
    changed: Condvar,
    common: Arc<Common>,
}

#[derive(Debug, Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// Jobs that are not finished.
    waiting: usize,
    has_thread: bool,
}

enum Job {
    Look(u32, ClientId, Received),
    Ask(Box<Ask>),
    Close(Box<dyn Send>),
}

impl fmt::Debug for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Job::Look(..) => "Look",
            Job::Ask(_) => "Ask",
            Job::Close(_) => "Close",
        })
    }
}

/// A caller never leaves state half changed behind a lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForeignThreads {
    /// Starts without threads. `facts` returns the kernel's facts about a user's
    /// descriptor.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn new(
        facts: impl Fn(BorrowedFd<'_>, u32) -> Option<HolderFacts> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(ForeignThreads {
            desks: HashMap::new(),
            common: Arc::new(Common {
                facts: Box::new(facts),
                found: Mutex::default(),
                wake: WakeFd::new()?,
            }),
        })
    }

    /// Becomes readable once [`ForeignThreads::found`] has something.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.common.wake.as_fd()
    }

    /// Makes a user's thread examine the descriptors beside a message.
    pub(super) fn look(&mut self, user: u32, client: ClientId, received: Received) {
        self.desk(user).give(Job::Look(user, client, received));
    }

    /// Makes a user's thread query the kernel, after its earlier jobs.
    pub(super) fn ask(
        &mut self,
        user: u32,
        ask: impl FnOnce(&Facts) -> Option<Found> + Send + 'static,
    ) {
        self.desk(user).give(Job::Ask(Box::new(ask)));
    }

    /// Returns the results.
    pub(super) fn found(&self) -> Vec<Found> {
        self.common.wake.clear();
        std::mem::take(&mut *locked(&self.common.found))
    }

    /// Makes a user's thread drop something.
    pub(super) fn close(&mut self, user: u32, what: impl Send + 'static) {
        self.desk(user).give(Job::Close(Box::new(what)));
    }

    /// Wraps a user's descriptor, which the user's thread closes when it is dropped.
    pub(super) fn own(&mut self, user: u32, descriptor: OwnedFd) -> ForeignFd {
        ForeignFd {
            descriptor: Some(descriptor),
            closed_by: Some(self.desk(user)),
        }
    }

    /// True where a user's thread has so many jobs that no more of the user's connections
    /// are accepted.
    pub(super) fn is_stuck(&self, user: u32) -> bool {
        let desk = self.desks.get(&user);
        desk.is_some_and(|desk| locked(&desk.work).waiting >= WAITING_MOST)
    }

    fn desk(&mut self, user: u32) -> Arc<Desk> {
        if let Some(desk) = self.desks.get(&user) {
            return desk.clone();
        }
        // Users without work get a new thread when they return.
        self.desks
            .retain(|_, desk| Arc::strong_count(desk) > 1 || locked(&desk.work).waiting > 0);
        let desk = Arc::new(Desk {
            work: Mutex::default(),
            changed: Condvar::new(),
            common: self.common.clone(),
        });
        self.desks.insert(user, desk.clone());
        desk
    }
}

impl Desk {
    fn give(self: &Arc<Self>, job: Job) {
        let mut work = locked(&self.work);
        work.jobs.push_back(job);
        work.waiting += 1;
        if work.has_thread {
            self.changed.notify_one();
            return;
        }
        let desk = self.clone();
        // If no thread can be started the job waits for the next job's thread.
        let thread = thread::Builder::new().name("tw-foreign".to_owned());
        work.has_thread = thread.spawn(move || desk.work()).is_ok();
    }

    fn work(self: Arc<Self>) {
        let mut work = locked(&self.work);
        loop {
            let Some(job) = work.jobs.pop_front() else {
                let waited = self.changed.wait_timeout(work, IDLE);
                let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                work = again;
                if timeout.timed_out() && work.jobs.is_empty() {
                    work.has_thread = false;
                    return;
                }
                continue;
            };
            drop(work);
            self.finish(job);
            work = locked(&self.work);
            work.waiting = work.waiting.saturating_sub(1);
        }
    }

    fn finish(self: &Arc<Self>, job: Job) {
        let (user, client, received) = match job {
            Job::Look(user, client, received) => (user, client, received),
            Job::Ask(ask) => {
                if let Some(found) = ask(&*self.common.facts) {
                    self.common.report(found);
                }
                return;
            }
            Job::Close(what) => return drop(what),
        };
        // No request has more than one descriptor.
        let descriptor = <[OwnedFd; 1]>::try_from(received.descriptors);
        let descriptor = descriptor.ok().map(|[descriptor]| descriptor);
        let facts = descriptor.as_ref();
        let facts = facts.and_then(|descriptor| (self.common.facts)(descriptor.as_fd(), user));
        let descriptor = descriptor.map(|descriptor| ForeignFd {
            descriptor: Some(descriptor),
            closed_by: Some(self.clone()),
        });
        self.common.report(Found::Message(Seen {
            client,
            bytes: received.bytes,
            descriptor,
            facts,
        }));
    }
}

impl Common {
    fn report(&self, found: Found) {
        locked(&self.found).push(found);
        self.wake.signal();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use rustix::io::Errno;
    use rustix::pipe::pipe;

    use super::*;

    fn wait_until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < end, "never: {what}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_user_whose_close_blocks_keeps_no_other_waiting() {
        struct Blocks(std::sync::mpsc::Receiver<()>);
        impl Drop for Blocks {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let mut threads = ForeignThreads::new(|_, _| None).unwrap();
        let (unblock, blocks) = channel();
        threads.close(1, Blocks(blocks));
        let (reads, writes) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&reads, true).unwrap();
        // The same user's next job waits, another user's does not.
        drop(threads.own(1, writes));
        let (others, of_other) = pipe().unwrap();
        drop(threads.own(2, of_other));
        assert_eq!(rustix::io::read(&others, &mut [0; 1]), Ok(0));
        assert_eq!(rustix::io::read(&reads, &mut [0; 1]), Err(Errno::AGAIN));
        while !threads.is_stuck(1) {
            threads.close(1, ());
        }
        assert!(!threads.is_stuck(2));
        unblock.send(()).unwrap();
        let closed = || rustix::io::read(&reads, &mut [0; 1]) == Ok(0);
        wait_until("it is closed", closed);
        wait_until("all is done", || !threads.is_stuck(1));
    }

    #[test]
    fn one_descriptor_is_looked_at_and_more_are_closed() {
        let mut threads = ForeignThreads::new(|_, _| None).unwrap();
        let (reads, writes) = pipe().unwrap();
        let received = |descriptors| Received {
            bytes: vec![7],
            descriptors,
        };
        threads.look(1, 1, received(vec![reads]));
        threads.look(1, 2, received(vec![writes.try_clone().unwrap(), writes]));
        let mut seen = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while seen.len() < 2 && Instant::now() < end {
            seen.extend(threads.found().into_iter().filter_map(|found| match found {
                Found::Message(seen) => Some(seen),
                _ => None,
            }));
        }
        let [one, several] = &seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!((one.client, several.client), (1, 2));
        assert!(several.descriptor.is_none());
        // The writing end is closed.
        let one = one.descriptor.as_ref().unwrap();
        assert_eq!(rustix::io::read(one, &mut [0; 1]), Ok(0));
    }
}
