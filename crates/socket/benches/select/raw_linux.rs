//! Linux's `select` and `poll`, of any width.

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

/// Lets the process have so many descriptors.
pub fn raise_descriptor_limit(limit: u64) {
    let limits = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: valid for the call's duration.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) };
    assert_eq!(result, 0, "a limit of {limit} descriptors needs privilege");
}
