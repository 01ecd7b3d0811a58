//! A caching HTTP proxy, on either stack.
//!
//! Lives here: a forward proxy for `http` targets and a reverse proxy for one
//! origin, HTTP/1.0 and 1.1 on both sides, and a shared cache in memory (RFC
//! 9111). Does not live here: anything that knows which stack it runs on, TLS
//! and CONNECT. What the proxy decides is sans-I/O: [`session`] is a client's
//! connection with the exchange it has with an origin, [`store`] what is kept,
//! [`response`] and [`body`] what origins send; [`serve`] joins them to sockets
//! in one event loop on one thread.
//!
//! Read first: RFC 9111 (all), RFC 9110 §7.6 (forwarding), RFC 9112 §§6–9.
//!
//! ```text
//!  client ─► session ─► stored, and fresh ───────────────────────► answer
//!               │                                                    ▲
//!               ├► stored ─► If-Modified-Since ─► origin ─► 304 ─────┤
//!               └► not stored ─► the request ───► origin ─► 200 ─► store
//! ```
//!
//! A request goes on once its content is here, up to [`Spec::object_bytes`] of
//! it: a client that sends slowly holds no connection to an origin meanwhile.
//!
//! A response for which the origin names no lifetime is confirmed with the
//! origin each time it is used: nothing is guessed. That is one
//! If-Modified-Since for each hit, as in Banga and Mogul's experiments (USENIX
//! 1998) and their two connections a request with [`Spec::fresh_upstream`].

pub mod access;
mod answer;
pub mod body;
pub mod control;
mod decide;
mod exchange;
mod message;
mod origins;
mod pool;
mod prefix;
mod resolve;
pub mod response;
mod server;
pub mod session;
pub mod shared;
pub mod store;
pub mod target;

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Limits;
use access::Access;

pub use server::serve;

/// What an origin may take, and what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamLimits {
    /// Time to find the origin's address and to connect to it; then 504.
    pub connect: Duration,
    /// Time in which no byte comes from the origin, or is taken by it; then
    /// 504, or the end of the connection if the answer had begun.
    pub answer: Duration,
    /// Time for which a connection that is not used is kept.
    pub idle: Duration,
    /// Connections to one origin that are kept without use.
    pub idle_connections: usize,
    /// Connections to origins at a time; then 503.
    pub connections: usize,
    /// Of those in use for clients of one /24 or /64; then 503 for these.
    pub prefix_connections: usize,
    /// Bytes of clients' content that wait for the rest of it, of all clients
    /// together; what comes beyond goes on as it comes.
    pub collected_bytes: usize,
    /// Bytes of a response's head; beyond, 502.
    pub head_bytes: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        UpstreamLimits {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            idle_connections: 256,
            connections: 100_000,
            prefix_connections: 12_500,
            collected_bytes: 64 << 20,
            head_bytes: 64 * 1024,
        }
    }
}

/// When what is stored is confirmed with the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Revalidate {
    /// When the lifetime that the origin has named is over, or it has named
    /// none.
    #[default]
    Stale,
    /// Each time.
    Always,
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its TCP port; 0 lets the stack choose.
    pub port: u16,
    /// Where all requests go (a reverse proxy). `None`: where each request
    /// says (a forward proxy).
    #[serde(default)]
    pub origin: Option<SocketAddr>,
    /// A connection to the origin for each request, closed after it, as in the
    /// paper. Otherwise they are kept and used again.
    #[serde(default)]
    pub fresh_upstream: bool,
    /// When what is stored is confirmed.
    #[serde(default)]
    pub revalidate: Revalidate,
    /// Bytes that the cache may take.
    #[serde(default = "cache_bytes")]
    pub cache_bytes: usize,
    /// Most bytes of a response that is stored, and of a request's content that
    /// is collected before a connection to the origin is taken for it.
    #[serde(default = "object_bytes")]
    pub object_bytes: usize,
    /// Floating-point multiplications it makes for each request
    /// ([`crate::multiply`]).
    #[serde(default)]
    pub work: u32,
    /// What a client may take; of content, which goes through and takes no
    /// memory, more than of a server that throws it away.
    #[serde(default = "limits")]
    pub limits: Limits,
    /// What an origin may take.
    #[serde(default)]
    pub upstream: UpstreamLimits,
    /// Who may use it, and where it goes for them; of a reverse proxy, who may
    /// use it.
    #[serde(default)]
    pub access: Access,
}

fn limits() -> Limits {
    Limits {
        content_bytes: 1 << 30,
        ..Limits::default()
    }
}

fn cache_bytes() -> usize {
    256 << 20
}

fn object_bytes() -> usize {
    4 << 20
}

impl Spec {
    /// A proxy at `port` for `origin`, or for whatever is asked for, with the
    /// usual limits: 256 MiB of cache, responses of up to 4 MiB, the public
    /// Internet.
    pub fn new(port: u16, origin: Option<SocketAddr>) -> Self {
        Spec {
            port,
            origin,
            fresh_upstream: false,
            revalidate: Revalidate::Stale,
            cache_bytes: cache_bytes(),
            object_bytes: object_bytes(),
            work: 0,
            limits: limits(),
            upstream: UpstreamLimits::default(),
            access: Access::default(),
        }
    }
}
