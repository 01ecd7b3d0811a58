//! io_uring, which cannot reach sockets of the stack. Programs that request it by liburing or
//! `syscall` find that it does not exist, and can fall back to epoll.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;

use crate::process::is_inside;
use crate::promote::may_promote;

/// Returns the function of that name in the libraries after this one.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: passes a name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Functions of liburing that create a ring; errors are negative numbers.
macro_rules! refused {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let name = concat!(stringify!($name), "\0").as_bytes();
            let name = CStr::from_bytes_with_nul(name).ok();
            match name.and_then(next) {
                Some(function) if !may_promote() || is_inside() => {
                    type Call = unsafe extern "C" fn($($type),*) -> c_int;
                    // SAFETY: liburing's function of that name, and the caller's arguments.
                    unsafe { core::mem::transmute::<*mut c_void, Call>(function)($($argument),*) }
                }
                _ => -libc::ENOSYS,
            }
        }
    )*};
}

refused! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, length: usize);
}

/// Reports the features of a ring; liburing creates one to find them.
#[unsafe(no_mangle)]
unsafe extern "C" fn io_uring_get_probe() -> *mut c_void {
    match next(c"io_uring_get_probe") {
        Some(function) if !may_promote() || is_inside() => {
            type Call = unsafe extern "C" fn() -> *mut c_void;
            // SAFETY: liburing's function of that name.
            unsafe { core::mem::transmute::<*mut c_void, Call>(function)() }
        }
        _ => ptr::null_mut(),
    }
}
