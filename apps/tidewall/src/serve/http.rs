//! `tidewall serve http`.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use tidewall_service::http::{self, Limits, Log, Spec};
use tidewall_service::{ServiceCounts, StreamHost};

use super::{Arguments, Place, Words, begin, say_where};
use crate::end::{Failure, Outcome};
use crate::units::{age, count, per_second};

/// The default port.
const PORT: u16 = 80;

/// A web server, ready to run.
pub struct Web {
    pub spec: Spec,
    log: Option<Log>,
}

impl Web {
    pub fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let root = arguments
            .directory
            .clone()
            .ok_or_else(|| Failure::usage("which directory? serve http DIR"))?;
        if !root.is_dir() {
            return Err(Failure::usage(format!(
                "{} is no directory whose files could be served",
                root.display()
            )));
        }
        let log = arguments.log.as_deref().map(log).transpose()?;
        let spec = Spec {
            root,
            port: arguments.port.unwrap_or(PORT),
            work: arguments.work,
            limits: Limits::default(),
        };
        Ok(Web { spec, log })
    }

    pub fn serve<H: StreamHost>(self, host: &H, place: &Place<'_>) -> Outcome {
        let words = Words {
            rates: &|now, last, elapsed| rates(&now.service, &last.service, elapsed),
            totals: &|look, elapsed| totals(&look.service, elapsed),
        };
        let Web { spec, log } = self;
        begin(place, &words, |counters| {
            let ready = |address| {
                let files = spec.root.display();
                say_where(
                    &format!("http on {address}/tcp, files of {files}"),
                    &place.what,
                );
            };
            let (address, stop) = (place.arguments.address(), place.stop);
            http::serve(host, address, &spec, log, counters, stop, ready)
        })
    }
}

/// Opens the access log.
pub fn log(path: &Path) -> Result<Log, Failure> {
    if path == Path::new("-") {
        return Log::new(io::stdout()).map_err(|error| Failure::io("beginning the log", &error));
    }
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(Log::new)
        .map_err(|error| Failure::io(&format!("opening the log {}", path.display()), &error))
}

fn rates(now: &ServiceCounts, last: &ServiceCounts, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
    format!(
        "{} requests/s, {} connections/s, {} open, {:.1} Mbit/s out, {} errors",
        per_second(rate(now.received, last.received)),
        per_second(rate(now.connections, last.connections)),
        count(now.open),
        rate(now.sent, last.sent) * 8e-6,
        count(now.errors),
    )
}

fn totals(counts: &ServiceCounts, elapsed: Duration) -> String {
    format!(
        "answered {} requests ({} bytes) over {} connections, {} errors in {}",
        count(counts.replies),
        count(counts.sent),
        count(counts.connections),
        count(counts.errors),
        age(elapsed),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_looks() {
        let last = ServiceCounts::default();
        let now = ServiceCounts {
            received: 84_000,
            replies: 84_000,
            connections: 32,
            open: 30,
            sent: 125_000_000,
            errors: 2,
            ..last
        };
        assert_eq!(
            rates(&now, &last, Duration::from_secs(2)),
            "42,000 requests/s, 16 connections/s, 30 open, 500.0 Mbit/s out, 2 errors"
        );
        assert_eq!(
            totals(&now, Duration::from_secs(3)),
            "answered 84,000 requests (125,000,000 bytes) over 32 connections, 2 errors in 3.0 s"
        );
    }
}
