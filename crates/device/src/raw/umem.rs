//! XDP_UMEM_REG, which names memory for the kernel to write to.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::frame::FrameMemory;

/// Flag of `xdp_umem_reg` (linux/if_xdp.h, Linux 6.11): `tx_metadata_len` is valid.
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// Registers frame memory with an AF_XDP socket, with `metadata` bytes of transmit
/// metadata; 0 is none, which older kernels support.
pub(crate) fn register(fd: BorrowedFd<'_>, memory: &FrameMemory, metadata: u32) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.address() as u64,
        len: memory.bytes_mapped() as u64,
        chunk_size: memory.frame_size() as u32,
        headroom: 0,
        flags: if metadata > 0 {
            XDP_UMEM_TX_METADATA_LEN
        } else {
            0
        },
        tx_metadata_len: metadata,
    };
    // SAFETY: `registration` is valid for reads of its size. The kernel pins the
    // memory that it names, and writes only frames given to the fill ring.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_UMEM_REG,
            (&raw const registration).cast(),
            size_of_val(&registration) as libc::socklen_t,
        )
    };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
