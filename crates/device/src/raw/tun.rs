//! The ioctls of a TUN/TAP interface (Documentation/networking/tuntap.rst,
//! linux/if_tun.h).

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::syscall;

/// Longest interface name (IFNAMSIZ less its closing zero).
const NAME_MAX: usize = 15;

/// Segments that we take uncut, and checksums that we take unfinished.
const TAKEN: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

fn request(name: &str) -> io::Result<libc::ifreq> {
    let bytes = name.as_bytes();
    let odd = |byte: &u8| *byte == b'/' || *byte == b':' || !byte.is_ascii_graphic();
    if bytes.is_empty() || bytes.len() > NAME_MAX || bytes.iter().any(odd) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no interface name: 1 to {NAME_MAX} letters, no / and no :"),
        ));
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// An ioctl that reads and writes a `struct ifreq`.
fn call(fd: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every caller below passes a number whose argument is a pointer to
    // `struct ifreq`, which is valid for the call's duration.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number, request as *mut libc::ifreq) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes a tap interface of this name, which goes when the descriptor is
/// closed. Reads and writes are of whole frames behind a virtio-net header and
/// never wait.
///
/// # Errors
/// InvalidInput for a name that is none; EBUSY when there is such an interface;
/// EPERM without CAP_NET_ADMIN; ENOENT without /dev/net/tun.
pub(crate) fn open_tap(name: &str) -> io::Result<File> {
    let mut request = request(name)?;
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    // The kernel reads the sixteen bits as unsigned.
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    call(file.as_fd(), libc::TUNSETIFF, &mut request)?;
    Ok(file)
}

/// Has the kernel give us long segments uncut and checksums unfinished. The
/// other way it takes both without being asked.
pub(crate) fn take_offloads(tap: &File) -> io::Result<()> {
    // SAFETY: this ioctl takes a number, not a pointer.
    let result = unsafe {
        libc::ioctl(
            tap.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(TAKEN),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The link address of the kernel's end.
pub(crate) fn link_address(tap: &File) -> io::Result<[u8; 6]> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    call(
        tap.as_fd(),
        libc::SIOCGIFHWADDR as libc::Ioctl,
        &mut request,
    )?;
    // SAFETY: the kernel filled the address; any bytes are a valid sockaddr.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut address = [0; 6];
    for (to, from) in address.iter_mut().zip(data) {
        *to = from as u8;
    }
    Ok(address)
}

/// Sets the interface's MTU, says that its link needs no neighbour resolution,
/// and brings it up.
pub(crate) fn set_up(name: &str, mtu: u16) -> io::Result<()> {
    let socket = syscall::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut interface = request(name)?;
    interface.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    call(
        socket.as_fd(),
        libc::SIOCSIFMTU as libc::Ioctl,
        &mut interface,
    )?;
    let mut interface = request(name)?;
    call(
        socket.as_fd(),
        libc::SIOCGIFFLAGS as libc::Ioctl,
        &mut interface,
    )?;
    // SAFETY: the kernel wrote the flags, and any bits are a valid number.
    let flags = unsafe { interface.ifr_ifru.ifru_flags };
    let up = (libc::IFF_UP | libc::IFF_NOARP) as libc::c_short;
    interface.ifr_ifru.ifru_flags = flags | up;
    call(
        socket.as_fd(),
        libc::SIOCSIFFLAGS as libc::Ioctl,
        &mut interface,
    )
}
