//! C library streams over sockets of the stack. The C library reads and writes by itself,
//! so it is passed functions for that.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{FILE, off64_t, ssize_t};

use super::{data, originals};
use crate::process::{inside, ours};

/// `cookie_io_functions_t` of stdio.h.
#[repr(C)]
pub(super) struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, usize) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

/// Returns the descriptor, which is the cookie.
fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn read(
    cookie: *mut c_void,
    buffer: *mut c_char,
    length: usize,
) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { data::read(number(cookie), buffer.cast(), length) }
}

unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    buffer: *const c_char,
    length: usize,
) -> ssize_t {
    // SAFETY: the C library's buffer. It expects 0 for an error.
    unsafe { data::write(number(cookie), buffer.cast(), length) }.max(0)
}

/// Streams that were created here, with their descriptors, to be flushed when the program
/// ends. The C library flushes after this library has ended.
static STREAMS: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());

/// Keeps other threads from creating or closing a stream.
pub(super) fn hold() -> MutexGuard<'static, Vec<(c_int, usize)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
}

/// Flushes the streams, except those that another thread uses.
pub(super) fn flush() {
    let streams = inside(|| hold().clone());
    for (_, stream) in streams {
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: the program has not closed it. A program that closes it while it ends gets
        // no more than the C library would offer.
        unsafe {
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            }
        }
    }
}

/// Fails as on every socket; without it the C library's own call leaves no error.
unsafe extern "C" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    super::fail(libc::ESPIPE);
    -1
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    inside(|| hold().retain(|&(fd, _)| fd != number(cookie)));
    // SAFETY: closes the descriptor of the stream.
    unsafe { super::numbers::close(number(cookie)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if ours(fd).is_none() {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::fdopen(fd, mode) };
    }
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    let cookie = std::ptr::without_provenance_mut(fd as usize);
    // SAFETY: the functions match the cookie; the mode is the caller's.
    let stream = unsafe { originals::fopencookie(cookie, mode, functions) };
    if !stream.is_null() {
        inside(|| hold().push((fd, stream.expose_provenance())));
    }
    stream
}

/// The C library's variable argument list (`va_list`), where that is a pointer: on x86-64
/// to an array of one.
#[cfg(target_arch = "x86_64")]
mod print {
    use std::ffi::{c_char, c_int, c_void};

    use super::{data, originals, ours};

    unsafe extern "C" {
        fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
        fn __vasprintf_chk(
            text: *mut *mut c_char,
            flag: c_int,
            format: *const c_char,
            list: *mut c_void,
        ) -> c_int;
    }

    /// Writes all of a text that the C library has formatted.
    ///
    /// # Safety
    /// The text is `length` bytes from malloc, unless that is negative.
    unsafe fn put(fd: c_int, text: *mut c_char, length: c_int) -> c_int {
        let Ok(count) = usize::try_from(length) else {
            return -1;
        };
        let mut written = 0;
        let mut result = length;
        while written < count {
            // SAFETY: the rest of the text.
            match unsafe { data::write(fd, text.add(written).cast(), count - written) } {
                sent @ 1.. => written += sent as usize,
                _ => {
                    result = -1;
                    break;
                }
            }
        }
        let errno = std::io::Error::last_os_error().raw_os_error();
        // SAFETY: from malloc, and not used any more.
        unsafe { libc::free(text.cast()) };
        super::super::fail(errno.unwrap_or(0));
        result
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn vdprintf(
        fd: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int {
        if ours(fd).is_none() {
            // SAFETY: guaranteed by the caller.
            return unsafe { originals::vdprintf(fd, format, list) };
        }
        let mut text = std::ptr::null_mut();
        // SAFETY: the caller's format and list, and a place for the text.
        unsafe {
            let length = vasprintf(&raw mut text, format, list);
            put(fd, text, length)
        }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn __vdprintf_chk(
        fd: c_int,
        flag: c_int,
        format: *const c_char,
        list: *mut c_void,
    ) -> c_int {
        if ours(fd).is_none() {
            // SAFETY: guaranteed by the caller.
            return unsafe { originals::__vdprintf_chk(fd, flag, format, list) };
        }
        let mut text = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe {
            let length = __vasprintf_chk(&raw mut text, flag, format, list);
            put(fd, text, length)
        }
    }

    /// A variadic function with that many fixed arguments. It passes their list in register
    /// `$place` to another function. The argument registers are saved and described as the
    /// System V ABI defines (AMD64, 3.5.7).
    macro_rules! variadic {
        ($name:ident, $fixed:literal, $place:literal, $function:ident) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() -> c_int {
                core::arch::naked_asm!(
                    "endbr64",
                    "sub rsp, 216",
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    // gp_offset, fp_offset, overflow_arg_area, reg_save_area.
                    concat!("mov dword ptr [rsp], ", $fixed),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $place, ", rsp"),
                    "call {function}",
                    "add rsp, 216",
                    "ret",
                    function = sym $function,
                )
            }
        };
    }

    // The offset of the first variable argument, 8 bytes each, and the register of the list.
    variadic!(dprintf, 16, "rdx", vdprintf);
    variadic!(__dprintf_chk, 24, "rcx", __vdprintf_chk);
}
