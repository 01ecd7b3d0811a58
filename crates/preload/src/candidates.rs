//! Sockets of the kernel's that may become a stack's: a byte a number.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Numbers are below this; sockets above stay with the kernel. Pages that no number is in
/// take no memory.
pub(crate) const NUMBERS: usize = 1 << 20;

static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// All that something is known of are below this.
static END: AtomicUsize = AtomicUsize::new(0);

/// The byte of an epoll set of the kernel's, which becomes no socket.
const SET: u8 = 3;

/// What a number may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A TCP socket, which listens, connects, or does neither yet.
    Stream,
    /// A UDP socket.
    Datagram,
}

fn place(fd: i32) -> Option<&'static AtomicU8> {
    KINDS.get(usize::try_from(fd).ok()?)
}

/// What the number may become, if anything.
#[inline]
pub(crate) fn kind(fd: i32) -> Option<Kind> {
    match place(fd)?.load(Ordering::Relaxed) {
        1 => Some(Kind::Stream),
        2 => Some(Kind::Datagram),
        _ => None,
    }
}

/// True for a number of which something is known here.
pub(crate) fn is_any(fd: i32) -> bool {
    place(fd).is_some_and(|place| place.load(Ordering::Relaxed) != 0)
}

/// True for an epoll set that the program has made.
#[inline]
pub(crate) fn is_set(fd: i32) -> bool {
    place(fd).is_some_and(|place| place.load(Ordering::Relaxed) == SET)
}

fn store(fd: i32, byte: u8) {
    if let Some(place) = place(fd) {
        place.store(byte, Ordering::Relaxed);
        let end = fd as usize + 1;
        if byte != 0 && END.load(Ordering::Relaxed) < end {
            END.fetch_max(end, Ordering::Relaxed);
        }
    }
}

/// The number names an epoll set.
pub(crate) fn note_set(fd: i32) {
    store(fd, SET);
}

/// The numbers of sockets that may become the stack's.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let numbers = 0..END.load(Ordering::Relaxed) as i32;
    numbers.filter(|&fd| kind(fd).is_some())
}

/// Says what a number may become.
pub(crate) fn set(fd: i32, kind: Option<Kind>) {
    let byte = match kind {
        None => 0,
        Some(Kind::Stream) => 1,
        Some(Kind::Datagram) => 2,
    };
    store(fd, byte);
}

/// What the kernel has just made of the arguments of socket(2) may become.
pub(crate) fn of_call(domain: i32, kind: i32, protocol: i32) -> Option<Kind> {
    if domain != libc::AF_INET && domain != libc::AF_INET6 {
        return None;
    }
    match (kind & 0xf, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Some(Kind::Stream),
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Some(Kind::Datagram),
        _ => None,
    }
}
