//! Shared memory mappings that are unmapped when dropped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A shared mapping, writable unless it was opened read-only, and unmapped when dropped.
/// A forked child does not have it.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain memory of the process; code that accesses it by address
// justifies that itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of a file from `offset` on.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn new(fd: impl AsFd, length: usize, offset: u64) -> io::Result<Self> {
        Self::protected(fd, length, offset, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Mapping::new`], but read-only: a process that writes through its address is
    /// ended by a signal.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn read_only(fd: impl AsFd, length: usize, offset: u64) -> io::Result<Self> {
        Self::protected(fd, length, offset, ProtFlags::READ)
    }

    fn protected(
        fd: impl AsFd,
        length: usize,
        offset: u64,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses, so no existing
        // memory is touched; then exactly that range.
        let address = unsafe {
            let address = mmap(ptr::null_mut(), length, protection, flags, fd, offset)?;
            // A child that inherited an AF_XDP ring would keep its socket bound, and the
            // queue busy, until it ends. On kernels that refuse the advice for a mapping,
            // only that protection is missing.
            let _ = madvise(address, length, Advice::LinuxDontFork);
            address
        };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, length })
    }

    /// Maps a new memfd of `length` zero bytes, whose size is sealed: its descriptor may
    /// be passed to another process.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub fn memfd(name: &str, length: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, length as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Mapping::new(&fd, length, 0)?, fd))
    }

    /// Address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes mapped.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// The first page of a file as 64-bit words that other processes may change at any time.
#[derive(Debug)]
pub struct SharedPage(Mapping);

impl SharedPage {
    /// Bytes of a page.
    pub const BYTES: usize = 4096;
    /// 64-bit words of a page.
    pub const WORDS: usize = Self::BYTES / 8;

    /// Maps a file.
    ///
    /// # Errors
    /// InvalidData for a file shorter than a page, since an access beyond a file's end
    /// raises SIGBUS; errors of `mmap`.
    pub fn new(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < Self::BYTES as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is shorter than a page",
            ));
        }
        Mapping::new(file, Self::BYTES, 0).map(SharedPage)
    }

    /// Maps a page of a kernel object with its own memory, not a file: a ring of an
    /// AF_XDP socket, or a BPF map. The kernel keeps it as long as it is mapped.
    ///
    /// # Errors
    /// EINVAL beyond its end; EPERM, EACCES for an object that may not be written; errors
    /// of `mmap`.
    pub fn of_object(fd: impl AsFd, offset: u64) -> io::Result<Self> {
        Mapping::new(fd, Self::BYTES, offset).map(SharedPage)
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64; Self::WORDS] {
        // SAFETY: page-aligned, readable and writable for that many bytes until drop.
        // Only this function accesses the mapping, so all accesses are atomic.
        unsafe { self.0.address.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, unmapped once; every reference
        // into it borrows `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}
