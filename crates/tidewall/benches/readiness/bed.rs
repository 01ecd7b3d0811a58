//! Two stacks in one process and one thread: what is counted is the near one's
//! work, and nothing happens by itself.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{EpollEvent, Events, Operation};
use tidewall::{ListenOptions, MemoryConfig, Stack, TcpStream};
use tidewall_device::memory::{LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

/// Numbers that each idle connection has: ports of one peer are fewer than the
/// idle descriptors that are measured.
pub const NUMBERS_EACH: usize = 4;
const NOW: Option<Duration> = Some(Duration::ZERO);

/// Near descriptors with a set, and their peers.
pub struct Bed {
    pub near: Descriptors,
    far: Stack,
    pub set: i32,
    /// A set of all connections that are written to. Turning it runs their protocol, and
    /// leaves the report to `set`.
    protocol: i32,
    listener: i32,
    service: SocketAddr,
    pub fds: Vec<i32>,
    pub peers: Vec<TcpStream>,
    idle: Vec<TcpStream>,
    clock: Arc<AtomicU64>,
}

impl Bed {
    /// So many connections to write to, and so many idle descriptors.
    pub fn new(active: usize, idle: usize) -> Self {
        let (_, a, b) = pair(LinkConfig::default()).expect("memory");
        let clock = Arc::new(AtomicU64::new(0));
        let on = |end, own: u8, other: u8| {
            let clock = clock.clone();
            let now = move || Duration::from_millis(clock.load(Ordering::Relaxed));
            let config = MemoryConfig {
                addresses: vec![Ipv4Addr::new(10, 0, 0, own).into()],
                mac: MacAddress([2, 0, 0, 0, 0, own]),
                peer: MacAddress([2, 0, 0, 0, 0, other]),
            };
            Stack::in_memory_on_clock(end, config, now).expect("a stack")
        };
        let (near, far) = (on(a, 1, 2), on(b, 2, 1));
        let near = Descriptors::new(&near, 1 << 20);
        let service = SocketAddr::from(([10, 0, 0, 1], 80));
        let options = ListenOptions::default();
        let listener = near
            .listen(service, options, Flags::NONBLOCK)
            .expect("a port");
        let set = near.epoll_create1(Flags::NONE).expect("a set");
        let protocol = near.epoll_create1(Flags::NONE).expect("a set");
        let mut bed = Bed {
            near,
            far,
            set,
            protocol,
            listener,
            service,
            fds: Vec::new(),
            peers: Vec::new(),
            idle: Vec::new(),
            clock,
        };
        bed.watch(protocol, listener, Events::NONE);
        let (fds, peers) = bed.connect(active);
        for &fd in &fds {
            bed.watch(bed.set, fd, Events::IN);
        }
        (bed.fds, bed.peers) = (fds, peers);
        while bed.idle.len() < idle / NUMBERS_EACH {
            let count = (idle / NUMBERS_EACH - bed.idle.len()).min(50);
            let (fds, mut peers) = bed.connect(count);
            bed.idle.append(&mut peers);
            for fd in fds {
                bed.watch(bed.set, fd, Events::IN);
                for _ in 1..NUMBERS_EACH {
                    let number = bed.near.dup(fd).expect("a number");
                    bed.watch(bed.set, number, Events::IN);
                }
            }
        }
        bed
    }

    pub fn watch(&self, set: i32, fd: i32, events: Events) {
        let event = EpollEvent {
            events,
            data: fd as u64,
        };
        self.near
            .epoll_ctl(set, Operation::Add, fd, Some(event))
            .expect("a new item");
    }

    /// Accepted connections, with their peers, whose protocol `protocol` runs.
    fn connect(&mut self, count: usize) -> (Vec<i32>, Vec<TcpStream>) {
        let peers: Vec<_> = (0..count)
            .map(|_| TcpStream::connect_nonblocking(&self.far, self.service).expect("a port"))
            .collect();
        let mut fds = Vec::new();
        while fds.len() < count {
            self.turn();
            while let Ok((fd, _)) = self.near.accept4(self.listener, Flags::NONBLOCK) {
                self.watch(self.protocol, fd, Events::NONE);
                fds.push(fd);
            }
            for peer in &peers {
                let _ = peer.peek(&mut [0]);
                peer.set_nodelay(true).expect("an own connection");
            }
        }
        self.turn();
        // In the order of their peers, which the far ports tell.
        let port = |fd: &i32| {
            let file = self.near.file(*fd).expect("an open file");
            let peer = file.peer_address().expect("a peer");
            peer.map_or(0, |peer| peer.port())
        };
        fds.sort_by_key(port);
        let mut peers = peers;
        peers.sort_by_key(|peer| peer.local_addr().map_or(0, |local| local.port()));
        (fds, peers)
    }

    /// Runs the protocol of both ends, until nothing is on its way.
    pub fn turn(&self) {
        let mut events = [EpollEvent::default(); 64];
        for _ in 0..4 {
            let _ = self.near.epoll_wait(self.protocol, &mut events, NOW);
            let _ = self.far.wait(&[], NOW);
        }
    }

    /// Every peer sends a request; `process`: and the near end has seen it.
    pub fn send_all(&mut self, process: bool) {
        // Acknowledgments of what was sent before are due.
        self.clock.fetch_add(50, Ordering::Relaxed);
        self.turn();
        for peer in &mut self.peers {
            let _ = peer.read(&mut [0]);
            peer.write_all(&[1; 64]).expect("room");
        }
        if process {
            self.turn();
        }
    }

    /// Waits for one event and reads what is there, so often as connections have
    /// something.
    pub fn serve_all(&self) {
        let mut events = [EpollEvent::default(); 1];
        let mut buffer = [0; 256];
        for _ in 0..self.fds.len() {
            let count = self.near.epoll_wait(self.set, &mut events, None);
            assert_eq!(count.ok(), Some(1));
            let read = self.near.read(events[0].data as i32, &mut buffer);
            assert_eq!(read.ok(), Some(64));
        }
    }
}
