//! The functions of the table that wait, move time and packets, or join sockets
//! with files.

use core::ffi::{c_int, c_longlong, c_uint, c_void};
use core::time::Duration;

use libc::{epoll_event, nfds_t, off64_t, pollfd, size_t, ssize_t, timeval};

use super::machine::Machine;
use super::raw_calls::{guarded, kernel, machine, owns, set_errno};
use super::raw_transfer::{receive, transmit};
use tidewall_posix::raw::{bytes, bytes_mut, elements};
use tidewall_posix::{Errno, PollFd};

pub(super) unsafe extern "C" fn poll(
    userdata: *mut c_void,
    descriptors: *mut pollfd,
    count: nfds_t,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many as the caller says.
        let given = unsafe { elements(descriptors.cast_const(), count as usize) };
        let mut polled: Vec<PollFd> = given
            .iter()
            .map(|descriptor| PollFd {
                fd: descriptor.fd,
                events: descriptor.events,
                revents: 0,
            })
            .collect();
        let ready = machine.call(|posix| posix.poll(&mut polled, milliseconds))?;
        for (index, descriptor) in polled.iter().enumerate() {
            // SAFETY: within the caller's array.
            unsafe { (*descriptors.add(index)).revents = descriptor.revents };
        }
        Ok(ready)
    }) as c_int
}

pub(super) unsafe extern "C" fn netdev_send(
    userdata: *mut c_void,
    packet: *const c_void,
    length: size_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many bytes as the caller says.
        let packet = unsafe { bytes(packet, length) };
        machine.packet_in(packet);
        Ok(0)
    }) as c_int
}

pub(super) unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    place: *mut c_void,
    length: *mut size_t,
    microseconds: *mut c_longlong,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if length.is_null() || microseconds.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let Some((at, packet)) = machine.receive() else {
            // SAFETY: not null.
            unsafe { length.write_unaligned(0) };
            return Ok(0);
        };
        // SAFETY: not null, and says how long the place is.
        let room = unsafe { length.read_unaligned() };
        // SAFETY: as many bytes as the caller says.
        let place = unsafe { bytes_mut(place, room) };
        for (place, byte) in place.iter_mut().zip(&packet) {
            *place = *byte;
        }
        // SAFETY: neither is null.
        unsafe {
            length.write_unaligned(packet.len().min(room));
            microseconds.write_unaligned(at.as_micros() as c_longlong);
        }
        Ok(0)
    }) as c_int
}

pub(super) unsafe extern "C" fn usleep(userdata: *mut c_void, microseconds: c_uint) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.sleep(Duration::from_micros(microseconds.into()));
        Ok(0)
    }) as c_int
}

pub(super) unsafe extern "C" fn gettimeofday(
    userdata: *mut c_void,
    place: *mut timeval,
    _zone: *mut c_void,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // Asked for after a call, whose errno is looked at later.
    let errno = std::io::Error::last_os_error().raw_os_error();
    let result = guarded(|| {
        let time = machine.time();
        if !place.is_null() {
            let time = timeval {
                tv_sec: time.as_secs() as _,
                tv_usec: time.subsec_micros().into(),
            };
            // SAFETY: not null.
            unsafe { place.write_unaligned(time) };
        }
        Ok(0)
    });
    set_errno(errno.unwrap_or(0));
    result as c_int
}

pub(super) unsafe extern "C" fn epoll_create(userdata: *mut c_void, size: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let fd = machine.call(|posix| match size {
            1.. => posix.epoll_create1(0),
            _ => Err(Errno(libc::EINVAL)),
        })?;
        Ok(fd as usize)
    }) as c_int
}

pub(super) unsafe extern "C" fn epoll_ctl(
    userdata: *mut c_void,
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let event = (!event.is_null()).then(|| {
            // SAFETY: not null.
            let event = unsafe { event.read_unaligned() };
            (event.events, event.u64)
        });
        machine.call(|posix| posix.epoll_ctl(set, operation, fd, event))?;
        Ok(0)
    }) as c_int
}

pub(super) unsafe extern "C" fn epoll_wait(
    userdata: *mut c_void,
    set: c_int,
    place: *mut epoll_event,
    limit: c_int,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let limit = limit.max(0) as usize;
        let told = machine.call(|posix| posix.epoll_wait(set, limit, milliseconds))?;
        if place.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        for (index, event) in told.iter().enumerate() {
            let event = epoll_event {
                events: event.0,
                u64: event.1,
            };
            // SAFETY: no more than the caller has room for.
            unsafe { place.add(index).write_unaligned(event) };
        }
        Ok(told.len())
    }) as c_int
}

/// The kernel's pipe: only a socket is under test.
pub(super) unsafe extern "C" fn pipe(_userdata: *mut c_void, fds: *mut c_int) -> c_int {
    // SAFETY: the caller's array of two.
    unsafe { libc::pipe(fds) }
}

pub(super) unsafe extern "C" fn splice(
    userdata: *mut c_void,
    from: c_int,
    _from_offset: *mut off64_t,
    to: c_int,
    _to_offset: *mut off64_t,
    length: size_t,
    _flags: c_uint,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // A pipe takes 64 KB before it blocks.
        let length = length.min(65_536);
        if owns(machine, from) {
            let data = receive(machine, from, length, 0)?;
            // SAFETY: our own bytes.
            return kernel(unsafe { libc::write(to, data.as_ptr().cast(), data.len()) });
        }
        let mut data = vec![0; length];
        // SAFETY: our own bytes.
        let count = kernel(unsafe { libc::read(from, data.as_mut_ptr().cast(), data.len()) })?;
        data.truncate(count);
        transmit(machine, to, &[&data], 0, None)
    })
}

/// `sendfile(2)`: from a file of the kernel's to a socket of the host's.
///
/// # Safety
/// `offset` is null or may be read and written.
pub(super) unsafe fn send_file(
    machine: &Machine,
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    count: size_t,
) -> ssize_t {
    guarded(|| {
        let mut data = vec![0; count.min(1 << 24)];
        let read = if offset.is_null() {
            // SAFETY: our own bytes.
            unsafe { libc::read(from, data.as_mut_ptr().cast(), data.len()) }
        } else {
            // SAFETY: our own bytes; the offset may be read.
            unsafe {
                let at = offset.read_unaligned();
                libc::pread64(from, data.as_mut_ptr().cast(), data.len(), at)
            }
        };
        data.truncate(kernel(read)?);
        let sent = transmit(machine, to, &[&data], 0, None)?;
        if !offset.is_null() {
            // SAFETY: the offset may be written.
            unsafe { offset.write_unaligned(offset.read_unaligned() + sent as off64_t) };
        }
        Ok(sent)
    })
}
