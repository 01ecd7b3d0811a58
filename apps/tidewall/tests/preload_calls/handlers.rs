//! Calls from signal handlers, which run at any point of the same thread's calls.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::host::{Host, library};
use crate::common::text;
use crate::peer::Peer;
use crate::raw_calls as c;
use crate::subject::{HERE, address};
use crate::{PEER, PORT};

/// Least number of requests and answers meanwhile.
const ROUNDS: usize = 500;
/// Pause between two signals.
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes sent in each direction.
const BYTES: usize = 2000;

/// The handler's connection, how often it has written there, and the error, if any.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicI64 = AtomicI64::new(0);

fn handler() {
    let connection = CONNECTION.load(Ordering::SeqCst);
    let empty = c::recv(connection, &mut [0; 8], libc::MSG_DONTWAIT);
    let written = c::write(connection, b"h");
    match (empty, written) {
        (error, 1) if error == -i64::from(libc::EAGAIN) => {
            WRITTEN.fetch_add(1, Ordering::SeqCst);
        }
        (_, other) => FAILED.store(other, Ordering::SeqCst),
    }
}

/// The program that receives the signals; by itself it does nothing.
#[test]
fn program() {
    let (Ok(peer), Ok(port)) = (std::env::var(PEER), std::env::var(PORT)) else {
        return;
    };
    let peer = Peer::new(peer.parse().unwrap());
    let at = address(HERE, port.parse().unwrap());
    let listener = c::socket(libc::SOCK_STREAM) as c_int;
    c::setsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    assert_eq!((c::bind(listener, at), c::listen(listener, 8)), (0, 0));
    let [(worker, own), (other, handlers)] = [(); 2].map(|()| {
        let peer = peer.connect(at);
        (peer, c::accept(listener).0 as c_int)
    });
    CONNECTION.store(handlers, Ordering::SeqCst);
    c::handle(libc::SIGUSR1, handler);
    let ended = AtomicBool::new(false);
    let this = c::this_thread();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                c::signal(this, libc::SIGUSR1);
                std::thread::sleep(PAUSE);
            }
        });
        let end = Instant::now() + Duration::from_secs(60);
        let enough = |round| round >= ROUNDS && WRITTEN.load(Ordering::SeqCst) > ROUNDS / 10;
        for round in (0..).take_while(|&round| !enough(round)) {
            assert!(Instant::now() < end, "round {round}");
            let bytes = [round as u8; BYTES];
            worker.send(&bytes);
            let (mut buffer, mut read) = ([0; BYTES], 0);
            while read < BYTES {
                let got = c::read(own, &mut buffer[read..]);
                assert!(got > 0, "round {round}: {got}");
                read += got as usize;
            }
            assert_eq!(buffer, bytes);
            assert_eq!(c::write(own, &bytes), BYTES as i64);
            assert_eq!(worker.receive(BYTES), bytes);
        }
        ended.store(true, Ordering::SeqCst);
    });
    let written = WRITTEN.load(Ordering::SeqCst);
    assert_eq!(FAILED.load(Ordering::SeqCst), 0);
    assert_eq!(c::shutdown(handlers, libc::SHUT_WR), 0);
    let came = other.receive(written + 1);
    assert_eq!(came, vec![b'h'; written]);
    println!("handlers have written");
}

#[test]
fn handlers_call_what_the_thread_they_interrupt_is_in() {
    let test = "handlers_call_what_the_thread_they_interrupt_is_in";
    let Some(host) = Host::or_skip(test, "ph") else {
        return;
    };
    let peer = crate::peer_namespace(&host);
    let program = std::env::current_exe().unwrap();
    let words = [
        format!("{PEER}={}", peer.as_raw_fd()),
        format!("{PORT}=7900"),
        format!("LD_PRELOAD={}", library().display()),
    ];
    let words = words.iter().map(String::as_str);
    let exact = [
        program.to_str().unwrap(),
        "--exact",
        "handlers::program",
        "--nocapture",
    ];
    let command: Vec<&str> = ["timeout", "120", "env"]
        .into_iter()
        .chain(words)
        .chain(exact)
        .collect();
    let output = host
        .run(&["--report"], &command)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("handlers have written"), "{said}");
}
