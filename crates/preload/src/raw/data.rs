//! Reading and writing.

mod messages;

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::slice;

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use tidewall_posix::{Errno, Posix, Received, Result};

pub(super) use messages::{is_datagrams, recvmmsg, recvmsg, sendmmsg, sendmsg};

use super::signals::restarting;
use super::{answer, bytes, length_of, originals, put_address, room};
use crate::candidates::{self, Kind};
use crate::process::{inside, is_inside, ours};
use crate::promote::{address_of, attended};

/// Most elements of a vector (UIO_MAXIOV).
const VECTOR_MAX: usize = 1024;

fn receive(
    posix: &Posix,
    fd: c_int,
    buffers: Result<&mut [IoSliceMut<'_>]>,
    flags: c_int,
) -> Result<Received> {
    let buffers = buffers?;
    restarting(posix, fd, Posix::read_timeout, || {
        posix.recvmsg(fd, buffers, flags)
    })
}

/// Returns the stack if it owns the sending descriptor. On a connected datagram socket,
/// the first send is the sign of attention.
#[inline]
fn sending(fd: c_int) -> Option<&'static Posix> {
    match candidates::kind(fd) {
        Some(Kind::Datagram) => attended(fd),
        _ => ours(fd),
    }
}

/// Sends bytes of a file that the caller has read.
pub(super) fn transmit_bytes(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    let posix = ours(fd).ok_or(Errno(libc::EBADF))?;
    sent(posix, fd, &[IoSlice::new(bytes)], flags, None)
}

/// Sends bytes of a file without waiting ([`Posix::send_file`]).
pub(super) fn transmit_file(
    fd: c_int,
    file: BorrowedFd<'_>,
    offset: u64,
    count: usize,
    flags: c_int,
) -> Result<usize> {
    let posix = ours(fd).ok_or(Errno(libc::EBADF))?;
    let sent = inside(|| posix.send_file(fd, file, offset, count, flags));
    signal_broken_pipe(&sent);
    sent
}

fn transmit(
    posix: &Posix,
    fd: c_int,
    buffers: Result<&[IoSlice<'_>]>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> isize {
    answer(buffers.and_then(|buffers| sent(posix, fd, buffers, flags, to)))
}

fn sent(
    posix: &Posix,
    fd: c_int,
    buffers: &[IoSlice<'_>],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize> {
    let sent = restarting(posix, fd, Posix::write_timeout, || {
        posix.sendmsg(fd, buffers, flags, to)
    });
    // Datagram sockets on Linux report this without a signal.
    if flags & libc::MSG_NOSIGNAL == 0 && !is_datagrams(posix, fd) {
        signal_broken_pipe(&sent);
    }
    sent
}

fn signal_broken_pipe(sent: &Result<usize>) {
    if *sent == Err(Errno(libc::EPIPE)) {
        // SAFETY: sends a signal to the calling thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
}

/// Checks a vector: each element must be memory, or null with length zero.
///
/// # Errors
/// EINVAL for too many elements, or for a length that the kernel takes for negative; EFAULT
/// for a null element with a length.
///
/// # Safety
/// The vector is as readv(2) requires.
unsafe fn checked<'a>(vector: *const iovec, count: usize) -> Result<(&'a [iovec], bool)> {
    let vector = match (count, vector.is_null()) {
        (0, _) => &[],
        (VECTOR_MAX.., _) if count > VECTOR_MAX => return Err(Errno(libc::EINVAL)),
        (_, true) => return Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { slice::from_raw_parts(vector, count) },
    };
    let mut gaps = false;
    for element in vector {
        if isize::try_from(element.iov_len).is_err() {
            return Err(Errno(libc::EINVAL));
        }
        match (element.iov_base.is_null(), element.iov_len) {
            (true, 1..) => return Err(Errno(libc::EFAULT)),
            (is_null, _) => gaps |= is_null,
        }
    }
    Ok((vector, gaps))
}

/// # Safety
/// The arguments are as readv(2) requires.
unsafe fn places<'a>(
    vector: *const iovec,
    count: usize,
    kept: &'a mut Vec<IoSliceMut<'a>>,
) -> Result<&'a mut [IoSliceMut<'a>]> {
    // SAFETY: guaranteed by the caller.
    let (elements, gaps) = unsafe { checked(vector, count) }?;
    if !gaps {
        // SAFETY: guaranteed by the caller; an IoSliceMut is an iovec, none of which is
        // null.
        return Ok(unsafe {
            slice::from_raw_parts_mut(elements.as_ptr().cast_mut().cast(), count)
        });
    }
    let present = elements.iter().filter(|it| !it.iov_base.is_null());
    // SAFETY: guaranteed by the caller.
    let place = |it: &iovec| unsafe { slice::from_raw_parts_mut(it.iov_base.cast(), it.iov_len) };
    kept.extend(present.map(|it| IoSliceMut::new(place(it))));
    Ok(kept)
}

/// # Safety
/// The arguments are as writev(2) requires.
unsafe fn pieces<'a>(
    vector: *const iovec,
    count: usize,
    kept: &'a mut Vec<IoSlice<'a>>,
) -> Result<&'a [IoSlice<'a>]> {
    // SAFETY: guaranteed by the caller.
    let (elements, gaps) = unsafe { checked(vector, count) }?;
    if !gaps {
        // SAFETY: guaranteed by the caller; an IoSlice is an iovec, none of which is
        // null.
        return Ok(unsafe { slice::from_raw_parts(elements.as_ptr().cast(), count) });
    }
    let present = elements.iter().filter(|it| !it.iov_base.is_null());
    // SAFETY: guaranteed by the caller.
    let piece = |it: &iovec| unsafe { slice::from_raw_parts(it.iov_base.cast(), it.iov_len) };
    kept.extend(present.map(|it| IoSlice::new(piece(it))));
    Ok(kept)
}

/// Reports an error for a message's vector that is too long.
fn of_message<T>(vector: Result<T>, count: usize) -> Result<T> {
    match count {
        0..=VECTOR_MAX => vector,
        _ => Err(Errno(libc::EMSGSIZE)),
    }
}

/// Checks the length of a message's address.
fn check_name(header: &msghdr) -> Result<()> {
    match header.msg_name.is_null() {
        true => Ok(()),
        false => length_of(header.msg_namelen).map(drop),
    }
}

fn elements(count: c_int) -> usize {
    // A negative count is too many.
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
) -> ssize_t {
    match attended(fd) {
        // Nothing is received by it, unlike `recv`.
        Some(_) if length == 0 => 0,
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { receive_into(posix, fd, buffer, length, 0) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::read(fd, buffer, length) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    match attended(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { receive_into(posix, fd, buffer, length, flags) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::recv(fd, buffer, length, flags) },
    }
}

/// # Safety
/// The arguments are as recv(2) requires.
unsafe fn receive_into(
    posix: &Posix,
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let mut first = [0];
    // SAFETY: guaranteed by the caller.
    let (place, flags) = match unsafe { room(buffer, length) } {
        Ok(place) => (place, flags),
        // Nothing is consumed, and the end of stream needs no memory.
        Err(_) => (&mut first[..], flags | libc::MSG_PEEK),
    };
    let received = receive(posix, fd, Ok(&mut [IoSliceMut::new(place)]), flags);
    answer(match received {
        Ok(received) if received.bytes > 0 && buffer.is_null() => Err(Errno(libc::EFAULT)),
        received => received.map(|it| it.bytes),
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    match attended(fd) {
        Some(posix) => {
            // SAFETY: guaranteed by the caller.
            answer(unsafe { read_vector(posix, fd, vector, count, 0) })
        }
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::readv(fd, vector, count) },
    }
}

/// # Safety
/// The arguments are as readv(2) requires.
unsafe fn read_vector(
    posix: &Posix,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
) -> Result<usize> {
    let mut kept = Vec::new();
    // SAFETY: guaranteed by the caller.
    let places = unsafe { places(vector, elements(count), &mut kept) }?;
    if places.iter().all(|place| place.is_empty()) {
        return Ok(0);
    }
    receive(posix, fd, Ok(places), flags).map(|received| received.bytes)
}

/// # Safety
/// The arguments are as writev(2) requires.
unsafe fn write_vector(
    posix: &Posix,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
) -> isize {
    let mut kept = Vec::new();
    // SAFETY: guaranteed by the caller.
    match unsafe { pieces(vector, elements(count), &mut kept) } {
        Ok(pieces) if pieces.iter().all(|piece| piece.is_empty()) => 0,
        pieces => transmit(posix, fd, pieces, flags, None),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let Some(posix) = attended(fd) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::recvfrom(fd, buffer, length, flags, from, from_length) };
    };
    // SAFETY: guaranteed by the caller.
    let place = unsafe { room(buffer, length) };
    let received =
        place.and_then(|place| receive(posix, fd, Ok(&mut [IoSliceMut::new(place)]), flags));
    answer(received.and_then(|received| {
        match received.from {
            // SAFETY: guaranteed by the caller.
            Some(address) => unsafe { put_address(address, from, from_length) }?,
            // SAFETY: guaranteed by the caller; as for a stream, no sender is reported.
            None => unsafe {
                if !from.is_null() && !from_length.is_null() {
                    *from_length = 0;
                }
            },
        }
        Ok(received.bytes)
    }))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, 0, None) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::write(fd, buffer, length) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, flags, None) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::send(fd, buffer, length, flags) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => match unsafe { destination(posix, fd, to, to_length) } {
            // SAFETY: guaranteed by the caller.
            Ok(to) => unsafe { transmit_from(posix, fd, buffer, length, flags, to) },
            Err(error) => answer::<usize>(Err(error)),
        },
        // SAFETY: guaranteed by the caller.
        None if is_inside() => unsafe {
            let (buffer, to) = (buffer.expose_provenance(), to.expose_provenance());
            let (fd, flags, to_length) = (fd as usize, flags as usize, to_length as usize);
            originals::syscall(libc::SYS_sendto, fd, buffer, length, flags, to, to_length) as isize
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::sendto(fd, buffer, length, flags, to, to_length) },
    }
}

/// Returns the destination of a sending call, if the caller gives one.
///
/// # Safety
/// The arguments are as sendto(2) requires.
unsafe fn destination(
    posix: &Posix,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<Option<SocketAddr>> {
    if to.is_null() {
        return Ok(None);
    }
    let length = length_of(length)?;
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(to.cast(), length) }?;
    match is_datagrams(posix, fd) {
        true => inside(|| posix.destination(fd, bytes)),
        false => Ok(address_of(bytes)),
    }
}

/// # Safety
/// The arguments are as send(2) requires.
unsafe fn transmit_from(
    posix: &Posix,
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: Option<SocketAddr>,
) -> ssize_t {
    // SAFETY: guaranteed by the caller.
    match unsafe { bytes(buffer, length) } {
        Ok(bytes) => transmit(posix, fd, Ok(&[IoSlice::new(bytes)]), flags, to),
        Err(error) => answer::<usize>(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { write_vector(posix, fd, vector, count, 0) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::writev(fd, vector, count) },
    }
}

// ---- With an offset, which a socket has not ------------------------------------

/// Flags of preadv2(2) that Linux accepts for any file; only RWF_NOWAIT has an effect
/// here.
const RWF_KNOWN: c_int = 0x3f;

/// Returns the equivalent flags of recv(2) and send(2).
fn flags_of(offset: off_t, flags: c_int) -> Result<c_int> {
    match (offset, flags & libc::RWF_NOWAIT) {
        (-1, _) if flags & !RWF_KNOWN != 0 => Err(Errno(libc::EOPNOTSUPP)),
        (-1, 0) => Ok(0),
        (-1, _) => Ok(libc::MSG_DONTWAIT),
        (..-1, _) => Err(Errno(libc::EINVAL)),
        _ => Err(Errno(libc::ESPIPE)),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match attended(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => answer(
            flags_of(offset, flags)
                .and_then(|flags| unsafe { read_vector(posix, fd, vector, count, flags) }),
        ),
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::preadv2(fd, vector, count, offset, flags) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match sending(fd) {
        Some(posix) => match flags_of(offset, flags) {
            // SAFETY: guaranteed by the caller.
            Ok(flags) => unsafe { write_vector(posix, fd, vector, count, flags) },
            Err(error) => answer::<usize>(Err(error)),
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::pwritev2(fd, vector, count, offset, flags) },
    }
}

// ---- Fortified (-D_FORTIFY_SOURCE) ---------------------------------------------

/// Ends a program whose buffer is too short, as the C library does.
fn check(length: usize, room: usize) {
    if length > room {
        // SAFETY: does not return.
        unsafe { originals::__chk_fail() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
) -> ssize_t {
    check(length, room);
    // SAFETY: guaranteed by the caller.
    unsafe { read(fd, buffer, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: guaranteed by the caller.
    unsafe { recv(fd, buffer, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: guaranteed by the caller.
    unsafe { recvfrom(fd, buffer, length, flags, from, from_length) }
}
