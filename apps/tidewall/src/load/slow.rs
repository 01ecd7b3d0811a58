//! `tidewall load slow`: load-adding clients.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use tidewall_load::{Habit, IdleSpec, LoadSpec};

use super::target::{Sources, Url};
use super::{Load, Run, rate};
use crate::end::{Failure, Outcome};
use crate::units;

/// Open many connections that do next to nothing, and keep them (load-adding clients).
///
/// The connections are opened at a bounded rate before the run begins and kept while it
/// lasts; those that the server ends are counted. A server whose cost grows with its idle
/// connections becomes slow: run `tidewall load s-clients` or `tidewall load http` beside
/// it and compare. Banga and Mogul, "Scalable kernel performance for Internet servers
/// under realistic loads", USENIX 1998.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load slow -c 20k http://10.77.0.2/                   they connect, and that is all\n  \
    tidewall load slow -c 750 --mode trickle http://10.77.0.2/    a byte of a request a minute\n  \
    tidewall load slow -c 2k --mode sip http://10.77.0.2/doc      a byte of a response a second\n  \
    tidewall load slow -c 100k --pace 5k --sources 10.77.1.0/28 -d 10m http://10.77.0.2/\n\n\
    Each connection takes a descriptor (the limit is raised where it may be) and a port of a source \
    address, of which one address has enough for 25,000. Ctrl-C closes them all.\n\
    Exit codes: 0 done, Ctrl-C included; 1 none could be opened; 2 it could not begin.")]
pub struct Slow {
    /// The server, and the document that some modes ask for: `http://HOST[:PORT][/PATH]`
    #[arg(value_name = "URL")]
    url: Url,
    /// Number of connections, 1 to 1000000
    #[arg(short = 'c', long, value_name = "N", value_parser = number)]
    connections: u32,
    /// Behaviour of established connections
    #[arg(short = 'm', long, value_enum, default_value_t = Mode::Silent)]
    mode: Mode,
    /// Time between two bytes of a connection, 1ms to 1h [default: 1m for trickle, 1s for sip]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    every: Option<Duration>,
    /// Connections opened per second, at most
    #[arg(short = 'r', long, value_name = "N", default_value = "1k", value_parser = number)]
    pace: u32,
    /// Open a new connection, at the same pace, for each that the server ends
    #[arg(long)]
    replace: bool,
    /// Begin the run with the open connections this long after the last should have been
    /// open, 1ms to 1m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    open_timeout: Duration,
    /// Value of the Host field [default: as in the URL]
    #[arg(short = 'H', long, value_name = "HOST")]
    host: Option<String>,
    /// Addresses of this host to connect from, in turn: 10.0.0.7, 10.0.0.7-10.0.0.90 or 10.0.1.0/26
    #[arg(long, value_name = "ADDRESSES")]
    sources: Option<Sources>,
    #[command(flatten)]
    run: Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Connect and send nothing
    Silent,
    /// Ask for the document once, then keep the connection and send nothing
    Keep,
    /// Send a request one byte at a time, without end
    Trickle,
    /// Ask for the document and read it one byte at a time, again and again
    Sip,
}

/// Parses a number written like a rate.
fn number(text: &str) -> Result<u32, String> {
    let number = rate(text)?;
    u32::try_from(number)
        .ok()
        .filter(|number| *number <= 1_000_000)
        .ok_or_else(|| "at most 1,000,000".to_owned())
}

impl Slow {
    fn address(&self) -> Result<SocketAddr, Failure> {
        self.url.address().map_err(Failure::usage)
    }
}

impl Load for Slow {
    fn run(&self) -> &Run {
        &self.run
    }

    fn fill(&self, spec: &mut LoadSpec) -> Outcome {
        let (habit, asks, every) = match self.mode {
            Mode::Silent => (Habit::Silent, false, 60),
            Mode::Keep => (Habit::Silent, true, 60),
            Mode::Trickle => (Habit::Trickle, true, 60),
            Mode::Sip => (Habit::Sip, true, 1),
        };
        let host = self.host.as_ref().unwrap_or(&self.url.authority);
        spec.idle = Some(IdleSpec {
            path: match asks {
                true => self.url.path.clone(),
                false => String::new(),
            },
            host: Some(host.clone()),
            habit,
            every: self.every.unwrap_or(Duration::from_secs(every)),
            pace: Some(self.pace),
            replace: self.replace,
            open_timeout: self.open_timeout,
            sources: self
                .sources
                .as_ref()
                .map(|sources| sources.0.clone())
                .unwrap_or_default(),
            ..IdleSpec::new(self.address()?, self.connections)
        });
        Ok(())
    }

    fn name(&self) -> String {
        format!("http://{}{}", self.url.authority, self.url.path)
    }
}
