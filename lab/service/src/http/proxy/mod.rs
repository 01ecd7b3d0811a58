//! A forwarding HTTP proxy, on either stack.
//!
//! Lives here: a forward proxy for `http` targets and a reverse proxy for one origin,
//! HTTP/1.0 and 1.1 on both sides. Does not live here: anything that knows which stack it
//! runs on, a cache, TLS and CONNECT. The proxy's decisions are sans-I/O: [`session`] is
//! a client's connection with its exchange with an origin, [`response`] and [`body`]
//! parse the origins' bytes. [`serve`] joins them to sockets in one event loop on one
//! thread.
//!
//! Read first: RFC 9110 §7.6 (forwarding), RFC 9112 §§6–9.
//!
//! A request is forwarded once all its content is here, up to [`Limits::content_bytes`]:
//! a client that sends slowly occupies no connection to an origin meanwhile. A response
//! is forwarded as it arrives. Each request has its own connection to the origin, closed
//! after the response. So there are two connections per request, as in Banga and Mogul's
//! experiments (USENIX 1998).

pub mod access;
pub mod body;
mod origins;
mod request;
mod resolve;
pub mod response;
mod server;
pub mod session;
pub mod target;

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Limits;
use access::Access;

pub use server::serve;

/// Limits on the origin's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamLimits {
    /// Time to find the origin's address and to connect to it; then 504.
    pub connect: Duration,
    /// Longest time without a byte from or to the origin; then 504, or the end of the
    /// connection if the answer had begun.
    pub answer: Duration,
    /// Most concurrent connections to origins; then 503.
    pub connections: usize,
    /// Bytes of requests' content that are buffered for all clients together;
    /// then 503.
    pub buffered_bytes: usize,
    /// Bytes of a response's head; beyond, 502.
    pub head_bytes: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        UpstreamLimits {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            connections: 100_000,
            buffered_bytes: 256 << 20,
            head_bytes: 64 * 1024,
        }
    }
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its TCP port; 0 lets the stack choose.
    pub port: u16,
    /// The origin of all requests (a reverse proxy). `None`: each request names its own
    /// (a forward proxy).
    #[serde(default)]
    pub origin: Option<SocketAddr>,
    /// Floating-point multiplications per request ([`crate::multiply`]).
    #[serde(default)]
    pub work: u32,
    /// Limits on the clients' side; for content, higher than those of a server that
    /// discards it.
    #[serde(default = "limits")]
    pub limits: Limits,
    /// Limits on the origins' side.
    #[serde(default)]
    pub upstream: UpstreamLimits,
    /// Permitted clients and destinations; a reverse proxy uses only the clients.
    #[serde(default)]
    pub access: Access,
}

fn limits() -> Limits {
    Limits {
        content_bytes: 16 << 20,
        ..Limits::default()
    }
}

impl Spec {
    /// Creates a proxy at `port` for `origin`, or for the origins that requests name,
    /// with the default limits and access only to the public Internet.
    pub fn new(port: u16, origin: Option<SocketAddr>) -> Self {
        Spec {
            port,
            origin,
            work: 0,
            limits: limits(),
            upstream: UpstreamLimits::default(),
            access: Access::default(),
        }
    }
}
