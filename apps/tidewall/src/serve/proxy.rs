//! `tidewall serve proxy`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tidewall_service::StreamHost;
use tidewall_service::http::Log;
use tidewall_service::http::proxy::access::{Access, Cidr};
use tidewall_service::http::proxy::{self, Spec};

use super::http::log;
use super::{Arguments, Look, Place, Words, begin, say_where};
use crate::end::{Failure, Outcome};
use crate::units::{age, count, per_second};

/// The default port of a forward proxy (Squid's).
const FORWARD_PORT: u16 = 3128;
/// The default port of a reverse proxy: it stands in for a web server.
const REVERSE_PORT: u16 = 80;

/// Options that only the proxy uses.
#[derive(clap::Args)]
pub struct Options {
    /// Web server that receives all requests (a reverse proxy), instead of the server
    /// that each request names
    #[arg(long, value_name = "HOST:PORT")]
    origin: Option<String>,
    /// Clients that the proxy answers (may be repeated) [default: all that reach its
    /// --address]
    #[arg(long = "allow-client", value_name = "CIDR")]
    allow_client: Vec<Cidr>,
    /// Internal addresses, such as 10.0.0.0/8, to which a proxy without --origin connects
    /// all the same (may be repeated) [default: none]
    #[arg(
        long = "allow-destination",
        value_name = "CIDR",
        conflicts_with = "origin"
    )]
    allow_destination: Vec<Cidr>,
}

impl Options {
    /// Returns whether it would forward any request of any client that reaches it.
    pub fn is_open(&self) -> bool {
        self.origin.is_none() && self.allow_client.is_empty()
    }

    /// Returns the name of an option that was given.
    pub fn given(&self) -> Option<&'static str> {
        let Options {
            origin,
            allow_client,
            allow_destination,
        } = self;
        let given = [
            ("--origin", origin.is_some()),
            ("--allow-client", !allow_client.is_empty()),
            ("--allow-destination", !allow_destination.is_empty()),
        ];
        given
            .into_iter()
            .find_map(|(name, given)| given.then_some(name))
    }
}

/// A proxy, ready to run.
pub struct Proxy {
    pub spec: Spec,
    log: Option<Log>,
}

impl Proxy {
    pub fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let options = &arguments.proxy;
        let origin = options.origin.as_deref().map(address).transpose()?;
        let usual = match origin {
            Some(_) => REVERSE_PORT,
            None => FORWARD_PORT,
        };
        let mut spec = Spec::new(arguments.port.unwrap_or(usual), origin);
        spec.work = arguments.work;
        spec.access = Access {
            clients: options.allow_client.clone(),
            destinations: options.allow_destination.clone(),
        };
        let log = arguments.log.as_deref().map(log).transpose()?;
        Ok(Proxy { spec, log })
    }

    pub fn serve<H: StreamHost>(self, host: &H, place: &Place<'_>) -> Outcome {
        let words = Words {
            rates: &rates,
            totals: &totals,
        };
        let Proxy { spec, log } = self;
        begin(place, &words, |counters| {
            let ready = |address| {
                let whom = match spec.origin {
                    Some(origin) => format!("for {origin}"),
                    None => "for whom requests name".to_owned(),
                };
                say_where(&format!("proxy on {address}/tcp, {whom}"), &place.what);
            };
            let (address, stop) = (place.arguments.address(), place.stop);
            proxy::serve(host, address, &spec, log, counters, stop, ready)
        })
    }
}

/// Resolves the address of the origin.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let mut found = text.to_socket_addrs().map_err(|error| {
        Failure::usage(format!(
            "--origin {text}: {error}; it is an address or a name, and a port: 10.0.0.2:80"
        ))
    })?;
    found
        .next()
        .ok_or_else(|| Failure::usage(format!("--origin {text}: it has no address")))
}

fn rates(now: &Look, last: &Look, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = |now: u64, last: u64| per_second(now.saturating_sub(last) as f64 / seconds);
    let (service, before) = (&now.service, &last.service);
    let (uses, used) = (&now.proxy, &last.proxy);
    format!(
        "{} requests/s, {} upstream connections/s, {} and {} open, {} errors and {} upstream",
        rate(service.received, before.received),
        rate(uses.upstream_connections, used.upstream_connections),
        count(service.open),
        count(uses.upstream_open),
        count(service.errors),
        count(uses.upstream_errors),
    )
}

fn totals(look: &Look, elapsed: Duration) -> String {
    let (service, uses) = (&look.service, &look.proxy);
    format!(
        "answered {} requests ({} bytes) over {} connections; {} upstream connections ({} bytes); {} errors \
         and {} upstream in {}",
        count(service.replies),
        count(service.sent),
        count(service.connections),
        count(uses.upstream_connections),
        count(uses.upstream_bytes),
        count(service.errors),
        count(uses.upstream_errors),
        age(elapsed),
    )
}

#[cfg(test)]
mod tests {
    use tidewall_service::ServiceCounts;
    use tidewall_service::counters::ProxyCounts;

    use super::*;

    #[test]
    fn rates_and_totals_name_what_was_done() {
        let last = Look::default();
        let now = Look {
            service: ServiceCounts {
                received: 20_000,
                replies: 20_000,
                connections: 20_000,
                open: 750,
                sent: 25_000_000,
                ..ServiceCounts::default()
            },
            proxy: ProxyCounts {
                upstream_connections: 19_998,
                upstream_open: 5,
                upstream_errors: 1,
                upstream_bytes: 26_000_000,
            },
            ..Look::default()
        };
        assert_eq!(
            rates(&now, &last, Duration::from_secs(2)),
            "10,000 requests/s, 9,999 upstream connections/s, 750 and 5 open, 0 errors and 1 upstream"
        );
        assert!(totals(&now, Duration::from_secs(2)).starts_with(
            "answered 20,000 requests (25,000,000 bytes) over 20,000 connections; 19,998 upstream \
                 connections (26,000,000 bytes); 0 errors and 1 upstream in "
        ));
    }
}
