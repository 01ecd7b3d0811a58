//! Socket options and ancillary data that the standard library has no name for.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A UDP socket of the kernel, closed on exec, not yet bound.
pub(crate) fn udp_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket that sends whole IP datagrams, closed on exec, and receives none
/// (IPPROTO_RAW).
///
/// # Errors
/// EPERM without CAP_NET_RAW; EAFNOSUPPORT where the kernel lacks the family.
pub(crate) fn raw_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A TCP socket of the kernel, closed on exec, not yet bound.
pub(crate) fn tcp_socket(v6: bool, nonblocking: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let mut kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    if nonblocking {
        kind |= libc::SOCK_NONBLOCK;
    }
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `listen`.
pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    if unsafe { libc::listen(fd.as_raw_fd(), backlog) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `connect`.
///
/// # Errors
/// EINPROGRESS when the socket is nonblocking and the peer has not answered.
pub(crate) fn connect(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let raw = raw_address(address);
    // SAFETY: a valid address of the stated length for the call's duration.
    let result = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            (&raw.storage as *const libc::sockaddr_storage).cast(),
            raw.length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `getsockopt` of an int.
pub(crate) fn get(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    get_bytes(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// `getsockopt`; the length of the value.
pub(crate) fn get_bytes(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: writable bytes and their length for the call's duration.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(length as usize)
}

/// `send` on a stream; what would be SIGPIPE is EPIPE.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8], flags: i32) -> io::Result<usize> {
    // SAFETY: the bytes and their length for the call's duration.
    let result = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// SO_LINGER, seconds.
pub(crate) fn set_linger(fd: BorrowedFd<'_>, seconds: Option<i32>) -> io::Result<()> {
    let value = libc::linger {
        l_onoff: i32::from(seconds.is_some()),
        l_linger: seconds.unwrap_or(0),
    };
    // SAFETY: a valid linger for the call's duration.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&value as *const libc::linger).cast(),
            mem::size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `setsockopt` with an int.
pub(crate) fn set(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// `setsockopt`.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the bytes and their length for the call's duration.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A socket address as the kernel wants it.
pub(super) struct RawAddress {
    pub(super) storage: libc::sockaddr_storage,
    pub(super) length: libc::socklen_t,
}

pub(super) fn raw_address(address: SocketAddr) -> RawAddress {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for any
            // socket address.
            unsafe {
                (&mut storage as *mut libc::sockaddr_storage)
                    .cast::<libc::sockaddr_in>()
                    .write(raw)
            };
            mem::size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe {
                (&mut storage as *mut libc::sockaddr_storage)
                    .cast::<libc::sockaddr_in6>()
                    .write(raw)
            };
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    RawAddress {
        storage,
        length: length as libc::socklen_t,
    }
}

/// The address that the kernel wrote, if it is an internet one.
pub(super) fn parse_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel says it wrote a sockaddr_in, which fits.
            let raw =
                unsafe { *(storage as *const libc::sockaddr_storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the kernel says it wrote a sockaddr_in6, which fits.
            let raw =
                unsafe { *(storage as *const libc::sockaddr_storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(
                SocketAddrV6::new(
                    ip,
                    u16::from_be(raw.sin6_port),
                    raw.sin6_flowinfo,
                    raw.sin6_scope_id,
                )
                .into(),
            )
        }
        _ => None,
    }
}

/// `bind`.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let raw = raw_address(address);
    // SAFETY: a valid address of the stated length for the call's duration.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw.storage as *const libc::sockaddr_storage).cast(),
            raw.length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Sends one datagram from an address of this host (IP_PKTINFO, IPV6_PKTINFO),
/// on an interface if that is not 0. An IPv4 source goes with an IPv4-mapped
/// destination on an IPv6 socket.
///
/// # Errors
/// EINVAL for a source that is not this host's; as `sendmsg`.
pub(crate) fn send_from(
    fd: BorrowedFd<'_>,
    payload: &[u8],
    source: IpAddr,
    interface: u32,
    destination: SocketAddr,
) -> io::Result<usize> {
    let mut name = raw_address(destination);
    let mut part = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    let mut control = [0u64; 8];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&mut name.storage as *mut libc::sockaddr_storage).cast();
    message.msg_namelen = name.length;
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    // SAFETY: `control` has room for one header with either payload and is
    // aligned for a header; every pointer in `message` is valid for its length.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        let data = libc::CMSG_DATA(header);
        let length = match source {
            IpAddr::V4(source) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: interface as i32,
                    ipi_spec_dst: libc::in_addr {
                        s_addr: u32::from(source).to_be(),
                    },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                (*header).cmsg_level = libc::IPPROTO_IP;
                (*header).cmsg_type = libc::IP_PKTINFO;
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
                mem::size_of_val(&info)
            }
            IpAddr::V6(source) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr {
                        s6_addr: source.octets(),
                    },
                    ipi6_ifindex: interface,
                };
                (*header).cmsg_level = libc::IPPROTO_IPV6;
                (*header).cmsg_type = libc::IPV6_PKTINFO;
                data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                mem::size_of_val(&info)
            }
        } as u32;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        libc::sendmsg(fd.as_raw_fd(), &message, 0)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// What the kernel tells about one datagram.
pub(crate) struct KernelDatagram {
    pub(crate) length: usize,
    pub(crate) source: SocketAddr,
    pub(crate) destination: Option<IpAddr>,
    /// Address of ours to answer from, if there is one.
    pub(crate) local: Option<IpAddr>,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Receives one datagram without blocking, with its ancillary data.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<KernelDatagram> {
    // SAFETY: all-zero is a valid sockaddr_storage and msghdr.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = [0u64; 32];
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
    let source = parse_address(&name).ok_or(io::ErrorKind::InvalidData)?;
    let mut datagram = KernelDatagram {
        length: (length as usize).min(buffer.len()),
        source,
        destination: None,
        local: None,
        traffic_class: 0,
        hop_limit: 0,
    };
    // SAFETY: `message` describes `control`, which the kernel filled; the CMSG
    // macros stay inside msg_controllen, and each payload has the stated type.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let ip = |raw: libc::in_addr| IpAddr::V4(u32::from_be(raw.s_addr).into());
                    datagram.destination = Some(ip(info.ipi_addr));
                    datagram.local = Some(ip(info.ipi_spec_dst));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    datagram.destination = Some(IpAddr::V6(ip));
                    datagram.local = Some(IpAddr::V6(ip)).filter(|ip| !ip.is_multicast());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => datagram.traffic_class = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    datagram.traffic_class = data.cast::<i32>().read_unaligned() as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    datagram.hop_limit = data.cast::<i32>().read_unaligned() as u8;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(datagram)
}

/// Addresses of the network namespace at which `interface` is reached, its own
/// first: those of other interfaces too (a service address on `lo`), but not
/// loopback addresses, nor the link-local ones of other links.
pub(crate) fn local_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` receives a list that is freed below.
    if unsafe { libc::getifaddrs(&mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut addresses, mut others) = (Vec::new(), Vec::new());
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is a live node of the list; its name is a C string
        // and its address, if any, a sockaddr of its family.
        unsafe {
            let name = std::ffi::CStr::from_ptr((*entry).ifa_name);
            let address = (*entry).ifa_addr;
            let own = name.to_bytes() == interface.as_bytes();
            let into = if own { &mut addresses } else { &mut others };
            if !address.is_null() {
                match i32::from((*address).sa_family) {
                    libc::AF_INET => {
                        let raw = *address.cast::<libc::sockaddr_in>();
                        let address = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                        if own || !(address.is_loopback() || address.is_link_local()) {
                            into.push(IpAddr::V4(address));
                        }
                    }
                    libc::AF_INET6 => {
                        let raw = *address.cast::<libc::sockaddr_in6>();
                        let address = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                        if own || !(address.is_loopback() || address.is_unicast_link_local()) {
                            into.push(IpAddr::V6(address));
                        }
                    }
                    _ => {}
                }
            }
            entry = (*entry).ifa_next;
        }
    }
    // SAFETY: the list from getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    others.retain(|address| !addresses.contains(address));
    addresses.append(&mut others);
    Ok(addresses)
}
