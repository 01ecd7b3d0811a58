//! Numbers that the library has of the kernel's for itself: a program that closes what it
//! does not know does not close them.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt::socket_cookie;
use rustix::process::{Resource, getrlimit};

use crate::process;

/// Where a number is looked for first that is to be out of the way of select(2), and of
/// programs that expect the lowest.
const FIRST_NUMBER: i32 = 900;

/// Numbers that can be protected are below this.
const NUMBERS: usize = 1 << 16;

static PROTECTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Of numbers by which the stack holds a socket of the program's: the socket's cookie, which
/// is no other's (SO_COOKIE). Pages that no number is in take no memory.
static HELD: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// True for a number that the program may not close. In a child that was forked all are its
/// own: nothing uses them there.
#[inline]
pub(crate) fn is_protected(fd: i32) -> bool {
    let number = fd as usize;
    let word = PROTECTED.get(number / 64);
    (word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (number % 64) != 0) || is_held(fd))
        && !process::is_forked()
        && !process::is_inside()
}

/// True while the number is the stack's: once that has closed it, it may be anybody's.
#[inline]
fn is_held(fd: i32) -> bool {
    let held = HELD.get(fd as usize);
    held.is_some_and(|held| match held.load(Ordering::Relaxed) {
        0 => false,
        cookie => cookie_of(fd) == Some(cookie),
    })
}

fn cookie_of(fd: i32) -> Option<u64> {
    socket_cookie(crate::raw::borrow(fd)?).ok()
}

/// The stack holds a socket by this number.
pub(crate) fn hold(fd: i32) {
    if let (Some(held), Some(cookie)) = (HELD.get(fd as usize), cookie_of(fd)) {
        held.store(cookie, Ordering::Relaxed);
    }
}

/// The stack holds a socket by what `make` duplicates of it.
pub(crate) fn holding<T>(socket: BorrowedFd<'_>, make: impl FnOnce() -> T) -> T {
    let before = open_numbers();
    let made = make();
    let cookie = socket_cookie(socket).ok();
    if let (Some(before), Some(after)) = (before, open_numbers()) {
        let new = after.into_iter().filter(|fd| !before.contains(fd));
        new.filter(|&fd| cookie_of(fd) == cookie).for_each(hold);
    }
    made
}

/// True where there are such numbers.
pub(crate) fn is_any() -> bool {
    let mut words = PROTECTED.iter();
    !process::is_forked() && words.any(|word| word.load(Ordering::Relaxed) != 0)
}

/// The numbers from `first` to `last` that the program may close, in ranges.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut next = Some(first);
    let end = last.min(NUMBERS as u32);
    let kept = (first..=end).filter(|&fd| is_protected(fd as i32));
    // Behind the last number that may be protected there is one range more.
    kept.map(Some).chain([None]).filter_map(move |kept| {
        let from = next?;
        next = kept
            .and_then(|it| it.checked_add(1))
            .filter(|&it| it <= last);
        match kept {
            Some(kept) => (from < kept).then(|| (from, kept - 1)),
            None => Some((from, last)),
        }
    })
}

/// The program does not close this number from now on.
pub(crate) fn protect(fd: i32) {
    if let Some(word) = PROTECTED.get(fd as usize / 64) {
        word.fetch_or(1 << (fd as usize % 64), Ordering::Relaxed);
    }
}

/// A descriptor under a protected number that programs have no use for.
pub(crate) fn out_of_the_way(descriptor: OwnedFd) -> OwnedFd {
    let moved = fcntl_dupfd_cloexec(&descriptor, FIRST_NUMBER).unwrap_or(descriptor);
    protect(moved.as_raw_fd());
    moved
}

/// The program may not open files any more, nor may what is called for it.
static NO_FILES: AtomicBool = AtomicBool::new(false);

/// From now on [`open_numbers`] opens nothing.
pub(crate) fn forbid_files() {
    NO_FILES.store(true, Ordering::Relaxed);
}

/// The numbers that are open, where they can be told. Where a root directory of the program's
/// own has no /proc, each is asked about.
pub(crate) fn open_numbers() -> Option<Vec<i32>> {
    if NO_FILES.load(Ordering::Relaxed) {
        return None;
    }
    let numbers: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter_map(|name| name.parse().ok()).collect()
        }
        Err(_) => {
            let limit = getrlimit(Resource::Nofile).current?;
            (0..i32::try_from(limit).ok()?).collect()
        }
    };
    // The directory that was just read is among them, and closed.
    let open = numbers.into_iter().filter(|&fd| crate::raw::is_open(fd));
    Some(open.collect())
}

/// Protects what `make` opens and leaves open. What other threads open meanwhile is
/// protected with it: they are few, as that is once a process.
pub(crate) fn protecting<T>(make: impl FnOnce() -> T) -> T {
    let before = open_numbers();
    let made = make();
    if let (Some(before), Some(after)) = (before, open_numbers()) {
        let new = after.into_iter().filter(|fd| !before.contains(fd));
        new.for_each(protect);
    }
    made
}
