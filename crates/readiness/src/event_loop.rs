//! Sockets in event loops that sleep in the kernel: a source for `mio`.
//!
//! Such a loop waits on an epoll descriptor of the kernel's, where the stack
//! cannot put anything on a ready list. So every socket that is registered has an eventfd in
//! there, edge-triggered, and one thread a stack, the notifier, waits for all of
//! them as any application's thread does: it leads while nobody else is inside,
//! polls the device, runs the protocol, empties the ready list, and turns each into an edge
//! of the socket's eventfd. Without such sockets it sleeps outside the stack.
//!
//! ```text
//!  device ──► notifier: protocol ──► ready list ──► eventfd ──► mio's epoll ──► application
//! ```
//!
//! An eventfd has two edges of its own: writing to it wakes those who asked for
//! EPOLLIN, reading from it those who asked for EPOLLOUT. Its counter is above zero
//! while the socket is readable, as far as anybody has looked. EPOLLOUT it always
//! has, so a loop that asks for both hears of writability too often, which mio
//! allows ("spurious events"), but never too seldom.

use std::io;
use std::sync::{Arc, Condvar, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use slab::Slab;

use super::poll_context::{Interface, PollContext};
use super::registration::{File, Registration};
use crate::events::Events;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::protocol::Protocol;
use tidewall_sys::WakeFd;

/// How long the notifier stays away from a device that reports an error.
const AFTER_ERROR: Duration = Duration::from_millis(8);

/// What a stack does for such loops.
#[derive(Default)]
pub struct Notifier {
    state: Mutex<State, rank::EventLoop>,
    /// The state has changed, for a notifier outside the stack.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    context: Option<Arc<PollContext>>,
    /// By the keys of their registrations.
    signals: Slab<Arc<Signal>>,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

/// How one socket's loop is woken.
struct Signal {
    wake: WakeFd,
    /// One at a time looks and signals: what was seen earlier is signalled earlier.
    order: Mutex<(), rank::EventSignal>,
}

impl Signal {
    /// Makes an edge of what the socket is ready for.
    fn edge(&self, registration: &Registration) {
        let _order = lock(&self.order);
        let (readable, writable) = readiness(registration);
        if writable {
            // Reading makes the edge, and needs something to read.
            self.wake.signal();
            self.wake.clear();
        }
        if readable {
            self.wake.signal();
        }
    }

    /// Puts the counter right, for an epoll descriptor that looks at it now.
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

/// Whether a socket is readable and writable, of what it is registered for.
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

/// What the notifier registers for on behalf of a loop.
fn events(interest: Interest) -> Events {
    // Of sockets that the kernel has a part in it reports changes, too.
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

    /// The context that all sources of a stack are in, and its thread.
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

    /// True while there are sockets of loops.
    fn is_wanted(&self) -> bool {
        let state = lock(&self.state);
        !state.ended && !state.signals.is_empty()
    }

    /// True while there are sockets whose loops do not wait in the stack: what they
    /// want to send is sent at once.
    pub fn is_used(&self) -> bool {
        !lock(&self.state).signals.is_empty()
    }

    /// Sleeps outside the stack until it is wanted in it; false at the end.
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
            // All the time: nobody waits later, so what is written is sent now.
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
                // A device that is down. Sockets time out meanwhile.
                std::thread::sleep(AFTER_ERROR);
            }
        }
    }

    /// The end of the stack: nothing is registered any more.
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

/// Makes the notifier look whether it is still wanted.
fn interrupt(context: &PollContext) {
    context.kernel().note_ready();
    context.wait_queue.threads().wake_all();
}

/// A socket's place for what ties it to a loop. Empty again when the socket is
/// dropped: the loop forgets the eventfd when that is closed.
#[derive(Default)]
pub struct Slot(Mutex<Option<Box<Placed>>, rank::EventSource>);

enum Placed {
    /// Only the kernel knows about it: it is in the loop itself.
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
        // From here on dropping `placed` undoes what was done.
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
