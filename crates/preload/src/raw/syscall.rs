//! `syscall(2)`: programs that bypass the C library's functions and pass the call's
//! number.

use std::ffi::{c_int, c_long};

use super::{
    copying, data, ends, numbers, options, originals, processes, readiness, sandbox, signals,
    sockets,
};
use crate::candidates;
use crate::promote;

/// Makes calls with the arguments that a system call of that number has.
macro_rules! dispatch {
    ($number:expr, $arguments:expr, $otherwise:expr;
     $($name:ident => $module:ident::$function:ident($($index:tt),*);)*) => {
        match $number {
            // SAFETY: guaranteed by the caller, who passes the arguments of this call.
            $(libc::$name => unsafe {
                $module::$function($($arguments.$index as _),*) as c_long
            },)*
            _ => $otherwise,
        }
    };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if number == libc::SYS_futex {
        // By far the most frequent, and never the stack's. SAFETY: guaranteed by the
        // caller.
        return unsafe { originals::syscall(number, a, b, c, d, e, f) };
    }
    if number == libc::SYS_io_uring_setup && promote::may_promote() {
        // It could not reach the stack's sockets; the caller can fall back to epoll.
        super::fail(libc::ENOSYS);
        return -1;
    }
    let arguments = (a, b, c, d, e, f);
    dispatch! { number, arguments, unsafe_otherwise(number, arguments);
        SYS_socket => sockets::socket(0, 1, 2);
        SYS_connect => sockets::connect(0, 1, 2);
        SYS_accept4 => sockets::accept4(0, 1, 2, 3);
        SYS_accept => sockets::accept(0, 1, 2);
        SYS_shutdown => sockets::shutdown(0, 1);
        SYS_getsockname => sockets::getsockname(0, 1, 2);
        SYS_getpeername => sockets::getpeername(0, 1, 2);
        SYS_setsockopt => options::setsockopt(0, 1, 2, 3, 4);
        SYS_getsockopt => options::getsockopt(0, 1, 2, 3, 4);
        SYS_fcntl => options::fcntl(0, 1, 2);
        SYS_ioctl => options::ioctl(0, 1, 2);
        SYS_read => data::read(0, 1, 2);
        SYS_readv => data::readv(0, 1, 2);
        SYS_write => data::write(0, 1, 2);
        SYS_writev => data::writev(0, 1, 2);
        SYS_preadv2 => data::preadv2(0, 1, 2, 3, 5);
        SYS_pwritev2 => data::pwritev2(0, 1, 2, 3, 5);
        SYS_recvfrom => data::recvfrom(0, 1, 2, 3, 4, 5);
        SYS_recvmsg => data::recvmsg(0, 1, 2);
        SYS_recvmmsg => data::recvmmsg(0, 1, 2, 3, 4);
        SYS_sendto => data::sendto(0, 1, 2, 3, 4, 5);
        SYS_sendmsg => data::sendmsg(0, 1, 2);
        SYS_sendmmsg => data::sendmmsg(0, 1, 2, 3);
        SYS_sendfile => copying::sendfile(0, 1, 2, 3);
        SYS_splice => copying::splice(0, 1, 2, 3, 4, 5);
        SYS_close => numbers::close(0);
        SYS_close_range => numbers::close_range(0, 1, 2);
        SYS_dup => numbers::dup(0);
        SYS_dup3 => numbers::dup3(0, 1, 2);
        SYS_epoll_create1 => readiness::epoll_create1(0);
        SYS_epoll_ctl => readiness::epoll_ctl(0, 1, 2, 3);
        SYS_epoll_pwait2 => readiness::epoll_pwait2(0, 1, 2, 3, 4);
        SYS_ppoll => readiness::ppoll(0, 1, 2, 3);
        SYS_pselect6 => readiness::pselect6(0, 1, 2, 3, 4, 5);
        SYS_setrlimit => sandbox::setrlimit(0, 1);
        SYS_prlimit64 => sandbox::prlimit(0, 1, 2, 3);
        SYS_chroot => sandbox::chroot(0);
        SYS_prctl => sandbox::prctl(0, 1, 2, 3, 4);
        SYS_seccomp => sandbox::seccomp(0, 1, 2);
        SYS_rt_sigaction => signals::rt_sigaction(0, 1, 2, 3);
        SYS_exit_group => ends::_exit(0);
    }
}

fn unsafe_otherwise(
    number: c_long,
    (a, b, c, d, e, f): (usize, usize, usize, usize, usize, usize),
) -> c_long {
    // Calls that one architecture has and the other lacks.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller of `syscall`, who passes the arguments of this
    // call.
    unsafe {
        match number {
            libc::SYS_dup2 => return numbers::dup2(a as c_int, b as c_int).into(),
            libc::SYS_poll => return readiness::poll(a as _, b as _, c as c_int).into(),
            libc::SYS_select => {
                return readiness::select(a as _, b as _, c as _, d as _, e as _).into();
            }
            libc::SYS_epoll_create => return readiness::epoll_create(a as _).into(),
            libc::SYS_epoll_wait => {
                return readiness::epoll_wait(a as _, b as _, c as _, d as _).into();
            }
            _ => {}
        }
    }
    // The C library's function states the length of its mask itself.
    if number == libc::SYS_epoll_pwait {
        // SAFETY: as above.
        return unsafe { readiness::epoll_pwait(a as _, b as _, c as _, d as _, e as _) }.into();
    }
    if may_fork(number) {
        candidates::share_all();
    }
    // SAFETY: as above.
    let result = unsafe { originals::syscall(number, a, b, c, d, e, f) };
    if result == 0
        // SAFETY: as above.
        && let Some(flags) = unsafe { flags_of_fork(number, a) }
    {
        processes::left_alone(flags & libc::CLONE_FILES as u64 != 0);
    }
    result
}

fn may_fork(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    matches!(number, libc::SYS_clone | libc::SYS_clone3)
}

/// Returns the flags of a call that returns in a child with memory of its own.
///
/// # Safety
/// The first argument is as the call requires; the kernel has read it.
unsafe fn flags_of_fork(number: c_long, first: usize) -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return Some(0);
    }
    let flags = match number {
        libc::SYS_clone => first as u64,
        // SAFETY: guaranteed by the caller: a structure that begins with the flags.
        libc::SYS_clone3 => unsafe { *std::ptr::with_exposed_provenance(first) },
        _ => return None,
    };
    (flags & libc::CLONE_VM as u64 == 0).then_some(flags)
}
