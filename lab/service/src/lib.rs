//! Services: application code written once and run on either stack.
//!
//! Lives here:
//! - the interface between a service and a stack, for datagrams ([`Host`], [`Datagrams`])
//!   and for connections ([`StreamHost`], [`Stream`])
//! - its implementations ([`tidewall`], [`circuits`] and [`linux`], [`tidewall_stream`],
//!   [`linux_stream`])
//! - the older ways to wait for connections ([`SelectHost`], [`PollHost`])
//! - the event loop of echo, acknowledge and discard services ([`serve`], and
//!   [`serve_events`] for an ordinary program)
//! - a web server and a forwarding proxy ([`http`])
//! - IP over ATM ([`ip_over_atm`])
//! - the shared page of counters ([`counters`])
//!
//! Does not live here: load, test beds and anything that measures. A comparison is honest
//! only while the loop knows nothing of which stack it runs on; keep it so.
//!
//! Read first: RFC 9112 and epoll(7) for connections; LRP (Druschel & Banga, OSDI 1996)
//! §4; recv(2), recvmmsg(2), socket(7) on SO_BUSY_POLL; Documentation/networking/napi.rst
//! on SO_PREFER_BUSY_POLL.
//!
//! ```text
//!  serve: for each service, by priority ── receive ≤ batch ─► work ─► reply ─► flush
//!              │                              ▲
//!              └── nothing came: wait ────────┴── Host: tidewall │ linux
//! ```
#![deny(unsafe_code)]

pub mod circuits;
pub mod counters;
pub mod descriptor_host;
pub mod descriptor_sockets;
mod event_loop;
mod host;
pub mod http;
pub mod ip_over_atm;
pub mod linux;
pub mod linux_sockets;
pub mod linux_stream;
mod poll_host;
mod select_host;
mod services;
mod sockets;
mod stream;
pub mod tidewall;
pub mod tidewall_stream;
mod work;

pub use counters::{Counters, Reader, ServiceCounts};
pub use event_loop::serve_events;
pub use host::{Datagrams, Host, Peer};
pub use poll_host::{Entry, PollCall, PollHost};
pub use select_host::{SelectCall, SelectHost};
pub use services::{BATCH, Kind, STOP_WITHIN, ServiceSpec, serve};
pub use sockets::{Sockets, Waiter};
pub use stream::{Event, Interest, Progress, Stream, StreamHost};
pub use work::multiply;
