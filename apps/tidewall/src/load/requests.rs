//! `tidewall load s-clients` and `tidewall load http`: requests over TCP.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall_load::{HttpSpec, LoadSpec, Reuse, SClientSpec, Wait};

use super::target::{Sources, Url};
use super::{Load, Run, rate};
use crate::end::{Failure, Outcome};
use crate::units;

/// The target of requests.
#[derive(clap::Args)]
struct Target {
    /// The document: `http://HOST[:PORT][/PATH]`
    #[arg(value_name = "URL")]
    url: Url,
    /// Ask this proxy for the document, by its whole URL, instead of the URL's host
    #[arg(short = 'x', long, value_name = "IP:PORT", value_parser = units::address::<SocketAddr>)]
    proxy: Option<SocketAddr>,
    /// Value of the Host field, and with --proxy of the URL's host [default: as in the
    /// URL]
    #[arg(short = 'H', long, value_name = "HOST")]
    host: Option<String>,
    /// Addresses of this host to connect from, in turn: 10.0.0.7, 10.0.0.7-10.0.0.90 or
    /// 10.0.1.0/26, several separated by commas. One address has ports for about 25,000
    /// connections
    #[arg(long, value_name = "ADDRESSES")]
    sources: Option<Sources>,
}

impl Target {
    fn address(&self) -> Result<SocketAddr, Failure> {
        match self.proxy {
            Some(proxy) => Ok(proxy),
            None => self.url.address().map_err(Failure::usage),
        }
    }

    fn host(&self) -> Option<String> {
        Some(match &self.host {
            Some(host) => host.clone(),
            None => self.url.authority.clone(),
        })
    }

    fn sources(&self) -> Vec<std::net::IpAddr> {
        self.sources
            .as_ref()
            .map(|sources| sources.0.clone())
            .unwrap_or_default()
    }

    fn name(&self) -> String {
        let through = self
            .proxy
            .map_or_else(String::new, |proxy| format!(" through {proxy}"));
        format!("http://{}{}{through}", self.url.authority, self.url.path)
    }
}

/// Offer connections with one request each at a rate that the server cannot slow down
/// (S-clients).
///
/// Connections are begun on schedule, with D = rate x T of them being established at
/// once. An established connection sends its request. One that is not established within
/// T is closed silently and replaced by a new one. So an overloaded server is offered as
/// much as an idle one, as by many independent users. wrk, h2load and other closed loops,
/// in contrast, ask no faster than the server answers. Banga and Druschel, "Measuring the
/// Capacity of a Web Server", USITS 1997.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load s-clients --rate 5k http://10.77.0.2/doc\n  \
    tidewall load s-clients -R 50k --sources 10.77.1.0/27 --json out.json http://10.77.0.2/doc\n  \
    tidewall load s-clients -R 2k --proxy 10.77.0.2:3128 http://10.78.0.2/doc   through a proxy\n\n\
    What becomes of each connection is counted once: answered (200 or another status), gave up (did not \
    stand within T), refused, failed (closed or reset before its response was whole), malformed, timed \
    out, local error (no port or descriptor here), or unfinished at the end. 'skipped' and 'no room' \
    were never begun: the generator is too slow, or --max-open too low.\n\
    Exit codes: 0 done, Ctrl-C included; 1 nothing was answered; 2 it could not begin.")]
pub struct SClients {
    #[command(flatten)]
    target: Target,
    /// Connections and requests per second: 5000, 5k, 1.2M
    #[arg(short = 'R', long, value_name = "N", value_parser = rate, required_unless_present = "connecting")]
    rate: Option<u64>,
    /// Connections being established at once, instead of a rate: the paper's D; the rate
    /// is D / T
    #[arg(short = 'D', long, value_name = "D", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..))]
    connecting: Option<u64>,
    /// The paper's T: a connection that is not established by then is replaced; 1ms to 1m
    #[arg(short = 'T', long, value_name = "TIME", default_value = "500ms", value_parser = units::duration)]
    connect_timeout: Duration,
    /// A response that takes longer is abandoned; 1ms to 1m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    timeout: Duration,
    /// Most connections open at once, 1 to 1000000 [default: rate x (T + timeout), at most 100000]
    #[arg(long, value_name = "N")]
    max_open: Option<u32>,
    #[command(flatten)]
    run: Run,
}

impl Load for SClients {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        let by_number = self.connecting.map(|connecting| {
            let rate = connecting as f64 / self.connect_timeout.as_secs_f64().max(1e-9);
            (rate.round() as u64).max(1)
        });
        let rate = self.rate.or(by_number).unwrap_or(1);
        let target = &self.target;
        spec.s_clients = Some(SClientSpec {
            host: target.host(),
            proxy: target.proxy.is_some(),
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            open_max: self.max_open,
            sources: target.sources(),
            ..SClientSpec::new(target.address()?, &target.url.path, rate)
        });
        Ok(())
    }

    fn name(&self) -> String {
        self.target.name()
    }
}

/// Ask over a fixed number of connections: a closed loop like wrk's, or with --rate an
/// open one like wrk2's.
///
/// In a closed loop a slow server is asked less, and the requests not sent are not
/// measured. The corrected response times add what the waiting connections would have
/// measured. With --rate they count from the time a request was due, however long it
/// waited for a free connection.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load http http://10.77.0.2/doc                     32 connections, kept alive\n  \
    tidewall load http -c 256 --close http://10.77.0.2/doc      a connection for each request\n  \
    tidewall load http -c 64 -R 20k -d 30s http://10.77.0.2/doc\n\n\
    Exit codes: 0 done, Ctrl-C included; 1 nothing was answered; 2 it could not begin.")]
pub struct Http {
    #[command(flatten)]
    target: Target,
    /// Connections held at once, 1 to 4096
    #[arg(short = 'c', long, value_name = "N", default_value_t = 32)]
    connections: u32,
    /// Requests per second, due on schedule [default: each connection asks when it was
    /// answered]
    #[arg(short = 'R', long, value_name = "N", value_parser = rate)]
    rate: Option<u64>,
    /// One connection for each request, closed by the server
    #[arg(long)]
    close: bool,
    /// A connection or a response that takes longer is abandoned; 1ms to 1m
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    timeout: Duration,
    /// Spin instead of sleeping between responses: no wake-up in the times measured, one
    /// processor busy
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    run: Run,
}

impl Load for Http {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        let target = &self.target;
        spec.http = Some(HttpSpec {
            host: target.host(),
            proxy: target.proxy.is_some(),
            connections: self.connections,
            reuse: match self.close {
                true => Reuse::OneRequest,
                false => Reuse::KeepAlive,
            },
            rate: self.rate,
            sources: target.sources(),
            timeout: self.timeout,
            wait: match self.spin {
                true => Wait::Spin,
                false => Wait::Block,
            },
            ..HttpSpec::new(target.address()?, &target.url.path)
        });
        Ok(())
    }

    fn name(&self) -> String {
        self.target.name()
    }
}
