//! Listeners that the program attends to, and which process serves their connections.
//!
//! A connection of the stack belongs to its process: a forked process, or one that receives
//! it, cannot use it. So a listener becomes the stack's only when this process is known to
//! serve its connections itself. There are two ways to know it:
//!
//! * it *has served* one: it read from a connection that it had accepted, and returned to
//!   wait. In between it had no child and sent no connection away. Until then connections are
//!   the kernel's;
//! * it is *about to*: it has threads and no children, and its listener is nonblocking and in an
//!   epoll set.
//!
//! And while another process accepts by the listener, or was forked off to do so, connections
//! are the kernel's ([`tidewall::listener_holders`]).

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tidewall::OpenFile;
use tidewall::listener_holders::{
    Sharer, another_listens, is_owned, note_accepting, note_inherited, other_user,
};
use tidewall_posix::Posix;
use tidewall_sys::netlink::SocketDiag;
use tidewall_sys::option;

use crate::candidates::{self, Kind};
use crate::process::{self, inside};
use crate::promote::{attended_to, is_confined, is_over, local_address};
use crate::raw;
use crate::report::{Verdict, record};

/// When listeners become the stack's: `at-once` means at the first sign of attention, set by
/// an operator who knows the program.
const WHEN: &str = "TIDEWALL_PROMOTE";

/// How long a process waits for another's stack to return a listener's connections.
const GIVEN_BACK_WITHIN: Duration = Duration::from_millis(1500);
/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One word per descriptor. Unused pages take no memory.
static WORDS: [AtomicU64; candidates::NUMBERS] = [const { AtomicU64::new(0) }; candidates::NUMBERS];

/// The lowest bits of a word: its kind.
const KIND: u64 = 3;
/// A listener that the process attends to; [`SERVED`] and its epoch are above.
const LISTENER: u64 = 1;
/// A kernel connection that was accepted but not read yet; its listener's descriptor and the
/// epoch are above.
const ACCEPTED: u64 = 2;
/// A listener that is the stack's.
const PROMOTED: u64 = 3;
/// The process has read from a connection of the listener.
const SERVED: u64 = 1 << 2;
/// The descriptor was inherited from the parent by fork.
const INHERITED: u64 = 1 << 3;
const NUMBER_SHIFT: u32 = 8;
const EPOCH_SHIFT: u32 = 32;

/// Counts children that may have connections of this process, and connections that were
/// sent away.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// See [`promote_at_once`].
static ASKED_FOR: AtomicBool = AtomicBool::new(false);
/// A listener may be [`SERVED`].
static ANY_SERVED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The listener from which this thread has accepted a connection and done nothing else
    /// since. For a listener of the stack, also the stack's count of calls.
    static JUST: Cell<Option<(i32, u32)>> = const { Cell::new(None) };
}

/// What a process does with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// Accepts or reads.
    Takes,
    /// Waits, by `poll` or `select`.
    Waits,
    /// Puts it into an epoll set.
    Enters,
    /// Must become the stack's now or never.
    Last,
}

fn word(fd: i32) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

fn get(fd: i32) -> u64 {
    word(fd).map_or(0, |word| word.load(Ordering::Relaxed))
}

fn put(fd: i32, value: u64) {
    if let Some(word) = word(fd)
        && word.load(Ordering::Relaxed) != value
    {
        word.store(value, Ordering::Relaxed);
    }
}

fn epoch() -> u64 {
    u64::from(EPOCH.load(Ordering::Relaxed)) << EPOCH_SHIFT
}

fn is_of_now(word: u64) -> bool {
    word >> EPOCH_SHIFT == epoch() >> EPOCH_SHIFT
}

/// Forgets a descriptor that is closed, or that names a new socket.
#[inline]
pub(crate) fn forget(fd: i32) {
    put(fd, 0);
}

/// Copies the state of a duplicated descriptor.
pub(crate) fn copy(fd: i32, number: i32) {
    put(number, get(fd));
}

/// Returns true for a connection that was accepted but not read yet.
pub(crate) fn is_accepted(fd: i32) -> bool {
    get(fd) & KIND == ACCEPTED
}

/// Records attention to a stream socket that may become the stack's. Returns true if
/// promotion is to be tried now.
pub(crate) fn attend(fd: i32, attention: Attention) -> bool {
    let word = get(fd);
    match word & KIND {
        ACCEPTED => {
            if attention == Attention::Takes {
                read_first(fd, word);
            }
            false
        }
        LISTENER if attention == Attention::Last => true,
        LISTENER if is_at_once() => inside(|| is_alone(fd)),
        LISTENER => {
            let served = word & SERVED != 0;
            if served && !is_of_now(word) {
                put(fd, word & INHERITED | LISTENER);
            }
            served && is_of_now(word) && inside(|| is_alone(fd))
        }
        _ => inside(|| attend_first(fd, word, attention)),
    }
}

/// Called before this process reads the first bytes of a connection.
fn read_first(fd: i32, word: u64) {
    candidates::forget(fd);
    put(fd, 0);
    let listener = (word >> NUMBER_SHIFT & 0xff_ffff) as i32;
    let of = get(listener);
    if is_of_now(word) && of & KIND == LISTENER {
        put(listener, of & INHERITED | LISTENER | SERVED | epoch());
        ANY_SERVED.store(true, Ordering::Relaxed);
    }
}

fn attend_first(fd: i32, word: u64, attention: Attention) -> bool {
    let Some(socket) = raw::borrow(fd) else {
        return true;
    };
    if option(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens != 1) {
        // It may listen later, or cannot listen at all.
        return true;
    }
    if is_confined() {
        return true;
    }
    note_accepting(socket);
    let limit = Instant::now() + GIVEN_BACK_WITHIN;
    while is_owned(socket) && Instant::now() < limit {
        std::thread::sleep(LOOK_EVERY);
    }
    put(fd, word & INHERITED | LISTENER);
    if attention == Attention::Last || is_at_once() || serves_itself(socket, word, attention) {
        return true;
    }
    if !is_over()
        && is_alone(fd)
        && let Some(local) = local_address(socket)
    {
        let why = "until the program has served a connection itself";
        record(Verdict::Watched, "listener", local, why);
    }
    false
}

/// Records that the program itself has requested a stack (`tidewall_start`): its listeners
/// are to use it.
pub(crate) fn promote_at_once() {
    ASKED_FOR.store(true, Ordering::Relaxed);
}

fn is_at_once() -> bool {
    static BY_OPERATOR: OnceLock<bool> = OnceLock::new();
    ASKED_FOR.load(Ordering::Relaxed)
        || *BY_OPERATOR.get_or_init(|| std::env::var_os(WHEN).is_some_and(|when| when == "at-once"))
}

/// Reports whether a process that has served nothing yet is about to serve by itself. It has
/// an event loop and threads, so it does not fork to serve, and no children, which could be
/// sent connections. A process that was itself forked with the listener may be the first of
/// many.
fn serves_itself(socket: BorrowedFd<'_>, word: u64, attention: Attention) -> bool {
    let waits = || fcntl_getfl(socket).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    // A stack has threads of its own.
    let has_threads = || process::posix().is_none() && raw::has_threads();
    if attention != Attention::Enters || word & INHERITED != 0 || !has_threads() || waits() {
        return false;
    }
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, how), Err(rustix::io::Errno::CHILD))
}

/// Returns true if no other process accepts from the listener; otherwise the listener stays
/// the kernel's for now.
pub(crate) fn is_alone(fd: i32) -> bool {
    let Some(socket) = raw::borrow(fd) else {
        return true;
    };
    match (other_user(socket), local_address(socket)) {
        (Some(other), Some(local)) => {
            not_now(fd, local, other);
            false
        }
        (None, Some(local)) if shares_port(socket, local) => {
            put(fd, get(fd) & INHERITED | LISTENER);
            record(Verdict::Kernel, "listener", local, BESIDE);
            false
        }
        _ => true,
    }
}

/// Returns true if another process has a listener at the address (SO_REUSEPORT), which would
/// receive no more connections.
fn shares_port(socket: BorrowedFd<'_>, local: SocketAddr) -> bool {
    /// When such a listener was last seen: the kernel is not queried at each connection.
    static SEEN: Mutex<Option<Instant>> = Mutex::new(None);
    if option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT).is_ok_and(|on| on == 0) {
        return false;
    }
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.is_some_and(|seen| seen.elapsed() < Duration::from_secs(1)) {
        return true;
    }
    let found = SocketDiag::open()
        .is_ok_and(|mut sockets| another_listens(&mut sockets, local.port(), is_own));
    *seen = found.then(Instant::now);
    found
}

/// Reports whether a socket, given by its inode, is this process's: one that may become
/// the stack's, or a listener that has.
pub(crate) fn is_own(inode: u32) -> bool {
    let known = |&fd: &i32| candidates::kind(fd).is_some() || get(fd) & KIND == PROMOTED;
    let file = |fd| Some(fstat(raw::borrow(fd)?).ok()?.st_ino);
    (0..candidates::end())
        .filter(known)
        .any(|fd| file(fd) == Some(inode.into()))
}

/// Keeps the listener with the kernel for now, because another process has it, too.
fn not_now(fd: i32, local: SocketAddr, other: i32) {
    put(fd, get(fd) & INHERITED | LISTENER);
    shared(local, Some(Sharer::Socket(other)));
}

/// Reports that connections go to the kernel because of another process, or no longer do.
pub(crate) fn shared(local: SocketAddr, other: Option<Sharer>) {
    match other {
        None => record(Verdict::Promoted, "listener", local, ""),
        Some(Sharer::Address) => record(Verdict::Kernel, "listener", local, BESIDE),
        // A process of another namespace has no number here.
        Some(Sharer::Socket(0)) => record(Verdict::Kernel, "listener", local, SHARED),
        Some(Sharer::Socket(pid)) => {
            let why = format!("{SHARED} (process {pid})");
            record(Verdict::Kernel, "listener", local, why);
        }
    }
}

const SHARED: &str = "another process accepts its connections, too";
const BESIDE: &str = "another process listens at its address, too (SO_REUSEPORT)";

/// Records that the stack has adopted the listener.
pub(crate) fn promoted(fd: i32) {
    put(fd, PROMOTED);
}

/// Records the descriptor of a connection that a kernel listener has accepted.
pub(crate) fn accepted(listener: i32, fd: i32) {
    if fd < 0 || get(listener) & KIND != LISTENER || is_over() {
        return;
    }
    candidates::made(fd, Some(Kind::Stream));
    let number = (listener as u64) << NUMBER_SHIFT;
    put(fd, ACCEPTED | number | epoch());
    let _ = JUST.try_with(|just| just.set(Some((listener, 0))));
}

/// Records a connection that a listener of the stack has accepted.
pub(crate) fn accepted_here(posix: &Posix, listener: i32) {
    let _ = JUST.try_with(|just| just.set(Some((listener, posix.stack().calls()))));
}

/// Called before this thread waits for a kernel descriptor.
pub(crate) fn waits() {
    let _ = JUST.try_with(|just| just.set(None));
}

/// Called before a wait: promotes a listener of which a connection was served.
#[inline]
pub(crate) fn judge() {
    if ANY_SERVED.load(Ordering::Relaxed) {
        judge_all();
    }
}

#[cold]
fn judge_all() {
    if process::is_inside() || !ANY_SERVED.swap(false, Ordering::Relaxed) {
        return;
    }
    for fd in candidates::all() {
        if get(fd) & (KIND | SERVED) == LISTENER | SERVED {
            let _ = attended_to(fd, Attention::Waits);
        }
    }
}

/// Records that a child, or another process that is sent some, may have this process's
/// connections from now on. Async-signal-safe.
pub(crate) fn hands_over() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

/// Called before the program forks. If it has just accepted a connection, that is for the
/// child, and so will later ones be.
pub(crate) fn forks() {
    let just = JUST.try_with(Cell::take).ok().flatten();
    let Some((listener, calls)) = just else {
        return;
    };
    let why = "the program forks for each connection";
    match get(listener) & KIND {
        LISTENER => say(listener, why),
        PROMOTED if process::posix().is_some_and(|it| it.stack().calls() == calls) => {
            give_back(listener, why);
        }
        _ => {}
    }
}

/// Called before a connection is sent to another process. A kernel connection may be sent
/// (false).
pub(crate) fn sends(fd: i32) -> bool {
    let word = get(fd);
    let why = "the program sends its connections to other processes";
    if word & KIND == ACCEPTED {
        hands_over();
        inside(|| say((word >> NUMBER_SHIFT & 0xff_ffff) as i32, why));
        return false;
    }
    let Some(posix) = process::posix() else {
        return false;
    };
    let file = inside(|| posix.descriptors().file(fd));
    if !file.is_ok_and(|file| matches!(&*file, OpenFile::Stream(_))) {
        return false;
    }
    inside(|| {
        let port = posix.getsockname(fd).map_or(0, |local| local.port());
        for listener in 0..candidates::end() {
            if get(listener) & KIND == PROMOTED
                && posix
                    .getsockname(listener)
                    .is_ok_and(|it| it.port() == port)
            {
                give_back(listener, why);
            }
        }
    });
    true
}

fn say(listener: i32, why: &str) {
    if let Some(local) = raw::borrow(listener).and_then(local_address) {
        record(Verdict::Kernel, "listener", local, why);
    }
}

/// Returns new connections of a listener to the kernel from now on.
fn give_back(listener: i32, why: &str) {
    let Some(posix) = process::posix() else {
        return;
    };
    if let Ok(file) = posix.descriptors().file(listener)
        && let OpenFile::Listener(it) = &*file
        && it.give_back().is_ok()
    {
        say(listener, why);
    }
}

/// Called in a forked child, which may itself attend to the listeners of its parent.
/// Async-signal-safe.
pub(crate) fn inherit() {
    for fd in 0..candidates::end() {
        match get(fd) & KIND {
            // If its parent's stack has it, the child's first attention must be seen
            // here.
            PROMOTED => {
                candidates::set(fd, Kind::Stream);
                put(fd, INHERITED);
            }
            ACCEPTED => {}
            _ if candidates::kind(fd) == Some(Kind::Stream) => {
                put(fd, INHERITED);
                if let Some(socket) = raw::borrow(fd).filter(|_| !is_confined()) {
                    note_inherited(socket, true);
                }
            }
            _ => {}
        }
    }
}

/// Records a descriptor that a program was started with: the parent that forked and executed
/// it has not stated that it accepts.
pub(crate) fn executed(fd: i32) {
    if let Some(socket) = raw::borrow(fd) {
        note_inherited(socket, false);
    }
}
