//! Sleeping on descriptors by number, with a signal mask.

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use crate::count;

/// Bytes of the kernel's sigset_t.
const SET_BYTES: usize = size_of::<SignalSet>();

/// A set of signals in the kernel's format (sigset_t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// No signal.
    pub fn empty() -> Self {
        SignalSet(0)
    }

    /// Every signal except the two that the C library reserves (nptl(7)).
    pub fn full() -> Self {
        SignalSet(!(0b11 << 31))
    }

    fn bit(signal: i32) -> io::Result<u64> {
        match signal {
            1..=64 => Ok(1 << (signal - 1)),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Adds a signal.
    ///
    /// # Errors
    /// EINVAL for an invalid signal number.
    pub fn insert(&mut self, signal: i32) -> io::Result<()> {
        self.0 |= Self::bit(signal)?;
        Ok(())
    }

    /// Removes a signal.
    ///
    /// # Errors
    /// EINVAL for an invalid signal number.
    pub fn remove(&mut self, signal: i32) -> io::Result<()> {
        self.0 &= !Self::bit(signal)?;
        Ok(())
    }

    /// The set in the kernel's format, signal 1 lowest.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Converts back from [`SignalSet::bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        SignalSet(bits)
    }

    /// True when a signal is in it.
    pub fn contains(&self, signal: i32) -> bool {
        Self::bit(signal).is_ok_and(|bit| self.0 & bit != 0)
    }

    /// Blocks these signals, too, in the calling thread. Returns those that it blocked
    /// before. Async-signal-safe.
    pub fn block(self) -> Self {
        self.change(libc::SIG_BLOCK)
    }

    /// Blocks exactly these signals in the calling thread. Returns those that it blocked
    /// before. Async-signal-safe.
    pub fn set(self) -> Self {
        self.change(libc::SIG_SETMASK)
    }

    fn change(self, how: i32) -> Self {
        let mut before = 0;
        let (now, before_at) = (&raw const self.0, &raw mut before);
        // SAFETY: two sets of the length that is passed. The call cannot fail.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, now, before_at, SET_BYTES) };
        SignalSet(before)
    }
}

fn timespec(timeout: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos().cast_signed()),
    }
}

/// `ppoll`: waits for up to `timeout` (`None`: for ever) for one of the entries, with
/// `signals` as the signal mask. Returns how many entries have events.
///
/// # Errors
/// EINTR.
pub fn ppoll(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> io::Result<usize> {
    // The kernel writes the remaining time back.
    let mut timeout = timeout.map(timespec);
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let signals = signals.map_or(ptr::null(), ptr::from_ref);
    let (place, length) = (entries.as_mut_ptr(), entries.len());
    // SAFETY: `entries` is valid for its length, `timeout` and `signals` are null or
    // valid, all during the call. A number without a descriptor is POLLNVAL.
    count(unsafe { libc::syscall(libc::SYS_ppoll, place, length, timeout, signals, SET_BYTES) })
}

/// The current readiness of a descriptor: those of `events` (POLL* bits), and what
/// poll(2) always reports: POLLERR, POLLHUP, POLLNVAL.
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

/// Sleeps until one of the descriptors is readable or in error, with `signals` as the
/// signal mask. Puts the indexes of the ready ones into `out`, in order; none after
/// `timeout`.
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

/// `select` on descriptors of any number: the C library's `fd_set` ends at 1,024, the
/// kernel's bitmaps do not. Waits for up to `timeout` (`None`: for ever) for descriptors
/// below `nfds`. Leaves the ready ones in the sets and returns their number.
///
/// # Errors
/// EBADF; EINVAL for a negative `nfds`, or sets that are too small for it.
pub fn select(
    nfds: i32,
    read: &mut [u64],
    write: &mut [u64],
    except: &mut [u64],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let words = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
    let words = words.div_ceil(u64::BITS as usize);
    let pointer = |set: &mut [u64]| match set.len() {
        0 => Ok(ptr::null_mut()),
        length if length >= words => Ok(set.as_mut_ptr()),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    let (read, write, except) = (pointer(read)?, pointer(write)?, pointer(except)?);
    // pselect6 writes the remaining time back.
    let mut timeout = timeout.map(timespec);
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the kernel reads and writes `nfds` bits of each set that is present,
    // rounded up to longs, which the sets have. The timeout is null or a local timespec;
    // there is no signal mask.
    count(unsafe {
        libc::syscall(
            libc::SYS_pselect6,
            nfds,
            read,
            write,
            except,
            timeout,
            ptr::null_mut::<libc::c_void>(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_signals_of_linux() {
        let mut set = SignalSet::empty();
        for signal in [0, 65, -1] {
            assert!(set.insert(signal).is_err() && !set.contains(signal));
        }
        for signal in [1, libc::SIGUSR1, 64] {
            set.insert(signal).unwrap();
            assert!(set.contains(signal));
        }
        set.remove(libc::SIGUSR1).unwrap();
        assert!(!set.contains(libc::SIGUSR1) && set.contains(64));
        assert!(SignalSet::full().contains(31) && SignalSet::full().contains(34));
        assert!(!SignalSet::full().contains(32) && !SignalSet::full().contains(33));
    }

    #[test]
    fn a_thread_blocks_what_it_is_given() {
        let mut one = SignalSet::empty();
        one.insert(libc::SIGUSR2).unwrap();
        let before = one.block();
        assert!(!before.contains(libc::SIGUSR2));
        assert!(before.set().contains(libc::SIGUSR2));
        assert_eq!(before.set(), before);
    }

    #[test]
    fn select_leaves_what_is_ready() {
        let (reader, writer) = std::io::pipe().unwrap();
        let [reader, writer] = [
            std::os::fd::AsRawFd::as_raw_fd(&reader),
            std::os::fd::AsRawFd::as_raw_fd(&writer),
        ];
        let bit = |fd: RawFd| 1 << (fd % 64);
        let words = reader.max(writer) as usize / 64 + 1;
        let (mut read, mut write) = (vec![0; words], vec![0; words]);
        read[reader as usize / 64] |= bit(reader);
        write[writer as usize / 64] |= bit(writer);
        let nfds = reader.max(writer) + 1;
        assert_eq!(
            select(nfds, &mut read, &mut write, &mut [], None).unwrap(),
            1
        );
        assert_eq!(read, vec![0; words]);
        assert_ne!(write[writer as usize / 64], 0);
        assert!(select(nfds, &mut read, &mut [0; 0], &mut [], Some(Duration::ZERO)).is_ok());
        assert!(select(-1, &mut [], &mut [], &mut [], None).is_err());
    }
}
