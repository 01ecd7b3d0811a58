//! Kernel sockets that may become the stack's: one word per descriptor.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidewall_device::forked;
use tidewall_posix::OptionsSet;

use crate::registered;
use crate::watch;

/// Descriptors are below this; sockets above stay with the kernel. Unused pages take no
/// memory.
pub(crate) const NUMBERS: usize = 1 << 20;

static KINDS: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// All descriptors with a nonzero word are below this.
static END: AtomicUsize = AtomicUsize::new(0);

const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;
/// A kernel epoll set, which becomes no socket.
const SET: u64 = 3;
/// The bits of these kinds. The bits above are the options that the program may have set.
const KIND: u64 = 3;
const KIND_BITS: u32 = KIND.count_ones();
const _: () = assert!(KIND_BITS + OptionsSet::BITS <= u64::BITS);

/// The kind of socket that a descriptor may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A TCP socket that is listening, connected, or neither yet.
    Stream,
    /// A UDP socket.
    Datagram,
}

fn place(fd: i32) -> Option<&'static AtomicU64> {
    KINDS.get(usize::try_from(fd).ok()?)
}

/// Returns what the descriptor may become, if anything.
#[inline]
pub(crate) fn kind(fd: i32) -> Option<Kind> {
    match place(fd)?.load(Ordering::Relaxed) & KIND {
        STREAM => Some(Kind::Stream),
        DATAGRAM => Some(Kind::Datagram),
        _ => None,
    }
}

/// Returns true for a descriptor that is recorded here.
pub(crate) fn is_any(fd: i32) -> bool {
    place(fd).is_some_and(|place| place.load(Ordering::Relaxed) != 0)
}

/// Returns true for an epoll set that the program has created.
#[inline]
pub(crate) fn is_set(fd: i32) -> bool {
    place(fd).is_some_and(|place| place.load(Ordering::Relaxed) == SET)
}

fn store(fd: i32, word: u64) {
    if let Some(place) = place(fd) {
        place.store(word, Ordering::Relaxed);
        let end = fd as usize + 1;
        if word != 0 && END.load(Ordering::Relaxed) < end {
            END.fetch_max(end, Ordering::Relaxed);
        }
    }
}

/// Records that the descriptor names a new epoll set.
pub(crate) fn note_set(fd: i32) {
    forget(fd);
    store(fd, SET);
}

/// Forgets the descriptor, also in the epoll sets. It is closed, names another file, or stays
/// with the kernel. A socket that the stack has adopted was moved out of its sets before.
pub(crate) fn forget(fd: i32) {
    if is_any(fd) {
        store(fd, 0);
        registered::forget(fd);
    }
}

/// Returns the descriptors of sockets that may become the stack's.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    (0..end()).filter(|&fd| kind(fd).is_some())
}

/// All recorded descriptors, past and present, are below this.
pub(crate) fn end() -> i32 {
    END.load(Ordering::Relaxed) as i32
}

/// Sets what a descriptor may become. Any option may have been set.
pub(crate) fn set(fd: i32, kind: Kind) {
    enter(fd, kind, OptionsSet::ALL);
}

/// As [`set`], for a new socket.
pub(crate) fn made(fd: i32, kind: Option<Kind>) {
    // A descriptor that was closed without this library now names another file.
    forget(fd);
    if let Some(kind) = kind {
        enter(fd, kind, OptionsSet::NONE);
    }
}

fn enter(fd: i32, kind: Kind, options: OptionsSet) {
    let kind = match kind {
        Kind::Stream => STREAM,
        Kind::Datagram => DATAGRAM,
    };
    store(fd, kind | options.bits() << KIND_BITS);
}

/// Records that an option is about to be set.
pub(crate) fn note_option(fd: i32, level: i32, name: i32) {
    if kind(fd).is_some()
        && let Some(place) = place(fd)
    {
        let option = OptionsSet::of(level, name).bits() << KIND_BITS;
        place.fetch_or(option, Ordering::Relaxed);
    }
}

/// Returns the options that may have been set.
pub(crate) fn options(fd: i32) -> OptionsSet {
    let word = place(fd).map_or(u64::MAX, |place| place.load(Ordering::Relaxed));
    OptionsSet::from_bits(word >> KIND_BITS)
}

/// Prepares for a child, which may set options of sockets that it shares with this
/// process. Async-signal-safe.
pub(crate) fn share_all() {
    watch::hands_over();
    forked::note_shared();
    for place in all().filter_map(place) {
        place.fetch_or(OptionsSet::ALL.bits() << KIND_BITS, Ordering::Relaxed);
    }
}

/// Returns what a new socket may become, from the arguments of socket(2).
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
