//! The functions of the table that read and write.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::machine::Machine;
use super::raw_calls::{guarded, machine, owns};
use std::io::{IoSlice, IoSliceMut};
use tidewall_posix::raw::{address, bytes, bytes_mut, elements, gather, put_control, scatter};

use tidewall_posix::{Errno, Result};

/// The most that one call moves, as in Linux.
const COUNT_MAX: usize = 0x7fff_f000;

/// Reads into a buffer, which is as long as what is read.
pub(super) fn receive(
    machine: &Machine,
    fd: c_int,
    length: usize,
    flags: c_int,
) -> Result<Vec<u8>> {
    let mut buffer = vec![0; length.min(COUNT_MAX)];
    let count = machine.call(|posix| posix.recv(fd, &mut buffer, flags))?;
    buffer.truncate(count);
    Ok(buffer)
}

pub(super) unsafe extern "C" fn read(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    if !owns(unsafe { machine(userdata) }, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::read(fd, place, length) };
    }
    // SAFETY: the same arguments.
    unsafe { recv(userdata, fd, place, length, 0) }
}

pub(super) unsafe extern "C" fn readv(
    userdata: *mut c_void,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many as the caller says.
        let vector = unsafe { elements(vector, count.max(0) as usize) };
        let length = vector.iter().map(|element| element.iov_len).sum();
        let read = receive(machine, fd, length, 0)?;
        // SAFETY: as many bytes as the caller says.
        unsafe { scatter(&read, vector) };
        Ok(read.len())
    })
}

pub(super) unsafe extern "C" fn recv(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if place.is_null() && length > 0 && flags & libc::MSG_TRUNC == 0 {
            return Err(Errno(libc::EFAULT));
        }
        let read = receive(machine, fd, length, flags)?;
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: as many bytes as the caller says.
            let place = unsafe { bytes_mut(place, read.len()) };
            place.copy_from_slice(&read);
        }
        Ok(read.len())
    })
}

pub(super) unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
    flags: c_int,
    _from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if !from_length.is_null() {
        // SAFETY: not null; a stream tells no address.
        unsafe { from_length.write_unaligned(0) };
    }
    // SAFETY: the same arguments.
    unsafe { recv(userdata, fd, place, length, flags) }
}

pub(super) unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if message.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not null; the caller's, alone.
        let message = unsafe { &mut *message };
        // SAFETY: as many as the message says.
        let vector = unsafe { elements(message.msg_iov, message.msg_iovlen) };
        let length: usize = vector.iter().map(|element| element.iov_len).sum();
        let mut buffer = vec![0; length.min(COUNT_MAX)];
        let received =
            machine.call(|posix| posix.recvmsg(fd, &mut [IoSliceMut::new(&mut buffer)], flags))?;
        let read = buffer.get(..received.bytes).unwrap_or_default();
        // SAFETY: as many bytes as the vector says.
        unsafe { scatter(read, vector) };
        message.msg_namelen = 0;
        message.msg_flags = received.flags;
        // SAFETY: the message's own control buffer.
        unsafe { put_control(message, &received.control()) };
        Ok(received.bytes)
    })
}

/// Writes.
pub(super) fn transmit(
    machine: &Machine,
    fd: c_int,
    parts: &[&[u8]],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize> {
    if flags & libc::MSG_FASTOPEN != 0 {
        machine.refresh();
    }
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    machine.call(|posix| posix.sendmsg(fd, &parts, flags, to))
}

pub(super) unsafe extern "C" fn write(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    if !owns(unsafe { machine(userdata) }, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::write(fd, data, length) };
    }
    // SAFETY: the same arguments.
    unsafe { send(userdata, fd, data, length, 0) }
}

pub(super) unsafe extern "C" fn writev(
    userdata: *mut c_void,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many as the caller says.
        let vector = unsafe { elements(vector, count.max(0) as usize) };
        // SAFETY: as many bytes as the vector says.
        let parts = unsafe { gather(vector) }.ok_or(Errno(libc::EFAULT))?;
        transmit(machine, fd, &parts, 0, None)
    })
}

pub(super) unsafe extern "C" fn send(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if data.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: as many bytes as the caller says.
        let data = unsafe { bytes(data, length.min(COUNT_MAX)) };
        transmit(machine, fd, &[data], flags, None)
    })
}

pub(super) unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // SAFETY: as many bytes as the caller says.
    let to = unsafe { address(to, to_length) };
    guarded(|| {
        if data.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: as many bytes as the caller says.
        let data = unsafe { bytes(data, length.min(COUNT_MAX)) };
        transmit(machine, fd, &[data], flags, to)
    })
}

pub(super) unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if message.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not null.
        let message = unsafe { &*message };
        // SAFETY: as many as the message says.
        let vector = unsafe { elements(message.msg_iov, message.msg_iovlen) };
        // SAFETY: as many bytes as the vector says.
        let parts = unsafe { gather(vector) }.ok_or(Errno(libc::EFAULT))?;
        // SAFETY: as many bytes as the message says.
        let to = unsafe { address(message.msg_name.cast(), message.msg_namelen) };
        transmit(machine, fd, &parts, flags, to)
    })
}
