//! `select` and `poll` as system calls, of any width.

use std::io;

use super::column::{Answer, Selected};

fn check(result: i64) -> Answer<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap())
}

/// `select` without waiting.
pub fn select<I: Iterator<Item = i32>>(nfds: i32, sets: [I; 3]) -> Answer<(usize, Selected)> {
    let words = nfds.max(0) as usize / 64 + 1;
    let mut sets = sets.map(|numbers| {
        let mut set = vec![0u64; words];
        for fd in numbers.filter(|&fd| fd >= 0 && (fd as usize) < words * 64) {
            set[fd as usize / 64] |= 1 << (fd % 64);
        }
        set
    });
    let mut now = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr());
    // SAFETY: each set is writable for `nfds` bits and to the end of its last word,
    // and `now` for the call's duration.
    let ready = unsafe { libc::syscall(libc::SYS_select, nfds, read, write, except, &raw mut now) };
    let ready = check(ready)?;
    let numbers = sets.map(|set| {
        let all = 0..(words * 64) as i32;
        all.filter(|fd| set[*fd as usize / 64] & 1 << (fd % 64) != 0)
            .collect()
    });
    Ok((ready, numbers))
}

/// `poll` without waiting.
pub fn poll(list: impl Iterator<Item = (i32, i16)>) -> Answer<(usize, Vec<i16>)> {
    let mut list: Vec<libc::pollfd> = list
        .map(|(fd, events)| libc::pollfd {
            fd,
            events,
            revents: -1,
        })
        .collect();
    // SAFETY: writable for the length stated.
    let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, 0) };
    let ready = check(i64::from(ready))?;
    Ok((ready, list.iter().map(|entry| entry.revents).collect()))
}
