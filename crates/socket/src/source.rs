//! Sockets in event loops on `mio`.

use std::io;

use mio::event;
use mio::{Interest, Registry, Token};

use crate::{TcpListener, TcpStream, UdpSocket};

/// Makes a socket type a source.
macro_rules! source {
    ($socket:ident, $what:literal) => {
        #[doc = concat!($what, " in an event loop on `mio`.")]
        ///
        /// Events are edge-triggered: after one, call until EAGAIN, on a socket that
        /// `set_nonblocking` has made nonblocking. Errors and ends are reported as
        /// readable and writable. mio's other flags (`is_read_closed`, `is_error`, …) are
        /// set for kernel connections alone. A socket is in one `Poll` at a time;
        /// dropping it deregisters it.
        ///
        /// # Errors
        /// EEXIST for a second registration, ENOENT without one; the errors of epoll and
        /// of creating an eventfd (EMFILE, ENOSPC, …).
        impl event::Source for $socket {
            fn register(
                &mut self,
                registry: &Registry,
                token: Token,
                interests: Interest,
            ) -> io::Result<()> {
                let slot = &self.event_loop;
                slot.register(&self.stack, self, registry, token, interests)
            }

            fn reregister(
                &mut self,
                registry: &Registry,
                token: Token,
                interests: Interest,
            ) -> io::Result<()> {
                self.event_loop.reregister(registry, token, interests)
            }

            fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
                self.event_loop.deregister(registry)
            }
        }
    };
}

source!(TcpStream, "A TCP connection");
source!(TcpListener, "A TCP listener");
source!(UdpSocket, "A UDP socket");
