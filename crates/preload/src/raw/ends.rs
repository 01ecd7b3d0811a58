//! The end of the process, and of its connections with it.
//!
//! A handler that has interrupted the allocator may call `_exit`; its thread then holds the
//! allocator's locks for ever. So memory allocated meanwhile is new ([`Memory`]), and none is
//! freed. Another thread may hold a lock of the stack while it waits for the allocator; then a
//! timer ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{sigevent, sighandler_t, siginfo_t};
use tidewall_sys::SignalSet;

use super::{originals, stdio};
use crate::process::{self, inside};

/// The thread that ends the process (pthread_self(3)); 0 before.
static ENDS: AtomicUsize = AtomicUsize::new(0);
/// The connections of the process are closed.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// The exit status of the process.
static STATUS: AtomicI32 = AtomicI32::new(0);

/// Longer than the stack waits for unsent data.
const LONGEST: Duration = Duration::from_secs(3);
/// How long a thread that has called the stack stays there after connections were closed.
/// exit(3) continues with other libraries, which may wait for that thread.
const STAYS: Duration = Duration::from_secs(1);

/// Called by the dynamic linker when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    if !process::is_inside() && process::posix().is_some() {
        stdio::flush();
    }
    close_all();
}

/// Called by quick_exit(3).
pub(super) extern "C" fn end_quickly(_: *mut c_void) {
    close_all();
}

/// Closes connections as the kernel does when a process ends.
fn close_all() {
    // A child of vfork ends alone: the stack is its parent's.
    if process::is_inside() {
        return;
    }
    if let Some(posix) = process::posix() {
        // SAFETY: names the calling thread.
        let own = unsafe { libc::pthread_self() } as usize;
        let begun = ENDS.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        if begun.is_err() {
            return await_other();
        }
        inside(|| {
            // The kernel does the same to a process's sockets when it exits.
            let _ = posix.descriptors().close_range(0, u32::MAX, 0);
            posix.stack().linger();
        });
        CLOSED.store(true, Ordering::SeqCst);
    }
}

/// Waits while another thread closes them; this thread ends the process afterwards.
fn await_other() {
    let begun = Instant::now();
    while !is_ending() && !CLOSED.load(Ordering::SeqCst) && begun.elapsed() < LONGEST {
        doze();
    }
}

fn doze() {
    // SAFETY: sleeps.
    unsafe { originals::poll(ptr::null_mut(), 0, 10) };
}

/// Returns true for the thread that ends the process.
fn is_ending() -> bool {
    let ends = ENDS.load(Ordering::Relaxed);
    // SAFETY: names the calling thread.
    ends != 0 && ends == unsafe { libc::pthread_self() } as usize
}

/// Returns from a call of the stack, unless the process is ending: as on Linux, threads then
/// stop at once.
#[inline]
pub(super) fn stay_at_end() {
    if ENDS.load(Ordering::Relaxed) != 0 {
        stay();
    }
}

#[cold]
fn stay() {
    if is_ending() || process::posix().is_none() {
        return;
    }
    let mut closed = None;
    loop {
        if CLOSED.load(Ordering::SeqCst)
            && closed.get_or_insert_with(Instant::now).elapsed() > STAYS
        {
            return;
        }
        doze();
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _exit(status: c_int) -> ! {
    if !process::is_inside() && process::posix().is_some() {
        STATUS.store(status, Ordering::SeqCst);
        limit();
    }
    close_all();
    // SAFETY: guaranteed by the caller.
    unsafe { originals::_exit(status) };
    unreachable()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: guaranteed by the caller.
    unsafe { _exit(status) }
}

/// Unreachable: the process has ended.
fn unreachable() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

extern "C" fn time_is_over(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let status = STATUS.load(Ordering::SeqCst) as usize;
    // SAFETY: ends the process.
    unsafe { originals::syscall(libc::SYS_exit_group, status, 0, 0, 0, 0, 0) };
    unreachable()
}

/// Ends the process if closing its connections does not finish. Under a seccomp filter, which
/// may refuse timers, there is no limit.
fn limit() {
    if super::sandbox::has_filter() {
        return;
    }
    let signal = libc::SIGRTMAX();
    // SAFETY: all zero is an action, an event and a time.
    let (mut action, mut event, mut time): (libc::sigaction, sigevent, libc::itimerspec) =
        unsafe { core::mem::zeroed() };
    action.sa_sigaction = time_is_over as *const () as sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal;
    // SAFETY: names the calling thread.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    time.it_value.tv_sec = LONGEST.as_secs() as libc::time_t;
    let mut timer: c_int = 0;
    let clock = libc::CLOCK_MONOTONIC as usize;
    let (event, place) = ((&raw mut event) as usize, (&raw mut timer) as usize);
    // SAFETY: values on this stack; the program's own action for the signal is no longer
    // called.
    unsafe {
        originals::sigaction(signal, &raw const action, ptr::null_mut());
        let made = originals::syscall(libc::SYS_timer_create, clock, event, place, 0, 0, 0);
        if made == 0 {
            let time = (&raw const time) as usize;
            originals::syscall(libc::SYS_timer_settime, timer as usize, 0, time, 0, 0, 0);
        }
    }
    let blocked = SignalSet::empty().block().bits();
    SignalSet::from_bits(blocked & !(1 << (signal - 1))).set();
}

// ---- Memory at the end ---------------------------------------------------------

/// Bytes that the thread that ends the process may allocate. Untouched pages take no memory.
const LAST: usize = 1 << 28;
/// The start of that memory, and the next free byte; 0 before.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The C library's memory, which the thread that ends the process leaves alone.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

// SAFETY: as the system's; the last thread's allocations are new memory, and never freed.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match ENDS.load(Ordering::Relaxed) {
            // SAFETY: guaranteed by the caller.
            0 => unsafe { System.alloc(layout) },
            _ => at_end(layout),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if ENDS.load(Ordering::Relaxed) == 0 {
            // SAFETY: guaranteed by the caller.
            unsafe { System.dealloc(place, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if ENDS.load(Ordering::Relaxed) == 0 {
            // SAFETY: guaranteed by the caller.
            return unsafe { System.realloc(place, layout, size) };
        }
        // SAFETY: guaranteed by the caller: such a size has this alignment.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: two separate places of at least that many bytes.
            unsafe { ptr::copy_nonoverlapping(place, new, size.min(layout.size())) };
        }
        new
    }
}

/// The system's memory, for all threads but the last.
#[cold]
fn at_end(layout: Layout) -> *mut u8 {
    match is_ending().then(|| last(layout)).flatten() {
        Some(place) => place,
        // SAFETY: a layout that the allocator was asked for.
        None => unsafe { System.alloc(layout) },
    }
}

/// Returns `None` if none is left: the system may have some.
fn last(layout: Layout) -> Option<*mut u8> {
    if FIRST.load(Ordering::Relaxed) == 0 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory.
        let found = unsafe { libc::mmap(ptr::null_mut(), LAST, access, how, -1, 0) };
        if found == libc::MAP_FAILED {
            return None;
        }
        let first = found.expose_provenance();
        FIRST.store(first, Ordering::Relaxed);
        NEXT.store(first, Ordering::Relaxed);
    }
    let place = NEXT
        .load(Ordering::Relaxed)
        .checked_next_multiple_of(layout.align())?;
    let next = place.checked_add(layout.size())?;
    if next > FIRST.load(Ordering::Relaxed) + LAST {
        return None;
    }
    NEXT.store(next, Ordering::Relaxed);
    Some(ptr::with_exposed_provenance_mut(place))
}
