//! Kernel descriptors that the library holds for itself. A program that closes every
//! descriptor it does not know must not close them.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use tidewall_device::forked;

use crate::candidates;
use crate::process;

/// Where the search for a free descriptor starts: beyond the range of select(2) and of
/// programs that expect the lowest number.
const FIRST_NUMBER: i32 = 900;

/// Descriptors that can be protected are below this.
const NUMBERS: usize = 1 << 16;

static PROTECTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Returns true for a descriptor that the program may not close: those of the library, and
/// those that only the stack uses. In a forked child the program may close all: nothing uses
/// them there.
#[inline]
pub(crate) fn is_protected(fd: i32) -> bool {
    let number = fd as usize;
    let word = PROTECTED.get(number / 64);
    (word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (number % 64) != 0)
        || forked::is_marked(fd))
        && !process::is_forked()
        && !process::is_inside()
}

/// Returns true if there are such descriptors.
pub(crate) fn is_any() -> bool {
    let mut words = PROTECTED.iter();
    !process::is_forked() && words.any(|word| word.load(Ordering::Relaxed) != 0)
}

/// Returns the descriptors from `first` to `last` that the program may close, in ranges.
pub(crate) fn between(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut next = Some(first);
    let end = last.min(NUMBERS as u32);
    let kept = (first..=end).filter(|&fd| is_protected(fd as i32));
    // One more range follows the last protected descriptor.
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

/// Protects this descriptor from being closed by the program.
fn protect(fd: i32) {
    if let Some(word) = PROTECTED.get(fd as usize / 64) {
        word.fetch_or(1 << (fd as usize % 64), Ordering::Relaxed);
    }
}

/// Releases a descriptor that was moved [`out_of_the_way`], before it is closed.
pub(crate) fn release(fd: i32) {
    if let Some(word) = PROTECTED.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd as usize % 64)), Ordering::Relaxed);
    }
}

/// Moves a descriptor to a protected number that programs do not use.
pub(crate) fn out_of_the_way(descriptor: OwnedFd) -> OwnedFd {
    let moved = fcntl_dupfd_cloexec(&descriptor, FIRST_NUMBER).unwrap_or(descriptor);
    protect(moved.as_raw_fd());
    moved
}

/// Returns the open descriptors, if /proc lists them.
pub(crate) fn open_numbers() -> Option<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut numbers: Vec<i32> = names.filter_map(|name| name.parse().ok()).collect();
    // The directory that was read is among them, and closed by now.
    numbers.retain(|&fd| crate::raw::is_open(fd));
    Some(numbers)
}

/// Reports whether the process has created an io_uring without this library.
pub(crate) fn has_ring() -> bool {
    let is_ring = |fd: i32| {
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        file.is_ok_and(|file| file.as_os_str() == "anon_inode:[io_uring]")
    };
    let numbers = open_numbers().unwrap_or_default();
    numbers.into_iter().any(is_ring)
}

/// Reports whether a descriptor that appeared while the stack was created may be the
/// stack's. Other threads of the program open files meanwhile, which they must be able to
/// close.
fn may_be_the_stacks(fd: i32) -> bool {
    let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    let is_kind = |file: &OsStr| {
        let kinds = ["socket:", "anon_inode:", "/memfd:"].map(str::as_bytes);
        kinds.iter().any(|kind| file.as_bytes().starts_with(kind))
    };
    !candidates::is_any(fd) && file.is_ok_and(|file| is_kind(file.as_os_str()))
}

/// Protects the descriptors that `make` opens and leaves open. A local socket or an
/// eventfd that another thread opens meanwhile is protected as well. Those are few, since
/// this happens once per process.
pub(crate) fn protecting<T>(make: impl FnOnce() -> T) -> T {
    let before = open_numbers();
    let made = make();
    if let (Some(before), Some(after)) = (before, open_numbers()) {
        let new = after.into_iter().filter(|fd| !before.contains(fd));
        new.filter(|&fd| may_be_the_stacks(fd)).for_each(protect);
    }
    made
}
