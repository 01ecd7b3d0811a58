//! Calls that copy from one descriptor to another.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

use libc::{loff_t, off_t, ssize_t};
use tidewall_posix::{Errno, Result};

use super::{answer, originals};
use crate::process::{inside, ours};

/// Bytes of a file that are read at a time.
const PIECE: usize = 64 * 1024;

thread_local! {
    /// A per-thread buffer for file contents. A new buffer's memory would be zeroed, and
    /// come from the kernel, for each call.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    match (ours(to), ours(from)) {
        // SAFETY: guaranteed by the caller.
        (None, None) => unsafe { originals::sendfile(to, from, offset, count) },
        // SAFETY: guaranteed by the caller.
        (Some(_), None) => answer(send_file(to, from, unsafe { offset.as_mut() }, count)),
        // As for any socket: its pages are not accessible.
        _ => answer::<usize>(Err(Errno(libc::EINVAL))),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: the caller's; both have 64 bits.
    unsafe { sendfile(to, from, offset, count) }
}

/// Returns true for a socket in blocking mode.
fn waits(fd: c_int) -> bool {
    ours(fd).is_some_and(|posix| {
        let nonblocking = inside(|| posix.descriptors().is_nonblocking(fd));
        !nonblocking.unwrap_or(true)
    })
}

fn send_file(to: c_int, from: c_int, offset: Option<&mut off_t>, count: usize) -> Result<usize> {
    let file = super::borrow(from).ok_or(Errno(libc::EBADF))?;
    let position = || {
        rustix::fs::tell(file).map_err(|error| match error {
            rustix::io::Errno::BADF => Errno(libc::EBADF),
            _ => Errno(libc::EINVAL),
        })
    };
    let start = match &offset {
        Some(offset) => u64::try_from(**offset).map_err(|_| Errno(libc::EINVAL))?,
        None => position()?,
    };
    let mut buffer = Vec::new();
    let mut sent = 0;
    let mut ended = Ok(());
    while sent < count && ended.is_ok() {
        let want = PIECE.min(count - sent);
        let more = if sent + want < count {
            libc::MSG_MORE
        } else {
            0
        };
        match super::data::transmit_file(to, file, start + sent as u64, want, more) {
            Ok(0) => break,
            Ok(went) => {
                sent += went;
                continue;
            }
            // The socket may block the caller, or a disk may.
            Err(Errno(libc::EAGAIN)) if sent > 0 && !waits(to) => break,
            Err(Errno(libc::EAGAIN | libc::EOPNOTSUPP)) => {}
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
        if buffer.is_empty() {
            // A thread that is ending has lost its buffer, and allocates one.
            buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        }
        buffer.resize(buffer.len().max(want), 0);
        let piece = buffer.get_mut(..want).unwrap_or_default();
        let read = rustix::io::pread(file, &mut *piece, start + sent as u64);
        let piece = match read {
            Ok(0) => break,
            Ok(read) => piece.get(..read).unwrap_or_default(),
            Err(error) => {
                ended = Err(match error {
                    rustix::io::Errno::ISDIR => Errno(libc::EINVAL),
                    error => Errno(error.raw_os_error()),
                });
                break;
            }
        };
        let more = if sent + piece.len() < count {
            libc::MSG_MORE
        } else {
            0
        };
        match super::data::transmit_bytes(to, piece, more) {
            Ok(went) => {
                sent += went;
                if went < piece.len() {
                    break;
                }
            }
            Err(error) => ended = Err(error),
        }
    }
    if !buffer.is_empty() {
        let _ = BUFFER.try_with(|place| place.set(buffer));
    }
    if sent == 0 {
        ended?;
    }
    let end = start + sent as u64;
    match offset {
        Some(offset) => *offset = end as off_t,
        None => drop(rustix::fs::seek(file, rustix::fs::SeekFrom::Start(end))),
    }
    Ok(sent)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    length: usize,
    flags: c_uint,
) -> ssize_t {
    if ours(from).is_some() || ours(to).is_some() {
        // As for a file that cannot be spliced: the caller then copies.
        return answer::<usize>(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: guaranteed by the caller.
    unsafe { originals::splice(from, from_offset, to, to_offset, length, flags) }
}
