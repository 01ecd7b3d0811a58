//! A filter of system calls that was there before the program: nobody may read it, so a child
//! tries.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;
use tidewall_device::afxdp::leave_packet_sockets;
use tidewall_sys::priority::leave_priorities;

use super::originals;
use crate::needed::{Needed, needed};

/// What is tried: what a report calls for, then all, and last what the stack works without.
fn in_order() -> impl Iterator<Item = &'static Needed> {
    let of_reports = needed().filter(|it| it.is_of_reports());
    let last = needed().filter(|it| it.may_be_left());
    let all = needed().filter(|it| !it.may_be_left());
    of_reports.chain(all).chain(last)
}

/// The name of a call that the stack makes, and that this thread may not make; whether it may
/// make those that a report calls for.
pub(super) fn refused() -> Option<(&'static str, bool)> {
    let (access, how) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    let length = size_of::<AtomicUsize>();
    // SAFETY: new memory, shared with the child.
    let place = unsafe { libc::mmap(ptr::null_mut(), length, access, how, -1, 0) };
    if place == libc::MAP_FAILED {
        return Some(("mmap", false));
    }
    // SAFETY: as long as one, all zero, and mapped until both are done with it.
    let tried = unsafe { &*place.cast::<AtomicUsize>() };
    // SAFETY: fork(2), but that the child's end is nobody's signal and no `wait` of the
    // program's: it makes system calls alone, and ends.
    let child = unsafe { originals::syscall(libc::SYS_clone, 0, 0, 0, 0, 0, 0) } as c_int;
    match child {
        0 => try_all(tried),
        -1 => return Some(("clone", false)),
        _ => {}
    }
    // SAFETY: of this child, whose status is not asked for.
    while unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) } == -1
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
    let last = tried.load(Ordering::Relaxed);
    // SAFETY: what was mapped, of which no reference is used any more.
    unsafe { libc::munmap(place, length) };
    let may_report = last >= needed().filter(|it| it.is_of_reports()).count();
    let refused = in_order().nth(last)?;
    if refused.may_be_left() {
        // The calls for segments come last, and were not tried where an earlier one was refused.
        leave_packet_sockets(true);
        leave_priorities(!refused.is_for_segments());
        return None;
    }
    Some((refused.name(), may_report))
}

/// In the child: how many may be made. One that ends the child is not counted.
fn try_all(tried: &AtomicUsize) -> ! {
    for (index, needed) in in_order().enumerate() {
        tried.store(index, Ordering::Relaxed);
        let Some((number, [a, b, c, d, e, f])) = needed.harmless() else {
            continue;
        };
        // SAFETY: it has no descriptor, and no memory.
        let result = unsafe { originals::syscall(number, a, b, c, d, e, f) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        if result == -1 && !needed.is_allowed(errno) {
            exit();
        }
    }
    tried.store(usize::MAX, Ordering::Relaxed);
    exit()
}

fn exit() -> ! {
    loop {
        // SAFETY: ends the child.
        unsafe { originals::syscall(libc::SYS_exit_group, 0, 0, 0, 0, 0, 0) };
    }
}
