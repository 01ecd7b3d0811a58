//! System calls that the standard library has no name for.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A socket, closed on exec.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `setsockopt` with a plain value.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size for the call's duration.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (value as *const T).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `getsockopt` into a plain value. `T` must be valid for any bytes.
pub(crate) fn get_option<T: Copy + Default>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
) -> io::Result<T> {
    let mut value = T::default();
    let mut length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`; the types
    // used here (integers) are valid for any bytes.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&mut value as *mut T).cast(),
            &mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// Ring offsets of an AF_XDP socket.
pub(crate) fn mmap_offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `offsets`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&mut offsets as *mut libc::xdp_mmap_offsets).cast(),
            &mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(offsets)
    }
}

/// Binds an AF_XDP socket to a queue.
pub(crate) fn bind_xdp(
    fd: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    flags: u16,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: `address` is a valid sockaddr_xdp for the call's duration.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&address as *const libc::sockaddr_xdp).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `recv` that never blocks and throws the bytes away: drives a busy-polling
/// socket's NAPI, or wakes a driver. Nothing to read is success.
pub(crate) fn poke_receive(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: a zero-length buffer is never written.
    let result = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
    if result >= 0 {
        return Ok(result as usize);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(0),
        _ => Err(error),
    }
}

/// `sendto` with no bytes: makes an AF_XDP socket transmit its ring.
pub(crate) fn poke_transmit(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no buffer and no address are passed.
    let result = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Attaches a classic BPF program that says of each datagram how many bytes of it
/// the socket gets; none: it is dropped.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        // The kernel only reads it, and has its own copy afterwards.
        filter: filter.as_ptr().cast_mut(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Asks for the destination address with each datagram, of either family.
pub(crate) fn want_destination(fd: BorrowedFd<'_>) -> io::Result<()> {
    // A v4-only host has no IPV6_RECVPKTINFO; a v6 socket takes both.
    let v6 = set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1i32);
    let v4 = set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &1i32);
    v6.or(v4)
}

/// Receives one datagram with its source and, where known, the local address
/// it was sent to. Never blocks.
pub(crate) fn receive_with_destination(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, std::net::SocketAddr, Option<std::net::IpAddr>)> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    // SAFETY: all-zero is a valid sockaddr_storage and msghdr.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = [0u64; 16];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    message.msg_name = (&mut name as *mut libc::sockaddr_storage).cast();
    message.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    // SAFETY: every pointer in `message` is valid for its stated length.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let source = match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel says it wrote a sockaddr_in, which fits.
            let v4 =
                unsafe { *(&name as *const libc::sockaddr_storage).cast::<libc::sockaddr_in>() };
            SocketAddr::from((
                Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)),
                u16::from_be(v4.sin_port),
            ))
        }
        libc::AF_INET6 => {
            // SAFETY: the kernel says it wrote a sockaddr_in6, which fits.
            let v6 =
                unsafe { *(&name as *const libc::sockaddr_storage).cast::<libc::sockaddr_in6>() };
            SocketAddr::from((
                Ipv6Addr::from(v6.sin6_addr.s6_addr),
                u16::from_be(v6.sin6_port),
            ))
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let mut destination = None;
    // SAFETY: `message` describes `control`, which the kernel filled; the
    // CMSG macros stay inside msg_controllen.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                    destination = Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(
                        info.ipi_addr.s_addr,
                    ))));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    destination = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok((length as usize, source, destination))
}
