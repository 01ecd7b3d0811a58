//! Loads over TCP connections, from kernel sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Wait, check_families, check_port, check_range, invalid, seconds};

/// Most connections of an [`HttpSpec`].
pub const HTTP_CONNECTIONS_MAX: u32 = 4096;

/// Highest rate of requests/s or probes/s.
pub(super) const REQUESTS_MAX: u64 = 10_000_000;

/// Connections assigned to one source address: below the 28,232 ports that Linux chooses
/// from by itself (`ip_local_port_range`).
pub(crate) const PER_SOURCE: u32 = 25_000;

/// Most source addresses.
const SOURCES_MAX: usize = 256;

/// Longest value of a `Host` field, bytes.
const HOST_MAX: usize = 255;

/// Longest path of a document, bytes.
const PATH_MAX: usize = 1024;

/// Longest request and response of a [`FixedExchange`], bytes.
const EXCHANGE_MAX: usize = 64 * 1024;

/// A request of another protocol than HTTP, and its response: the same each time, as a
/// cache answers for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedExchange {
    /// The request, 1 to 65,536 bytes.
    pub request: String,
    /// The right response, 1 to 65,536 bytes. Any other counts as failed, and its
    /// connection is reopened.
    pub response: String,
}

impl FixedExchange {
    fn check(&self) -> io::Result<()> {
        let good = |text: &str| (1..=EXCHANGE_MAX).contains(&text.len());
        match good(&self.request) && good(&self.response) {
            true => Ok(()),
            false => Err(invalid("request and response must be 1 to 65,536 bytes")),
        }
    }
}

/// An HTTP client's use of a connection after a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Sends the next request on it (RFC 9112 §9.3).
    #[default]
    KeepAlive,
    /// Asks the server to close it (`Connection: close`) and opens another: one
    /// connection per request. The server closes first, so no client port is held in
    /// TIME-WAIT.
    OneRequest,
}

/// HTTP/1.1 GETs of one document. In a closed loop, each connection sends its next
/// request after the response to the previous one. With a rate, the loop is open:
/// requests become due on schedule, and a response time counts from then, however long
/// the request waited for a free connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSpec {
    /// The server.
    pub destination: SocketAddr,
    /// Path of the document, beginning with a slash; at most 1,024 visible
    /// ASCII characters.
    pub path: String,
    /// Value of the `Host` field; at most 255 visible ASCII characters, no
    /// slash. `None`: the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Replaces HTTP; only with [`Reuse::KeepAlive`]. Path, host and proxy are ignored
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<FixedExchange>,
    /// Use the absolute form, `http://HOST/PATH`, as for a proxy (RFC 9112 §3.2.2).
    #[serde(default)]
    pub proxy: bool,
    /// Connections held at once, 1…[`HTTP_CONNECTIONS_MAX`].
    pub connections: u32,
    /// Use of a connection after a response.
    #[serde(default)]
    pub reuse: Reuse,
    /// Requests/s, 1…10,000,000. `None`: a closed loop.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Addresses to connect from, in turn, at most 256. None: the kernel's choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<IpAddr>,
    /// A connection that takes longer to open, or a response that takes longer to arrive,
    /// is abandoned and counted; 1 ms to 60 s.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Action between responses. When spinning, the client polls its device itself,
    /// through one additional idle connection.
    #[serde(default)]
    pub wait: Wait,
}

impl HttpSpec {
    /// Returns 32 connections in a closed loop, kept alive, spinning; a timeout of 3 s.
    pub fn new(destination: SocketAddr, path: &str) -> Self {
        HttpSpec {
            destination,
            path: path.to_owned(),
            host: None,
            exchange: None,
            proxy: false,
            connections: 32,
            reuse: Reuse::KeepAlive,
            rate: None,
            sources: Vec::new(),
            timeout: Duration::from_secs(3),
            wait: Wait::Spin,
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        check_ends(self.destination, &self.path, &self.sources)?;
        check_host(self.host.as_deref())?;
        let most = HTTP_CONNECTIONS_MAX;
        check_range("the number of connections", self.connections, 1..=most, "")?;
        if let Some(rate) = self.rate {
            check_range("the rate", rate, 1..=REQUESTS_MAX, " requests/s")?;
        }
        if let Some(exchange) = &self.exchange {
            exchange.check()?;
            if self.reuse != Reuse::KeepAlive {
                return Err(invalid(
                    "only connections of HTTP can be for one request each",
                ));
            }
        }
        check_timeout(self.timeout)
    }
}

/// New clients: each connects, requests one document and disconnects. They begin on
/// schedule while the load is measured, as long as their timeout still ends within it, so
/// that each is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSpec {
    /// The server.
    pub destination: SocketAddr,
    /// Path of the document, as in [`HttpSpec::path`].
    pub path: String,
    /// New clients/s, 1…1,000.
    pub rate: u64,
    /// Addresses to connect from, as in [`HttpSpec::sources`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<IpAddr>,
    /// A client that is not connected by then has failed. So has a connected one that
    /// waits longer than this for the document; 1 ms to 60 s.
    #[serde(with = "seconds")]
    pub timeout: Duration,
}

impl ProbeSpec {
    /// Returns 50 new clients/s with a timeout of 3 s.
    pub fn new(destination: SocketAddr, path: &str) -> Self {
        ProbeSpec {
            destination,
            path: path.to_owned(),
            rate: 50,
            sources: Vec::new(),
            timeout: Duration::from_secs(3),
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        check_ends(self.destination, &self.path, &self.sources)?;
        check_range("the rate of probes", self.rate, 1..=1000, " a second")?;
        check_timeout(self.timeout)
    }
}

/// The use of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamKind {
    /// The bytes of a request are sent and must return before the next: LRP's ping-pong.
    Echo,
    /// Bytes are sent as fast as the connection accepts them, in writes of the given
    /// size: LRP's bulk transfer.
    Bulk,
}

/// One TCP connection to an echo or a discard service, spinning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// The service.
    pub destination: SocketAddr,
    /// The use of the stream.
    pub kind: StreamKind,
    /// Bytes of a request or of a write, 1…1,048,576.
    pub size: u32,
    /// Send buffer, bytes (SO_SNDBUF; Linux doubles it). `None`: the default.
    #[serde(default)]
    pub buffer: Option<u32>,
    /// Sleeps if there is no room to write, for a carrier that shares its processor;
    /// otherwise it polls the device for acknowledgments.
    #[serde(default)]
    pub sleeps: bool,
}

impl StreamSpec {
    /// Returns a stream with the kernel's own buffers, which does not sleep.
    pub fn new(destination: SocketAddr, kind: StreamKind, size: u32) -> Self {
        StreamSpec {
            destination,
            kind,
            size,
            buffer: None,
            sleeps: false,
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        check_range("the size", self.size, 1..=1 << 20, " bytes")?;
        check_port(self.destination)
    }
}

pub(super) fn check_ends(
    destination: SocketAddr,
    path: &str,
    sources: &[IpAddr],
) -> io::Result<()> {
    check_port(destination)?;
    if !path.starts_with('/')
        || path.len() > PATH_MAX
        || !path.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(invalid(format!(
            "the path must begin with a slash and be at most {PATH_MAX} visible ASCII characters"
        )));
    }
    if sources.len() > SOURCES_MAX {
        return Err(invalid(format!(
            "at most {SOURCES_MAX} source addresses can be given"
        )));
    }
    check_families(destination, sources.iter().copied())
}

/// Checks the value of a `Host` field: loosely, the authority of a URI (RFC 3986 §3.2).
pub(super) fn check_host(host: Option<&str>) -> io::Result<()> {
    let good = host.is_none_or(|host| {
        (1..=HOST_MAX).contains(&host.len())
            && host
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"/?#@\\".contains(&byte))
    });
    match good {
        true => Ok(()),
        false => Err(invalid(format!(
            "the host must be 1 to {HOST_MAX} visible ASCII characters, none of them / ? # @ \\"
        ))),
    }
}

pub(super) fn check_timeout(timeout: Duration) -> io::Result<()> {
    if (Duration::from_millis(1)..=Duration::from_secs(60)).contains(&timeout) {
        Ok(())
    } else {
        Err(invalid("the timeout must be 1 ms to 60 s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        "10.0.0.2:80".parse().unwrap()
    }

    #[test]
    fn what_is_new_is_valid() {
        HttpSpec::new(server(), "/x").check().unwrap();
        ProbeSpec::new(server(), "/x").check().unwrap();
        StreamSpec::new(server(), StreamKind::Bulk, 32_768)
            .check()
            .unwrap();
    }

    fn exchange(request: &str, response: &str) -> FixedExchange {
        FixedExchange {
            request: request.to_owned(),
            response: response.to_owned(),
        }
    }

    #[test]
    fn an_exchange_takes_the_place_of_http() {
        let mut spec = HttpSpec::new(server(), "/");
        spec.exchange = Some(exchange("PING\r\n", "+PONG\r\n"));
        spec.check().unwrap();
    }

    #[test]
    fn http_ranges_are_checked() {
        let bad: &[fn(&mut HttpSpec)] = &[
            |s| s.destination.set_port(0),
            |s| s.path = "x".into(),
            |s| s.path = "/a b".into(),
            |s| s.path = "/a\r\nX: y".into(),
            |s| s.path = format!("/{}", "a".repeat(1024)),
            |s| s.connections = 0,
            |s| s.connections = HTTP_CONNECTIONS_MAX + 1,
            |s| s.rate = Some(0),
            |s| s.rate = Some(10_000_001),
            |s| s.timeout = Duration::ZERO,
            |s| s.timeout = Duration::from_secs(61),
            |s| s.exchange = Some(exchange("", "OK")),
            |s| s.exchange = Some(exchange("PING", "")),
            |s| s.exchange = Some(exchange(&"x".repeat(EXCHANGE_MAX + 1), "OK")),
            |s| {
                s.exchange = Some(exchange("PING", "OK"));
                s.reuse = Reuse::OneRequest;
            },
            |s| s.sources = vec!["::1".parse().unwrap()],
            |s| s.sources = vec!["10.0.0.1".parse().unwrap(); 257],
        ];
        for (number, change) in bad.iter().enumerate() {
            let mut spec = HttpSpec::new(server(), "/");
            change(&mut spec);
            let error = spec.check().expect_err(&format!("case {number}"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn probes_and_streams_have_ranges_too() {
        for rate in [0, 1001] {
            let mut probe = ProbeSpec::new(server(), "/");
            probe.rate = rate;
            assert!(probe.check().is_err());
        }
        for size in [0, (1 << 20) + 1] {
            assert!(
                StreamSpec::new(server(), StreamKind::Echo, size)
                    .check()
                    .is_err()
            );
        }
    }
}
