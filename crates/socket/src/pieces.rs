//! Flags of calls that move data, and data in pieces.

use std::io::IoSliceMut;

/// The call does not block, even if the open file is blocking.
pub const MSG_DONTWAIT: i32 = libc::MSG_DONTWAIT;
/// Leaves received data to the next call.
pub const MSG_PEEK: i32 = libc::MSG_PEEK;
/// Waits for the full amount requested.
pub const MSG_WAITALL: i32 = libc::MSG_WAITALL;
/// No SIGPIPE: no call here raises it.
pub const MSG_NOSIGNAL: i32 = libc::MSG_NOSIGNAL;
/// For a truncated datagram or frame: returns its whole length. For a stream: the bytes
/// are dropped.
pub const MSG_TRUNC: i32 = libc::MSG_TRUNC;
/// For a stream: more data follows at once.
pub const MSG_MORE: i32 = libc::MSG_MORE;
/// For a stream: a record ends here.
pub const MSG_EOR: i32 = libc::MSG_EOR;
/// For a stream: as [`TcpStream::write_zero_copy`](crate::TcpStream::write_zero_copy).
pub const MSG_ZEROCOPY: i32 = libc::MSG_ZEROCOPY;

/// Copies pieces to buffers, in turn, as much as they hold. Returns how much was copied.
pub fn scatter(from: &[&[u8]], to: &mut [IoSliceMut<'_>]) -> usize {
    let mut places = to.iter_mut();
    let mut place: &mut [u8] = &mut [];
    let mut copied = 0;
    for mut piece in from.iter().copied() {
        while !piece.is_empty() {
            if place.is_empty() {
                let Some(next) = places.next() else {
                    return copied;
                };
                place = next;
                continue;
            }
            let length = piece.len().min(place.len());
            let (now, later) = piece.split_at(length);
            let (here, rest) = std::mem::take(&mut place).split_at_mut(length);
            here.copy_from_slice(now);
            copied += length;
            (piece, place) = (later, rest);
        }
    }
    copied
}
