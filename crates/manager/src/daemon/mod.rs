//! The manager as a daemon: decides who may have which application, port and block of
//! ports.
//!
//! Lives here: [`Manager`], which decides and remembers, without a system call, a clock
//! or a thread. Also its state of ports ([`ports`]) and its record for its successor
//! ([`journal`]). It makes every change through a [`Device`], one step at a time: an
//! interface with the program pinned ([`direct`]). [`server`] is the loop around both,
//! and [`log`] its log.
//!
//! A process may die between any two steps, and any step may fail. So changes are ordered
//! such that an incomplete state can be told from a complete one. An object being
//! *created* is in the journal before it exists, and marked complete after. An object
//! being *removed* is marked incomplete first, and leaves the journal last. A successor
//! clears incomplete objects at once, and unpresented ones after [`PRESENT_WITHIN`].

mod budget;
pub mod circuits;
mod closing;
mod descent;
pub mod direct;
mod foreign;
mod handed;
pub mod journal;
pub mod log;
mod manager;
pub mod metrics;
mod neighbours;
mod order;
mod polls;
pub mod ports;
mod private;
mod process;
mod queues;
mod reserved;
pub mod server;
mod slots;
pub mod unit;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;
use tidewall_wire::atm::pseudowire::Label;

use crate::protocol::{Answer, Blocks, Join, Joined, QueueCounters, Request};
use journal::Entry;
use ports::{PortKey, PortRanges};
use unit::UnitName;

pub use descent::ancestors;
pub use foreign::ForeignFd;
pub use manager::{ClientId, Manager, Recovered, Refusal, Reply};
pub use polls::Payer;

/// Sockets that hold ports, of all domains: the manager needs as many descriptors for
/// them.
pub const HOLDERS: usize = 16_384;

/// How long applications of an earlier run have to present themselves, and their ports.
pub const PRESENT_WITHIN: Duration = Duration::from_secs(5);

/// The device, as far as a [`Manager`] changes it. Each call is one step: it has happened
/// when it returns `Ok`, and may be repeated.
pub trait Device {
    /// The objects handed over to an application beside numbers.
    type Parts;

    /// Returns unguessable random bytes.
    ///
    /// # Errors
    /// Those the kernel reports.
    fn random(&mut self) -> io::Result<[u8; 16]>;

    /// Takes a number for an application, one that `is_free`, and what is prepared for
    /// it. [`Device::clear`] returns it.
    ///
    /// # Errors
    /// EBUSY where none is ready yet.
    fn take_number(&mut self, is_free: &dyn Fn(u16) -> bool) -> io::Result<u16>;

    /// The device as [`Joined`] describes it to applications; the manager adds the
    /// application's own fields.
    fn describe(&self) -> Joined;

    /// Writes an application's entry in the journal.
    ///
    /// # Errors
    /// Those the kernel reports.
    fn record(&mut self, application: u16, entry: &Entry) -> io::Result<()>;

    /// Bytes of memory that an application with this Join keeps.
    ///
    /// # Errors
    /// EINVAL for sizes out of range.
    fn bytes(&self, join: &Join) -> io::Result<u64>;

    /// Whether anything handed over to an ended application with this token is still
    /// referenced.
    ///
    /// # Errors
    /// Those the kernel reports.
    fn is_held(&mut self, token: &[u8; 16]) -> io::Result<bool>;

    /// Makes the tables and queues of an application. Returns the number of queues, and
    /// what is to be handed over. In private mode only frames that the application may
    /// send leave by the queues.
    ///
    /// # Errors
    /// EBUSY where no queue is left; EOPNOTSUPP where there is no private mode; what the
    /// kernel reports. [`Device::clear`] removes what is then half made.
    fn make(
        &mut self,
        application: u16,
        join: &Join,
        private: bool,
    ) -> io::Result<(u32, Self::Parts)>;

    /// Removes tables and queues, as far as they exist.
    ///
    /// # Errors
    /// Those the kernel reports.
    fn clear(&mut self, application: u16) -> io::Result<()>;

    /// Makes the driver deliver a port's frames to an application, even if another
    /// received them.
    ///
    /// # Errors
    /// ENOBUFS; what the kernel reports.
    fn own_port(&mut self, port: &PortKey, application: u16) -> io::Result<()>;

    /// Leaves a port's frames to the kernel.
    ///
    /// # Errors
    /// Those the kernel reports.
    fn disown_port(&mut self, port: &PortKey) -> io::Result<()>;

    /// Queries the kernel about a kept socket, which may take long:
    /// [`Manager::looked_at`] gets the answer. `user`: its user, beside the owner of its
    /// file.
    fn look_at(&mut self, cookie: u64, user: u32);

    /// Queries the kernel whether a user other than this has a socket at a port:
    /// [`Manager::is_anothers`] is called if so.
    fn look_at_port(&mut self, port: &PortKey, user: u32);

    /// Keeps a copy of the socket that came beside the message, so that the kernel
    /// continues to refuse its port to others. `cookie`: its SO_COOKIE.
    ///
    /// # Errors
    /// EBADF where another socket came; EMFILE; what the kernel reports.
    fn keep(&mut self, cookie: u64) -> io::Result<()>;

    /// Closes the kept copy of a socket, if there is one.
    fn release(&mut self, cookie: u64);

    /// Makes the driver deliver the frames of an unowned circuit to an application.
    ///
    /// # Errors
    /// EADDRINUSE for one that an application owns.
    fn own_circuit(&mut self, label: Label, application: u16) -> io::Result<()>;

    /// Leaves a circuit's frames to the kernel.
    fn disown_circuit(&mut self, label: Label);

    /// Binds a kernel socket to each of these ports, as far as that has not been done, so
    /// that the kernel refuses them to others. Returns the first port that another socket
    /// has; no later port is held then.
    ///
    /// # Errors
    /// EMFILE; what the kernel reports. Some may be held then.
    fn hold_block(
        &mut self,
        protocol: Protocol,
        ports: RangeInclusive<u16>,
    ) -> io::Result<Option<u16>>;

    /// Closes those sockets, some in each turn of the loop: closing all of a domain's
    /// takes longer than a client should wait.
    fn release_block(&mut self, protocol: Protocol, ports: RangeInclusive<u16>);

    /// Excludes exactly these blocks of this manager from the kernel's own choice of
    /// ports.
    ///
    /// # Errors
    /// EADDRINUSE where others have reserved a port of a new block; what the kernel
    /// reports.
    fn reserve(&mut self, blocks: &Blocks) -> io::Result<()>;

    /// The driver program's counters of a queue; `None` if there is no such queue.
    fn counters(&self, queue: u32) -> Option<QueueCounters>;

    /// Time of the kernel's polling threads charged to an application.
    fn charged(&self, application: u16) -> Duration;

    /// Handles requests that concern only an application's own queues: moderation, NAPI
    /// probes, input tests, helpers, neighbours. Returns the answer, and its descriptors.
    ///
    /// # Errors
    /// EINVAL for a queue that is not its own; EOPNOTSUPP; what the kernel reports.
    fn request(
        &mut self,
        application: u16,
        request: &Request,
    ) -> io::Result<(Answer, Vec<OwnedFd>)>;
}

/// Users, by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// All.
    Any,
    /// These.
    Listed(Vec<u32>),
}

impl Users {
    /// Whether a user is one of them.
    pub fn contains(&self, uid: u32) -> bool {
        match self {
            Users::Any => true,
            Users::Listed(users) => users.contains(&uid),
        }
    }

    /// Whether a user is listed by its id.
    pub fn names(&self, uid: u32) -> bool {
        matches!(self, Users::Listed(users) if users.contains(&uid))
    }
}

/// The user or systemd unit whose processes a grant is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// By its id.
    User(u32),
    /// By its name.
    Unit(UnitName),
}

impl FromStr for Whom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(user) => Ok(Whom::User(user)),
            Err(_) => text.parse().map(Whom::Unit),
        }
    }
}

/// Permissions of a program's or unit's processes, under any user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// May have the device's queues, which can send any frame; one of them at a time.
    Direct,
    /// May join in private mode.
    Private,
}

/// A manager's policy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// User ids that may join, beside processes of user 0 with CAP_NET_RAW
    /// ([`Manager::may_send_anything`]). A queue of the device can send any frame, so they
    /// are trusted as with that capability.
    pub trusted: Vec<u32>,
    /// Further users who may join, in private mode.
    pub private: Users,
    /// Units whose processes may join, and in which mode. Whatever their users are, the
    /// processes belong to that unit. Each unit is a separate domain; all other domains
    /// are users.
    pub units: Vec<(UnitName, Trust)>,
    /// Weights of domains with a weight other than 1: their shares of contended
    /// resources.
    pub weights: Vec<(Whom, u32)>,
    /// Permissions of the processes of this manager's program
    /// ([`Manager::is_of_program`]). Other processes then join in private mode if their
    /// users are among `private`, and otherwise not at all. `None`: it is for no program.
    pub program: Option<Trust>,
    /// Ports that private applications, and all applications of a program's manager, may
    /// own. Lease ports, by which a client connects out, are additional. `None`: all
    /// ports that they can bind a socket to.
    pub ports: Option<PortRanges>,
    /// Connections, before they join, of all users who may join only because every user
    /// may, and have no application.
    pub clients: usize,
    /// Connections, before they join, of one user.
    pub clients_of_user: usize,
    /// Applications of one domain, including ended ones that are still referenced.
    pub applications_of_domain: usize,
    /// Bytes handed over to all of these; `None`: as many as that many applications with
    /// default requests take.
    pub bytes_of_domain: Option<u64>,
    /// Sockets of one domain that hold ports.
    pub holders_of_domain: usize,
    /// Sockets of all domains that hold ports: the manager has a copy of each.
    pub holders: usize,
    /// Blocks of one domain.
    pub blocks_of_domain: usize,
    /// Calls of one domain, excluding those that it has not accepted.
    pub calls_of_domain: usize,
    /// Port range of leases.
    pub lease_ports: RangeInclusive<u16>,
}

impl Default for Limits {
    /// For a server with a few services.
    fn default() -> Self {
        Limits {
            trusted: Vec::new(),
            private: Users::Listed(Vec::new()),
            units: Vec::new(),
            weights: Vec::new(),
            program: None,
            ports: None,
            clients: 256,
            clients_of_user: 64,
            applications_of_domain: 8,
            bytes_of_domain: None,
            holders_of_domain: 1024,
            holders: HOLDERS,
            blocks_of_domain: 64,
            calls_of_domain: 4096,
            // Start of net.ipv4.ip_local_port_range.
            lease_ports: 32_768..=60_999,
        }
    }
}
