//! The system calls of the Linux host: socket options, `recv`, `recvmmsg`,
//! `sendmmsg` and `poll`.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// `asm-generic/socket.h`; the libc crate has them for Android only.
pub(crate) const SO_BUSY_POLL: libc::c_int = 46;
pub(crate) const SO_PREFER_BUSY_POLL: libc::c_int = 69;
pub(crate) const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Bytes of a datagram that a batched receive has room for.
pub(crate) const BATCH_BYTES: usize = 2048;

/// Sets an option of level SOL_SOCKET.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the
    // call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Receives one datagram without its source.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `buffer`.
    let length = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
        )
    };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// Receives one datagram and its source.
pub(crate) fn receive_from(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Option<SocketAddr>)> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut address_length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: both pointers come with the lengths of what they point to.
    let length = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
            address.as_mut_ptr().cast(),
            &raw mut address_length,
        )
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: zeroes are a valid sockaddr_storage, and the kernel writes one.
    let address = unsafe { address.assume_init() };
    Ok((length, from_kernel(&address)))
}

/// Waits until one of `sockets` is readable.
pub(crate) fn poll(sockets: &mut [libc::pollfd], timeout: Duration) -> io::Result<()> {
    let milliseconds = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the pointer and the count describe `sockets`.
    let result = unsafe {
        libc::poll(
            sockets.as_mut_ptr(),
            sockets.len() as libc::nfds_t,
            milliseconds,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// One entry of [`poll`].
pub(crate) fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Buffers and headers of batched calls, made once: the headers point into the
/// boxes beside them, which never move and are never resized.
pub(crate) struct Batch {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    addresses: Box<[libc::sockaddr_storage]>,
    bytes: Box<[u8]>,
    named: bool,
}

impl Batch {
    /// Room for `count` datagrams; `named` when their addresses matter.
    pub(crate) fn new(count: usize, named: bool) -> Self {
        // SAFETY: zeroes are valid for these plain C structs of integers and
        // pointers.
        let (header, vector, address) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let mut batch = Batch {
            headers: vec![header; count].into(),
            vectors: vec![vector; count].into(),
            addresses: vec![address; count].into(),
            bytes: vec![0; count * BATCH_BYTES].into(),
            named,
        };
        let parts = batch
            .headers
            .iter_mut()
            .zip(&mut batch.vectors)
            .zip(&mut batch.addresses)
            .zip(batch.bytes.chunks_exact_mut(BATCH_BYTES));
        for (((header, vector), address), bytes) in parts {
            *vector = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: BATCH_BYTES,
            };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            if named {
                header.msg_hdr.msg_name = (&raw mut *address).cast();
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            }
        }
        batch
    }

    /// Datagrams it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// One `recvmmsg` of up to `limit`; returns how many came.
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        limit: usize,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let limit = limit.min(self.headers.len());
        // SAFETY: `limit` headers, which point to buffers, vectors and
        // addresses that `self` owns and nothing else borrows.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                limit as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// A received datagram: payload and source, `None` for one that was longer
    /// than the buffer. Makes its header ready for the next call.
    pub(crate) fn datagram(&mut self, number: usize) -> Option<(&[u8], Option<SocketAddr>)> {
        let header = self.headers.get_mut(number)?;
        let source = match self.named {
            true => {
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                self.addresses.get(number).and_then(from_kernel)
            }
            false => None,
        };
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let start = number * BATCH_BYTES;
        let length = header.msg_len as usize;
        Some((self.bytes.get(start..start + length)?, source))
    }

    /// Fills place `number` for sending; false when the payload does not fit
    /// or there is no such place.
    pub(crate) fn put(&mut self, number: usize, payload: &[u8], destination: SocketAddr) -> bool {
        let start = number * BATCH_BYTES;
        let (Some(header), Some(vector), Some(address), Some(room)) = (
            self.headers.get_mut(number),
            self.vectors.get_mut(number),
            self.addresses.get_mut(number),
            self.bytes
                .get_mut(start..start + payload.len().min(BATCH_BYTES)),
        ) else {
            return false;
        };
        if room.len() < payload.len() {
            return false;
        }
        room.copy_from_slice(payload);
        vector.iov_len = payload.len();
        header.msg_hdr.msg_namelen = to_kernel(destination, address);
        true
    }

    /// Sends the first `count` places; returns how many left.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
        let count = count.min(self.headers.len());
        // SAFETY: as in `receive`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

pub(crate) fn from_kernel(address: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it holds a sockaddr_in, which is
            // smaller and less aligned than the storage.
            let v4 = unsafe { &*(&raw const *address).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for a sockaddr_in6.
            let v6 = unsafe { &*(&raw const *address).cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
                v6.sin6_flowinfo,
                v6.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

/// Writes the address; returns its length.
pub(crate) fn to_kernel(from: SocketAddr, to: &mut libc::sockaddr_storage) -> libc::socklen_t {
    match from {
        SocketAddr::V4(from) => {
            // SAFETY: the storage is larger and more aligned than a
            // sockaddr_in, any bytes of which are valid.
            let v4 = unsafe { &mut *(&raw mut *to).cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_port = from.port().to_be();
            v4.sin_addr.s_addr = from.ip().to_bits().to_be();
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(from) => {
            // SAFETY: as above, for a sockaddr_in6.
            let v6 = unsafe { &mut *(&raw mut *to).cast::<libc::sockaddr_in6>() };
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_port = from.port().to_be();
            v6.sin6_flowinfo = from.flowinfo();
            v6.sin6_addr.s6_addr = from.ip().octets();
            v6.sin6_scope_id = from.scope_id();
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["10.1.2.3:4567", "[fd00::1]:9", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: zeroes are a valid sockaddr_storage.
            let mut storage = unsafe { zeroed() };
            to_kernel(address, &mut storage);
            assert_eq!(from_kernel(&storage), Some(address));
        }
    }
}
