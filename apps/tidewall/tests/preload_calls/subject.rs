//! The sequences of calls.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::Instant;

use crate::killed::step;
use crate::peer::{DEADLINE, Peer, PeerSocket};
use crate::raw_calls as c;

/// Steps of a sequence, of one or a few calls each.
pub const STEPS: usize = 600;

pub const HERE: &str = "10.99.0.2";
const PEER: &str = "10.99.0.1";

/// xorshift64*: the same numbers in both runs.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = 1 + self.below(most);
        let first = self.below(256) as u8;
        (0..length).map(|at| first.wrapping_add(at as u8)).collect()
    }
}

/// A connection of the program.
struct Connection {
    /// Its descriptors, at least one.
    fds: Vec<c_int>,
    peer: PeerSocket,
    unread: usize,
    /// The peer sends no more, the program writes no more.
    ended: bool,
    shut: bool,
    name: usize,
}

struct Subject {
    random: Random,
    peer: Peer,
    log: Vec<String>,
    listener: c_int,
    at: SocketAddr,
    remote: (PeerSocket, SocketAddr),
    datagrams: (c_int, SocketAddr),
    others: (PeerSocket, SocketAddr),
    pipe: [c_int; 2],
    file: c_int,
    set: c_int,
    connections: Vec<Connection>,
    made: usize,
}

pub fn address(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().unwrap(), port)
}

fn sum(bytes: &[u8]) -> u32 {
    let add = |sum: u32, &byte: &u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    bytes.iter().fold(0, add)
}

/// Makes the calls of a sequence; returns their results.
pub fn run(seed: u64, port: u16, peer: Peer) -> Vec<String> {
    let mut subject = Subject::new(seed, port, peer);
    subject.begin();
    for _ in 0..STEPS {
        subject.step();
    }
    subject.log
}

/// Makes calls without end, and reports each; it has a connection that it leaves alone.
pub fn run_on(seed: u64, port: u16, peer: Peer) {
    step();
    let mut subject = Subject::new(seed, port, peer);
    subject.begin();
    step();
    c::poll(&mut [(subject.listener, libc::POLLIN)], -1);
    let (connection, _) = c::accept(subject.listener);
    assert!(connection >= 0, "accept: {connection}");
    loop {
        step();
        subject.step();
        subject.log.clear();
    }
}

impl Subject {
    fn new(seed: u64, port: u16, peer: Peer) -> Self {
        c::ignore_sigpipe();
        let at = address(HERE, port);
        let remote = address(PEER, port + 1);
        let others = address(PEER, port + 2);
        let own = address(HERE, port + 3);
        let remote = (peer.listen(remote), remote);
        let others = (peer.datagrams(others), others);
        let listener = c::socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK) as c_int;
        Subject {
            random: Random::new(seed),
            peer,
            log: Vec::new(),
            listener,
            at,
            remote,
            datagrams: (
                c::socket(libc::SOCK_DGRAM | libc::SOCK_NONBLOCK) as c_int,
                own,
            ),
            others,
            pipe: c::pipe(),
            file: c::file(c"/proc/self/exe") as c_int,
            set: c::epoll_create() as c_int,
            connections: Vec::new(),
            made: 0,
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.log.push(what.to_string());
    }

    fn begin(&mut self) {
        let (listener, at) = (self.listener, self.at);
        let reuse = c::setsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        let nodelay = c::setsockopt(listener, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        let bound = [
            c::bind(listener, at),
            c::bind(self.datagrams.0, self.datagrams.1),
        ];
        let listens = c::listen(listener, 16);
        let none = c::accept(listener);
        self.note(format_args!(
            "begin {reuse} {nodelay} {bound:?} {listens} {none:?}"
        ));
    }

    fn step(&mut self) {
        let choice = self.random.below(40);
        if self.connections.is_empty() && choice >= 8 {
            return self.accept();
        }
        match choice {
            0..2 => self.accept(),
            2..4 => self.connect(),
            4..6 => self.datagram(),
            6 => self.mistakes(),
            7 => self.names(),
            8..13 => self.hear(),
            13..19 => self.read(),
            19..25 => self.write(),
            25..27 => self.options(),
            27..30 => self.readiness(),
            30..33 => self.register(),
            33..35 => self.duplicate(),
            35 => self.shut(),
            36 => self.end_of_peer(),
            _ => self.close(),
        }
    }

    /// Returns one of the connections, and one of its descriptors.
    fn any(&mut self) -> (usize, c_int) {
        let which = self.random.below(self.connections.len());
        let count = self.connections[which].fds.len();
        let number = self.random.below(count);
        (which, self.connections[which].fds[number])
    }

    fn enter(&mut self, fd: i64, peer: PeerSocket) {
        self.made += 1;
        self.connections.push(Connection {
            fds: vec![c_int::try_from(fd).unwrap()],
            peer,
            unread: 0,
            ended: false,
            shut: false,
            name: self.made,
        });
    }

    fn accept(&mut self) {
        if self.connections.len() > 6 {
            return;
        }
        let peer = self.peer.connect(self.at);
        let ready = c::poll(&mut [(self.listener, libc::POLLIN)], 10_000);
        let flags = [0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC][self.random.below(3)];
        let (fd, from) = c::accept4(self.listener, flags);
        assert!(fd >= 0, "accept: {fd}");
        let number = fd as c_int;
        let nonblocking = c::fcntl(number, libc::F_GETFL, 0) & i64::from(libc::O_NONBLOCK) != 0;
        let cloexec = c::fcntl(number, libc::F_GETFD, 0);
        let delays = c::getsockopt(number, libc::IPPROTO_TCP, libc::TCP_NODELAY);
        let again = c::accept4(self.listener, 0);
        self.enter(fd, peer);
        self.note(format_args!(
            "accept {ready:?} {from} {nonblocking} {cloexec} {delays:?} {again:?}"
        ));
    }

    fn connect(&mut self) {
        if self.connections.len() > 6 {
            return;
        }
        let waits = self.random.below(2) == 0;
        let kind = if waits { 0 } else { libc::SOCK_NONBLOCK };
        let fd = c::socket(libc::SOCK_STREAM | kind);
        let number = fd as c_int;
        // A socket added to a set before it is connected is still reported.
        let early = self.random.below(2) == 0;
        if early {
            let data = 1000 + self.made as u64;
            c::epoll_ctl(
                self.set,
                libc::EPOLL_CTL_ADD,
                number,
                libc::EPOLLIN as u32,
                data,
            );
        }
        let options = [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9_000),
        ];
        // Also through another descriptor of the same socket.
        let copies = self.random.below(3) == 0;
        let copy = if copies {
            c::dup(number) as c_int
        } else {
            number
        };
        for (level, option, value) in options {
            match self.random.below(3) {
                0 => c::setsockopt(number, level, option, value),
                1 => c::setsockopt(copy, level, option, value),
                _ => 0,
            };
        }
        if copies {
            c::close(copy);
        }
        let begun = c::connect(number, self.remote.1);
        let kept = options.map(|(level, option, _)| c::getsockopt(number, level, option));
        let ready = c::poll(&mut [(number, libc::POLLOUT)], 10_000);
        let error = c::getsockopt(number, libc::SOL_SOCKET, libc::SO_ERROR);
        let again = c::connect(number, self.remote.1);
        let third = c::connect(number, self.remote.1);
        let names = (c::getsockname(number), c::getpeername(number));
        let peer = self.remote.0.accept();
        self.enter(fd, peer);
        self.note(format_args!(
            "connect {begun} {kept:?} {ready:?} {error:?} {again} {third} {names:?}"
        ));
    }

    fn datagram(&mut self) {
        let (fd, at) = self.datagrams;
        let bytes = self.random.bytes(1400);
        self.others.0.send_to(&bytes, at);
        let ready = c::poll(&mut [(fd, libc::POLLIN)], 10_000);
        let mut buffer = vec![0; 1 + self.random.below(1500)];
        for _ in 0..self.random.below(3) {
            let flags = [0, libc::MSG_TRUNC, libc::MSG_DONTWAIT][self.random.below(3)];
            let flags = flags | libc::MSG_PEEK;
            let peeked = match self.random.below(3) {
                0 => c::recvfrom(fd, &mut buffer, flags),
                1 => (c::recvmsg(fd, &mut buffer, flags).0, String::new()),
                _ => (c::recvmmsg(fd, &mut buffer, flags).0, String::new()),
            };
            let still = c::poll(&mut [(fd, libc::POLLIN)], 0);
            let sum = sum(&buffer[..buffer.len().min(bytes.len())]);
            self.note(format_args!("peek {flags} {peeked:?} {sum} {still:?}"));
        }
        let (length, from) = c::recvfrom(fd, &mut buffer, 0);
        let read = &buffer[..usize::try_from(length).unwrap_or(0)];
        let found = (length, from, sum(read));
        let empty = [0, libc::MSG_PEEK].map(|flags| c::recv(fd, &mut [0; 10], flags));
        let sent = c::sendto(fd, &bytes, self.others.1);
        let came = self.others.0.receive(1).len();
        let none = c::send(fd, &bytes, 0);
        self.note(format_args!(
            "datagram {ready:?} {found:?} {empty:?} {sent} {came} {none}"
        ));
    }

    fn mistakes(&mut self) {
        let listener = self.listener;
        let nobody = [
            c::read(-1, &mut [0; 4]),
            c::write(9999, b"a"),
            c::close(9999),
        ];
        let listening = [
            c::read(listener, &mut [0; 4]),
            c::recv(listener, &mut [0; 4], 0),
            c::write(listener, b"a"),
            c::shutdown(self.datagrams.0, 7),
            c::dup2(9999, listener),
        ];
        let accepted = c::accept(self.pipe[0]);
        let of_datagrams = c::accept(self.datagrams.0);
        let listens = c::listen(self.datagrams.0, 1);
        self.note(format_args!(
            "mistakes {nobody:?} {listening:?} {accepted:?} {of_datagrams:?} {listens}"
        ));
        if self.connections.is_empty() {
            return;
        }
        let (_, fd) = self.any();
        let found = [
            c::accept(fd).0,
            c::connect(fd, self.at),
            c::shutdown(fd, 9),
            c::epoll_ctl(self.set, 77, fd, 0, 0),
            c::epoll_ctl(fd, libc::EPOLL_CTL_ADD, self.pipe[0], 1, 0),
            c::pread(fd, &mut [0; 4]),
            c::tee(fd, self.pipe[1]),
            c::unsent(self.listener),
            c::preadv2(fd, &mut [0; 4], 0, 0),
            c::pwritev2(fd, &mut [0; 4], 7, 0),
            c::preadv2(fd, &mut [0; 4], -1, 1 << 30),
            c::close_range(fd, fd, 1 << 10),
            c::close_range(fd, fd - 1, 0),
        ];
        self.note(format_args!("mistakes of a connection {found:?}"));
        let of_it = (c::kinds(fd), c::copies(fd, self.file));
        let of_others = [self.listener, self.datagrams.0, self.file].map(c::kinds);
        self.note(format_args!("kinds {of_it:?} {of_others:?}"));
    }

    fn names(&mut self) {
        let listener = (c::getsockname(self.listener), c::getpeername(self.listener));
        let datagrams = (
            c::getsockname(self.datagrams.0),
            c::getpeername(self.datagrams.0),
        );
        self.note(format_args!("names {listener:?} {datagrams:?}"));
        if !self.connections.is_empty() {
            let (_, fd) = self.any();
            let own = (c::getsockname(fd), c::getpeername(fd));
            self.note(format_args!("names of a connection {own:?}"));
        }
    }

    /// Makes the peer send, and waits until the data have arrived.
    fn hear(&mut self) {
        let bytes = self.random.bytes(3000);
        let (which, fd) = self.any();
        let connection = &mut self.connections[which];
        if connection.ended || connection.unread > 20_000 {
            return;
        }
        connection.peer.send(&bytes);
        connection.unread += bytes.len();
        let wanted = connection.unread as i64;
        let begun = Instant::now();
        while c::unread(fd) != wanted {
            assert!(begun.elapsed() < DEADLINE, "{} of {wanted}", c::unread(fd));
            std::thread::yield_now();
        }
        self.note(format_args!("hear {wanted}"));
    }

    fn read(&mut self) {
        let (which, fd) = self.any();
        let mut buffer = vec![0; 1 + self.random.below(4000)];
        let way = self.random.below(11);
        let (unread, ended) = (
            self.connections[which].unread,
            self.connections[which].ended,
        );
        // Calls that would block forever are excluded.
        let dont_wait = libc::MSG_DONTWAIT;
        let way = if unread == 0 && !ended {
            1 + way % 3
        } else {
            way
        };
        let (length, flags) = match way {
            0 => (c::read(fd, &mut buffer), 0),
            1 => (c::recv(fd, &mut buffer, dont_wait), 0),
            2 => c::recvmsg(fd, &mut buffer, dont_wait),
            3 => (c::recv(fd, &mut buffer, dont_wait | libc::MSG_PEEK), 0),
            4 => (c::readv(fd, &mut buffer), 0),
            5..8 => (c::read_checked(fd, &mut buffer, way - 5), 0),
            8 => (c::preadv2(fd, &mut buffer, -1, libc::RWF_NOWAIT), 0),
            9 if buffer.len() > 1 => {
                let (count, lengths) = c::recvmmsg(fd, &mut buffer, dont_wait);
                // The halves follow one another if the first is full.
                let half = (buffer.len() / 2) as u32;
                assert!(lengths[1] == 0 || lengths[0] == half, "{lengths:?}");
                match count {
                    ..0 => (count, 0),
                    _ => (lengths.iter().sum::<u32>().into(), count as c_int),
                }
            }
            _ => (c::recvfrom(fd, &mut buffer, 0).0, 0),
        };
        let read = usize::try_from(length).unwrap_or(0);
        if way != 3 {
            self.connections[which].unread -= read.min(unread);
        }
        let found = sum(&buffer[..read]);
        let name = self.connections[which].name;
        self.note(format_args!("read {name} {way} {length} {flags} {found}"));
    }

    fn write(&mut self) {
        let (which, fd) = self.any();
        let mut bytes = self.random.bytes(6000);
        let way = self.random.below(10);
        let mut offset = self.random.below(10_000) as i64;
        let sent = match way {
            0 => c::write(fd, &bytes),
            1 => c::send(fd, &bytes, libc::MSG_NOSIGNAL),
            2 => c::writev(fd, &mut bytes),
            3 => c::sendmsg(fd, &mut bytes),
            4 => c::sendfile(fd, self.file, &mut offset, bytes.len()),
            5 => c::pwritev2(fd, &mut bytes, -1, 0),
            6 => match c::sendmmsg(fd, &mut bytes) {
                (error @ ..0, _) => error,
                (_, lengths) => lengths.iter().sum::<u32>().into(),
            },
            7 | 8 => c::print(fd, offset as c_int, c"text", way == 8),
            _ => c::sendto(fd, &bytes, self.at),
        };
        let connection = &self.connections[which];
        let got = match usize::try_from(sent) {
            Ok(sent) => sum(&connection.peer.receive(sent)),
            Err(_) => 0,
        };
        let begun = Instant::now();
        while c::unsent(fd) > 0 && !connection.shut {
            assert!(begun.elapsed() < DEADLINE, "{} unsent", c::unsent(fd));
            std::thread::yield_now();
        }
        let (name, shut) = (connection.name, connection.shut);
        self.note(format_args!(
            "write {name} {shut} {way} {sent} {offset} {got}"
        ));
    }

    fn options(&mut self) {
        use libc::{IPPROTO_TCP, SOL_SOCKET};
        const OPTIONS: [(c_int, c_int); 12] = [
            (SOL_SOCKET, libc::SO_KEEPALIVE),
            (SOL_SOCKET, libc::SO_TYPE),
            (SOL_SOCKET, libc::SO_DOMAIN),
            (SOL_SOCKET, libc::SO_PROTOCOL),
            (SOL_SOCKET, libc::SO_ACCEPTCONN),
            (SOL_SOCKET, libc::SO_ERROR),
            (IPPROTO_TCP, libc::TCP_NODELAY),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE),
            (IPPROTO_TCP, libc::TCP_KEEPCNT),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
            (IPPROTO_TCP, 9999),
            (9999, 1),
        ];
        let (level, name) = OPTIONS[self.random.below(OPTIONS.len())];
        let (_, connection) = self.any();
        let fd = [connection, self.listener][self.random.below(2)];
        let value = self.random.below(40) as c_int;
        // Read-only options are not set.
        let before = c::getsockopt(fd, level, name);
        let set = c::setsockopt(fd, level, name, value);
        let after = c::getsockopt(fd, level, name);
        self.note(format_args!(
            "option {level} {name} {value} {before:?} {set} {after:?}"
        ));
    }

    fn numbers(&self) -> Vec<c_int> {
        let own = self.connections.iter().map(|connection| connection.fds[0]);
        let fixed = [self.listener, self.datagrams.0, self.pipe[0], self.pipe[1]];
        own.chain(fixed).collect()
    }

    fn readiness(&mut self) {
        const BOTH: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        match self.random.below(3) {
            0 => {
                let mut list: Vec<_> = self.numbers().into_iter().map(|fd| (fd, BOTH)).collect();
                let found = c::poll(&mut list, 0);
                let last = list.last().map(|&(fd, _)| c::poll_checked(fd, BOTH));
                self.note(format_args!("poll {found:?} {last:?}"));
            }
            1 => {
                let found = c::select(&self.numbers());
                self.note(format_args!("select {found:?}"));
            }
            _ => {
                let found = c::epoll_wait(self.set);
                self.note(format_args!("epoll_wait {found:?}"));
            }
        }
    }

    fn register(&mut self) {
        const EVENTS: [c_int; 4] = [
            libc::EPOLLIN,
            libc::EPOLLIN | libc::EPOLLRDHUP,
            libc::EPOLLOUT,
            libc::EPOLLIN | libc::EPOLLONESHOT,
        ];
        let (which, connection) = self.any();
        let fixed = [
            self.listener,
            self.datagrams.0,
            self.pipe[0],
            self.pipe[1],
            self.file,
        ];
        let chosen = self.random.below(8);
        let (fd, data) = match fixed.get(chosen) {
            Some(&fd) => (fd, chosen as u64),
            None => (connection, 100 + self.connections[which].name as u64),
        };
        let operations = [
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
        ];
        let operation = operations[self.random.below(3)];
        let events = EVENTS[self.random.below(EVENTS.len())] as u32;
        let done = c::epoll_ctl(self.set, operation, fd, events, data);
        let found = c::epoll_wait(self.set);
        self.note(format_args!(
            "register {chosen} {operation} {done} {found:?}"
        ));
    }

    fn duplicate(&mut self) {
        let (which, fd) = self.any();
        if self.connections[which].fds.len() > 3 {
            return;
        }
        let copy = match self.random.below(3) {
            0 => c::dup(fd),
            1 => c::fcntl(fd, libc::F_DUPFD_CLOEXEC, 40),
            _ => {
                let number = c::dup(self.pipe[0]) as c_int;
                let copy = c::dup2(fd, number);
                assert_eq!(copy, i64::from(number));
                copy
            }
        };
        assert!(copy >= 0, "dup: {copy}");
        let cloexec = c::fcntl(copy as c_int, libc::F_GETFD, 0);
        let names = c::getpeername(copy as c_int);
        self.connections[which].fds.push(copy as c_int);
        let name = self.connections[which].name;
        self.note(format_args!("duplicate {name} {cloexec} {names:?}"));
    }

    fn shut(&mut self) {
        let (which, fd) = self.any();
        let done = c::shutdown(fd, libc::SHUT_WR);
        let connection = &mut self.connections[which];
        connection.shut = true;
        let end = connection.peer.end();
        let name = connection.name;
        self.note(format_args!("shutdown {name} {done} {end}"));
    }

    /// Makes the peer end its side, and waits until that has arrived.
    fn end_of_peer(&mut self) {
        let (which, fd) = self.any();
        if self.connections[which].ended {
            return;
        }
        self.connections[which].peer.shut();
        self.connections[which].ended = true;
        let found = c::poll(&mut [(fd, libc::POLLRDHUP)], 10_000);
        assert!(found.0 > 0, "the peer's end does not come: {found:?}");
        self.note(format_args!("end of peer {found:?}"));
    }

    /// Closes a descriptor; the last one ends the connection.
    fn close(&mut self) {
        let which = self.random.below(self.connections.len());
        let fd = self.connections[which].fds.pop().unwrap();
        let name = self.connections[which].name;
        let done = match self.random.below(3) {
            0 => c::close_range(fd, fd, 0),
            1 => {
                let over = c::dup2(self.pipe[0], fd);
                assert_eq!(over, i64::from(fd));
                c::close(fd)
            }
            _ => c::close(fd),
        };
        let after = c::read(fd, &mut [0; 1]);
        let mut end = "open";
        if self.connections[which].fds.is_empty() {
            let connection = self.connections.swap_remove(which);
            end = connection.peer.end();
        }
        self.note(format_args!("close {name} {done} {after} {end}"));
    }
}
