//! The functions of the table that read and write.

use core::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use libc::{size_t, socklen_t, ssize_t};

use super::calls::guarded;
use super::machine::Machine;
use super::{Userdata, raw_kernel};
use tidewall_posix::raw::{
    Buffer, Count, Message, Place, Pointer, address, copy, gather, room, scatter,
};
use tidewall_posix::{Errno, Result};

/// The most bytes that one call transfers, as in Linux.
const COUNT_MAX: usize = 0x7fff_f000;

/// Reads into a buffer, whose length is the limit.
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

pub(super) extern "C" fn read<'a>(
    machine: &Userdata,
    fd: c_int,
    place: Place<'a>,
    length: Count<'a, size_t>,
) -> ssize_t {
    if machine.owns(fd) {
        return recv(machine, fd, place, length, 0);
    }
    guarded(|| {
        let data = raw_kernel::read(fd, length.get().min(COUNT_MAX))?;
        Ok(copy(&data, place.write(length)?))
    })
}

pub(super) extern "C" fn readv<'a>(
    machine: &Userdata,
    fd: c_int,
    vector: Pointer<'a, Buffer>,
    count: Count<'a, c_int>,
) -> ssize_t {
    guarded(|| {
        let vector = vector.read(count)?;
        let read = receive(machine, fd, room(vector), 0)?;
        scatter(&read, vector)?;
        Ok(read.len())
    })
}

pub(super) extern "C" fn recv<'a>(
    machine: &Userdata,
    fd: c_int,
    place: Place<'a>,
    length: Count<'a, size_t>,
    flags: c_int,
) -> ssize_t {
    guarded(|| {
        if flags & libc::MSG_TRUNC != 0 {
            return Ok(receive(machine, fd, length.get(), flags)?.len());
        }
        let place = place.write(length)?;
        let read = receive(machine, fd, length.get(), flags)?;
        Ok(copy(&read, place))
    })
}

pub(super) extern "C" fn recvfrom<'a, 'b>(
    machine: &Userdata,
    fd: c_int,
    place: Place<'a>,
    length: Count<'a, size_t>,
    flags: c_int,
    from: Place<'b>,
    from_length: Option<&mut Count<'b, socklen_t>>,
) -> ssize_t {
    if let Some(from_length) = from_length {
        // A stream returns no address.
        let _ = from.put(from_length, &[]);
    }
    recv(machine, fd, place, length, flags)
}

pub(super) extern "C" fn recvmsg(
    machine: &Userdata,
    fd: c_int,
    message: Option<&mut Message>,
    flags: c_int,
) -> ssize_t {
    guarded(|| {
        let message = message.ok_or(Errno(libc::EFAULT))?;
        let vector = message.vector()?;
        let mut buffer = vec![0; room(vector).min(COUNT_MAX)];
        let received =
            machine.call(|posix| posix.recvmsg(fd, &mut [IoSliceMut::new(&mut buffer)], flags))?;
        let read = buffer.get(..received.bytes).unwrap_or_default();
        scatter(read, vector)?;
        message.finish(received.flags, &received.control());
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

pub(super) extern "C" fn write<'a>(
    machine: &Userdata,
    fd: c_int,
    data: Pointer<'a, u8>,
    length: Count<'a, size_t>,
) -> ssize_t {
    if machine.owns(fd) {
        return send(machine, fd, data, length, 0);
    }
    guarded(|| raw_kernel::write(fd, data.read(length)?))
}

pub(super) extern "C" fn writev<'a>(
    machine: &Userdata,
    fd: c_int,
    vector: Pointer<'a, Buffer>,
    count: Count<'a, c_int>,
) -> ssize_t {
    guarded(|| transmit(machine, fd, &gather(vector.read(count)?)?, 0, None))
}

pub(super) extern "C" fn send<'a>(
    machine: &Userdata,
    fd: c_int,
    data: Pointer<'a, u8>,
    length: Count<'a, size_t>,
    flags: c_int,
) -> ssize_t {
    send_to(machine, fd, data, length, flags, None)
}

pub(super) extern "C" fn sendto<'a, 'b>(
    machine: &Userdata,
    fd: c_int,
    data: Pointer<'a, u8>,
    length: Count<'a, size_t>,
    flags: c_int,
    to: Pointer<'b, u8>,
    to_length: Count<'b, socklen_t>,
) -> ssize_t {
    send_to(machine, fd, data, length, flags, address(to, to_length))
}

fn send_to<'a>(
    machine: &Machine,
    fd: c_int,
    data: Pointer<'a, u8>,
    length: Count<'a, size_t>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> ssize_t {
    guarded(|| {
        let data = data.read(length)?;
        let data = data.get(..COUNT_MAX).unwrap_or(data);
        transmit(machine, fd, &[data], flags, to)
    })
}

pub(super) extern "C" fn sendmsg(
    machine: &Userdata,
    fd: c_int,
    message: Option<&Message>,
    flags: c_int,
) -> ssize_t {
    guarded(|| {
        let message = message.ok_or(Errno(libc::EFAULT))?;
        let parts = gather(message.vector()?)?;
        transmit(machine, fd, &parts, flags, message.address())
    })
}
