//! Tidewall's column: descriptors of a stack, whose peers are on another one, over
//! a link in memory.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{DescriptorSet, EpollEvent, Events, Operation, PollFd};
use tidewall::{ListenOptions, MemoryConfig, Stack, TcpListener, TcpStream, UdpSocket};
use tidewall_device::memory::{Link, LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

use super::column::{Answer, Column, Event, NUMBERS, Selected};
use super::raw_linux;

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// First of the tests' numbers; lower descriptors serve other purposes.
const BASE: i32 = 64;

enum Peer {
    Stream(TcpStream),
    Datagram(UdpSocket),
}

pub struct Tidewall {
    link: Link,
    near: Stack,
    far: Stack,
    clock: Arc<AtomicU64>,
    pub descriptors: Descriptors,
    /// `select` is the classical one.
    pub classical: bool,
    peers: HashMap<usize, Peer>,
    /// Addresses of listeners.
    listeners: HashMap<i32, SocketAddr>,
    port: u16,
    /// Subjects' protocol runs when their set is waited on, or after a while.
    lazy: bool,
    quiesced: usize,
    /// Sets beside those of the test: turning one runs the protocol of what is in
    /// it, which a helper thread does in real time. Listeners, and subjects.
    drivers: [i32; 2],
}

fn at(fd: i32) -> i32 {
    if (0..NUMBERS).contains(&fd) {
        BASE + fd
    } else {
        fd
    }
}

fn answer<T>(result: std::io::Result<T>) -> Answer<T> {
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => libc::EAGAIN,
        std::io::ErrorKind::InvalidInput => libc::EINVAL,
        kind => error
            .raw_os_error()
            .unwrap_or_else(|| panic!("no errno: {kind}")),
    })
}

impl Tidewall {
    /// `lazy`: nothing runs a subject's protocol between two operations.
    pub fn new(lazy: bool) -> Self {
        let (link, a, b) = pair(LinkConfig::default()).unwrap();
        let clock = Arc::new(AtomicU64::new(0));
        let now = || {
            let clock = clock.clone();
            move || Duration::from_millis(clock.load(Ordering::Relaxed))
        };
        let config = |address: Ipv4Addr, mac, peer| MemoryConfig {
            addresses: vec![address.into()],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        let near = Stack::in_memory_on_clock(a, config(NEAR, 1, 2), now()).unwrap();
        let far = Stack::in_memory_on_clock(b, config(FAR, 2, 1), now()).unwrap();
        let descriptors = Descriptors::new(&near, 4096);
        Tidewall {
            drivers: [(); 2].map(|()| descriptors.epoll_create1(Flags::NONE).unwrap()),
            descriptors,
            classical: false,
            link,
            near,
            far,
            clock,
            peers: HashMap::new(),
            listeners: HashMap::new(),
            port: 1000,
            lazy,
            quiesced: 0,
        }
    }

    /// Moves what was opened under any number to `fd`.
    fn place(&mut self, opened: i32, fd: i32) {
        self.descriptors.dup2(opened, at(fd)).unwrap();
        self.descriptors.close(opened).unwrap();
    }

    /// The protocol of what is `fd` now is run by a driver.
    fn drive(&mut self, driver: usize, fd: i32) {
        let event = Some(EpollEvent::default());
        let added = self
            .descriptors
            .epoll_ctl(self.drivers[driver], Operation::Add, at(fd), event);
        answer(added).unwrap();
    }

    fn advance(&self, milliseconds: u64) {
        let now = self.clock.fetch_add(milliseconds, Ordering::Relaxed) + milliseconds;
        self.link.advance_to(Duration::from_millis(now));
    }

    /// Frames go to and fro.
    fn pump(&mut self) {
        self.near.wait(&[], Some(Duration::ZERO)).unwrap();
        self.far.wait(&[], Some(Duration::ZERO)).unwrap();
        // No other thread runs the protocol of unwatched peers.
        for peer in self.peers.values() {
            if let Peer::Stream(peer) = peer {
                let _ = peer.peek(&mut [0]);
            }
        }
        self.turn(0);
        if !self.lazy {
            self.turn(1);
        }
    }

    /// Runs the protocol of what is in a driver.
    fn turn(&mut self, driver: usize) {
        let mut events = [EpollEvent::default(); 64];
        let now = Some(Duration::ZERO);
        self.descriptors
            .epoll_wait(self.drivers[driver], &mut events, now)
            .unwrap();
    }

    /// The other end of what `fd` is.
    fn accept_peer(&mut self, fd: i32, service: &TcpListener, connection: usize) {
        for _ in 0..100 {
            // The handshake's last segment: a read sees the answer to the first.
            let read = self.descriptors.recv(at(fd), &mut [0], libc::MSG_PEEK);
            assert_eq!(answer(read), Err(libc::EAGAIN));
            self.pump();
            if let Ok((peer, _)) = service.accept() {
                peer.set_nonblocking(true).unwrap();
                peer.set_nodelay(true).unwrap();
                self.peers.insert(connection, Peer::Stream(peer));
                return;
            }
        }
        panic!("no connection");
    }

    fn open_kernels(&mut self, fd: i32, file: OwnedFd) {
        let opened = self.descriptors.open(file, Flags::NONE).unwrap();
        self.place(opened, fd);
    }

    fn next_port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }
}

impl Column for Tidewall {
    fn pair(&mut self, fd: i32, connection: usize) {
        self.connect(fd, connection);
        assert_eq!(answer(self.descriptors.write(at(fd), &[])), Ok(0));
    }

    fn listener(&mut self, fd: i32) {
        let address = SocketAddr::from((NEAR, self.next_port()));
        let options = ListenOptions::default();
        let opened = self
            .descriptors
            .listen(address, options, Flags::NONBLOCK)
            .unwrap();
        self.place(opened, fd);
        self.listeners.insert(fd, address);
        self.drive(0, fd);
    }

    fn datagram(&mut self, fd: i32, connection: usize) {
        let near = SocketAddr::from((NEAR, self.next_port()));
        let far = SocketAddr::from((FAR, near.port()));
        let subject = UdpSocket::bind(&self.near, near).unwrap();
        let peer = UdpSocket::bind(&self.far, far).unwrap();
        subject.connect(far).unwrap();
        peer.connect(near).unwrap();
        peer.set_nonblocking(true).unwrap();
        let opened = self.descriptors.open(subject, Flags::NONBLOCK).unwrap();
        self.place(opened, fd);
        self.peers.insert(connection, Peer::Datagram(peer));
    }

    fn counter(&mut self, fd: i32) {
        self.open_kernels(fd, raw_linux::eventfd());
    }

    fn pipe(&mut self, fd: i32, to: i32) {
        let [read, write] = raw_linux::pipe();
        self.open_kernels(fd, read);
        self.open_kernels(to, write);
    }

    fn file(&mut self, fd: i32) {
        let file = std::fs::File::open("/etc/hostname").unwrap();
        self.open_kernels(fd, file.into());
    }

    fn peer_connect(&mut self, fd: i32, connection: usize) {
        let peer = TcpStream::connect_nonblocking(&self.far, self.listeners[&fd]).unwrap();
        self.peers.insert(connection, Peer::Stream(peer));
    }

    fn accept(&mut self, fd: i32, to: i32) -> Answer<()> {
        let (opened, _) = answer(self.descriptors.accept4(at(fd), Flags::NONBLOCK))?;
        self.place(opened, to);
        self.drive(1, to);
        Ok(())
    }

    fn connect(&mut self, fd: i32, connection: usize) {
        // A port of its own: on a clock that hardly moves, an old connection between
        // the same ports would be in the way.
        let address = SocketAddr::from((FAR, self.next_port()));
        let service = TcpListener::bind(&self.far, address).unwrap();
        service.set_nonblocking(true).unwrap();
        let opened = self.descriptors.connect(address, Flags::NONBLOCK).unwrap();
        self.place(opened, fd);
        self.accept_peer(fd, &service, connection);
        self.drive(1, fd);
    }

    fn peer_write(&mut self, connection: usize, length: usize) {
        match self.peers.get_mut(&connection) {
            Some(Peer::Stream(peer)) => drop(peer.write(&vec![1; length])),
            Some(Peer::Datagram(peer)) => drop(peer.send(&vec![1; length])),
            None => {}
        }
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
        if let Some(peer) = self.peers.remove(&connection)
            && let Peer::Stream(peer) = &peer
            && reset
        {
            peer.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }

    fn read(&mut self, fd: i32, length: usize) -> Answer<usize> {
        answer(self.descriptors.read(at(fd), &mut vec![0; length]))
    }

    fn write(&mut self, fd: i32, length: usize) -> Answer<usize> {
        answer(self.descriptors.write(at(fd), &vec![1; length]))
    }

    fn count(&mut self, fd: i32, add: u64) -> Answer<()> {
        let done = if add == 0 {
            self.descriptors.read(at(fd), &mut [0; 8])
        } else {
            self.descriptors.write(at(fd), &add.to_ne_bytes())
        };
        answer(done).map(drop)
    }

    fn shutdown(&mut self, fd: i32, how: Shutdown) -> Answer<()> {
        answer(self.descriptors.shutdown(at(fd), how))
    }

    fn take_error(&mut self, fd: i32) -> Answer<i32> {
        let error = answer(self.descriptors.take_error(at(fd)))?;
        Ok(error.map_or(0, |error| error.raw_os_error().unwrap()))
    }

    fn close(&mut self, fd: i32) -> Answer<()> {
        answer(self.descriptors.close(at(fd)))
    }

    fn dup(&mut self, fd: i32, to: i32) -> Answer<()> {
        answer(self.descriptors.dup2(at(fd), at(to)))?;
        if let Some(&address) = self.listeners.get(&fd) {
            self.listeners.insert(to, address);
        }
        Ok(())
    }

    fn epoll_create(&mut self, fd: i32) {
        let opened = self.descriptors.epoll_create1(Flags::NONE).unwrap();
        self.place(opened, fd);
    }

    fn epoll_ctl(&mut self, set: i32, operation: i32, fd: i32, event: Option<Event>) -> Answer<()> {
        let operation = match operation {
            libc::EPOLL_CTL_ADD => Operation::Add,
            libc::EPOLL_CTL_MOD => Operation::Modify,
            _ => Operation::Delete,
        };
        let event = event.map(|(events, data)| EpollEvent {
            events: Events::from_bits(events),
            data,
        });
        answer(
            self.descriptors
                .epoll_ctl(at(set), operation, at(fd), event),
        )
    }

    fn epoll_wait(&mut self, set: i32, most: usize) -> Answer<Vec<Event>> {
        let mut events = vec![EpollEvent::default(); most];
        let now = Some(Duration::ZERO);
        let count = answer(self.descriptors.epoll_wait(at(set), &mut events, now))?;
        events.truncate(count);
        Ok(events
            .iter()
            .map(|it| (it.events.bits(), it.data))
            .collect())
    }

    fn select(&mut self, sets: &Selected, count: i32) -> Answer<(usize, Selected)> {
        let mut sets = sets
            .each_ref()
            .map(|set| set.iter().map(|&fd| at(fd)).collect::<DescriptorSet>());
        let [read, write, except] = sets.each_mut().map(Some);
        let now = Some(Duration::ZERO);
        let descriptors = &self.descriptors;
        let ready = if self.classical {
            descriptors.classical_select(BASE + count, read, write, except, now)
        } else {
            descriptors.select(BASE + count, read, write, except, now)
        };
        let ready = answer(ready)?;
        let below = |set: DescriptorSet| {
            let numbers = set.iter().map(|fd| fd - BASE);
            numbers.filter(|&fd| fd < count).collect()
        };
        Ok((ready, sets.map(below)))
    }

    fn poll(&mut self, list: &[(i32, i16)]) -> Answer<(usize, Vec<i16>)> {
        let entry = |&(fd, events): &(i32, i16)| PollFd {
            fd: at(fd),
            events,
            revents: -1,
        };
        let mut list: Vec<PollFd> = list.iter().map(entry).collect();
        let ready = answer(self.descriptors.poll(&mut list, Some(Duration::ZERO)))?;
        Ok((ready, list.iter().map(|entry| entry.revents).collect()))
    }

    fn quiesce(&mut self) {
        self.quiesced += 1;
        if self.quiesced.is_multiple_of(3) {
            // Before the peers' retransmission timers expire.
            self.turn(1);
        }
        for _ in 0..4 {
            self.pump();
        }
        // Acknowledgments that were delayed.
        self.advance(50);
        for _ in 0..3 {
            self.pump();
        }
    }
}
