//! The kernel's calls on descriptors, by plain numbers.

use std::io;
use std::os::fd::IntoRawFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A table of kernel descriptors that only the calling thread uses.
pub struct Kernel {
    /// The limit of before.
    limit: Rlimit,
    // Its table is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

type Answer = Result<i64, i32>;

/// An error as its number.
pub fn errno(error: io::Error) -> i32 {
    error.raw_os_error().expect("an errno")
}

/// A call with three numbers.
fn call(number: libc::c_long, [first, second, third]: [i64; 3]) -> Answer {
    // SAFETY: only of calls that take no pointers, on descriptors in this thread's own
    // table, which no other thread knows.
    match unsafe { libc::syscall(number, first, second, third) } {
        result @ 0.. => Ok(result),
        _ => Err(errno(io::Error::last_os_error())),
    }
}

impl Kernel {
    /// Gives the calling thread a table of its own.
    pub fn with_a_table_of_its_own() -> Self {
        // SAFETY: the thread closes no descriptor of others but in its own table.
        unsafe { unshare_unsafe(UnshareFlags::FILES) }.expect("a table");
        Kernel {
            limit: getrlimit(Resource::Nofile),
            _not_send: std::marker::PhantomData,
        }
    }

    /// Closes everything in it.
    pub fn empty(&self) {
        assert_eq!(self.close_range(0, u32::MAX, 0), Ok(0));
    }

    pub fn open(&self, close_on_exec: bool) -> Answer {
        let mut flags = EventfdFlags::empty();
        flags.set(EventfdFlags::CLOEXEC, close_on_exec);
        match eventfd(0, flags) {
            Ok(fd) => Ok(fd.into_raw_fd().into()),
            Err(error) => Err(error.raw_os_error()),
        }
    }

    pub fn dup(&self, fd: i32) -> Answer {
        call(libc::SYS_dup, [fd.into(), 0, 0])
    }

    fn fcntl(&self, fd: i32, command: i32, argument: i32) -> Answer {
        call(libc::SYS_fcntl, [fd, command, argument].map(i64::from))
    }

    pub fn dup_from(&self, fd: i32, lowest: i32, close_on_exec: bool) -> Answer {
        let how = if close_on_exec {
            libc::F_DUPFD_CLOEXEC
        } else {
            libc::F_DUPFD
        };
        self.fcntl(fd, how, lowest)
    }

    pub fn dup2(&self, old: i32, new: i32) -> Answer {
        // SAFETY: as in `call`; aarch64 has no such system call.
        match unsafe { libc::dup2(old, new) } {
            result @ 0.. => Ok(result.into()),
            _ => Err(errno(io::Error::last_os_error())),
        }
    }

    pub fn dup3(&self, old: i32, new: i32, close_on_exec: bool) -> Answer {
        let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
        call(libc::SYS_dup3, [old, new, flags].map(i64::from))
    }

    pub fn close(&self, fd: i32) -> Answer {
        call(libc::SYS_close, [fd.into(), 0, 0])
    }

    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Answer {
        call(libc::SYS_close_range, [first, last, flags].map(i64::from))
    }

    pub fn close_on_exec(&self, fd: i32) -> Answer {
        self.fcntl(fd, libc::F_GETFD, 0)
    }

    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> Answer {
        let flags = if closes { libc::FD_CLOEXEC } else { 0 };
        self.fcntl(fd, libc::F_SETFD, flags)
    }

    /// RLIMIT_NOFILE of the process.
    pub fn set_limit(&self, limit: u32) -> Answer {
        let limit = Rlimit {
            current: Some(limit.into()),
            maximum: self.limit.maximum,
        };
        match setrlimit(Resource::Nofile, limit) {
            Ok(()) => Ok(0),
            Err(error) => Err(error.raw_os_error()),
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.limit);
    }
}
