//! The connection to a manager, which may be restarted meanwhile.
//!
//! One thread reads the connection, reconnects and presents the application. The lock is
//! held for moments only, never while waiting for the manager. A caller that needs an
//! answer sleeps without the lock, until a deadline; all others write and go on.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::{Process, Unshared};
use tidewall_sys::WakeFd;
use zerocopy::FromZeros;

use super::TRY_AGAIN;
use super::circuits::{Notices, Presentable};
use super::session::Session;
use crate::connection::{Connection, Received};
use crate::protocol::{
    Answer, BLOCK_PORTS, Block, Blocks, Holder, MESSAGE_BYTES, Port, Present, Refused, Request,
    header,
};

/// A connection, and the thread that reads it.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

#[derive(Debug)]
pub(super) struct Shared {
    path: PathBuf,
    token: [u8; 16],
    /// [`super::Client::lent`].
    lent: Arc<AtomicU32>,
    state: Mutex<State>,
    /// An answer has arrived, or the connection has changed.
    changed: Condvar,
    /// Ends the thread's sleep.
    wake: WakeFd,
    /// [`super::Client::check_before_waiting`].
    check: OnceLock<fn()>,
}

/// The state that the lock guards.
#[derive(Debug)]
pub(super) struct State {
    /// `None` while no manager knows the application.
    connection: Option<Arc<Connection>>,
    /// The next manager's, until it knows the application.
    presenting: Option<Arc<Connection>>,
    /// Id of the last request.
    last: u32,
    /// Messages that the connection had no room for, in order.
    unsent: VecDeque<Unsent>,
    /// Requests whose answers are wanted, by id; `None` until the answer arrives.
    asked: HashMap<u32, Option<Answered>>,
    /// A deadline has passed since the manager's last message.
    silent: bool,
    /// Ports owned or requested, by the cookie of a copy of the socket that holds each.
    holders: Vec<(u64, Unshared<OwnedFd>, Port)>,
    pub(super) leases: Vec<Block>,
    /// Set if there will be no further manager: the reason.
    ended: Option<String>,
    lent: Arc<AtomicU32>,
    pub(super) circuits: Presentable,
}

/// The outcome of a request.
pub(super) type Answered = io::Result<(Answer, Received)>;

#[derive(Debug)]
struct Unsent {
    message: [u8; MESSAGE_BYTES],
    beside: Option<OwnedFd>,
    /// Id of a request whose answer is wanted, else 0.
    id: u32,
}

/// The state that a manager was presented with.
struct Presented {
    holders: Vec<u64>,
    leases: [Blocks; 2],
    calls: Vec<u32>,
    notices: Notices,
}

impl Link {
    pub(super) fn start(
        path: &Path,
        token: [u8; 16],
        private: bool,
        session: &Session,
    ) -> io::Result<Self> {
        let lent = Arc::default();
        let state = State {
            connection: Some(session.connection().clone()),
            presenting: None,
            last: 0,
            unsent: VecDeque::new(),
            asked: HashMap::new(),
            silent: false,
            holders: Vec::new(),
            leases: Vec::new(),
            ended: None,
            lent: Arc::clone(&lent),
            circuits: Presentable::default(),
        };
        // A private application is notified.
        if let Some(lent) = session.lent().or((!private).then_some(true)) {
            state.note_polling(lent);
        }
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            token,
            lent,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: WakeFd::new()?,
            check: OnceLock::new(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("tw-manager".to_owned())
            .spawn(move || of_thread.follow())?;
        Ok(Link {
            shared,
            thread: Some(thread),
            process: Process::current()?,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    pub(super) fn lent(&self) -> u32 {
        self.shared.lent.load(Ordering::Relaxed)
    }

    pub(super) fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// [`super::Client::check_before_waiting`]
    pub(super) fn check_before_waiting(&self, check: fn()) {
        let _ = self.shared.check.set(check);
    }

    /// The state, unless another thread holds it.
    ///
    /// # Errors
    /// WouldBlock.
    fn now(&self) -> io::Result<MutexGuard<'_, State>> {
        match self.shared.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes a request without an answer, unless that would block.
    ///
    /// # Errors
    /// WouldBlock; NotConnected without a manager.
    pub(super) fn tell(&self, request: &Request) -> io::Result<()> {
        let state = self.now()?;
        let connection = state.connection()?;
        if !state.unsent.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        connection.send_now(&request.emit(0), &[])
    }

    /// Sends a request, for [`Link::take_answer`], unless that would block. Returns the
    /// request's id.
    ///
    /// # Errors
    /// WouldBlock; NotConnected without a manager.
    pub(super) fn begin(&self, request: &Request) -> io::Result<u32> {
        // Held for moments only; a request not made now leaves the device as it was.
        let mut state = self.state();
        state.connection()?;
        if !state.unsent.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let id = state.ask(request, None);
        self.shared.see_to(&state);
        Ok(id)
    }

    /// The answer to [`Link::begin`]; `None` until it has arrived.
    pub(super) fn take_answer(&self, id: u32) -> Option<Answered> {
        self.now().ok()?.take_answer(id)
    }

    /// Discards an answer that is no longer wanted.
    pub(super) fn forget_answer(&self, id: u32) {
        self.state().asked.remove(&id);
    }

    /// Writes a request that returns something, after `forget` has removed it here. Does
    /// not wait for an answer. A manager that is gone need not receive it: the next one
    /// is not presented with it.
    pub(super) fn give_back(&self, request: &Request, forget: impl FnOnce(&mut State)) {
        let mut state = self.state();
        forget(&mut state);
        state.queue(request, None, 0);
        self.shared.see_to(&state);
    }

    /// As [`Link::give_back`], by the notice connection.
    pub(super) fn let_know(&self, request: &Request, forget: impl FnOnce(&mut State)) {
        let mut state = self.state();
        forget(&mut state);
        if state.connection.is_some() {
            let _ = state.circuits.say(request, &[]);
            self.shared.see_to(&state);
        }
    }

    /// Sends the manager a message about circuits, waiting until `end` for a manager that
    /// is gone. Returns which of its runs receives it.
    ///
    /// # Errors
    /// TimedOut, NotConnected; EUNATCH for a manager without circuits.
    pub(super) fn say(&self, request: &Request, end: Instant) -> io::Result<u32> {
        self.shared.check();
        let mut state = self.shared.connected(self.state(), end)?;
        let said = state.circuits.say(request, &[]);
        self.shared.see_to(&state);
        said
    }

    /// As [`Link::say`], if the manager is connected.
    ///
    /// # Errors
    /// As [`Link::say`].
    pub(super) fn say_now(
        &self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
        remember: impl FnOnce(&mut State),
    ) -> io::Result<()> {
        let mut state = self.state();
        state.connection()?;
        state.circuits.say(request, beside)?;
        remember(&mut state);
        self.shared.see_to(&state);
        Ok(())
    }

    /// Sends a request and waits for its answer until `end`; resends it if the manager
    /// restarts meanwhile. `prompt`: does not ask a manager that missed an earlier
    /// deadline and has sent nothing since.
    ///
    /// # Errors
    /// The manager's error; TimedOut; NotConnected for good.
    pub(super) fn request(
        &self,
        request: &Request,
        beside: Option<BorrowedFd<'_>>,
        end: Instant,
        prompt: bool,
    ) -> io::Result<Answer> {
        let shared = &self.shared;
        shared.check();
        let mut state = self.state();
        loop {
            if prompt && state.silent {
                return Err(silent());
            }
            state = shared.connected(state, end)?;
            let copy = beside.map(|it| it.try_clone_to_owned()).transpose()?;
            let id = state.ask(request, copy);
            shared.see_to(&state);
            let answered = loop {
                if let Some(answered) = state.take_answer(id) {
                    break answered;
                }
                state = match shared.wait(state, end) {
                    (state, true) => state,
                    (mut state, false) => {
                        state.asked.remove(&id);
                        return Err(silent());
                    }
                };
            };
            match answered {
                Err(error) if is_gone(&error) => {}
                answered => return answered.map(|(answer, _)| answer),
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.process.is_current() {
            // The thread does not exist in this process.
            std::mem::forget(thread);
            return;
        }
        let mut state = self.state();
        state.ended = Some("the application has left".to_owned());
        for connection in [&state.connection, &state.presenting].into_iter().flatten() {
            let _ = shutdown(connection.as_fd(), Shutdown::Both);
        }
        drop(state);
        self.shared.wake.signal();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) {
        if let Some(check) = self.check.get() {
            check();
        }
    }

    /// Makes the thread send messages that there was no room for.
    fn see_to(&self, state: &State) {
        if !state.unsent.is_empty() || state.circuits.has_unsaid() {
            self.wake.signal();
        }
    }

    /// Sleeps without the lock until a change; false at the deadline.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        end: Instant,
    ) -> (MutexGuard<'a, State>, bool) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let mut state = state;
            state.silent = true;
            return (state, false);
        }
        let waited = self.changed.wait_timeout(state, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, true)
    }

    /// Waits for a manager that knows the application.
    ///
    /// # Errors
    /// TimedOut; NotConnected for good.
    fn connected<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        end: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        loop {
            if let Some(ended) = &state.ended {
                return Err(io::Error::new(io::ErrorKind::NotConnected, ended.clone()));
            }
            if state.connection.is_some() {
                return Ok(state);
            }
            state = match self.wait(state, end) {
                (state, true) => state,
                (_, false) => return Err(silent()),
            };
        }
    }

    /// The thread's main loop: reads, and reconnects to the manager after each hang-up,
    /// until the application ends.
    fn follow(&self) {
        let [first, longest] = TRY_AGAIN;
        let mut pause = first;
        loop {
            let state = self.state();
            if state.ended.is_some() {
                return;
            }
            if let Some(connection) = state.connection.clone() {
                let (sends, notices) = (!state.unsent.is_empty(), state.circuits.waits_to_say());
                drop(state);
                self.serve(&connection, sends, notices.as_deref());
                pause = first;
                continue;
            }
            drop(state);
            match self.find() {
                Ok(()) => {}
                Err(error) if is_gone(&error) || is_full(&error) => {
                    self.wake.wait(&[], Some(pause));
                    self.wake.clear();
                    pause = (pause * 2).min(longest);
                }
                Err(error) => {
                    let mut state = self.state();
                    state.ended.get_or_insert_with(|| error.to_string());
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Waits for messages from the manager, and for room for messages to it.
    fn serve(&self, connection: &Connection, sends: bool, notices: Option<&Connection>) {
        let events = match sends {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut descriptors = vec![
            PollFd::new(connection, events),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        descriptors.extend(notices.map(|it| PollFd::new(it, PollFlags::OUT)));
        while let Err(Errno::INTR) = poll(&mut descriptors, None) {}
        self.wake.clear();
        let mut state = self.state();
        state.flush();
        state.circuits.flush();
        state.receive();
        drop(state);
        self.changed.notify_all();
    }

    /// Reconnects and presents the application.
    ///
    /// # Errors
    /// The manager's error; without a manager TimedOut and the like.
    fn find(&self) -> io::Result<()> {
        let session = Session::connect(&self.path)?;
        {
            let mut state = self.state();
            if state.ended.is_some() {
                return Ok(());
            }
            state.presenting = Some(session.connection().clone());
        }
        let presented = self.present(&session);
        let mut state = self.state();
        state.presenting = None;
        let presented = presented?;
        state.connection = Some(session.connection().clone());
        state.silent = false;
        if let Some(lent) = session.lent() {
            state.note_polling(lent);
        }
        // Returned while the manager was being presented with it.
        for cookie in presented.holders {
            if !state.holds(cookie) {
                state.queue(&Request::DisownPort(Holder { cookie }), None, 0);
            }
        }
        // Granted by an answer that was lost.
        for block in unknown(&presented.leases, &state.leases) {
            state.queue(&Request::ReturnLease(block), None, 0);
        }
        (state.circuits).presented(presented.notices, &presented.calls);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn present(&self, session: &Session) -> io::Result<Presented> {
        let token = self.token;
        let (answer, _) = session.ask(&Request::Present(Present { token }), &[])?;
        let Answer::Joined(again) = answer else {
            return Err(unexpected());
        };
        let state = self.state();
        let holders: Vec<u64> = state.holders.iter().map(|of| of.0).collect();
        drop(state);
        for &cookie in &holders {
            let state = self.state();
            let Some((_, socket, port)) = state.holders.iter().find(|of| of.0 == cookie) else {
                continue;
            };
            let (message, socket) = (Request::OwnPort(port.clone()), socket.try_clone()?);
            drop(state);
            session.ask_again(&message, &[socket.as_fd()])?;
        }
        let circuits = self.state().circuits.to_present();
        let (notices, calls) = match circuits {
            Some(circuits) => circuits.present(session, |call| {
                self.state().circuits.forget_call(call);
            })?,
            None => (None, Vec::new()),
        };
        Ok(Presented {
            holders,
            leases: again.leases,
            calls,
            notices,
        })
    }
}

impl State {
    /// # Errors
    /// NotConnected.
    fn connection(&self) -> io::Result<&Arc<Connection>> {
        let connection = self.connection.as_ref();
        connection.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Keeps the copy of the socket that holds a port; false if it was already kept.
    pub(super) fn hold(&mut self, cookie: u64, socket: Unshared<OwnedFd>, port: Port) -> bool {
        let is_new = !self.holds(cookie);
        if is_new {
            self.holders.push((cookie, socket, port));
        }
        is_new
    }

    fn holds(&self, cookie: u64) -> bool {
        self.holders.iter().any(|of| of.0 == cookie)
    }

    pub(super) fn let_go(&mut self, cookie: u64) {
        self.holders.retain(|(other, ..)| *other != cookie);
    }

    fn note_polling(&self, lent: bool) {
        // Only one thread at a time holds the state.
        let count = self.lent.load(Ordering::Relaxed);
        if super::is_lent(count) != lent {
            self.lent.store(count.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Sends a request for an answer. Returns the request's id.
    fn ask(&mut self, request: &Request, beside: Option<OwnedFd>) -> u32 {
        let id = loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.asked.contains_key(&self.last) {
                break self.last;
            }
        };
        self.asked.insert(id, None);
        self.queue(request, beside, id);
        id
    }

    fn take_answer(&mut self, id: u32) -> Option<Answered> {
        self.asked.get(&id)?.as_ref()?;
        self.asked.remove(&id).flatten()
    }

    /// Sends a message after those that wait. Without a manager nothing is sent.
    fn queue(&mut self, request: &Request, beside: Option<OwnedFd>, id: u32) {
        if self.connection.is_some() {
            let message = request.emit(id);
            self.unsent.push_back(Unsent {
                message,
                beside,
                id,
            });
            self.flush();
        }
    }

    /// Sends the messages that there is room for. The thread notices a connection's end.
    fn flush(&mut self) {
        let Some(connection) = self.connection.clone() else {
            return;
        };
        while let Some(first) = self.unsent.front() {
            let beside = first.beside.as_ref().map(AsFd::as_fd);
            match connection.send_now(&first.message, beside.as_slice()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_gone(&error) => {
                    return;
                }
                sent => {
                    let id = first.id;
                    self.unsent.pop_front();
                    if let (Err(error), Some(place)) = (sent, self.asked.get_mut(&id)) {
                        *place = Some(Err(error));
                    }
                }
            }
        }
    }

    /// Processes all messages from the manager.
    fn receive(&mut self) {
        while let Some(connection) = self.connection.clone() {
            match connection.receive_now() {
                Ok(Some(received)) => self.take(received),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => self.lose(),
            }
        }
    }

    fn take(&mut self, received: Received) {
        self.silent = false;
        let id = header(&received.bytes).map_or(0, |header| header.id);
        let answer = match Answer::parse(&received.bytes) {
            Ok((_, Answer::Polling(polling))) => return self.note_polling(polling.lent != 0),
            Ok((_, answer)) => answer,
            Err(_) if id != 0 => {
                if let Some(place) = self.asked.get_mut(&id) {
                    *place = Some(Err(unexpected()));
                }
                return;
            }
            Err(_) => return,
        };
        let is_asked = self.asked.contains_key(&id);
        // Before another run of the manager could be presented without it.
        let answered = match answer {
            Answer::Error(failure) => Err((&failure).into()),
            Answer::Leased(block) if !is_asked => {
                // It arrived after the deadline.
                return self.queue(&Request::ReturnLease(block), None, 0);
            }
            Answer::Leased(block) => {
                self.leases.push(block.clone());
                Ok((Answer::Leased(block), received))
            }
            Answer::AtmAttached(attached) => {
                let made = self.circuits.attached(received.descriptors);
                made.map(|()| (Answer::AtmAttached(attached), Received::default()))
            }
            answer => Ok((answer, received)),
        };
        if let Some(place) = self.asked.get_mut(&id) {
            *place = Some(answered);
        }
    }

    /// Handles the connection's hang-up: open requests go to the next manager.
    fn lose(&mut self) {
        self.connection = None;
        self.unsent.clear();
        self.circuits.lose();
        for place in self.asked.values_mut().filter(|place| place.is_none()) {
            *place = Some(Err(gone()));
        }
    }
}

/// Blocks of a set that are not among the known ones, by their first port.
fn unknown(leases: &[Blocks; 2], known: &[Block]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (protocol, of) in [Protocol::Udp, Protocol::Tcp].into_iter().zip(leases) {
        for first in (0..=u16::MAX).step_by(BLOCK_PORTS.into()) {
            let number = usize::from(first / BLOCK_PORTS);
            let leased = of
                .get(number / 64)
                .is_some_and(|word| word & (1 << (number % 64)) != 0);
            let is_known = known.iter().any(|block| {
                block.protocol == protocol as u8 && block.first / BLOCK_PORTS == number as u16
            });
            if leased && !is_known {
                let mut block = Block::new_zeroed();
                (block.first, block.protocol) = (first, protocol as u8);
                blocks.push(block);
            }
        }
    }
    blocks
}

pub(super) fn gone() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Whether there is no manager, or none that answers.
pub(super) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, TimedOut};
    // A manager's own answer, in contrast, has a text.
    let unanswered = error.get_ref().is_none();
    let gone = [
        BrokenPipe,
        ConnectionRefused,
        ConnectionReset,
        NotFound,
        TimedOut,
    ];
    unanswered && gone.contains(&error.kind())
}

/// The manager has no place for another connection at present.
pub(super) fn is_full(error: &io::Error) -> bool {
    Refused::errno(error) == Some(libc::EMFILE)
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the manager does not answer")
}

pub(super) fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the manager answered something else",
    )
}
