//! Record locks (fcntl(2)): a process locks a byte of any file, also of a socket. It
//! holds the lock as long as it lives and closes no descriptor of the file. A forked
//! child does not inherit the lock.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::done;

/// The raw call: a preloaded library may replace the C library's function.
fn call(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: a live structure of the kernel's word size.
    done(unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), command, lock) } as i32)
}

fn lock_of(kind: i32, bytes: Range<u32>) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: bytes.start.into(),
        l_len: bytes.len() as i64,
        l_pid: 0,
    }
}

/// Takes a shared lock of a byte for this process, or releases it. Async-signal-safe.
///
/// # Errors
/// ENOLCK; EAGAIN if another process has an exclusive lock.
pub fn lock_byte(file: impl AsFd, byte: u32, locked: bool) -> io::Result<()> {
    let kind = if locked { libc::F_RDLCK } else { libc::F_UNLCK };
    call(
        file.as_fd(),
        libc::F_SETLK,
        &mut lock_of(kind, byte..byte + 1),
    )
}

/// The process id of another process that has locked one of the bytes; 0 if it is in
/// another pid namespace. Async-signal-safe.
///
/// # Errors
/// The kernel's errors.
pub fn byte_locker(file: impl AsFd, bytes: Range<u32>) -> io::Result<Option<i32>> {
    let mut lock = lock_of(libc::F_WRLCK, bytes);
    call(file.as_fd(), libc::F_GETLK, &mut lock)?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}
