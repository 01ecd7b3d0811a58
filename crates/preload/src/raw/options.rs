//! Options and flags.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;
use tidewall::OpenFile;
use tidewall::readiness::Events;
use tidewall_posix::{Errno, PollFd, Posix, Result, errno};

use super::{bytes, done, length_of, number, originals, room};
use crate::candidates;
use crate::process::{inside, ours};
use crate::promote;

/// `linux/sockios.h`: bytes written but not sent.
const SIOCOUTQNSD: c_ulong = 0x894b;
/// `asm-generic/sockios.h`: whether the next byte to read was sent as urgent.
pub(super) const SIOCATMARK: c_ulong = 0x8905;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let Some(posix) = ours(fd) else {
        candidates::note_option(fd, level, name);
        // SAFETY: guaranteed by the caller.
        let result = unsafe { originals::setsockopt(fd, level, name, value, length) };
        if result == 0 && promote::is_of_signatures(level, name) {
            promote::signs(fd);
        }
        return result;
    };
    if promote::is_of_signatures(level, name) {
        return done(Err(Errno(libc::ENOPROTOOPT)));
    }
    if is_unknown(posix, fd, level, name) {
        // The stack has set some for itself, on the socket that holds the port. SAFETY:
        // guaranteed by the caller.
        let value = unsafe { bytes(value, length as usize) };
        return done(
            value.and_then(|value| match value.iter().all(|&byte| byte == 0) {
                true => Ok(()),
                false => Err(Errno(libc::ENOPROTOOPT)),
            }),
        );
    }
    // SAFETY: guaranteed by the caller.
    let set = length_of(length)
        .and_then(|length| unsafe { bytes(value, length) })
        .and_then(|value| inside(|| posix.setsockopt(fd, level, name, value)));
    match set {
        // The kernel socket that holds the port supports what the stack lacks.
        Err(Errno(libc::ENOPROTOOPT)) if holds_port(posix, fd) => {
            // SAFETY: guaranteed by the caller.
            unsafe { originals::setsockopt(fd, level, name, value, length) }
        }
        set => done(set),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let Some(posix) = ours(fd) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::getsockopt(fd, level, name, value, length) };
    };
    let found = match is_unknown(posix, fd, level, name) {
        true => Ok(0i32.to_ne_bytes().to_vec()),
        false => inside(|| posix.getsockopt(fd, level, name)),
    };
    match found {
        Err(Errno(libc::ENOPROTOOPT)) if holds_port(posix, fd) => {
            // SAFETY: guaranteed by the caller.
            unsafe { originals::getsockopt(fd, level, name, value, length) }
        }
        found => {
            // SAFETY: guaranteed by the caller.
            done(found.and_then(|found| unsafe { put_option(&found, value, length) }))
        }
    }
}

/// # Safety
/// The arguments are as getsockopt(2) requires.
unsafe fn put_option(found: &[u8], value: *mut c_void, length: *mut socklen_t) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let length = unsafe { length.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: guaranteed by the caller.
    let place = unsafe { room(value, length_of(*length)?) }?;
    let used = place.len().min(found.len());
    if let (Some(place), Some(found)) = (place.get_mut(..used), found.get(..used)) {
        place.copy_from_slice(found);
    }
    *length = used as socklen_t;
    Ok(())
}

/// Reports an option of a datagram socket that the stack lacks, and that the kernel socket
/// alone must not have.
fn is_unknown(posix: &Posix, fd: c_int, level: c_int, name: c_int) -> bool {
    promote::is_unknown(level, name) && super::data::is_datagrams(posix, fd)
}

/// Returns true if the descriptor holds a kernel socket of the program.
fn holds_port(posix: &Posix, fd: c_int) -> bool {
    let file = posix.descriptors().file(fd);
    file.is_ok_and(|file| matches!(&*file, OpenFile::Listener(_) | OpenFile::Datagram(_)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    match ours(fd) {
        Some(posix) => control(posix, fd, command, argument),
        // SAFETY: guaranteed by the caller.
        None => super::numbers::copied(fd, command, unsafe {
            originals::fcntl(fd, command, argument)
        }),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    match ours(fd) {
        Some(posix) => control(posix, fd, command, argument),
        // SAFETY: guaranteed by the caller.
        None => super::numbers::copied(fd, command, unsafe {
            originals::fcntl64(fd, command, argument)
        }),
    }
}

fn control(posix: &Posix, fd: c_int, command: c_int, argument: usize) -> c_int {
    let is_set = || {
        let file = posix.descriptors().file(fd);
        file.is_ok_and(|file| matches!(&*file, OpenFile::Epoll(_)))
    };
    match command {
        libc::F_GETFL if !is_set() => {
            let flags = inside(|| posix.descriptors().is_nonblocking(fd));
            number(
                flags.map_err(errno).map(|nonblocking| {
                    libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
                }),
            )
        }
        // No signal would be sent.
        libc::F_SETFL if !is_set() && argument as c_int & libc::O_ASYNC != 0 => {
            done(Err(Errno(libc::EINVAL)))
        }
        libc::F_SETFL if !is_set() => {
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            let set = inside(|| posix.descriptors().set_nonblocking(fd, nonblocking));
            done(set.map_err(errno))
        }
        _ => {
            // SAFETY: the descriptor is the kernel's, as the caller passes it.
            let result = unsafe { originals::fcntl(fd, command, argument) };
            super::numbers::copied(fd, command, result)
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    argument: usize,
) -> c_int {
    let Some(posix) = ours(fd) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::ioctl(fd, request, argument) };
    };
    let place = argument as *mut c_int;
    match request {
        libc::FIONBIO => {
            // SAFETY: guaranteed by the caller.
            let Some(&nonblocking) = (unsafe { place.as_ref() }) else {
                return done(Err(Errno(libc::EFAULT)));
            };
            let set = inside(|| posix.descriptors().set_nonblocking(fd, nonblocking != 0));
            done(set.map_err(errno))
        }
        // SAFETY: guaranteed by the caller.
        libc::FIOASYNC => match unsafe { place.as_ref() } {
            None => done(Err(Errno(libc::EFAULT))),
            Some(0) => 0,
            // As for a file without signals.
            Some(_) => done(Err(Errno(libc::ENOTTY))),
        },
        libc::FIONREAD => {
            // Data that has arrived must be visible, as in the kernel.
            let now = &mut [PollFd::new(fd, Events::IN)];
            let _ = inside(|| posix.poll(now, 0));
            let unread = inside(|| match &*posix.descriptors().file(fd).ok()? {
                OpenFile::Stream(stream) => Some(stream.unread()?.0),
                OpenFile::Datagram(datagrams) => Some(datagrams.next_length() as u32),
                _ => None,
            });
            match unread {
                // SAFETY: guaranteed by the caller.
                Some(bytes) => match unsafe { place.as_mut() } {
                    Some(place) => {
                        *place = bytes as c_int;
                        0
                    }
                    None => done(Err(Errno(libc::EFAULT))),
                },
                // SAFETY: guaranteed by the caller.
                None => unsafe { originals::ioctl(fd, request, argument) },
            }
        }
        libc::TIOCOUTQ | SIOCOUTQNSD if !holds_port(posix, fd) => {
            let unsent = inside(|| posix.ioctl(fd, request, 0));
            // SAFETY: guaranteed by the caller.
            let place = unsafe { place.as_mut() }.ok_or(Errno(libc::EFAULT));
            done(unsent.and_then(|bytes| place.map(|place| *place = bytes)))
        }
        // There is no mark (RFC 6093). SAFETY: guaranteed by the caller.
        SIOCATMARK if !holds_port(posix, fd) => match unsafe { place.as_mut() } {
            Some(place) => {
                *place = 0;
                0
            }
            None => done(Err(Errno(libc::EFAULT))),
        },
        // SAFETY: guaranteed by the caller.
        _ => unsafe { originals::ioctl(fd, request, argument) },
    }
}
