//! Sockets in event loops that sleep in the kernel: a source for `mio`.
//!
//! Such a loop waits on a kernel epoll descriptor, whose ready list the stack cannot change.
//! So every registered socket has an eventfd in it, edge-triggered. One thread per stack,
//! the notifier, waits for all these sockets as an application's thread does. It leads while
//! no other thread is inside, polls the device, runs the protocol, and empties the ready
//! list. Each entry becomes an edge of the socket's eventfd. Without such sockets it sleeps
//! outside the stack.
//!
//! ```text
//!  device ──► notifier: protocol ──► ready list ──► eventfd ──► mio's epoll ──► application
//! ```
//!
//! An eventfd produces two kinds of edges: a write to it wakes waiters for EPOLLIN, a
//! read from it waiters for EPOLLOUT. Its counter is above zero while the socket was
//! readable at the last check. EPOLLOUT is always set. So a loop that requests both
//! receives too many writability events, which mio allows ("spurious events"), but never
//! too few.

use std::io;
use std::sync::{Arc, Condvar, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use slab::Slab;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::protocol::Protocol;
use tidewall_sys::WakeFd;

use super::poll_context::{Interface, PollContext};
use super::registration::{File, Registration};
use crate::events::Events;

/// How long the notifier stays away from a device that reports an error.
const AFTER_ERROR: Duration = Duration::from_millis(8);

/// A stack's state for such loops.
#[derive(Default)]
pub struct Notifier {
    state: Mutex<State, rank::EventLoop>,
    /// Signals a change of state to a notifier outside the stack.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    context: Option<Arc<PollContext>>,
    /// Signals by the keys of their registrations.
    signals: Slab<Arc<Signal>>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

/// Wakes one socket's loop.
struct Signal {
    wake: WakeFd,
    /// Serialises checks and signals: an earlier observation is signalled earlier.
    order: Mutex<(), rank::EventSignal>,
}

impl Signal {
    /// Produces an edge for each event that the socket is ready for.
    fn edge(&self, registration: &Registration) {
        let _order = lock(&self.order);
        let (readable, writable) = readiness(registration);
        if writable {
            // The read produces the edge, and needs something to read.
            self.wake.signal();
            self.wake.clear();
        }
        if readable {
            self.wake.signal();
        }
    }

    /// Corrects the counter, for an epoll descriptor that examines it now.
    fn level(&self, registration: &Registration) {
        let _order = lock(&self.order);
        let (readable, _) = readiness(registration);
        if readable {
            self.wake.signal();
        } else {
            self.wake.clear();
        }
    }
}

/// Returns whether a socket is readable and writable, of the events that it is registered
/// for.
fn readiness(registration: &Registration) -> (bool, bool) {
    let (interest, ready) = (registration.interest(), registration.events());
    let is = |asked: Events, so: Events| {
        interest.intersects(asked) && ready.intersects(so | Events::ERR | Events::HUP)
    };
    (
        is(Events::IN, Events::IN | Events::RDHUP),
        is(Events::OUT, Events::OUT),
    )
}

/// Returns the events that the notifier registers for on behalf of a loop.
fn events(interest: Interest) -> Events {
    // For sockets that have a kernel part it reports changes, too.
    let always = Events::ERR | Events::HUP | Events::EDGE;
    always
        .with_if(Events::IN | Events::RDHUP, interest.is_readable())
        .with_if(Events::OUT, interest.is_writable())
}

impl Protocol for Notifier {
    fn end(&self, core: &Core) {
        self.stop(core);
    }
}

impl Notifier {
    /// The notifier of a stack.
    pub fn of(core: &Core) -> &Self {
        core.protocol()
    }

    /// Returns the context that holds all sources of a stack; starts its thread.
    fn context(core: &Arc<Core>) -> io::Result<Arc<PollContext>> {
        let mut state = lock(&Notifier::of(core).state);
        if let Some(context) = &state.context {
            return Ok(context.clone());
        }
        let context = PollContext::new(core, false)?;
        let (own, of) = (core.clone(), context.clone());
        let thread = std::thread::Builder::new()
            .name("tidewall-events".to_owned())
            .spawn(move || Notifier::of(&own).run(&own, &of))?;
        state.thread = Some(thread);
        state.context = Some(context.clone());
        Ok(context)
    }

    fn insert(&self, signal: Arc<Signal>) -> usize {
        let key = lock(&self.state).signals.insert(signal);
        self.changed.notify_all();
        key
    }

    fn remove(&self, key: usize) {
        let (forgotten, context) = {
            let mut state = lock(&self.state);
            let forgotten = state.signals.try_remove(key);
            let last = state.signals.is_empty();
            (forgotten, state.context.clone().filter(|_| last))
        };
        drop(forgotten);
        if let Some(context) = context {
            interrupt(&context);
        }
    }

    /// Returns true while sockets of loops exist.
    fn is_wanted(&self) -> bool {
        let state = lock(&self.state);
        !state.ended && !state.signals.is_empty()
    }

    /// Returns true while there are sockets whose loops do not wait in the stack: their
    /// output is sent at once.
    pub fn is_used(&self) -> bool {
        !lock(&self.state).signals.is_empty()
    }

    /// Sleeps outside the stack until the notifier is needed; returns false at the end.
    fn until_wanted(&self) -> bool {
        let mut state = lock(&self.state);
        while !state.ended && state.signals.is_empty() {
            state = state.wait(&self.changed);
        }
        !state.ended
    }

    fn run(&self, core: &Core, context: &PollContext) {
        let mut ready = Vec::new();
        while self.until_wanted() {
            // Inside all the time: no later wait would send written data, so it is sent
            // now.
            let inside = context.enter();
            let result = context.wait(core, None, None, &mut |insist| {
                if !self.is_wanted() {
                    return Ok(1);
                }
                context.mark_kernel_ready(insist)?;
                context.take_all(&mut ready);
                for registration in ready.drain(..) {
                    let key = usize::try_from(registration.key()).unwrap_or(usize::MAX);
                    let signal = lock(&self.state).signals.get(key).cloned();
                    if let Some(signal) = signal {
                        signal.edge(&registration);
                    }
                }
                Ok(0)
            });
            drop(inside);
            if let Err(error) = result
                && error.kind() != io::ErrorKind::Interrupted
            {
                // The device is down. Sockets time out meanwhile.
                std::thread::sleep(AFTER_ERROR);
            }
        }
    }

    /// Ends the notifier at the end of the stack, when nothing is registered any more.
    fn stop(&self, core: &Core) {
        let (thread, context) = {
            let mut state = lock(&self.state);
            state.ended = true;
            (state.thread.take(), state.context.take())
        };
        self.changed.notify_all();
        let Some(context) = context else { return };
        interrupt(&context);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        context.close(core);
    }
}

/// Makes the notifier check whether it is still needed.
fn interrupt(context: &PollContext) {
    context.kernel().note_ready();
    context.wait_queue.threads().wake_all();
}

/// A socket's registration with a loop. Empty again when the socket is dropped: the loop
/// forgets the eventfd when that is closed.
#[derive(Default)]
pub struct Slot(Mutex<Option<Box<Placed>>, rank::EventSource>);

enum Placed {
    /// A file that only the kernel knows; it is in the loop itself.
    Kernel(i32),
    Signalled {
        signal: Arc<Signal>,
        registration: Arc<Registration>,
        key: usize,
        core: Weak<Core>,
    },
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Placed::Signalled {
            registration,
            key,
            core,
            ..
        } = self
        {
            let Some(core) = core.upgrade() else {
                return registration.retire();
            };
            if core.process.is_current() {
                registration.retire();
                Notifier::of(&core).remove(*key);
            }
        }
    }
}

fn errno<V>(errno: i32) -> io::Result<V> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Slot {
    /// See [`event::Source::register`].
    pub fn register(
        &self,
        stack: &StackHandle,
        socket: &dyn File,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        use event::Source as _;
        let mut place = lock(&self.0);
        if place.is_some() {
            return errno(libc::EEXIST);
        }
        if socket.pollable().is_none() {
            let descriptor = socket.descriptor();
            SourceFd(&descriptor).register(registry, token, interest)?;
            *place = Some(Box::new(Placed::Kernel(descriptor)));
            return Ok(());
        }
        let core = stack.here()?;
        let context = Notifier::context(core)?;
        let signal = Arc::new(Signal {
            wake: WakeFd::new()?,
            order: Mutex::new(()),
        });
        let key = Notifier::of(core).insert(signal.clone());
        let registered = context.register(socket, key as u64, events(interest), Interface::Epoll);
        let registration = match registered {
            Ok(registration) => registration,
            Err(error) => {
                Notifier::of(core).remove(key);
                return Err(error);
            }
        };
        let placed = Placed::Signalled {
            signal: signal.clone(),
            registration: registration.clone(),
            key,
            core: Arc::downgrade(core),
        };
        signal.level(&registration);
        // From here on dropping `placed` undoes the registration.
        SourceFd(&signal.wake.descriptor()).register(registry, token, interest)?;
        *place = Some(Box::new(placed));
        Ok(())
    }

    /// See [`event::Source::reregister`].
    pub fn reregister(
        &self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        use event::Source as _;
        match lock(&self.0).as_deref() {
            None => errno(libc::ENOENT),
            Some(Placed::Kernel(fd)) => SourceFd(fd).reregister(registry, token, interest),
            Some(Placed::Signalled {
                signal,
                registration,
                ..
            }) => {
                registration.set_interest(events(interest))?;
                signal.level(registration);
                SourceFd(&signal.wake.descriptor()).reregister(registry, token, interest)
            }
        }
    }

    /// See [`event::Source::deregister`].
    pub fn deregister(&self, registry: &Registry) -> io::Result<()> {
        use event::Source as _;
        let placed = lock(&self.0).take();
        match placed.as_deref() {
            None => errno(libc::ENOENT),
            Some(Placed::Kernel(fd)) => SourceFd(fd).deregister(registry),
            Some(Placed::Signalled { signal, .. }) => {
                SourceFd(&signal.wake.descriptor()).deregister(registry)
            }
        }
    }
}
