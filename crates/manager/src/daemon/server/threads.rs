//! The manager with a thread for each activity, as the ATM paper's had it: each
//! connection, the signalling link, each call. It makes the loop's decisions, one thread
//! at a time. It exists for comparison.

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

/// How often a client's thread checks whether its message was examined.
const LOOKED_AT: Duration = Duration::from_micros(100);

/// An activity with its own thread.
#[derive(Debug)]
pub(super) enum Activity {
    /// A client's connection.
    Client(ClientId, OwnedFd),
    /// The connection of its notices.
    Circuits(ClientId, OwnedFd),
    /// Circuit 0.5.
    Link(OwnedFd),
    /// A call: the notices to its application.
    Call(Receiver<CallNotice>, Arc<Connection>),
}

/// A server's view of its threads.
#[derive(Debug)]
pub(super) struct Threads {
    begin: Sender<Activity>,
    /// Wakes the loop that starts them.
    wake: Arc<WakeFd>,
    /// By application and its number for the call.
    calls: HashMap<(u16, u32), Sender<CallNotice>>,
}

impl Threads {
    /// Requests a thread for an activity.
    pub(super) fn begin(&self, activity: Activity) {
        // The loop that starts them holds the other end for as long.
        let _ = self.begin.send(activity);
        self.wake.signal();
    }

    /// Makes a call's thread notify its application.
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

    /// Ends the threads of other calls.
    pub(super) fn keep(&mut self, is_there: impl Fn(u16, u32) -> bool) {
        self.calls.retain(|of, _| is_there(of.0, of.1));
    }
}

/// State common to all threads.
struct Common<'a> {
    server: Mutex<&'a mut Server>,
    /// Wakes the thread that waits for the time.
    wake: Arc<WakeFd>,
    /// Hangs up at the end.
    over: UnixStream,
}

impl<'a> Common<'a> {
    fn server(&self) -> MutexGuard<'_, &'a mut Server> {
        // The server is consistent between calls.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on the server, and carries out its consequences.
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

    /// Waits until a descriptor is readable; false when it ends, or the server does.
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
                    // A client that does not read counts as gone, which its connection's
                    // thread notices.
                    let _ = connection.send(&notice.answer.emit(0), &beside);
                }
            }
        }
    }

    /// The loop for everything without its own activity: new connections, the host, the
    /// time.
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
        // If there are too many threads, its client waits until it hangs up.
        let _ = thread::Builder::new()
            .name("tw-activity".to_owned())
            .spawn_scoped(scope, move || self.run(activity));
    }
}

impl Server {
    /// As [`Server::run`], with a thread for each connection, for the signalling link and
    /// for each call, serialised by a lock. Must be called before there is a client.
    ///
    /// # Errors
    /// As [`Server::run`].
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
            // Ends the threads of calls, and then waits for the others.
            common.server().threads = None;
            drop(end);
            ended
        })
    }
}
