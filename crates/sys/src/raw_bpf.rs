//! bpf(2), for what is too small for a loader.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_LINK_CREATE: i32 = 28;
/// `BPF_XDP`: ordinary attachment, as opposed to device and processor maps.
const BPF_XDP: u32 = 37;

/// Where an XDP program runs (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Attach {
    /// `XDP_FLAGS_SKB_MODE`: generic XDP.
    Generic = 1 << 1,
    /// `XDP_FLAGS_DRV_MODE`: in the driver.
    Native = 1 << 2,
}

/// Attaches an XDP program to the interface of this index in the caller's
/// network namespace, by a link (Linux 5.9) that lasts as long as the
/// descriptor.
///
/// # Errors
/// EBUSY where another program is attached; EPERM without CAP_NET_ADMIN and
/// CAP_BPF.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32, attach: Attach) -> io::Result<OwnedFd> {
    // Program, target, type of attachment, flags.
    let mut attributes = [
        program.as_raw_fd() as u32,
        interface,
        BPF_XDP,
        attach as u32,
    ];
    // SAFETY: the kernel reads as much of the attributes as the length says, which have no
    // pointers; a descriptor just returned to us is owned by nobody else.
    unsafe {
        let size = size_of_val(&attributes);
        match libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw mut attributes, size) {
            fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
