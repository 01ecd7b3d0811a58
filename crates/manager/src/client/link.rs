//! The connection to a manager, which may be started anew meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::{Process, Unshared};
use zerocopy::FromZeros;

use super::TRY_AGAIN;
use super::circuits::Presentable;
use crate::connection::{Connection, Received};
use crate::protocol::{
    Answer, BLOCK_PORTS, Block, Blocks, Port, Present, Refused, Request, header,
};

/// How long a request waits for a manager that is gone: longer than that awaits its
/// applications.
const FIND_WITHIN: Duration = Duration::from_secs(6);

/// A connection, and the thread that finds the manager again.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    token: [u8; 16],
    /// The manager says by itself who polls the device.
    private: bool,
    /// [`super::Client::lent`].
    lent: Arc<AtomicU32>,
    state: Mutex<State>,
}

/// What is behind the lock: one request at a time.
#[derive(Debug)]
pub(super) struct State {
    connection: Connection,
    next: u32,
    /// Ports owned, by the cookie of a copy of the socket that holds each.
    holders: Vec<(u64, Unshared<OwnedFd>, Port)>,
    pub(super) leases: Vec<Block>,
    /// The connection has hung up.
    lost: bool,
    /// There will be none any more, and why.
    ended: Option<String>,
    lent: Arc<AtomicU32>,
    pub(super) circuits: Presentable,
}

impl Link {
    pub(super) fn start(
        path: &Path,
        token: [u8; 16],
        private: bool,
        state: State,
    ) -> io::Result<Self> {
        if !private {
            state.note_polling(true);
        }
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            token,
            private,
            lent: state.lent.clone(),
            state: Mutex::new(state),
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

    /// The connection, if nobody uses it and the manager is there.
    ///
    /// # Errors
    /// WouldBlock; NotConnected.
    pub(super) fn now(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        };
        match state.lost {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => Ok(state),
        }
    }

    /// Asks for something to be taken back that is forgotten here. A manager that is gone
    /// need not be asked: the next one is not presented with it.
    pub(super) fn give_back(
        &self,
        request: &Request,
        forget: impl FnOnce(&mut State),
    ) -> io::Result<()> {
        let mut state = self.state();
        forget(&mut state);
        if state.lost {
            return Ok(());
        }
        match state.ask(request, &[]) {
            Err(error) if is_gone(&error) => Ok(()),
            asked => asked.map(drop),
        }
    }

    /// As [`Link::give_back`], of what is not answered.
    pub(super) fn let_know(&self, request: &Request, forget: impl FnOnce(&mut State)) {
        let mut state = self.state();
        forget(&mut state);
        if !state.lost {
            let _ = state.say(request, &[]);
        }
    }

    /// Asks, of a manager that was started anew if need be.
    pub(super) fn request<T>(
        &self,
        mut ask: impl FnMut(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let end = Instant::now() + FIND_WITHIN;
        let [mut pause, longest] = TRY_AGAIN;
        loop {
            let mut state = self.state();
            let asked = match self.shared.find(&mut state) {
                Ok(()) => ask(&mut state),
                Err(error) => Err(error),
            };
            let can_come_back = state.ended.is_none();
            drop(state);
            match asked {
                Err(error) if is_gone(&error) && can_come_back && Instant::now() < end => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                }
                result => return result,
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.process.is_current() {
            // It is not in this process.
            std::mem::forget(thread);
            return;
        }
        let mut state = self.state();
        state.ended = Some("the application has left".to_owned());
        let _ = shutdown(state.connection.as_fd(), Shutdown::Both);
        drop(state);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for each hang-up, and finds the manager again, until there is no application
    /// any more.
    fn follow(&self) {
        let [first, longest] = TRY_AGAIN;
        let mut pause = first;
        loop {
            let mut state = self.state();
            if state.ended.is_some() {
                return;
            }
            match self.find(&mut state) {
                Ok(()) => pause = first,
                Err(error) if is_gone(&error) => {
                    drop(state);
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(longest);
                    continue;
                }
                Err(_) => return,
            }
            // Its own, since another thread may connect anew meanwhile.
            let connection = state.connection.as_fd().try_clone_to_owned();
            let Ok(connection) = connection.and_then(Unshared::new) else {
                return;
            };
            drop(state);
            // The end of it is always reported.
            let events = match self.private {
                true => PollFlags::IN,
                false => PollFlags::empty(),
            };
            let mut descriptors = [PollFd::new(&*connection, events)];
            while let Err(Errno::INTR) = poll(&mut descriptors, None) {}
            let mut state = self.state();
            // Unless it is the one before.
            state.look();
            state.take_unasked();
        }
    }

    /// Connects anew if the connection was lost, and presents the application.
    fn find(&self, state: &mut State) -> io::Result<()> {
        if let Some(ended) = &state.ended {
            return Err(io::Error::new(io::ErrorKind::NotConnected, ended.clone()));
        }
        if !state.lost {
            return Ok(());
        }
        state.connection = Connection::connect(&self.path)?;
        let presented = self.present(state);
        match &presented {
            Ok(()) => state.lost = false,
            Err(error) if !is_gone(error) => state.ended = Some(error.to_string()),
            Err(_) => {}
        }
        presented
    }

    fn present(&self, state: &mut State) -> io::Result<()> {
        let token = self.token;
        let (answer, _) = state.ask(&Request::Present(Present { token }), &[])?;
        let Answer::Joined(again) = answer else {
            return Err(unexpected());
        };
        for at in 0..state.holders.len() {
            let Some((_, socket, port)) = state.holders.get(at) else {
                break;
            };
            let (message, socket) = (Request::OwnPort(port.clone()), socket.try_clone()?);
            state.ask_again(&message, &[socket.as_fd()])?;
        }
        // Granted by an answer that was lost.
        for block in unknown(&again.leases, &state.leases) {
            state.ask_again(&Request::ReturnLease(block), &[])?;
        }
        state.present_circuits()
    }
}

impl State {
    pub(super) fn new(connection: Connection) -> Self {
        State {
            connection,
            next: 1,
            holders: Vec::new(),
            leases: Vec::new(),
            lost: false,
            ended: None,
            lent: Arc::default(),
            circuits: Presentable::default(),
        }
    }

    pub(super) fn hold(&mut self, cookie: u64, socket: Unshared<OwnedFd>, port: Port) {
        self.let_go(cookie);
        self.holders.push((cookie, socket, port));
    }

    pub(super) fn let_go(&mut self, cookie: u64) {
        self.holders.retain(|(other, ..)| *other != cookie);
    }

    /// Notes whether the connection has hung up.
    fn look(&mut self) {
        let mut descriptors = [PollFd::new(&self.connection, PollFlags::empty())];
        let now = rustix::event::Timespec::default();
        self.lost |= poll(&mut descriptors, Some(&now)) == Ok(1);
    }

    /// True where there is a message.
    fn has_message(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.connection, PollFlags::IN)];
        let now = rustix::event::Timespec::default();
        let polled = poll(&mut descriptors, Some(&now));
        polled == Ok(1) && descriptors[0].revents().contains(PollFlags::IN)
    }

    /// Takes what the manager has said by itself; answers are taken by who asks, who holds
    /// the state as long.
    fn take_unasked(&mut self) {
        while !self.lost && self.has_message() {
            match self.connection.receive() {
                Ok(Some(received)) => {
                    if let Ok((_, Answer::Polling(polling))) = Answer::parse(&received.bytes) {
                        self.note_polling(polling.lent != 0);
                    }
                }
                _ => self.lost = true,
            }
        }
    }

    fn note_polling(&self, lent: bool) {
        // One at a time has the state.
        let count = self.lent.load(Ordering::Relaxed);
        if super::is_lent(count) != lent {
            self.lent.store(count.wrapping_add(1), Ordering::Relaxed);
        }
    }

    pub(super) fn receive(&mut self) -> io::Result<Option<Received>> {
        self.connection.receive()
    }

    /// As [`State::ask`]; that it is refused is no reason to end.
    pub(super) fn ask_again(
        &mut self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        match self.ask(request, beside) {
            Err(error) if is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Says something of circuits that is not answered; which run of the manager's hears it.
    pub(super) fn say(&mut self, request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let said = self.circuits.say(request, beside);
        self.lost |= said.as_ref().is_err_and(is_gone);
        said
    }

    pub(super) fn ask(
        &mut self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Received)> {
        let asked = self.exchange(request, beside);
        self.lost |= asked.as_ref().is_err_and(is_gone);
        asked
    }

    fn exchange(
        &mut self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Received)> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.connection.request(request, id, beside)?;
        loop {
            let received = self.connection.receive()?.ok_or_else(gone)?;
            // An answer to nothing was refused entry.
            if header(&received.bytes).is_some_and(|header| ![id, 0].contains(&header.id)) {
                continue;
            }
            return match Answer::parse(&received.bytes) {
                Ok((_, Answer::Polling(polling))) => {
                    self.note_polling(polling.lent != 0);
                    continue;
                }
                Ok((_, Answer::Error(failure))) => Err((&failure).into()),
                Ok((_, answer)) => Ok((answer, received)),
                Err(_) => Err(unexpected()),
            };
        }
    }
}

/// Blocks of a set that are not among those known, by their first port.
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

/// True where the manager is to be looked for again: it has ended, or had no place for one more
/// connection.
pub(super) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    if Refused::errno(error) == Some(libc::EMFILE) {
        return true;
    }
    // Not what the manager answers, which has a text.
    let unanswered = error.get_ref().is_none();
    unanswered && [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound].contains(&error.kind())
}

pub(super) fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the manager answered something else",
    )
}
