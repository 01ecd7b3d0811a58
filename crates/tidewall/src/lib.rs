//! Sockets on Tidewall, a user-space network stack for Linux servers.
//!
//! A [`Stack`] takes over the receive queues of an interface, in the application's own
//! process or from `tidewalld`. [`UdpSocket`], [`TcpListener`] and [`TcpStream`] are made
//! on it. What operators see of a live stack is in [`snapshot`] and [`control`].
//!
//! # Ways to wait
//!
//! | way | use it for |
//! |---|---|
//! | a call that blocks, with a timeout if needed | one thread per socket |
//! | [`Stack::wait`] | a few UDP sockets, by priority |
//! | [`Selector`] | many connections, in a program written for this stack |
//! | `select`, `poll` and `epoll_wait` of [`Descriptors`] | programs written for Linux, kernel files among the sockets |
//! | `get_next_event` of [`Descriptors`] | threads that share a table and need events only |
//! | `mio` (a feature) | event loops that sleep in the kernel |
//!
//! One waiting thread at a time, in any of these ways, also polls the device for all.
//!
//! Read first: LRP §3 (protocol processing in the receiver's context);
//! docs/deviations.md for the differences from Linux sockets.
#![deny(unsafe_code)]

mod descriptors;
mod open_file;
mod stack;

pub mod descriptor {
    //! Descriptors: small numbers for open files.
    pub use crate::{Descriptors, OpenFile};
    pub use tidewall_readiness::descriptor::{Allocator, CLOSE_RANGE_CLOEXEC, Flags};
    // For the benches and tests that compare tables.
    #[doc(hidden)]
    pub use tidewall_readiness::descriptor::Table;
    pub use tidewall_socket::pieces::{
        MSG_DONTWAIT, MSG_EOR, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL,
        MSG_ZEROCOPY,
    };
}
#[cfg(feature = "forward")]
pub use tidewall_forward as forward;
pub use tidewall_readiness as readiness;
pub use tidewall_stack::{StackHandle, control, snapshot, trace};

pub mod tcp {
    //! TCP: options, information, events.
    pub use tidewall_readiness::{Event, Interest, Selectable, Selector};
    pub use tidewall_socket::tcp::*;
}

pub mod tuning {
    //! What comparisons, measurements and operators set of a stack, and in which bounds.
    pub use tidewall_receive::architecture::Architecture;
    pub use tidewall_receive::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, PolicyKind};
    pub use tidewall_stack::stack::ReceiveControl;
}

pub use descriptors::Descriptors;
pub use open_file::OpenFile;
pub use stack::Stack;
#[cfg(feature = "atm")]
pub use tidewall_circuits::{
    AtmControl, AtmListener, AtmOptions, AtmReceived, AtmSocket, CallOptions, Circuit, Nsap,
    Opaque, Rates, Sap, Side, circuit_counters,
};
pub use tidewall_manager::XdpMode;
pub use tidewall_readiness::Selector;
pub use tidewall_socket::{
    AcpListener, AcpStream, BindOptions, ConnectOptions, ListenOptions, MtuDiscover, Received,
    StreamOptions, TcpListener, TcpStream, UdpSocket, listener_holders,
};
pub use tidewall_stack::clock::{Sleep, VirtualTime};
pub use tidewall_stack::receiver::TrafficClass;
#[cfg(any(test, feature = "testutil"))]
pub use tidewall_stack::stack::MemoryConfig;
pub use tidewall_stack::stack::{EmbeddedConfig, TapConfig};

// The examples of README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
