//! Linux's column: kernel sockets over loopback.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::column::{Answer, Column, NUMBERS, Selected};
use super::raw_linux as raw;

pub use super::column::Event;

/// First of the tests' numbers among the process's descriptors.
const BASE: i32 = 400;
/// Time within which expected data arrives; a delayed acknowledgment takes 40 ms.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One column at a time: they share the numbers.
static TURN: Mutex<()> = Mutex::new(());

enum Peer {
    Stream(TcpStream),
    Datagram(UdpSocket),
}

/// Bytes that the ends of a connection have sent.
#[derive(Default)]
struct Traffic {
    by_subject: u64,
    by_peer: u64,
    /// The peer has reset it, or been closed: what the subject sends is not counted.
    over: bool,
}

pub struct Linux {
    /// Whose each number is: a connection.
    numbers: HashMap<i32, usize>,
    /// Which listener each number is.
    listeners: HashMap<i32, usize>,
    /// Connections that wait at a listener, in order.
    backlog: Vec<VecDeque<usize>>,
    peers: HashMap<usize, Peer>,
    traffic: HashMap<usize, Traffic>,
    service: TcpListener,
    _turn: MutexGuard<'static, ()>,
}

fn at(fd: i32) -> i32 {
    if (0..NUMBERS).contains(&fd) {
        BASE + fd
    } else {
        fd
    }
}

impl Linux {
    pub fn new() -> Self {
        Linux {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
            numbers: HashMap::new(),
            listeners: HashMap::new(),
            backlog: Vec::new(),
            peers: HashMap::new(),
            traffic: HashMap::new(),
            service: TcpListener::bind("127.0.0.1:0").unwrap(),
        }
    }

    fn place(&mut self, fd: i32, file: impl Into<OwnedFd>) {
        let file = file.into().into_raw_fd();
        raw::dup2(file, at(fd)).unwrap();
        raw::close(file).unwrap();
    }

    fn begin(&mut self, fd: i32, connection: usize) {
        self.numbers.insert(fd, connection);
        self.traffic.insert(connection, Traffic::default());
    }

    fn traffic(&mut self, connection: usize) -> &mut Traffic {
        self.traffic.get_mut(&connection).unwrap()
    }

    /// True when nothing is on its way any more.
    fn is_quiescent(&self) -> bool {
        const IN_BETWEEN: [u8; 3] = [4, 9, 11];
        let calm = |state: u8| !IN_BETWEEN.contains(&state);
        for (&fd, connection) in &self.numbers {
            let Some((state, received, unacknowledged)) = raw::tcp_info(at(fd)) else {
                continue;
            };
            let traffic = &self.traffic[connection];
            let reset = state == 7;
            // LISTEN has no traffic; 2: SYN-SENT.
            if !calm(state) || state == 2 || (!reset && received < traffic.by_peer) {
                return false;
            }
            if traffic.over && !reset && unacknowledged > 0 {
                return false;
            }
        }
        for (connection, peer) in &self.peers {
            let Peer::Stream(peer) = peer else { continue };
            let (state, received, _) = raw::tcp_info(peer.as_raw_fd()).unwrap();
            let reset = state == 7;
            if !calm(state) || (!reset && received < self.traffic[connection].by_subject) {
                return false;
            }
        }
        self.listeners.iter().all(|(fd, listener)| {
            let (state, _, queued) = raw::tcp_info(at(*fd)).unwrap();
            // 7: it does not listen any more.
            state == 7 || queued as usize >= self.backlog[*listener].len()
        })
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        for fd in 0..NUMBERS {
            let _ = raw::close(at(fd));
        }
    }
}

impl Column for Linux {
    fn pair(&mut self, fd: i32, connection: usize) {
        let subject = TcpStream::connect(self.service.local_addr().unwrap()).unwrap();
        let (peer, _) = self.service.accept().unwrap();
        subject.set_nonblocking(true).unwrap();
        subject.set_nodelay(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer.set_nodelay(true).unwrap();
        self.place(fd, subject);
        self.begin(fd, connection);
        self.peers.insert(connection, Peer::Stream(peer));
    }

    fn listener(&mut self, fd: i32) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        self.place(fd, listener);
        self.listeners.insert(fd, self.backlog.len());
        self.backlog.push(VecDeque::new());
    }

    fn datagram(&mut self, fd: i32, connection: usize) {
        let subject = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        subject.connect(peer.local_addr().unwrap()).unwrap();
        peer.connect(subject.local_addr().unwrap()).unwrap();
        subject.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        self.place(fd, subject);
        self.begin(fd, connection);
        self.peers.insert(connection, Peer::Datagram(peer));
    }

    fn counter(&mut self, fd: i32) {
        self.place(fd, raw::eventfd());
    }

    fn pipe(&mut self, fd: i32, to: i32) {
        let [read, write] = raw::pipe();
        self.place(fd, read);
        self.place(to, write);
    }

    fn file(&mut self, fd: i32) {
        self.place(fd, std::fs::File::open("/etc/hostname").unwrap());
    }

    fn peer_connect(&mut self, fd: i32, connection: usize) {
        let port = raw::port(at(fd));
        let peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
        peer.set_nonblocking(true).unwrap();
        self.peers.insert(connection, Peer::Stream(peer));
        self.traffic.insert(connection, Traffic::default());
        let listener = self.listeners[&fd];
        self.backlog[listener].push_back(connection);
    }

    fn accept(&mut self, fd: i32, to: i32) -> Answer<()> {
        let accepted = raw::accept(at(fd))?;
        let listener = self.listeners[&fd];
        let connection = self.backlog[listener].pop_front().unwrap();
        self.place(to, accepted);
        self.numbers.insert(to, connection);
        Ok(())
    }

    fn connect(&mut self, fd: i32, connection: usize) {
        let subject = raw::socket();
        let port = self.service.local_addr().unwrap().port();
        assert_eq!(
            raw::connect(subject.as_raw_fd(), port),
            Err(libc::EINPROGRESS)
        );
        self.place(fd, subject);
        self.begin(fd, connection);
        let (peer, _) = self.service.accept().unwrap();
        peer.set_nonblocking(true).unwrap();
        self.peers.insert(connection, Peer::Stream(peer));
    }

    fn peer_write(&mut self, connection: usize, length: usize) {
        let sent = match self.peers.get_mut(&connection) {
            Some(Peer::Stream(peer)) => peer.write(&vec![1; length]).unwrap_or(0),
            Some(Peer::Datagram(peer)) => peer.send(&vec![1; length]).unwrap_or(0),
            None => 0,
        };
        self.traffic(connection).by_peer += sent as u64;
    }

    fn peer_read(&mut self, connection: usize) {
        let mut buffer = [0; 65536];
        match self.peers.get_mut(&connection) {
            Some(Peer::Stream(peer)) => while peer.read(&mut buffer).is_ok_and(|n| n > 0) {},
            Some(Peer::Datagram(peer)) => while peer.recv(&mut buffer).is_ok() {},
            None => {}
        }
    }

    fn peer_shutdown(&mut self, connection: usize, how: Shutdown) {
        if let Some(Peer::Stream(peer)) = self.peers.get(&connection) {
            let _ = peer.shutdown(how);
        }
    }

    fn peer_close(&mut self, connection: usize, reset: bool) {
        if let Some(peer) = self.peers.remove(&connection) {
            if let Peer::Stream(peer) = &peer
                && reset
            {
                raw::reset_on_close(peer.as_fd());
            }
            self.traffic(connection).over = true;
        }
    }

    fn read(&mut self, fd: i32, length: usize) -> Answer<usize> {
        raw::read(at(fd), length)
    }

    fn write(&mut self, fd: i32, length: usize) -> Answer<usize> {
        let sent = raw::write(at(fd), &vec![1; length])?;
        if let Some(&connection) = self.numbers.get(&fd) {
            self.traffic(connection).by_subject += sent as u64;
        }
        Ok(sent)
    }

    fn count(&mut self, fd: i32, add: u64) -> Answer<()> {
        if add == 0 {
            raw::read(at(fd), 8).map(drop)
        } else {
            raw::write_counter(at(fd), add)
        }
    }

    fn shutdown(&mut self, fd: i32, how: Shutdown) -> Answer<()> {
        raw::shutdown(at(fd), how)
    }

    fn take_error(&mut self, fd: i32) -> Answer<i32> {
        raw::take_error(at(fd))
    }

    fn close(&mut self, fd: i32) -> Answer<()> {
        self.numbers.remove(&fd);
        self.listeners.remove(&fd);
        raw::close(at(fd))
    }

    fn dup(&mut self, fd: i32, to: i32) -> Answer<()> {
        raw::dup2(at(fd), at(to))?;
        if let Some(&connection) = self.numbers.get(&fd) {
            self.numbers.insert(to, connection);
        }
        if let Some(&listener) = self.listeners.get(&fd) {
            self.listeners.insert(to, listener);
        }
        Ok(())
    }

    fn epoll_create(&mut self, fd: i32) {
        self.place(fd, raw::epoll_create());
    }

    fn epoll_ctl(&mut self, set: i32, operation: i32, fd: i32, event: Option<Event>) -> Answer<()> {
        raw::epoll_ctl(at(set), operation, at(fd), event)
    }

    fn epoll_wait(&mut self, set: i32, most: usize) -> Answer<Vec<Event>> {
        raw::epoll_wait(at(set), most)
    }

    fn select(&mut self, sets: &Selected, count: i32) -> Answer<(usize, Selected)> {
        let numbers = sets.each_ref().map(|set| set.iter().map(|&fd| at(fd)));
        let (ready, sets) = raw::select(BASE + count, numbers)?;
        // The last word's numbers from `count` on are cleared or not as they lie.
        let below = |set: Vec<i32>| {
            let numbers = set.into_iter().map(|fd| fd - BASE);
            numbers.filter(|&fd| fd < count).collect()
        };
        Ok((ready, sets.map(below)))
    }

    fn poll(&mut self, list: &[(i32, i16)]) -> Answer<(usize, Vec<i16>)> {
        raw::poll(list.iter().map(|&(fd, events)| (at(fd), events)))
    }

    fn quiesce(&mut self) {
        let end = Instant::now() + TIMEOUT;
        while !self.is_quiescent() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
