//! Services over TCP, the same on either stack.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use tidewall_service::http::proxy;
use tidewall_service::{Counters, StreamHost, http};

use super::{TcpKind, TcpSpec, streams};

/// Connections that may wait at a port that never accepts.
const DUMMY_BACKLOG: u32 = 128;

/// Serves until `stop` is set. Calls `ready` once all ports are open.
pub(super) fn serve<H: StreamHost>(
    host: &H,
    address: IpAddr,
    spec: &TcpSpec,
    counters: &Counters,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> anyhow::Result<()> {
    if spec.timed {
        counters.count_times();
    }
    let _dummies = spec
        .dummies
        .iter()
        .map(|&port| host.listen(SocketAddr::new(address, port), DUMMY_BACKLOG))
        .collect::<Result<Vec<_>, _>>()
        .context("cannot listen at a port that nobody serves")?;
    let local = SocketAddr::new(address, spec.port);
    match &spec.kind {
        TcpKind::Echo => streams::serve(host, local, true, stop, ready)?,
        TcpKind::Discard => streams::serve(host, local, false, stop, ready)?,
        TcpKind::Http { root, work, limits } => {
            let server = http::Spec {
                root: root.clone(),
                port: spec.port,
                work: *work,
                limits: *limits,
            };
            http::serve(host, address, &server, None, counters, stop, |_| ready())?;
        }
        TcpKind::Proxy(spec) => {
            proxy::serve(host, address, spec, None, counters, stop, |_| ready())?;
        }
        TcpKind::Program(program) => bail!("{} has sockets of its own", program.name()),
    }
    Ok(())
}
