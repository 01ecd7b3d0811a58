//! `redis-benchmark`, run as a worker: a program started by the lab itself would share
//! the lab's part of the processor, not the workers' (autogrouping).

use std::net::SocketAddr;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::command;

/// SET, then GET, with random keys of 100,000.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkJob {
    /// The server.
    pub server: SocketAddr,
    /// Concurrent connections.
    pub connections: u32,
    /// Outstanding commands per connection.
    pub pipeline: u32,
    /// Commands in each of the two tests.
    pub requests: u32,
}

/// Runs it, and prints the requests/s of both tests together.
pub(super) fn run(job: &BenchmarkJob) -> anyhow::Result<()> {
    let line = format!(
        "timeout 60 redis-benchmark -h {} -p {} -P {} -c {} -n {} -r 100000 -t set,get --csv",
        job.server.ip(),
        job.server.port(),
        job.pipeline,
        job.connections,
        job.requests
    );
    let said = command::run_line(&line)?;
    let rate = rate(&said).with_context(|| format!("redis-benchmark said {said}"))?;
    println!("{}", serde_json::to_string(&rate)?);
    Ok(())
}

/// Returns the rate of all tests together, each with as many requests, from
/// redis-benchmark's output with `--csv`: name and requests/s of each in quotes.
fn rate(said: &str) -> Option<f64> {
    let rates = said.lines().filter_map(|line| {
        let mut fields = line.split(',').map(|it| it.trim_matches('"'));
        fields.next().filter(|name| ["SET", "GET"].contains(name))?;
        fields.next()?.parse::<f64>().ok()
    });
    let rates: Vec<f64> = rates.collect();
    let time: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
    (!rates.is_empty() && time > 0.0).then(|| rates.len() as f64 / time)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_the_benchmark_prints_becomes_a_rate() {
        let said = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"100.0\",\"1\"\n\
                    \"GET\",\"300.0\",\"1\"\n";
        assert_eq!(super::rate(said), Some(150.0));
        assert_eq!(super::rate("Could not connect\n"), None);
    }
}
