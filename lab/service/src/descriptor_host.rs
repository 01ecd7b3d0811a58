//! The ways of waiting for Tidewall's sockets by descriptor that keep their own list of
//! watched sockets: an epoll set, edge-triggered, and the event queue of Banga, Mogul and
//! Druschel (USENIX 1999).

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use tidewall::Stack;
use tidewall::descriptor::{Allocator, Flags};
use tidewall::readiness::{DescriptorEvent, EpollEvent, Events, Operation};

use crate::descriptor_sockets::{DescriptorSockets, Owned, Select};
use crate::sockets::Waiter;
use crate::stream::{Event, Interest};

/// Most events per call.
const EVENTS: usize = 512;
/// The events watched on a stream, permanently: each change is reported once.
const ALL: Events = Events::IN.with(Events::OUT).with(Events::RDHUP);

/// Converts events to those of a server.
fn event(token: u64, found: Events) -> Event {
    let broken = found.intersects(Events::ERR.with(Events::HUP));
    let ended = broken || found.intersects(Events::RDHUP);
    Event {
        token,
        readable: ended || found.intersects(Events::IN),
        writable: broken || found.intersects(Events::OUT),
        hangup: ended,
    }
}

/// Tidewall's epoll.
pub struct DescriptorEpoll {
    sockets: DescriptorSockets,
    set: Owned,
    events: RefCell<Box<[EpollEvent]>>,
}

impl DescriptorEpoll {
    /// Creates a host on `stack`, with its own epoll set.
    ///
    /// # Errors
    /// Those of [`tidewall::readiness::Descriptors::epoll_create1`].
    pub fn new(stack: &Stack, allocator: Allocator) -> io::Result<Self> {
        let sockets = DescriptorSockets::new(stack, allocator, Select::default())?;
        let set = sockets.descriptors().epoll_create1(Flags::CLOEXEC)?;
        let set = sockets.owned(set);
        Ok(DescriptorEpoll {
            sockets,
            set,
            events: RefCell::new(vec![EpollEvent::default(); EVENTS].into()),
        })
    }

    fn control(
        &self,
        operation: Operation,
        number: i32,
        events: Events,
        token: u64,
    ) -> io::Result<()> {
        let event = EpollEvent {
            events,
            data: token,
        };
        let descriptors = self.sockets.descriptors();
        descriptors.epoll_ctl(self.set.number(), operation, number, Some(event))
    }
}

impl Waiter for DescriptorEpoll {
    type Sockets = DescriptorSockets;

    fn sockets(&self) -> &DescriptorSockets {
        &self.sockets
    }

    fn set(&self, number: i32, token: u64, _: Interest) -> io::Result<()> {
        self.control(Operation::Add, number, ALL.with(Events::EDGE), token)
    }

    fn set_listener(&self, number: i32, token: u64) -> io::Result<()> {
        self.control(Operation::Add, number, Events::IN, token)
    }

    fn clear_listener(&self, number: i32) -> io::Result<()> {
        self.control(Operation::Delete, number, Events::NONE, 0)
    }

    fn change(&self, _number: i32, _token: u64, _: Interest) -> io::Result<()> {
        // Edges are reported once; there is nothing to switch off.
        Ok(())
    }

    fn clear(&self, _number: i32) {
        // Closing the descriptor, which has no duplicates, removes it.
    }

    fn early(&self) -> bool {
        // Writes to watched streams leave together at the next wait.
        true
    }

    fn find(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let mut found = self.events.borrow_mut();
        let descriptors = self.sockets.descriptors();
        let count = descriptors.epoll_wait(self.set.number(), &mut found, Some(timeout))?;
        let found = found.iter().take(count);
        events.extend(found.map(|found| event(found.data, found.events)));
        Ok(())
    }
}

/// Tidewall's event queue. Its interests belong to the thread that declares them, so the
/// waiting thread must use a host of this kind.
pub struct DescriptorQueue {
    sockets: DescriptorSockets,
    state: RefCell<Queue>,
}

struct Queue {
    found: Box<[DescriptorEvent]>,
    /// By descriptor; an entry that is not a stream is a listener.
    tokens: Vec<Option<(u64, bool)>>,
    /// Listeners reported ready: further connections may wait without an event.
    ready_listeners: Vec<i32>,
}

impl Queue {
    fn set(&mut self, number: i32, token: Option<(u64, bool)>) {
        let Ok(number) = usize::try_from(number) else {
            return;
        };
        if number >= self.tokens.len() {
            self.tokens.resize((number + 1).next_power_of_two(), None);
        }
        if let Some(place) = self.tokens.get_mut(number) {
            *place = token;
        }
    }
}

impl DescriptorQueue {
    /// Creates a host on `stack`.
    ///
    /// # Errors
    /// Those of [`DescriptorSockets::new`].
    pub fn new(stack: &Stack, allocator: Allocator) -> io::Result<Self> {
        Ok(DescriptorQueue {
            sockets: DescriptorSockets::new(stack, allocator, Select::default())?,
            state: RefCell::new(Queue {
                found: vec![DescriptorEvent::default(); EVENTS].into(),
                tokens: Vec::new(),
                ready_listeners: Vec::new(),
            }),
        })
    }

    fn declare(&self, number: i32, interest: Events) -> io::Result<()> {
        let descriptors = self.sockets.descriptors();
        // If it is ready already, that is its first event.
        descriptors.declare_interest(number, interest, None)
    }
}

impl Waiter for DescriptorQueue {
    type Sockets = DescriptorSockets;

    fn sockets(&self) -> &DescriptorSockets {
        &self.sockets
    }

    fn set(&self, number: i32, token: u64, _: Interest) -> io::Result<()> {
        self.state.borrow_mut().set(number, Some((token, false)));
        self.declare(number, ALL)
    }

    fn set_listener(&self, number: i32, token: u64) -> io::Result<()> {
        self.state.borrow_mut().set(number, Some((token, true)));
        self.declare(number, Events::IN)
    }

    fn clear_listener(&self, number: i32) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.set(number, None);
        state.ready_listeners.retain(|&ready| ready != number);
        self.declare(number, Events::NONE)
    }

    fn change(&self, _number: i32, _token: u64, _: Interest) -> io::Result<()> {
        // Events are reported once; there is nothing to switch off.
        Ok(())
    }

    fn clear(&self, number: i32) {
        // Closing the descriptor ends the interest.
        self.state.borrow_mut().set(number, None);
    }

    fn early(&self) -> bool {
        // Writes to watched streams leave together at the next wait.
        true
    }

    fn find(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let Queue {
            found,
            tokens,
            ready_listeners,
        } = &mut *state;
        for number in ready_listeners.drain(..) {
            // A closed one is of no interest any more.
            let _ = self.declare(number, Events::IN);
        }
        let descriptors = self.sockets.descriptors();
        let count = descriptors.get_next_event(found, Some(timeout))?;
        for found in found.iter().take(count) {
            let place = usize::try_from(found.fd).unwrap_or(usize::MAX);
            if let Some(&Some((token, listener))) = tokens.get(place) {
                events.push(event(token, found.events));
                if listener {
                    ready_listeners.push(found.fd);
                }
            }
        }
        Ok(())
    }
}
