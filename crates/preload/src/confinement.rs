//! Programs that confine themselves while they have sockets that are the stack's or may become
//! so.
//!
//! After confinement the resources of a stack may be out of reach, so the stack is created
//! before. If its calls would be forbidden, either it has no sockets, or the program receives
//! an error in place of the confinement.

use tidewall::listener_holders::note_accepting;
use tidewall_device::afxdp::leave_packet_sockets;
use tidewall_posix::{Errno, Posix, Result};
use tidewall_sys::option;
use tidewall_sys::priority::leave_priorities;

use crate::candidates::{self, Kind};
use crate::needed::{Confinement, For};
use crate::process::{self, inside, is_inside};
use crate::promote::{
    attended_to, interface, is_over, local_address, promoting, set_over, stack, start_helper,
};
use crate::raw;
use crate::report::{Verdict, record};
use crate::watch::Attention;

/// Called when the program is about to lose access to the resources of a stack. Creates the
/// stack now, if any socket waits for peers. No socket becomes the stack's yet.
pub(crate) fn before() {
    if is_over() || is_inside() || process::posix().is_some() {
        return;
    }
    if waiting().next().is_some() {
        complete();
    }
}

/// Creates the stack now, with everything that it otherwise creates with its first
/// sockets.
fn complete() {
    promoting(|| {
        if let Some(posix) = stack() {
            start_helper(posix);
            let _ = raw::unconnected();
        }
    });
}

/// Confines the program, in all its threads or the calling one, by `install`. Returns the
/// result of `install`, or EINVAL if sockets of the stack could not continue.
pub(crate) fn confine(
    confinement: &Confinement<'_>,
    all_threads: bool,
    install: impl FnOnce() -> Result<i32>,
) -> Result<i32> {
    let refuses = |what| confinement.refuses(what).is_some();
    let (priorities, segments) = (refuses(For::Priorities), refuses(For::Segments));
    let install = || {
        let left_before = priorities.then(|| leave_priorities(true));
        let sockets_before = segments.then(|| leave_packet_sockets(true));
        let installed = install();
        if installed.is_err() {
            left_before.map(leave_priorities);
            sockets_before.map(leave_packet_sockets);
        }
        installed
    };
    let Some((interface, managed)) = interface().filter(|_| !is_inside()) else {
        return install();
    };
    if is_over() && process::posix().is_none() {
        return install();
    }
    let sockets = confinement.refuses(For::Sockets);
    let sockets = sockets.or_else(|| confinement.refuses(For::Embedded).filter(|_| !managed));
    let making = confinement.refuses(For::Making);
    let data = confinement.refuses(For::Data);
    // The stack's own threads make all of these calls.
    let data = data.or(sockets.or(making).filter(|_| all_threads));
    let why = |call| format!("the program's filter of system calls refuses {call}(2)");
    if let Some(call) = data {
        return without(interface, &why(call), all_threads, install);
    }
    if is_over() || sockets.or(making).is_none() {
        return install();
    }
    let waiting: Vec<_> = waiting().collect();
    if !waiting.is_empty() || sockets.is_none() {
        complete();
    }
    if making.is_some() && process::posix().is_none() {
        // Otherwise it would be created again once a manager runs.
        set_over(true);
    }
    if let Some(call) = sockets {
        for fd in waiting {
            let _ = attended_to(fd, Attention::Last);
        }
        promoting(|| {
            set_over(true);
            record(Verdict::Kernel, "later sockets", "", why(call));
        });
    }
    install()
}

/// From `install` on, which forbids the calls they need, there is no stack, and no report.
fn without(
    interface: &str,
    why: &str,
    all_threads: bool,
    install: impl FnOnce() -> Result<i32>,
) -> Result<i32> {
    let was_over = is_over();
    let in_use = |posix: &Posix| all_threads || !posix.descriptors().is_empty();
    let goes_on = promoting(|| {
        if process::posix().is_some_and(in_use) {
            record(Verdict::NoFilter, "", interface, why);
            return false;
        }
        set_over(true);
        process::set_present(false);
        true
    });
    if !goes_on {
        return Err(Errno(libc::EINVAL));
    }
    inside(|| {
        for fd in waiting() {
            let what = match candidates::kind(fd) {
                Some(Kind::Stream) => "listener",
                _ => "datagrams",
            };
            let Some(socket) = raw::borrow(fd) else {
                continue;
            };
            if let Some(local) = local_address(socket) {
                record(Verdict::Kernel, what, local, why);
            }
            if what == "listener" {
                // The call that this needs may be refused afterwards.
                note_accepting(socket);
            }
        }
        record(Verdict::Kernel, "later sockets", "", why);
    });
    let installed = install();
    if installed.is_err() {
        process::set_present(true);
        set_over(was_over);
    }
    installed
}

/// Returns the descriptors of sockets that wait for peers.
fn waiting() -> impl Iterator<Item = i32> {
    candidates::all().filter(|&fd| waits(fd))
}

/// Returns true for a listener, or a bound datagram socket, that may become the stack's.
fn waits(fd: i32) -> bool {
    let Some(socket) = raw::borrow(fd) else {
        return false;
    };
    match candidates::kind(fd) {
        Some(Kind::Stream) => {
            option(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|on| on == 1)
        }
        Some(Kind::Datagram) => local_address(socket).is_some_and(|local| local.port() != 0),
        None => false,
    }
}
