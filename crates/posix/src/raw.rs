//! A C caller's memory: addresses, vectors, control messages.

use core::{mem, ptr, slice};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_uint, cmsghdr, iovec, msghdr, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::ControlMessage;

/// An unconnected socket of the kernel.
pub(crate) fn kernel_socket(domain: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: three numbers.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `setsockopt(2)` of the kernel's.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let length = value.len() as socklen_t;
    // SAFETY: an open descriptor, and as many readable bytes as it says.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `getsockopt(2)` of the kernel's: all of the value.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; 1024];
    let mut length = value.len() as socklen_t;
    let place = value.as_mut_ptr().cast();
    // SAFETY: an open descriptor, and as many writable bytes as `length` says.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, place, &raw mut length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(length as usize);
    Ok(value)
}

/// Bytes to read from; none for a null pointer.
///
/// # Safety
/// `bytes` is null or `length` bytes that nobody changes meanwhile.
pub unsafe fn bytes<'a>(bytes: *const libc::c_void, length: usize) -> &'a [u8] {
    if bytes.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { slice::from_raw_parts(bytes.cast(), length) }
}

/// Bytes to write to; none for a null pointer.
///
/// # Safety
/// `bytes` is null or `length` initialised bytes that nobody else uses meanwhile.
pub unsafe fn bytes_mut<'a>(bytes: *mut libc::c_void, length: usize) -> &'a mut [u8] {
    if bytes.is_null() || length == 0 {
        return &mut [];
    }
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { slice::from_raw_parts_mut(bytes.cast(), length) }
}

/// The elements of a C array; none for a null pointer or a negative count.
///
/// # Safety
/// `elements` is null or `count` of them that nobody changes meanwhile.
pub unsafe fn elements<'a, T>(elements: *const T, count: usize) -> &'a [T] {
    if elements.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: not null; the rest is the caller's promise.
    unsafe { slice::from_raw_parts(elements, count) }
}

/// What a vector points to; nothing when an element without memory has a length,
/// which is EFAULT.
///
/// # Safety
/// Each element is null or points to as many readable bytes as it says.
pub unsafe fn gather(vector: &[iovec]) -> Option<Vec<&[u8]>> {
    vector
        .iter()
        .map(|element| {
            let missing = element.iov_base.is_null() && element.iov_len > 0;
            // SAFETY: the caller's promise.
            (!missing).then(|| unsafe { bytes(element.iov_base, element.iov_len) })
        })
        .collect()
}

/// Fills what a vector points to, in order.
///
/// # Safety
/// Each element is null or points to as many writable bytes as it says.
pub unsafe fn scatter(mut from: &[u8], vector: &[iovec]) {
    for element in vector {
        // SAFETY: the caller's promise.
        let place = unsafe { bytes_mut(element.iov_base, element.iov_len) };
        let (now, later) = from.split_at(place.len().min(from.len()));
        if let Some(place) = place.get_mut(..now.len()) {
            place.copy_from_slice(now);
        }
        from = later;
    }
}

/// Reads an address; nothing for one that is too short or of another family.
///
/// # Safety
/// `address` is null or `length` readable bytes.
pub unsafe fn address(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    let length = length as usize;
    if address.is_null() || length < mem::size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: readable as far as the family at least.
    let family = unsafe { ptr::read_unaligned(address.cast::<libc::sa_family_t>()) };
    match i32::from(family) {
        libc::AF_INET if length >= mem::size_of::<sockaddr_in>() => {
            // SAFETY: long enough; any bytes are a `sockaddr_in`.
            let address: sockaddr_in = unsafe { ptr::read_unaligned(address.cast()) };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(address.sin_port))))
        }
        libc::AF_INET6 if length >= mem::size_of::<sockaddr_in6>() => {
            // SAFETY: long enough; any bytes are a `sockaddr_in6`.
            let address: sockaddr_in6 = unsafe { ptr::read_unaligned(address.cast()) };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, 0).into())
        }
        _ => None,
    }
}

/// Writes an address as far as there is room, and its length.
///
/// # Safety
/// `length` is null, or says how many bytes may be written at `place`, which is
/// null or so many bytes.
pub unsafe fn put_address(address: SocketAddr, place: *mut sockaddr, length: *mut socklen_t) {
    if place.is_null() || length.is_null() {
        return;
    }
    let mut encoded = Vec::with_capacity(28);
    match address {
        SocketAddr::V4(address) => {
            encoded.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            encoded.extend_from_slice(&address.port().to_be_bytes());
            encoded.extend_from_slice(&address.ip().octets());
            encoded.extend_from_slice(&[0; 8]);
        }
        SocketAddr::V6(address) => {
            encoded.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            encoded.extend_from_slice(&address.port().to_be_bytes());
            encoded.extend_from_slice(&[0; 4]);
            encoded.extend_from_slice(&address.ip().octets());
            encoded.extend_from_slice(&[0; 4]);
        }
    }
    // SAFETY: `length` is not null, and says what may be written at `place`.
    unsafe { put(&encoded, place.cast(), length) }
}

/// Writes bytes as far as there is room, and how many they are.
///
/// # Safety
/// `length` says how many bytes may be written at `place`.
pub unsafe fn put(value: &[u8], place: *mut libc::c_void, length: *mut socklen_t) {
    // SAFETY: the caller's promise.
    let room = unsafe { ptr::read_unaligned(length) } as usize;
    // SAFETY: the caller's promise.
    let place = unsafe { bytes_mut(place, room) };
    for (place, byte) in place.iter_mut().zip(value) {
        *place = *byte;
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::write_unaligned(length, value.len() as socklen_t) };
}

/// Writes control messages as far as there is room (else MSG_CTRUNC).
///
/// # Safety
/// The message's control buffer is as long as it says.
pub unsafe fn put_control(message: &mut msghdr, control: &[ControlMessage]) {
    let room = message.msg_controllen;
    let mut used = 0;
    for ControlMessage { level, kind, data } in control {
        // SAFETY: computations.
        let (space, length) = unsafe {
            (
                libc::CMSG_SPACE(data.len() as c_uint) as usize,
                libc::CMSG_LEN(data.len() as c_uint) as usize,
            )
        };
        if room - used < length || message.msg_control.is_null() {
            message.msg_flags |= libc::MSG_CTRUNC;
            break;
        }
        let header = cmsghdr {
            cmsg_len: length,
            cmsg_level: *level,
            cmsg_type: *kind,
        };
        // SAFETY: `length` bytes are there beyond `used`, enough for header and
        // data.
        unsafe {
            let place = message.msg_control.cast::<u8>().add(used);
            ptr::write_unaligned(place.cast(), header);
            ptr::copy_nonoverlapping(data.as_ptr(), place.add(length - data.len()), data.len());
        }
        used = (used + space).min(room);
    }
    message.msg_controllen = used;
}
