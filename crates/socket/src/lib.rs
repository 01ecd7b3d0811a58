//! Sockets: the API that applications use.
//!
//! Lives here: [`Stack`] (a device and everything above it, inside the
//! application's own process), [`UdpSocket`], [`AtmSocket`], the kernel sockets that hold
//! their ports, routes and neighbours as the kernel knows them, and what an
//! operator sees of a live stack ([`snapshot`], [`control`]). Does not live
//! here: packet formats, protocol rules, demultiplexing.
//!
//! # Ways to wait
//!
//! | way | for whom |
//! |---|---|
//! | a call that blocks, with a timeout if need be | a thread a socket |
//! | [`Stack::wait`] | a few UDP sockets, by priority |
//! | [`Selector`] | many connections, in a program written for this stack |
//! | `select`, `poll` and `epoll_wait` of [`Descriptors`] | programs written for Linux, kernel files among the sockets |
//! | `get_next_event` of [`Descriptors`] | threads that share a table and want events alone |
//! | `mio` (a feature) | event loops that sleep in the kernel |
//!
//! One thread at a time that waits, in whichever way, also polls the device for all.
//!
//! Read first: LRP §3 (protocol processing in the receiver's context);
//! docs/deviations.md for the differences from Linux sockets.
//!
//! ```text
//!  channel ──► protocol ──► application        (in the thread that calls recv)
//!     ▲                          │
//!   round ◄── poll when empty    └──► transmit ring, or the kernel socket
//! ```
#![deny(unsafe_code)]

mod atm;
mod causes;
mod channel_frame;
mod channels;
mod clock;
mod comparators;
pub mod control;
mod core;
pub mod descriptor;
mod device_owner;
mod endpoint;
pub mod forward;
mod helper;
mod host;
mod ip;
mod kernel;
mod kernel_calls;
mod link;
mod lock;
mod netdev;
mod observe;
mod output;
mod protocol;
#[allow(unsafe_code)]
pub(crate) mod raw;
pub mod readiness;
mod receiver;
pub mod snapshot;
mod stack;
pub mod tcp;
mod timeout;
mod timers;
pub mod trace;
mod udp;
/// What comparisons, measurements and operators set of a stack, and in which bounds.
pub mod tuning {
    pub use crate::stack::ReceiveControl;
    pub use tidewall_receive::architecture::Architecture;
    pub use tidewall_receive::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, PolicyKind};
}
pub mod listener_holders {
    //! What processes say of a listening kernel socket that they share.
    pub use crate::tcp::listener::holders::{
        Sharer, Watcher, another_listens, is_owned, note_accepting, note_inherited, other_user,
    };
}
mod wait_queue;
mod work;

pub use atm::{
    AtmControl, AtmListener, AtmOptions, AtmReceived, AtmSocket, CallOptions, Circuit, Nsap,
    Opaque, Rates, Sap, Side, circuit_counters,
};
pub use clock::{Sleep, VirtualTime};
pub use descriptor::{Descriptors, OpenFile};
pub use receiver::TrafficClass;
#[cfg(any(test, feature = "testutil"))]
pub use stack::MemoryConfig;
pub use stack::{EmbeddedConfig, Stack, TapConfig};
pub use tcp::{
    AcpListener, AcpStream, ConnectOptions, ListenOptions, Selector, StreamOptions, TcpListener,
    TcpStream,
};
pub use tidewall_manager::XdpMode;
pub use udp::{BindOptions, MtuDiscover, Received, UdpSocket};

// The examples of README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
