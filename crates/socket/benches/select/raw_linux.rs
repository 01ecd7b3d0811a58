//! Linux's `select` and `poll`, of any width, and the time a thread was given.

use std::time::Duration;

/// Processor time of the calling thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable timespec for the call's duration.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// `select` without a timeout, on sets that hold `nfds` bits.
pub fn select(nfds: i32, sets: [&mut [u64]; 3]) -> i64 {
    let words = (nfds.max(0) as usize).div_ceil(64);
    assert!(sets.iter().all(|set| set.len() >= words));
    let [read, write, except] = sets.map(<[u64]>::as_mut_ptr);
    let never = std::ptr::null_mut::<libc::timeval>();
    // SAFETY: each set is writable for the words that hold `nfds` bits.
    unsafe { libc::syscall(libc::SYS_select, nfds, read, write, except, never) }
}

/// `poll` without a timeout.
pub fn poll(list: &mut [libc::pollfd]) -> i32 {
    // SAFETY: writable for the length stated.
    unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, -1) }
}

/// Lets the process have so many descriptors, if it may. How many it may have.
pub fn raise_descriptor_limit(limit: u64) -> u64 {
    let mut limits = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: valid for the calls' duration; what the first refuses, the second
    // tells.
    unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &limits);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits);
    }
    limits.rlim_cur
}
