//! Virtual circuits: sockets that carry AAL5 PDUs over ATM.
//!
//! An interface becomes an ATM interface when the next hop of its circuits is set
//! (`Stack::attach_atm`). Each circuit has a separate label (RFC 4717, the AAL5 PDU
//! frame mode). By the label the driver program finds the circuit's channel, as it finds
//! that of a port.
//!
//! ```text
//!  channel ─► circuit ─► PDU in its frame ─► application
//!                 └────► parts of PDUs: reassembly, one memory for all circuits
//! ```

mod call;
pub mod cell_switch;
pub(crate) mod circuit;
mod control;
mod listener;
mod managed;
mod options;
mod receive;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidewall_atm::reassembly::{DropReason, Limits, Reassembly};
use tidewall_readiness::Events;
use tidewall_readiness::registration::Handle;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::helper::Helper;
use tidewall_stack::ip::routes::Neighbour;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::protocol::Protocol;
use tidewall_stack::snapshot::{SocketSnapshot, StackSnapshot};
use tidewall_stack::threads::Waitable;
use tidewall_stack::timeout::Timeout;
#[cfg(doc)]
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::ethernet::MacAddress;

use circuit::{CircuitInner, Pinging, Receiving};

pub use call::CallOptions;
pub use control::{AtmControl, Side};
pub use listener::AtmListener;
pub use receive::AtmReceived;
pub use tidewall_atm::calls::{CircuitOptions as AtmOptions, Rates, Sap};
pub use tidewall_wire::atm::q2931::Opaque;
pub use tidewall_wire::atm::{Circuit, Nsap};

/// Default for the frames that may wait for a circuit, per queue.
const DEFAULT_RECEIVE_LIMIT: u32 = 128;

/// Circuits of one stack.
pub struct Atm {
    /// Signalling and its calls, where this stack controls them.
    control: Mutex<Option<control::Control>, rank::Signalling>,
    /// The same, if a manager controls them.
    managed: OnceLock<managed::Managed>,
    /// A thread is asking that manager.
    attaching: AtomicBool,
    /// Open ones. Nothing else is locked with it.
    circuits: Mutex<BTreeMap<Circuit, Arc<CircuitInner>>, rank::Leaf>,
    /// The next hop of the circuits.
    next_hop: Mutex<Option<NextHop>, rank::Leaf>,
    /// PDUs that arrive in parts.
    reassembly: Mutex<Reassembly, rank::Leaf>,
    causes: Causes,
}

/// The next hop of the circuits.
#[derive(Clone, Copy)]
struct NextHop {
    address: IpAddr,
    /// When its link address was last asked for, and not known.
    unresolved: Option<Instant>,
}

/// Counters of circuits' frames that do not belong to AAL5.
#[derive(Default)]
struct Causes {
    /// Neither a PDU nor a cell in the frame mode.
    malformed: AtomicU64,
    /// OAM cells that are damaged, or that no socket here answers.
    oam_ignored: AtomicU64,
    /// Loopback cells that were answered.
    oam_answered: AtomicU64,
}

impl Causes {
    fn named(&self) -> [(&'static str, &AtomicU64); 3] {
        [
            ("circuit-malformed", &self.malformed),
            ("oam-answered", &self.oam_answered),
            ("oam-ignored", &self.oam_ignored),
        ]
    }
}

/// Names of the counters of circuits ([`StackCounters::circuits`]).
///
/// [`StackCounters::circuits`]: tidewall_stack::snapshot::StackCounters::circuits
pub fn circuit_counters() -> Vec<&'static str> {
    let of_aal5 = DropReason::ALL.map(DropReason::name);
    let own = Causes::default().named().map(|(name, _)| name);
    of_aal5.into_iter().chain(own).collect()
}

impl Default for Atm {
    fn default() -> Self {
        Atm {
            control: Mutex::default(),
            managed: OnceLock::new(),
            attaching: AtomicBool::new(false),
            circuits: Mutex::default(),
            next_hop: Mutex::default(),
            reassembly: Mutex::new(Reassembly::new(Limits::default())),
            causes: Causes::default(),
        }
    }
}

impl Atm {
    /// The circuits of a stack that has sockets of circuits.
    pub(crate) fn of(core: &Core) -> &Self {
        core.protocol()
    }
}

impl Protocol for Atm {
    fn lose_device(&self, _core: &Core) {
        for circuit in self.all() {
            circuit.fail(libc::ENODEV);
        }
        self.fail_calls(libc::ENODEV);
    }

    fn describe(&self, core: &Core, snapshot: &mut StackSnapshot) {
        let circuits = self.all();
        let described = circuits.iter().map(|circuit| {
            let number = circuit.id().index();
            let (occupancy, dropped_full) = core.channel_counts(number);
            {
                let mut described = SocketSnapshot::default();
                described.channel = number;
                described.protocol = "aal5".to_owned();
                described.local = (circuit.circuit()).map_or(String::new(), |it| it.to_string());
                described.peer = circuit.peer().map(|it| it.to_string());
                described.received = circuit.received();
                described.through_kernel = 0;
                described.occupancy = occupancy;
                described.limit = circuit.limit();
                described.dropped_full = dropped_full;
                described
            }
        });
        snapshot.sockets.extend(described);
        snapshot.calls = self.calls();
        snapshot.counters.circuits = self.counters(core.now());
    }
}

impl Atm {
    /// Returns all circuits.
    pub(crate) fn all(&self) -> Vec<Arc<CircuitInner>> {
        lock(&self.circuits).values().cloned().collect()
    }

    /// Returns the nonzero counters, by name.
    pub(crate) fn counters(&self, now: Duration) -> BTreeMap<String, u64> {
        let mut reassembly = lock(&self.reassembly);
        // Expires PDUs of which no further part arrived.
        reassembly.expire(now);
        let of_aal5 = DropReason::ALL.map(|reason| (reason.name(), reassembly.dropped(reason)));
        drop(reassembly);
        let own = self.causes.named();
        let own = own.map(|(name, count)| (name, count.load(Ordering::Relaxed)));
        of_aal5
            .into_iter()
            .chain(own)
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    /// Link address of the next hop.
    ///
    /// # Errors
    /// - ENODEV without a next hop;
    /// - ENETUNREACH for one that the interface does not lead to;
    /// - EAGAIN while its address is looked for. The routes are queried for it each 5 ms,
    ///   since their queries are few and shared by all sockets.
    fn neighbour(&self, core: &Core) -> io::Result<MacAddress> {
        let next_hop = *lock(&self.next_hop);
        let NextHop {
            address,
            unresolved,
        } = next_hop.ok_or_else(|| errno(libc::ENODEV))?;
        let now = Instant::now();
        let asked = unresolved.map(|at| now.saturating_duration_since(at));
        if asked.is_some_and(|ago| ago < sending::NEIGHBOUR_LOOK) {
            return Err(errno(libc::EAGAIN));
        }
        let found = lock(&core.ip.routes).neighbour(address, None, None, now);
        match found {
            Neighbour::Known { neighbour, .. } => Ok(neighbour),
            Neighbour::Resolving { .. } => {
                let mut next_hop = lock(&self.next_hop);
                if let Some(it) = next_hop.as_mut().filter(|it| it.address == address) {
                    it.unresolved = Some(now);
                }
                Err(errno(libc::EAGAIN))
            }
            Neighbour::Unasked => Err(errno(libc::EAGAIN)),
            Neighbour::Kernel => Err(errno(libc::ENETUNREACH)),
        }
    }
}

fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Maps the error of a wait that ended at a timeout to ETIMEDOUT.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => errno(libc::ETIMEDOUT),
        _ => error,
    }
}

impl Atm {
    /// Makes the interface an ATM interface whose circuits lead to `next_hop`, a neighbour
    /// on its link: another stack, a cell switch, or a router. Frames go to its link
    /// address, which is resolved like that of any neighbour. Circuits that are open already
    /// lead there from now on, too.
    ///
    /// # Errors
    /// EOWNERDEAD in a forked child; `Unsupported` for an application of a manager.
    pub fn attach_atm(stack: &StackHandle, next_hop: IpAddr) -> io::Result<()> {
        let core = stack.here()?;
        core.check_protocol::<Atm>()?;
        if !core.netdev.owner.is_embedded() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        *lock(&Atm::of(core).next_hop) = Some(NextHop {
            address: next_hop,
            unresolved: None,
        });
        Ok(())
    }
}

/// One end of a permanent virtual circuit: what Linux's AF_ATMPVC socket is once it is
/// bound.
///
/// Payloads of 1 to 65,535 bytes are carried whole, each in an AAL5 PDU, and arrive in the
/// order in which they were sent. A payload that is lost on the way, or has no room, is
/// lost whole. One that fits into a frame is received in place. The other end must have
/// bound the same circuit.
///
/// Loopback cells of OAM (I.610) are answered by the threads that receive.
///
/// Several threads may use one socket at once.
pub struct AtmSocket {
    inner: Arc<CircuitInner>,
    // Dropped after `inner`'s use in Drop; keeps the device open.
    stack: StackHandle,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
}

impl std::fmt::Debug for AtmSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtmSocket")
            .field("circuit", &self.inner.circuit())
            .finish_non_exhaustive()
    }
}

impl AtmSocket {
    /// Binds a circuit of the interface.
    ///
    /// # Errors
    /// As Linux's `bind`: ENODEV where the interface is none of ATM
    /// (`Stack::attach_atm`); EINVAL for circuit 0.0 and for a VPI over
    /// [`Label::VPI_MAX`]; EADDRINUSE when the circuit is open. ENFILE when the stack's
    /// channels are all in use, ENOBUFS when the driver's tables are full.
    pub fn bind(stack: &StackHandle, circuit: Circuit) -> io::Result<Self> {
        Self::bind_with(stack, circuit, AtmOptions::default())
    }

    /// As [`AtmSocket::bind`], with options.
    ///
    /// # Errors
    /// As [`AtmSocket::bind`]; EINVAL for options out of range.
    pub fn bind_with(
        stack: &StackHandle,
        circuit: Circuit,
        options: AtmOptions,
    ) -> io::Result<Self> {
        let core = stack.here()?;
        core.check_protocol::<Atm>()?;
        core.netdev.check()?;
        call::check(&options)?;
        if options.rates.is_some() {
            // Its timer says when a payload may go.
            Helper::start(core)?;
        }
        Atm::of(core)
            .attached(core)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EUNATCH) => errno(libc::ENODEV),
                _ => error,
            })?;
        // Another call's, or not released by both ends.
        if Atm::of(core).is_held(circuit) {
            return Err(errno(libc::EADDRINUSE));
        }
        let inner = Atm::of(core).open(core, circuit, options)?;
        Ok(Self::of(inner, stack, false))
    }

    /// Returns the circuit; `None` for a call that has none yet.
    pub fn circuit(&self) -> Option<Circuit> {
        self.inner.circuit()
    }

    /// Returns the options of the binding; for a call, what both ends agreed on.
    pub fn options(&self) -> AtmOptions {
        AtmOptions {
            send_max: self.inner.send_max.load(Ordering::Relaxed),
            ..self.inner.options
        }
    }

    /// Receives one payload; the excess of a longer one is lost. Returns how much was
    /// copied: 0 once a call is released and everything that arrived was received.
    ///
    /// # Errors
    /// EAGAIN when nonblocking or at the timeout, EINTR, ENODEV once the interface is
    /// gone. For a call, ENOTCONN before it is connected, and once ECONNRESET if it ended
    /// other than by a release.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut copied = 0;
        self.recv_batch(1, |received| {
            copied = received.payload.len().min(buffer.len());
            buffer[..copied].copy_from_slice(&received.payload[..copied]);
        })?;
        Ok(copied)
    }

    /// Receives up to `limit` payloads without copying those that arrived in one frame:
    /// `each` sees them in place. Waits for the first unless nonblocking. Returns how many
    /// there were: 0 if `limit` is 0, and once a call is released and everything that
    /// arrived was received.
    ///
    /// # Errors
    /// As [`AtmSocket::recv`]. Payloads already given to `each` are not lost to an error: it
    /// is reported by the next call.
    pub fn recv_batch(
        &self,
        limit: usize,
        mut each: impl FnMut(AtmReceived<'_>),
    ) -> io::Result<usize> {
        self.receive_batch(limit, false, &mut each)
    }

    /// As [`AtmSocket::recv_batch`]. With `at_once` it does not wait, even if the socket is
    /// blocking.
    pub fn receive_batch(
        &self,
        limit: usize,
        at_once: bool,
        each: &mut dyn FnMut(AtmReceived<'_>),
    ) -> io::Result<usize> {
        if limit == 0 {
            return Ok(0);
        }
        let nonblocking = at_once || self.is_nonblocking();
        let timeout = self.read_timeout().filter(|_| !nonblocking);
        let waiting = Receiving(&self.inner);
        if self.is_connecting() {
            return Err(errno(libc::ENOTCONN));
        }
        self.attempt(&waiting, nonblocking, timeout, |core| {
            // Read first: payloads that arrived before the release are received below.
            let ended = self.inner.has_ended();
            let given = self.inner.drain(core, limit, each);
            (given > 0 || (ended && !self.inner.has_payloads())).then_some(given)
        })
    }

    /// Sends a loopback cell to the other end (I.610 §10.2.3), and waits for its answer.
    /// Payloads that arrive meanwhile wait for a receiver. Returns the round-trip time.
    ///
    /// # Errors
    /// ETIMEDOUT when no answer arrived in time; those of [`AtmSocket::send`].
    pub fn ping(&self, timeout: Duration) -> io::Result<Duration> {
        let core = self.stack.here()?;
        self.await_connected(core, false, Some(timeout))
            .map_err(timed_out)?;
        let began = core.clock.instant_now();
        let tag = self.inner.send_loopback(core)?;
        let inner = &*self.inner;
        let waiting = Pinging { inner, tag };
        let answered = self.attempt(&waiting, false, Some(timeout), |core| {
            self.inner.keep_waiting(core);
            match self.inner.take_answer(tag) {
                true => Some(Ok(core.clock.instant_now())),
                // Nothing arrives any more.
                false => inner.has_ended().then(|| Err(errno(libc::EPIPE))),
            }
        });
        let answered = answered.map_err(timed_out)??;
        Ok(answered.saturating_duration_since(began))
    }

    /// Repeats `attempt`, with rounds of receiving between, until it has something.
    fn attempt<V>(
        &self,
        waiting: &dyn Waitable,
        nonblocking: bool,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&Core) -> Option<V>,
    ) -> io::Result<V> {
        let core = self.stack.here()?;
        let deadline = timeout.and_then(|timeout| core.clock.instant_now().checked_add(timeout));
        let mut polled = false;
        core.receiver.poll_if_due(core)?;
        loop {
            self.take_pending()?;
            if let Some(value) = attempt(core) {
                self.inner.pass_wakeup();
                return Ok(value);
            }
            if !polled
                && (nonblocking || (core.receiver.is_polling() && !core.receiver.device_polls()))
            {
                polled = true;
                if nonblocking {
                    core.receiver.round(core, false)?;
                } else {
                    core.receiver.round_and_return(core)?;
                }
                continue;
            }
            core.netdev.check()?;
            // Frames that yield nothing end an attempt before the last of them. No edge comes
            // for the rest, and no thread sleeps while there are any.
            let left = waiting.has_input();
            if nonblocking && left {
                self.inner
                    .wait_queue
                    .notify_registrations(Events::DATA_CAME);
            }
            let over = || deadline.is_some_and(|it| core.clock.instant_now() >= it);
            if nonblocking || (left && over()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            polled = false;
            if !core.receiver.sleep(core, &[waiting], deadline)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// None; the signature is the other sockets'.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.inner.take_error())
    }

    fn take_pending(&self) -> io::Result<()> {
        self.inner.take_error().map_or(Ok(()), Err)
    }
}

impl Handle for AtmSocket {
    type Shared = CircuitInner;

    fn stack(&self) -> &StackHandle {
        &self.stack
    }

    fn shared(&self) -> &Arc<CircuitInner> {
        &self.inner
    }
}

impl Drop for AtmSocket {
    fn drop(&mut self) {
        let Ok(core) = self.stack.here() else { return };
        let inner = &self.inner;
        inner.wait_queue.close();
        Atm::of(core).hang_up(core, inner);
        Atm::of(core).close(core, inner);
    }
}
