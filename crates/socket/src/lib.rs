//! Sockets of UDP and TCP.
//!
//! Lives here: [`UdpSocket`], [`TcpListener`], [`TcpStream`], the kernel sockets that hold
//! their ports, and the state of both protocols ([`udp::Udp`], [`tcp::Tcp`]). A stack
//! registers the protocols when it starts. Does not live here: packet formats, protocol
//! rules, demultiplexing, readiness.
//!
//! Read first: LRP §3 (protocol processing in the receiver's context);
//! docs/deviations.md for the differences from Linux sockets.
#![deny(unsafe_code)]

pub mod pieces;
mod selectable;
#[cfg(feature = "mio")]
mod source;
pub mod tcp;
pub mod udp;

pub mod listener_holders {
    //! Coordination of the processes that share a listening kernel socket.
    pub use crate::tcp::listener::holders::{
        Sharer, Watcher, another_listens, is_owned, note_accepting, note_inherited, other_user,
    };
}

pub use tcp::{
    AcpListener, AcpStream, ConnectOptions, ListenOptions, StreamOptions, TcpListener, TcpStream,
};
pub use udp::{BindOptions, MtuDiscover, Received, UdpSocket};

#[cfg(test)]
mod testing {
    //! Support for unit tests.

    use std::io;
    use std::sync::Arc;

    use tidewall_stack::protocol::Protocol;
    use tidewall_stack::stack::Start;

    use crate::tcp::Tcp;
    use crate::udp::Udp;

    /// The protocols of this crate.
    pub fn protocols(start: Start<'_>) -> io::Result<Vec<Arc<dyn Protocol>>> {
        Ok(vec![Arc::new(Tcp::new(start)?), Arc::new(Udp::default())])
    }
}
