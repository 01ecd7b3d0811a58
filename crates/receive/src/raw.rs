//! The unsafe edge of this crate. Threads of the host architectures; and taking
//! frame tokens apart and together again: the only place where two
//! tokens for one frame could come into being.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tidewall_device::frame::Frame;

use crate::slots::Slots;

/// Stores a token's extent in the slots and gives its number. Every number
/// stored in a list came from here, and leaves through [`retrieve`] once: a
/// list hands each node out to one consumer.
pub(crate) fn store(slots: &Slots, frame: Frame) -> u32 {
    let (index, offset, length) = frame.into_parts();
    slots.set_extent(index, offset, length);
    index
}

/// Remakes the token of a node just taken from a list.
pub(crate) fn retrieve(slots: &Slots, index: u32) -> Frame {
    let (offset, length) = slots.extent(index);
    // SAFETY: `index` was put into the list by `store`, which consumed the
    // token, and the list gave it to us alone.
    unsafe { Frame::from_parts(index, offset, length) }
}

/// Pins the calling thread to a CPU, if one is given.
pub(crate) fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; `cpu` is in range; the
    // set outlives the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Gives the calling thread a real-time priority.
pub(crate) fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// An eventfd that ends a wait.
#[derive(Debug)]
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just returned to us, owned by nobody else.
        Ok(WakeFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Ends the present or the next wait.
    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight valid bytes. A full counter is a signal already.
        unsafe { libc::write(self.0.as_raw_fd(), (&one as *const u64).cast(), 8) };
    }

    /// Takes signals back.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes. An empty counter is no error here.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Sleeps until one of `descriptors` is readable, `signal` is called, or
    /// `timeout` is over.
    pub(crate) fn wait(&self, descriptors: &[i32], timeout: Option<Duration>) {
        let mut polled: Vec<libc::pollfd> = descriptors
            .iter()
            .chain(std::iter::once(&self.0.as_raw_fd()))
            .map(|&fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let timeout = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        });
        let pointer = timeout
            .as_ref()
            .map_or(std::ptr::null(), |time| time as *const _);
        // SAFETY: the array is valid for its length, and the time, where there
        // is one, for the call's duration.
        unsafe {
            libc::ppoll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                pointer,
                std::ptr::null(),
            )
        };
    }
}

/// A token out of thin air, for tests without frame memory.
#[cfg(test)]
pub(crate) fn test_frame(index: u32) -> Frame {
    // SAFETY: there is no memory behind it, so there is nothing to alias.
    unsafe { Frame::from_parts(index, 0, 0) }
}
