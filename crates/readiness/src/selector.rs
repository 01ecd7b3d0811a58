//! Readiness of many sockets, at a cost proportional to those that are ready.

use std::io;
use std::ops::BitOr;
use std::sync::Arc;
use std::time::Duration;

use tidewall_stack::StackHandle;

use crate::events::Events;
use crate::poll_context::{Interface, PollContext};
use crate::registration::{File, Registration};

/// Most events of one [`Selector::wait`]; the others are reported by the next.
const EVENTS: usize = 256;

/// The events that a socket is watched for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Reading, or accepting, would not block.
    pub const READABLE: Interest = Interest(1);
    /// Writing would not block.
    pub const WRITABLE: Interest = Interest(2);
    /// Errors and hang-ups alone.
    pub const NONE: Interest = Interest(0);

    fn events(self) -> Events {
        Events::ALWAYS
            .with_if(Events::IN, self.0 & Self::READABLE.0 != 0)
            .with_if(Events::OUT, self.0 & Self::WRITABLE.0 != 0)
    }
}

impl BitOr for Interest {
    type Output = Interest;
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token that the socket was added with.
    pub token: u64,
    /// Reading or accepting would not block: there is data, the end of the stream, a
    /// connection or an error.
    pub readable: bool,
    /// Writing would not block.
    pub writable: bool,
    /// Both halves are closed.
    pub hangup: bool,
    /// An error is pending (`TcpStream::take_error`), or there is something to be
    /// reported (`TcpStream::take_notifications`).
    pub error: bool,
}

/// Readiness of many sockets of one [`StackHandle`], level-triggered: every
/// [`Selector::wait`] reports a ready socket until its readiness is consumed.
///
/// A socket belongs to one selector at a time. Data written to streams of a selector
/// between two calls of [`Selector::wait`] is sent by the second one. It carries the
/// acknowledgments of data that was read. If that call does not happen, the data is sent
/// after a few milliseconds.
pub struct Selector {
    context: Arc<PollContext>,
    stack: StackHandle,
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selector").finish_non_exhaustive()
    }
}

/// A socket that a [`Selector`] can watch: `TcpStream`, `TcpListener`,
/// `UdpSocket`.
pub trait Selectable {
    #[doc(hidden)]
    fn file(&self) -> Selected<'_>;
}

/// A socket that a [`Selector`] is given.
pub struct Selected<'a>(pub &'a dyn File);

impl Selector {
    /// Creates a selector for sockets of `stack`.
    ///
    /// # Errors
    /// Those of starting the stack's helper thread.
    pub fn new(stack: &StackHandle) -> io::Result<Self> {
        Ok(Selector {
            context: PollContext::new(stack.here()?, false)?,
            stack: stack.clone(),
        })
    }

    /// Watches a socket; its events carry `token`.
    ///
    /// # Errors
    /// EEXIST when a selector watches it already; EINVAL for a socket of another stack;
    /// epoll's errors for sockets that have a kernel part.
    pub fn add(&self, socket: &impl Selectable, token: u64, interest: Interest) -> io::Result<()> {
        let Selected(file) = socket.file();
        if !file.is_of(&self.stack) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.context
            .register(file, token, interest.events(), Interface::Selector)
            .map(drop)
    }

    /// Changes the events that a socket is watched for.
    ///
    /// # Errors
    /// ENOENT when this selector does not watch it.
    pub fn modify(
        &self,
        socket: &impl Selectable,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let registration = self.registration(socket)?;
        registration.set_key(token);
        registration.set_interest(interest.events())?;
        registration.mark_if_ready();
        Ok(())
    }

    /// Stops watching a socket. Dropping the socket does so too.
    ///
    /// # Errors
    /// ENOENT when this selector does not watch it.
    pub fn remove(&self, socket: &impl Selectable) -> io::Result<()> {
        let registration = self.registration(socket)?;
        registration.retire();
        socket.file().0.wait_queue().unregister(&registration);
        Ok(())
    }

    fn registration(&self, socket: &impl Selectable) -> io::Result<Arc<Registration>> {
        let found = socket.file().0.wait_queue().find(&self.context);
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Waits until a socket is ready and puts the events into `events`, which it empties
    /// first. Returns their number; 0 at the timeout. `None` waits forever.
    ///
    /// # Errors
    /// EINTR when a signal arrives; ENETDOWN and other device errors.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<usize> {
        events.clear();
        let core = self.stack.here()?;
        let context = &*self.context;
        context.wait(core, timeout, None, &mut |insist| {
            let mut report = |registration: &Arc<Registration>, ready: Events| {
                let interest = registration.interest();
                if ready.intersects(interest) {
                    events.push(event(registration.key(), interest, ready & interest));
                }
            };
            context.poll_kernel(insist, EVENTS, &mut report)?;
            context.take_level_triggered(context.most_events(core, EVENTS), &mut report);
            Ok(events.len())
        })
    }
}

/// Converts a socket's readiness into the application's event.
fn event(token: u64, interest: Events, ready: Events) -> Event {
    Event {
        token,
        // An error is reported by reading, too.
        readable: ready.intersects(Events::IN)
            || (ready.intersects(Events::ERR) && interest.intersects(Events::IN)),
        writable: ready.intersects(Events::OUT),
        hangup: ready.intersects(Events::HUP),
        error: ready.intersects(Events::ERR),
    }
}

impl Drop for Selector {
    fn drop(&mut self) {
        // Sockets may outlive it; then no selector watches them.
        if let Ok(core) = self.stack.here() {
            self.context.close(core);
        }
    }
}
