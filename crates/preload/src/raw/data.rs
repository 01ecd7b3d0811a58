//! Reading and writing.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::slice;
use std::time::Instant;

use libc::{iovec, msghdr, off_t, sockaddr, socklen_t, ssize_t, timespec};
use tidewall_posix::raw::{Message, Source};
use tidewall_posix::{Errno, Posix, Received, Result};
use tidewall_socket::OpenFile;

use super::signals::restarting;
use super::{answer, bytes, length_of, originals, put_address, room};
use crate::candidates::{self, Kind};
use crate::process::{inside, is_inside, ours, posix};
use crate::promote::{address_of, attended, inherited, may_promote};

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

/// The stack, if what is sent by the number is its: of a connected datagram socket the
/// first is the sign of attention.
#[inline]
fn sending(fd: c_int) -> Option<&'static Posix> {
    match candidates::kind(fd) {
        Some(Kind::Datagram) => attended(fd),
        _ => ours(fd),
    }
}

/// Sends what the caller has of a file.
pub(super) fn transmit_bytes(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    let posix = ours(fd).ok_or(Errno(libc::EBADF))?;
    sent(posix, fd, &[IoSlice::new(bytes)], flags, None)
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
    // Of datagrams Linux says it without a signal.
    if sent == Err(Errno(libc::EPIPE))
        && flags & libc::MSG_NOSIGNAL == 0
        && !is_datagrams(posix, fd)
    {
        // SAFETY: sends the calling thread a signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    sent
}

/// What an element of a vector is to be: memory, or nothing of no length.
///
/// # Errors
/// EINVAL for more elements than there may be, and a length that is negative to the kernel,
/// EFAULT for one of no memory.
///
/// # Safety
/// As readv(2) has its vector.
unsafe fn checked<'a>(vector: *const iovec, count: usize) -> Result<(&'a [iovec], bool)> {
    let vector = match (count, vector.is_null()) {
        (0, _) => &[],
        (VECTOR_MAX.., _) if count > VECTOR_MAX => return Err(Errno(libc::EINVAL)),
        (_, true) => return Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's.
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
/// As readv(2) has it.
unsafe fn places<'a>(
    vector: *const iovec,
    count: usize,
    kept: &'a mut Vec<IoSliceMut<'a>>,
) -> Result<&'a mut [IoSliceMut<'a>]> {
    // SAFETY: the caller's.
    let (elements, gaps) = unsafe { checked(vector, count) }?;
    if !gaps {
        // SAFETY: the caller's; an IoSliceMut is an iovec, none of which is null.
        return Ok(unsafe {
            slice::from_raw_parts_mut(elements.as_ptr().cast_mut().cast(), count)
        });
    }
    let present = elements.iter().filter(|it| !it.iov_base.is_null());
    // SAFETY: the caller's.
    let place = |it: &iovec| unsafe { slice::from_raw_parts_mut(it.iov_base.cast(), it.iov_len) };
    kept.extend(present.map(|it| IoSliceMut::new(place(it))));
    Ok(kept)
}

/// # Safety
/// As writev(2) has it.
unsafe fn pieces<'a>(
    vector: *const iovec,
    count: usize,
    kept: &'a mut Vec<IoSlice<'a>>,
) -> Result<&'a [IoSlice<'a>]> {
    // SAFETY: the caller's.
    let (elements, gaps) = unsafe { checked(vector, count) }?;
    if !gaps {
        // SAFETY: the caller's; an IoSlice is an iovec, none of which is null.
        return Ok(unsafe { slice::from_raw_parts(elements.as_ptr().cast(), count) });
    }
    let present = elements.iter().filter(|it| !it.iov_base.is_null());
    // SAFETY: the caller's.
    let piece = |it: &iovec| unsafe { slice::from_raw_parts(it.iov_base.cast(), it.iov_len) };
    kept.extend(present.map(|it| IoSlice::new(piece(it))));
    Ok(kept)
}

/// The vector of a message may not be as long as it says.
fn of_message<T>(vector: Result<T>, count: usize) -> Result<T> {
    match count {
        0..=VECTOR_MAX => vector,
        _ => Err(Errno(libc::EMSGSIZE)),
    }
}

/// The length of a message's address.
fn check_name(header: &msghdr) -> Result<()> {
    match header.msg_name.is_null() {
        true => Ok(()),
        false => length_of(header.msg_namelen).map(drop),
    }
}

fn elements(count: c_int) -> usize {
    // A negative one is too many.
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
) -> ssize_t {
    match attended(fd) {
        // Nothing is received by it, as `recv` would.
        Some(_) if length == 0 => 0,
        // SAFETY: the caller's.
        Some(posix) => unsafe { receive_into(posix, fd, buffer, length, 0) },
        // SAFETY: the caller's.
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
pub(super) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    match attended(fd) {
        Some(posix) => {
            // SAFETY: the caller's.
            answer(unsafe { read_vector(posix, fd, vector, count, 0) })
        }
        // SAFETY: the caller's.
        None => unsafe { originals::readv(fd, vector, count) },
    }
}

/// # Safety
/// As readv(2) has it.
unsafe fn read_vector(
    posix: &Posix,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
) -> Result<usize> {
    let mut kept = Vec::new();
    // SAFETY: the caller's.
    let places = unsafe { places(vector, elements(count), &mut kept) }?;
    if places.iter().all(|place| place.is_empty()) {
        return Ok(0);
    }
    receive(posix, fd, Ok(places), flags).map(|received| received.bytes)
}

/// # Safety
/// As writev(2) has it.
unsafe fn write_vector(
    posix: &Posix,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    flags: c_int,
) -> isize {
    let mut kept = Vec::new();
    // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        return unsafe { originals::recvfrom(fd, buffer, length, flags, from, from_length) };
    };
    // SAFETY: the caller's.
    let place = unsafe { room(buffer, length) };
    let received =
        place.and_then(|place| receive(posix, fd, Ok(&mut [IoSliceMut::new(place)]), flags));
    answer(received.and_then(|received| {
        match received.from {
            // SAFETY: the caller's.
            Some(address) => unsafe { put_address(address, from, from_length) }?,
            // SAFETY: the caller's: as of a stream, nobody is named.
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
pub(super) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    match attended(fd) {
        // SAFETY: the caller's.
        Some(posix) => answer(unsafe { receive_message(posix, fd, message, flags) }),
        // SAFETY: the caller's.
        None if is_inside() => unsafe {
            stacks_own(libc::SYS_recvmsg, fd, message.expose_provenance(), flags)
        },
        // SAFETY: the caller's.
        None => unsafe {
            let received = originals::recvmsg(fd, message, flags);
            if received >= 0 && (*message).msg_controllen > 0 {
                look_for_sockets(message);
            }
            received
        },
    }
}

/// A message of the stack's: the C library's function is a point of cancellation, at which
/// nobody may leave.
///
/// # Safety
/// As the call has it.
unsafe fn stacks_own(call: c_long, fd: c_int, message: usize, flags: c_int) -> ssize_t {
    let (fd, flags) = (fd as usize, flags as usize);
    // SAFETY: the caller's.
    unsafe { originals::syscall(call, fd, message, flags, 0, 0, 0) as ssize_t }
}

/// Sockets that another process has handed over (SCM_RIGHTS).
///
/// # Safety
/// As recvmsg(2) leaves it.
unsafe fn look_for_sockets(message: *const msghdr) {
    if !may_promote() || is_inside() {
        return;
    }
    // SAFETY: the caller's.
    unsafe { each_handed_over(message, &mut |fd| inherited(fd)) };
}

/// Whether a message hands over a connection of the stack's, which another process would have
/// nothing of: it does not leave.
///
/// # Safety
/// As sendmsg(2) has it.
unsafe fn hands_connection_over(message: *const msghdr) -> bool {
    let Some(posix) = posix().filter(|_| !is_inside()) else {
        return false;
    };
    // SAFETY: the caller's.
    if unsafe { message.as_ref() }.is_none_or(|message| message.msg_controllen == 0) {
        return false;
    }
    let mut found = false;
    let mut look = |fd| {
        let file = posix.descriptors().file(fd);
        found |= file.is_ok_and(|file| matches!(&*file, OpenFile::Stream(_)));
    };
    // SAFETY: the caller's.
    inside(|| unsafe { each_handed_over(message, &mut look) });
    found
}

/// Calls `each` with the numbers that a message hands over (SCM_RIGHTS).
///
/// # Safety
/// As of sendmsg(2), or as recvmsg(2) leaves it.
unsafe fn each_handed_over(message: *const msghdr, each: &mut dyn FnMut(c_int)) {
    // SAFETY: the caller's: headers and their data are inside the message's memory.
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
/// As recvmsg(2) has it.
unsafe fn receive_message(
    posix: &Posix,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the caller's.
    let header = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    check_name(header)?;
    let mut kept = Vec::new();
    // SAFETY: the caller's.
    let places = unsafe { places(header.msg_iov, header.msg_iovlen, &mut kept) };
    let received = receive(posix, fd, of_message(places, header.msg_iovlen), flags)?;
    let (name, mut length) = (header.msg_name, header.msg_namelen);
    // SAFETY: a Message is a msghdr, whose pointers are the caller's.
    let message = unsafe { &mut *message.cast::<Message>() };
    message.finish(received.flags, &received.control());
    if let Some(from) = received.from
        && !name.is_null()
    {
        // SAFETY: the caller's.
        unsafe { put_address(from, name.cast(), &raw mut length) }?;
        header.msg_namelen = length;
    }
    Ok(received.bytes)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, 0, None) },
        // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        Some(posix) => unsafe { transmit_from(posix, fd, buffer, length, flags, None) },
        // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        Some(posix) => match unsafe { destination(posix, fd, to, to_length) } {
            // SAFETY: the caller's.
            Ok(to) => unsafe { transmit_from(posix, fd, buffer, length, flags, to) },
            Err(error) => answer::<usize>(Err(error)),
        },
        // SAFETY: the caller's.
        None if is_inside() => unsafe {
            let (buffer, to) = (buffer.expose_provenance(), to.expose_provenance());
            let (fd, flags, to_length) = (fd as usize, flags as usize, to_length as usize);
            originals::syscall(libc::SYS_sendto, fd, buffer, length, flags, to, to_length) as isize
        },
        // SAFETY: the caller's.
        None => unsafe { originals::sendto(fd, buffer, length, flags, to, to_length) },
    }
}

/// Where what is sent is to go, if the caller says it.
///
/// # Safety
/// As sendto(2) has it.
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
    // SAFETY: the caller's.
    let bytes = unsafe { bytes(to.cast(), length) }?;
    match is_datagrams(posix, fd) {
        true => inside(|| posix.destination(fd, bytes)),
        false => Ok(address_of(bytes)),
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
pub(super) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    match sending(fd) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { write_vector(posix, fd, vector, count, 0) },
        // SAFETY: the caller's.
        None => unsafe { originals::writev(fd, vector, count) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let Some(posix) = sending(fd) else {
        // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    let Some(header) = (unsafe { message.as_ref() }) else {
        return answer::<usize>(Err(Errno(libc::EFAULT)));
    };
    let mut kept = Vec::new();
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(header.msg_iov, header.msg_iovlen, &mut kept) };
    let pieces = of_message(pieces, header.msg_iovlen);
    let name = match header.msg_namelen {
        0 => std::ptr::null(),
        _ => header.msg_name.cast_const(),
    };
    // SAFETY: the caller's.
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
        // The socket that holds the port has what the stack has not.
        _ => {
            let nonblocking = inside(|| posix.descriptors().is_nonblocking(fd));
            let flags = match nonblocking.unwrap_or(false) {
                true => flags | libc::MSG_DONTWAIT,
                false => flags,
            };
            // SAFETY: the caller's.
            unsafe { originals::sendmsg(fd, message, flags) }
        }
    }
}

pub(super) fn is_datagrams(posix: &Posix, fd: c_int) -> bool {
    let file = posix.descriptors().file(fd);
    file.is_ok_and(|file| matches!(&*file, OpenFile::Datagram(_)))
}

// ---- Several messages --------------------------------------------------------

/// `struct mmsghdr`.
type Messages = libc::mmsghdr;

/// MSG_WAITFORONE.
const WAIT_FOR_ONE: c_int = 0x10000;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut Messages,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(posix) = attended(fd) else {
        // SAFETY: the caller's.
        return unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) };
    };
    // SAFETY: the caller's.
    let messages = match unsafe { several(messages, count) } {
        Ok(messages) => messages,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let begun = Instant::now();
    // SAFETY: the caller's.
    let limit = match unsafe { super::readiness::limit(timeout) } {
        Ok(limit) => limit,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let mut received = 0;
    for message in messages {
        let waits = received == 0 || flags & WAIT_FOR_ONE == 0;
        let dont_wait = if waits { 0 } else { libc::MSG_DONTWAIT };
        let flags = flags & !WAIT_FOR_ONE | dont_wait;
        // SAFETY: the caller's.
        match unsafe { receive_message(posix, fd, &raw mut message.msg_hdr, flags) } {
            Ok(bytes) => message.msg_len = bytes as c_uint,
            Err(error) if received == 0 => return answer::<usize>(Err(error)) as c_int,
            Err(_) => break,
        }
        received += 1;
        // Linux looks at it after each datagram alone.
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    received
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut Messages,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if sending(fd).is_none() {
        // SAFETY: the caller's.
        return unsafe { originals::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: the caller's.
    let messages = match unsafe { several(messages, count) } {
        Ok(messages) => messages,
        Err(error) => return answer::<usize>(Err(error)) as c_int,
    };
    let mut sent = 0;
    for message in messages {
        // SAFETY: the caller's.
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
/// As recvmmsg(2) has it.
unsafe fn several<'a>(messages: *mut Messages, count: c_uint) -> Result<&'a mut [Messages]> {
    match (count as usize, messages.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's.
        (count, false) => Ok(unsafe { slice::from_raw_parts_mut(messages, count.min(VECTOR_MAX)) }),
    }
}

// ---- With an offset, which a socket has not ------------------------------------

/// Flags of preadv2(2) that Linux knows of any file, of which RWF_NOWAIT means something
/// here.
const RWF_KNOWN: c_int = 0x3f;

/// The flags of recv(2) and send(2) that say the same.
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
        // SAFETY: the caller's.
        Some(posix) => answer(
            flags_of(offset, flags)
                .and_then(|flags| unsafe { read_vector(posix, fd, vector, count, flags) }),
        ),
        // SAFETY: the caller's.
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
            // SAFETY: the caller's.
            Ok(flags) => unsafe { write_vector(posix, fd, vector, count, flags) },
            Err(error) => answer::<usize>(Err(error)),
        },
        // SAFETY: the caller's.
        None => unsafe { originals::pwritev2(fd, vector, count, offset, flags) },
    }
}

// ---- Fortified (-D_FORTIFY_SOURCE) ---------------------------------------------

/// The C library's end of a program whose buffer is too short.
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
    // SAFETY: the caller's.
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
    // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    unsafe { recvfrom(fd, buffer, length, flags, from, from_length) }
}
