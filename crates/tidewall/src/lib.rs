//! A user-space network stack for Linux servers: UDP and TCP sockets over AF_XDP that
//! keep serving under overload.
//!
//! The XDP program in the driver decides which socket owns a frame, and whether that
//! socket has room. The thread that receives runs the rest of the protocol. Excess load
//! therefore costs a drop in the driver, and not the time of the application.
//!
//! # When to use it
//!
//! Use it for a service that must keep its rate during a flood: DNS, telemetry, VoIP,
//! game or web servers. One process owns the queues of an interface, or a few processes
//! share them through `tidewalld`.
//!
//! Do not use it for:
//!
//! - a program that needs no more than kernel sockets deliver;
//! - a service whose peers are on the same host: those connections stay with the kernel;
//! - a process without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON, unless a
//!   manager runs ([`Stack::managed`]).
//!
//! # Example
//!
//! A UDP server that echoes every datagram, from the address to which it was sent:
//!
//! ```no_run
//! use tidewall::{EmbeddedConfig, Stack, UdpSocket};
//!
//! fn main() -> std::io::Result<()> {
//!     let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
//!     let socket = UdpSocket::bind(&stack, ([0, 0, 0, 0], 7).into())?;
//!     loop {
//!         // The closure reads each datagram in its frame and queues the reply.
//!         socket.recv_batch(64, |datagram| {
//!             let reply = socket.queue_from(datagram.payload, datagram.local, datagram.source);
//!             if let Err(error) = reply {
//!                 eprintln!("echo: {error}");
//!             }
//!         })?;
//!         // All queued replies leave in one call.
//!         socket.flush()?;
//!     }
//! }
//! ```
//!
//! # Main types
//!
//! | type | purpose |
//! |---|---|
//! | [`Stack`], [`EmbeddedConfig`], [`TapConfig`] | owns the queues of an interface, and their configuration |
//! | [`UdpSocket`] | sends and receives datagrams, one by one or in batches |
//! | [`TcpListener`], [`TcpStream`] | TCP, with the calls of the standard library |
//! | [`AcpListener`], [`AcpStream`] | TCP connections that carry whole frames |
//! | [`Selector`] | readiness of many sockets |
//! | [`Descriptors`], [`OpenFile`] | the calls of POSIX, for programs written for descriptors |
//! | [`snapshot`], [`control`] | the state of a live stack, as an operator sees it |
//! | [`tuning`] | parameters for comparisons and measurements, with their bounds |
//!
//! # Ways to wait
//!
//! | way | use it for |
//! |---|---|
//! | a call that blocks, with a timeout if needed | one thread per socket |
//! | [`Stack::wait`] | a few UDP sockets, by priority |
//! | [`Selector`] | many connections, in a program written for this stack |
//! | `select`, `poll` and `epoll_wait` of [`Descriptors`] | programs written for Linux, with kernel files among the sockets |
//! | `get_next_event` of [`Descriptors`] | threads that share a table and need events only |
//! | `mio` (a feature) | event loops that sleep in the kernel |
//!
//! In each of these ways one waiting thread at a time also polls the device for all others.
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `atm` | virtual circuits: AAL5 over ATM, and signalling |
//! | `forward` | forwarding between interfaces, the base of a switch |
//! | `mio` | `mio::event::Source` for the sockets |
//! | `testutil` | stacks on an in-memory link and a virtual clock, for tests and measurements |
//!
//! # Further reading
//!
//! LRP §3 explains protocol processing in the receiver's context. docs/deviations.md lists
//! the differences from Linux sockets.
#![deny(unsafe_code)]

mod descriptors;
mod open_file;
mod stack;

pub mod descriptor {
    //! Descriptors: small integers that name open files.
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
    pub use tidewall_socket::tcp::{
        AcpListener, AcpStream, Congestion, ConnectOptions, FastOpenFailure, FastOpenKeys, Framing,
        Info, Keepalive, ListenOptions, Notification, ReceivedFrame, SendFlags, SendingTimes,
        State, StreamOptions, Sysctl, TcpListener, TcpStream, TimestampEvent, TimestampKeys,
        Timestamping,
    };
}

pub mod tuning {
    //! Parameters of a stack for comparisons, measurements and operators, with their bounds.
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
/// Waits for many sockets with one call:
///
/// ```no_run
/// use tidewall::tcp::Interest;
/// use tidewall::{EmbeddedConfig, Selector, Stack, TcpListener};
///
/// const LISTENER: u64 = 0;
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let listener = TcpListener::bind(&stack, ([0, 0, 0, 0], 80).into())?;
/// let selector = Selector::new(&stack)?;
/// selector.add(&listener, LISTENER, Interest::READABLE)?;
/// let mut connections = Vec::new();
/// let mut events = Vec::new();
/// loop {
///     selector.wait(&mut events, None)?;
///     for event in &events {
///         if event.token == LISTENER {
///             let (stream, _) = listener.accept()?;
///             let token = connections.len() as u64 + 1;
///             selector.add(&stream, token, Interest::READABLE)?;
///             connections.push(stream);
///         }
///     }
/// }
/// # #[allow(unreachable_code)]
/// # std::io::Result::Ok(())
/// ```
pub use tidewall_readiness::Selector;
pub use tidewall_socket::{
    AcpListener, AcpStream, BindOptions, ConnectOptions, ListenOptions, MtuDiscover, Received,
    StreamOptions, TcpListener, TcpStream, UdpSocket, listener_holders,
};
pub use tidewall_stack::clock::{Sleep, VirtualTime};
pub use tidewall_stack::receiver::TrafficClass;
/// Configures [`Stack::embedded`] and [`Stack::managed`]:
///
/// ```no_run
/// use std::time::Duration;
/// use tidewall::{EmbeddedConfig, Stack};
///
/// let config = EmbeddedConfig::new("eth0")
///     .frames(16_384)
///     .spin(Duration::from_micros(50))
///     .tcp_memory(1 << 30);
/// let stack = Stack::embedded(config)?;
/// # std::io::Result::Ok(())
/// ```
pub use tidewall_stack::stack::EmbeddedConfig;
#[cfg(any(test, feature = "testutil"))]
pub use tidewall_stack::stack::MemoryConfig;
pub use tidewall_stack::stack::TapConfig;

// The examples of README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
