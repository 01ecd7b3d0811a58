//! Random sequences of operations, the same in both columns.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::Shutdown;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::column::{Answer, Column, Event, Selected};
use super::linux::Linux;
use super::tidewall::Tidewall;

/// Numbers in play: few, so that they are reused.
const PLACES: i32 = 12;
/// See [`places`].
const NTH: i32 = 1000;
/// Bytes on their way each way, at most: no buffer is ever full.
const OUTSTANDING: usize = 8000;

#[derive(Clone, Debug)]
pub enum Operation {
    Pair(i32),
    Listener(i32),
    Datagram(i32),
    Counter(i32),
    File(i32),
    Set(i32),
    PeerConnect(i32),
    Accept(i32, i32),
    Connect(i32),
    PeerWrite(usize, usize),
    PeerRead(usize),
    PeerShutdown(usize),
    PeerClose(usize, bool),
    Read(i32, usize),
    Write(i32, usize),
    Count(i32, u64),
    Shutdown(i32, Shutdown),
    TakeError(i32),
    Close(i32),
    Dup(i32, i32),
    Control(i32, i32, i32, u32, u64),
    Wait(i32),
    Select(Selected, i32),
    /// `select` of open descriptors only, so that it is no error.
    SelectOpen(Selected),
    Poll(Vec<(i32, i16)>),
}

/// The kind of file that a number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stream(usize),
    Datagram(usize),
    Listener(usize),
    Counter,
    File,
    Set,
}

/// The known state of both columns, so that no operation is meaningless or would
/// depend on the size of a buffer.
#[derive(Default)]
struct Known {
    numbers: HashMap<i32, Kind>,
    /// Bytes sent to a subject and by it since they were last read.
    outstanding: HashMap<usize, [usize; 2]>,
    /// Connections that wait at a listener.
    backlog: HashMap<usize, Vec<usize>>,
    peers: Vec<usize>,
    made: usize,
}

/// A number, or, from [`NTH`] on, the nth that makes sense.
fn places() -> impl Strategy<Value = i32> {
    prop_oneof![
        40 => NTH..NTH + 100,
        4 => 0..PLACES,
        1 => Just(-1),
        1 => Just(PLACES)
    ]
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1usize), 1..3000usize]
}

fn events() -> impl Strategy<Value = u32> {
    let bit = |bit: i32, often: u32| {
        prop::bool::weighted(f64::from(often) / 10.0)
            .prop_map(move |on| if on { bit as u32 } else { 0 })
    };
    (
        bit(libc::EPOLLIN, 8),
        bit(libc::EPOLLOUT, 4),
        bit(libc::EPOLLRDHUP, 4),
        bit(libc::EPOLLET, 4),
        bit(libc::EPOLLONESHOT, 1),
        bit(libc::EPOLLEXCLUSIVE, 1),
        bit(libc::EPOLLPRI | libc::EPOLLRDNORM | libc::EPOLLWRNORM, 1),
        bit(libc::EPOLLWAKEUP | libc::EPOLLHUP | libc::EPOLLERR, 1),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| a | b | c | d | e | f | g | h)
}

/// Numbers of a set, which may name what is not open.
fn selected() -> impl Strategy<Value = Selected> {
    let set = || prop::collection::vec(0..PLACES, 0..6);
    [set(), set(), set()].prop_map(|sets| {
        sets.map(|mut set| {
            set.sort_unstable();
            set.dedup();
            set
        })
    })
}

fn polled() -> impl Strategy<Value = Vec<(i32, i16)>> {
    let bits = [
        libc::POLLIN,
        libc::POLLOUT,
        libc::POLLPRI,
        libc::POLLRDHUP,
        libc::POLLRDNORM | libc::POLLRDBAND,
        libc::POLLWRNORM | libc::POLLWRBAND,
        libc::POLLERR | libc::POLLHUP | libc::POLLNVAL,
        0x40,
    ];
    let events = prop::collection::vec(prop::sample::select(bits.to_vec()), 0..3)
        .prop_map(|bits| bits.iter().fold(0, |all, bit| all | bit));
    prop::collection::vec((places(), events), 0..8)
}

fn operations() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let ends = prop_oneof![
        1 => Just(std::net::Shutdown::Read),
        3 => Just(std::net::Shutdown::Write),
        1 => Just(std::net::Shutdown::Both)
    ];
    let control = prop_oneof![
        4 => Just(libc::EPOLL_CTL_ADD),
        2 => Just(libc::EPOLL_CTL_MOD),
        1 => Just(libc::EPOLL_CTL_DEL)
    ];
    prop_oneof![
        5 => places().prop_map(Pair),
        1 => places().prop_map(Listener),
        1 => places().prop_map(Datagram),
        1 => places().prop_map(Counter),
        1 => places().prop_map(File),
        2 => places().prop_map(Set),
        2 => places().prop_map(PeerConnect),
        2 => (places(), places()).prop_map(|(fd, to)| Accept(fd, to)),
        1 => places().prop_map(Connect),
        10 => (0..8usize, lengths()).prop_map(|(peer, length)| PeerWrite(peer, length)),
        2 => (0..8usize).prop_map(PeerRead),
        2 => (0..8usize).prop_map(PeerShutdown),
        1 => (0..8usize, any::<bool>()).prop_map(|(peer, reset)| PeerClose(peer, reset)),
        6 => (places(), lengths()).prop_map(|(fd, length)| Read(fd, length)),
        3 => (places(), lengths()).prop_map(|(fd, length)| Write(fd, length)),
        2 => (places(), 0..3u64).prop_map(|(fd, add)| Count(fd, add)),
        2 => (places(), ends).prop_map(|(fd, how)| Shutdown(fd, how)),
        1 => places().prop_map(TakeError),
        1 => places().prop_map(Close),
        2 => (places(), places()).prop_map(|(fd, to)| Dup(fd, to)),
        20 => (places(), control, places(), events(), any::<u64>())
            .prop_map(|(set, what, fd, events, data)| Control(set, what, fd, events, data)),
        25 => places().prop_map(Wait),
        2 => (selected(), 0..=PLACES).prop_map(|(sets, count)| Select(sets, count)),
        16 => selected().prop_map(SelectOpen),
        10 => polled().prop_map(Poll),
    ]
}

impl Known {
    fn is_free(&self, fd: i32) -> bool {
        (0..PLACES).contains(&fd) && !self.numbers.contains_key(&fd)
    }

    /// The number that an operand stands for, among those whose kind fits.
    fn number(&self, operand: i32, fits: impl Fn(Kind) -> bool) -> i32 {
        if operand < NTH {
            return operand;
        }
        let mut numbers: Vec<i32> = (0..PLACES)
            .filter(|fd| self.numbers.get(fd).is_some_and(|&kind| fits(kind)))
            .collect();
        if numbers.is_empty() {
            numbers = (0..PLACES).collect();
        }
        numbers[(operand - NTH) as usize % numbers.len()]
    }

    /// As [`Known::number`], of those that are free.
    fn free(&self, operand: i32) -> i32 {
        if operand < NTH {
            return operand;
        }
        let free: Vec<i32> = (0..PLACES).filter(|&fd| self.is_free(fd)).collect();
        let nth = (operand - NTH) as usize;
        free.get(nth % free.len().max(1)).copied().unwrap_or(0)
    }

    /// The operation with its numbers.
    fn resolve(&self, operation: &Operation) -> Operation {
        use Operation as It;
        let any = |fd: i32| self.number(fd, |_| true);
        let set = |fd: i32| self.number(fd, |kind| kind == Kind::Set);
        let socket = |fd: i32| {
            let fits = |kind| matches!(kind, Kind::Stream(_) | Kind::Datagram(_));
            self.number(fd, fits)
        };
        let listener = |fd: i32| self.number(fd, |kind| matches!(kind, Kind::Listener(_)));
        match operation.clone() {
            It::Pair(fd) => It::Pair(self.free(fd)),
            It::Listener(fd) => It::Listener(self.free(fd)),
            It::Datagram(fd) => It::Datagram(self.free(fd)),
            It::Counter(fd) => It::Counter(self.free(fd)),
            It::File(fd) => It::File(self.free(fd)),
            It::Set(fd) => It::Set(self.free(fd)),
            It::Connect(fd) => It::Connect(self.free(fd)),
            It::PeerConnect(fd) => It::PeerConnect(listener(fd)),
            It::Accept(fd, to) => It::Accept(listener(fd), self.free(to)),
            It::Read(fd, length) => It::Read(socket(fd), length),
            It::Write(fd, length) => It::Write(socket(fd), length),
            It::Count(fd, add) => It::Count(self.number(fd, |kind| kind == Kind::Counter), add),
            It::Shutdown(fd, how) => It::Shutdown(socket(fd), how),
            It::TakeError(fd) => It::TakeError(socket(fd)),
            It::Close(fd) => It::Close(any(fd)),
            It::Dup(fd, to) => It::Dup(any(fd), self.free(to)),
            It::Control(on, what, fd, events, data) => {
                It::Control(set(on), what, any(fd), events, data)
            }
            It::Wait(on) => It::Wait(set(on)),
            It::Poll(list) => It::Poll(
                list.into_iter()
                    .map(|(fd, events)| (any(fd), events))
                    .collect(),
            ),
            other => other,
        }
    }

    fn begin(&mut self, fd: i32, kind: fn(usize) -> Kind) -> usize {
        let connection = self.made;
        self.made += 1;
        self.numbers.insert(fd, kind(connection));
        self.outstanding.insert(connection, [0; 2]);
        self.peers.push(connection);
        connection
    }

    fn peer(&self, nth: usize) -> Option<usize> {
        self.peers.get(nth % self.peers.len().max(1)).copied()
    }

    /// Runs one operation on both, if it means anything. Returns their answers.
    fn run(&mut self, both: [&mut dyn Column; 2], operation: &Operation) -> Option<[String; 2]> {
        let kind = |fd: &i32| self.numbers.get(fd).copied();
        fn say<T: std::fmt::Debug>(answer: Answer<T>) -> String {
            format!("{answer:?}")
        }
        let done = String::new;
        use Operation as It;
        let answers = match operation {
            It::Pair(fd) | It::Connect(fd) if self.is_free(*fd) => {
                let connection = self.begin(*fd, Kind::Stream);
                let connects = matches!(operation, It::Connect(_));
                both.map(|column| {
                    if connects {
                        column.connect(*fd, connection);
                    } else {
                        column.pair(*fd, connection);
                    }
                    done()
                })
            }
            It::Datagram(fd) if self.is_free(*fd) => {
                let connection = self.begin(*fd, Kind::Datagram);
                both.map(|column| {
                    column.datagram(*fd, connection);
                    done()
                })
            }
            It::Listener(fd) if self.is_free(*fd) => {
                let name = self.made;
                self.made += 1;
                self.numbers.insert(*fd, Kind::Listener(name));
                self.backlog.insert(name, Vec::new());
                both.map(|column| {
                    column.listener(*fd);
                    done()
                })
            }
            It::Counter(fd) if self.is_free(*fd) => {
                self.numbers.insert(*fd, Kind::Counter);
                both.map(|column| {
                    column.counter(*fd);
                    done()
                })
            }
            It::File(fd) if self.is_free(*fd) => {
                self.numbers.insert(*fd, Kind::File);
                both.map(|column| {
                    column.file(*fd);
                    done()
                })
            }
            It::Set(fd) if self.is_free(*fd) => {
                self.numbers.insert(*fd, Kind::Set);
                both.map(|column| {
                    column.epoll_create(*fd);
                    done()
                })
            }
            It::PeerConnect(fd) => {
                let Some(Kind::Listener(name)) = kind(fd) else {
                    return None;
                };
                let connection = self.made;
                self.made += 1;
                self.outstanding.insert(connection, [0; 2]);
                self.backlog.get_mut(&name)?.push(connection);
                both.map(|column| {
                    column.peer_connect(*fd, connection);
                    done()
                })
            }
            It::Accept(fd, to) if self.is_free(*to) => {
                let Some(Kind::Listener(name)) = kind(fd) else {
                    return None;
                };
                let waiting = self.backlog.get_mut(&name)?;
                if !waiting.is_empty() {
                    let connection = waiting.remove(0);
                    self.numbers.insert(*to, Kind::Stream(connection));
                    self.peers.push(connection);
                }
                both.map(|column| say(column.accept(*fd, *to)))
            }
            It::PeerWrite(nth, length) => {
                let peer = self.peer(*nth)?;
                let outstanding = self.outstanding.get_mut(&peer)?;
                if outstanding[0] + length > OUTSTANDING {
                    return None;
                }
                outstanding[0] += length;
                // A datagram is whole, and no datagram is longer than a frame.
                let length = (*length).min(1000);
                both.map(|column| {
                    column.peer_write(peer, length);
                    done()
                })
            }
            It::PeerRead(nth) => {
                let peer = self.peer(*nth)?;
                self.outstanding.get_mut(&peer)?[1] = 0;
                both.map(|column| {
                    column.peer_read(peer);
                    done()
                })
            }
            It::PeerShutdown(nth) => {
                let peer = self.peer(*nth)?;
                both.map(|column| {
                    column.peer_shutdown(peer, Shutdown::Write);
                    done()
                })
            }
            It::PeerClose(nth, reset) => {
                let peer = self.peer(*nth)?;
                self.peers.retain(|&other| other != peer);
                both.map(|column| {
                    column.peer_read(peer);
                    column.peer_close(peer, *reset);
                    done()
                })
            }
            It::Read(fd, length) => {
                if let Some(Kind::Stream(name) | Kind::Datagram(name)) = kind(fd) {
                    let outstanding = self.outstanding.get_mut(&name)?;
                    outstanding[0] = outstanding[0].saturating_sub(*length);
                } else if kind(fd).is_some() {
                    return None;
                }
                both.map(|column| say(column.read(*fd, *length)))
            }
            It::Write(fd, length) => {
                if let Some(Kind::Stream(name) | Kind::Datagram(name)) = kind(fd) {
                    let outstanding = self.outstanding.get_mut(&name)?;
                    // Data without a reader is answered with a reset, whose errors
                    // belong to the connection, not to readiness.
                    if outstanding[1] + length > OUTSTANDING || !self.peers.contains(&name) {
                        return None;
                    }
                    outstanding[1] += length;
                } else if kind(fd).is_some() {
                    return None;
                }
                let length = (*length).min(1000);
                both.map(|column| say(column.write(*fd, length)))
            }
            It::Count(fd, add) if kind(fd) == Some(Kind::Counter) => {
                both.map(|column| say(column.count(*fd, *add)))
            }
            It::Shutdown(fd, how) => {
                match kind(fd) {
                    Some(Kind::Datagram(_)) => {
                        return Some(both.map(|column| say(column.shutdown(*fd, *how))));
                    }
                    Some(Kind::Stream(_)) => {}
                    _ => return None,
                }
                // The answer after the end of the connection depends on the connection;
                // only its execution is compared.
                both.map(|column| {
                    let _ = column.shutdown(*fd, *how);
                    done()
                })
            }
            It::TakeError(fd) => {
                let Some(Kind::Stream(_) | Kind::Datagram(_)) = kind(fd) else {
                    return None;
                };
                both.map(|column| say(column.take_error(*fd)))
            }
            It::Close(fd) => {
                self.numbers.remove(fd);
                both.map(|column| say(column.close(*fd)))
            }
            It::Dup(fd, to) if self.is_free(*to) => {
                if let Some(kind) = kind(fd) {
                    self.numbers.insert(*to, kind);
                }
                both.map(|column| say(column.dup(*fd, *to)))
            }
            It::Control(set, what, fd, events, data) => both.map(|column| {
                let answer = column.epoll_ctl(*set, *what, *fd, Some((*events, *data)));
                say(answer)
            }),
            It::Wait(set) => both.map(|column| {
                say(column.epoll_wait(*set, 64).map(|mut events: Vec<Event>| {
                    events.sort_unstable();
                    events
                        .into_iter()
                        .map(|(events, data)| format!("{events:#x}: {data}"))
                        .collect::<Vec<_>>()
                }))
            }),
            It::Select(sets, count) => both.map(|column| say(column.select(sets, *count))),
            It::SelectOpen(sets) => {
                let open = |set: &Vec<i32>| {
                    let open = set.iter().filter(|fd| self.numbers.contains_key(fd));
                    open.copied().collect()
                };
                let sets = sets.each_ref().map(open);
                both.map(|column| say(column.select(&sets, PLACES)))
            }
            It::Poll(list) => both.map(|column| say(column.poll(list))),
            _ => return None,
        };
        Some(answers)
    }
}

/// Runs a sequence on both columns. How many events they reported.
fn compare(operations: &[Operation], lazy: bool, classical: bool) -> Result<usize, TestCaseError> {
    let (mut linux, mut tidewall) = (Linux::new(), Tidewall::new(lazy));
    tidewall.classical = classical;
    let mut known = Known::default();
    let mut log = Vec::new();
    let mut events = 0;
    for operation in operations {
        let operation = known.resolve(operation);
        let Some([theirs, ours]) = known.run([&mut linux, &mut tidewall], &operation) else {
            continue;
        };
        linux.quiesce();
        tidewall.quiesce();
        // Each comes with its data, after a colon.
        events += theirs.matches("0x").count();
        log.push(format!("{operation:?}: {theirs}"));
        prop_assert_eq!(theirs, ours, "after\n{}", log.join("\n"));
    }
    Ok(events)
}

/// More cases: PROPTEST_CASES.
const CASES: u32 = 64;

fn run(lazy: bool, classical: bool) {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let config = Config {
        cases: cases.and_then(|cases| cases.parse().ok()).unwrap_or(CASES),
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    // Each begins with something to report.
    let sequences = (
        prop::collection::vec(events(), 4),
        prop::collection::vec(operations(), 40..150),
    )
        .prop_map(|(watched, mut operations)| {
            let mut all = vec![Operation::Set(0)];
            for (fd, events) in (1..).zip(watched) {
                let data = fd as u64;
                all.push(Operation::Pair(fd));
                all.push(Operation::Control(0, libc::EPOLL_CTL_ADD, fd, events, data));
            }
            all.append(&mut operations);
            all
        });
    let events = Cell::new(0);
    TestRunner::new_with_rng(config, rng)
        .run(&sequences, |operations| {
            events.set(events.get() + compare(&operations, lazy, classical)?);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{} events", events.get());
    assert!(events.get() > 500, "sequences that say little");
}

#[test]
fn random_sequences_are_answered_as_by_linux() {
    run(false, false);
}

#[test]
fn random_sequences_whose_protocol_runs_late_are_answered_as_by_linux() {
    run(true, false);
}

#[test]
fn the_classical_select_answers_as_linux_does_too() {
    run(true, true);
}
