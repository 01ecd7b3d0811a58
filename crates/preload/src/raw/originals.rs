//! The C library's original functions, under the names that this library replaces.
//!
//! They are looked up once, when the library is loaded. Constructors of other libraries
//! may call earlier; then the first call looks its function up. These are C library
//! functions, not system calls: they are cancellation points, and another preloaded
//! library may come next.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use super::processes::Function;
use super::stdio::Functions;

pub(super) struct Symbol {
    name: &'static str,
    address: AtomicPtr<c_void>,
}

/// Replaces a function that the C library lacks.
extern "C" fn missing() -> isize {
    super::fail(libc::ENOSYS);
    -1
}

impl Symbol {
    const fn new(name: &'static str) -> Self {
        Symbol {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline]
    pub(super) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        match address.is_null() {
            true => self.resolve(),
            false => address,
        }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) };
        let address = match found.is_null() {
            true => missing as *mut c_void,
            false => found,
        };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Declares each function once: where it is, and a call of it.
macro_rules! originals {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod symbols {
            use super::Symbol;
            $(pub(super) static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0"));)*
            pub(super) static ALL: &[&Symbol] = &[$(&$name),*];
        }
        $(
            #[allow(non_snake_case)]
            /// The C library's function.
            ///
            /// # Safety
            /// As the C library requires.
            #[inline]
            pub(in crate::raw) unsafe fn $name($($argument: $type),*) -> $result {
                // A thread may unwind out of those that are cancellation points.
                type Call = unsafe extern "C-unwind" fn($($type),*) -> $result;
                let address = symbols::$name.address();
                // SAFETY: the C library's function of that name, or one that reads no
                // argument and returns −1, which each of these types can hold.
                let call = unsafe { core::mem::transmute::<*mut c_void, Call>(address) };
                // SAFETY: guaranteed by the caller.
                unsafe { call($($argument),*) }
            }
        )*
    };
}

/// Looks up all of them.
pub(super) fn resolve() {
    for symbol in symbols::ALL {
        symbol.resolve();
    }
}

originals! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t;
    fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t;
    fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn send(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, buffer: *const c_void, length: usize, flags: c_int, address: *const sockaddr, address_length: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn close(fd: c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn creat(path: *const c_char, mode: c_uint) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn eventfd(value: c_uint, flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(number: c_int, signals: *const sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn pipe(numbers: *mut c_int) -> c_int;
    fn pipe2(numbers: *mut c_int, flags: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, numbers: *mut c_int) -> c_int;
    fn fclose(stream: *mut libc::FILE) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, number: c_int) -> c_int;
    fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, signals: *const sigset_t) -> c_int;
    fn ppoll(list: *mut pollfd, count: nfds_t, timeout: *const timespec, signals: *const sigset_t) -> c_int;
    fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, signals: *const sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, signals: *const sigset_t) -> c_int;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> ssize_t;
    fn splice(from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, length: usize, flags: c_uint) -> ssize_t;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int;
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    fn prlimit(process: libc::pid_t, resource: c_uint, limit: *const libc::rlimit, old: *mut libc::rlimit) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn _Fork() -> libc::pid_t;
    fn clone(function: Option<Function>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_number: usize, local: usize, child_number: usize) -> c_int;
    fn _exit(status: c_int) -> c_int;
    fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut libc::FILE;
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn __chk_fail() -> c_int;
}
