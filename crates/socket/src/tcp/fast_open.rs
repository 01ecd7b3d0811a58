//! Fast Open (RFC 7413) of one stack: a client's cache of servers, and the keys of a
//! server's cookies.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidewall_protocol::tcp::{
    FastOpenKeys, FastOpenOutcome, FastOpenPeer, FastOpenServer, FourTuple,
};
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};

use super::ListenOptions;
use super::Tcp;

/// Most servers that are remembered (RFC 7413 §4.1.3 requires a bound).
const SERVERS_MAX: usize = 4096;
/// SYNs in a row that were lost with their data before Fast Open is disabled for a server.
const LOSSES: u8 = 2;
/// How long it is disabled then; doubled with each further loss.
const AFTER_LOSSES: Duration = Duration::from_secs(60);
/// The longest of these pauses, as a number of doublings.
const DOUBLINGS: u32 = 6;
/// How long no client uses Fast Open after the network seems to have dropped it, unless
/// configured (`tcp_fastopen_blackhole_timeout_sec` was as much when Linux introduced
/// it).
const BLACK_HOLE: Duration = Duration::from_secs(3600);

/// The Fast Open state of a stack.
pub(crate) struct FastOpen {
    clients: Mutex<Clients, rank::Leaf>,
    pub(super) keys: Mutex<FastOpenKeys, rank::Leaf>,
    /// See [`BLACK_HOLE`], in seconds.
    pub(super) black_hole: AtomicU32,
}

/// Knowledge that connections have gained about servers and the network.
#[derive(Default)]
struct Clients {
    /// By local address and server address: a cookie is valid for both.
    servers: HashMap<(IpAddr, IpAddr), Server>,
    /// In insertion order: the oldest is evicted first.
    order: VecDeque<(IpAddr, IpAddr)>,
    black_hole: Pause,
}

#[derive(Default)]
struct Server {
    known: FastOpenPeer,
    /// The earliest time at which Fast Open may be retried with it.
    not_before: Duration,
}

/// A pause of Fast Open, longer each time until one connection succeeds.
#[derive(Default)]
struct Pause {
    times: u32,
    until: Duration,
}

impl FastOpen {
    pub(crate) fn new(keys: FastOpenKeys) -> Self {
        FastOpen {
            clients: Mutex::default(),
            keys: Mutex::new(keys),
            black_hole: AtomicU32::new(BLACK_HOLE.as_secs() as u32),
        }
    }

    /// Returns the cached entry of a server, possibly empty; `None` when Fast Open must
    /// not be tried with it.
    pub(super) fn server(&self, flow: &FourTuple, now: Duration) -> Option<FastOpenPeer> {
        let clients = lock(&self.clients);
        if now < clients.black_hole.until {
            return None;
        }
        match clients.servers.get(&ends(flow)) {
            Some(server) => (now >= server.not_before).then_some(server.known),
            None => Some(FastOpenPeer::default()),
        }
    }

    /// Records the outcome of a connection.
    pub(super) fn learn(&self, flow: &FourTuple, outcome: &FastOpenOutcome, now: Duration) {
        let mut guard = lock(&self.clients);
        let Clients {
            servers,
            order,
            black_hole,
        } = &mut *guard;
        let ends = ends(flow);
        let server = servers.entry(ends).or_insert_with(|| {
            order.push_back(ends);
            Server::default()
        });
        server.known.learn(outcome);
        if let Some(more) = server.known.losses.checked_sub(LOSSES) {
            let pause = AFTER_LOSSES * (1 << u32::from(more).min(DOUBLINGS));
            server.not_before = now + pause;
        }
        if outcome.cookie.is_some() || !outcome.syn_lost {
            // The network carries it.
            black_hole.times = 0;
        }
        if servers.len() > SERVERS_MAX
            && let Some(oldest) = order.pop_front()
        {
            servers.remove(&oldest);
        }
    }

    /// Records that the network may drop SYNs with data, or the segments after them (RFC
    /// 7413 §7.3, Linux `tcp_fastopen_active_disable`).
    pub(super) fn suspect(&self, now: Duration) {
        let pause = &mut lock(&self.clients).black_hole;
        let seconds = self.black_hole.load(Ordering::Relaxed);
        let time = Duration::from_secs(seconds.into());
        pause.until = now + time * (1 << pause.times.min(DOUBLINGS));
        pause.times = pause.times.saturating_add(1);
    }

    /// Returns how a listener with these options serves Fast Open, if it does.
    pub(super) fn serving(&self, options: &ListenOptions) -> Option<FastOpenServer> {
        (options.fast_open > 0).then(|| FastOpenServer {
            queue: options.fast_open,
            keys: options.fast_open_keys.unwrap_or_else(|| *lock(&self.keys)),
            without_cookie: options.fast_open_without_cookie,
        })
    }
}

fn ends(flow: &FourTuple) -> (IpAddr, IpAddr) {
    (flow.local.ip(), flow.remote.ip())
}

impl Tcp {
    pub(super) fn set_fast_open_keys(&self, core: &Core, keys: FastOpenKeys) {
        *lock(&self.fast_open.keys) = keys;
        for listener in self.all_listeners() {
            listener.refresh(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewall_protocol::tcp::{FastOpen as Cookie, FastOpenForm};

    const START: Duration = Duration::from_secs(5);
    const KEYS: FastOpenKeys = FastOpenKeys {
        primary: [1; 16],
        backup: None,
    };

    fn flow(server: u32) -> FourTuple {
        FourTuple {
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: (std::net::Ipv4Addr::from(0x0b00_0000 + server), 80).into(),
        }
    }

    fn outcome(cookie: Option<Cookie>, syn_lost: bool) -> FastOpenOutcome {
        FastOpenOutcome {
            cookie,
            mss: 1460,
            syn_lost,
            form: FastOpenForm::Standard,
        }
    }

    fn cookie() -> Option<Cookie> {
        Cookie::cookie_of(b"a cookie")
    }

    #[test]
    fn as_many_servers_as_there_is_room_for_are_remembered() {
        let memory = FastOpen::new(KEYS);
        assert_eq!(
            memory.server(&flow(0), START),
            Some(FastOpenPeer::default())
        );
        for server in 0..=SERVERS_MAX as u32 {
            memory.learn(&flow(server), &outcome(cookie(), false), START);
        }
        let known = |server| memory.server(&flow(server), START).unwrap().cookie;
        assert_eq!((known(0), known(1)), (None, cookie()));
        assert_eq!(known(SERVERS_MAX as u32), cookie());
        let clients = lock(&memory.clients);
        assert_eq!(clients.servers.len(), SERVERS_MAX);
        assert_eq!(clients.order.len(), SERVERS_MAX);
    }

    #[test]
    fn a_server_whose_syns_are_lost_is_left_alone_for_longer_each_time() {
        let memory = FastOpen::new(KEYS);
        let mut now = START;
        memory.learn(&flow(1), &outcome(cookie(), false), now);
        memory.learn(&flow(1), &outcome(None, true), now);
        assert!(memory.server(&flow(1), now).is_some(), "one is bad luck");
        for minutes in [1, 2, 4] {
            memory.learn(&flow(1), &outcome(None, true), now);
            now += Duration::from_secs(60 * minutes);
            assert!(
                memory
                    .server(&flow(1), now - Duration::from_secs(1))
                    .is_none()
            );
            assert_eq!(memory.server(&flow(1), now).unwrap().cookie, cookie());
            assert!(memory.server(&flow(2), now).is_some(), "another server");
        }
        memory.learn(&flow(1), &outcome(None, false), now);
        memory.learn(&flow(1), &outcome(None, true), now);
        assert!(memory.server(&flow(1), now).is_some());
    }

    #[test]
    fn after_a_black_hole_nobody_tries_until_one_connection_succeeds() {
        let memory = FastOpen::new(KEYS);
        let mut now = START;
        for hours in [1, 2, 4] {
            memory.suspect(now);
            now += Duration::from_secs(3600 * hours);
            assert!(
                memory
                    .server(&flow(1), now - Duration::from_secs(1))
                    .is_none()
            );
            assert!(memory.server(&flow(1), now).is_some());
        }
        memory.learn(&flow(1), &outcome(None, false), now);
        memory.suspect(now);
        assert!(memory.server(&flow(1), now + BLACK_HOLE).is_some());
    }

    #[test]
    fn keys_are_given_to_those_who_listen() {
        let memory = FastOpen::new(KEYS);
        let options = |fast_open| ListenOptions {
            fast_open,
            ..ListenOptions::default()
        };
        assert_eq!(memory.serving(&options(0)), None);
        let serving = memory.serving(&options(7)).unwrap();
        assert_eq!((serving.queue, serving.keys.primary), (7, [1; 16]));
    }
}
