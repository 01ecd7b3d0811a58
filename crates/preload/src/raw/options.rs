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

/// `linux/sockios.h`: bytes written and not sent.
const SIOCOUTQNSD: c_ulong = 0x894b;
/// `asm-generic/sockios.h`: whether what is read next was sent as urgent.
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
        // SAFETY: the caller's.
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
        // Some the stack has set on the socket that holds the port, for itself.
        // SAFETY: the caller's.
        let value = unsafe { bytes(value, length as usize) };
        return done(
            value.and_then(|value| match value.iter().all(|&byte| byte == 0) {
                true => Ok(()),
                false => Err(Errno(libc::ENOPROTOOPT)),
            }),
        );
    }
    // SAFETY: the caller's.
    let set = length_of(length)
        .and_then(|length| unsafe { bytes(value, length) })
        .and_then(|value| inside(|| posix.setsockopt(fd, level, name, value)));
    match set {
        // The socket that holds the port has what the stack has not.
        Err(Errno(libc::ENOPROTOOPT)) if holds_port(posix, fd) => {
            // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        return unsafe { originals::getsockopt(fd, level, name, value, length) };
    };
    let found = match is_unknown(posix, fd, level, name) {
        true => Ok(0i32.to_ne_bytes().to_vec()),
        false => inside(|| posix.getsockopt(fd, level, name)),
    };
    match found {
        Err(Errno(libc::ENOPROTOOPT)) if holds_port(posix, fd) => {
            // SAFETY: the caller's.
            unsafe { originals::getsockopt(fd, level, name, value, length) }
        }
        found => {
            // SAFETY: the caller's.
            done(found.and_then(|found| unsafe { put_option(&found, value, length) }))
        }
    }
}

/// # Safety
/// As getsockopt(2) has it.
unsafe fn put_option(found: &[u8], value: *mut c_void, length: *mut socklen_t) -> Result<()> {
    // SAFETY: the caller's.
    let length = unsafe { length.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the caller's.
    let place = unsafe { room(value, length_of(*length)?) }?;
    let used = place.len().min(found.len());
    if let (Some(place), Some(found)) = (place.get_mut(..used), found.get(..used)) {
        place.copy_from_slice(found);
    }
    *length = used as socklen_t;
    Ok(())
}

/// An option of a datagram socket that the stack has not, and the kernel's part may not have
/// alone.
fn is_unknown(posix: &Posix, fd: c_int, level: c_int, name: c_int) -> bool {
    promote::is_unknown(level, name) && super::data::is_datagrams(posix, fd)
}

/// True where the kernel has a socket of the program's under the number.
fn holds_port(posix: &Posix, fd: c_int) -> bool {
    let file = posix.descriptors().file(fd);
    file.is_ok_and(|file| matches!(&*file, OpenFile::Listener(_) | OpenFile::Datagram(_)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    match ours(fd) {
        Some(posix) => control(posix, fd, command, argument),
        // SAFETY: the caller's.
        None => super::numbers::copied(fd, command, unsafe {
            originals::fcntl(fd, command, argument)
        }),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    match ours(fd) {
        Some(posix) => control(posix, fd, command, argument),
        // SAFETY: the caller's.
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
        // Nobody would send them.
        libc::F_SETFL if !is_set() && argument as c_int & libc::O_ASYNC != 0 => {
            done(Err(Errno(libc::EINVAL)))
        }
        libc::F_SETFL if !is_set() => {
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            let set = inside(|| posix.descriptors().set_nonblocking(fd, nonblocking));
            done(set.map_err(errno))
        }
        _ => {
            // SAFETY: of the number, which is the kernel's, as the caller has it.
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
        // SAFETY: the caller's.
        return unsafe { originals::ioctl(fd, request, argument) };
    };
    let place = argument as *mut c_int;
    match request {
        libc::FIONBIO => {
            // SAFETY: the caller's.
            let Some(&nonblocking) = (unsafe { place.as_ref() }) else {
                return done(Err(Errno(libc::EFAULT)));
            };
            let set = inside(|| posix.descriptors().set_nonblocking(fd, nonblocking != 0));
            done(set.map_err(errno))
        }
        // SAFETY: the caller's.
        libc::FIOASYNC => match unsafe { place.as_ref() } {
            None => done(Err(Errno(libc::EFAULT))),
            Some(0) => 0,
            // As of a file that has no signals.
            Some(_) => done(Err(Errno(libc::ENOTTY))),
        },
        libc::FIONREAD => {
            // What has come is to be seen, as it is in the kernel.
            let now = &mut [PollFd::new(fd, Events::IN)];
            let _ = inside(|| posix.poll(now, 0));
            let unread = inside(|| match &*posix.descriptors().file(fd).ok()? {
                OpenFile::Stream(stream) => Some(stream.unread()?.0),
                OpenFile::Datagram(datagrams) => Some(datagrams.next_length() as u32),
                _ => None,
            });
            match unread {
                // SAFETY: the caller's.
                Some(bytes) => match unsafe { place.as_mut() } {
                    Some(place) => {
                        *place = bytes as c_int;
                        0
                    }
                    None => done(Err(Errno(libc::EFAULT))),
                },
                // SAFETY: the caller's.
                None => unsafe { originals::ioctl(fd, request, argument) },
            }
        }
        libc::TIOCOUTQ | SIOCOUTQNSD if !holds_port(posix, fd) => {
            let unsent = inside(|| posix.ioctl(fd, request, 0));
            // SAFETY: the caller's.
            let place = unsafe { place.as_mut() }.ok_or(Errno(libc::EFAULT));
            done(unsent.and_then(|bytes| place.map(|place| *place = bytes)))
        }
        // There is no mark (RFC 6093).
        // SAFETY: the caller's.
        SIOCATMARK if !holds_port(posix, fd) => match unsafe { place.as_mut() } {
            Some(place) => {
                *place = 0;
                0
            }
            None => done(Err(Errno(libc::EFAULT))),
        },
        // SAFETY: the caller's.
        _ => unsafe { originals::ioctl(fd, request, argument) },
    }
}
