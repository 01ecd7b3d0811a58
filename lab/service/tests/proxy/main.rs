//! The proxy on Linux sockets over loopback, between plain clients and origins
//! that follow a script.

mod access;
#[path = "../common/mod.rs"]
mod common;
mod forwarding;
mod hosts;
mod origin;
mod slow;
mod trouble;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{LOCAL, Running, ask, epoll, get, proxying_at, response, text};
use tidewall_service::counters::ProxyCounts;
use tidewall_service::http::proxy::Spec;
use tidewall_service::http::proxy::access::Access;
use tidewall_service::{Reader, StreamHost};

/// Returns a forward proxy that may connect to the origins here, which are on loopback.
fn forward() -> Spec {
    let destinations = vec!["127.0.0.0/8".parse().unwrap()];
    let access = Access {
        destinations,
        ..Access::default()
    };
    Spec {
        access,
        ..Spec::new(0, None)
    }
}

/// Runs a proxy on `host` while `during` does.
fn proxying_on<H: StreamHost>(
    host: impl FnOnce() -> H + Send,
    spec: &Spec,
    during: impl FnOnce(&Running<'_>),
) {
    proxying_at(LOCAL, host, spec, during);
}

fn proxying(spec: &Spec, during: impl FnOnce(&Running<'_>)) {
    proxying_on(epoll, spec, during);
}
