//! The three things that the standard library has no safe call for: the
//! monotonic clock as a number, opening a generic netlink socket, and the size
//! of a terminal.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Nanoseconds on CLOCK_MONOTONIC, the clock of `bpf_ktime_get_ns`.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec for the call to fill; CLOCK_MONOTONIC
    // always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A generic netlink socket, to be written to and read from: without a
/// destination a message goes to the kernel. Reading gives up after a second.
///
/// # Errors
/// What `socket` reports.
pub fn generic_netlink() -> io::Result<File> {
    // SAFETY: no pointers are passed.
    let descriptor = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_GENERIC,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor; nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let second = libc::timeval {
        tv_sec: 1,
        tv_usec: 0,
    };
    // SAFETY: the option takes a timeval, which `second` is, for its own size.
    let set = unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const second).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(File::from(socket))
}

/// Columns and rows of the terminal that standard output is; `None` where it is
/// none, or does not know.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ fills a winsize, which `size` is; a descriptor that is
    // closed or no terminal is an error.
    let done = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_row > 0 && size.ws_col > 0)
        .then_some((size.ws_col.into(), size.ws_row.into()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_goes_forward() {
        let first = super::monotonic();
        assert!(first > 0);
        assert!(super::monotonic() >= first);
    }
}
