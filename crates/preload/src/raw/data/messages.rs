//! Messages: one, several, and the descriptors that they carry.

use std::ffi::{c_int, c_long, c_uint};
use std::slice;
use std::time::Instant;

use libc::{msghdr, ssize_t, timespec};
use tidewall::OpenFile;
use tidewall_posix::raw::{Message, Source};
use tidewall_posix::{Errno, Posix, Result};

use super::super::readiness::limit;
use super::super::signals::restarting;
use super::super::{answer, originals, put_address};
use super::{
    VECTOR_MAX, check_name, destination, of_message, pieces, places, receive, sending, transmit,
};
use crate::process::{inside, is_inside};
use crate::promote::{attended, inherited, may_promote};
use crate::watch;

#[unsafe(no_mangle)]
pub(in crate::raw) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    match attended(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => answer(unsafe { receive_message(posix, fd, message, flags) }),
        // SAFETY: guaranteed by the caller.
        None if is_inside() => unsafe {
            stacks_own(libc::SYS_recvmsg, fd, message.expose_provenance(), flags)
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe {
            let received = originals::recvmsg(fd, message, flags);
            if received >= 0 && (*message).msg_controllen > 0 {
                look_for_sockets(message);
            }
            received
        },
    }
}

/// Makes a message call of the stack by a raw system call: the C library's function is a
/// cancellation point, at which no thread may leave.
///
/// # Safety
/// The arguments are as the call requires.
unsafe fn stacks_own(call: c_long, fd: c_int, message: usize, flags: c_int) -> ssize_t {
    let (fd, flags) = (fd as usize, flags as usize);
    // SAFETY: guaranteed by the caller.
    unsafe { originals::syscall(call, fd, message, flags, 0, 0, 0) as ssize_t }
}

/// Registers sockets that another process has passed (SCM_RIGHTS).
///
/// # Safety
/// The message is as recvmsg(2) leaves it.
unsafe fn look_for_sockets(message: *const msghdr) {
    if !may_promote() || is_inside() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { each_handed_over(message, &mut |fd| inherited(fd)) };
}

/// Reports whether a message passes on a connection of the stack. Another process could not
/// use it, so the message is not sent.
///
/// # Safety
/// The arguments are as sendmsg(2) requires.
unsafe fn hands_connection_over(message: *const msghdr) -> bool {
    // SAFETY: guaranteed by the caller.
    let has_control = unsafe { message.as_ref() }.is_some_and(|it| it.msg_controllen > 0);
    if !has_control || is_inside() || !may_promote() {
        return false;
    }
    let mut found = false;
    // SAFETY: guaranteed by the caller.
    unsafe { each_handed_over(message, &mut |fd| found |= watch::sends(fd)) };
    found
}

/// Calls `each` with the descriptors that a message carries (SCM_RIGHTS).
///
/// # Safety
/// The message is as for sendmsg(2), or as recvmsg(2) leaves it.
unsafe fn each_handed_over(message: *const msghdr, each: &mut dyn FnMut(c_int)) {
    // SAFETY: guaranteed by the caller: headers and their data are inside the message's
    // memory.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = found.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let numbers = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    each(numbers.add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// # Safety
/// The arguments are as recvmsg(2) requires.
unsafe fn receive_message(
    posix: &Posix,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: guaranteed by the caller.
    let header = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    check_name(header)?;
    let mut kept = Vec::new();
    // SAFETY: guaranteed by the caller.
    let places = unsafe { places(header.msg_iov, header.msg_iovlen, &mut kept) };
    let received = receive(posix, fd, of_message(places, header.msg_iovlen), flags)?;
    let (name, mut length) = (header.msg_name, header.msg_namelen);
    // SAFETY: a Message is a msghdr, whose pointers are the caller's.
    let message = unsafe { &mut *message.cast::<Message>() };
    message.finish(received.flags, &received.control());
    if let Some(from) = received.from
        && !name.is_null()
    {
        // SAFETY: guaranteed by the caller.
        unsafe { put_address(from, name.cast(), &raw mut length) }?;
        header.msg_namelen = length;
    }
    Ok(received.bytes)
}

#[unsafe(no_mangle)]
pub(in crate::raw) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let Some(posix) = sending(fd) else {
        // SAFETY: guaranteed by the caller.
        return unsafe {
            match is_inside() {
                true => stacks_own(libc::SYS_sendmsg, fd, message.expose_provenance(), flags),
                false if hands_connection_over(message) => {
                    answer::<usize>(Err(Errno(libc::EOPNOTSUPP)))
                }
                false => originals::sendmsg(fd, message, flags),
            }
        };
    };
    // SAFETY: guaranteed by the caller.
    let Some(header) = (unsafe { message.as_ref() }) else {
        return answer::<usize>(Err(Errno(libc::EFAULT)));
    };
    let mut kept = Vec::new();
    // SAFETY: guaranteed by the caller.
    let pieces = unsafe { pieces(header.msg_iov, header.msg_iovlen, &mut kept) };
    let pieces = of_message(pieces, header.msg_iovlen);
    let name = match header.msg_namelen {
        0 => std::ptr::null(),
        _ => header.msg_name.cast_const(),
    };
    // SAFETY: guaranteed by the caller.
    let to = match unsafe { destination(posix, fd, name.cast(), header.msg_namelen) } {
        Ok(to) => to,
        Err(error) => return answer::<usize>(Err(error)),
    };
    // SAFETY: a Message is a msghdr, whose pointers are the caller's.
    let source = unsafe { &*message.cast::<Message>() }.source();
    if source == Source::Any || !is_datagrams(posix, fd) {
        return transmit(posix, fd, pieces, flags, to);
    }
    let peer = to.or_else(|| inside(|| posix.getpeername(fd)).ok());
    match (source, peer) {
        (Source::Address(source), Some(peer))
            if source.to_canonical().is_ipv4() == peer.ip().to_canonical().is_ipv4() =>
        {
            answer(pieces.and_then(|pieces| {
                restarting(posix, fd, Posix::write_timeout, || {
                    posix.send_from(fd, pieces, source, to)
                })
            }))
        }
        // The kernel socket that holds the port supports what the stack lacks.
        _ => {
            let nonblocking = inside(|| posix.descriptors().is_nonblocking(fd));
            let flags = match nonblocking.unwrap_or(false) {
                true => flags | libc::MSG_DONTWAIT,
                false => flags,
            };
            // SAFETY: guaranteed by the caller.
            unsafe { originals::sendmsg(fd, message, flags) }
        }
    }
}

pub(in crate::raw) fn is_datagrams(posix: &Posix, fd: c_int) -> bool {
    let file = posix.descriptors().file(fd);
    file.is_ok_and(|file| matches!(&*file, OpenFile::Datagram(_)))
}

/// `struct mmsghdr`.
type Messages = libc::mmsghdr;

/// MSG_WAITFORONE.
const WAIT_FOR_ONE: c_int = 0x10000;

#[unsafe(no_mangle)]
pub(in crate::raw) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut Messages,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(posix) = attended(fd) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) };
    };
    // SAFETY: guaranteed by the caller.
    let messages = match unsafe { several(messages, count) } {
        Ok(messages) => messages,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let begun = Instant::now();
    // SAFETY: guaranteed by the caller.
    let limit = match unsafe { limit(timeout) } {
        Ok(limit) => limit,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let mut received = 0;
    for message in messages {
        let waits = received == 0 || flags & WAIT_FOR_ONE == 0;
        let dont_wait = if waits { 0 } else { libc::MSG_DONTWAIT };
        let flags = flags & !WAIT_FOR_ONE | dont_wait;
        // SAFETY: guaranteed by the caller.
        match unsafe { receive_message(posix, fd, &raw mut message.msg_hdr, flags) } {
            Ok(bytes) => message.msg_len = bytes as c_uint,
            Err(error) if received == 0 => return answer::<usize>(Err(error)) as c_int,
            Err(_) => break,
        }
        received += 1;
        // As Linux, which checks it only after each datagram.
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    received
}

#[unsafe(no_mangle)]
pub(in crate::raw) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut Messages,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if sending(fd).is_none() {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: guaranteed by the caller.
    let messages = match unsafe { several(messages, count) } {
        Ok(messages) => messages,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let mut sent = 0;
    for message in messages {
        // SAFETY: guaranteed by the caller.
        match unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) } {
            -1 if sent == 0 => return -1,
            -1 => break,
            bytes => message.msg_len = bytes as c_uint,
        }
        sent += 1;
    }
    sent
}

/// # Safety
/// The arguments are as recvmmsg(2) requires.
unsafe fn several<'a>(messages: *mut Messages, count: c_uint) -> Result<&'a mut [Messages]> {
    match (count as usize, messages.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        (count, false) => Ok(unsafe { slice::from_raw_parts_mut(messages, count.min(VECTOR_MAX)) }),
    }
}
