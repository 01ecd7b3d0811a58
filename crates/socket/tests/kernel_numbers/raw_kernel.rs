//! The kernel's calls on descriptors, by plain numbers.

use std::io;

/// A table of kernel descriptors that only the calling thread uses.
pub struct Kernel {
    /// The limit of before.
    limit: libc::rlimit,
    // Its table is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

type Answer = Result<i64, i32>;

/// An error as its number.
pub fn errno(error: io::Error) -> i32 {
    error.raw_os_error().expect("an errno")
}

fn answer(result: i64) -> Answer {
    if result < 0 {
        Err(errno(io::Error::last_os_error()))
    } else {
        Ok(result)
    }
}

impl Kernel {
    /// Gives the calling thread a table of its own.
    pub fn with_a_table_of_its_own() -> Self {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a writable rlimit; no other pointers.
        let results = unsafe {
            [
                libc::unshare(libc::CLONE_FILES),
                libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit),
            ]
        };
        assert_eq!(results, [0, 0], "{}", io::Error::last_os_error());
        Kernel {
            limit,
            _not_send: std::marker::PhantomData,
        }
    }

    /// Closes everything in it.
    pub fn empty(&self) {
        assert_eq!(self.close_range(0, u32::MAX, 0), Ok(0));
    }

    pub fn open(&self, close_on_exec: bool) -> Answer {
        let flags = if close_on_exec { libc::EFD_CLOEXEC } else { 0 };
        // SAFETY: no pointers.
        answer(unsafe { libc::eventfd(0, flags) }.into())
    }

    pub fn dup(&self, fd: i32) -> Answer {
        // SAFETY: no pointers; the number is in this thread's own table.
        answer(unsafe { libc::dup(fd) }.into())
    }

    pub fn dup_from(&self, fd: i32, lowest: i32, close_on_exec: bool) -> Answer {
        let how = if close_on_exec {
            libc::F_DUPFD_CLOEXEC
        } else {
            libc::F_DUPFD
        };
        // SAFETY: as above.
        answer(unsafe { libc::fcntl(fd, how, lowest) }.into())
    }

    pub fn dup2(&self, old: i32, new: i32) -> Answer {
        // SAFETY: as above.
        answer(unsafe { libc::dup2(old, new) }.into())
    }

    pub fn dup3(&self, old: i32, new: i32, close_on_exec: bool) -> Answer {
        let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
        // SAFETY: as above.
        answer(unsafe { libc::dup3(old, new, flags) }.into())
    }

    pub fn close(&self, fd: i32) -> Answer {
        // SAFETY: as above; nobody else knows the number.
        answer(unsafe { libc::close(fd) }.into())
    }

    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Answer {
        // SAFETY: as above.
        answer(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
    }

    pub fn close_on_exec(&self, fd: i32) -> Answer {
        // SAFETY: as above.
        answer(unsafe { libc::fcntl(fd, libc::F_GETFD) }.into())
    }

    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> Answer {
        let flags = if closes { libc::FD_CLOEXEC } else { 0 };
        // SAFETY: as above.
        answer(unsafe { libc::fcntl(fd, libc::F_SETFD, flags) }.into())
    }

    /// RLIMIT_NOFILE of the process.
    pub fn set_limit(&self, limit: u32) -> Answer {
        let limit = libc::rlimit {
            rlim_cur: limit.into(),
            rlim_max: self.limit.rlim_max,
        };
        // SAFETY: a valid rlimit for the call's duration.
        answer(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }.into())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: a valid rlimit for the call's duration.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &self.limit) };
    }
}
