//! Sleeping on descriptors known by number, with a signal mask.

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

/// Signals that are blocked while a call sleeps (pselect, ppoll, epoll_pwait).
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalSet").finish_non_exhaustive()
    }
}

impl Default for SignalSet {
    fn default() -> Self {
        Self::empty()
    }
}

fn done(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl SignalSet {
    /// No signal is blocked.
    pub fn empty() -> Self {
        // SAFETY: all-zero is a valid sigset_t, which sigemptyset initialises.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            SignalSet(set)
        }
    }

    /// Adds a signal.
    ///
    /// # Errors
    /// EINVAL for a number that is no signal's.
    pub fn insert(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: a set that was initialised.
        done(unsafe { libc::sigaddset(&raw mut self.0, signal) })
    }

    /// Takes a signal out.
    ///
    /// # Errors
    /// EINVAL for a number that is no signal's.
    pub fn remove(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: a set that was initialised.
        done(unsafe { libc::sigdelset(&raw mut self.0, signal) })
    }

    /// True when a signal is in it.
    pub fn contains(&self, signal: i32) -> bool {
        // SAFETY: a set that was initialised.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }
}

fn timespec(timeout: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos().cast_signed()),
    }
}

/// `ppoll`: waits for up to `timeout` (`None`: for ever) for one of the entries,
/// with `signals` blocked in place of those that are; returns how many have
/// something.
///
/// # Errors
/// EINTR.
pub fn ppoll(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let signals = signals.map_or(ptr::null(), |signals| ptr::from_ref(&signals.0));
    // SAFETY: `entries` is valid for its length, `timeout` and `signals` null or
    // valid, all for the call's duration; a number that is nobody's is POLLNVAL.
    let count = unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            timeout,
            signals,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// What a descriptor is ready for now, of `events` (POLL* bits) and what poll(2)
/// always reports: POLLERR, POLLHUP, POLLNVAL.
pub fn ready_now(fd: RawFd, events: i16) -> i16 {
    let mut entry = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    match ppoll(&mut entry, Some(Duration::ZERO), None) {
        Ok(_) => entry[0].revents,
        Err(_) => 0,
    }
}

/// Sleeps until one of the descriptors is readable or in error, with `signals`
/// blocked in place of those that are. Puts the places of those that are ready
/// into `out`, in order; none after `timeout`.
///
/// # Errors
/// EINTR.
pub fn poll_readable(
    descriptors: &[RawFd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
    out: &mut Vec<usize>,
) -> io::Result<()> {
    const NONE: libc::pollfd = libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    };
    out.clear();
    let mut few = [NONE; 16];
    let mut many: Vec<libc::pollfd>;
    let entries = match few.get_mut(..descriptors.len()) {
        Some(few) => few,
        None => {
            many = vec![NONE; descriptors.len()];
            &mut many
        }
    };
    for (entry, &fd) in entries.iter_mut().zip(descriptors) {
        entry.fd = fd;
    }
    ppoll(entries, timeout, signals)?;
    let ready = entries.iter().enumerate().filter(|(_, e)| e.revents != 0);
    out.extend(ready.map(|(number, _)| number));
    Ok(())
}

/// `select` on descriptors of any number: the C library's `fd_set` ends at
/// 1,024, the kernel's bitmaps do not. Waits for up to `timeout` for descriptors
/// below `nfds`; leaves those that are ready in the sets and returns how many
/// there are.
///
/// # Errors
/// EBADF; EINVAL for a negative `nfds`, or sets without room for it.
pub fn select(
    nfds: i32,
    read: &mut [u64],
    write: &mut [u64],
    except: &mut [u64],
    timeout: Duration,
) -> io::Result<usize> {
    let words = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
    let words = words.div_ceil(u64::BITS as usize);
    let pointer = |set: &mut [u64]| match set.len() {
        0 => Ok(ptr::null_mut()),
        length if length >= words => Ok(set.as_mut_ptr()),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    let (read, write, except) = (pointer(read)?, pointer(write)?, pointer(except)?);
    // pselect6 writes back what is left of it.
    let mut timeout = timespec(timeout);
    // SAFETY: the kernel reads and writes `nfds` bits of each set that is there,
    // rounded up to longs, for which there is room; the timeout is a timespec of
    // our own; there is no signal mask.
    let count = unsafe {
        libc::syscall(
            libc::SYS_pselect6,
            nfds,
            read,
            write,
            except,
            &raw mut timeout,
            ptr::null_mut::<libc::c_void>(),
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
