//! The system calls of the Linux host: socket options, `recv`, `recvmsg`,
//! `recvmmsg`, `sendmsg`, `sendmmsg` and `poll`.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::host::Peer;

/// `asm-generic/socket.h`; the libc crate has them for Android only.
pub(crate) const SO_BUSY_POLL: libc::c_int = 46;
pub(crate) const SO_PREFER_BUSY_POLL: libc::c_int = 69;
pub(crate) const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// Longest datagram.
pub(crate) const DATAGRAM_MAX: usize = 65_536;
/// Bytes of a datagram that a batched send has room for.
pub(crate) const BATCH_BYTES: usize = 2048;

/// Ancillary data of a datagram: IPV6_PKTINFO and IP_PKTINFO have room in it.
type Control = [u64; 12];

/// Has each datagram say which of our addresses it was sent to.
pub(crate) fn tell_local(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    if v6 {
        set_option_of(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    }
    set_option_of(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
}

/// Sets an option of level SOL_SOCKET.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set_option_of(fd, libc::SOL_SOCKET, name, value)
}

fn set_option_of(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the
    // call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
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

/// Our address that `header`'s datagram is to be answered from; unspecified if
/// it does not say.
///
/// # Safety
/// `header` is as a receiving call left it, and its control data is there.
unsafe fn local_of(header: &libc::msghdr) -> IpAddr {
    let mut local = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    // SAFETY: the caller's; the macros stay inside msg_controllen, and each
    // payload has the type that its header says.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(header);
        while !part.is_null() {
            let data = libc::CMSG_DATA(part);
            match ((*part).cmsg_level, (*part).cmsg_type) {
                // Of IPv4 datagrams the last, and better: not a group's.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    local = Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr)).into();
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    if !address.is_multicast() {
                        local = address.to_canonical();
                    }
                }
                _ => {}
            }
            part = libc::CMSG_NXTHDR(header, part);
        }
    }
    local
}

/// Has `header`'s datagram leave from `local`, unless that is unspecified.
fn leave_from(header: &mut libc::msghdr, control: &mut Control, local: IpAddr) {
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>();
    // SAFETY: `control` is aligned for a header and has room for one with either
    // payload.
    let length = unsafe {
        let part = libc::CMSG_FIRSTHDR(header);
        let data = libc::CMSG_DATA(part);
        let length = match local {
            IpAddr::V4(local) => {
                let mut info: libc::in_pktinfo = zeroed();
                info.ipi_spec_dst.s_addr = local.to_bits().to_be();
                (*part).cmsg_level = libc::IPPROTO_IP;
                (*part).cmsg_type = libc::IP_PKTINFO;
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
                size_of::<libc::in_pktinfo>()
            }
            IpAddr::V6(local) => {
                let mut info: libc::in6_pktinfo = zeroed();
                info.ipi6_addr.s6_addr = local.octets();
                (*part).cmsg_level = libc::IPPROTO_IPV6;
                (*part).cmsg_type = libc::IPV6_PKTINFO;
                data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                size_of::<libc::in6_pktinfo>()
            }
        } as libc::c_uint;
        (*part).cmsg_len = libc::CMSG_LEN(length) as usize;
        libc::CMSG_SPACE(length) as usize
    };
    header.msg_controllen = if local.is_unspecified() { 0 } else { length };
}

/// Receives one datagram, its source and which of our addresses it was sent to.
pub(crate) fn receive_located(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Option<Peer>)> {
    let mut control: Control = [0; 12];
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: zeroes are valid for these plain C structs; every pointer comes with
    // the length of what it points to.
    unsafe {
        let mut address: libc::sockaddr_storage = zeroed();
        let mut header: libc::msghdr = zeroed();
        header.msg_name = (&raw mut address).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>();
        let length = libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags);
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        let local = local_of(&header);
        let peer = from_kernel(&address).map(|address| Peer { address, local });
        Ok((length, peer))
    }
}

/// Sends one datagram.
pub(crate) fn send_from(fd: BorrowedFd<'_>, payload: &[u8], to: Peer) -> io::Result<()> {
    let mut control: Control = [0; 12];
    let mut vector = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: as in `receive_located`.
    let sent = unsafe {
        let mut address: libc::sockaddr_storage = zeroed();
        let mut header: libc::msghdr = zeroed();
        header.msg_namelen = to_kernel(to.address, &mut address);
        header.msg_name = (&raw mut address).cast();
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        leave_from(&mut header, &mut control, to.local);
        libc::sendmsg(fd.as_raw_fd(), &raw const header, 0)
    };
    match sent < 0 {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// A peer of a socket that answers from its only address.
fn peer(address: &libc::sockaddr_storage) -> Option<Peer> {
    let local = Ipv4Addr::UNSPECIFIED.into();
    from_kernel(address).map(|address| Peer { address, local })
}

/// Receives one datagram and its source.
pub(crate) fn receive_from(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Option<Peer>)> {
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
    Ok((length, peer(&address)))
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
    controls: Box<[Control]>,
    bytes: Box<[u8]>,
    /// Bytes that a datagram has room for.
    room: usize,
    named: bool,
    located: bool,
}

impl Batch {
    /// Room for `count` datagrams of up to `room` bytes, of which only what is
    /// used takes memory; `named` when their addresses matter, `located` when
    /// they are received with those of ours that they were sent to.
    pub(crate) fn new(count: usize, room: usize, named: bool, located: bool) -> Self {
        // SAFETY: zeroes are valid for these plain C structs of integers and
        // pointers.
        let (header, vector, address) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let mut batch = Batch {
            headers: vec![header; count].into(),
            vectors: vec![vector; count].into(),
            addresses: vec![address; count].into(),
            controls: vec![[0; 12]; count].into(),
            bytes: vec![0; count * room].into(),
            room,
            named,
            located,
        };
        let parts = batch
            .headers
            .iter_mut()
            .zip(&mut batch.vectors)
            .zip(&mut batch.addresses)
            .zip(&mut batch.controls)
            .zip(batch.bytes.chunks_exact_mut(room));
        for ((((header, vector), address), control), bytes) in parts {
            *vector = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: room,
            };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            if named {
                header.msg_hdr.msg_name = (&raw mut *address).cast();
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            }
            if located {
                header.msg_hdr.msg_control = control.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = size_of::<Control>();
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

    /// A received datagram: payload and sender, `None` for one that was longer
    /// than the buffer. Makes its header ready for the next call.
    pub(crate) fn datagram(&mut self, number: usize) -> Option<(&[u8], Option<Peer>)> {
        let header = self.headers.get_mut(number)?;
        let mut sender = match self.named {
            true => {
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                self.addresses.get(number).and_then(peer)
            }
            false => None,
        };
        if self.located {
            if let Some(sender) = &mut sender {
                // SAFETY: `receive` filled it, and it points into `controls`.
                sender.local = unsafe { local_of(&header.msg_hdr) };
            }
            header.msg_hdr.msg_controllen = size_of::<Control>();
        }
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let start = number * self.room;
        let length = header.msg_len as usize;
        Some((self.bytes.get(start..start + length)?, sender))
    }

    /// Fills place `number` for sending; false when the payload does not fit
    /// or there is no such place.
    pub(crate) fn put(&mut self, number: usize, payload: &[u8], to: Peer) -> bool {
        let start = number * self.room;
        let (Some(header), Some(vector), Some(address), Some(control), Some(room)) = (
            self.headers.get_mut(number),
            self.vectors.get_mut(number),
            self.addresses.get_mut(number),
            self.controls.get_mut(number),
            self.bytes
                .get_mut(start..start + payload.len().min(self.room)),
        ) else {
            return false;
        };
        if room.len() < payload.len() {
            return false;
        }
        room.copy_from_slice(payload);
        vector.iov_len = payload.len();
        header.msg_hdr.msg_namelen = to_kernel(to.address, address);
        leave_from(&mut header.msg_hdr, control, to.local);
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
