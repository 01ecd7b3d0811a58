//! `tidewall load rpc`: remote procedure calls over UDP.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, Wait};

use super::{Load, Run, rate};
use crate::end::{Failure, Outcome};
use crate::units;

/// Call one or more services over UDP: a mix of closed loops, or of open ones with rates.
///
/// A call is a datagram that the service sends back (echo, RFC 862, or any reply with at
/// least the first eight bytes). With --outstanding calls always waiting, a server never
/// blocks: LRP's RPC mix (Druschel and Banga, OSDI 1996, Table 2). A call that is not
/// answered in time is counted as lost and enters no response time.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load rpc --to 10.77.0.2:7                           one call at a time\n  \
    tidewall load rpc --to 10.77.0.2:7 --to 10.77.0.2:8 -n 64   two servers always busy\n  \
    tidewall load rpc --to 10.77.0.2:7@20k --to 10.77.0.2:8@500 -n 256   fast and slow calls\n\n\
    Exit codes: 0 done, Ctrl-C included; 1 nothing was answered; 2 it could not begin.")]
pub struct Rpc {
    /// A service, up to 8 of them; with @RATE calls are due at this rate per second, else
    /// one follows the other
    #[arg(long, value_name = "IP:PORT[@RATE]", required = true)]
    to: Vec<Service>,
    /// Calls in flight at each service, 1 to 1024
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    outstanding: u16,
    /// Bytes of a call, 0 to 1472; under 8 they cannot tell many calls apart
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 8)]
    size: u16,
    /// A call unanswered for this long is lost, 10us to 1m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    timeout: Duration,
    /// Spin instead of sleeping between replies: no wake-up in the times measured, one
    /// processor busy
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    run: Run,
}

/// A service and the rate of calls to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Service {
    address: SocketAddr,
    rate: Option<u64>,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, rate) = match text.split_once('@') {
            Some((address, number)) => (address, Some(rate(number)?)),
            None => (text, None),
        };
        Ok(Service {
            address: address.parse().map_err(|_| {
                "not an address and port such as 10.77.0.2:7; names are not looked up".to_owned()
            })?,
            rate,
        })
    }
}

impl Load for Rpc {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        let most = LoadSpec::BESIDE_MAX + 1;
        if self.to.len() > most {
            return Err(Failure::usage(format!("--to: at most {most} services")));
        }
        let mut pings = self.to.iter().map(|service| PingSpec {
            outstanding: self.outstanding,
            payload: self.size,
            timeout: self.timeout,
            rate: service.rate,
            wait: match self.spin {
                true => Wait::Spin,
                false => Wait::Block,
            },
            ..PingSpec::new(service.address)
        });
        spec.ping = pings.next();
        spec.beside = pings.collect();
        Ok(())
    }

    fn name(&self) -> String {
        let services: Vec<String> = self
            .to
            .iter()
            .map(|service| service.address.to_string())
            .collect();
        format!("calls to {}", services.join(", "))
    }
}
