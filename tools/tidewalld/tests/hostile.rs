//! Local users who want to freeze, fill or blind the manager, and a client beside them.

mod support;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use support::*;
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::*;
use tidewall_manager::view::View;

/// A user who may join in private mode, and does so to do harm.
const HOSTILE: u32 = 65_001;
/// A user who may not join.
const STRANGER: u32 = 65_002;
/// For as long as this a hostile sender has its socket wait when that is closed.
const LINGERS: Duration = Duration::from_secs(20);
/// Longer than any answer takes on a busy machine, and much shorter than [`LINGERS`].
const AT_MOST: Duration = Duration::from_secs(2);

#[test]
fn descriptors_that_linger_hold_up_nobody() {
    run("descriptors_that_linger_hold_up_nobody");
}

/// A socket whose close waits, with data that its peer does not read, and that peer.
fn lingering() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let bytes = vec![0; 1 << 20];
    while stream.write(&bytes).is_ok() {}
    set_socket_linger(&stream, Some(LINGERS)).unwrap();
    (stream, listener)
}

/// The longest of some questions that root asks the manager, each by a connection of its own.
fn longest_wait() -> Duration {
    let asked = |_| {
        let begun = Instant::now();
        View::connect(&socket()).unwrap().counters().unwrap();
        begun.elapsed()
    };
    (0..20).map(asked).max().unwrap()
}

/// An application without a library, which has ports alone.
fn joined() -> Connection {
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
            Answer::Joined(_) => return connection,
            Answer::Error(failure) if failure.errno == libc::EBUSY => {}
            answer => panic!("{answer:?}"),
        }
    }
}

/// Passes a socket whose close waits; the manager's copy is the last.
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
        // Left in its connection when that ends, behind one that is looked at.
        let _peers: Vec<_> = (0..3).map(|_| pass_lingering(&application)).collect();
        drop(application);
        let waited = longest_wait();
        assert!(waited < AT_MOST, "after its end: {waited:?}");
        // By one who may not join, or has not; the kernel may refuse to pass them.
        for user in [STRANGER, TRUSTED] {
            let _peer = as_user(user, || {
                let connection = Connection::connect(&socket()).unwrap();
                pass_lingering(&connection).ok()
            });
            let waited = longest_wait();
            assert!(waited < AT_MOST, "beside user {user}: {waited:?}");
        }
    }
}
