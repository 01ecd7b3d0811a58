//! Where the processor time of an event loop goes, without a profiler.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_sys::thread_time;

use crate::counters::Counters;
use crate::stream::{Event, Interest, Progress, StreamHost};

/// A host that counts the processor time of its waiting calls, and of those that
/// allocate descriptors, in [`Counters`]: for machines on which `perf` cannot.
///
/// It costs two readings of a clock for each such call, about half a
/// microsecond; without counters nothing.
pub struct Timed<'a, H> {
    host: &'a H,
    counters: Option<&'a Counters>,
}

impl<'a, H> Timed<'a, H> {
    /// `host`, counted in `counters` if there are any.
    pub fn new(host: &'a H, counters: Option<&'a Counters>) -> Self {
        Timed { host, counters }
    }

    fn timed<T>(&self, waits: bool, call: impl FnOnce(&H) -> T) -> T {
        let Some(counters) = self.counters else {
            return call(self.host);
        };
        let before = thread_time();
        let result = call(self.host);
        let after = thread_time();
        counters.timed(waits, after.saturating_sub(before), after);
        result
    }
}

impl<H: StreamHost> StreamHost for Timed<'_, H> {
    type Listener = H::Listener;
    type Stream = H::Stream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<H::Listener> {
        self.host.listen(address, backlog)
    }

    fn local_address(&self, listener: &H::Listener) -> io::Result<SocketAddr> {
        self.host.local_address(listener)
    }

    fn watch_listener(&self, listener: &H::Listener, token: u64) -> io::Result<()> {
        self.host.watch_listener(listener, token)
    }

    fn unwatch_listener(&self, listener: &H::Listener) -> io::Result<()> {
        self.host.unwatch_listener(listener)
    }

    fn accept(&self, listener: &H::Listener) -> io::Result<Option<(H::Stream, SocketAddr)>> {
        self.timed(false, |host| host.accept(listener))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(H::Stream, Progress)> {
        self.timed(false, |host| host.connect(address))
    }

    fn watch_early(&self) -> bool {
        self.host.watch_early()
    }

    fn watch(&self, stream: &H::Stream, token: u64, interest: Interest) -> io::Result<()> {
        self.host.watch(stream, token, interest)
    }

    fn rewatch(&self, stream: &H::Stream, token: u64, interest: Interest) -> io::Result<()> {
        self.host.rewatch(stream, token, interest)
    }

    fn unwatch(&self, stream: &H::Stream) {
        self.host.unwatch(stream);
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        self.timed(true, |host| host.wait(events, timeout))
    }
}
