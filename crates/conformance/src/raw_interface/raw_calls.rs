//! The functions of the table.

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use core::mem;
use core::ptr;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use libc::{
    cmsghdr, epoll_event, iovec, msghdr, nfds_t, off64_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use super::Interface;
use super::machine::{EPOCH, Machine};
use super::raw_memory::{address, bytes, bytes_mut, elements, gather, put, put_address, scatter};
use crate::stack::{EpollEvent, Failure, Notification, PollFd, Result};

/// The most that one call moves, as in Linux.
const COUNT_MAX: usize = 0x7fff_f000;

/// `linux/tcp.h`: the control message of `TCP_INQ`.
const TCP_CM_INQ: c_int = 36;

pub(super) fn table(userdata: *mut c_void) -> Interface {
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

fn set_errno(number: i32) {
    // SAFETY: this thread's errno, always there.
    unsafe { *libc::__errno_location() = number };
}

/// As C has it: -1 and errno.
fn finish(result: Result<usize>) -> ssize_t {
    match result {
        Ok(value) => value as ssize_t,
        Err(failure) => {
            set_errno(failure.errno());
            -1
        }
    }
}

/// Runs a call, and has a panic end as EFAULT.
fn guarded(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    let result = catch_unwind(AssertUnwindSafe(call));
    finish(result.unwrap_or(Err(Failure::Errno(libc::EFAULT))))
}

/// The machine of a table.
///
/// # Safety
/// `userdata` is a table's that was not freed.
unsafe fn machine<'a>(userdata: *mut c_void) -> &'a Machine {
    // SAFETY: `initialize` made it of an `Arc<Machine>`, and `free` was not
    // called.
    unsafe { &*userdata.cast::<Machine>() }
}

fn owns(machine: &Machine, fd: c_int) -> bool {
    machine.now(|host| host.owns(fd))
}

/// The result of a call of the kernel's.
fn kernel(result: ssize_t) -> Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Failure::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    if !userdata.is_null() {
        // SAFETY: made by `Arc::into_raw`, and the caller uses it no more.
        drop(unsafe { Arc::from_raw(userdata.cast::<Machine>().cast_const()) });
    }
}

unsafe extern "C" fn socket(
    userdata: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let fd = machine.refreshed(|host| host.socket(domain, kind, protocol))?;
        Ok(fd as usize)
    }) as c_int
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // SAFETY: as many bytes as the caller says.
    let to = unsafe { address(to, length) };
    guarded(|| {
        let to = to.ok_or(Failure::Errno(libc::EINVAL))?;
        machine.now(|host| host.bind(fd, to))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn listen(userdata: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.refreshed(|host| host.listen(fd, backlog))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let (accepted, peer) = machine.wait(None, |host| host.accept(fd))?;
        // SAFETY: as many bytes as the caller says.
        unsafe { put_address(peer, place, length) };
        Ok(accepted as usize)
    }) as c_int
}

unsafe extern "C" fn connect(
    userdata: *mut c_void,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // SAFETY: as many bytes as the caller says.
    let to = unsafe { address(to, length) };
    guarded(|| {
        let to = to.ok_or(Failure::Errno(libc::EINVAL))?;
        machine.refreshed(|_| ());
        machine.wait(None, |host| host.connect(fd, to))?;
        Ok(0)
    }) as c_int
}

/// Reads into a buffer, which is as long as what is read.
fn receive(machine: &Machine, fd: c_int, length: usize, flags: c_int) -> Result<Vec<u8>> {
    let mut buffer = vec![0; length.min(COUNT_MAX)];
    let count = machine.wait(None, |host| host.recv(fd, &mut buffer, flags))?;
    buffer.truncate(count);
    Ok(buffer)
}

unsafe extern "C" fn read(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    if !owns(unsafe { machine(userdata) }, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::read(fd, place, length) };
    }
    // SAFETY: the same arguments.
    unsafe { recv(userdata, fd, place, length, 0) }
}

unsafe extern "C" fn readv(
    userdata: *mut c_void,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many as the caller says.
        let vector = unsafe { elements(vector, count.max(0) as usize) };
        let length = vector.iter().map(|element| element.iov_len).sum();
        let read = receive(machine, fd, length, 0)?;
        // SAFETY: as many bytes as the caller says.
        unsafe { scatter(&read, vector) };
        Ok(read.len())
    })
}

unsafe extern "C" fn recv(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if place.is_null() && length > 0 && flags & libc::MSG_TRUNC == 0 {
            return Err(Failure::Errno(libc::EFAULT));
        }
        let read = receive(machine, fd, length, flags)?;
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: as many bytes as the caller says.
            let place = unsafe { bytes_mut(place, read.len()) };
            place.copy_from_slice(&read);
        }
        Ok(read.len())
    })
}

unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut c_void,
    length: size_t,
    flags: c_int,
    _from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if !from_length.is_null() {
        // SAFETY: not null; a stream tells no address.
        unsafe { from_length.write_unaligned(0) };
    }
    // SAFETY: the same arguments.
    unsafe { recv(userdata, fd, place, length, flags) }
}

unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if message.is_null() {
            return Err(Failure::Errno(libc::EFAULT));
        }
        // SAFETY: not null; the caller's, alone.
        let message = unsafe { &mut *message };
        // SAFETY: as many as the message says.
        let vector = unsafe { elements(message.msg_iov, message.msg_iovlen) };
        let length: usize = vector.iter().map(|element| element.iov_len).sum();
        let mut buffer = vec![0; length.min(COUNT_MAX)];
        let received = machine.wait(None, |host| host.receive(fd, &mut buffer, flags))?;
        let read = buffer.get(..received.bytes).unwrap_or_default();
        // SAFETY: as many bytes as the vector says.
        unsafe { scatter(read, vector) };
        message.msg_namelen = 0;
        message.msg_flags = 0;
        let mut controls = Vec::new();
        if let Some(left) = received.left {
            controls.push((libc::IPPROTO_TCP, TCP_CM_INQ, left.to_ne_bytes().to_vec()));
        }
        if let Some(notification) = received.notification {
            let domain = machine.now(|host| host.getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN));
            let v6 = domain.is_ok_and(|domain| domain == libc::AF_INET6.to_ne_bytes());
            message.msg_flags |= libc::MSG_ERRQUEUE;
            if let Notification::Timestamp { at, .. } = notification {
                // What was sent is told with its time, and does not fit.
                message.msg_flags |= libc::MSG_TRUNC;
                controls.push((libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, stamp(at)));
            }
            let (level, kind) = match v6 {
                true => (libc::SOL_IPV6, libc::IPV6_RECVERR),
                false => (libc::SOL_IP, libc::IP_RECVERR),
            };
            controls.push((level, kind, extended_error(notification, v6)));
        }
        // SAFETY: the message's own control buffer.
        unsafe { put_control(message, &controls) };
        Ok(received.bytes)
    })
}

/// `struct scm_timestamping`: the first of its three times is software's.
fn stamp(at: Duration) -> Vec<u8> {
    let at = EPOCH + at;
    let mut bytes = Vec::with_capacity(48);
    bytes.extend_from_slice(&(at.as_secs() as i64).to_ne_bytes());
    bytes.extend_from_slice(&i64::from(at.subsec_nanos()).to_ne_bytes());
    bytes.resize(48, 0);
    bytes
}

/// `struct sock_extended_err` and the offender's address, which nobody has.
fn extended_error(notification: Notification, v6: bool) -> Vec<u8> {
    // `SO_EE_ORIGIN_TIMESTAMPING`, `SO_EE_ORIGIN_ZEROCOPY`,
    // `SO_EE_CODE_ZEROCOPY_COPIED`
    let (errno, origin, code, info, data) = match notification {
        Notification::Zerocopy { first, last } => (0, 5, 1, first, last),
        Notification::Timestamp { what, byte, .. } => (libc::ENOMSG, 4, 0, what, byte),
    };
    let mut bytes = errno.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[origin, 0, code, 0]);
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(&data.to_ne_bytes());
    let address = match v6 {
        true => mem::size_of::<libc::sockaddr_in6>(),
        false => mem::size_of::<libc::sockaddr_in>(),
    };
    bytes.resize(bytes.len() + address, 0);
    bytes
}

/// Writes control messages: level, type and data of each.
///
/// # Safety
/// The message's control buffer is as long as it says.
unsafe fn put_control(message: &mut msghdr, controls: &[(c_int, c_int, Vec<u8>)]) {
    let room = message.msg_controllen;
    let mut used = 0;
    for (level, kind, data) in controls {
        // SAFETY: computations.
        let (space, length) = unsafe {
            (
                libc::CMSG_SPACE(data.len() as c_uint) as usize,
                libc::CMSG_LEN(data.len() as c_uint) as usize,
            )
        };
        if room - used < length || message.msg_control.is_null() {
            message.msg_flags |= libc::MSG_CTRUNC;
            break;
        }
        let header = cmsghdr {
            cmsg_len: length,
            cmsg_level: *level,
            cmsg_type: *kind,
        };
        // SAFETY: `length` bytes are there beyond `used`, enough for header and
        // data.
        unsafe {
            let place = message.msg_control.cast::<u8>().add(used);
            ptr::write_unaligned(place.cast(), header);
            ptr::copy_nonoverlapping(data.as_ptr(), place.add(length - data.len()), data.len());
        }
        used = (used + space).min(room);
    }
    message.msg_controllen = used;
}

/// Writes all on a descriptor that waits; else what there is room for.
fn transmit(machine: &Machine, fd: c_int, parts: &[&[u8]], flags: c_int) -> Result<usize> {
    let wanted = parts.iter().map(|part| part.len()).sum();
    let mut done = 0;
    let result = machine.wait(None, |host| {
        loop {
            let written = if done == 0 {
                host.sendmsg(fd, parts, flags)?
            } else {
                let bytes = parts.concat();
                host.send(fd, bytes.get(done..).unwrap_or_default(), flags)?
            };
            done += written;
            if done >= wanted || host.is_nonblocking(fd) || flags & libc::MSG_DONTWAIT != 0 {
                return Ok(done);
            }
        }
    });
    // What was written counts, whatever stopped it.
    if done > 0 { Ok(done) } else { result }
}

unsafe extern "C" fn write(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    if !owns(unsafe { machine(userdata) }, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::write(fd, data, length) };
    }
    // SAFETY: the same arguments.
    unsafe { send(userdata, fd, data, length, 0) }
}

unsafe extern "C" fn writev(
    userdata: *mut c_void,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many as the caller says.
        let vector = unsafe { elements(vector, count.max(0) as usize) };
        // SAFETY: as many bytes as the vector says.
        let parts = unsafe { gather(vector) }.ok_or(Failure::Errno(libc::EFAULT))?;
        transmit(machine, fd, &parts, 0)
    })
}

unsafe extern "C" fn send(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if data.is_null() && length > 0 {
            return Err(Failure::Errno(libc::EFAULT));
        }
        // SAFETY: as many bytes as the caller says.
        let data = unsafe { bytes(data, length.min(COUNT_MAX)) };
        transmit(machine, fd, &[data], flags)
    })
}

unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    _to: *const sockaddr,
    _to_length: socklen_t,
) -> ssize_t {
    // SAFETY: the same arguments.
    unsafe { send(userdata, fd, data, length, flags) }
}

unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if message.is_null() {
            return Err(Failure::Errno(libc::EFAULT));
        }
        // SAFETY: not null.
        let message = unsafe { &*message };
        // SAFETY: as many as the message says.
        let vector = unsafe { elements(message.msg_iov, message.msg_iovlen) };
        // SAFETY: as many bytes as the vector says.
        let parts = unsafe { gather(vector) }.ok_or(Failure::Errno(libc::EFAULT))?;
        transmit(machine, fd, &parts, flags)
    })
}

unsafe extern "C" fn fcntl(
    userdata: *mut c_void,
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    if !owns(machine, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    // An int was given; the rest of the register is anything.
    let argument = i64::from(argument as c_int);
    guarded(|| {
        let result = machine.now(|host| host.fcntl(fd, command, argument))?;
        Ok(result as usize)
    }) as c_int
}

unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let given = if request == libc::FIONBIO && !argument.is_null() {
            // SAFETY: FIONBIO comes with an int.
            unsafe { ptr::read_unaligned(argument.cast::<c_int>()) }
        } else {
            0
        };
        let value = machine.now(|host| host.ioctl(fd, request, given))?;
        if request != libc::FIONBIO {
            if argument.is_null() {
                return Err(Failure::Errno(libc::EFAULT));
            }
            // SAFETY: the others have room for an int.
            unsafe { ptr::write_unaligned(argument.cast::<c_int>(), value) };
        }
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn close(userdata: *mut c_void, fd: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if !owns(machine, fd) {
            // SAFETY: the caller's descriptor.
            return kernel(unsafe { libc::close(fd) } as ssize_t);
        }
        machine.now(|host| host.close(fd))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, fd: c_int, how: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.now(|host| host.shutdown(fd, how))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { get_option(machine(userdata), fd, level, option, value, length) }
}

/// `getsockopt(2)`: as much of the value as there is room for.
///
/// # Safety
/// `length` is null, or says how many bytes may be written at `value`.
pub(super) unsafe fn get_option(
    machine: &Machine,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    guarded(|| {
        let mut found = machine.now(|host| host.getsockopt(fd, level, option))?;
        if length.is_null() || (value.is_null() && !found.is_empty()) {
            return Err(Failure::Errno(libc::EFAULT));
        }
        // SAFETY: not null.
        let room = unsafe { ptr::read_unaligned(length) } as usize;
        found.truncate(room);
        // SAFETY: as many bytes as the caller says.
        unsafe { put(&found, value, length) };
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many bytes as the caller says.
        let value = unsafe { bytes(value, length as usize) };
        machine.now(|host| host.setsockopt(fd, level, option, value))?;
        Ok(0)
    }) as c_int
}

/// A timeout of poll's: negative is none.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

unsafe extern "C" fn poll(
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
        let ready = machine.wait(timeout(milliseconds), |host| {
            match host.poll(&mut polled)? {
                0 => Err(Failure::Blocked),
                ready => Ok(ready),
            }
        });
        let ready = match ready {
            Err(Failure::Blocked) => 0,
            other => other?,
        };
        for (index, descriptor) in polled.iter().enumerate() {
            // SAFETY: within the caller's array.
            unsafe { (*descriptors.add(index)).revents = descriptor.revents };
        }
        Ok(ready)
    }) as c_int
}

unsafe extern "C" fn netdev_send(
    userdata: *mut c_void,
    packet: *const c_void,
    length: size_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many bytes as the caller says.
        let packet = unsafe { bytes(packet, length) };
        machine.now(|host| host.packet_in(packet));
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    place: *mut c_void,
    length: *mut size_t,
    microseconds: *mut c_longlong,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if length.is_null() || microseconds.is_null() {
            return Err(Failure::Errno(libc::EFAULT));
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

unsafe extern "C" fn usleep(userdata: *mut c_void, microseconds: c_uint) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.sleep(Duration::from_micros(microseconds.into()));
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn gettimeofday(
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

unsafe extern "C" fn epoll_create(userdata: *mut c_void, size: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let fd = machine.now(|host| host.epoll_create(size))?;
        Ok(fd as usize)
    }) as c_int
}

unsafe extern "C" fn epoll_ctl(
    userdata: *mut c_void,
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let event = if event.is_null() {
            EpollEvent { events: 0, data: 0 }
        } else {
            // SAFETY: not null.
            let event = unsafe { event.read_unaligned() };
            EpollEvent {
                events: event.events,
                data: event.u64,
            }
        };
        machine.now(|host| host.epoll_ctl(set, operation, fd, event))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn epoll_wait(
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
        let told = machine.wait(timeout(milliseconds), |host| {
            let events = host.epoll_wait(set, limit)?;
            if events.is_empty() {
                Err(Failure::Blocked)
            } else {
                Ok(events)
            }
        });
        let told = match told {
            Err(Failure::Blocked) => Vec::new(),
            other => other?,
        };
        if place.is_null() {
            return Err(Failure::Errno(libc::EFAULT));
        }
        for (index, event) in told.iter().enumerate() {
            let event = epoll_event {
                events: event.events,
                u64: event.data,
            };
            // SAFETY: no more than the caller has room for.
            unsafe { place.add(index).write_unaligned(event) };
        }
        Ok(told.len())
    }) as c_int
}

/// The kernel's pipe: only a socket is under test.
unsafe extern "C" fn pipe(_userdata: *mut c_void, fds: *mut c_int) -> c_int {
    // SAFETY: the caller's array of two.
    unsafe { libc::pipe(fds) }
}

unsafe extern "C" fn splice(
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
        transmit(machine, to, &[&data], 0)
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
        let sent = transmit(machine, to, &[&data], 0)?;
        if !offset.is_null() {
            // SAFETY: the offset may be written.
            unsafe { offset.write_unaligned(offset.read_unaligned() + sent as off64_t) };
        }
        Ok(sent)
    })
}

const _: () = assert!(mem::size_of::<Interface>() == 33 * mem::size_of::<usize>());
