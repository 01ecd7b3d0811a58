//! `select` and `poll` of Linux as system calls, on descriptors of any number:
//! the C library's `fd_set` ends at 1,024, the kernel's bitmaps do not.

use std::io;
use std::time::Duration;

fn timespec(timeout: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos().cast_signed()),
    }
}

/// Waits for up to `timeout` for descriptors below `nfds`; leaves those that
/// are ready in the sets and returns how many there are.
///
/// EINVAL for a negative `nfds`, or sets without room for it.
pub(crate) fn select(
    nfds: i32,
    read: &mut [u64],
    write: &mut [u64],
    timeout: Duration,
) -> io::Result<usize> {
    let words = usize::try_from(nfds).map_err(|_| io::ErrorKind::InvalidInput)?;
    let words = words.div_ceil(u64::BITS as usize);
    if read.len() < words || write.len() < words {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // pselect6 writes back what is left of it.
    let mut timeout = timespec(timeout);
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads and writes `nfds` bits of each set, rounded up to
    // longs, for which there is room; the timeout is a timespec of our own; the
    // third set and the signal mask are absent.
    let count = unsafe {
        libc::syscall(
            libc::SYS_pselect6,
            nfds,
            read.as_mut_ptr(),
            write.as_mut_ptr(),
            none,
            &raw mut timeout,
            none,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Waits for up to `timeout` for `entries`; returns how many have something.
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let timeout = timespec(timeout);
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: the pointer and the count describe `entries`; the timeout
    // outlives the call; there is no signal mask.
    let count = unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            count,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
