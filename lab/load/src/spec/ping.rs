//! The closed loop over UDP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http::REQUESTS_MAX;
use super::{
    DURATION_MAX, PAYLOAD_MAX, check_families, check_port, check_range, invalid, one, seconds,
};
use crate::dns;

/// Most requests that a [`PingSpec`] may keep in flight.
pub const OUTSTANDING_MAX: u16 = 1024;

/// A closed-loop client's behaviour between replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Polls the socket again and again: no wake-up in the measured time, one processor
    /// kept busy.
    #[default]
    Spin,
    /// Sleeps until a reply arrives, as an ordinary client does; its wake-up is part of
    /// the measured time.
    Block,
}

/// A closed loop of requests to an echo service, over a kernel UDP socket or a circuit.
/// With a rate, the loop is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingSpec {
    /// The echo service.
    pub destination: SocketAddr,
    /// Local address and port to use. `None`: the kernel's choice.
    #[serde(default)]
    pub source: Option<SocketAddr>,
    /// Requests in flight, 1…[`OUTSTANDING_MAX`]. Payloads under 8 bytes hold fewer
    /// numbers: at most 1 with 0 bytes, 128 with 1 byte.
    #[serde(default = "one")]
    pub outstanding: u16,
    /// Bytes of payload, 0…[`PAYLOAD_MAX`]; the first eight (or fewer) number
    /// the request. A late reply to a 0-byte request cannot be distinguished from the
    /// reply to the next.
    pub payload: u16,
    /// A request unanswered for this long is counted as lost, and a new one is sent. 10
    /// µs to 60 s.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Least time between two requests of one slot in flight. Zero: the next request
    /// follows the reply at once.
    #[serde(default, with = "seconds")]
    pub interval: Duration,
    /// Requests/s of an open loop, 1…10,000,000: due on schedule, sent when one of the
    /// slots in flight is free. `None`: a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Behaviour between replies.
    #[serde(default)]
    pub wait: Wait,
    /// The service is a name service (DNS): instead of the payload, send a query for the
    /// address (A) of this name, with the two-byte number as its ID. Only an answer
    /// without error that has an address counts. Requires a `payload` of 2, and no
    /// circuit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Use circuit 0.PORT of the destination's link instead of UDP, through a separate
    /// stack, which takes the interface. Only with [`Wait::Spin`] and without a source.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub circuit: bool,
}

impl PingSpec {
    /// Returns one 8-byte request at a time, spinning, lost after 100 ms.
    pub fn new(destination: SocketAddr) -> Self {
        PingSpec {
            destination,
            source: None,
            outstanding: 1,
            payload: 8,
            timeout: Duration::from_millis(100),
            interval: Duration::ZERO,
            rate: None,
            wait: Wait::Spin,
            name: None,
            circuit: false,
        }
    }

    /// Checks every range that this type documents.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        check_range("the payload", self.payload, 0..=PAYLOAD_MAX, " bytes")?;
        let outstanding_max = match self.payload {
            0 => 1,
            // Half of the numbers, so that a late reply seldom matches a new request.
            1 => 128,
            _ => OUTSTANDING_MAX,
        };
        if !(1..=outstanding_max).contains(&self.outstanding) {
            return Err(invalid(format!(
                "requests in flight with {} bytes of payload must be 1 to {outstanding_max}",
                self.payload
            )));
        }
        if !(Duration::from_micros(10)..=Duration::from_secs(60)).contains(&self.timeout) {
            return Err(invalid("the timeout must be 10 µs to 60 s"));
        }
        if let Some(rate) = self.rate {
            check_range("the rate", rate, 1..=REQUESTS_MAX, " requests/s")?;
        }
        if self.interval > DURATION_MAX {
            return Err(invalid("the interval must be at most an hour"));
        }
        if self.circuit && (self.payload == 0 || self.wait != Wait::Spin || self.source.is_some()) {
            return Err(invalid(
                "over a circuit a request has a byte at least and no source, and its client spins",
            ));
        }
        if let Some(name) = &self.name
            && (self.payload != 2 || self.circuit || dns::query(name).is_none())
        {
            return Err(invalid(
                "the name asked for must have labels of 1 to 63 bytes and 253 in all; a query's \
                 payload is 2 bytes, and goes by UDP",
            ));
        }
        check_port(self.destination)?;
        check_families(self.destination, self.source.map(|source| source.ip()))
    }
}
