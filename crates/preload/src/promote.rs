//! Decides which sockets become the stack's, and when.
//!
//! A socket is the kernel's until the process attends to it. A process that only creates,
//! binds or passes on sockets never starts a stack. The stack is created for the first
//! socket that can be promoted.

use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{OFlags, fcntl_getfl};
use tidewall::listener_holders::{Watcher, note_accepting};
use tidewall::tuning::PolicyKind;
use tidewall::{EmbeddedConfig, Stack};
use tidewall_device::forked;
use tidewall_manager::places;
use tidewall_posix::{Errno, OptionsSet, Posix, PosixConfig, Result, errno};
use tidewall_sys::{RawAddress, SignalSet, option, option_bytes};

use crate::candidates::{self, Kind};
use crate::process::{self, inside, is_inside, ours};
use crate::protected::{has_ring, protecting};
use crate::raw;
use crate::registered;
use crate::report::{self, Verdict, record};
use crate::watch::{self, Attention};

/// The interface of the process's own stack, if no manager runs.
const INTERFACE: &str = "TIDEWALL_INTERFACE";

/// Name of a receive control policy.
const POLICY: &str = "TIDEWALL_POLICY";

/// Held while a socket is promoted.
static PROMOTING: Mutex<()> = Mutex::new(());

/// Sockets may have several descriptors.
static COPIED: AtomicBool = AtomicBool::new(false);

/// Keeps other threads from promoting a socket.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    PROMOTING.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MAKES: Cell<bool> = const { Cell::new(false) };
}

/// As [`hold`], before a fork. Returns `None` in the thread that is creating the stack:
/// it already holds the lock, and forks children of its own for that purpose.
pub(crate) fn hold_to_fork() -> Option<MutexGuard<'static, ()>> {
    let makes = MAKES.try_with(Cell::get).unwrap_or(false);
    (!makes).then(hold)
}

/// Possible origins of a stack.
struct Source {
    manager: Option<std::path::PathBuf>,
    interface: String,
}

/// Unset: there is no source, so nothing is promoted.
static SOURCE: OnceLock<Source> = OnceLock::new();
/// When to request a stack, or a listener's port, again after a refusal.
static AGAIN: Mutex<Option<Again>> = Mutex::new(None);
/// The initial and the maximum retry interval. A manager may be away for a moment, and one
/// that refuses receives a few requests per hour.
const AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
/// The program was started under a seccomp filter that refuses one of the stack's calls.
static FILTERED: AtomicBool = AtomicBool::new(false);
/// The program has installed a seccomp filter under which no more sockets become the
/// stack's.
static OVER: AtomicBool = AtomicBool::new(false);

/// See [`AGAIN`].
struct Again {
    at: Instant,
    after: Duration,
}

fn again() -> MutexGuard<'static, Option<Again>> {
    AGAIN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a refusal: no request is made for a while, and longer each time.
fn wait_to_ask() {
    let mut again = again();
    let [first, most] = AGAIN_AFTER;
    let after = again.as_ref().map_or(first, |it| (it.after * 2).min(most));
    let at = Instant::now() + after;
    *again = Some(Again { at, after });
}

/// Returns true while no request may be made.
fn waits_to_ask() -> bool {
    again().as_ref().is_some_and(|it| Instant::now() < it.at)
}

impl Source {
    fn of_environment() -> Option<Self> {
        let manager = places::of_environment();
        let interface = match &manager {
            Some(path) => path.file_stem()?.to_str()?.to_owned(),
            None => std::env::var(INTERFACE).ok().filter(|it| !it.is_empty())?,
        };
        Some(Source { manager, interface })
    }

    /// From the interface's manager, if one runs.
    fn of_interface(name: &str) -> Self {
        let socket = places::socket(name);
        Source {
            manager: (socket.exists() && !places::is_dead(&socket)).then_some(socket),
            interface: name.to_owned(),
        }
    }
}

/// Reads the environment, before the program changes it. Reports whether a stack is
/// wanted.
pub(crate) fn begin() -> bool {
    let source = Source::of_environment();
    source.is_some_and(|source| SOURCE.set(source).is_ok())
}

/// Records that the program was started under a seccomp filter that refuses one of the
/// stack's calls.
pub(crate) fn refuse(call: &str) {
    FILTERED.store(true, Ordering::Relaxed);
    let why = format!("a filter of system calls, older than the program, refuses {call}(2)");
    record(
        Verdict::NoStack,
        "",
        interface().map_or("", |it| it.0),
        &why,
    );
}

/// Creates the stack now, on this interface or that of the environment (`tidewall.h`).
pub(crate) fn start(interface: Option<&str>) -> Result<()> {
    if process::is_forked() {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let _promoting = hold();
    let named = |name: &&str| SOURCE.set(Source::of_interface(name)).is_ok();
    if interface.as_ref().is_some_and(named) {
        raw::watch_forks();
    }
    let source = SOURCE.get().ok_or(Errno(libc::EINVAL))?;
    if interface.is_some_and(|name| name != source.interface) {
        return Err(Errno(libc::EBUSY));
    }
    if process::posix().is_some() {
        return Ok(());
    }
    let made = make(source).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Errno(libc::ENODEV),
        io::ErrorKind::PermissionDenied => Errno(libc::EPERM),
        _ => errno(error),
    });
    made.map(|_| ())
}

/// Reports whether a stack exists, or may be created.
pub(crate) fn may_promote() -> bool {
    source().is_some()
}

/// Registers a descriptor that came from another process, or existed before this program.
/// A socket that may become the stack's is treated as if it had been created here.
pub(crate) fn inherited(fd: i32) {
    let Some(socket) = raw::borrow(fd) else {
        return;
    };
    let ask = |name| option(socket, libc::SOL_SOCKET, name).unwrap_or(-1);
    watch::forget(fd);
    let kind = candidates::of_call(
        ask(libc::SO_DOMAIN),
        ask(libc::SO_TYPE),
        ask(libc::SO_PROTOCOL),
    );
    // A connected socket is already the kernel's.
    let connected = || rustix::net::getpeername(socket).is_ok();
    if let Some(kind) = kind
        && !(kind == Kind::Stream && connected())
    {
        candidates::set(fd, kind);
        forked::note_shared();
    }
}

/// Returns the interface of the stack, and whether a manager lends it.
pub(crate) fn interface() -> Option<(&'static str, bool)> {
    source().map(|source| (&*source.interface, source.manager.is_some()))
}

fn source() -> Option<&'static Source> {
    if process::is_forked() {
        return None;
    }
    SOURCE.get()
}

/// Returns the stack if it owns the descriptor, or takes it over now that the program
/// attends to it.
#[inline]
pub(crate) fn attended(fd: i32) -> Option<&'static Posix> {
    attended_to(fd, Attention::Takes)
}

/// As [`attended`], for attention other than accepting or reading.
#[inline]
pub(crate) fn attended_to(fd: i32, attention: Attention) -> Option<&'static Posix> {
    match candidates::kind(fd) {
        None => ours(fd),
        Some(kind) => promote(fd, kind, attention),
    }
}

/// Runs `call` while no other thread promotes a socket or creates a stack.
pub(crate) fn promoting<T>(call: impl FnOnce() -> T) -> T {
    // Signal handlers wait: one that called into the stack would find its locks held.
    let blocked = SignalSet::full().block();
    let result = inside(|| {
        let _promoting = hold();
        call()
    });
    blocked.set();
    result
}

/// Stops promotion of sockets (true), or allows it again (false).
pub(crate) fn set_over(over: bool) {
    OVER.store(over, Ordering::Release);
}

/// Returns true if a seccomp filter may refuse the calls that listeners need.
/// Async-signal-safe.
pub(crate) fn is_confined() -> bool {
    OVER.load(Ordering::Acquire) || FILTERED.load(Ordering::Relaxed)
}

/// Returns true if no more sockets become the stack's.
pub(crate) fn is_over() -> bool {
    let is_lost = |posix: &Posix| posix.stack().interface_is_gone();
    is_confined() || source().is_none() || process::posix().is_some_and(is_lost)
}

#[cold]
fn promote(fd: i32, kind: Kind, attention: Attention) -> Option<&'static Posix> {
    if is_inside() || kind == Kind::Stream && !watch::attend(fd, attention) {
        return None;
    }
    if is_over() {
        candidates::forget(fd);
        return ours(fd);
    }
    if kind == Kind::Stream && waits_to_ask() {
        return None;
    }
    raw::with_room(|| {
        promoting(|| match kind {
            _ if candidates::kind(fd).is_none() => (),
            _ if is_over() => candidates::forget(fd),
            Kind::Stream => promote_listener(fd),
            Kind::Datagram => promote_datagrams(fd),
        });
    });
    ours(fd)
}

/// Leaves the socket with the kernel for good.
fn keep(fd: i32, what: &str, address: impl Display, why: impl Display) {
    candidates::forget(fd);
    record(Verdict::Kernel, what, address, why);
}

fn promote_listener(fd: i32) {
    let Some(socket) = raw::borrow(fd) else {
        return candidates::forget(fd);
    };
    match option(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) {
        Ok(1) => {}
        // It may listen or connect later.
        Ok(_) => return,
        Err(_) => return candidates::forget(fd),
    }
    let Some(local) = local_address(socket) else {
        return candidates::forget(fd);
    };
    if let Err(why) =
        reaches(local.ip()).and_then(|()| asks_otherwise(socket, candidates::options(fd)))
    {
        return keep(fd, "listener", local, why);
    }
    if !watch::is_alone(fd) {
        return;
    }
    adopt(fd, socket, "listener", local, |posix, copy| {
        posix.adopt_listener(fd, copy)
    });
    match process::posix().is_some_and(|posix| posix.owns(fd)) {
        true => watch::promoted(fd),
        // A descriptor of the socket was closed, and with it what this process has
        // recorded.
        false => note_accepting(socket),
    }
}

fn promote_datagrams(fd: i32) {
    let Some(socket) = raw::borrow(fd) else {
        return candidates::forget(fd);
    };
    let Some(local) = local_address(socket) else {
        return candidates::forget(fd);
    };
    if local.port() == 0 {
        // No datagram can arrive.
        return;
    }
    if let Err(why) =
        reaches(local.ip()).and_then(|()| asks_otherwise(socket, candidates::options(fd)))
    {
        return keep(fd, "datagrams", local, why);
    }
    if let Some(name) = asks_for_unknown(socket, candidates::options(fd)) {
        let why = format!("it asks for {name}");
        return keep(fd, "datagrams", local, why);
    }
    let sharing = sharing_port(socket, local);
    if !sharing.is_empty() {
        let why = "another socket of the process has its port (SO_REUSEPORT)";
        let all = sharing.into_iter().chain([fd]);
        return all.for_each(|fd| keep(fd, "datagrams", local, why));
    }
    adopt(fd, socket, "datagrams", local, |posix, copy| {
        posix.adopt_datagrams(fd, copy)
    });
}

fn adopt(
    fd: i32,
    socket: BorrowedFd<'_>,
    what: &str,
    address: SocketAddr,
    adopt: impl FnOnce(&'static Posix, OwnedFd) -> io::Result<()>,
) {
    let Some(posix) = stack() else {
        return not_now(fd, what, address, "there is no stack");
    };
    if what == "listener" {
        start_helper(posix);
    }
    let copy = socket.try_clone_to_owned();
    match copy.and_then(|copy| adopt(posix, copy)) {
        Ok(()) => {
            registered::move_over(posix, fd);
            candidates::forget(fd);
            take_copies(posix, fd, socket);
            record(Verdict::Promoted, what, address, "");
            *again() = None;
        }
        Err(why) => {
            if what == "listener" {
                wait_to_ask();
            }
            not_now(fd, what, address, why);
        }
    }
}

/// Leaves the socket with the kernel for now. A listener is tried again at a later accept, when
/// the manager may have returned.
fn not_now(fd: i32, what: &str, address: impl Display, why: impl Display) {
    match what {
        "listener" => record(Verdict::Kernel, what, address, why),
        _ => keep(fd, what, address, why),
    }
}

/// Starts, once, what TCP sockets need of the stack. If that fails, the sockets themselves
/// report it.
pub(crate) fn start_helper(posix: &Posix) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| drop(protecting(|| posix.stack().start_helper())));
}

/// Records that a descriptor was duplicated whose socket may still become the stack's.
pub(crate) fn note_copy() {
    COPIED.store(true, Ordering::Relaxed);
}

/// Takes over the other descriptors of a socket that has just become the stack's.
fn take_copies(posix: &Posix, fd: i32, socket: BorrowedFd<'_>) {
    if !COPIED.load(Ordering::Relaxed) {
        return;
    }
    let cookie = rustix::net::sockopt::socket_cookie(socket).ok();
    for copy in candidates::all() {
        if let Some(other) = raw::borrow(copy)
            && rustix::net::sockopt::socket_cookie(other).ok() == cookie
            && posix.duplicate_as(fd, copy).is_ok()
        {
            registered::move_over(posix, copy);
            candidates::forget(copy);
        }
    }
}

/// Begins a connection on the stack, if the route to the address uses its interface.
/// `None`: the kernel makes the connection.
pub(crate) fn connect(fd: i32, to: SocketAddr) -> Option<Result<()>> {
    if candidates::kind(fd) != Some(Kind::Stream) || is_inside() {
        return None;
    }
    if is_over() || watch::is_accepted(fd) {
        candidates::forget(fd);
        return None;
    }
    let ip = to.ip().to_canonical();
    // The kernel decides what happens with port 0.
    if ip.is_loopback() || ip.is_unspecified() || to.port() == 0 {
        candidates::forget(fd);
        return None;
    }
    let prepare = || {
        if process::posix().is_none()
            && let Err(why) = leads(to)
        {
            keep(fd, "connection", to, why);
            return None;
        }
        let socket = raw::borrow(fd)?;
        if let Err(why) = asks_otherwise(socket, candidates::options(fd)) {
            keep(fd, "connection", to, why);
            return None;
        }
        let Some(posix) = stack() else {
            keep(fd, "connection", to, "there is no stack");
            return None;
        };
        start_helper(posix);
        let nonblocking = fcntl_getfl(socket).ok()?.contains(OFlags::NONBLOCK);
        let copy = socket.try_clone_to_owned().ok()?;
        Some((posix, copy, nonblocking))
    };
    let (posix, copy, nonblocking) = raw::with_room(|| promoting(prepare))?;
    let set = candidates::options(fd);
    raw::test_cancellation(|| !nonblocking);
    let connect = || inside(|| posix.adopt_connecting(fd, copy, to, nonblocking, set));
    let result = raw::with_room(connect);
    match result {
        Ok(false) => {
            inside(|| keep(fd, "connection", to, "another interface leads there"));
            None
        }
        // Nothing was done; the kernel can connect, or reports why it cannot.
        Err(why) if !posix.owns(fd) => {
            inside(|| keep(fd, "connection", to, why));
            None
        }
        result => {
            if posix.owns(fd) {
                inside(|| {
                    registered::move_over(posix, fd);
                    candidates::forget(fd);
                    if let Some(socket) = raw::borrow(fd) {
                        take_copies(posix, fd, socket);
                    }
                    record(Verdict::Promoted, "connections", "", "");
                });
            }
            Some(result.map(drop).map_err(errno))
        }
    }
}

pub(crate) fn local_address(socket: impl AsFd) -> Option<SocketAddr> {
    let address = rustix::net::getsockname(socket).ok()?;
    SocketAddr::try_from(address).ok()
}

/// Checks whether packets for a local address may arrive by the stack's interface; the
/// error states why not.
fn reaches(local: IpAddr) -> core::result::Result<(), String> {
    let local = local.to_canonical();
    if local.is_unspecified() {
        return Ok(());
    }
    if local.is_loopback() {
        return Err("loopback".to_owned());
    }
    let interface = source().map_or("", |source| &source.interface);
    match raw::addresses(interface).contains(&local) {
        true => Ok(()),
        false => Err(format!("it is no address of {interface}")),
    }
}

/// Returns an option for which the socket must stay with the kernel. Signals about a socket
/// (O_ASYNC) would not report the stack's events. Options that choose the way of packets would
/// have no effect.
fn asks_otherwise(socket: BorrowedFd<'_>, set: OptionsSet) -> core::result::Result<(), String> {
    let asks = |name: &str| Err(format!("it asks for {name}"));
    if fcntl_getfl(socket).is_ok_and(|flags| flags.bits() as i32 & libc::O_ASYNC != 0) {
        return Err("it asks for signals (O_ASYNC)".to_owned());
    }
    let waits = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    if set.includes(waits.0, waits.1) && option(socket, waits.0, waits.1).is_ok_and(|it| it > 1) {
        return asks("SO_RCVLOWAT");
    }
    if let Some(name) = asked_among(&WAYS, socket, set) {
        return asks(name);
    }
    if !set.includes(libc::SOL_SOCKET, libc::SO_BINDTODEVICE) {
        return Ok(());
    }
    let mut device = [0; libc::IFNAMSIZ];
    let length = option_bytes(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut device);
    let name = device.get(..length.unwrap_or(0)).unwrap_or_default();
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let own = source().map_or("", |source| &source.interface);
    match name.is_empty() || name == own.as_bytes() {
        true => Ok(()),
        false => asks("another interface (SO_BINDTODEVICE)"),
    }
}

/// `linux/in6.h`, where the libc crate lacks them.
const IPV6_MINHOPCOUNT: i32 = 73;
const IPV6_TRANSPARENT: i32 = 75;

/// Options that choose which way packets leave, or by which they may arrive.
const WAYS: [(i32, i32, &str); 5] = [
    (libc::SOL_SOCKET, libc::SO_MARK, "SO_MARK"),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, "IP_TRANSPARENT"),
    (libc::IPPROTO_IP, libc::IP_MINTTL, "IP_MINTTL"),
    (libc::IPPROTO_IPV6, IPV6_TRANSPARENT, "IPV6_TRANSPARENT"),
    (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, "IPV6_MINHOPCOUNT"),
];

/// Reports whether an option signs segments: TCP_MD5SIG, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY.
pub(crate) fn is_of_signatures(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_TCP && matches!(name, 14 | 32 | 38)
}

/// Keeps a socket that signs its segments with the kernel: the stack does not sign.
pub(crate) fn signs(fd: i32) {
    if candidates::kind(fd) == Some(Kind::Stream) && !is_inside() {
        candidates::forget(fd);
        let local = raw::borrow(fd).and_then(local_address);
        let local = local.map_or(String::new(), |it| it.to_string());
        inside(|| {
            record(
                Verdict::Kernel,
                "connections",
                local,
                "it asks for TCP_MD5SIG",
            )
        });
    }
}

/// Checks whether the route to an address uses the stack's interface; the error states
/// why not. The kernel reports which of its addresses it would send from.
fn leads(to: SocketAddr) -> core::result::Result<(), String> {
    let any = match to {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let from = UdpSocket::bind(any).and_then(|probe| {
        probe.connect(to)?;
        probe.local_addr()
    });
    match from {
        Ok(from) => reaches(from.ip()),
        Err(error) => Err(error.to_string()),
    }
}

/// Finds the other datagram sockets of this process in a SO_REUSEPORT group. The kernel
/// spreads datagrams over a group; in the stack one socket would receive all.
fn sharing_port(socket: BorrowedFd<'_>, address: SocketAddr) -> Vec<i32> {
    let ask = |socket: BorrowedFd<'_>, name| option(socket, libc::SOL_SOCKET, name).ok();
    let cookie = |socket| rustix::net::sockopt::socket_cookie(socket).ok();
    if ask(socket, libc::SO_REUSEPORT) != Some(1) {
        return Vec::new();
    }
    let shares = |&other: &i32| {
        raw::borrow(other).is_some_and(|other| {
            local_address(other) == Some(address)
                && ask(other, libc::SO_REUSEPORT) == Some(1)
                && ask(other, libc::SO_TYPE) == ask(socket, libc::SO_TYPE)
                && cookie(other) != cookie(socket)
        })
    };
    candidates::all().filter(shares).collect()
}

/// Options for control messages that the stack lacks, or for segmentation and coalescing that
/// it does not do.
const UNKNOWN: [(i32, i32, &str); 11] = [
    (libc::IPPROTO_IP, libc::IP_RECVERR, "IP_RECVERR"),
    (
        libc::IPPROTO_IP,
        libc::IP_RECVORIGDSTADDR,
        "IP_RECVORIGDSTADDR",
    ),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, "IPV6_RECVERR"),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVORIGDSTADDR,
        "IPV6_RECVORIGDSTADDR",
    ),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, "SO_TIMESTAMP"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, "SO_TIMESTAMPING"),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL"),
    (libc::SOL_UDP, libc::UDP_GRO, "UDP_GRO"),
    (libc::SOL_UDP, libc::UDP_SEGMENT, "UDP_SEGMENT"),
    (libc::SOL_UDP, libc::UDP_CORK, "UDP_CORK"),
];

/// Reports whether an option is one of them.
pub(crate) fn is_unknown(level: i32, name: i32) -> bool {
    UNKNOWN.iter().any(|it| (it.0, it.1) == (level, name))
}

/// Returns one of them that a datagram socket has.
fn asks_for_unknown(socket: BorrowedFd<'_>, set: OptionsSet) -> Option<&'static str> {
    asked_among(&UNKNOWN, socket, set)
}

/// Returns the first option of a list that a socket has, among those that may have been
/// set.
fn asked_among(
    list: &[(i32, i32, &'static str)],
    socket: BorrowedFd<'_>,
    set: OptionsSet,
) -> Option<&'static str> {
    let is_on = |&&(level, name, _): &&(i32, i32, &'static str)| {
        set.includes(level, name) && option(socket, level, name).is_ok_and(|value| value != 0)
    };
    list.iter().find(is_on).map(|&(_, _, name)| name)
}

/// Returns the stack, and creates it if needed; `None` if that is not possible.
pub(crate) fn stack() -> Option<&'static Posix> {
    if let Some(posix) = process::posix() {
        return Some(posix);
    }
    if waits_to_ask() {
        return None;
    }
    make(source()?).inspect_err(|_| wait_to_ask()).ok()
}

fn make(source: &Source) -> io::Result<&'static Posix> {
    if has_ring() {
        let why = "the program has an io_uring, which does not reach the stack's sockets";
        record(Verdict::NoStack, "", &source.interface, why);
        return Err(io::Error::other(why));
    }
    let config = EmbeddedConfig::new(&source.interface).policy(policy());
    let _ = MAKES.try_with(|makes| makes.set(true));
    let made = protecting(|| match &source.manager {
        Some(path) => Stack::managed(path, config),
        None => Stack::embedded(config),
    });
    let _ = MAKES.try_with(|makes| makes.set(false));
    let stack = made.inspect_err(|error| record(Verdict::NoStack, "", &source.interface, error))?;
    // The stack's clock has just begun.
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let config = PosixConfig::default().epoch(epoch.unwrap_or_default());
    stack.on_shared_listener(Watcher {
        hear: watch::shared,
        is_own: watch::is_own,
    });
    let posix = process::set(Posix::new(&stack, config));
    record(Verdict::Stack, "", &source.interface, "");
    stack.answer_unprotected(report::unprotected);
    stack.when_interface_is_gone(|interface| inside(|| lost(interface)));
    Ok(posix)
}

/// Reports that the interface of the stack is gone. From here on the program runs on the
/// kernel, unprotected, and does not notice that by itself.
fn lost(interface: &str) {
    let why = format!("{interface} is no more: earlier sockets went to the kernel, too");
    record(Verdict::Kernel, "later sockets", "", why);
}

/// Returns the receive control policy that `tidewall run --policy` requests.
fn policy() -> PolicyKind {
    let name = std::env::var(POLICY).ok();
    name.and_then(|name| name.parse().ok()).unwrap_or_default()
}

/// Parses an address argument from its bytes.
pub(crate) fn address_of(bytes: &[u8]) -> Option<SocketAddr> {
    RawAddress::parse(bytes)
}
