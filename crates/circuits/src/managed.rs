//! Control by a manager: its applications ask it for circuits and calls, and a thread
//! receives its notices about them.
//!
//! The circuit of a call between two applications of one manager is a pair of sockets, which
//! the same thread reads.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use tidewall_manager::client::Client;
use tidewall_manager::connection::{Connection, Received};
use tidewall_manager::protocol::{Answer, AtmIncoming, Refused, address, number};
use tidewall_readiness::Events;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::aal5::PAYLOAD_MAX;
use tidewall_wire::atm::q2931::Cause;

use super::call::{self, Call, CallOptions, Progress};
use super::circuit::{CircuitInner, Place};
use super::control::open_circuit;
use super::listener::ListenerInner;
use super::receive::Owned;
use super::{NextHop, Sap, errno};
use crate::Atm;

/// Set in the number of a connection of notices; else it is a local circuit's call.
const NOTICES: u64 = 1 << 32;

/// The control of a stack whose device is a manager's.
pub(super) struct Managed {
    client: Arc<Client>,
    number: Nsap,
    reader: Arc<Reader>,
    lines: Mutex<Lines, rank::Signalling>,
}

#[derive(Default)]
struct Lines {
    calls: HashMap<u32, Line>,
    listeners: HashMap<u32, Listening>,
    /// The last number assigned.
    last: u32,
    /// Runs of the manager up to this one have ended.
    lost: u32,
}

/// A call, by its number.
struct Line {
    inner: Arc<CircuitInner>,
    /// The manager's run that was asked to call; `None` until then, and for an incoming
    /// call.
    run: Option<u32>,
    /// Its local circuit was read to the end.
    read: bool,
}

/// A listener, and the calls that wait for it.
struct Listening {
    inner: Arc<ListenerInner>,
    waiting: VecDeque<AtmIncoming>,
}

/// The descriptors that the thread waits for.
struct Reader {
    epoll: OwnedFd,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>, rank::Leaf>,
}

impl Reader {
    fn watch(&self, descriptor: impl AsFd, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// Removes the end of a local circuit, which would be reported until the socket is
    /// closed.
    fn forget(&self, inner: &CircuitInner) {
        if let Some(local) = inner.local.get() {
            let _ = epoll::delete(&self.epoll, local);
        }
    }

    /// A run of the manager says by this what becomes of calls.
    fn add(&self, run: u32, connection: Arc<Connection>) {
        let number = NOTICES | u64::from(run);
        // Without it, calls end with the manager's next run.
        if self.watch(&*connection, number).is_ok() {
            lock(&self.connections).insert(number, connection);
        }
    }

    /// Handles notices until the stack is gone.
    fn run(&self, core: &Weak<Core>) {
        let mut events = Vec::with_capacity(64);
        let mut buffer = vec![0; PAYLOAD_MAX];
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let Some(core) = core.upgrade() else { return };
            let Some(managed) = Atm::of(&core).managed.get() else {
                return;
            };
            for event in events.drain(..) {
                let data = event.data;
                match data.u64() {
                    number if number & NOTICES != 0 => {
                        self.hear(&core, managed, number, &mut buffer);
                    }
                    call => managed.read_local(call as u32, &mut buffer),
                }
            }
        }
    }

    /// Handles a message of this run, after all messages of earlier runs.
    fn hear(&self, core: &Core, managed: &Managed, number: u64, buffer: &mut [u8]) {
        let connections = lock(&self.connections);
        let until = connections.range(..=number);
        let until: Vec<(u64, Arc<Connection>)> =
            until.map(|(number, it)| (*number, it.clone())).collect();
        drop(connections);
        for (of, connection) in until {
            let is_earlier = of < number;
            // One is there, or the run has ended.
            loop {
                match connection.receive() {
                    Ok(Some(received)) => managed.hear(core, received, buffer),
                    _ => {
                        let _ = epoll::delete(&self.epoll, &*connection);
                        lock(&self.connections).remove(&of);
                        managed.lost(core, of as u32);
                        break;
                    }
                }
                // The next wait reports any more.
                if !is_earlier {
                    break;
                }
            }
        }
    }
}

impl Managed {
    /// Attaches the stack to the circuits of its manager's interface.
    ///
    /// # Errors
    /// EUNATCH if that has none, or there is no manager; EAGAIN if no thread can be
    /// started.
    pub(super) fn attach(core: &Arc<Core>, client: &Arc<Client>) -> io::Result<Self> {
        let reader = Arc::new(Reader {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Mutex::default(),
        });
        let own = reader.clone();
        let deliver = Arc::new(move |run, connection| own.add(run, connection));
        let attached = client.attach_atm(deliver).map_err(of_manager)?;
        *lock(&Atm::of(core).next_hop) = Some(NextHop {
            address: address(attached.next_hop),
            unresolved: None,
        });
        let (own, core) = (reader.clone(), Arc::downgrade(core));
        std::thread::Builder::new()
            .name("tw-circuits".to_owned())
            .spawn(move || own.run(&core))?;
        Ok(Managed {
            client: client.clone(),
            number: Nsap(attached.number),
            reader,
            lines: Mutex::default(),
        })
    }

    /// Returns a number for a call or a listener.
    fn number(lines: &mut Lines) -> u32 {
        loop {
            lines.last = lines.last.wrapping_add(1);
            let number = lines.last;
            if !lines.calls.contains_key(&number) && !lines.listeners.contains_key(&number) {
                return number;
            }
        }
    }

    /// Gives a call its number, by which the manager speaks of it from now on.
    fn enter(&self, inner: &Arc<CircuitInner>) -> u32 {
        let mut lines = lock(&self.lines);
        let number = Self::number(&mut lines);
        if let Some(of) = &inner.call {
            let _ = of.number.set(number);
        }
        let line = Line {
            inner: inner.clone(),
            run: None,
            read: false,
        };
        lines.calls.insert(number, line);
        number
    }

    /// Records which run of the manager was asked to call. It may have ended by now.
    fn asked(&self, core: &Core, call: u32, run: u32) {
        let mut lines = lock(&self.lines);
        let lost = lines.lost >= run;
        let line = lines.calls.get_mut(&call);
        let connecting = line.filter(|line| line.inner.progress() == Progress::Connecting);
        let Some(line) = connecting else { return };
        line.run = Some(run);
        if lost {
            let line = lines.calls.remove(&call);
            drop(lines);
            if let Some(line) = line {
                line.inner.ended(core, libc::EUNATCH);
            }
        }
    }

    pub(super) fn call(
        &self,
        core: &Core,
        to: &Sap,
        options: &CallOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        let from = options.from.unwrap_or(self.number);
        let of = Call::new(from, Some(to.number), Progress::Connecting);
        let inner = Atm::of(core).open_call(core, None, options.circuit, of)?;
        let call = self.enter(&inner);
        match (self.client).atm_call(call, to, options.from, &options.circuit) {
            Ok(run) => {
                self.asked(core, call, run);
                Ok(inner)
            }
            Err(error) => {
                lock(&self.lines).calls.remove(&call);
                Atm::of(core).close(core, &inner);
                Err(of_manager(error))
            }
        }
    }

    pub(super) fn listen(&self, listener: &Arc<ListenerInner>) -> io::Result<()> {
        let mut lines = lock(&self.lines);
        let id = Self::number(&mut lines);
        let listening = Listening {
            inner: listener.clone(),
            waiting: VecDeque::new(),
        };
        lines.listeners.insert(id, listening);
        drop(lines);
        let ListenerInner {
            sap,
            options,
            backlog,
            ..
        } = &**listener;
        let _ = listener.id.set(id.into());
        let asked = self.client.atm_listen(id, sap, options, *backlog);
        asked.map_err(of_manager).inspect_err(|_| {
            lock(&self.lines).listeners.remove(&id);
        })
    }

    pub(super) fn unlisten(&self, listener: &ListenerInner) {
        let Some(&id) = listener.id.get() else { return };
        if lock(&self.lines).listeners.remove(&(id as u32)).is_some() {
            self.client.atm_unlisten(id as u32);
        }
    }

    pub(super) fn accept(
        &self,
        core: &Core,
        listener: &ListenerInner,
    ) -> io::Result<Option<Arc<CircuitInner>>> {
        let Some(&id) = listener.id.get().filter(|_| listener.has_calls()) else {
            return Ok(None);
        };
        let id = id as u32;
        let mut lines = lock(&self.lines);
        let listening = lines.listeners.get_mut(&id);
        let Some(incoming) = listening.and_then(|it| it.waiting.pop_front()) else {
            return Ok(None);
        };
        listener.taken();
        drop(lines);
        let refuse = |_: &io::Error| self.client.atm_refuse(id, &incoming.reference, RELEASED);
        // Before the manager hears of it: the caller may send at once.
        let (inner, theirs) = self.open(core, &incoming).inspect_err(refuse)?;
        let call = self.enter(&inner);
        let local = inner.local.get();
        let watched = local.map_or(Ok(()), |local| self.reader.watch(local, call.into()));
        let accepted = watched.inspect_err(refuse).and_then(|()| {
            let theirs = theirs.as_ref().map(AsFd::as_fd);
            let accepted = self
                .client
                .atm_accept(id, call, &incoming.reference, theirs);
            // With the manager the call is gone.
            accepted.map_err(|_| errno(libc::ECONNABORTED))
        });
        if let Err(error) = accepted {
            lock(&self.lines).calls.remove(&call);
            Atm::of(core).close(core, &inner);
            return Err(error);
        }
        Ok(Some(inner))
    }

    /// Opens the circuit of a call that waits; of a local one, with the caller's end.
    fn open(
        &self,
        core: &Core,
        incoming: &AtmIncoming,
    ) -> io::Result<(Arc<CircuitInner>, Option<OwnedFd>)> {
        let reference = &incoming.reference;
        let (local, peer) = (Nsap(incoming.local), number(incoming.peer));
        let is_local = reference.local != 0;
        // Data sent before the caller knows its end waits in the socket pair.
        let progress = match is_local {
            true => Progress::Connected,
            false => Progress::Accepted,
        };
        let of = Call::new(local, peer, progress);
        let place = reference.circuit().filter(|_| !is_local);
        let ends = is_local
            .then(|| {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            })
            .transpose()?;
        let options = incoming.carried.options().unwrap_or_default();
        let place = place.and_then(Place::new);
        let inner = Atm::of(core).open_call(core, place, options, of)?;
        let theirs = ends.map(|(ours, theirs)| {
            let _ = inner.local.set(ours);
            theirs
        });
        Ok((inner, theirs))
    }

    /// The socket of a call is closed.
    pub(super) fn hang_up(&self, core: &Core, inner: &CircuitInner) {
        let Some(&call) = inner.call.as_ref().and_then(|call| call.number.get()) else {
            return;
        };
        if lock(&self.lines).calls.remove(&call).is_some() {
            // Before the circuit is another's.
            let binding = lock(&core.binding);
            inner.close_place(core);
            drop(binding);
            // A manager that is gone does not receive it.
            self.client.atm_release(call, Cause::NORMAL);
        }
    }

    pub(super) fn fail(&self, error: i32) {
        let lines = lock(&self.lines);
        for line in lines.calls.values() {
            line.inner.fail(error);
        }
        for listener in lines.listeners.values() {
            listener.inner.fail(error);
        }
    }

    /// Handles a notice of the manager about a call, or about a listener.
    fn hear(&self, core: &Core, received: Received, buffer: &mut [u8]) {
        let Ok((_, answer)) = Answer::parse(&received.bytes) else {
            return;
        };
        let mut lines = lock(&self.lines);
        let call = match &answer {
            Answer::AtmIncoming(of) => {
                if let Some(listening) = lines.listeners.get_mut(&of.listener) {
                    listening.waiting.push_back(of.clone());
                    listening.inner.called();
                }
                return;
            }
            Answer::AtmWithdrawn(of) => {
                if let Some(listening) = lines.listeners.get_mut(&of.listener) {
                    let waited = listening.waiting.len();
                    let (id, local) = (of.reference.id(), of.reference.local);
                    (listening.waiting)
                        .retain(|it| (it.reference.id(), it.reference.local) != (id, local));
                    if listening.waiting.len() < waited {
                        listening.inner.taken();
                    }
                }
                return;
            }
            Answer::AtmCircuit(of) => of.call,
            Answer::AtmConnected(of) => of.call,
            Answer::AtmEnded(of) => of.call,
            _ => return,
        };
        let Some((inner, read)) = (lines.calls.get(&call)).map(|it| (it.inner.clone(), it.read))
        else {
            return;
        };
        if let Answer::AtmEnded(_) = &answer {
            lines.calls.remove(&call);
        }
        drop(lines);
        let cannot = || {
            lock(&self.lines).calls.remove(&call);
            inner.ended(core, call::error(inner.progress(), Cause::new(RELEASED)));
            self.client.atm_release(call, RELEASED);
        };
        match answer {
            Answer::AtmCircuit(of) => {
                let opened = open_circuit(core, &inner, of.circuit.circuit());
                opened.unwrap_or_else(|_| cannot());
            }
            Answer::AtmConnected(of) => {
                let beside = received.descriptors.into_iter().next();
                match beside.map_or(Ok(()), |local| self.set_local(&inner, call, local)) {
                    Ok(()) => {
                        self.client.atm_is_active(call, of.reference);
                        inner.connected(of.longest as usize);
                    }
                    Err(_) => cannot(),
                }
            }
            Answer::AtmEnded(of) => {
                self.client.atm_has_ended(call);
                // Payloads that arrived by then can be received.
                if !read {
                    while inner.read_local(buffer) {}
                    self.reader.forget(&inner);
                }
                let progress = inner.progress();
                let error = match (progress, of.errno) {
                    (Progress::Connecting, 1..) => of.errno,
                    _ => call::error(progress, Cause::new(of.cause)),
                };
                inner.ended(core, error);
            }
            _ => {}
        }
    }

    /// Handles the end of a run of the manager: its outgoing calls are gone, and waiting
    /// calls are not refused explicitly.
    fn lost(&self, core: &Core, run: u32) {
        let mut lines = lock(&self.lines);
        lines.lost = lines.lost.max(run);
        for listening in lines.listeners.values_mut() {
            listening.waiting.clear();
            listening.inner.waiting.store(0, Ordering::Relaxed);
        }
        let of_run = |line: &Line| {
            line.run.is_some_and(|of| of <= run) && line.inner.progress() == Progress::Connecting
        };
        let ended: Vec<Line> = lines
            .calls
            .extract_if(|_, line| of_run(line))
            .map(|(_, line)| line)
            .collect();
        drop(lines);
        for line in ended {
            line.inner.ended(core, libc::EUNATCH);
        }
    }

    /// The called side has created the descriptor, and could have passed anything.
    fn set_local(&self, inner: &CircuitInner, call: u32, local: OwnedFd) -> io::Result<()> {
        if sockopt::socket_domain(&local)? != AddressFamily::UNIX
            || sockopt::socket_type(&local)? != SocketType::SEQPACKET
        {
            return Err(errno(libc::EPROTO));
        }
        self.reader.watch(&local, call.into())?;
        let _ = inner.local.set(local);
        Ok(())
    }

    fn read_local(&self, call: u32, buffer: &mut [u8]) {
        let line = lock(&self.lines)
            .calls
            .get(&call)
            .map(|it| it.inner.clone());
        let Some(inner) = line else { return };
        // One at a time, so that every circuit has its turn.
        if !inner.read_local(buffer) {
            self.reader.forget(&inner);
            if let Some(line) = lock(&self.lines).calls.get_mut(&call) {
                line.read = true;
            }
        }
    }
}

/// Cause with which a call is released that could not be made here.
const RELEASED: u8 = Cause::RESOURCES_UNAVAILABLE;

/// An error as a socket has it: EUNATCH where there is no manager.
pub(super) fn of_manager(error: io::Error) -> io::Error {
    use io::ErrorKind::{
        BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, NotFound, TimedOut,
    };
    let gone = [
        BrokenPipe,
        ConnectionRefused,
        ConnectionReset,
        NotConnected,
        NotFound,
        TimedOut,
    ];
    match Refused::errno(&error) {
        Some(refused) => errno(refused),
        None if gone.contains(&error.kind()) => errno(libc::EUNATCH),
        None => error,
    }
}

impl CircuitInner {
    /// Receives a payload of a local call; returns true if one was there, or may be soon.
    fn read_local(&self, buffer: &mut [u8]) -> bool {
        let Some(local) = self.local.get() else {
            return false;
        };
        let length = match recv(local, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((length, _)) => length,
            Err(error) => return error == rustix::io::Errno::INTR,
        };
        let payload = buffer.get(..length).unwrap_or_default();
        let mut waiting = lock(&self.waiting);
        let room = waiting.outside.len() < self.limit() as usize;
        if room && length <= self.options.receive_max {
            waiting.outside.push_back(Owned::of_local(payload));
        }
        drop(waiting);
        self.wait_queue.notify_one(Events::DATA_CAME);
        true
    }

    /// Sends a payload of a local call; without room it is lost, as on any circuit.
    ///
    /// # Errors
    /// EPIPE once the other end is closed.
    pub(super) fn send_local(&self, local: &OwnedFd, payload: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(local, payload, flags) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
