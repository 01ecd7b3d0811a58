//! The functions of the table that wait, move time and packets, or connect sockets with
//! files.

use core::ffi::{c_int, c_longlong, c_uint};
use core::mem::MaybeUninit;
use core::time::Duration;
use std::os::fd::IntoRawFd as _;

use libc::{epoll_event, nfds_t, off64_t, size_t, ssize_t, timeval};

use super::calls::{done, guarded};
use super::machine::Machine;
use super::transfer::{receive, transmit};
use super::{Userdata, raw_kernel};
use tidewall_posix::raw::{Count, Place, Pointer};
use tidewall_posix::{Errno, PollFd, Result};

/// An argument that C must not omit.
fn there<T>(argument: Option<T>) -> Result<T> {
    argument.ok_or(Errno(libc::EFAULT))
}

pub(super) extern "C" fn poll<'a>(
    machine: &Userdata,
    descriptors: Pointer<'a, PollFd>,
    count: Count<'a, nfds_t>,
    milliseconds: c_int,
) -> c_int {
    guarded(|| {
        let descriptors = descriptors.write(count)?;
        machine.call(|posix| posix.poll(descriptors, milliseconds))
    }) as c_int
}

pub(super) extern "C" fn netdev_send<'a>(
    machine: &Userdata,
    packet: Pointer<'a, u8>,
    length: Count<'a, size_t>,
) -> c_int {
    done(|| {
        machine.packet_in(packet.read(length)?);
        Ok(())
    })
}

pub(super) extern "C" fn netdev_receive<'a>(
    machine: &Userdata,
    place: Place<'a>,
    length: Option<&mut Count<'a, size_t>>,
    microseconds: Option<&mut MaybeUninit<c_longlong>>,
) -> c_int {
    done(|| {
        let (length, microseconds) = (there(length)?, there(microseconds)?);
        let (at, mut packet) = machine.receive().unwrap_or_default();
        packet.truncate(length.get());
        microseconds.write(at.as_micros() as c_longlong);
        place.put(length, &packet)
    })
}

pub(super) extern "C" fn usleep(machine: &Userdata, microseconds: c_uint) -> c_int {
    done(|| {
        machine.sleep(Duration::from_micros(microseconds.into()));
        Ok(())
    })
}

pub(super) extern "C" fn gettimeofday(
    machine: &Userdata,
    place: Option<&mut MaybeUninit<timeval>>,
    _zone: Pointer<'_, u8>,
) -> c_int {
    // The tool asks for it after a call, and reads errno later.
    let errno = std::io::Error::last_os_error().raw_os_error();
    let result = done(|| {
        let time = machine.time();
        if let Some(place) = place {
            place.write(timeval {
                tv_sec: time.as_secs() as _,
                tv_usec: time.subsec_micros().into(),
            });
        }
        Ok(())
    });
    raw_kernel::set_errno(errno.unwrap_or(0));
    result
}

pub(super) extern "C" fn epoll_create(machine: &Userdata, size: c_int) -> c_int {
    guarded(|| {
        let fd = machine.call(|posix| match size {
            1.. => posix.epoll_create1(0),
            _ => Err(Errno(libc::EINVAL)),
        })?;
        Ok(fd as usize)
    }) as c_int
}

pub(super) extern "C" fn epoll_ctl(
    machine: &Userdata,
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<&epoll_event>,
) -> c_int {
    done(|| {
        let event = event.map(|event| (event.events, event.u64));
        machine.call(|posix| posix.epoll_ctl(set, operation, fd, event))
    })
}

pub(super) extern "C" fn epoll_wait<'a>(
    machine: &Userdata,
    set: c_int,
    place: Pointer<'a, MaybeUninit<epoll_event>>,
    limit: Count<'a, c_int>,
    milliseconds: c_int,
) -> c_int {
    guarded(|| {
        let found = machine.call(|posix| posix.epoll_wait(set, limit.get(), milliseconds))?;
        for (place, &(events, u64)) in place.write(limit)?.iter_mut().zip(&found) {
            place.write(epoll_event { events, u64 });
        }
        Ok(found.len())
    }) as c_int
}

/// The kernel's pipe: only a socket is under test.
pub(super) extern "C" fn pipe(
    _machine: &Userdata,
    fds: Option<&mut MaybeUninit<[c_int; 2]>>,
) -> c_int {
    done(|| {
        let fds = there(fds)?;
        let (reader, writer) = std::io::pipe().map_err(|_| Errno(libc::EMFILE))?;
        fds.write([reader.into_raw_fd(), writer.into_raw_fd()]);
        Ok(())
    })
}

pub(super) extern "C" fn splice(
    machine: &Userdata,
    from: c_int,
    _from_offset: Option<&mut off64_t>,
    to: c_int,
    _to_offset: Option<&mut off64_t>,
    length: size_t,
    _flags: c_uint,
) -> ssize_t {
    guarded(|| {
        // A pipe takes 64 KB before it blocks.
        let length = length.min(65_536);
        if machine.owns(from) {
            let data = receive(machine, from, length, 0)?;
            return raw_kernel::write(to, &data);
        }
        let data = raw_kernel::read(from, length)?;
        transmit(machine, to, &[&data], 0, None)
    })
}

/// `sendfile(2)`: from a kernel file to a host socket.
pub(super) fn send_file(
    machine: &Machine,
    to: c_int,
    from: c_int,
    offset: Option<&mut off64_t>,
    count: size_t,
) -> ssize_t {
    guarded(|| {
        let count = count.min(1 << 24);
        let data = match offset.as_deref() {
            Some(&offset) => raw_kernel::pread(from, count, offset)?,
            None => raw_kernel::read(from, count)?,
        };
        let sent = transmit(machine, to, &[&data], 0, None)?;
        if let Some(offset) = offset {
            *offset += sent as off64_t;
        }
        Ok(sent)
    })
}
