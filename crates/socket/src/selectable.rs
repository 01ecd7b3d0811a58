//! Sockets that a [`Selector`](tidewall_readiness::Selector) can watch.

use tidewall_readiness::{Selectable, Selected};

use crate::{TcpListener, TcpStream, UdpSocket};

macro_rules! selectable {
    ($($socket:ident),+) => {$(
        impl Selectable for $socket {
            fn file(&self) -> Selected<'_> {
                Selected(self)
            }
        }
    )+};
}

selectable!(TcpStream, TcpListener, UdpSocket);
