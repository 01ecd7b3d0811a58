//! The system calls of Linux's column.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::column::{Answer, Told};

fn check(result: i32) -> Answer<i32> {
    if result < 0 {
        Err(io::Error::last_os_error().raw_os_error().unwrap())
    } else {
        Ok(result)
    }
}

fn owned(result: i32) -> OwnedFd {
    let fd = check(result).unwrap();
    // SAFETY: a descriptor just returned to us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes `to` name the same open file.
pub fn dup2(from: i32, to: i32) -> Answer<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::dup2(from, to) }).map(drop)
}

/// Closes a number, which nothing else owns.
pub fn close(fd: i32) -> Answer<()> {
    // SAFETY: no pointers; the numbers of the tests are owned by them alone.
    check(unsafe { libc::close(fd) }).map(drop)
}

pub fn read(fd: i32, length: usize) -> Answer<usize> {
    let mut buffer = vec![0u8; length];
    // SAFETY: writable for the length stated.
    check(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), length) } as i32)
        .map(|length| length as usize)
}

pub fn write(fd: i32, bytes: &[u8]) -> Answer<usize> {
    // SAFETY: readable for the length stated.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    check(sent as i32).map(|length| length as usize)
}

pub fn write_counter(fd: i32, add: u64) -> Answer<()> {
    // SAFETY: eight valid bytes.
    check(unsafe { libc::write(fd, (&raw const add).cast(), 8) } as i32).map(drop)
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// A pipe's ends, nonblocking: reading, writing.
pub fn pipe() -> [OwnedFd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) };
    check(made).unwrap();
    ends.map(owned)
}

pub fn shutdown(fd: i32, how: i32) -> Answer<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd, how) }).map(drop)
}

pub fn socket() -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(libc::AF_INET, kind, 0) })
}

/// Begins to connect to a port of the loopback address.
pub fn connect(fd: i32, port: u16) -> Answer<()> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: a valid address of the length stated.
    check(unsafe { libc::connect(fd, (&raw const address).cast(), length) }).map(drop)
}

/// Accepts a connection, nonblocking.
pub fn accept(fd: i32) -> Answer<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: null addresses are allowed.
    let result = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    check(result).map(owned)
}

/// The port that a socket is bound to.
pub fn port(fd: i32) -> u16 {
    // SAFETY: all-zero is a valid sockaddr_in.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: writable for the length stated.
    check(unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut length) }).unwrap();
    u16::from_be(address.sin_port)
}

pub fn get(fd: i32, level: i32, name: i32) -> Answer<i32> {
    let mut value = 0i32;
    let mut length = 4 as libc::socklen_t;
    // SAFETY: four writable bytes.
    check(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut length) })?;
    Ok(value)
}

pub fn reset_on_close(fd: BorrowedFd<'_>) {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: a valid linger.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const value).cast(),
            length,
        )
    })
    .unwrap();
}

/// State, bytes received, and segments not acknowledged (of a listener: those to be
/// accepted), as TCP_INFO has them.
pub fn tcp_info(fd: i32) -> Option<(u8, u64, u32)> {
    let mut info = [0u64; 32];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: writable for the length stated.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    check(result).ok()?;
    let byte = |n: usize| info[n / 8].to_ne_bytes()[n % 8];
    let word = |n: usize| u32::from_ne_bytes([byte(n), byte(n + 1), byte(n + 2), byte(n + 3)]);
    // tcpi_state at 0, tcpi_unacked at 24, tcpi_bytes_received at 128.
    Some((byte(0), info[128 / 8], word(24)))
}

pub fn epoll_create() -> OwnedFd {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

pub fn epoll_ctl(set: i32, operation: i32, fd: i32, event: Option<Told>) -> Answer<()> {
    let mut raw = event.map(|(events, data)| libc::epoll_event { events, u64: data });
    let pointer = raw
        .as_mut()
        .map_or(std::ptr::null_mut(), |raw| raw as *mut _);
    // SAFETY: null or a valid event.
    check(unsafe { libc::epoll_ctl(set, operation, fd, pointer) }).map(drop)
}

pub fn epoll_wait(set: i32, most: usize) -> Answer<Vec<Told>> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
    // SAFETY: writable for the length stated.
    let count = check(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), most as i32, 0) })?;
    events.truncate(count as usize);
    Ok(events.iter().map(|it| (it.events, it.u64)).collect())
}

/// A thread, to send it signals.
#[derive(Clone, Copy)]
pub struct Thread(libc::pthread_t);

pub fn this_thread() -> Thread {
    // SAFETY: no arguments.
    Thread(unsafe { libc::pthread_self() })
}

/// Sends a thread, which lives, a signal.
pub fn signal(thread: Thread, signal: i32) {
    // SAFETY: the tests join their threads after they have signalled them.
    assert_eq!(unsafe { libc::pthread_kill(thread.0, signal) }, 0);
}

/// From now on the signal ends system calls, and does nothing else.
pub fn handle(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all-zero is a valid sigaction, without SA_RESTART; the handler does
    // nothing, which is safe anywhere.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Blocks a signal in the calling thread.
pub fn block(signal: i32) {
    // SAFETY: all-zero is a valid sigset_t, which sigemptyset initialises.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        let result = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        assert_eq!(result, 0);
    }
}
