//! Sleeping on descriptors.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An eventfd.
#[derive(Debug)]
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just returned to us, owned by nobody else.
        Ok(WakeFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight valid bytes. A full counter is a signal already.
        unsafe { libc::write(self.0.as_raw_fd(), (&one as *const u64).cast(), 8) };
    }

    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes. An empty counter leaves them alone.
        unsafe { libc::read(self.0.as_raw_fd(), (&mut count as *mut u64).cast(), 8) };
    }
}

/// CLOCK_MONOTONIC, which the driver program reads too.
pub(crate) fn monotonic() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable timespec for the call's duration.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(
        time.tv_sec.max(0) as u64,
        time.tv_nsec.clamp(0, 999_999_999) as u32,
    )
}

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

impl SignalSet {
    /// No signal is blocked.
    pub fn empty() -> Self {
        // SAFETY: all-zero is a valid sigset_t, which sigemptyset initialises.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            SignalSet(set)
        }
    }

    /// Adds a signal.
    ///
    /// # Errors
    /// EINVAL for a number that is no signal's.
    pub fn insert(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: a set that was initialised.
        if unsafe { libc::sigaddset(&mut self.0, signal) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Takes a signal out.
    ///
    /// # Errors
    /// EINVAL for a number that is no signal's.
    pub fn remove(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: a set that was initialised.
        if unsafe { libc::sigdelset(&mut self.0, signal) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// True when a signal is in it.
    pub fn contains(&self, signal: i32) -> bool {
        // SAFETY: a set that was initialised.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }
}

/// What a descriptor is ready for now, of `events` (POLL* bits) and what poll(2)
/// always tells: POLLERR, POLLHUP, POLLNVAL.
pub(crate) fn ready_now(fd: i32, events: i16) -> i16 {
    let mut slot = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one valid pollfd for the call's duration, which does not wait.
    if unsafe { libc::poll(&mut slot, 1, 0) } <= 0 {
        return 0;
    }
    slot.revents
}

/// Waits until one of the descriptors is readable (or in error). Returns which
/// ones were, in order; empty on timeout.
///
/// # Errors
/// EINTR.
pub(crate) fn readable(
    descriptors: &[i32],
    timeout: Option<Duration>,
    out: &mut Vec<usize>,
) -> io::Result<()> {
    readable_masked(descriptors, timeout, None, out)
}

/// As [`readable`], with `signals` blocked in place of those that are.
///
/// # Errors
/// EINTR.
pub(crate) fn readable_masked(
    descriptors: &[i32],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
    out: &mut Vec<usize>,
) -> io::Result<()> {
    out.clear();
    let mut polled: [libc::pollfd; 16] = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }; 16];
    let mut many: Vec<libc::pollfd>;
    let polled: &mut [libc::pollfd] = match polled.get_mut(..descriptors.len()) {
        Some(few) => few,
        None => {
            many = vec![
                libc::pollfd {
                    fd: -1,
                    events: libc::POLLIN,
                    revents: 0
                };
                descriptors.len()
            ];
            &mut many
        }
    };
    for (slot, &fd) in polled.iter_mut().zip(descriptors) {
        slot.fd = fd;
    }
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    });
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    let signals = signals.map_or(std::ptr::null(), |signals| std::ptr::from_ref(&signals.0));
    // SAFETY: `polled` is valid for its length, `timeout` and `signals` null or
    // valid, all for the call's duration.
    let result = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            timeout,
            signals,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    out.extend(
        polled
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.revents != 0)
            .map(|(n, _)| n),
    );
    Ok(())
}
