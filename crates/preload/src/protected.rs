//! Numbers that the library has of the kernel's for itself: a program that closes what it
//! does not know does not close them.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use tidewall_device::forked;

use crate::candidates;
use crate::process;

/// Where a number is looked for first that is to be out of the way of select(2), and of
/// programs that expect the lowest.
const FIRST_NUMBER: i32 = 900;

/// Numbers that can be protected are below this.
const NUMBERS: usize = 1 << 16;

static PROTECTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// True for a number that the program may not close: the library's, and those that the stack
/// has to itself. In a child that was forked all are its own: nothing uses them there.
#[inline]
pub(crate) fn is_protected(fd: i32) -> bool {
    let number = fd as usize;
    let word = PROTECTED.get(number / 64);
    (word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (number % 64) != 0)
        || forked::is_marked(fd))
        && !process::is_forked()
        && !process::is_inside()
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
fn protect(fd: i32) {
    if let Some(word) = PROTECTED.get(fd as usize / 64) {
        word.fetch_or(1 << (fd as usize % 64), Ordering::Relaxed);
    }
}

/// A number that was [`out_of_the_way`] is about to be closed.
pub(crate) fn release(fd: i32) {
    if let Some(word) = PROTECTED.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd as usize % 64)), Ordering::Relaxed);
    }
}

/// A descriptor under a protected number that programs have no use for.
pub(crate) fn out_of_the_way(descriptor: OwnedFd) -> OwnedFd {
    let moved = fcntl_dupfd_cloexec(&descriptor, FIRST_NUMBER).unwrap_or(descriptor);
    protect(moved.as_raw_fd());
    moved
}

/// The numbers that are open, where the kernel's files say it.
pub(crate) fn open_numbers() -> Option<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut numbers: Vec<i32> = names.filter_map(|name| name.parse().ok()).collect();
    // The directory that was read is among them, and closed by now.
    numbers.retain(|&fd| crate::raw::is_open(fd));
    Some(numbers)
}

/// Whether the process has made an io_uring, past this library.
pub(crate) fn has_ring() -> bool {
    let is_ring = |fd: i32| {
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        file.is_ok_and(|file| file.as_os_str() == "anon_inode:[io_uring]")
    };
    let numbers = open_numbers().unwrap_or_default();
    numbers.into_iter().any(is_ring)
}

/// Whether a number that has come while the stack was made may be the stack's: other threads
/// of the program open files meanwhile, which they are to close.
fn may_be_the_stacks(fd: i32) -> bool {
    let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    let is_kind = |file: &OsStr| {
        let kinds = ["socket:", "anon_inode:", "/memfd:"].map(str::as_bytes);
        kinds.iter().any(|kind| file.as_bytes().starts_with(kind))
    };
    !candidates::is_any(fd) && file.is_ok_and(|file| is_kind(file.as_os_str()))
}

/// Protects what `make` opens and leaves open. A local socket or an eventfd that another
/// thread opens meanwhile is protected with it: they are few, as that is once a process.
pub(crate) fn protecting<T>(make: impl FnOnce() -> T) -> T {
    let before = open_numbers();
    let made = make();
    if let (Some(before), Some(after)) = (before, open_numbers()) {
        let new = after.into_iter().filter(|fd| !before.contains(fd));
        new.filter(|&fd| may_be_the_stacks(fd)).for_each(protect);
    }
    made
}
