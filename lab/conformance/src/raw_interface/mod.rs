//! The C interface by which the public packetdrill tool drives a TCP in a library
//! (`--so_filename`). It is a table of functions, filled in by
//! `packetdrill_interface_init`, over one host with a virtual clock.
//!
//! The library itself, `libtidewall_packetdrill.so`, is the example of that name;
//! docs/tcp.md describes its use. Everything is written from the interface's documented
//! meaning; this repository contains nothing of the tool.
//!
//! - No call waits for real time, see `machine`.
//! - Kernel parameters and the MTU are those of the network namespace, read whenever a
//!   socket is created, listens or connects; see `environment`.
//! - The device accepts no packet while its queueing discipline accepts none (`pfifo
//!   limit 0`). This is checked at each output; see `device`.
//! - Descriptors that do not belong to the host (pipes, files) are kernel descriptors.
//! - A panic ends the call with EFAULT; it never reaches C.
//!
//! `calls` has the table and the socket calls, `transfer` those that read and write,
//! `events` those that wait or move time and packets. `device` queries the device, and
//! `raw_kernel` has the kernel's calls. The functions take C's arguments as
//! [`tidewall_posix::raw`] describes them, and references where the representation is the
//! same.

mod calls;
mod device;
mod environment;
mod events;
mod machine;
#[allow(unsafe_code)]
mod raw_kernel;
#[cfg(test)]
#[allow(unsafe_code)]
mod raw_tests;
mod transfer;

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong};
use core::mem::MaybeUninit;
use core::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libc::{epoll_event, nfds_t, off64_t, size_t, socklen_t, ssize_t, timeval};
use tidewall_posix::PollFd;
use tidewall_posix::raw::{Buffer, Count, Message, Place, Pointer, Text};

use environment::Flags;
use machine::Machine;

use crate::host::FIRST_FD;

/// The machine created last, for calls without a table (see [`getsockopt`]).
static LAST: Mutex<Weak<Machine>> = Mutex::new(Weak::new());

/// The host of a table, as passed to each of its functions.
#[derive(Clone)]
pub struct Userdata(Arc<Machine>);

impl core::fmt::Debug for Userdata {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Userdata").finish_non_exhaustive()
    }
}

impl Deref for Userdata {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

/// `struct packetdrill_interface`, field by field. C's ellipsis is replaced with the one
/// argument that is ever passed: the calling conventions of Linux on x86-64 and aarch64
/// pass both alike.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Interface {
    pub userdata: Box<Userdata>,
    pub free: extern "C" fn(Option<Box<Userdata>>),
    pub socket: extern "C" fn(&Userdata, c_int, c_int, c_int) -> c_int,
    pub bind:
        for<'a> extern "C" fn(&Userdata, c_int, Pointer<'a, u8>, Count<'a, socklen_t>) -> c_int,
    pub listen: extern "C" fn(&Userdata, c_int, c_int) -> c_int,
    pub accept: for<'a> extern "C" fn(
        &Userdata,
        c_int,
        Place<'a>,
        Option<&mut Count<'a, socklen_t>>,
    ) -> c_int,
    pub connect:
        for<'a> extern "C" fn(&Userdata, c_int, Pointer<'a, u8>, Count<'a, socklen_t>) -> c_int,
    pub read: for<'a> extern "C" fn(&Userdata, c_int, Place<'a>, Count<'a, size_t>) -> ssize_t,
    pub readv:
        for<'a> extern "C" fn(&Userdata, c_int, Pointer<'a, Buffer>, Count<'a, c_int>) -> ssize_t,
    pub recv:
        for<'a> extern "C" fn(&Userdata, c_int, Place<'a>, Count<'a, size_t>, c_int) -> ssize_t,
    pub recvfrom: for<'a, 'b> extern "C" fn(
        &Userdata,
        c_int,
        Place<'a>,
        Count<'a, size_t>,
        c_int,
        Place<'b>,
        Option<&mut Count<'b, socklen_t>>,
    ) -> ssize_t,
    pub recvmsg: extern "C" fn(&Userdata, c_int, Option<&mut Message>, c_int) -> ssize_t,
    pub write:
        for<'a> extern "C" fn(&Userdata, c_int, Pointer<'a, u8>, Count<'a, size_t>) -> ssize_t,
    pub writev:
        for<'a> extern "C" fn(&Userdata, c_int, Pointer<'a, Buffer>, Count<'a, c_int>) -> ssize_t,
    pub send: for<'a> extern "C" fn(
        &Userdata,
        c_int,
        Pointer<'a, u8>,
        Count<'a, size_t>,
        c_int,
    ) -> ssize_t,
    pub sendto: for<'a, 'b> extern "C" fn(
        &Userdata,
        c_int,
        Pointer<'a, u8>,
        Count<'a, size_t>,
        c_int,
        Pointer<'b, u8>,
        Count<'b, socklen_t>,
    ) -> ssize_t,
    pub sendmsg: extern "C" fn(&Userdata, c_int, Option<&Message>, c_int) -> ssize_t,
    pub fcntl: extern "C" fn(&Userdata, c_int, c_int, c_long) -> c_int,
    pub ioctl: extern "C" fn(&Userdata, c_int, c_ulong, Option<&mut c_int>) -> c_int,
    pub close: extern "C" fn(&Userdata, c_int) -> c_int,
    pub shutdown: extern "C" fn(&Userdata, c_int, c_int) -> c_int,
    pub getsockopt: for<'a> extern "C" fn(
        &Userdata,
        c_int,
        c_int,
        c_int,
        Place<'a>,
        Option<&mut Count<'a, socklen_t>>,
    ) -> c_int,
    pub setsockopt: for<'a> extern "C" fn(
        &Userdata,
        c_int,
        c_int,
        c_int,
        Pointer<'a, u8>,
        Count<'a, socklen_t>,
    ) -> c_int,
    pub poll:
        for<'a> extern "C" fn(&Userdata, Pointer<'a, PollFd>, Count<'a, nfds_t>, c_int) -> c_int,
    pub netdev_send: for<'a> extern "C" fn(&Userdata, Pointer<'a, u8>, Count<'a, size_t>) -> c_int,
    pub netdev_receive: for<'a> extern "C" fn(
        &Userdata,
        Place<'a>,
        Option<&mut Count<'a, size_t>>,
        Option<&mut MaybeUninit<c_longlong>>,
    ) -> c_int,
    pub usleep: extern "C" fn(&Userdata, c_uint) -> c_int,
    pub gettimeofday:
        extern "C" fn(&Userdata, Option<&mut MaybeUninit<timeval>>, Pointer<'_, u8>) -> c_int,
    pub epoll_create: extern "C" fn(&Userdata, c_int) -> c_int,
    pub epoll_ctl: extern "C" fn(&Userdata, c_int, c_int, c_int, Option<&epoll_event>) -> c_int,
    pub epoll_wait: for<'a> extern "C" fn(
        &Userdata,
        c_int,
        Pointer<'a, MaybeUninit<epoll_event>>,
        Count<'a, c_int>,
        c_int,
    ) -> c_int,
    pub pipe: extern "C" fn(&Userdata, Option<&mut MaybeUninit<[c_int; 2]>>) -> c_int,
    pub splice: extern "C" fn(
        &Userdata,
        c_int,
        Option<&mut off64_t>,
        c_int,
        Option<&mut off64_t>,
        size_t,
        c_uint,
    ) -> ssize_t,
}

/// Fills in the table for a new host. `flags` is the content of `--so_flags`
/// (`local=ADDRESS`, `mtu=BYTES`, `interface=NAME`, separated by commas). Does nothing if
/// memory or descriptors are exhausted.
pub fn initialize(flags: Text<'_>, interface: Option<&mut MaybeUninit<Interface>>) {
    let text = flags.get().unwrap_or_default().to_string_lossy();
    let machine = Machine::new(Flags::parse(&text));
    if let (Ok(machine), Some(interface)) = (machine, interface) {
        let machine = Arc::new(machine);
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&machine);
        interface.write(calls::table(Box::new(Userdata(machine))));
    }
}

/// The machine created last, if it still exists.
fn last() -> Option<Arc<Machine>> {
    LAST.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .upgrade()
}

/// `getsockopt(2)` for a process that has loaded this library before its C library
/// (`LD_PRELOAD`). Descriptors of the host created last belong to that host, all others
/// to the kernel. The tool reads `TCP_INFO` for its assertions in this way, without the
/// table.
pub fn getsockopt<'a>(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) -> c_int {
    match last().filter(|machine| machine.owns(fd)) {
        Some(machine) => calls::get_option(&machine, fd, level, option, value, length),
        None => raw_kernel::getsockopt(fd, level, option, value, length),
    }
}

/// `sendfile(2)`, like [`getsockopt`]: from the kernel's file to the host's socket.
pub fn sendfile(to: c_int, from: c_int, offset: Option<&mut off64_t>, count: size_t) -> ssize_t {
    match last().filter(|machine| machine.owns(to)) {
        Some(machine) => events::send_file(&machine, to, from, offset, count),
        None => calls::guarded(|| raw_kernel::sendfile(to, from, offset, count)),
    }
}

/// `close(2)`, like [`getsockopt`]: the tool closes the descriptors that a script left
/// open in this way.
pub fn close(fd: c_int) -> c_int {
    if fd >= FIRST_FD
        && let Some(machine) = last()
        && machine.call(|posix| posix.close(fd)).is_ok()
    {
        return 0;
    }
    calls::guarded(|| raw_kernel::close(fd)) as c_int
}
