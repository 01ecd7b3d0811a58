//! Local users who try to freeze, fill or blind the manager, and a client beside them.

mod support;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use support::*;
use tidewall_device::demux::layout::Application as ApplicationTables;
use tidewall_manager::client::{Client, Handed};
use tidewall_manager::connection::Connection;
use tidewall_manager::daemon::PRESENT_WITHIN;
use tidewall_manager::protocol::*;
use tidewall_manager::view::View;

/// A user who may join in private mode, and does so to do harm.
const HOSTILE: u32 = 65_001;
/// A user who may not join.
const STRANGER: u32 = 65_002;
/// How long a hostile sender makes its socket block on close.
const LINGERS: Duration = Duration::from_secs(20);
/// Longer than any answer takes on a busy machine, and much shorter than [`LINGERS`].
const AT_MOST: Duration = Duration::from_secs(2);

#[test]
fn descriptors_that_linger_hold_up_nobody() {
    run("descriptors_that_linger_hold_up_nobody");
}

#[test]
fn who_may_not_join_is_refused_and_gone() {
    run("who_may_not_join_is_refused_and_gone");
}

#[test]
fn connections_of_strangers_leave_places_for_others() {
    run_within("connections_of_strangers_leave_places_for_others", 120);
}

#[test]
fn a_manager_that_was_stopped_clears_nobody_away() {
    run("a_manager_that_was_stopped_clears_nobody_away");
}

#[test]
fn user_0_without_net_raw_is_trusted_with_nothing() {
    let test = "user_0_without_net_raw_is_trusted_with_nothing";
    if tidewall_skip::has_programs(test, &["setpriv"]) {
        run(test);
    }
}

#[test]
fn who_is_trusted_no_more_loses_the_devices_queue() {
    run("who_is_trusted_no_more_loses_the_devices_queue");
}

#[test]
fn what_was_handed_out_counts_until_it_is_gone() {
    run_within("what_was_handed_out_counts_until_it_is_gone", 180);
}

#[test]
fn unusual_sizes_hold_up_nobody() {
    run_within("unusual_sizes_hold_up_nobody", 120);
}

/// Prints the longest wait of a client beside hostile ones, and the memory that one can hold.
#[test]
fn hostile_clients_cost_others_little() {
    run_within("hostile_clients_cost_others_little", 180);
}

/// Returns a socket whose close blocks, with data that its peer does not read, and that
/// peer.
fn lingering() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let bytes = vec![0; 1 << 20];
    while stream.write(&bytes).is_ok() {}
    set_socket_linger(&stream, Some(LINGERS)).unwrap();
    (stream, listener)
}

/// Returns the longest of several queries to the manager by root, each on its own
/// connection.
fn longest_wait() -> Duration {
    let asked = |_| {
        let begun = Instant::now();
        View::connect(&socket()).unwrap().counters().unwrap();
        begun.elapsed()
    };
    (0..20).map(asked).max().unwrap()
}

/// Returns the next answer on a connection; `None` at its end.
fn next(connection: &Connection) -> Option<Answer> {
    let received = connection.receive().unwrap()?;
    Some(Answer::parse(&received.bytes).unwrap().1)
}

/// Returns the errno of the next answer, a refusal.
fn refusal(connection: &Connection) -> i32 {
    match next(connection) {
        Some(Answer::Error(failure)) => failure.errno,
        other => panic!("{other:?}"),
    }
}

/// Returns whether a connection delivers anything, its end included, within a time.
fn comes_within(connection: &Connection, time: Duration) -> bool {
    let mut descriptors = [PollFd::new(connection, PollFlags::IN)];
    let timeout = Timespec::try_from(time).unwrap();
    poll(&mut descriptors, Some(&timeout)).unwrap() > 0
}

/// Returns an application without a library, which has only ports.
fn joined() -> Connection {
    joined_with_token().0
}

fn joined_with_token() -> (Connection, [u8; 16]) {
    let connection = Connection::connect(&socket()).unwrap();
    let join = Join {
        flags: JOIN_WITHOUT_QUEUES | JOIN_PRIVATE,
        ..join()
    };
    loop {
        connection
            .send(&Request::Join(join.clone()).emit(1), &[])
            .unwrap();
        let received = connection.receive().unwrap().unwrap();
        match Answer::parse(&received.bytes).unwrap().1 {
            Answer::Joined(joined) => return (connection, joined.token),
            Answer::Error(failure) if failure.errno == libc::EBUSY => {}
            answer => panic!("{answer:?}"),
        }
    }
}

/// Passes a socket whose close blocks; the manager's copy is the last.
fn pass_lingering(connection: &Connection) -> io::Result<TcpListener> {
    let (stream, peer) = lingering();
    let port = Port {
        address: address_bytes([127, 0, 0, 1].into()),
        port: stream.local_addr()?.port(),
        protocol: 6,
        pad: 0,
    };
    connection.send(&Request::OwnPort(port).emit(2), &[stream.as_fd()])?;
    Ok(peer)
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn descriptors_that_linger_hold_up_nobody() {
        let private = HOSTILE.to_string();
        let _daemon = start_with(command().args(["--private", &private])).0;
        // By an application.
        let (application, _peer) = as_user(HOSTILE, || {
            let application = joined();
            let peer = pass_lingering(&application).unwrap();
            (application, peer)
        });
        let waited = longest_wait();
        assert!(waited < AT_MOST, "beside an application: {waited:?}");
        // Left in its connection when that ends, behind one that is examined.
        let _peers: Vec<_> = (0..3).map(|_| pass_lingering(&application)).collect();
        drop(application);
        let waited = longest_wait();
        assert!(waited < AT_MOST, "after its end: {waited:?}");
        // By a user who may not join, or has not; the kernel may refuse to pass them.
        for user in [STRANGER, TRUSTED] {
            let _peer = as_user(user, || {
                let connection = Connection::connect(&socket()).unwrap();
                pass_lingering(&connection).ok()
            });
            let waited = longest_wait();
            assert!(waited < AT_MOST, "beside user {user}: {waited:?}");
        }
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_may_not_join_is_refused_and_gone() {
        let _daemon = start_with(command().args(["--private", &HOSTILE.to_string()])).0;
        let looker = View::connect(&socket()).unwrap();
        let stranger = as_user(STRANGER, || Connection::connect(&socket()).unwrap());
        assert!(comes_within(&stranger, AT_MOST));
        assert_eq!(refusal(&stranger), libc::EPERM);
        assert_eq!(next(&stranger), None);
        // The library learns the reason, whether it asks before or after.
        for _ in 0..20 {
            let refused = as_user(STRANGER, || Client::join(&socket(), &join()).unwrap_err());
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
            assert!(refused.to_string().contains("may not join"), "{refused}");
        }
        // A permitted user has a second for it.
        let begun = Instant::now();
        let idle = as_user(HOSTILE, || Connection::connect(&socket()).unwrap());
        assert!(comes_within(&idle, 10 * AT_MOST));
        assert!(begun.elapsed() >= Duration::from_millis(900));
        assert_eq!(next(&idle), None);
        // Root may take any time.
        looker.counters().unwrap();
        assert_eq!(counters().clients, 2);
    }

    #[test]
    #[ignore = "a part of user_0_without_net_raw_is_trusted_with_nothing"]
    fn joins() {
        let said = match Client::join(&socket(), &join()) {
            Ok((client, _)) => format!("private {}", client.joined().private),
            Err(error) => error.to_string(),
        };
        println!("joined: {said}");
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn user_0_without_net_raw_is_trusted_with_nothing() {
        let joined = |without: &str| {
            let mut command = Command::new("setpriv");
            command.args([
                format!("--bounding-set={without}"),
                format!("--inh-caps={without}"),
            ]);
            command.arg(std::env::current_exe().unwrap());
            let output = command.args(["--exact", "inside::joins", "--ignored", "--nocapture"]);
            let said = String::from_utf8(output.output().unwrap().stdout).unwrap();
            let line = said.lines().find_map(|line| line.split_once("joined: "));
            line.expect(&said).1.to_owned()
        };
        let daemon = start().0;
        assert_eq!(joined("-net_admin"), "private 0");
        let refused = joined("-net_raw");
        assert!(refused.contains("user 0 may not join"), "{refused}");
        assert!(refused.contains("CAP_NET_RAW"), "{refused}");
        drop(daemon);
        let daemon = start_with(command().args(["--private", "0"])).0;
        assert_eq!(joined("-net_raw"), "private 1");
        drop(daemon);
        let _daemon = start_with(command().args(["--trust", "0"])).0;
        assert_eq!(joined("-net_raw"), "private 0");
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_is_trusted_no_more_loses_the_devices_queue() {
        let user = HOSTILE.to_string();
        let daemon = start_with(command().args(["--trust", &user])).0;
        let direct = Join { flags: 0, ..join() };
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        let own = as_user(HOSTILE, || Client::join(&socket(), &direct).unwrap());
        assert_eq!(own.0.joined().private, 0);
        drop(daemon);
        let _daemon = start_with(command().args(["--private", &user])).0;
        wait_until("it is refused", || own.0.ended().is_some());
        let ended = own.0.ended().unwrap();
        assert!(ended.contains("may not join"), "{ended}");
        wait_until("it is cleared away", || applications().is_empty());
        assert_eq!(counters().presented, 0);
        // In the permitted mode.
        let again = as_user(HOSTILE, || Client::join(&socket(), &private).unwrap());
        assert_eq!(again.0.joined().private, 1);
    }

    /// Makes users connect up to the limit, and again when they are disconnected.
    fn flood(users: std::ops::Range<u32>, over: &AtomicBool) {
        std::thread::scope(|scope| {
            for user in users {
                scope.spawn(move || {
                    as_user(user, || {
                        while !over.load(Ordering::Relaxed) {
                            let connect = |_| Connection::connect(&socket()).ok();
                            let all: Vec<_> = (0..200).map(connect).collect();
                            std::thread::sleep(Duration::from_millis(500));
                            drop(all);
                        }
                    })
                });
            }
        });
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn connections_of_strangers_leave_places_for_others() {
        let mut private = command();
        private.args(["--private", "any", "--ports", "1-65535"]);
        let daemon = start_with(&mut private).0;
        let old = as_user(STRANGER, || Client::join(&socket(), &join()).unwrap().0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| flood(100_000..100_005, &over));
            let full = || {
                as_user(65_003, || {
                    let connection = Connection::connect(&socket()).unwrap();
                    comes_within(&connection, Duration::from_millis(100))
                        && refusal(&connection) == libc::EMFILE
                })
            };
            wait_until("strangers have all places", full);
            // A new run of the manager: the application presents itself.
            drop(daemon);
            let _daemon = start_with(&mut private).0;
            wait_until("it is there again", || counters().presented == 1);
            assert_eq!(old.ended(), None);
            wait_until("strangers have all places again", full);
            // Root, a trusted user and one with an application join at any time.
            for user in [0, TRUSTED, STRANGER] {
                as_user(user, || drop(Client::join(&socket(), &join()).unwrap()));
            }
            let waited = longest_wait();
            assert!(waited < AT_MOST, "{waited:?}");
        });
    }

    /// Makes a user join and end applications, keeping part of what each received, until
    /// no more are admitted; returns the kept parts.
    fn hoard(keep: impl Fn(&Connection, Vec<OwnedFd>) -> Vec<OwnedFd>) -> Vec<Vec<OwnedFd>> {
        let mut kept = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        // Some are rejected while pairs are made.
        let mut refused = Instant::now();
        while refused.elapsed() < Duration::from_secs(3) && Instant::now() < end {
            let connection = Connection::connect(&socket()).unwrap();
            let join = Join {
                flags: JOIN_PRIVATE,
                ..join()
            };
            connection.send(&Request::Join(join).emit(1), &[]).unwrap();
            let received = connection.receive().unwrap().unwrap();
            let queues = match Answer::parse(&received.bytes).unwrap().1 {
                Answer::Joined(joined) => joined.queues,
                _ => continue,
            };
            let mut all: Vec<_> = received.descriptors.into_iter().take(1).collect();
            for _ in 0..queues {
                all.extend(connection.receive().unwrap().unwrap().descriptors);
            }
            kept.push(keep(&connection, all));
            refused = Instant::now();
        }
        kept
    }

    /// Descriptors of an application on one queue: its tables, the socket, frame memory, the
    /// second socket, and others.
    const PARTS: [&str; 4] = ["tables", "socket", "memory", "second socket"];
    /// [`Limits::applications_of_domain`].
    const APPLICATIONS: usize = 8;

    #[test]
    #[ignore = "started by the test of this name"]
    fn what_was_handed_out_counts_until_it_is_gone() {
        let _daemon = start_with(command().args(["--private", &HOSTILE.to_string()])).0;
        for (part, name) in PARTS.into_iter().enumerate() {
            as_user(HOSTILE, || {
                let kept = hoard(|_, all| all.into_iter().skip(part).take(1).collect());
                assert_eq!(kept.len(), APPLICATIONS, "{name}");
                // Others have their own.
                assert_eq!(counters().applications, 0, "{name}");
                drop(kept);
            });
            let join = Join {
                flags: JOIN_PRIVATE,
                ..join()
            };
            wait_until("what is gone does not count", || {
                as_user(HOSTILE, || Client::join(&socket(), &join).is_ok())
            });
        }
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn unusual_sizes_hold_up_nobody() {
        let _daemon = start_with(command().args(["--private", &HOSTILE.to_string()])).0;
        let over = AtomicBool::new(false);
        let large = |flags| Join {
            frames: 65_536,
            flags,
            ..join()
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    longest = longest.max(longest_wait());
                }
                longest
            });
            let over = Over(&over);
            let mut seen = Vec::new();
            for (user, flags) in [(HOSTILE, JOIN_PRIVATE), (TRUSTED, 0)] {
                as_user(user, || {
                    let (client, handed) = Client::join(&socket(), &large(flags)).unwrap();
                    assert_eq!(handed.queues[0].shape().frames, 65_536);
                    // Twice as much exceeds the user's limit.
                    let refused = Client::join(&socket(), &large(flags))
                        .map(drop)
                        .unwrap_err();
                    let errno = Refused::errno(&refused);
                    assert_eq!(errno, Some(libc::ENOBUFS), "{refused}");
                    seen.push(client.joined().private);
                });
                wait_until("it is cleared away", || counters().applications == 0);
            }
            assert_eq!(seen, [1, 0]);
            drop(over);
            let waited = waits.join().unwrap();
            assert!(waited < AT_MOST, "{waited:?}");
        });
    }

    /// Returns the longest wait for queries of root and of an application beside a
    /// hostile user.
    fn beside(what: &str, own: &Client, hostile: impl Fn(&AtomicBool) + Sync) {
        let over = AtomicBool::new(false);
        let longest = std::thread::scope(|scope| {
            let _over = Over(&over);
            scope.spawn(|| hostile(&over));
            let end = Instant::now() + Duration::from_secs(3);
            let mut longest = Duration::ZERO;
            while Instant::now() < end {
                let begun = Instant::now();
                counters();
                longest = longest.max(begun.elapsed());
                let begun = Instant::now();
                own.counters().unwrap();
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        println!("longest wait beside {what}: {longest:.1?}");
        assert!(longest < AT_MOST, "{what}: {longest:?}");
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn hostile_clients_cost_others_little() {
        let _daemon = start_with(command().args(["--private", "any", "--ports", "1-65535"])).0;
        let own = as_user(TRUSTED, || Client::join(&socket(), &join()).unwrap().0);
        let until = |over: &AtomicBool, act: &mut dyn FnMut()| {
            while !over.load(Ordering::Relaxed) {
                act();
            }
        };
        beside("nobody", &own, |_| {});
        beside("descriptors that linger", &own, |over| {
            as_user(HOSTILE, || {
                let mut peers = Vec::new();
                until(over, &mut || {
                    // The manager runs out of places while its thread is stuck.
                    let Ok(connection) = Connection::connect(&socket()) else {
                        return;
                    };
                    let ask = Request::Join(Join {
                        flags: JOIN_WITHOUT_QUEUES | JOIN_PRIVATE,
                        ..join()
                    });
                    if connection.send(&ask.emit(1), &[]).is_ok()
                        && connection.receive().is_ok_and(|answer| answer.is_some())
                        && let Ok(peer) = pass_lingering(&connection)
                    {
                        peers.push(peer);
                    }
                });
            });
        });
        beside("half messages", &own, |over| {
            as_user(HOSTILE, || {
                let mut connection = None;
                until(over, &mut || {
                    let sends =
                        connection.get_or_insert_with(|| Connection::connect(&socket()).unwrap());
                    let half = rustix::net::send(&*sends, &[1; 100], SendFlags::NOSIGNAL);
                    if half.is_err() || sends.receive().is_ok_and(|it| it.is_none()) {
                        connection = None;
                    }
                });
            });
        });
        beside("1,000 connections", &own, |over| {
            flood(100_000..100_005, over)
        });
        let usual = |client: &Client, handed: &Handed| {
            let queues = handed.queues.iter();
            let frames =
                queues.map(|it| it.shape().frames as usize * it.shape().frame_size as usize);
            assert_eq!(client.joined().queues as usize, handed.queues.len());
            size_of::<ApplicationTables>() + frames.sum::<usize>()
        };
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        // Another user's, as the one of the descriptors above is stuck.
        let (held, refused) = as_user(STRANGER, || {
            let mut held = 0;
            let mut kept = Vec::new();
            loop {
                match Client::join(&socket(), &private) {
                    Ok((client, handed)) => {
                        held += usual(&client, &handed);
                        kept.push(handed);
                    }
                    Err(error) => return (held, error),
                }
            }
        });
        println!(
            "memory that a hostile user holds: {} MiB; then {refused}",
            held >> 20
        );
        assert_eq!(Refused::errno(&refused), Some(libc::EBUSY), "{refused}");
        let frames_and_rings = (16 << 20) + (1 << 18);
        let quota = APPLICATIONS * (size_of::<ApplicationTables>() + frames_and_rings);
        assert!(held <= quota, "{held} of {quota}");
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_manager_that_was_stopped_clears_nobody_away() {
        let daemon = start().0;
        let (application, token) = joined_with_token();
        drop((daemon, application));
        let daemon = start().0;
        // Its loop runs.
        assert_eq!(counters().applications, 1);
        let process = Pid::from_child(&daemon.0);
        kill_process(process, Signal::STOP).unwrap();
        waitpid(Some(process), WaitOptions::UNTRACED).unwrap();
        // It connects, and is not heard.
        let application = Connection::connect(&socket()).unwrap();
        let present = Request::Present(Present { token });
        application.send(&present.emit(1), &[]).unwrap();
        assert!(!comes_within(
            &application,
            PRESENT_WITHIN + Duration::from_secs(1)
        ));
        kill_process(process, Signal::CONT).unwrap();
        let answer = next(&application);
        assert!(matches!(answer, Some(Answer::Joined(_))), "{answer:?}");
    }
}

/// Sets the flag when dropped, also if an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
