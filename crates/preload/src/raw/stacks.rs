//! Calls on a stack other than the thread's.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes that creating the stack and connections needs, in any build.
const NEEDED: usize = 256 << 10;
/// Bytes of the first thread's stack that count as available: it grows, up to
/// RLIMIT_STACK.
const MAIN: usize = 4 << 20;

/// An address in the first thread's stack, near its beginning; 0 if unknown.
static MAIN_BEGINS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The lowest and the highest address of this thread's stack.
    static BOUNDS: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// Called by the first thread, near the beginning of its stack.
pub(super) fn note_main() {
    let here = 0;
    MAIN_BEGINS.store((&raw const here).addr(), Ordering::Relaxed);
}

/// Returns the bounds of this thread's stack, as it was created.
fn bounds() -> (usize, usize) {
    let begins = MAIN_BEGINS.load(Ordering::Relaxed);
    // SAFETY: reads two numbers.
    if unsafe { libc::getpid() == libc::gettid() } && begins != 0 {
        return (begins.saturating_sub(MAIN), begins.saturating_add(MAIN));
    }
    let mut how = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (ptr::null_mut(), 0);
    // SAFETY: fills its arguments, for the calling thread.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), how.as_mut_ptr()) != 0 {
            return (0, usize::MAX);
        }
        libc::pthread_attr_getstack(how.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(how.as_mut_ptr());
    }
    (low.addr(), low.addr() + size)
}

/// Runs `call`, on a new stack if this one is small. That covers a thread with a small stack,
/// and a fiber, whose stack is unknown.
pub(crate) fn with_room<T>(call: impl FnOnce() -> T) -> T {
    let here = 0;
    let here = (&raw const here).addr();
    let known = BOUNDS.try_with(|known| {
        let found = known.get().unwrap_or_else(bounds);
        known.set(Some(found));
        found
    });
    let (low, high) = known.unwrap_or((0, usize::MAX));
    if here < high && here.checked_sub(low).is_some_and(|left| left >= NEEDED) {
        return call();
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let size = 2 * NEEDED;
    // SAFETY: new memory.
    let stack = unsafe { libc::mmap(ptr::null_mut(), size, access, how, -1, 0) };
    if stack == libc::MAP_FAILED {
        return call();
    }
    // SAFETY: as much as is needed, and used by this call alone; a call of the stack does not
    // unwind.
    let result = unsafe { call_on(stack.wrapping_byte_add(size), call) };
    // SAFETY: unmaps what was mapped, which is not used any more.
    unsafe { libc::munmap(stack, size) };
    result
}

/// Calls a function on the stack that ends at `top`.
///
/// # Safety
/// The memory below `top` is used by this call alone, and is as large as the call needs. The
/// function does not unwind; it may leave by a jump.
pub(super) unsafe fn call_on<T>(top: *mut c_void, call: impl FnOnce() -> T) -> T {
    /// The function to call, then its result.
    union Place<F, T> {
        call: ManuallyDrop<F>,
        result: ManuallyDrop<T>,
    }
    unsafe extern "C" fn begin<F: FnOnce() -> T, T>(place: *mut c_void) {
        let place = place.cast::<Place<F, T>>();
        // SAFETY: `call_on` has stored it, and waits for the result.
        unsafe {
            let call = ManuallyDrop::take(&mut (*place).call);
            let result = ManuallyDrop::new(call());
            place.write(Place { result });
        }
    }
    fn beginning<F: FnOnce() -> T, T>(_: &F) -> unsafe extern "C" fn(*mut c_void) {
        begin::<F, T>
    }
    let begin = beginning(&call);
    let mut place = Place {
        call: ManuallyDrop::new(call),
    };
    let argument = (&raw mut place).cast::<c_void>();
    let top = top.map_addr(|top| top & !15);
    // SAFETY: a callee-saved register keeps this stack's address meanwhile.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "xchg rsp, r12",
            "call {begin}",
            "mov rsp, r12",
            begin = in(reg) begin,
            in("rdi") argument,
            inout("r12") top => _,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {begin}",
            "mov sp, x20",
            top = in(reg) top,
            begin = in(reg) begin,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: on this stack, which no other code uses.
    unsafe {
        let _ = top;
        begin(argument);
    }
    // SAFETY: it has been written.
    unsafe { ManuallyDrop::into_inner(place.result) }
}
