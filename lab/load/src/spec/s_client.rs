//! S-clients: requests at a rate that the server cannot slow down.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http::{PER_SOURCE, check_ends, check_host, check_timeout};
use super::{check_range, invalid, seconds};

/// Most connections/s of an [`SClientSpec`]: more than one thread reaches.
pub const S_CLIENT_RATE_MAX: u64 = 1_000_000;

/// Most connections that an [`SClientSpec`] can have open at once.
pub const S_CLIENT_OPEN_MAX: u32 = 1_000_000;

/// S-clients (Banga and Druschel, "Measuring the Capacity of a Web Server", USITS 1997,
/// §4): one connection for each request, begun on schedule whatever happened to earlier
/// ones. The *establisher* keeps D = `rate` × `connect_timeout` connection attempts in
/// progress, spaced over `connect_timeout` (the paper's T). An established connection
/// sends its request and is handed to the *handler*, which receives the response. One
/// that is not established within `connect_timeout` is closed, which sends nothing, and a
/// new one replaces it. So the offered rate is D / T, independent of the server's
/// capacity.
///
/// In the paper the two are processes joined by a socket, so that `select` need not
/// examine the handler's connections each time. Here one thread plays both: with epoll,
/// an idle connection costs nothing. In the paper an established connection is replaced
/// at once, so D / T is the least that the server is offered. Here its turn comes after T
/// like every other's, so D / T is exactly the offered rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SClientSpec {
    /// The server, or the proxy.
    pub destination: SocketAddr,
    /// Path of the document, as in [`super::HttpSpec::path`].
    pub path: String,
    /// Value of the `Host` field; at most 255 visible ASCII characters, no
    /// slash. `None`: the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Use the absolute form, `http://HOST/PATH`, as for a proxy (RFC 9112 §3.2.2).
    #[serde(default)]
    pub proxy: bool,
    /// Connections/s, 1…[`S_CLIENT_RATE_MAX`].
    pub rate: u64,
    /// The paper's T: a connection that is not established by then is closed and another
    /// one begun; 1 ms to 60 s, and more than the longest round-trip time. Linux answers
    /// no SYN while the listener's queue is full, and the client would repeat it after a
    /// second. With T under a second, no connection repeats it.
    #[serde(with = "seconds")]
    pub connect_timeout: Duration,
    /// A response that takes longer after its request is abandoned with a reset; 1 ms to
    /// 60 s.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Most connections open at once, 1…[`S_CLIENT_OPEN_MAX`]; one descriptor each.
    /// Connections due beyond that are counted and not begun. `None`: `rate` ×
    /// (`connect_timeout` + `timeout`), at most 100,000 and no more than this process may
    /// open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_max: Option<u32>,
    /// Addresses to connect from, as in [`super::HttpSpec::sources`]. The connection
    /// attempts must fit their ports (25,000 per address), and Linux finds a free port
    /// the faster the fewer are taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<IpAddr>,
}

impl SClientSpec {
    /// Returns `rate` connections/s, T = 500 ms as in the paper, a timeout of 10 s for
    /// responses.
    pub fn new(destination: SocketAddr, path: &str, rate: u64) -> Self {
        SClientSpec {
            destination,
            path: path.to_owned(),
            host: None,
            proxy: false,
            rate,
            connect_timeout: Duration::from_millis(500),
            timeout: Duration::from_secs(10),
            open_max: None,
            sources: Vec::new(),
        }
    }

    /// Returns the paper's D: connection attempts in progress if none of them succeeds.
    pub fn establishing(&self) -> u64 {
        product(self.rate, self.connect_timeout)
    }

    /// Returns the most connections open at once.
    pub fn open_limit(&self) -> u32 {
        /// The default.
        const USUAL_MAX: u64 = 100_000;
        self.open_max.unwrap_or_else(|| {
            let all = self.establishing() + product(self.rate, self.timeout);
            // The establisher alone may need more than the default, plus what catching up
            // adds.
            let most = USUAL_MAX.max(self.establishing().saturating_mul(5) / 4 + 64);
            u32::try_from(all.clamp(64, most).min(S_CLIENT_OPEN_MAX.into())).unwrap_or(u32::MAX)
        })
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        check_ends(self.destination, &self.path, &self.sources)?;
        check_host(self.host.as_deref())?;
        check_range(
            "the rate",
            self.rate,
            1..=S_CLIENT_RATE_MAX,
            " connections/s",
        )?;
        check_timeout(self.connect_timeout)?;
        check_timeout(self.timeout)?;
        if let Some(open) = self.open_max {
            check_range(
                "the connections open at once",
                open,
                1..=S_CLIENT_OPEN_MAX,
                "",
            )?;
        }
        let sources = self.sources.len().max(1) as u64;
        if self.establishing() > sources * u64::from(PER_SOURCE) {
            return Err(invalid(format!(
                "{} connections on their way at once need {} source addresses: ports of one \
                 address carry {PER_SOURCE}",
                self.establishing(),
                self.establishing().div_ceil(PER_SOURCE.into())
            )));
        }
        Ok(())
    }
}

fn product(rate: u64, time: Duration) -> u64 {
    let product = u128::from(rate) * time.as_nanos();
    u64::try_from(product.div_ceil(1_000_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rate: u64) -> SClientSpec {
        SClientSpec::new("10.0.0.2:80".parse().unwrap(), "/", rate)
    }

    #[test]
    fn d_is_the_rate_times_t() {
        spec(50_000).check().unwrap();
        assert_eq!(spec(50_000).establishing(), 25_000);
        assert_eq!(spec(50_000).open_limit(), 100_000);
        assert_eq!(spec(10).establishing(), 5);
        assert_eq!(spec(10).open_limit(), 105);
        let mut most = spec(S_CLIENT_RATE_MAX);
        most.connect_timeout = Duration::from_secs(60);
        assert_eq!(most.open_limit(), S_CLIENT_OPEN_MAX);
        assert_eq!(most.establishing(), 60_000_000);
    }

    #[test]
    fn ranges_are_checked() {
        let bad: &[fn(&mut SClientSpec)] = &[
            |s| s.destination.set_port(0),
            |s| s.path = String::new(),
            |s| s.rate = 0,
            |s| s.rate = S_CLIENT_RATE_MAX + 1,
            |s| s.rate = 50_002,
            |s| s.connect_timeout = Duration::ZERO,
            |s| s.timeout = Duration::from_secs(61),
            |s| s.open_max = Some(0),
            |s| s.open_max = Some(S_CLIENT_OPEN_MAX + 1),
            |s| s.host = Some(String::new()),
            |s| s.host = Some("a b".into()),
            |s| s.host = Some("a\r\nX: y".into()),
            |s| s.host = Some("a/b".into()),
            |s| s.host = Some("a".repeat(256)),
            |s| s.sources = vec!["::1".parse().unwrap()],
        ];
        for (number, change) in bad.iter().enumerate() {
            let mut spec = spec(1000);
            change(&mut spec);
            let error = spec.check().expect_err(&format!("case {number}"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let error = spec(1_000_000).check().unwrap_err().to_string();
        assert!(error.contains("need 20 source addresses"), "{error}");
    }

    #[test]
    fn a_spec_survives_json() {
        let mut spec = spec(7);
        (spec.host, spec.proxy) = (Some("origin:80".into()), true);
        let json = serde_json::to_string(&spec).unwrap();
        assert!(json.contains(r#""connect_timeout":0.5"#), "{json}");
        assert_eq!(serde_json::from_str::<SClientSpec>(&json).unwrap(), spec);
    }
}
