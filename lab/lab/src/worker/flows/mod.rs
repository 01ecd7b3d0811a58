//! Workers that move bytes over many TCP connections: bulk for a time, or objects on new
//! connections.
//!
//! The server is the same on either stack, an event loop over
//! [`StreamHost`](tidewall_service::StreamHost). A client is always Linux. It states its
//! wish in a request of nine bytes. The receiver of bulk counts it, from the first bytes
//! on and for the requested time, so that neither the handshake nor the rest of a send
//! buffer matters.

mod client;
mod server;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};
use tidewall_sys::set_fifo;

/// Figures of a connection by name, the same on both stacks if both have them.
pub type Figures = BTreeMap<String, f64>;

/// The job of one of these workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowJob {
    /// Serve bulk and objects, until the standard input ends. Answers the line
    /// `transfers` with the [`Transfer`]s since the last question.
    Server(FlowServer),
    /// Bulk flows; prints a [`FlowOutcome`] of each.
    Flows(FlowClient),
    /// Objects on new connections; prints an [`ObjectOutcome`].
    Objects(ObjectClient),
}

/// Runs a worker. With `ahead`, it runs ahead of everything else on the machine
/// (SCHED_FIFO): kernel TCP works in softirq, ahead of everything, and a user-space stack
/// must not look bad because of a neighbour's compiler. It sleeps when it has nothing to
/// do, and even otherwise the kernel leaves other threads a twentieth of the time.
pub(super) fn run(job: &FlowJob, ahead: bool) -> anyhow::Result<()> {
    if ahead && let Err(error) = set_fifo(1) {
        eprintln!("shares the processor with others on equal terms: {error}");
    }
    match job {
        FlowJob::Server(job) => return server::run(job),
        FlowJob::Flows(job) => println!("{}", serde_json::to_string(&client::flows(job))?),
        FlowJob::Objects(job) => println!("{}", serde_json::to_string(&client::objects(job))?),
    }
    Ok(())
}

/// A server of bulk and objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowServer {
    /// Address to listen on.
    pub address: SocketAddrV4,
    /// The stack.
    pub host: FlowHost,
    /// Bytes per write; `None`: [`CHUNK`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<usize>,
}

/// The stack of a server of bulk and objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowHost {
    /// Kernel sockets.
    Linux {
        /// TCP_CONGESTION.
        congestion: String,
    },
    /// A stack that takes an interface.
    Tidewall {
        /// The interface.
        interface: String,
        /// Processor of its threads.
        cpu: usize,
    },
    /// A stack at the far end of a tap.
    Tap {
        /// Name of the interface to create.
        interface: String,
    },
}

/// The direction of a client's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The server sends.
    Fetch,
    /// The client sends.
    Give,
}

/// A client with bulk flows, each for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowClient {
    /// The flows.
    pub flows: Vec<FlowSpec>,
    /// TCP_CONGESTION.
    pub congestion: String,
}

/// A bulk flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// The server.
    pub server: SocketAddrV4,
    /// Local port; 0: any.
    pub port: u16,
    /// The sender.
    pub way: Way,
    /// When it begins, ms.
    pub after_ms: u64,
    /// How long its bytes are counted, ms.
    pub duration_ms: u64,
}

/// The result of a flow at the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowOutcome {
    /// Bytes received in the counted time.
    pub bytes: u64,
    /// That time, ns.
    pub nanoseconds: u64,
    /// Bytes received until the end of each [`TICK_MS`] since the client began.
    pub timeline: Vec<u64>,
    /// The kernel's figures at the end.
    pub figures: Figures,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Bytes of one read or write.
pub const CHUNK: usize = 256 << 10;
/// Steps of a timeline, ms.
pub const TICK_MS: u64 = 100;

/// A client that fetches objects, each on a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectClient {
    /// The server.
    pub server: SocketAddrV4,
    /// Local port of the first; the others follow.
    pub first_port: u16,
    /// Number of objects.
    pub count: u16,
    /// Number of concurrent objects.
    pub at_once: u16,
    /// Bytes per object.
    pub bytes: u64,
    /// TCP_CONGESTION.
    pub congestion: String,
}

/// The results of objects, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectOutcome {
    /// For each: time of connecting, and from the first SYN to the last byte, ns.
    pub times: Vec<(u64, u64)>,
    /// Why objects failed.
    pub failed: Vec<String>,
}

/// The server's record of a connection that has ended, or whose time has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The client's port.
    pub port: u16,
    /// Bytes received in the counted time.
    pub bytes: u64,
    /// That time, ns.
    pub nanoseconds: u64,
    /// The stack's figures.
    pub figures: Figures,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// Bulk for this many ms.
    Fetch(u64),
    /// The client sends bulk, of which this many ms are counted.
    Give(u64),
    /// This many bytes.
    Object(u64),
}

/// Bytes of a request.
const REQUEST: usize = 9;

impl Request {
    fn to_bytes(self) -> [u8; REQUEST] {
        let (kind, number) = match self {
            Request::Fetch(number) => (b'<', number),
            Request::Give(number) => (b'>', number),
            Request::Object(number) => (b'o', number),
        };
        let mut bytes = [kind; REQUEST];
        bytes[1..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let [kind, number @ ..] = bytes.first_chunk::<REQUEST>()?;
        let number = u64::from_be_bytes(*number);
        match kind {
            b'<' => Some(Request::Fetch(number)),
            b'>' => Some(Request::Give(number)),
            b'o' => Some(Request::Object(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::atomic::{AtomicBool, Ordering};

    use tidewall_service::StreamHost;
    use tidewall_service::linux_stream::{self, LinuxStreams};

    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

    /// Runs a server on kernel sockets for as long as `work` takes; returns its records
    /// of the connections.
    fn served(work: impl FnOnce(SocketAddrV4)) -> Vec<Transfer> {
        let (ready, address) = std::sync::mpsc::channel();
        let stop = AtomicBool::new(false);
        let ledger = server::Ledger::default();
        std::thread::scope(|scope| {
            let (stop, ledger) = (&stop, &ledger);
            scope.spawn(move || {
                let host = LinuxStreams::new(linux_stream::Options::default()).unwrap();
                let listener = host.listen((HERE, 0).into(), 16).unwrap();
                let SocketAddr::V4(address) = host.local_address(&listener).unwrap() else {
                    panic!("not IPv4");
                };
                ready.send(address).unwrap();
                server::serve(&host, &listener, ledger, stop, CHUNK).unwrap();
            });
            work(address.recv().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        ledger.lock().unwrap().clone()
    }

    /// Returns a free port: it was just released.
    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind((HERE, 0)).unwrap();
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn bulk_is_counted_by_who_receives_it() {
        let ports = [free_port(), free_port()];
        let transfers = served(|server| {
            let flow = |number: usize, way| FlowSpec {
                server,
                port: ports[number],
                way,
                after_ms: 0,
                duration_ms: 150,
            };
            let client = FlowClient {
                flows: vec![flow(0, Way::Fetch), flow(1, Way::Give)],
                congestion: "reno".to_owned(),
            };
            let outcomes = client::flows(&client);
            let fetched = &outcomes[0];
            assert_eq!((&fetched.failed, fetched.nanoseconds), (&None, 150_000_000));
            assert!(fetched.bytes > 1_000_000, "{fetched:?}");
            assert!(!fetched.timeline.is_empty(), "{fetched:?}");
            let given = &outcomes[1];
            assert_eq!((&given.failed, given.bytes), (&None, 0));
            assert!(given.figures["segments sent"] > 10.0, "{given:?}");
        });
        let of = |port| transfers.iter().find(|transfer| transfer.port == port);
        let (sent, received) = (of(ports[0]).unwrap(), of(ports[1]).unwrap());
        assert_eq!((sent.bytes, received.nanoseconds), (0, 150_000_000));
        assert!(sent.figures["segments sent"] > 10.0, "{sent:?}");
        assert!(received.bytes > 1_000_000, "{received:?}");
    }

    #[test]
    fn objects_come_whole_and_one_that_does_not_is_reported() {
        let first_port = free_port();
        let transfers = served(|server| {
            let client = ObjectClient {
                server,
                first_port,
                count: 1,
                at_once: 2,
                bytes: 100_000,
                congestion: "reno".to_owned(),
            };
            let outcome = client::objects(&client);
            assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
            let [(connecting, all)] = outcome.times[..] else {
                panic!("{:?}", outcome.times);
            };
            assert!(0 < connecting && connecting < all);
            let nowhere = ObjectClient {
                server: SocketAddrV4::new(HERE, free_port()),
                first_port: free_port(),
                ..client
            };
            let outcome = client::objects(&nowhere);
            assert_eq!((outcome.times.len(), outcome.failed.len()), (0, 1));
        });
        // The client may have gone just before the server was stopped.
        assert!(transfers.len() <= 1);
    }

    #[test]
    fn requests_survive_their_bytes() {
        for request in [
            Request::Fetch(2_000),
            Request::Give(u64::MAX),
            Request::Object(100_000),
        ] {
            assert_eq!(Request::of(&request.to_bytes()), Some(request));
        }
        assert_eq!(Request::of(b"?12345678"), None);
        assert_eq!(Request::of(b"<123"), None);
    }
}
