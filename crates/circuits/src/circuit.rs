//! The state that a circuit's socket shares with the stack.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tidewall_device::demux::ChannelId;
use tidewall_readiness::Events;
use tidewall_readiness::registration::Pollable;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_receive::poller::Channel;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::{Waitable, Waker};
use tidewall_wire::atm::aal5::pdu_len;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::atm::{Circuit, Nsap};

use super::call::{Call, Progress};
use super::managed::of_manager;
use super::receive::Owned;
use super::sending::Rate;
use super::{Atm, AtmOptions, DEFAULT_RECEIVE_LIMIT, errno};

pub struct CircuitInner {
    id: ChannelId,
    /// Its place, once it has one: at once, but for a call that the other side names.
    place: OnceLock<Place>,
    /// The place is its own still.
    placed: AtomicBool,
    /// For a call between two applications of one manager: the socket that carries its
    /// payloads.
    pub(super) local: OnceLock<OwnedFd>,
    /// The call, with its owner and state; `None` for a permanent circuit.
    pub(super) call: Option<Call>,
    pub(super) options: AtmOptions,
    /// Bytes of the longest payload that is sent: for a call, what both ends agreed on.
    pub(super) send_max: AtomicUsize,
    /// For a constant rate: the time at which the next payload may leave.
    pub(super) rate: Option<Rate>,
    /// Bytes of the longest PDU received.
    pub(super) pdu_max: usize,
    pub(super) wait_queue: WaitQueue,
    pub(super) waiting: Mutex<Waiting, rank::UdpReceive>,
    pub(super) pending_error: AtomicI32,
    pub(super) limit: AtomicU32,
    pub(super) low_priority: AtomicBool,
    pub(super) last_queue: AtomicUsize,
    pub(super) received: AtomicU64,
    /// Tag of the last loopback cell sent.
    pub(super) last_tag: AtomicU32,
}

/// A circuit and what its frames begin with.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) circuit: Circuit,
    pub(super) label: Label,
}

impl Place {
    /// `None` for a circuit that has no label, or is none.
    pub(super) fn new(circuit: Circuit) -> Option<Self> {
        let label = Label::of_circuit(circuit)?;
        (circuit != Circuit { vpi: 0, vci: 0 }).then_some(Place { circuit, label })
    }
}

/// Payloads that arrived and were not received.
pub(super) struct Waiting {
    /// One per queue; empty once the socket is closed.
    pub(super) channels: Vec<Channel>,
    /// Payloads that are out of their frames.
    pub(super) outside: VecDeque<Owned>,
    /// Parts of a PDU have arrived, but not its last.
    pub(super) in_parts: bool,
    /// Tags of loopback cells that came back, the last few.
    pub(super) answers: VecDeque<u32>,
}

impl CircuitInner {
    /// `timer` is its own, for its rate if it has one.
    fn new(set: ChannelSet, options: AtmOptions, call: Option<Call>, timer: Option<u32>) -> Self {
        CircuitInner {
            id: set.id,
            place: OnceLock::new(),
            placed: AtomicBool::new(false),
            local: OnceLock::new(),
            call,
            options,
            send_max: AtomicUsize::new(options.send_max),
            rate: (options.rates).map(|it| Rate::new(it.send, timer)),
            pdu_max: pdu_len(options.receive_max),
            wait_queue: WaitQueue::default(),
            waiting: Mutex::new(Waiting {
                channels: set.channels.into(),
                outside: VecDeque::new(),
                in_parts: false,
                answers: VecDeque::new(),
            }),
            pending_error: AtomicI32::new(0),
            limit: AtomicU32::new(DEFAULT_RECEIVE_LIMIT),
            low_priority: AtomicBool::new(false),
            last_queue: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            last_tag: AtomicU32::new(0),
        }
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.id
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.place.get().copied()
    }

    /// Returns its place while this socket owns it. Once closed, the place may belong to
    /// another. After the close, the locks of reassembly and of each queue's sending half are
    /// taken once more. Work that checks the place under one of these locks is therefore done
    /// before another socket can own it.
    pub(super) fn open_place_now(&self) -> Option<Place> {
        self.place().filter(|_| self.placed.load(Ordering::Relaxed))
    }

    /// Returns the circuit, once it has one.
    pub(crate) fn circuit(&self) -> Option<Circuit> {
        self.place().map(|place| place.circuit)
    }

    /// The number at the other end, of a call.
    pub(crate) fn peer(&self) -> Option<Nsap> {
        self.call.as_ref()?.peer
    }

    /// Opens a place: from now on its frames come here. The caller holds the lock for
    /// binding. A place that was given stays the one.
    ///
    /// # Errors
    /// EADDRINUSE when it is open, ENOBUFS when a table is full.
    pub(super) fn open_place(self: &Arc<Self>, core: &Core, place: Place) -> io::Result<()> {
        let Place { circuit, label } = place;
        core.netdev.owner.own_circuit(label)?;
        let opened = core.tables.open_circuit(label, self.id).and_then(|()| {
            let mut reassembly = lock(&Atm::of(core).reassembly);
            let opened = reassembly.open(circuit, self.options.receive_max);
            opened.map_err(|_| errno(libc::ENOBUFS))
        });
        if let Err(error) = opened {
            core.tables.close_circuit(label);
            if core.netdev.owner.is_embedded() {
                core.netdev.owner.disown_circuit(label);
            }
            return Err(error);
        }
        let _ = self.place.set(place);
        self.placed.store(true, Ordering::Relaxed);
        lock(&Atm::of(core).circuits).insert(circuit, self.clone());
        Ok(())
    }

    /// Closes its place, if it has one: the circuit may be another's. The caller holds the
    /// lock for binding.
    pub(super) fn close_place(&self, core: &Core) {
        let place = self
            .place()
            .filter(|_| self.placed.swap(false, Ordering::Relaxed));
        if let Some(Place { circuit, label }) = place {
            // A sender that saw the place open is done once its queue's lock was taken; a
            // later one does not send.
            for queue in core.receiver.queues.iter() {
                drop(lock(&queue.transmitter));
            }
            // Before the label is another's.
            core.tables.close_circuit(label);
            drop(lock(&Atm::of(core).circuits).remove(&circuit));
            lock(&Atm::of(core).reassembly).close(circuit);
            if self.call.is_none() || core.netdev.owner.is_embedded() {
                core.netdev.owner.disown_circuit(label);
            }
        }
    }

    /// Returns the number of payloads received.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the most frames that may wait, per queue.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn has_payloads(&self) -> bool {
        let waiting = lock(&self.waiting);
        !waiting.outside.is_empty() || waiting.channels.iter().any(|it| !it.looks_empty())
    }

    /// Returns true when a receive call need not wait.
    fn has_input(&self) -> bool {
        self.pending_error.load(Ordering::Relaxed) != 0 || self.has_payloads() || self.has_ended()
    }

    /// Returns true for a call that is released.
    pub(super) fn has_ended(&self) -> bool {
        self.progress() == Progress::Ended
    }

    pub(super) fn progress(&self) -> Progress {
        self.call
            .as_ref()
            .map_or(Progress::Connected, Call::progress)
    }

    /// Fails the next call that receives or sends.
    pub(crate) fn fail(&self, errno: i32) {
        self.pending_error.store(errno, Ordering::Relaxed);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    pub(super) fn take_error(&self) -> Option<io::Error> {
        match self.pending_error.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Called when a receiver has finished: wakes another for the rest.
    pub(super) fn pass_wakeup(&self) {
        if !self.wait_queue.threads().is_empty() && self.has_input() {
            self.wait_queue.threads().wake_one();
        }
    }

    fn has_frames(&self) -> bool {
        let waiting = lock(&self.waiting);
        waiting.channels.iter().any(|it| !it.looks_empty())
    }

    /// Returns true once for an answer that has arrived.
    pub(super) fn take_answer(&self, tag: u32) -> bool {
        let answers = &mut lock(&self.waiting).answers;
        let place = answers.iter().position(|&answered| answered == tag);
        place.and_then(|place| answers.remove(place)).is_some()
    }

    /// Takes the channels out, to close them.
    pub(super) fn close(&self, core: &Core) -> Vec<Channel> {
        let mut waiting = lock(&self.waiting);
        for owned in waiting.outside.drain(..) {
            owned.give_credit(core, self.id);
        }
        std::mem::take(&mut waiting.channels)
    }
}

impl Atm {
    /// Opens a circuit's channels, and the circuit if it is known.
    pub(super) fn open_call(
        &self,
        core: &Core,
        place: Option<Place>,
        options: AtmOptions,
        call: Call,
    ) -> io::Result<Arc<CircuitInner>> {
        self.open_with(core, place, options, Some(call))
    }

    /// Opens a permanent circuit.
    pub(super) fn open(
        &self,
        core: &Core,
        circuit: Circuit,
        options: AtmOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        if lock(&self.next_hop).is_none() {
            return Err(errno(libc::ENODEV));
        }
        let place = Place::new(circuit).ok_or_else(|| errno(libc::EINVAL))?;
        if lock(&self.circuits).contains_key(&circuit) {
            return Err(errno(libc::EADDRINUSE));
        }
        // Before any lock is taken, since this waits for a manager.
        let asked = core.netdev.owner.ask_for_circuit(place.label);
        asked.map_err(of_manager)?;
        self.open_with(core, Some(place), options, None)
            .inspect_err(|_| {
                if !core.netdev.owner.is_embedded() {
                    core.netdev.owner.disown_circuit(place.label);
                }
            })
    }

    fn open_with(
        &self,
        core: &Core,
        place: Option<Place>,
        options: AtmOptions,
        call: Option<Call>,
    ) -> io::Result<Arc<CircuitInner>> {
        let _binding = lock(&core.binding);
        let queues = &core.receiver.queues;
        let id = core.channels.allocate()?;
        let set = core.channels.open(queues, id, DEFAULT_RECEIVE_LIMIT)?;
        let inner = match options.rates {
            None => Arc::new(CircuitInner::new(set, options, call, None)),
            Some(_) => core
                .timers
                .add(|timer| Arc::new(CircuitInner::new(set, options, call, Some(timer)))),
        };
        core.channels.set_endpoint(id.index(), Some(inner.clone()));
        match place.map_or(Ok(()), |place| inner.open_place(core, place)) {
            Ok(()) => Ok(inner),
            Err(error) => {
                self.close_bound(core, &inner);
                Err(error)
            }
        }
    }

    /// Closes a circuit and its channels.
    pub(super) fn close(&self, core: &Core, inner: &CircuitInner) {
        let _binding = lock(&core.binding);
        self.close_bound(core, inner);
    }

    fn close_bound(&self, core: &Core, inner: &CircuitInner) {
        inner.close_place(core);
        if let Some(rate) = &inner.rate {
            rate.close(core);
        }
        core.channels.set_endpoint(inner.id().index(), None);
        let set = ChannelSet {
            id: inner.id(),
            channels: inner.close(core).into(),
        };
        core.channels.close(&core.receiver.queues, set);
    }
}

/// A blocked receiver; exclusive, because the payload that wakes it is consumed.
pub(super) struct Receiving<'a>(pub(super) &'a CircuitInner);

impl Waitable for Receiving<'_> {
    fn enter(&self, waker: &Arc<Waker>) {
        self.0.wait_queue.enter(waker, true);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.0.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.0.has_input()
    }
}

/// A thread that waits for the answer to a loopback cell.
pub(super) struct Pinging<'a> {
    pub(super) inner: &'a CircuitInner,
    pub(super) tag: u32,
}

impl Waitable for Pinging<'_> {
    fn enter(&self, waker: &Arc<Waker>) {
        self.inner.wait_queue.enter(waker, false);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.inner.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.inner.has_frames() || lock(&self.inner.waiting).answers.contains(&self.tag)
    }
}

impl Waitable for CircuitInner {
    fn enter(&self, waker: &Arc<Waker>) {
        self.wait_queue.enter(waker, false);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.has_input()
    }
}

impl Endpoint for CircuitInner {
    fn on_frames(self: Arc<Self>, _core: &Core, _channel: u16) {
        self.wait_queue.notify_one(Events::DATA_CAME);
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        if self.rate.as_ref().is_some_and(|it| it.expired(core)) {
            self.wait_queue.notify_registrations(Events::SPACE_CAME);
        }
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        self.keep_waiting(core);
    }
}

impl Pollable for CircuitInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    // Sending waits for a frame at worst, where the rate allows it.
    fn events(&self) -> Events {
        let failed = self.pending_error.load(Ordering::Relaxed) != 0;
        let progress = self.progress();
        let ended = progress == Progress::Ended;
        let held_back = self.rate.as_ref().is_some_and(Rate::holds_back);
        let writable = ended || (progress == Progress::Connected && !held_back);
        Events::NONE
            .with_if(Events::WRITABLE | Events::WRBAND, writable)
            .with_if(Events::ERR, failed)
            .with_if(Events::HUP, ended)
            .with_if(Events::READABLE, ended || self.has_payloads())
    }
}
