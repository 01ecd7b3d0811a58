//! The table of functions, and those from `socket` to `close`.

use core::ffi::{c_int, c_long, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{socklen_t, ssize_t};

use super::events::{
    epoll_create, epoll_ctl, epoll_wait, gettimeofday, netdev_receive, netdev_send, pipe, poll,
    splice, usleep,
};
use super::machine::Machine;
use super::transfer::{read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, write, writev};
use super::{Interface, Userdata, raw_kernel};
use tidewall_posix::raw::{Count, Place, Pointer, address, put_address};
use tidewall_posix::{Errno, Result};

pub(super) fn table(userdata: Box<Userdata>) -> Interface {
    Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

/// Runs a call, and converts a panic to EFAULT. The result is as in C: -1 and errno.
pub(super) fn guarded(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    let result = catch_unwind(AssertUnwindSafe(call));
    match result.unwrap_or(Err(Errno(libc::EFAULT))) {
        Ok(value) => value as ssize_t,
        Err(failure) => {
            raw_kernel::set_errno(failure.0);
            -1
        }
    }
}

/// As [`guarded`], for a call whose success is 0.
pub(super) fn done(call: impl FnOnce() -> Result<()>) -> c_int {
    guarded(|| call().map(|()| 0)) as c_int
}

extern "C" fn free(_userdata: Option<Box<Userdata>>) {}

extern "C" fn socket(machine: &Userdata, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    guarded(|| {
        let fd = machine.refreshed(|posix| posix.socket(domain, kind, protocol))?;
        Ok(fd as usize)
    }) as c_int
}

extern "C" fn bind<'a>(
    machine: &Userdata,
    fd: c_int,
    to: Pointer<'a, u8>,
    length: Count<'a, socklen_t>,
) -> c_int {
    done(|| {
        let to = address(to, length).ok_or(Errno(libc::EINVAL))?;
        machine.call(|posix| posix.bind(fd, to))
    })
}

extern "C" fn listen(machine: &Userdata, fd: c_int, backlog: c_int) -> c_int {
    done(|| machine.refreshed(|posix| posix.listen(fd, backlog)))
}

extern "C" fn accept<'a>(
    machine: &Userdata,
    fd: c_int,
    place: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) -> c_int {
    guarded(|| {
        let (accepted, peer) = machine.call(|posix| posix.accept4(fd, 0))?;
        if let Some(peer) = peer {
            put_address(peer, place, length);
        }
        Ok(accepted as usize)
    }) as c_int
}

extern "C" fn connect<'a>(
    machine: &Userdata,
    fd: c_int,
    to: Pointer<'a, u8>,
    length: Count<'a, socklen_t>,
) -> c_int {
    done(|| {
        let to = address(to, length).ok_or(Errno(libc::EINVAL))?;
        machine.refreshed(|posix| posix.connect(fd, to))
    })
}

extern "C" fn fcntl(machine: &Userdata, fd: c_int, command: c_int, argument: c_long) -> c_int {
    guarded(|| {
        if !machine.owns(fd) {
            return raw_kernel::fcntl(fd, command, argument);
        }
        // An int was passed; the rest of the register is undefined.
        let argument = i64::from(argument as c_int);
        let result = machine.call(|posix| posix.fcntl(fd, command, argument))?;
        Ok(result as usize)
    }) as c_int
}

extern "C" fn ioctl(
    machine: &Userdata,
    fd: c_int,
    request: c_ulong,
    argument: Option<&mut c_int>,
) -> c_int {
    done(|| {
        let given = argument.as_deref().copied();
        let given = given.filter(|_| request == libc::FIONBIO).unwrap_or(0);
        let value = machine.call(|posix| posix.ioctl(fd, request, given))?;
        if request != libc::FIONBIO {
            *argument.ok_or(Errno(libc::EFAULT))? = value;
        }
        Ok(())
    })
}

extern "C" fn close(machine: &Userdata, fd: c_int) -> c_int {
    guarded(|| match machine.owns(fd) {
        true => machine.call(|posix| posix.close(fd)).map(|()| 0),
        false => raw_kernel::close(fd),
    }) as c_int
}

extern "C" fn shutdown(machine: &Userdata, fd: c_int, how: c_int) -> c_int {
    done(|| machine.call(|posix| posix.shutdown(fd, how)))
}

extern "C" fn getsockopt<'a>(
    machine: &Userdata,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) -> c_int {
    get_option(machine, fd, level, option, value, length)
}

/// `getsockopt(2)`: copies as much of the value as there is space for.
pub(super) fn get_option<'a>(
    machine: &Machine,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) -> c_int {
    done(|| {
        let mut found = machine.call(|posix| posix.getsockopt(fd, level, option))?;
        let length = length.ok_or(Errno(libc::EFAULT))?;
        found.truncate(length.get());
        value.put(length, &found)
    })
}

extern "C" fn setsockopt<'a>(
    machine: &Userdata,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: Pointer<'a, u8>,
    length: Count<'a, socklen_t>,
) -> c_int {
    done(|| {
        let value = value.read(length)?;
        machine.refreshed(|posix| posix.setsockopt(fd, level, option, value))
    })
}

const _: () = assert!(size_of::<Interface>() == 33 * size_of::<usize>());
