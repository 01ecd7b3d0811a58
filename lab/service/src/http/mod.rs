//! A web server of static files, on either stack.
//!
//! Lives here: HTTP/1.0 and 1.1 (RFC 9110, 9112) with keep-alive, pipelining, ranges and
//! conditional requests; the files of a directory; one event loop, on one thread, over
//! [`StreamHost`]. Does not live here: anything that knows which stack it runs on. The
//! HTTP part is sans-I/O ([`connection`]), and [`files`] deals with the file system.
//! [`serve`] joins the two to sockets, in the event loop (`engine`, `listener`) that the
//! proxy uses, too.
//!
//! Read first: RFC 9112 §§2–9 (messages, connections), RFC 9110 §§13–15
//! (conditions, ranges, status codes).
//!
//! Limits bound what one client can use:
//! - the bytes of a head (431), of its target (414) and of a request's content (413)
//! - the time for a request (408, slowloris), without progress, and between requests
//! - the work for one connection before the others run
//! - the number of connections; if there are too many, idle ones make room

pub mod condition;
pub mod connection;
mod engine;
pub mod entry;
pub mod files;
mod link;
mod listener;
pub mod log;
mod pace;
pub mod path;
pub mod proxy;
pub mod range;
mod reply;
pub mod request;
mod respond;
mod server;
pub mod site;
pub mod status;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use listener::ClientConnection;
pub use log::Log;
pub use server::serve;

#[cfg(doc)]
use crate::StreamHost;

/// The limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Bytes of a request's head, its lines and fields; beyond, 431.
    pub head_bytes: usize,
    /// Bytes of a request's target; beyond, 414.
    pub target_bytes: usize,
    /// Bytes of a request's content, which is discarded; beyond, 413.
    pub content_bytes: u64,
    /// Most concurrent connections.
    pub connections: usize,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Time for a request to become complete, from its first byte on, and for a
    /// connection's first request from the beginning; then 408.
    pub request: Duration,
    /// Time between a response and the next request.
    pub idle: Duration,
    /// How far, in time, the peer may fall behind `min_rate`. A peer that moves no byte
    /// for this long is disconnected, and so is one that moves too few.
    pub stall: Duration,
    /// Least rate at which a peer must read responses, and a proxy's clients must send
    /// content, bytes/s, as in Apache's `RequestReadTimeout`.
    pub min_rate: u32,
    /// Time for current responses once the server is to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes: 16 * 1024,
            target_bytes: 8 * 1024,
            content_bytes: 64 * 1024,
            connections: 200_000,
            backlog: 4096,
            request: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            min_rate: 500,
            grace: Duration::from_secs(5),
        }
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Directory of the served files.
    pub root: PathBuf,
    /// Its TCP port; 0 lets the stack choose.
    pub port: u16,
    /// Floating-point multiplications per request ([`crate::multiply`]).
    #[serde(default)]
    pub work: u32,
    /// The limits of a client.
    #[serde(default)]
    pub limits: Limits,
}
