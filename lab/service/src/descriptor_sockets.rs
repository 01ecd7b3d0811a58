//! Tidewall's sockets by descriptor ([`Descriptors`]), and the ways to wait for them: the
//! paper's `select` and the classical one, and `poll`, under
//! [`SelectHost`](crate::SelectHost) and [`PollHost`](crate::PollHost).

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tidewall::descriptor::{Allocator, Flags};
use tidewall::readiness::{DescriptorSet, EpollEvent, Events, Operation, PollFd};
use tidewall::{Descriptors, ListenOptions, OpenFile, Stack, StreamOptions};

use crate::poll_host::{Entry, PollCall};
use crate::select_host::SelectCall;
use crate::sockets::Sockets;
use crate::stream::{Progress, Stream};

/// Most descriptors.
const LIMIT: u32 = 1 << 21;

/// The descriptors that `select` examines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// Those newly selected, hinted, or ready last time (Banga & Mogul, USENIX 1998).
    #[default]
    Hinted,
    /// Everything, before and after sleeping: the comparator.
    Classical,
}

/// Tidewall's sockets by descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorSockets {
    descriptors: Descriptors,
    select: Select,
    /// An epoll set without waiters. It keeps every socket watched. Unwatched sockets are
    /// read and written in another way, for programs that do not wait; the classical
    /// `select` watches them only while it sleeps, and the comparison would include that
    /// difference.
    keeper: Option<Rc<Owned>>,
}

impl DescriptorSockets {
    /// Creates a descriptor table of `stack`; `allocator` finds the lowest free
    /// descriptor.
    ///
    /// # Errors
    /// Those of [`tidewall::readiness::Descriptors::epoll_create1`], for the classical `select`.
    pub fn new(stack: &Stack, allocator: Allocator, select: Select) -> io::Result<Self> {
        let mut sockets = DescriptorSockets {
            descriptors: Descriptors::with_allocator(stack, LIMIT, allocator),
            select,
            keeper: None,
        };
        if select == Select::Classical {
            let set = sockets.descriptors.epoll_create1(Flags::CLOEXEC)?;
            sockets.keeper = Some(Rc::new(sockets.owned(set)));
        }
        Ok(sockets)
    }

    fn stream(&self, number: i32) -> io::Result<Owned> {
        let stream = self.owned(number);
        if let Some(keeper) = &self.keeper {
            let event = EpollEvent {
                events: Events::EDGE,
                data: 0,
            };
            let set = keeper.number;
            self.descriptors
                .epoll_ctl(set, Operation::Add, number, Some(event))?;
        }
        Ok(stream)
    }

    /// Returns the table.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Wraps a descriptor, which is closed on drop.
    pub(crate) fn owned(&self, number: i32) -> Owned {
        Owned {
            descriptors: self.descriptors.clone(),
            number,
        }
    }
}

/// A listening socket or a connection, closed on drop.
pub struct Owned {
    descriptors: Descriptors,
    number: i32,
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

impl Owned {
    /// Returns its descriptor.
    pub fn number(&self) -> i32 {
        self.number
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Nothing else closes it.
        let _ = self.descriptors.close(self.number);
    }
}

impl Stream for Owned {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.descriptors.read(self.number, buffer)
    }

    fn write(&self, bytes: &[u8], _more: bool) -> io::Result<usize> {
        // Nothing leaves before the turn is over.
        self.descriptors.write(self.number, bytes)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.descriptors.shutdown(self.number, Shutdown::Write)
    }
}

impl Sockets for DescriptorSockets {
    type Listener = Owned;
    type Stream = Owned;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Owned> {
        let options = ListenOptions {
            backlog,
            stream: StreamOptions {
                nodelay: true,
                ..StreamOptions::default()
            },
            ..ListenOptions::default()
        };
        let number = self.descriptors.listen(address, options, Flags::NONBLOCK)?;
        Ok(self.owned(number))
    }

    fn local_address(&self, listener: &Owned) -> io::Result<SocketAddr> {
        let address = self.descriptors.local_address(listener.number)?;
        address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn accept(&self, listener: &Owned) -> io::Result<Option<(Owned, SocketAddr)>> {
        match self.descriptors.accept4(listener.number, Flags::NONBLOCK) {
            Ok((number, peer)) => {
                let stream = self.stream(number)?;
                let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                Ok(Some((stream, peer.unwrap_or(nowhere))))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(Owned, Progress)> {
        let number = self.descriptors.connect(address, Flags::NONBLOCK)?;
        let stream = self.stream(number)?;
        if let OpenFile::Stream(socket) = &*self.descriptors.file(number)? {
            socket.set_nodelay(true)?;
        }
        Ok((stream, Progress::Begun))
    }

    fn listener_number(&self, listener: &Owned) -> i32 {
        listener.number
    }

    fn stream_number(&self, stream: &Owned) -> i32 {
        stream.number
    }
}

impl SelectCall for DescriptorSockets {
    fn select(
        &self,
        nfds: i32,
        read: &mut DescriptorSet,
        write: &mut DescriptorSet,
        timeout: Duration,
    ) -> io::Result<usize> {
        let (read, write, timeout) = (Some(read), Some(write), Some(timeout));
        match self.select {
            Select::Hinted => self.descriptors.select(nfds, read, write, None, timeout),
            Select::Classical => self
                .descriptors
                .classical_select(nfds, read, write, None, timeout),
        }
    }
}

impl Entry for PollFd {
    fn new(descriptor: i32, events: i16) -> Self {
        let events = Events::from_bits(u32::from(events.cast_unsigned()));
        PollFd::new(descriptor, events)
    }

    fn descriptor(&self) -> i32 {
        self.fd
    }

    fn set_events(&mut self, events: i16) {
        self.events = events;
    }

    fn found(&self) -> i16 {
        self.revents
    }
}

impl PollCall for DescriptorSockets {
    type Entry = PollFd;

    fn poll(&self, entries: &mut [PollFd], timeout: Duration) -> io::Result<usize> {
        self.descriptors.poll(entries, Some(timeout))
    }
}
