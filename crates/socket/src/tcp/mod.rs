//! TCP: listeners and streams.
//!
//! The protocol runs in the thread that receives, sends, accepts or waits. It runs on the
//! frames of the channels that this thread serves (a selector's wait, a blocking read). Its
//! output (acknowledgments, data) is sent once per turn, for all connections together. A
//! helper thread serves connections that the application leaves alone for several
//! milliseconds.
//!
//! Each file has one concern:
//!
//! | file | concern |
//! |---|---|
//! | `acp` | message sockets |
//! | `channels`, `lending` | channels, and those that connections borrow |
//! | `connection`, `flows` | connections, and the table of them |
//! | `fast_open` | cookies and keys |
//! | `frames` | from channels to segments |
//! | `kernel_stream` | connections that the kernel has |
//! | `listener` | listeners |
//! | `memory` | the memory of all connections' data |
//! | `ports` | ports and their users |
//! | `sending` | order and amount of output |
//! | `stream` | the application's side |
//! | `time_wait` | connections in TIME-WAIT |

mod acp;
pub(crate) mod channels;
pub(crate) mod connection;
mod describe;
mod fast_open;
mod flows;
pub(crate) mod frames;
mod kernel_stream;
mod lending;
pub(crate) mod listener;
pub(crate) mod memory;
mod ports;

pub(crate) mod sending;
pub mod settings;
mod stream;
mod time_wait;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidewall_device::demux::CookieParameters;
use tidewall_device::demux::layout;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::tcp::{Config, Errno, Secrets, TimeWaitTable};
use tidewall_stack::core::Core;
use tidewall_stack::helper::Helper;
use tidewall_stack::lock::{Mutex, ReadGuard, RwLock, lock, rank};
use tidewall_stack::protocol::{Hold, Protocol};
use tidewall_stack::snapshot::StackSnapshot;
use tidewall_stack::stack::Start;
use tidewall_sys::netlink::SocketDiag;

use channels::Channels;
use connection::ConnectionInner;
use fast_open::FastOpen;
use flows::Flows;
use lending::Lending;
use listener::ListenerInner;
use memory::Memory;
use ports::Ports;
use sending::Sending;
use time_wait::TimeWait;

pub use acp::{AcpListener, AcpStream};
pub use listener::{ListenOptions, TcpListener};
pub use stream::{ConnectOptions, Notification, ReceivedFrame, TcpStream};
pub use tidewall_protocol::tcp::{
    Congestion, FastOpenFailure, FastOpenKeys, Framing, Info, Keepalive, SendFlags, SendingTimes,
    State, StreamOptions, Sysctl, TimestampEvent, TimestampKeys, Timestamping,
};

/// Default hop limit of a segment (Linux's).
pub(crate) const HOP_LIMIT: u8 = 64;
/// Connections with output from which they are served although the application's turn is
/// not over.
const MANY_DIRTY: usize = 64;
/// How long a stack that ends waits for closed connections to send their data.
const LINGER_AT_END: Duration = Duration::from_secs(1);
/// Route queries that wait for the control thread, at most.
const QUESTIONS_MAX: usize = 64;
/// The smallest payload limit of a segment, whatever the link's MTU.
const MSS_LEAST: u16 = 88;
/// Most connections in TIME-WAIT; the oldest is evicted first (Linux's
/// `tcp_max_tw_buckets` is as large on a machine of this kind).
const TIME_WAIT_MAX: usize = 131_072;
/// TCP of one stack.
pub struct Tcp {
    pub(crate) flows: Flows,
    pub(crate) ports: Ports,
    listeners: Mutex<HashMap<u16, Vec<Arc<ListenerInner>>>, rank::Leaf>,
    pub(crate) sending: Sending,
    pending: Pending,
    pub(crate) channels: Channels,
    lending: Lending,
    pub(crate) time_wait: TimeWait,
    pub(crate) secrets: Secrets,
    pub(crate) fast_open: FastOpen,
    pub(crate) helper: Arc<Helper>,
    /// The driver's answers leave the interface.
    pub(crate) driver_answers: bool,
    pub(crate) counters: Counters,
    pub(crate) memory: Arc<Memory>,
    begins: RwLock<Begins, rank::Leaf>,
    /// Notified when another process accepts by a listener.
    pub(crate) shared_listener: OnceLock<listener::holders::Watcher>,
}

/// Work that waits for a thread that may run the protocol, or query the kernel.
#[derive(Default)]
struct Pending {
    /// Connections with frames that no selector watches.
    connections: Mutex<Vec<Arc<ConnectionInner>>, rank::Leaf>,
    /// Some listeners have frames.
    listeners: AtomicBool,
    /// Routes that connections need: to a remote address from a local one.
    routes: Mutex<Vec<(IpAddr, IpAddr)>, rank::Leaf>,
    /// Segments reassembled from fragments.
    reassembled: Mutex<Vec<Reassembled>, rank::Leaf>,
}

/// Returns the options that connections begin with.
struct Begins {
    sysctl: Sysctl,
    /// Payload of a segment over IPv4 by the link's MTU; over IPv6 20 bytes less.
    mss: u16,
    v4: Config,
    v6: Config,
}

impl Begins {
    fn new(sysctl: Sysctl, mss: u16) -> Self {
        let config = |mss| Config {
            mss,
            ..sysctl.config()
        };
        let (v4, v6) = (config(mss), config(mss.saturating_sub(20).max(MSS_LEAST)));
        Begins {
            sysctl,
            mss: v4.mss,
            v4,
            v6,
        }
    }
}

/// Returns the payload of a segment over IPv4 on a link of this MTU.
fn mss_of(mtu: usize) -> u16 {
    u16::try_from(mtu.saturating_sub(40))
        .unwrap_or(u16::MAX)
        .max(MSS_LEAST)
}

/// Counters since the stack started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    opened: AtomicU64,
    closed: AtomicU64,
    accepted: AtomicU64,
    accepted_by_kernel: AtomicU64,
    held_up: AtomicU64,
    refused: AtomicU64,
    time_wait_evicted: AtomicU64,
    channels_taken: AtomicU64,
    orphans: AtomicUsize,
    orphans_reset: AtomicU64,
    no_memory: AtomicU64,
}

impl Counters {
    fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self, orphan: bool) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        if orphan {
            self.orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn orphan_made(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }

    fn held_up(&self) {
        self.held_up.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a closed connection that was reset: there are too many, or memory is
    /// exhausted.
    fn orphan_reset(&self) {
        self.orphans_reset.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a SYN or a handshake's end that was dropped: memory is exhausted.
    fn no_memory(&self) {
        self.no_memory.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection for which the driver's tables had no room.
    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts connections in TIME-WAIT that were evicted (Linux: TCPTimeWaitOverflow).
    fn time_wait_evicted(&self, count: usize) {
        self.time_wait_evicted
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a connection's channel that went to a busier one.
    pub(crate) fn channel_taken(&self) {
        self.channels_taken.fetch_add(1, Ordering::Relaxed);
    }

    fn accepted(&self, by_kernel: bool) {
        let counter = if by_kernel {
            &self.accepted_by_kernel
        } else {
            &self.accepted
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters by name.
    pub(crate) fn values(&self) -> [(&'static str, u64); 10] {
        [
            ("opened", &self.opened),
            ("closed", &self.closed),
            ("accepted", &self.accepted),
            ("accepted-by-kernel", &self.accepted_by_kernel),
            ("held-up", &self.held_up),
            ("refused", &self.refused),
            ("time-wait-evicted", &self.time_wait_evicted),
            ("channels-taken", &self.channels_taken),
            ("orphans-reset", &self.orphans_reset),
            ("no-memory", &self.no_memory),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

impl Tcp {
    /// Opens the channels that connections share.
    ///
    /// # Errors
    /// ENOMEM; what `/dev/urandom` reports.
    pub fn new(start: Start<'_>) -> io::Result<Self> {
        let Start {
            queues,
            timers,
            output,
            helper,
            sysctl,
            tcp_memory,
            tcp_orphans,
            driver_answers,
        } = start;
        let memory = Memory::default();
        if let Some(bytes) = tcp_memory {
            memory.set_limit(bytes);
        }
        if let Some(connections) = tcp_orphans {
            memory.set_orphans_max(connections);
        }
        let mut keys = [[0; 16]; 3];
        File::open("/dev/urandom")?.read_exact(keys.as_flattened_mut())?;
        let [sequence, cookie, fast_open] = keys;
        let mut mtu = usize::from(u16::MAX);
        for queue in queues {
            mtu = mtu.min(lock(&queue.transmitter).packet_max());
        }
        let mss = mss_of(mtu);
        let channels = Channels::open(queues)?;
        let mut time_wait_timer = 0;
        timers.add(|timer| {
            time_wait_timer = timer;
            channels.time_wait.clone()
        });
        Ok(Tcp {
            flows: Flows::new(),
            ports: Ports::default(),
            listeners: Mutex::default(),
            sending: Sending::new(output.clone()),
            pending: Pending::default(),
            channels,
            lending: Lending::default(),
            time_wait: TimeWait {
                table: Mutex::new(TimeWaitTable::new(TIME_WAIT_MAX, sequence)),
                timer: time_wait_timer,
            },
            secrets: Secrets { sequence, cookie },
            fast_open: FastOpen::new(sysctl.fast_open_keys.unwrap_or(FastOpenKeys {
                primary: fast_open,
                backup: None,
            })),
            helper: helper.clone(),
            driver_answers,
            counters: Counters::default(),
            memory: Arc::new(memory),
            begins: RwLock::new(Begins::new(sysctl, mss)),
            shared_listener: OnceLock::new(),
        })
    }

    fn begins(&self) -> ReadGuard<'_, Begins, rank::Leaf> {
        self.begins.read()
    }

    /// The kernel's parameters of TCP.
    pub(crate) fn sysctl(&self) -> Sysctl {
        self.begins().sysctl.clone()
    }

    /// Sets the link's MTU, in bytes, for connections that begin from now on.
    pub(crate) fn set_mtu(&self, mtu: usize) {
        let begins = Begins::new(self.sysctl(), mss_of(mtu));
        *self.begins.write() = begins;
    }

    pub(crate) fn set_sysctl(&self, sysctl: &Sysctl) {
        let mss = self.begins().mss;
        let begins = Begins::new(sysctl.clone(), mss);
        *self.begins.write() = begins;
    }

    /// Returns the initial parameters of a family's connections.
    pub(crate) fn config(&self, v4: bool) -> Config {
        let begins = self.begins();
        if v4 { begins.v4 } else { begins.v6 }
    }

    // ---- Listeners ----------------------------------------------------------

    /// Returns the listener for a local address; one bound to it precedes one bound to
    /// any.
    pub(crate) fn listener(&self, local: SocketAddr) -> Option<Arc<ListenerInner>> {
        let listeners = lock(&self.listeners);
        let of_port = listeners.get(&local.port())?;
        of_port
            .iter()
            .filter(|listener| listener.takes(local.ip()))
            .max_by_key(|listener| !listener.local().ip().is_unspecified())
            .cloned()
    }

    // ---- Interest -----------------------------------------------------------

    /// Enters a connection with output. The caller has set its flag.
    pub(crate) fn schedule_output(&self, connection: Arc<ConnectionInner>) {
        self.sending.enter(connection);
        self.helper.wake();
    }

    /// Enters a connection with frames that no selector watches.
    pub(crate) fn add_pending_connection(&self, connection: Arc<ConnectionInner>) {
        lock(&self.pending.connections).push(connection);
        self.helper.wake();
    }

    /// Records a listener with frames that no selector watches.
    pub(crate) fn add_pending_listener(&self) {
        self.pending.listeners.store(true, Ordering::Release);
        self.helper.wake();
    }

    /// Returns true when connections or listeners have frames that no selector watches.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.listeners.load(Ordering::Acquire)
            || !lock(&self.pending.connections).is_empty()
    }

    /// Returns the number of connections that the application has closed.
    pub(crate) fn orphans(&self) -> u64 {
        self.counters.orphans.load(Ordering::Relaxed) as u64
    }
}

impl Tcp {
    /// Writes the parameters of SYN cookies into the driver program's map.
    pub(crate) fn set_cookie_parameters(&self, core: &Core) {
        let epoch = if core.netdev.has_kernel {
            tidewall_sys::monotonic().saturating_sub(core.now())
        } else {
            // Link and stack share one clock.
            Duration::ZERO
        };
        core.tables.set_cookie_parameters(&CookieParameters {
            key: self.secrets.cookie,
            epoch,
            mss: [true, false].map(|v4| self.config(v4).mss),
            hop_limit: HOP_LIMIT,
        });
    }

    /// Makes the control thread query the kernel's route to a remote address.
    fn ask_route(&self, core: &Core, remote: IpAddr, local: IpAddr) {
        let mut questions = lock(&self.pending.routes);
        // The connections repeat queries that do not fit.
        if questions.len() < QUESTIONS_MAX && !questions.contains(&(remote, local)) {
            questions.push((remote, local));
            drop(questions);
            core.netdev.link.wake.signal();
        }
    }

    /// Queries the kernel for the routes that connections need. The answers are kept with
    /// the routes, where the connections look again.
    pub(crate) fn resolve_routes(&self, core: &Core) {
        let questions = std::mem::take(&mut *lock(&self.pending.routes));
        for (remote, local) in questions {
            lock(&core.ip.routes).neighbour(remote, Some(local), None, Instant::now());
        }
    }

    /// Runs the protocol for connections and listeners that no selector watches.
    pub(crate) fn process_pending(&self, core: &Core) {
        // Handshakes are completed up to the backlog while the application is busy, as by
        // Linux.
        if self.pending.listeners.swap(false, Ordering::AcqRel) {
            for listener in self.all_listeners() {
                listener.process(core);
            }
        }
        let pending = std::mem::take(&mut *lock(&self.pending.connections));
        for connection in pending {
            connection.clear_pending();
            connection.process(core);
        }
    }

    /// Called at the end of the stack: closed connections send their data, for a while.
    /// Their flows end with the driver's tables.
    pub(crate) fn linger(&self, core: &Core) {
        self.helper.stop();
        if !self.helper.is_allowed() {
            return;
        }
        let has_more = || {
            let connections = self.flows.all();
            self.orphans() > 0 && connections.iter().any(|connection| connection.has_more())
        };
        let end = core.clock.instant_now() + LINGER_AT_END;
        while core.clock.instant_now() < end && has_more() {
            let left = end.saturating_duration_since(core.clock.instant_now());
            let step = core.clock.instant_now() + left.min(Duration::from_millis(5));
            if core.receiver.sleep(core, &[], Some(step)).is_err() {
                break;
            }
        }
    }
}

impl Tcp {
    /// The TCP of a stack that has TCP sockets.
    #[inline]
    pub(crate) fn of(core: &Core) -> &Self {
        core.protocol()
    }
}

impl Protocol for Tcp {
    fn begin(&self, core: &Core) {
        let Channels {
            shared, time_wait, ..
        } = &self.channels;
        for channel in [shared, time_wait] {
            core.channels
                .set_endpoint(channel.id.index(), Some(channel.clone()));
        }
        self.set_cookie_parameters(core);
    }

    fn works_between_waits(&self) -> bool {
        true
    }

    fn run(&self, core: &Core, now: Duration) {
        self.take_waiting_frames(core);
        self.reclaim(core, now);
    }

    fn send(&self, core: &Core, hold: Hold) -> bool {
        self.send_burst(core, hold)
    }

    fn has_waiting_frames(&self) -> bool {
        self.has_pending() || self.has_shared_frames()
    }

    fn process_pending(&self, core: &Core) {
        Tcp::process_pending(self, core);
    }

    fn take_kernel_delivered(&self, core: &Core, from: KernelDelivered, payload: &[u8]) -> bool {
        let is_segment = from.protocol == layout::Protocol::Tcp;
        if is_segment {
            Tcp::take_kernel_delivered(self, core, from, payload);
        }
        is_segment
    }

    fn set_mtu(&self, mtu: usize) {
        Tcp::set_mtu(self, mtu);
    }

    fn lose_device(&self, core: &Core) {
        let listeners = self.all_listeners();
        for listener in listeners.iter().filter(|it| !it.has_kernel_part()) {
            listener.notify_failure();
        }
        for connection in self.flows.all() {
            connection.fail(core, Errno::TIMEDOUT);
        }
    }

    fn ask_kernel(&self, core: &Core, sockets: Option<&mut SocketDiag>) -> Option<Duration> {
        self.resolve_routes(core);
        self.look_for_others(core, sockets)
    }

    fn has_listeners(&self) -> bool {
        !self.all_listeners().is_empty()
    }

    fn describe(&self, core: &Core, snapshot: &mut StackSnapshot) {
        describe::describe(self, core, snapshot);
    }

    fn end(&self, core: &Core) {
        self.linger(core);
    }
}
