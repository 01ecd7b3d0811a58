//! The two things that the standard library has no safe call for: the
//! monotonic clock as a number, and the size of a terminal.

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
