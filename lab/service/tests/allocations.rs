//! The cost of a request in allocations: a busy server makes none for its current files,
//! and a few for requests to an origin. Without sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tidewall_service::http::ClientConnection;
use tidewall_service::http::Limits;
use tidewall_service::http::connection::{Connection, Output};
use tidewall_service::http::entry::{Bytes, Entry};
use tidewall_service::http::proxy::Spec;
use tidewall_service::http::proxy::session::{Session, Shared};
use tidewall_service::http::site::{Clock, Found, Site, Store};

/// An allocator that counts.
mod raw_counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    struct Counting;

    // SAFETY: everything is done by the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.set(COUNT.get() + 1);
            // SAFETY: as our caller has promised.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            // SAFETY: as our caller has promised.
            unsafe { System.dealloc(place, layout) }
        }

        unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            COUNT.set(COUNT.get() + 1);
            // SAFETY: as our caller has promised.
            unsafe { System.realloc(place, layout, size) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    /// Returns how many allocations this thread makes in `during`.
    pub fn allocations(during: impl FnOnce()) -> usize {
        let before = COUNT.get();
        during();
        COUNT.get() - before
    }
}

use raw_counting::allocations;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const REQUEST: &[u8] = b"GET /a.txt HTTP/1.1\r\nHost: x\r\nUser-Agent: y\r\nAccept: */*\r\n\r\n";

/// One file.
struct One(Rc<Entry>);

impl Store for One {
    fn find(&mut self, _path: &[u8], _clock: &Clock) -> Found {
        Found::Entry(self.0.clone())
    }
}

fn clock() -> Clock {
    Clock::new(Duration::ZERO, 784_111_777)
}

/// Consumes all output, as the event loop does; returns its length.
fn send(connection: &mut Connection) -> usize {
    let mut total = 0;
    while let Output::Bytes { bytes, .. } = connection.output() {
        let count = bytes.len();
        connection.sent(count, Duration::ZERO, &Limits::default());
        total += count;
    }
    total
}

#[test]
fn a_file_in_memory_costs_none() {
    let bytes = Bytes::Memory(vec![0; 1259].into());
    let entry = Entry::new(
        bytes,
        1259,
        7,
        Duration::ZERO,
        784_111_777,
        "text/plain".into(),
    );
    let mut site = Site::new(One(Rc::new(entry)), clock(), Limits::default());
    let mut connection = Connection::new(PEER, Duration::ZERO);
    let mut output = Vec::with_capacity(64 * 1024);
    let mut request = |site: &mut Site<One>| {
        connection.lend(&mut output);
        connection.receive(REQUEST, site);
        assert!(send(&mut connection) > 1259);
        connection.give_back(&mut output);
    };
    // The first one makes room for the path.
    request(&mut site);
    assert_eq!(allocations(|| request(&mut site)), 0);
}

/// The allocations: the forwarded request, the exchange, its address as text.
#[test]
fn a_forwarded_request_costs_few() {
    let origin = SocketAddr::new(PEER, 80);
    let mut shared = Shared::forwarding(Spec::new(0, Some(origin)), clock(), 7);
    let mut session = Session::new(PEER, Duration::ZERO);
    let mut output = Vec::with_capacity(64 * 1024);
    let body = "x".repeat(1259);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1259\r\n\r\n{body}"
    );
    let mut request = || {
        session.connection_mut().lend(&mut output);
        session.receive(REQUEST, &mut shared);
        assert!(session.wants_upstream().is_some());
        session.connected(Duration::ZERO);
        let count = session.upstream_output().0.len();
        session.upstream_sent(count, &shared);
        session.upstream_receive(answer.as_bytes(), &mut shared);
        assert!(session.take_finished());
        assert!(send(session.connection_mut()) > 1259);
        session.connection_mut().give_back(&mut output);
    };
    request();
    let count = allocations(request);
    assert!(count <= 3, "{count}");
}
