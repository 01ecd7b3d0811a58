//! Control by a manager: its applications ask it for circuits and calls, and a thread hears
//! what becomes of these.
//!
//! The circuit of a call between two applications of one manager is a pair of sockets, which
//! the same thread reads.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tidewall_manager::client::Client;
use tidewall_manager::connection::{Connection, Received};
use tidewall_manager::protocol::{Answer, AtmReference, Refused, address, number};
use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::aal5::PAYLOAD_MAX;
use tidewall_wire::atm::q2931::Cause;

use super::call::{self, Call, CallOptions, Progress};
use super::circuit::{CircuitInner, Place};
use super::control::open_circuit;
use super::listener::ListenerInner;
use super::receive::Owned;
use super::{NextHop, Sap, errno};
use crate::lock::{Mutex, lock, rank};
use crate::readiness::Events;
use crate::stack::Core;

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
    listeners: HashMap<u32, Arc<ListenerInner>>,
    /// The number last given.
    last: u32,
}

/// A call, by its number.
enum Line {
    /// It is being made: what the manager says of it waits.
    Made(Vec<Received>),
    Known(Known),
}

struct Known {
    inner: Arc<CircuitInner>,
    reference: AtmReference,
    /// Which connection says what becomes of it.
    run: u32,
}

/// What the thread waits for.
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

    /// A run of the manager says by this what becomes of calls.
    fn add(&self, run: u32, connection: Connection) {
        let (number, connection) = (NOTICES | u64::from(run), Arc::new(connection));
        // Without it calls end with the manager's next run.
        if self.watch(&*connection, number).is_ok() {
            lock(&self.connections).insert(number, connection);
        }
    }

    /// Hears until there is no stack any more.
    fn run(&self, core: &Weak<Core>) {
        let mut events = Vec::with_capacity(64);
        let mut buffer = vec![0; PAYLOAD_MAX];
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let Some(core) = core.upgrade() else { return };
            let Some(managed) = core.atm.managed.get() else {
                return;
            };
            for event in events.drain(..) {
                let data = event.data;
                match data.u64() {
                    number if number & NOTICES != 0 => self.hear(&core, managed, number),
                    call => managed.read_local(call as u32, &mut buffer),
                }
            }
        }
    }

    /// What this run has said, behind all that earlier ones have.
    fn hear(&self, core: &Core, managed: &Managed, number: u64) {
        let connections = lock(&self.connections);
        let until = connections.range(..=number);
        let until: Vec<(u64, Arc<Connection>)> =
            until.map(|(number, it)| (*number, it.clone())).collect();
        drop(connections);
        for (of, connection) in until {
            // One is there, or the run has ended.
            while of < number || has_message(&connection) {
                match connection.receive() {
                    Ok(Some(received)) => managed.hear(core, received),
                    _ => {
                        let _ = epoll::delete(&self.epoll, &*connection);
                        lock(&self.connections).remove(&of);
                        managed.lost(core, of as u32);
                        break;
                    }
                }
            }
        }
    }
}

/// True where a message, or the end, is there.
fn has_message(connection: &Connection) -> bool {
    let mut descriptors = [rustix::event::PollFd::new(
        connection,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec::default();
    rustix::event::poll(&mut descriptors, Some(&now)) == Ok(1)
}

impl Managed {
    /// Attaches the stack to the circuits of its manager's interface.
    ///
    /// # Errors
    /// EUNATCH where that has none, or there is no manager; EAGAIN where no thread can be
    /// started.
    pub(super) fn attach(core: &Arc<Core>, client: &Arc<Client>) -> io::Result<Self> {
        let reader = Arc::new(Reader {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Mutex::default(),
        });
        let own = reader.clone();
        let deliver = Arc::new(move |run, connection| own.add(run, connection));
        let attached = client.attach_atm(deliver).map_err(of_manager)?;
        *lock(&core.atm.next_hop) = Some(NextHop {
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

    /// A number for a call or a listener.
    fn reserve(&self) -> u32 {
        let mut lines = lock(&self.lines);
        loop {
            lines.last = lines.last.wrapping_add(1);
            let number = lines.last;
            if !lines.calls.contains_key(&number) && !lines.listeners.contains_key(&number) {
                lines.calls.insert(number, Line::Made(Vec::new()));
                return number;
            }
        }
    }

    /// A call is made: what the manager has said of it meanwhile is done.
    fn enter(&self, core: &Core, call: u32, known: Known) {
        if let Some(of) = &known.inner.call {
            let _ = of.number.set(call);
        }
        let before = lock(&self.lines).calls.insert(call, Line::Known(known));
        if let Some(Line::Made(said)) = before {
            for received in said {
                self.hear(core, received);
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
        let inner = core.atm.open_call(core, None, options.circuit, of)?;
        let call = self.reserve();
        let begun = self
            .client
            .atm_call(call, to, options.from, &options.circuit);
        let begun = begun.map_err(of_manager).and_then(|begun| {
            let circuit = begun.reference.circuit();
            circuit
                .filter(|_| begun.reference.local == 0)
                .map_or(Ok(()), |circuit| open_circuit(core, &inner, circuit))
                .inspect_err(|_| drop(self.client.atm_release(call, RELEASED)))?;
            Ok(begun)
        });
        match begun {
            Ok(begun) => {
                let known = Known {
                    inner: inner.clone(),
                    reference: begun.reference,
                    run: begun.run,
                };
                self.enter(core, call, known);
                Ok(inner)
            }
            Err(error) => {
                lock(&self.lines).calls.remove(&call);
                core.atm.close(core, &inner);
                Err(error)
            }
        }
    }

    pub(super) fn listen(&self, listener: &Arc<ListenerInner>) -> io::Result<()> {
        let id = self.reserve();
        let mut lines = lock(&self.lines);
        lines.calls.remove(&id);
        lines.listeners.insert(id, listener.clone());
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
            // A manager that is gone forgets it.
            let _ = self.client.atm_unlisten(id as u32);
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
        let call = self.reserve();
        let accepted = self.client.atm_accept(id as u32, call).map_err(of_manager);
        if !matches!(accepted, Ok(None)) {
            listener.taken();
        }
        let Ok(Some((accepted, local))) = accepted else {
            lock(&self.lines).calls.remove(&call);
            return accepted.map(|_| None);
        };
        let reference = accepted.reference;
        let options = accepted.carried.options();
        let circuit = reference.circuit().filter(|_| reference.local == 0);
        let of = Call::new(
            Nsap(accepted.local),
            number(accepted.peer),
            Progress::Accepted,
        );
        let place = circuit.and_then(Place::new);
        let opened = core
            .atm
            .open_call(core, place, options.unwrap_or_default(), of);
        let opened = opened.and_then(|inner| match local {
            Some(local) => self.set_local(&inner, call, local).map(|()| inner),
            None => Ok(inner),
        });
        // Now that its frames have a place: the caller may send at once.
        let answered = opened.and_then(|inner| {
            let answered = self.client.atm_answer(call, reference.clone());
            let answered = answered.map_err(of_manager);
            answered.inspect_err(|_| core.atm.close(core, &inner))?;
            Ok(inner)
        });
        match answered {
            Ok(inner) => {
                let known = Known {
                    inner: inner.clone(),
                    reference,
                    run: 0,
                };
                self.enter(core, call, known);
                Ok(Some(inner))
            }
            Err(error) => {
                lock(&self.lines).calls.remove(&call);
                let _ = self.client.atm_release(call, RELEASED);
                Err(error)
            }
        }
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
            // A manager that is gone is not presented with it.
            let _ = self.client.atm_release(call, Cause::NORMAL);
        }
    }

    pub(super) fn fail(&self, error: i32) {
        let lines = lock(&self.lines);
        for line in lines.calls.values() {
            if let Line::Known(known) = line {
                known.inner.fail(error);
            }
        }
        for listener in lines.listeners.values() {
            listener.fail(error);
        }
    }

    /// The manager says what becomes of a call, or of a listener.
    fn hear(&self, core: &Core, received: Received) {
        let Ok((_, answer)) = Answer::parse(&received.bytes) else {
            return;
        };
        let call = match &answer {
            Answer::AtmIncoming(of) | Answer::AtmWithdrawn(of) => {
                let lines = lock(&self.lines);
                if let Some(listener) = lines.listeners.get(&of.listener) {
                    match answer {
                        Answer::AtmIncoming(_) => listener.called(),
                        _ => listener.taken(),
                    }
                }
                return;
            }
            Answer::AtmCircuit(of) => of.call,
            Answer::AtmConnected(of) => of.call,
            Answer::AtmEnded(of) => of.call,
            _ => return,
        };
        let mut lines = lock(&self.lines);
        let (inner, reference) = match lines.calls.get_mut(&call) {
            Some(Line::Known(known)) => {
                if let Answer::AtmCircuit(of) = &answer {
                    known.reference.known = 1;
                    known.reference.circuit = of.circuit.clone();
                }
                (known.inner.clone(), known.reference.clone())
            }
            Some(Line::Made(said)) => {
                said.push(received);
                return;
            }
            None => return,
        };
        if let Answer::AtmEnded(_) = &answer {
            lines.calls.remove(&call);
        }
        drop(lines);
        match answer {
            Answer::AtmCircuit(of) => {
                let circuit = of.circuit.circuit();
                if open_circuit(core, &inner, circuit).is_err() {
                    lock(&self.lines).calls.remove(&call);
                    inner.ended(core, call::error(inner.progress(), Cause::new(RELEASED)));
                    let _ = self.client.atm_release(call, RELEASED);
                }
            }
            Answer::AtmConnected(of) => {
                let beside = received.descriptors.into_iter().next();
                let set = beside.map_or(Ok(()), |local| self.set_local(&inner, call, local));
                if set.is_ok() {
                    self.client.atm_is_active(call, reference);
                    inner.connected(of.longest as usize);
                }
            }
            Answer::AtmEnded(of) => {
                self.client.atm_has_ended(call);
                // What had come by then can be received.
                let mut buffer = vec![0; PAYLOAD_MAX];
                while inner.read_local(&mut buffer) {}
                let cause = Cause::new(of.cause);
                inner.ended(core, call::error(inner.progress(), cause));
            }
            _ => {}
        }
    }

    /// A run of the manager has ended: calls that it was making are no more, and those that
    /// waited are refused by nobody.
    fn lost(&self, core: &Core, run: u32) {
        let mut lines = lock(&self.lines);
        for listener in lines.listeners.values() {
            listener.waiting.store(0, Ordering::Relaxed);
        }
        let connecting = |line: &Line| match line {
            Line::Known(known) => {
                known.run <= run && known.inner.progress() == Progress::Connecting
            }
            Line::Made(_) => false,
        };
        let calls = lines.calls.iter();
        let ended: Vec<u32> = calls
            .filter(|(_, it)| connecting(it))
            .map(|it| *it.0)
            .collect();
        let ended: Vec<Line> = (ended.iter())
            .filter_map(|call| lines.calls.remove(call))
            .collect();
        drop(lines);
        for line in ended {
            if let Line::Known(known) = line {
                known.inner.ended(core, libc::EUNATCH);
            }
        }
    }

    fn set_local(&self, inner: &CircuitInner, call: u32, local: OwnedFd) -> io::Result<()> {
        self.reader.watch(&local, call.into())?;
        let _ = inner.local.set(local);
        Ok(())
    }

    fn read_local(&self, call: u32, buffer: &mut [u8]) {
        let inner = match lock(&self.lines).calls.get(&call) {
            Some(Line::Known(known)) => known.inner.clone(),
            _ => return,
        };
        // One at a time, so that everybody has his turn.
        if !inner.read_local(buffer)
            && let Some(local) = inner.local.get()
        {
            let _ = epoll::delete(&self.reader.epoll, local);
        }
    }
}

/// What a call is released with that could not be made here.
const RELEASED: u8 = Cause::RESOURCES_UNAVAILABLE;

/// An error as a socket has it: EUNATCH where there is no manager.
pub(super) fn of_manager(error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, NotFound};
    let gone = [
        BrokenPipe,
        ConnectionRefused,
        ConnectionReset,
        NotConnected,
        NotFound,
    ];
    match Refused::errno(&error) {
        Some(refused) => errno(refused),
        None if gone.contains(&error.kind()) => errno(libc::EUNATCH),
        None => error,
    }
}

impl CircuitInner {
    /// Takes a payload of a local call; true where one was there, or may be soon.
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

    /// Sends a payload of a local call; what has no room is lost, as on any circuit.
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
