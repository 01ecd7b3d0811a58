//! The C library's calls: they return the result, or −errno.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::{mem, ptr};

use tidewall_sys::RawAddress;

pub fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the caller's: open to the end of the program.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn result(value: impl Into<i64>) -> i64 {
    match value.into() {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap()),
        value => value,
    }
}

/// Makes a call whose arguments are numbers and memory that is here.
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {{
        // SAFETY: numbers, and memory that is as long as said, for the call alone.
        result(unsafe { libc::$name($($argument),*) } as i64)
    }};
}

pub fn ignore_sigpipe() {
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Called by a signal; errno must stay as it was.
static HANDLER: OnceLock<fn()> = OnceLock::new();

extern "C" fn handle_signal(_: c_int) {
    // SAFETY: errno is this thread's.
    let place = unsafe { &mut *libc::__errno_location() };
    let errno = *place;
    if let Some(handler) = HANDLER.get() {
        handler();
    }
    *place = errno;
}

/// Makes a signal call `handler`, which only makes calls; interrupted calls are
/// restarted.
pub fn handle(signal: c_int, handler: fn()) {
    HANDLER.set(handler).unwrap();
    // SAFETY: all zero is an action: SIG_DFL.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handle_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    assert_eq!(
        call!(sigaction(signal, &raw const action, ptr::null_mut())),
        0
    );
}

pub fn this_thread() -> libc::pthread_t {
    // SAFETY: names the calling thread.
    unsafe { libc::pthread_self() }
}

/// Sends a signal to an existing thread.
pub fn signal(thread: libc::pthread_t, signal: c_int) {
    // SAFETY: the caller's.
    unsafe { libc::pthread_kill(thread, signal) };
}

pub fn socket(kind: c_int) -> i64 {
    call!(socket(libc::AF_INET, kind, 0))
}

pub fn bind(fd: c_int, address: SocketAddr) -> i64 {
    let (raw, length) = RawAddress::new(address);
    call!(bind(fd, raw.0.as_ptr().cast(), length))
}

pub fn connect(fd: c_int, address: SocketAddr) -> i64 {
    let (raw, length) = RawAddress::new(address);
    call!(connect(fd, raw.0.as_ptr().cast(), length))
}

pub fn listen(fd: c_int, backlog: c_int) -> i64 {
    call!(listen(fd, backlog))
}

/// Returns the result, and the address if one is given.
fn named(call: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> i64) -> (i64, String) {
    let mut raw = [0u8; 128];
    let mut length = raw.len() as libc::socklen_t;
    let value = call(raw.as_mut_ptr().cast(), &raw mut length);
    let address = RawAddress::parse(&raw[..length as usize]).filter(|_| value >= 0);
    (
        value,
        address.map_or("-".to_owned(), |it| it.ip().to_string()),
    )
}

pub fn accept4(fd: c_int, flags: c_int) -> (i64, String) {
    named(|address, length| call!(accept4(fd, address, length, flags)))
}

pub fn accept(fd: c_int) -> (i64, String) {
    named(|address, length| call!(accept(fd, address, length)))
}

pub fn getsockname(fd: c_int) -> (i64, String) {
    named(|address, length| call!(getsockname(fd, address, length)))
}

pub fn getpeername(fd: c_int) -> (i64, String) {
    named(|address, length| call!(getpeername(fd, address, length)))
}

pub fn read(fd: c_int, buffer: &mut [u8]) -> i64 {
    call!(read(fd, buffer.as_mut_ptr().cast(), buffer.len()))
}

pub fn recv(fd: c_int, buffer: &mut [u8], flags: c_int) -> i64 {
    call!(recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags))
}

pub fn recvfrom(fd: c_int, buffer: &mut [u8], flags: c_int) -> (i64, String) {
    named(|address, length| {
        let place = buffer.as_mut_ptr().cast();
        call!(recvfrom(fd, place, buffer.len(), flags, address, length))
    })
}

fn halves(buffer: &mut [u8]) -> [libc::iovec; 2] {
    let (first, second) = buffer.split_at_mut(buffer.len() / 2);
    [first, second].map(|half| libc::iovec {
        iov_base: half.as_mut_ptr().cast(),
        iov_len: half.len(),
    })
}

fn message(vector: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zero is a message without anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len();
    message
}

pub fn readv(fd: c_int, buffer: &mut [u8]) -> i64 {
    let vector = halves(buffer);
    call!(readv(fd, vector.as_ptr(), 2))
}

pub fn recvmsg(fd: c_int, buffer: &mut [u8], flags: c_int) -> (i64, c_int) {
    let mut vector = halves(buffer);
    let mut message = message(&mut vector);
    let value = call!(recvmsg(fd, &raw mut message, flags));
    (value, message.msg_flags)
}

// The targets of -D_FORTIFY_SOURCE, and calls that the libc crate lacks.
unsafe extern "C" {
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize;
    fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: usize,
        room: usize,
        flags: c_int,
    ) -> isize;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: usize,
        room: usize,
        flags: c_int,
        from: *mut c_void,
        from_length: *mut c_void,
    ) -> isize;
    fn __poll_chk(list: *mut libc::pollfd, count: u64, timeout: c_int, room: usize) -> c_int;
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char, ...) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn isfdtype(fd: c_int, kind: c_int) -> c_int;
    fn preadv64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize;
    fn pwritev64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize;
}

/// One of the fortified ways to receive.
pub fn read_checked(fd: c_int, buffer: &mut [u8], way: usize) -> i64 {
    let (place, room) = (buffer.as_mut_ptr().cast(), buffer.len());
    let none = ptr::null_mut();
    // SAFETY: memory that is as long as said, for the call alone.
    result(unsafe {
        match way {
            0 => __read_chk(fd, place, room, room),
            1 => __recv_chk(fd, place, room, room, 0),
            _ => __recvfrom_chk(fd, place, room, room, 0, none, none),
        }
    } as i64)
}

pub fn preadv2(fd: c_int, buffer: &mut [u8], offset: i64, flags: c_int) -> i64 {
    let vector = halves(buffer);
    // SAFETY: memory that is here.
    result(unsafe { preadv64v2(fd, vector.as_ptr(), 2, offset, flags) } as i64)
}

pub fn pwritev2(fd: c_int, buffer: &mut [u8], offset: i64, flags: c_int) -> i64 {
    let vector = halves(buffer);
    // SAFETY: memory that is here.
    result(unsafe { pwritev64v2(fd, vector.as_ptr(), 2, offset, flags) } as i64)
}

/// Passes each half of the buffer as a message; returns the result, and the bytes of
/// each.
fn many(buffer: &mut [u8], call: impl FnOnce(*mut libc::mmsghdr) -> i64) -> (i64, [u32; 2]) {
    let mut halves = halves(buffer);
    let (first, second) = halves.split_at_mut(1);
    let mut messages = [first, second].map(|vector| libc::mmsghdr {
        msg_hdr: message(vector),
        msg_len: 0,
    });
    let value = call(messages.as_mut_ptr());
    (value, messages.map(|message| message.msg_len))
}

pub fn recvmmsg(fd: c_int, buffer: &mut [u8], flags: c_int) -> (i64, [u32; 2]) {
    many(buffer, |messages| {
        call!(recvmmsg(fd, messages, 2, flags, ptr::null_mut()))
    })
}

pub fn sendmmsg(fd: c_int, buffer: &mut [u8]) -> (i64, [u32; 2]) {
    many(buffer, |messages| call!(sendmmsg(fd, messages, 2, 0)))
}

/// Prints numbers, a text and fractions, from registers and from the stack.
pub fn print(fd: c_int, number: c_int, text: &CStr, checked: bool) -> i64 {
    let (half, text) = (f64::from(number) / 2.0, text.as_ptr());
    let format = c"%d %s %g %d %d %d %g %s %.3f %d\n".as_ptr();
    let n = number;
    // SAFETY: arguments of the format's types.
    result(unsafe {
        match checked {
            true => __dprintf_chk(fd, 1, format, n, text, half, 1, 2, 3, 0.25, text, half, 4),
            false => dprintf(fd, format, n, text, half, 1, 2, 3, 0.25, text, half, 4),
        }
    })
}

/// Queries a descriptor that needs no data: the mark of urgent data, its kind.
pub fn kinds(fd: c_int) -> [i64; 3] {
    // SAFETY: asks of a number.
    unsafe {
        let is = |kind| result(isfdtype(fd, kind as c_int));
        [
            result(sockatmark(fd)),
            is(libc::S_IFSOCK),
            is(libc::S_IFREG),
        ]
    }
}

/// Copies to which a socket does not apply: from memory to it, and of ranges of a file.
pub fn copies(fd: c_int, file: c_int) -> [i64; 2] {
    let none = ptr::null_mut();
    let mut byte = 1u8;
    let piece = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    [
        call!(vmsplice(fd, &raw const piece, 1, 0)),
        call!(copy_file_range(file, none, fd, none, 10, 0)),
    ]
}

pub fn close_range(first: c_int, last: c_int, flags: c_int) -> i64 {
    call!(close_range(first as u32, last as u32, flags))
}

pub fn poll_checked(fd: c_int, events: i16) -> (i64, i16) {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let room = size_of::<libc::pollfd>();
    // SAFETY: one entry that is here.
    let value = result(unsafe { __poll_chk(&raw mut entry, 1, 0, room) });
    (value, entry.revents)
}

pub fn write(fd: c_int, buffer: &[u8]) -> i64 {
    call!(write(fd, buffer.as_ptr().cast(), buffer.len()))
}

pub fn send(fd: c_int, buffer: &[u8], flags: c_int) -> i64 {
    call!(send(fd, buffer.as_ptr().cast(), buffer.len(), flags))
}

pub fn sendto(fd: c_int, buffer: &[u8], to: SocketAddr) -> i64 {
    let (raw, length) = RawAddress::new(to);
    let address = raw.0.as_ptr().cast();
    call!(sendto(
        fd,
        buffer.as_ptr().cast(),
        buffer.len(),
        0,
        address,
        length
    ))
}

pub fn writev(fd: c_int, buffer: &mut [u8]) -> i64 {
    let vector = halves(buffer);
    call!(writev(fd, vector.as_ptr(), 2))
}

pub fn sendmsg(fd: c_int, buffer: &mut [u8]) -> i64 {
    let mut vector = halves(buffer);
    let message = message(&mut vector);
    call!(sendmsg(fd, &raw const message, 0))
}

pub fn sendfile(to: c_int, from: c_int, offset: &mut i64, count: usize) -> i64 {
    call!(sendfile(to, from, &raw mut *offset, count))
}

pub fn shutdown(fd: c_int, how: c_int) -> i64 {
    call!(shutdown(fd, how))
}

pub fn close(fd: c_int) -> i64 {
    call!(close(fd))
}

pub fn dup(fd: c_int) -> i64 {
    call!(dup(fd))
}

pub fn dup2(fd: c_int, number: c_int) -> i64 {
    call!(dup2(fd, number))
}

pub fn fcntl(fd: c_int, command: c_int, argument: c_int) -> i64 {
    call!(fcntl(fd, command, argument))
}

pub fn unread(fd: c_int) -> i64 {
    let mut bytes: c_int = 0;
    match call!(ioctl(fd, libc::FIONREAD, &raw mut bytes)) {
        0 => bytes.into(),
        error => error,
    }
}

/// Returns the unacknowledged bytes.
pub fn unsent(fd: c_int) -> i64 {
    let mut bytes: c_int = 0;
    match call!(ioctl(fd, libc::TIOCOUTQ, &raw mut bytes)) {
        0 => bytes.into(),
        error => error,
    }
}

pub fn pread(fd: c_int, buffer: &mut [u8]) -> i64 {
    call!(pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0))
}

pub fn tee(from: c_int, to: c_int) -> i64 {
    call!(tee(from, to, 10, 0))
}

pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: c_int) -> i64 {
    call!(setsockopt(fd, level, name, (&raw const value).cast(), 4))
}

pub fn getsockopt(fd: c_int, level: c_int, name: c_int) -> (i64, c_int) {
    let (mut value, mut length): (c_int, libc::socklen_t) = (0, 4);
    let place = (&raw mut value).cast();
    (
        call!(getsockopt(fd, level, name, place, &raw mut length)),
        value,
    )
}

pub fn poll(list: &mut [(c_int, i16)], milliseconds: c_int) -> (i64, Vec<i16>) {
    let mut entries: Vec<_> = (list.iter())
        .map(|&(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect();
    let count = entries.len() as libc::nfds_t;
    let value = call!(poll(entries.as_mut_ptr(), count, milliseconds));
    (value, entries.iter().map(|entry| entry.revents).collect())
}

/// Returns which of the descriptors select(2) finds readable and writable, without
/// waiting.
pub fn select(fds: &[c_int]) -> (i64, Vec<(bool, bool)>) {
    // SAFETY: all zero is the empty set, and no time.
    let (mut read, mut write, mut time): (libc::fd_set, libc::fd_set, libc::timeval) =
        unsafe { mem::zeroed() };
    for &fd in fds {
        // SAFETY: numbers below FD_SETSIZE, of which this program has few.
        unsafe {
            libc::FD_SET(fd, &raw mut read);
            libc::FD_SET(fd, &raw mut write);
        }
    }
    let count = fds.iter().max().map_or(0, |fd| fd + 1);
    let except = ptr::null_mut();
    let value = call!(select(
        count,
        &raw mut read,
        &raw mut write,
        except,
        &raw mut time
    ));
    // SAFETY: as above.
    let has = |fd: c_int, set: *const libc::fd_set| unsafe { libc::FD_ISSET(fd, set) };
    let ready = fds
        .iter()
        .map(|&fd| (has(fd, &raw const read), has(fd, &raw const write)));
    (value, ready.collect())
}

pub fn epoll_create() -> i64 {
    call!(epoll_create1(0))
}

pub fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> i64 {
    let mut event = libc::epoll_event { events, u64: data };
    call!(epoll_ctl(set, operation, fd, &raw mut event))
}

/// Returns the ready entries with their data, sorted by that. A call may report only part
/// of them, and begin with the rest the next time (docs/deviations.md).
pub fn epoll_wait(set: c_int) -> (i64, Vec<(u64, u32)>) {
    const PARTS: usize = 16;
    let mut found = std::collections::BTreeMap::new();
    let mut first = 0;
    for part in 0..PARTS {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let value = call!(epoll_wait(set, events.as_mut_ptr(), 64, 0));
        if part == 0 {
            first = value.min(0);
        }
        let count = usize::try_from(value).unwrap_or(0);
        for event in &events[..count] {
            *found.entry(event.u64).or_insert(0) |= event.events;
        }
    }
    (first, found.into_iter().collect())
}

pub fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    assert_eq!(call!(pipe(ends.as_mut_ptr())), 0);
    ends
}

pub fn file(path: &std::ffi::CStr) -> i64 {
    call!(open(path.as_ptr(), libc::O_RDONLY))
}
