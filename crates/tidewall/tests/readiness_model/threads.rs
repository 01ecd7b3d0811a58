//! Concurrency: stacks in real time, with threads that wait.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{EpollEvent, Events, Operation, SignalSet};
use tidewall::{ListenOptions, MemoryConfig, Stack, TcpListener, TcpStream, UdpSocket};
use tidewall_device::memory::{LinkConfig, pair_on_clock};
use tidewall_wire::ethernet::MacAddress;

use super::raw_signals::{self, Thread};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Nothing here takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Port of the datagrams that show what came before them to have been seen to.
const SENTINEL: u16 = 9;

/// Two stacks; the near one's descriptors are watched.
struct Bed {
    near: Descriptors,
    far: Stack,
    service: TcpListener,
    /// From the far stack to the near one.
    sentinel: [UdpSocket; 2],
    /// Threads that wait, by their directories in /proc.
    waiting: Mutex<Vec<PathBuf>>,
}

/// True while a thread sleeps in the kernel: one that was woken does not, though
/// it may not have run yet.
fn sleeps(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    // The state comes behind the name, which ends with the last parenthesis.
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('S'))
}

impl Bed {
    fn new() -> Self {
        let start = Instant::now();
        let (_, a, b) = pair_on_clock(LinkConfig::default(), move || start.elapsed()).unwrap();
        let config = |address: Ipv4Addr, mac, peer| MemoryConfig {
            addresses: vec![address.into()],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        let near = Stack::in_memory(a, config(NEAR, 1, 2)).unwrap();
        let far = Stack::in_memory(b, config(FAR, 2, 1)).unwrap();
        let bind = |stack, address| UdpSocket::bind(stack, (address, SENTINEL).into()).unwrap();
        Bed {
            sentinel: [bind(&far, FAR), bind(&near, NEAR)],
            waiting: Mutex::default(),
            near: Descriptors::new(&near, 4096),
            service: TcpListener::bind(&far, SocketAddr::from((FAR, 80))).unwrap(),
            far,
        }
    }

    /// Counts the calling thread among those that wait while it does.
    fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let task = Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap());
        self.waiting.lock().unwrap().push(task.clone());
        let result = wait();
        self.waiting.lock().unwrap().retain(|other| *other != task);
        result
    }

    /// Returns when so many threads wait, and all of them sleep.
    fn until_asleep(&self, count: usize) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let waiting = self.waiting.lock().unwrap().clone();
            if waiting.len() == count && waiting.iter().all(|task| sleeps(task)) {
                return;
            }
            assert!(Instant::now() < end, "{} wait, not {count}", waiting.len());
            thread::yield_now();
        }
    }

    /// Asserts that the data sent so far woke only the threads that have returned. The near
    /// stack has processed it when a datagram behind it arrives, and so many threads still
    /// sleep.
    fn still_wait(&self, count: usize) {
        let [far, near] = &self.sentinel;
        far.send_to(b"sentinel", (NEAR, SENTINEL).into()).unwrap();
        near.recv(&mut [0; 8]).unwrap();
        self.until_asleep(count);
    }

    /// A connected pair: a nonblocking descriptor, and its peer.
    fn pair(&self) -> (i32, TcpStream) {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| self.service.accept().unwrap().0);
            let address = SocketAddr::from((FAR, 80));
            let fd = self.near.connect(address, Flags::NONE).unwrap();
            self.near.file(fd).unwrap().set_nonblocking(true).unwrap();
            let peer = accepting.join().unwrap();
            peer.set_nodelay(true).unwrap();
            (fd, peer)
        })
    }

    fn set(&self) -> i32 {
        self.near.epoll_create1(Flags::NONE).unwrap()
    }

    fn add(&self, set: i32, fd: i32, events: Events) {
        let event = EpollEvent {
            events,
            data: fd as u64,
        };
        self.near
            .epoll_ctl(set, Operation::Add, fd, Some(event))
            .unwrap();
    }

    /// The data of one event, or none within a time.
    fn wait(&self, set: i32, timeout: Duration) -> Option<u64> {
        let mut events = [EpollEvent::default(); 1];
        let count = self
            .near
            .epoll_wait(set, &mut events, Some(timeout))
            .unwrap();
        (count > 0).then(|| events[0].data)
    }
}

#[test]
fn one_event_wakes_one_of_those_who_wait_on_a_set() {
    let bed = Bed::new();
    let (fd, mut peer) = bed.pair();
    let set = bed.set();
    bed.add(set, fd, Events::IN | Events::EDGE);
    let (tell, reports) = channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (tell, bed) = (tell.clone(), &bed);
            scope.spawn(move || {
                let event = bed.while_waiting(|| bed.wait(set, TIMEOUT));
                tell.send(event).unwrap();
            });
        }
        bed.until_asleep(4);
        for round in 1..=4 {
            peer.write_all(b"x").unwrap();
            assert_eq!(reports.recv_timeout(TIMEOUT), Ok(Some(fd as u64)));
            bed.still_wait(4 - round);
        }
    });
}

/// A thread that is awake for another reason may find the event too, but not all of them do
/// each time. Linux is the same (epoll_ctl(2): "one or more").
#[test]
fn of_exclusive_sets_few_are_woken() {
    const SETS: usize = 3;
    const CONNECTIONS: usize = 40;
    let bed = Bed::new();
    let address = SocketAddr::from((NEAR, 90));
    let listener = bed
        .near
        .listen(address, ListenOptions::default(), Flags::NONBLOCK)
        .unwrap();
    let for_nothing = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let (tell, reports) = channel();
    thread::scope(|scope| {
        for _ in 0..SETS {
            let set = bed.set();
            bed.add(set, listener, Events::IN | Events::EXCLUSIVE);
            let (tell, bed, for_nothing, over) = (tell.clone(), &bed, &for_nothing, &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let event = bed.while_waiting(|| bed.wait(set, TIMEOUT));
                    assert_eq!(event, Some(listener as u64));
                    match bed.near.accept4(listener, Flags::NONE) {
                        Ok(_) => tell.send(()).unwrap(),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::WouldBlock);
                            if over.load(Ordering::SeqCst) {
                                tell.send(()).unwrap();
                            }
                            for_nothing.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        bed.until_asleep(SETS);
        for _ in 0..CONNECTIONS {
            let _connection = TcpStream::connect(&bed.far, address).unwrap();
            reports.recv_timeout(TIMEOUT).unwrap();
            bed.still_wait(SETS);
        }
        over.store(true, Ordering::SeqCst);
        for _ in 0..SETS {
            let _connection = TcpStream::connect(&bed.far, address).unwrap();
            reports.recv_timeout(TIMEOUT).unwrap();
        }
    });
    let for_nothing = for_nothing.into_inner();
    let herd = CONNECTIONS * (SETS - 1);
    assert!(for_nothing < herd / 2, "{for_nothing} of {herd} at most");
}

/// Many threads wait on one set, and each event goes to one thread. All bytes sent are read
/// once, and no thread waits for ever.
fn storm(events: Events) {
    const CONNECTIONS: usize = 8;
    const ROUNDS: usize = 300;
    let bed = Bed::new();
    let set = bed.set();
    let mut peers = Vec::new();
    let mut busy = HashMap::new();
    for _ in 0..CONNECTIONS {
        let (fd, peer) = bed.pair();
        bed.add(set, fd, events);
        busy.insert(fd, AtomicBool::new(false));
        peers.push(peer);
    }
    let (received, shared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let expected = CONNECTIONS * ROUNDS * 3;
    let end = Instant::now() + TIMEOUT;
    thread::scope(|scope| {
        for _ in 0..4 {
            let (bed, busy, received, shared) = (&bed, &busy, &received, &shared);
            scope.spawn(move || {
                while received.load(Ordering::SeqCst) < expected && Instant::now() < end {
                    let Some(fd) = bed.wait(set, Duration::from_millis(50)) else {
                        continue;
                    };
                    let fd = fd as i32;
                    if busy[&fd].swap(true, Ordering::SeqCst) {
                        shared.fetch_add(1, Ordering::SeqCst);
                    }
                    let mut buffer = [0; 7];
                    loop {
                        match bed.near.read(fd, &mut buffer) {
                            Ok(0) => break,
                            Ok(length) => received.fetch_add(length, Ordering::SeqCst),
                            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                            Err(error) => panic!("{error}"),
                        };
                    }
                    busy[&fd].store(false, Ordering::SeqCst);
                    if events.contains(Events::ONESHOT) {
                        let event = EpollEvent {
                            events,
                            data: fd as u64,
                        };
                        bed.near
                            .epoll_ctl(set, Operation::Modify, fd, Some(event))
                            .unwrap();
                    }
                }
            });
        }
        for peer in &mut peers {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    peer.write_all(b"abc").unwrap();
                }
            });
        }
    });
    assert_eq!(received.load(Ordering::SeqCst), expected);
    if events.contains(Events::ONESHOT) {
        assert_eq!(shared.load(Ordering::SeqCst), 0, "one shot, one thread");
    }
}

#[test]
fn a_storm_of_edges() {
    storm(Events::IN | Events::EDGE);
}

#[test]
fn a_storm_of_single_shots() {
    storm(Events::IN | Events::ONESHOT);
    storm(Events::IN | Events::ONESHOT | Events::EDGE);
}

#[test]
fn a_storm_of_levels() {
    storm(Events::IN);
}

/// A byte there and a byte back, each waited for without end: a wake-up that was
/// lost would stop it.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: usize = 3000;
    let bed = Bed::new();
    let (fd, mut peer) = bed.pair();
    let set = bed.set();
    bed.add(set, fd, Events::IN | Events::EDGE);
    let (done, is_done) = channel();
    thread::scope(|scope| {
        let bed = &bed;
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                let mut events = [EpollEvent::default(); 4];
                while bed.near.read(fd, &mut [0; 4]).is_err() {
                    assert_eq!(bed.near.epoll_wait(set, &mut events, None).unwrap(), 1);
                }
                assert_eq!(bed.near.write(fd, b"x").unwrap(), 1);
                // Sent at once, not with the next turn.
                bed.near
                    .epoll_wait(set, &mut events, Some(Duration::ZERO))
                    .unwrap();
            }
            done.send(()).unwrap();
        });
        peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        for round in 0..ROUNDS {
            peer.write_all(b"y").unwrap();
            let mut answer = [0];
            peer.read_exact(&mut answer)
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        is_done.recv_timeout(TIMEOUT).unwrap();
    });
}

#[test]
fn what_is_closed_while_somebody_waits_is_forgotten() {
    let bed = Bed::new();
    let set = bed.set();
    let (stays, mut peer) = bed.pair();
    bed.add(set, stays, Events::IN);
    thread::scope(|scope| {
        for _ in 0..20 {
            let (fd, mut other) = bed.pair();
            bed.add(set, fd, Events::IN | Events::OUT | Events::EDGE);
            assert_eq!(bed.wait(set, TIMEOUT), Some(fd as u64));
            let waiting = scope.spawn(|| bed.while_waiting(|| bed.wait(set, TIMEOUT)));
            bed.until_asleep(1);
            bed.near.close(fd).unwrap();
            let _ = other.write_all(b"nobody reads this");
            peer.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap(), Some(stays as u64));
            assert_eq!(bed.near.read(stays, &mut [0; 4]).unwrap(), 1);
        }
        // The set itself: who waits goes on.
        let waiting = scope.spawn(|| bed.while_waiting(|| bed.wait(set, TIMEOUT)));
        bed.until_asleep(1);
        bed.near.close(set).unwrap();
        peer.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap(), Some(stays as u64));
        let mut none = [EpollEvent::default()];
        let error = bed.near.epoll_wait(set, &mut none, None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn connections_that_come_together_wake_as_many() {
    const THREADS: usize = 6;
    let bed = Bed::new();
    let address = SocketAddr::from((NEAR, 91));
    let listener = bed
        .near
        .listen(address, ListenOptions::default(), Flags::NONE)
        .unwrap();
    let (tell, reports) = channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (tell, bed) = (tell.clone(), &bed);
            scope.spawn(move || {
                let accepted = bed.while_waiting(|| bed.near.accept4(listener, Flags::NONE));
                accepted.unwrap();
                tell.send(()).unwrap();
            });
        }
        bed.until_asleep(THREADS);
        let _first = TcpStream::connect(&bed.far, address).unwrap();
        reports.recv_timeout(TIMEOUT).unwrap();
        bed.still_wait(THREADS - 1);
        let all: Vec<_> = (1..THREADS)
            .map(|_| TcpStream::connect_nonblocking(&bed.far, address).unwrap())
            .collect();
        for _ in 1..THREADS {
            reports.recv_timeout(TIMEOUT).unwrap();
        }
        drop(all);
    });
}

#[test]
fn datagrams_that_come_together_wake_as_many() {
    const THREADS: usize = 6;
    let bed = Bed::new();
    let address = SocketAddr::from((NEAR, 92));
    let socket = UdpSocket::bind(bed.near.stack(), address).unwrap();
    let peer = UdpSocket::bind(&bed.far, SocketAddr::from((FAR, 92))).unwrap();
    let (tell, reports) = channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (tell, socket, bed) = (tell.clone(), &socket, &bed);
            scope.spawn(move || {
                bed.while_waiting(|| socket.recv(&mut [0; 8])).unwrap();
                tell.send(()).unwrap();
            });
        }
        bed.until_asleep(THREADS);
        peer.send_to(b"one", address).unwrap();
        reports.recv_timeout(TIMEOUT).unwrap();
        bed.still_wait(THREADS - 1);
        let rest = (1..THREADS).map(|_| (&b"more"[..], address));
        assert_eq!(peer.send_batch(rest).unwrap(), THREADS - 1);
        for _ in 1..THREADS {
            reports.recv_timeout(TIMEOUT).unwrap();
        }
    });
}

#[test]
fn signals_end_a_wait_and_masks_hold_them_off() {
    raw_signals::handle(libc::SIGUSR1, 0);
    raw_signals::handle(libc::SIGUSR2, 0);
    let bed = Bed::new();
    let set = bed.set();
    let interrupted = |result: std::io::Result<usize>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR));
    };
    let (tell, reports) = channel();
    let (go_on, may_go_on) = channel();
    thread::scope(|scope| {
        let bed = &bed;
        let waiting = scope.spawn(move || {
            let near = &bed.near;
            let mut events = [EpollEvent::default()];
            raw_signals::block(libc::SIGUSR2);
            tell.send(Thread::current()).unwrap();
            interrupted(bed.while_waiting(|| near.epoll_wait(set, &mut events, None)));
            tell.send(Thread::current()).unwrap();
            // One that came before is blocked until the wait.
            let mut signals = SignalSet::empty();
            signals.insert(libc::SIGUSR1).unwrap();
            assert!(signals.contains(libc::SIGUSR1) && !signals.contains(libc::SIGUSR2));
            may_go_on.recv().unwrap();
            interrupted(near.epoll_pwait2(set, &mut events, Some(TIMEOUT), Some(&signals)));
            // And one that is blocked for the wait alone does not end it.
            Thread::current().interrupt(libc::SIGUSR2);
            let all = SignalSet::empty();
            interrupted(near.epoll_pwait2(set, &mut events, None, Some(&all)));
            let soon = Some(Duration::from_millis(20));
            let none = near.epoll_pwait2(set, &mut events, soon, Some(&signals));
            assert_eq!(none.unwrap(), 0);
        });
        let thread = reports.recv().unwrap();
        bed.until_asleep(1);
        thread.interrupt(libc::SIGUSR1);
        let thread = reports.recv().unwrap();
        thread.interrupt(libc::SIGUSR2);
        go_on.send(()).unwrap();
        waiting.join().unwrap();
    });
    assert!(raw_signals::handled() >= 3);
}

/// A set that is asked about through another one all the time must not lose what its
/// own sleeper waits for.
#[test]
fn no_wake_up_is_lost_while_somebody_looks_at_the_set() {
    const ROUNDS: usize = 3000;
    let bed = Bed::new();
    let (fd, mut peer) = bed.pair();
    let (quiet, _quiet_peer) = bed.pair();
    let (inner, outer) = (bed.set(), bed.set());
    bed.add(inner, fd, Events::IN);
    bed.add(inner, quiet, Events::IN);
    bed.add(outer, inner, Events::IN);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (bed, over) = (&bed, &over);
        let sleeper = scope.spawn(move || {
            for round in 0..ROUNDS {
                assert_eq!(bed.wait(inner, TIMEOUT), Some(fd as u64), "round {round}");
                assert_eq!(bed.near.read(fd, &mut [0; 4]).unwrap(), 1);
                assert_eq!(bed.near.write(fd, b"x").unwrap(), 1);
                // Sent at once; the next may be here already.
                bed.wait(inner, Duration::ZERO);
            }
        });
        scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                bed.wait(outer, Duration::ZERO);
            }
        });
        peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        let answered = (0..ROUNDS).all(|_| {
            peer.write_all(b"y").unwrap();
            peer.read_exact(&mut [0]).is_ok()
        });
        let slept = sleeper.join();
        over.store(true, Ordering::SeqCst);
        slept.unwrap();
        assert!(answered);
    });
}

/// A thread that sleeps on a set is woken for data at once. That holds also when earlier data
/// went to another set, which no thread waits on any more.
#[test]
fn a_set_whose_frames_another_has_seen_to_is_woken_for_the_next() {
    let bed = Bed::new();
    let (fd, mut peer) = bed.pair();
    let (first, second) = (bed.set(), bed.set());
    bed.add(first, fd, Events::IN);
    bed.add(second, fd, Events::IN);
    // Another thread sleeps on the device.
    let (other, mut other_peer) = bed.pair();
    let third = bed.set();
    bed.add(third, other, Events::IN);
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (tell, reports) = channel();
    let mut times = Vec::new();
    thread::scope(|scope| {
        let leader = scope.spawn(|| bed.while_waiting(|| bed.wait(third, TIMEOUT)));
        bed.until_asleep(1);
        for _ in 0..20 {
            let (tell, bed) = (tell.clone(), &bed);
            scope.spawn(move || {
                assert_eq!(bed.wait(second, TIMEOUT), Some(fd as u64));
                tell.send(Instant::now()).unwrap();
            });
            // An acknowledgment arrives, which is no event.
            let busy = scope.spawn(move || bed.wait(first, Duration::from_millis(60)));
            thread::sleep(Duration::from_millis(5));
            assert_eq!(bed.near.write(fd, b"x").unwrap(), 1);
            peer.read_exact(&mut [0]).unwrap();
            assert_eq!(busy.join().unwrap(), None);
            let begin = Instant::now();
            peer.write_all(b"y").unwrap();
            times.push(reports.recv_timeout(TIMEOUT).unwrap() - begin);
            assert_eq!(bed.near.read(fd, &mut [0; 4]).unwrap(), 1);
        }
        other_peer.write_all(b"x").unwrap();
        assert_eq!(leader.join().unwrap(), Some(other as u64));
    });
    times.sort_unstable();
    // The helper thread would come after eight milliseconds.
    assert!(
        times[times.len() / 2] < Duration::from_millis(4),
        "{times:?}"
    );
}

#[test]
fn a_shutdown_ends_what_waits_for_a_peer() {
    let bed = Bed::new();
    let address = SocketAddr::from((NEAR, 93));
    let listener = bed
        .near
        .listen(address, ListenOptions::default(), Flags::NONE)
        .unwrap();
    let socket = UdpSocket::bind(bed.near.stack(), address).unwrap();
    let datagrams = bed.near.open(socket, Flags::NONE).unwrap();
    thread::scope(|scope| {
        let (bed, near) = (&bed, &bed.near);
        let accepting = [0; 2]
            .map(|_| scope.spawn(|| bed.while_waiting(|| near.accept4(listener, Flags::NONE))));
        let receiving = [0; 2]
            .map(|_| scope.spawn(|| bed.while_waiting(|| near.recv(datagrams, &mut [0; 4], 0))));
        bed.until_asleep(4);
        near.shutdown(listener, Shutdown::Both).unwrap();
        // It has no peer, and is shut all the same.
        let shut = near.shutdown(datagrams, Shutdown::Read).unwrap_err();
        assert_eq!(shut.raw_os_error(), Some(libc::ENOTCONN));
        for accepting in accepting {
            let error = accepting.join().unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        for receiving in receiving {
            assert_eq!(receiving.join().unwrap().unwrap(), 0);
        }
    });
    // No listener answers there; another may once the descriptor is closed.
    let refused = TcpStream::connect_nonblocking(&bed.far, address).unwrap();
    let taken = TcpListener::bind(bed.near.stack(), address).map(drop);
    assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
    drop(refused);
    bed.near.close(listener).unwrap();
    drop(TcpListener::bind(bed.near.stack(), address).unwrap());
}
