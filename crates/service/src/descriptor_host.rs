//! The ways of waiting for Tidewall's sockets by number that keep their own
//! account of what is watched: an epoll set, edge-triggered, and the event queue
//! of Banga, Mogul and Druschel (USENIX 1999).

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_socket::Stack;
use tidewall_socket::descriptor::{Allocator, Flags};
use tidewall_socket::readiness::{DescriptorEvent, EpollEvent, Events, Operation};

use crate::descriptor_sockets::{
    DescriptorListener, DescriptorSockets, DescriptorStream, Owned, Select,
};
use crate::sockets::Sockets;
use crate::stream::{Event, Interest, Progress, StreamHost};

/// Events taken with one call.
const EVENTS: usize = 512;
/// What a stream is watched for, once and for all: each change is told once.
const ALL: Events = Events::IN.with(Events::OUT).with(Events::RDHUP);

/// What a server is told.
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

impl fmt::Debug for DescriptorEpoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorEpoll").finish_non_exhaustive()
    }
}

impl DescriptorEpoll {
    /// A host on `stack`, with an epoll set of its own.
    ///
    /// # Errors
    /// What [`tidewall_socket::Descriptors::epoll_create1`] reports.
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

impl StreamHost for DescriptorEpoll {
    type Listener = DescriptorListener;
    type Stream = DescriptorStream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<DescriptorListener> {
        self.sockets.listen(address, backlog)
    }

    fn local_address(&self, listener: &DescriptorListener) -> io::Result<SocketAddr> {
        self.sockets.local_address(listener)
    }

    fn watch_listener(&self, listener: &DescriptorListener, token: u64) -> io::Result<()> {
        self.control(Operation::Add, listener.number(), Events::IN, token)
    }

    fn unwatch_listener(&self, listener: &DescriptorListener) -> io::Result<()> {
        self.control(Operation::Delete, listener.number(), Events::NONE, 0)
    }

    fn accept(
        &self,
        listener: &DescriptorListener,
    ) -> io::Result<Option<(DescriptorStream, SocketAddr)>> {
        self.sockets.accept(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(DescriptorStream, Progress)> {
        self.sockets.connect(address)
    }

    fn watch_early(&self) -> bool {
        // What is written to watched streams leaves together at the next wait.
        true
    }

    fn watch(&self, stream: &DescriptorStream, token: u64, _wanted: Interest) -> io::Result<()> {
        let events = ALL.with(Events::EDGE);
        self.control(Operation::Add, stream.number(), events, token)
    }

    fn rewatch(&self, _stream: &DescriptorStream, _token: u64, _: Interest) -> io::Result<()> {
        // Edges come once; there is nothing to switch off.
        Ok(())
    }

    fn unwatch(&self, _stream: &DescriptorStream) {
        // Closing the descriptor, which has no duplicates, takes it out.
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        let mut found = self.events.borrow_mut();
        let descriptors = self.sockets.descriptors();
        match descriptors.epoll_wait(self.set.number(), &mut found, Some(timeout)) {
            Ok(count) => {
                let found = found.iter().take(count);
                events.extend(found.map(|found| event(found.data, found.events)));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Tidewall's event queue. Its interests are those of the thread that declares
/// them: a host of this kind is used by the thread that waits.
pub struct DescriptorQueue {
    sockets: DescriptorSockets,
    state: RefCell<Queue>,
}

struct Queue {
    found: Box<[DescriptorEvent]>,
    /// By descriptor; what is not a stream is a listener.
    tokens: Vec<Option<(u64, bool)>>,
    /// Listeners that were told of: connections may be left, which are no news.
    told: Vec<i32>,
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

impl fmt::Debug for DescriptorQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorQueue").finish_non_exhaustive()
    }
}

impl DescriptorQueue {
    /// A host on `stack`.
    ///
    /// # Errors
    /// As [`DescriptorSockets::new`].
    pub fn new(stack: &Stack, allocator: Allocator) -> io::Result<Self> {
        Ok(DescriptorQueue {
            sockets: DescriptorSockets::new(stack, allocator, Select::default())?,
            state: RefCell::new(Queue {
                found: vec![DescriptorEvent::default(); EVENTS].into(),
                tokens: Vec::new(),
                told: Vec::new(),
            }),
        })
    }

    fn declare(&self, number: i32, interest: Events) -> io::Result<()> {
        let descriptors = self.sockets.descriptors();
        // What it is ready for already is its first event.
        descriptors.declare_interest(number, interest, None)
    }
}

impl StreamHost for DescriptorQueue {
    type Listener = DescriptorListener;
    type Stream = DescriptorStream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<DescriptorListener> {
        self.sockets.listen(address, backlog)
    }

    fn local_address(&self, listener: &DescriptorListener) -> io::Result<SocketAddr> {
        self.sockets.local_address(listener)
    }

    fn watch_listener(&self, listener: &DescriptorListener, token: u64) -> io::Result<()> {
        let number = listener.number();
        self.state.borrow_mut().set(number, Some((token, true)));
        self.declare(number, Events::IN)
    }

    fn unwatch_listener(&self, listener: &DescriptorListener) -> io::Result<()> {
        let number = listener.number();
        let mut state = self.state.borrow_mut();
        state.set(number, None);
        state.told.retain(|&told| told != number);
        self.declare(number, Events::NONE)
    }

    fn accept(
        &self,
        listener: &DescriptorListener,
    ) -> io::Result<Option<(DescriptorStream, SocketAddr)>> {
        self.sockets.accept(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(DescriptorStream, Progress)> {
        self.sockets.connect(address)
    }

    fn watch_early(&self) -> bool {
        // What is written to watched streams leaves together at the next wait.
        true
    }

    fn watch(&self, stream: &DescriptorStream, token: u64, _wanted: Interest) -> io::Result<()> {
        let number = stream.number();
        self.state.borrow_mut().set(number, Some((token, false)));
        self.declare(number, ALL)
    }

    fn rewatch(&self, _stream: &DescriptorStream, _token: u64, _: Interest) -> io::Result<()> {
        // Events come once; there is nothing to switch off.
        Ok(())
    }

    fn unwatch(&self, stream: &DescriptorStream) {
        // Closing the descriptor ends the interest.
        self.state.borrow_mut().set(stream.number(), None);
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        let mut state = self.state.borrow_mut();
        let Queue {
            found,
            tokens,
            told,
        } = &mut *state;
        for number in told.drain(..) {
            // One that has been closed is of no interest any more.
            let _ = self.declare(number, Events::IN);
        }
        let descriptors = self.sockets.descriptors();
        let count = match descriptors.get_next_event(found, Some(timeout)) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        for found in found.iter().take(count) {
            let place = usize::try_from(found.fd).unwrap_or(usize::MAX);
            if let Some(&Some((token, listener))) = tokens.get(place) {
                events.push(event(token, found.events));
                if listener {
                    told.push(found.fd);
                }
            }
        }
        Ok(())
    }
}
