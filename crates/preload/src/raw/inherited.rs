//! Detects a seccomp filter that was installed before the program. Such a filter cannot be
//! read, so a child process tries the calls.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;
use tidewall_device::afxdp::leave_packet_sockets;
use tidewall_sys::priority::leave_priorities;

use super::originals;
use crate::needed::{Needed, needed};

/// Returns the order of the trials: calls that a report needs, then all, and last those
/// that the stack works without.
fn in_order() -> impl Iterator<Item = &'static Needed> {
    let of_reports = needed().filter(|it| it.is_of_reports());
    let last = needed().filter(|it| it.may_be_left());
    let all = needed().filter(|it| !it.may_be_left());
    of_reports.chain(all).chain(last)
}

/// Returns the name of a call that the stack makes and this thread may not; and whether the
/// thread may make the calls that a report needs.
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
    // SAFETY: long enough for one, all zero, and mapped until both processes are done
    // with it.
    let tried = unsafe { &*place.cast::<AtomicUsize>() };
    // SAFETY: as fork(2), but the child's end sends no signal, and no `wait` of the
    // program sees it. The child makes only system calls, and ends.
    let child = unsafe { originals::syscall(libc::SYS_clone, 0, 0, 0, 0, 0, 0) } as c_int;
    match child {
        0 => try_all(tried),
        -1 => return Some(("clone", false)),
        _ => {}
    }
    // SAFETY: waits for this child, without its status.
    while unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) } == -1
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
    let last = tried.load(Ordering::Relaxed);
    // SAFETY: unmaps what was mapped; no reference to it is used any more.
    unsafe { libc::munmap(place, length) };
    let may_report = last >= needed().filter(|it| it.is_of_reports()).count();
    let refused = in_order().nth(last)?;
    if refused.may_be_left() {
        // The calls for segments come last; they were not tried if an earlier one was refused.
        leave_packet_sockets(true);
        leave_priorities(!refused.is_for_segments());
        return None;
    }
    Some((refused.name(), may_report))
}

/// Runs in the child: counts how many calls may be made. A call that ends the child is
/// not counted.
fn try_all(tried: &AtomicUsize) -> ! {
    for (index, needed) in in_order().enumerate() {
        tried.store(index, Ordering::Relaxed);
        let Some((number, [a, b, c, d, e, f])) = needed.harmless() else {
            continue;
        };
        // SAFETY: the call has no descriptor and no memory.
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
