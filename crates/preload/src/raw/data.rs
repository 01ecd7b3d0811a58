//! Reading and writing.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::slice;

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use tidewall_posix::raw::Message;
use tidewall_posix::{Errno, Posix, Received, Result};

use super::{address, answer, bytes, originals, put_address, room};
use crate::process::{inside, ours};
use crate::promote::attended;

/// Most elements of a vector (UIO_MAXIOV).
const VECTOR_MAX: usize = 1024;

fn receive(
    posix: &Posix,
    fd: c_int,
    buffers: Result<&mut [IoSliceMut<'_>]>,
    flags: c_int,
) -> Result<Received> {
    let buffers = buffers?;
    inside(|| posix.recvmsg(fd, buffers, flags))
}

fn transmit(
    posix: &Posix,
    fd: c_int,
    buffers: Result<&[IoSlice<'_>]>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> isize {
    let sent = buffers.and_then(|buffers| inside(|| posix.sendmsg(fd, buffers, flags, to)));
    if sent == Err(Errno(libc::EPIPE)) && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: sends the calling thread a signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    answer(sent)
}

/// # Safety
/// As readv(2) has it.
unsafe fn places<'a>(vector: *const iovec, count: usize) -> Result<&'a mut [IoSliceMut<'a>]> {
    match (count, vector.is_null()) {
        (0, _) => Ok(&mut []),
        (VECTOR_MAX.., _) if count > VECTOR_MAX => Err(Errno(libc::EINVAL)),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's; an IoSliceMut is an iovec.
        _ => Ok(unsafe { slice::from_raw_parts_mut(vector.cast_mut().cast(), count) }),
    }
}

/// # Safety
/// As writev(2) has it.
unsafe fn pieces<'a>(vector: *const iovec, count: usize) -> Result<&'a [IoSlice<'a>]> {
    match (count, vector.is_null()) {
        (0, _) => Ok(&[]),
        (VECTOR_MAX.., _) if count > VECTOR_MAX => Err(Errno(libc::EINVAL)),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's; an IoSlice is an iovec.
        _ => Ok(unsafe { slice::from_raw_parts(vector.cast(), count) }),
    }
}

fn elements(count: c_int) -> usize {
    // A negative one is too many.
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t {
    match attended(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { receive_into(posix, fd, buffer, length, 0) },
        // SAFETY: the caller's.
        None => unsafe { originals::read(fd, buffer, length) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> ssize_t {
    match attended(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { receive_into(posix, fd, buffer, length, flags) },
        // SAFETY: the caller's.
        None => unsafe { originals::recv(fd, buffer, length, flags) },
    }
}

/// # Safety
/// As recv(2) has it.
unsafe fn receive_into(
    posix: &Posix,
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's.
    let place = unsafe { room(buffer, length) };
    answer(place.and_then(|place| {
        receive(posix, fd, Ok(&mut [IoSliceMut::new(place)]), flags).map(|it| it.bytes)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    match attended(fd) {
        Some(posix) => {
            // SAFETY: the caller's.
            let places = unsafe { places(vector, elements(count)) };
            answer(receive(posix, fd, places, 0).map(|received| received.bytes))
        }
        // SAFETY: the caller's.
        None => unsafe { originals::readv(fd, vector, count) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let Some(posix) = attended(fd) else {
        // SAFETY: the caller's.
        return unsafe { originals::recvfrom(fd, buffer, length, flags, from, from_length) };
    };
    // SAFETY: the caller's.
    let place = unsafe { room(buffer, length) };
    let received =
        place.and_then(|place| receive(posix, fd, Ok(&mut [IoSliceMut::new(place)]), flags));
    answer(received.map(|received| {
        match received.from {
            // SAFETY: the caller's.
            Some(address) => unsafe { put_address(address, from, from_length) },
            // SAFETY: the caller's: as of a stream, nobody is named.
            None => unsafe {
                if !from.is_null() && !from_length.is_null() {
                    *from_length = 0;
                }
            },
        }
        received.bytes
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match attended(fd) {
        // SAFETY: the caller's.
        Some(posix) => answer(unsafe { receive_message(posix, fd, message, flags) }),
        // SAFETY: the caller's.
        None => unsafe { originals::recvmsg(fd, message, flags) },
    }
}

/// # Safety
/// As recvmsg(2) has it.
unsafe fn receive_message(
    posix: &Posix,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller's.
    let header = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the caller's.
    let places = unsafe { places(header.msg_iov, header.msg_iovlen) };
    let received = receive(posix, fd, places, flags)?;
    let (name, mut length) = (header.msg_name, header.msg_namelen);
    // SAFETY: a Message is a msghdr, whose pointers are the caller's.
    let message = unsafe { &mut *message.cast::<Message>() };
    message.finish(received.flags, &received.control());
    if let Some(from) = received.from
        && !name.is_null()
    {
        // SAFETY: the caller's.
        unsafe { put_address(from, name.cast(), &raw mut length) };
        header.msg_namelen = length;
    }
    Ok(received.bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    match ours(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, 0, None) },
        // SAFETY: the caller's.
        None => unsafe { originals::write(fd, buffer, length) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    match ours(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, flags, None) },
        // SAFETY: the caller's.
        None => unsafe { originals::send(fd, buffer, length, flags) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    match ours(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe {
            transmit_from(posix, fd, buffer, length, flags, address(to, to_length))
        },
        // SAFETY: the caller's.
        None => unsafe { originals::sendto(fd, buffer, length, flags, to, to_length) },
    }
}

/// # Safety
/// As send(2) has it.
unsafe fn transmit_from(
    posix: &Posix,
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    to: Option<SocketAddr>,
) -> ssize_t {
    // SAFETY: the caller's.
    match unsafe { bytes(buffer, length) } {
        Ok(bytes) => transmit(posix, fd, Ok(&[IoSlice::new(bytes)]), flags, to),
        Err(error) => answer::<usize>(Err(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    match ours(fd) {
        Some(posix) => {
            // SAFETY: the caller's.
            let pieces = unsafe { pieces(vector, elements(count)) };
            transmit(posix, fd, pieces, 0, None)
        }
        // SAFETY: the caller's.
        None => unsafe { originals::writev(fd, vector, count) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(posix) = ours(fd) else {
        // SAFETY: the caller's.
        return unsafe { originals::sendmsg(fd, message, flags) };
    };
    // SAFETY: the caller's.
    let Some(header) = (unsafe { message.as_ref() }) else {
        return answer::<usize>(Err(Errno(libc::EFAULT)));
    };
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(header.msg_iov, header.msg_iovlen) };
    // SAFETY: the caller's.
    let to = unsafe { address(header.msg_name.cast(), header.msg_namelen) };
    transmit(posix, fd, pieces, flags, to)
}
