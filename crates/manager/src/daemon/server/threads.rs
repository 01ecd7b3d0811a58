//! The manager with a thread for each activity, as the ATM paper's had it: each connection,
//! the signalling link, each call. It decides what the loop decides, one thread at a time; it
//! is there to be compared with.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use tidewall_sys::{WakeFd, monotonic};

use super::{EVENTS, STOP, Server, WAKE, timespec};
use crate::connection::Connection;
use crate::daemon::circuits::CallNotice;
use crate::daemon::manager::ClientId;
use crate::protocol::Answer;

/// How often a client's thread asks whether its message was looked at.
const LOOKED_AT: Duration = Duration::from_micros(100);

/// Something that gets a thread.
#[derive(Debug)]
pub(super) enum Activity {
    /// A client's connection.
    Client(ClientId, OwnedFd),
    /// The connection of its notices.
    Circuits(ClientId, OwnedFd),
    /// Circuit 0.5.
    Link(OwnedFd),
    /// A call: what its application is to be told.
    Call(Receiver<CallNotice>, Arc<Connection>),
}

/// What a server has of its threads.
#[derive(Debug)]
pub(super) struct Threads {
    begin: Sender<Activity>,
    /// Of the loop that begins them.
    wake: Arc<WakeFd>,
    /// By application and its number for the call.
    calls: HashMap<(u16, u32), Sender<CallNotice>>,
}

impl Threads {
    /// Has a thread for something.
    pub(super) fn begin(&self, activity: Activity) {
        // The loop that begins them has the other end as long.
        let _ = self.begin.send(activity);
        self.wake.signal();
    }

    /// Has a call's thread tell its application.
    pub(super) fn tell(&mut self, notice: CallNotice, connection: &Arc<Connection>) {
        let call = match &notice.answer {
            Answer::AtmCircuit(of) => of.call,
            Answer::AtmConnected(of) => of.call,
            Answer::AtmEnded(of) => of.call,
            _ => 0,
        };
        let key = (notice.application, call);
        let thread = self.calls.entry(key).or_insert_with(|| {
            let (tell, told) = channel();
            let _ = (self.begin).send(Activity::Call(told, connection.clone()));
            self.wake.signal();
            tell
        });
        let _ = thread.send(notice);
    }

    /// Lets threads of other calls end.
    pub(super) fn keep(&mut self, is_there: impl Fn(u16, u32) -> bool) {
        self.calls.retain(|of, _| is_there(of.0, of.1));
    }
}

/// What all threads have.
struct Common<'a> {
    server: Mutex<&'a mut Server>,
    /// Wakes the thread that waits for the time.
    wake: Arc<WakeFd>,
    /// Has a hang-up at the end.
    over: UnixStream,
}

impl<'a> Common<'a> {
    fn server(&self) -> MutexGuard<'_, &'a mut Server> {
        // It is whole between calls.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the server, and what follows from it.
    fn with(&self, what: impl FnOnce(&mut Server)) {
        let mut server = self.server();
        let before = server.due();
        what(&mut server);
        server.follow_calls();
        let due = server.due();
        if due.is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.wake.signal();
        }
    }

    /// Waits until a descriptor is readable; false at the end of it, or of all.
    fn wait(&self, descriptor: &OwnedFd) -> bool {
        let mut both = [
            PollFd::new(descriptor, PollFlags::IN),
            PollFd::new(&self.over, PollFlags::IN),
        ];
        while let Err(rustix::io::Errno::INTR) = poll(&mut both, None) {}
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        !both[0].revents().intersects(ended) && both[1].revents().is_empty()
    }

    fn run(&self, activity: Activity) {
        match activity {
            Activity::Client(client, connection) => {
                while self.wait(&connection) {
                    self.with(|server| server.serve(client));
                    while self.server().looked_at.contains(&client) {
                        thread::sleep(LOOKED_AT);
                    }
                }
                self.with(|server| server.end(client));
            }
            Activity::Circuits(client, connection) => {
                while self.wait(&connection) {
                    self.with(|server| server.serve_circuits(client));
                }
                self.with(|server| server.end(client));
            }
            Activity::Link(socket) => {
                while self.wait(&socket) {
                    self.with(Server::serve_signalling);
                }
            }
            Activity::Call(told, connection) => {
                for notice in told {
                    let beside: Vec<_> = notice.beside.iter().map(AsFd::as_fd).collect();
                    // Who does not read is not there, which its connection's thread notices.
                    let _ = connection.send(&notice.answer.emit(0), &beside);
                }
            }
        }
    }

    /// The loop of what is no activity of its own: who connects, the host, the time.
    fn serve<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        begun: &Receiver<Activity>,
        waits: &OwnedFd,
    ) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            begun.try_iter().for_each(|it| self.begin(scope, it));
            let due = self.server().due();
            let timeout = due.map(|at| timespec(at.saturating_sub(monotonic())));
            match epoll::wait(waits, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.wake.clear();
            let mut server = self.server();
            if !server.dispatch(&mut events)? {
                return Ok(());
            }
            server.tick();
            server.follow_calls();
        }
    }

    fn begin<'s>(&'s self, scope: &'s Scope<'s, '_>, activity: Activity) {
        // Of more threads than may be, its client waits until it hangs up.
        let _ = thread::Builder::new()
            .name("tw-activity".to_owned())
            .spawn_scoped(scope, move || self.run(activity));
    }
}

impl Server {
    /// As [`Server::run`], with a thread for each connection, for the signalling link and for
    /// each call, which a lock keeps apart. To be called before there is a client.
    ///
    /// # Errors
    /// As there.
    pub fn run_by_threads(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let (begin, begun) = channel();
        let calls = HashMap::new();
        let wake = Arc::new(WakeFd::new()?);
        self.threads = Some(Threads {
            begin,
            wake: wake.clone(),
            calls,
        });
        let (over, end) = UnixStream::pair()?;
        self.watch(stop, STOP)?;
        self.watch(wake.as_fd(), WAKE)?;
        let waits = self.epoll.try_clone()?;
        self.tick();
        self.follow_calls();
        let server = Mutex::new(self);
        let common = Common { server, wake, over };
        thread::scope(|scope| {
            let ended = common.serve(scope, &begun, &waits);
            // Threads of calls, and then the others, which are waited for.
            common.server().threads = None;
            drop(end);
            ended
        })
    }
}
