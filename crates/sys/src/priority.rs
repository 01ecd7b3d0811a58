//! Scheduling class and nice value of threads (sched(7)).
//!
//! A filter of system calls may forbid these calls to a process, or end the process for
//! them. After [`leave_priorities`] reports that, nothing here makes a call.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::{Pid, gettid, sched_yield};

use crate::raw_thread::{scheduling, set_scheduling};

const SCHED_EXT: u32 = 7;

/// Scheduling parameters of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    policy: u32,
    nice: i32,
    /// The priority of SCHED_FIFO and SCHED_RR.
    priority: u32,
    /// Runtime, deadline and period of SCHED_DEADLINE, ns.
    times: [u64; 3],
}

/// A thread's rank in scheduling: first the class, then the priority or nice value within
/// the class. Threads of equal rank run in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// The lowest rank: SCHED_IDLE.
    pub const IDLE: Priority = Priority(0);
    /// Nice 0; also the rank of threads about which nothing is known.
    pub const NORMAL: Priority = Priority::of_nice(0);

    /// The rank of an ordinary thread with this nice value, -20 to 19.
    pub const fn of_nice(nice: i32) -> Priority {
        let nice = if nice < -20 {
            -20
        } else if nice > 19 {
            19
        } else {
            nice
        };
        Priority((20 - nice) as u8)
    }

    /// The rank as a number.
    pub const fn to_u8(self) -> u8 {
        self.0
    }

    /// Converts back from [`Priority::to_u8`].
    pub const fn from_u8(number: u8) -> Priority {
        Priority(number)
    }
}

impl Scheduling {
    /// The parameters of a thread; `None` is the calling thread.
    ///
    /// # Errors
    /// ESRCH; ENOSYS after [`leave_priorities`]; the errno of a system call filter.
    pub fn of(thread: Option<Pid>) -> io::Result<Self> {
        unless_left(|| {
            let attributes = scheduling(Pid::as_raw(thread))?;
            let mut of = Scheduling {
                policy: attributes.sched_policy,
                ..Self::default()
            };
            match of.policy as i32 {
                libc::SCHED_FIFO | libc::SCHED_RR => of.priority = attributes.sched_priority,
                libc::SCHED_DEADLINE => {
                    of.times = [
                        attributes.sched_runtime,
                        attributes.sched_deadline,
                        attributes.sched_period,
                    ];
                }
                _ => of.nice = attributes.sched_nice,
            }
            Ok(of)
        })
    }

    /// Applies them to the calling thread.
    ///
    /// # Errors
    /// EPERM if they are higher than the thread's and the process may not raise those
    /// (CAP_SYS_NICE, RLIMIT_NICE). EBUSY for a deadline that cannot be met. Otherwise as
    /// [`Scheduling::of`].
    pub fn apply(&self) -> io::Result<()> {
        let [sched_runtime, sched_deadline, sched_period] = self.times;
        let attributes = libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32,
            sched_policy: self.policy,
            sched_flags: 0,
            sched_nice: self.nice,
            sched_priority: self.priority,
            sched_runtime,
            sched_deadline,
            sched_period,
        };
        unless_left(|| set_scheduling(&attributes))
    }

    /// The thread's rank.
    pub fn priority(&self) -> Priority {
        match self.policy as i32 {
            libc::SCHED_IDLE => Priority::IDLE,
            libc::SCHED_FIFO | libc::SCHED_RR => {
                Priority(Priority::of_nice(-20).0 + self.priority.min(99) as u8)
            }
            libc::SCHED_DEADLINE => Priority(u8::MAX),
            _ => Priority::of_nice(self.nice),
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy as i32 {
            libc::SCHED_OTHER => write!(f, "nice {}", self.nice),
            libc::SCHED_BATCH => write!(f, "SCHED_BATCH, nice {}", self.nice),
            libc::SCHED_FIFO => write!(f, "SCHED_FIFO {}", self.priority),
            libc::SCHED_RR => write!(f, "SCHED_RR {}", self.priority),
            libc::SCHED_IDLE => f.write_str("SCHED_IDLE"),
            libc::SCHED_DEADLINE => f.write_str("SCHED_DEADLINE"),
            _ if self.policy == SCHED_EXT => write!(f, "SCHED_EXT, nice {}", self.nice),
            other => write!(f, "scheduling policy {other}"),
        }
    }
}

static LEFT: AtomicBool = AtomicBool::new(false);
/// Number of threads that are making one of the calls, or about to.
static CALLING: AtomicU32 = AtomicU32::new(0);
/// How often [`leave_priorities`] waits for those threads. A count that a fork has copied
/// never falls.
const WAITS: u32 = 10_000;

/// Sets whether this process refrains from all calls that read or change priorities or
/// yield the CPU. It must if a filter of system calls forbids one of them. Returns the
/// previous setting. On return no thread is about to make such a call.
pub fn leave_priorities(left: bool) -> bool {
    let before = LEFT.swap(left, Ordering::SeqCst);
    for _ in 0..WAITS {
        if !left || CALLING.load(Ordering::SeqCst) == 0 {
            break;
        }
        std::thread::yield_now();
    }
    before
}

fn unless_left<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    CALLING.fetch_add(1, Ordering::SeqCst);
    let result = if LEFT.load(Ordering::SeqCst) {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    } else {
        call()
    };
    CALLING.fetch_sub(1, Ordering::SeqCst);
    result
}

/// The calling thread's id (gettid(2)), for [`Scheduling::of`].
///
/// # Errors
/// ENOSYS after [`leave_priorities`].
pub fn this_thread() -> io::Result<Pid> {
    unless_left(|| Ok(gettid()))
}

/// Allows another thread of this CPU to run first, if one is ready (sched_yield(2)).
pub fn yield_processor() {
    let _ = unless_left(|| {
        sched_yield();
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(policy: i32, nice: i32, priority: u32) -> Scheduling {
        Scheduling {
            policy: policy as u32,
            nice,
            priority,
            ..Scheduling::default()
        }
    }

    #[test]
    fn classes_and_nice_values_have_an_order() {
        let from_lowest = [
            of(libc::SCHED_IDLE, -20, 0),
            of(libc::SCHED_OTHER, 19, 0),
            of(libc::SCHED_BATCH, 5, 0),
            of(libc::SCHED_OTHER, 0, 0),
            of(libc::SCHED_OTHER, -20, 0),
            of(libc::SCHED_FIFO, 0, 1),
            of(libc::SCHED_RR, 0, 99),
            of(libc::SCHED_DEADLINE, 0, 0),
        ];
        assert!(from_lowest.is_sorted_by(|one, next| one.priority() < next.priority()));
        assert_eq!(from_lowest[3].priority(), Priority::NORMAL);
        let number = from_lowest[6].priority().to_u8();
        assert_eq!(Priority::from_u8(number), from_lowest[6].priority());
    }

    /// One test, since the switch belongs to the process.
    #[test]
    fn a_thread_takes_what_it_may_and_nothing_is_asked_where_that_is_left() {
        let lower = std::thread::spawn(|| {
            let lower = of(libc::SCHED_OTHER, 19, 0);
            lower.apply().unwrap();
            assert_eq!(Scheduling::of(None).unwrap(), lower);
            assert_eq!(lower.to_string(), "nice 19");
            let idle = of(libc::SCHED_IDLE, 0, 0);
            idle.apply().unwrap();
            Scheduling::of(None).unwrap().priority()
        });
        assert_eq!(lower.join().unwrap(), Priority::IDLE);
        assert!(!leave_priorities(true));
        let nothing = Scheduling::of(None).unwrap_err();
        assert_eq!(nothing.raw_os_error(), Some(libc::ENOSYS));
        assert!(of(libc::SCHED_OTHER, 19, 0).apply().is_err());
        yield_processor();
        assert!(leave_priorities(false));
        assert!(Scheduling::of(None).is_ok());
    }
}
