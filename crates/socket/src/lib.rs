//! Sockets: the API that applications use.
//!
//! Lives here: [`Stack`] (a device and everything above it, inside the
//! application's own process), [`UdpSocket`], the kernel sockets that hold
//! their ports, routes and neighbours as the kernel knows them, and what an
//! operator sees of a live stack ([`snapshot`], [`control`]). Does not live
//! here: packet formats, protocol rules, demultiplexing.
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

mod channels;
mod comparators;
pub mod control;
pub mod descriptor;
mod device_owner;
mod endpoint;
mod host;
mod ip;
mod kernel;
mod kernel_calls;
mod link;
mod lock;
mod netdev;
#[allow(unsafe_code)]
pub(crate) mod raw;
pub mod readiness;
mod receiver;
pub mod snapshot;
mod stack;
pub mod tcp;
pub mod trace;
mod udp;
mod virtual_time;
mod wait_queue;

pub use descriptor::{Descriptors, OpenFile};
pub use receiver::TrafficClass;
pub use stack::{EmbeddedConfig, MemoryConfig, Stack, TapConfig};
pub use tcp::{ConnectOptions, ListenOptions, Selector, StreamOptions, TcpListener, TcpStream};
pub use tidewall_manager::XdpMode;
pub use tidewall_receive::architecture::Architecture;
pub use tidewall_receive::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, PolicyKind};
pub use udp::{BindOptions, MtuDiscover, Received, UdpSocket};
pub use virtual_time::{Sleep, VirtualTime};
