//! The system calls of the Linux column, on descriptors by number.

use std::net::{Ipv4Addr, Shutdown, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::column::{Answer, Event, Selected};

/// An error as its number.
fn number(error: Errno) -> i32 {
    error.raw_os_error()
}

fn check(result: std::io::Result<usize>) -> Answer<usize> {
    result.map_err(|error| error.raw_os_error().unwrap())
}

fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // The one number that cannot be borrowed is no more open than the highest.
    let fd = if fd == -1 { i32::MAX } else { fd };
    // SAFETY: not -1. The numbers of the tests are owned by them alone, and open for
    // as long as the kernel says.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Makes `to` name the same open file.
pub fn dup2(from: i32, to: i32) -> Answer<()> {
    // SAFETY: no pointers, and nothing else owns the numbers.
    let result = unsafe { libc::dup2(from, to) };
    check(outcome(result.into())).map(drop)
}

/// Closes a number, which nothing else owns.
pub fn close(fd: i32) -> Answer<()> {
    // SAFETY: as above.
    let result = unsafe { libc::close(fd) };
    check(outcome(result.into())).map(drop)
}

/// The result of a call, or why there is none.
fn outcome(result: i64) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

pub fn read(fd: i32, length: usize) -> Answer<usize> {
    rustix::io::read(borrow(fd), &mut vec![0; length][..]).map_err(number)
}

pub fn write(fd: i32, bytes: &[u8]) -> Answer<usize> {
    rustix::net::send(borrow(fd), bytes, SendFlags::NOSIGNAL).map_err(number)
}

pub fn write_counter(fd: i32, add: u64) -> Answer<()> {
    let written = rustix::io::write(borrow(fd), &add.to_ne_bytes());
    written.map(drop).map_err(number)
}

pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// A pipe's ends, nonblocking: reading, writing.
pub fn pipe() -> [OwnedFd; 2] {
    let (read, write) = std::io::pipe().unwrap();
    let ends = [OwnedFd::from(read), OwnedFd::from(write)];
    for end in &ends {
        rustix::io::ioctl_fionbio(end, true).unwrap();
    }
    ends
}

pub fn shutdown(fd: i32, how: Shutdown) -> Answer<()> {
    let how = match how {
        Shutdown::Read => rustix::net::Shutdown::Read,
        Shutdown::Write => rustix::net::Shutdown::Write,
        Shutdown::Both => rustix::net::Shutdown::Both,
    };
    rustix::net::shutdown(borrow(fd), how).map_err(number)
}

pub fn socket() -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
}

/// Begins to connect to a port of the loopback address.
pub fn connect(fd: i32, port: u16) -> Answer<()> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    rustix::net::connect(borrow(fd), &address).map_err(number)
}

/// Accepts a connection, nonblocking.
pub fn accept(fd: i32) -> Answer<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::accept_with(borrow(fd), flags).map_err(number)
}

/// The port that a socket is bound to.
pub fn port(fd: i32) -> u16 {
    let address = rustix::net::getsockname(borrow(fd)).unwrap();
    SocketAddrV4::try_from(address).unwrap().port()
}

pub fn take_error(fd: i32) -> Answer<i32> {
    let error = tidewall_sys::option(borrow(fd), libc::SOL_SOCKET, libc::SO_ERROR);
    error.map_err(|error| error.raw_os_error().unwrap())
}

pub fn reset_on_close(fd: BorrowedFd<'_>) {
    rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO)).unwrap();
}

/// State, bytes received, and segments not acknowledged (of a listener: those to be
/// accepted), as TCP_INFO has them.
pub fn tcp_info(fd: i32) -> Option<(u8, u64, u32)> {
    let mut info = [0; 256];
    tidewall_sys::option_bytes(borrow(fd), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    // tcpi_state at 0, tcpi_unacked at 24, tcpi_bytes_received at 128.
    let unacknowledged = u32::from_ne_bytes(*info[24..].first_chunk()?);
    let received = u64::from_ne_bytes(*info[128..].first_chunk()?);
    Some((info[0], received, unacknowledged))
}

pub fn epoll_create() -> OwnedFd {
    epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
}

pub fn epoll_ctl(set: i32, operation: i32, fd: i32, event: Option<Event>) -> Answer<()> {
    let mut raw = event.map(|(events, data)| libc::epoll_event { events, u64: data });
    let pointer = raw
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: null or a valid event.
    let result = unsafe { libc::epoll_ctl(set, operation, fd, pointer) };
    check(outcome(result.into())).map(drop)
}

pub fn epoll_wait(set: i32, most: usize) -> Answer<Vec<Event>> {
    let empty = epoll::Event {
        flags: epoll::EventFlags::empty(),
        data: epoll::EventData::new_u64(0),
    };
    let mut events = vec![empty; most];
    let now = Timespec::default();
    let count = epoll::wait(borrow(set), &mut events[..], Some(&now)).map_err(number)?;
    let event = |epoll::Event { flags, data }| (flags.bits(), data.u64());
    Ok(events.into_iter().take(count).map(event).collect())
}

/// `select` without waiting, of any width.
pub fn select<I: Iterator<Item = i32>>(nfds: i32, sets: [I; 3]) -> Answer<(usize, Selected)> {
    let words = nfds.max(0) as usize / 64 + 1;
    let mut sets = sets.map(|numbers| {
        let mut set = vec![0u64; words];
        for fd in numbers.filter(|&fd| fd >= 0 && (fd as usize) < words * 64) {
            set[fd as usize / 64] |= 1 << (fd % 64);
        }
        set
    });
    let [read, write, except] = &mut sets;
    let ready = tidewall_sys::select(nfds, read, write, except, Some(Duration::ZERO));
    let ready = check(ready)?;
    let numbers = sets.map(|set| {
        let all = 0..(words * 64) as i32;
        all.filter(|fd| set[*fd as usize / 64] & 1 << (fd % 64) != 0)
            .collect()
    });
    Ok((ready, numbers))
}

/// `poll` without waiting.
pub fn poll(list: impl Iterator<Item = (i32, i16)>) -> Answer<(usize, Vec<i16>)> {
    let mut list: Vec<libc::pollfd> = list
        .map(|(fd, events)| libc::pollfd {
            fd,
            events,
            revents: -1,
        })
        .collect();
    let ready = check(tidewall_sys::ppoll(&mut list, Some(Duration::ZERO), None))?;
    Ok((ready, list.iter().map(|entry| entry.revents).collect()))
}
