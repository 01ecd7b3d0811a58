//! Connections that are kept open and do next to nothing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http::{PER_SOURCE, check_ends, check_host, check_timeout};
use super::{DURATION_MAX, check_range, invalid, seconds};

/// Most connections of an [`IdleSpec`]: nearly the number that Linux allows one process
/// to open (`fs.nr_open`).
pub const IDLE_CONNECTIONS_MAX: u32 = 1_000_000;

/// Behaviour of an established connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Habit {
    /// Silent: sends nothing or, with a path, receives one response first.
    #[default]
    Silent,
    /// Sends one byte of a request each [`IdleSpec::every`]. The request never ends: more
    /// fields follow.
    Trickle,
    /// Requests the document and reads one byte of it each [`IdleSpec::every`]; requests
    /// it again at its end. Its receive buffer has Linux's minimum size.
    Sip,
}

/// Load-adding clients (Banga and Mogul, USENIX 1998, §5): any number of infinitely slow
/// connections. They are opened at a bounded rate before the run begins and kept while it
/// lasts; those that the server ends are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleSpec {
    /// The server.
    pub destination: SocketAddr,
    /// Path of the document that each requests, as in [`super::HttpSpec::path`]; empty:
    /// none, they only connect. Required for [`Habit::Trickle`] and [`Habit::Sip`].
    #[serde(default)]
    pub path: String,
    /// Value of the `Host` field, as in [`super::HttpSpec::host`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Behaviour of established connections.
    #[serde(default)]
    pub habit: Habit,
    /// Time between two bytes of a connection; 1 ms to an hour. Not used by
    /// [`Habit::Silent`].
    #[serde(default = "a_minute", with = "seconds")]
    pub every: Duration,
    /// Number of connections, 1…[`IDLE_CONNECTIONS_MAX`]; one descriptor each.
    pub connections: u32,
    /// Connections begun per second, at most, 1…1,000,000. `None`: as fast as the server
    /// accepts them, 256 at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<u32>,
    /// Open another connection, at the same pace, for each that the server
    /// ends.
    #[serde(default)]
    pub replace: bool,
    /// Addresses to connect from, in turn, at most 256. Each carries 25,000 connections,
    /// and so does the kernel's choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<IpAddr>,
    /// Time within which all must be open, beyond that of the pace; 1 ms to 60 s. Then
    /// the run begins with those that are open.
    #[serde(with = "seconds")]
    pub open_timeout: Duration,
}

fn a_minute() -> Duration {
    Duration::from_secs(60)
}

impl IdleSpec {
    /// Returns `connections` that request nothing, open within 30 s.
    pub fn new(destination: SocketAddr, connections: u32) -> Self {
        IdleSpec {
            destination,
            path: String::new(),
            host: None,
            habit: Habit::Silent,
            every: a_minute(),
            connections,
            pace: None,
            replace: false,
            sources: Vec::new(),
            open_timeout: Duration::from_secs(30),
        }
    }

    /// Returns the longest time that opening may take: this timeout, and the number
    /// divided by the pace.
    pub fn opening_max(&self) -> Duration {
        let paced = self.pace.map_or(0.0, |pace| {
            f64::from(self.connections) / f64::from(pace.max(1))
        });
        self.open_timeout + Duration::from_secs_f64(paced)
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        let path = match (self.path.is_empty(), self.habit) {
            (true, Habit::Silent) => "/",
            _ => &self.path,
        };
        check_ends(self.destination, path, &self.sources)?;
        check_host(self.host.as_deref())?;
        let most = IDLE_CONNECTIONS_MAX;
        check_range(
            "the number of idle connections",
            self.connections,
            1..=most,
            "",
        )?;
        // At most SOURCES_MAX, checked above.
        let sources = self.sources.len().max(1) as u32;
        if self.connections > sources * PER_SOURCE {
            return Err(invalid(format!(
                "{} connections need {} source addresses: ports of one address carry {PER_SOURCE}",
                self.connections,
                self.connections.div_ceil(PER_SOURCE)
            )));
        }
        if !(Duration::from_millis(1)..=DURATION_MAX).contains(&self.every) {
            return Err(invalid(
                "the time between two bytes must be 1 ms to an hour",
            ));
        }
        if let Some(pace) = self.pace {
            check_range("the pace of opening", pace, 1..=1_000_000, " connections/s")?;
        }
        check_timeout(self.open_timeout)?;
        if self.opening_max() > DURATION_MAX {
            return Err(invalid("at that pace opening takes more than an hour"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        "10.0.0.2:80".parse().unwrap()
    }

    #[test]
    fn idle_connections_need_ports() {
        IdleSpec::new(server(), 25_000).check().unwrap();
        let mut spec = IdleSpec::new(server(), 100_000);
        let error = spec.check().unwrap_err().to_string();
        assert!(error.contains("need 4 source addresses"), "{error}");
        spec.sources = (1..=4).map(|host| IpAddr::from([10, 0, 1, host])).collect();
        spec.check().unwrap();
        spec.sources = (1..=40)
            .map(|host| IpAddr::from([10, 0, 1, host]))
            .collect();
        spec.connections = IDLE_CONNECTIONS_MAX;
        spec.check().unwrap();
        for connections in [0, IDLE_CONNECTIONS_MAX + 1, u32::MAX] {
            spec.connections = connections;
            assert!(spec.check().is_err());
        }
    }

    #[test]
    fn ranges_are_checked() {
        let bad: &[fn(&mut IdleSpec)] = &[
            |s| s.every = Duration::ZERO,
            |s| s.every = Duration::MAX,
            |s| s.pace = Some(0),
            |s| s.pace = Some(1_000_001),
            |s| (s.pace, s.connections) = (Some(1), 4_000),
            |s| s.open_timeout = Duration::ZERO,
            |s| s.habit = Habit::Trickle,
            |s| s.habit = Habit::Sip,
            |s| s.host = Some("a b".into()),
            |s| s.path = "x".into(),
        ];
        for (number, change) in bad.iter().enumerate() {
            let mut spec = IdleSpec::new(server(), 10);
            change(&mut spec);
            let error = spec.check().expect_err(&format!("case {number}"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let mut spec = IdleSpec::new(server(), 10);
        (spec.habit, spec.path, spec.pace) = (Habit::Sip, "/x".into(), Some(5));
        spec.check().unwrap();
        assert_eq!(spec.opening_max(), Duration::from_secs(32));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let json = r#"{"destination":"10.0.0.2:80","connections":7,"open_timeout":30}"#;
        let spec: IdleSpec = serde_json::from_str(json).unwrap();
        assert_eq!(spec, IdleSpec::new(server(), 7));
    }
}
