//! Private applications, one of which is flooded, or lies to the driver program about it.

mod support;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use support::*;
use tidewall::{EmbeddedConfig, Stack};
use tidewall_device::demux::layout::{Counter, Protocol};
use tidewall_device::demux::{ApplicationTables, ChannelId};
use tidewall_manager::client::Client;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join};

const ADDRESS: &str = "10.77.0.1";
const USER: u32 = 65_534;
/// Port of the application that is asked, and of the one that is flooded.
const ASKED: u16 = 7007;
const FLOODED: u16 = 7008;
/// Frames that its channel accepts, as many as a socket's.
const LIMIT: u32 = 512;
/// An answer that takes longer is lost, on a busy machine, too.
const LOST: Duration = Duration::from_secs(2);

#[test]
fn a_neighbours_losses_are_not_ones_own() {
    run_with_peer("a_neighbours_losses_are_not_ones_own", 60);
}

#[test]
fn an_application_that_claims_frames_harms_itself() {
    run_with_peer("an_application_that_claims_frames_harms_itself", 60);
}

/// A private application that receives no frames.
struct Idle {
    client: Client,
    tables: ApplicationTables,
    // Its queue exists as long as this.
    _handed: tidewall_manager::client::Handed,
}

impl Idle {
    fn join() -> Idle {
        as_user(USER, || {
            let private = Join {
                flags: JOIN_PRIVATE,
                ..join()
            };
            let (client, handed) = Client::join(&socket(), &private).unwrap();
            let number = client.joined().application as u16;
            let tables = ApplicationTables::of_map(handed.tables.as_fd(), number, [1, 2]).unwrap();
            let end = UdpSocket::bind((ADDRESS, FLOODED)).unwrap();
            client.own_port(Protocol::Udp, end).unwrap();
            let channel = ChannelId::new(1, 1);
            tables
                .listen(Protocol::Udp, None, FLOODED, channel)
                .unwrap();
            tables.set_limit(0, 1, LIMIT);
            Idle {
                client,
                tables,
                _handed: handed,
            }
        })
    }
}

/// Binds the socket that is queried.
fn bind(stack: &Stack) -> tidewall::UdpSocket {
    let at = ([0, 0, 0, 0], ASKED).into();
    as_user(USER, || tidewall::UdpSocket::bind(stack, at).unwrap())
}

/// Echoes, until it receives an empty datagram.
fn echoes(end: &tidewall::UdpSocket) {
    let mut buffer = [0; 64];
    loop {
        let (length, from) = end.recv_from(&mut buffer).unwrap();
        end.send_to(&buffer[..length], from).unwrap();
        if length == 0 {
            return;
        }
    }
}

/// Sends this many requests beside a flood of the other port. Returns how many answers
/// were lost.
fn ask_beside_flood(times: u32) -> u32 {
    let (ended, sent) = (AtomicBool::new(false), AtomicU32::new(0));
    at_peer(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = UdpSocket::bind("10.77.0.2:0").unwrap();
                while !ended.load(Ordering::Relaxed) {
                    for _ in 0..50 {
                        let _ = end.send_to(b"flood", (ADDRESS, FLOODED));
                    }
                    sent.fetch_add(50, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let end = UdpSocket::bind("10.77.0.2:0").unwrap();
            end.set_read_timeout(Some(LOST)).unwrap();
            end.connect((ADDRESS, ASKED)).unwrap();
            let mut buffer = [0; 64];
            let mut ask = |text: &[u8]| {
                end.send(text).unwrap();
                end.recv(&mut buffer)
                    .is_ok_and(|length| &buffer[..length] == text)
            };
            let asked = (0..times).filter(|number| !ask(&number.to_ne_bytes()));
            let lost = asked.count() as u32;
            // Answers may arrive faster than a flood that fills a channel.
            wait_until("it was a flood", || {
                sent.load(Ordering::Relaxed) > 2 * LIMIT
            });
            ended.store(true, Ordering::Relaxed);
            lost
        })
    })
}

/// Ends [`echoes`].
fn end_echoes() {
    at_peer(|| {
        let end = UdpSocket::bind("10.77.0.2:0").unwrap();
        end.send_to(b"", (ADDRESS, ASKED)).unwrap();
    });
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_neighbours_losses_are_not_ones_own() {
        let _daemon = start_with(command().args(["--private", &USER.to_string()])).0;
        let stack = as_user(USER, || {
            Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap()
        });
        let flooded = Idle::join();
        let end = bind(&stack);
        std::thread::scope(|scope| {
            scope.spawn(|| as_user(USER, || echoes(&end)));
            let full = || trusted().counter(0, Counter::ChannelFull);
            // By then many of its rounds have had a drop in them.
            wait_until("the neighbour's channel is full", || {
                ask_beside_flood(500);
                full() > 5_000
            });
            let queue = &stack.snapshot().queues[0];
            let own = queue.control.overflowed;
            assert!(queue.delivered >= 500);
            assert_eq!(own, 0, "of {} that the neighbour lost", full());
            assert_eq!(flooded.tables.total_dropped(0), full());
            end_echoes();
        });
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn an_application_that_claims_frames_harms_itself() {
        const ASKS: u32 = 500;
        let _daemon = start_with(command().args(["--private", &USER.to_string()])).0;
        let stack = as_user(USER, || {
            Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap()
        });
        let end = bind(&stack);
        std::thread::scope(|scope| {
            scope.spawn(|| as_user(USER, || echoes(&end)));
            // An honest application, whose channel is full.
            let honest = Idle::join();
            let beside_honest = ask_beside_flood(ASKS);
            assert_eq!(honest.tables.head(0, 1), LIMIT);
            drop(honest);
            // Frames claimed: more than a difference can express, the most that it can,
            // and any number with all of them for quiet channels.
            for (given, spare) in [(1 << 31, 0), (i32::MAX as u32, 0), (0, u32::MAX)] {
                wait_until("the last one is gone", || counters().applications == 1);
                let lies = Idle::join();
                let head = lies.tables.total_head(0);
                lies.tables.set_given(0, head.wrapping_add(given));
                lies.tables.set_spare(0, spare);
                lies.tables.set_limit(0, 1, u32::MAX);
                let lost = ask_beside_flood(ASKS);
                assert!(
                    lost <= beside_honest,
                    "{lost} of {ASKS} lost beside {given} and {spare}, {beside_honest} beside an honest one"
                );
                // The driver program continues counting, and its socket accepts its
                // share.
                let (admitted, dropped) = (lies.tables.head(0, 1), lies.tables.total_dropped(0));
                println!("given {given}, spare {spare}: {admitted} admitted, {dropped} dropped");
                assert!(u64::from(admitted) + dropped > u64::from(LIMIT));
                assert_eq!(lies.client.ended(), None);
            }
            end_echoes();
        });
    }
}
