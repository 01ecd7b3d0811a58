//! Whose a channel is.

use std::sync::Arc;

use crate::tcp::connection::ConnectionInner;
use crate::tcp::listener::ListenerInner;
use crate::udp::inner::SocketInner;

/// What the stack does with a channel's frames.
#[derive(Clone, Default)]
pub(crate) enum Owner {
    /// The channel is closed.
    #[default]
    None,
    /// A UDP socket's.
    Udp(Arc<SocketInner>),
    /// A TCP listener's: SYNs, and what ends a handshake.
    Listener(Arc<ListenerInner>),
    /// A TCP connection's own.
    Connection(Arc<ConnectionInner>),
    /// All connections' that have none of their own.
    Shared,
    /// All connections' that are in TIME-WAIT.
    TimeWait,
    /// Open, and waiting for the next connection.
    Pooled,
}

impl Owner {
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Owner::None)
    }

    pub(crate) fn udp(&self) -> Option<&Arc<SocketInner>> {
        match self {
            Owner::Udp(socket) => Some(socket),
            _ => None,
        }
    }
}
