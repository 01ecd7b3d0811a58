//! The manager as a daemon: who may have which application, port and block of ports.
//!
//! Lives here: [`Manager`], which decides and remembers, without a system call, a clock or
//! a thread; what it keeps of a port ([`ports`]) and for its successor ([`journal`]).
//! Whatever it changes it changes through a [`Device`], one step at a time: an interface
//! with the program pinned ([`direct`]). [`server`] is the loop around both,
//! and [`log`] what it reports.
//!
//! A process may die between any two steps, and any step may fail. So each change is
//! ordered such that what is left can be distinguished from what is whole: what is *made* is in the
//! journal before it exists and marked whole after; what is *taken away* is marked
//! incomplete first and leaves the journal last. A successor clears what is incomplete at
//! once, and what nobody presents after [`PRESENT_WITHIN`].

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

/// Sockets that hold ports, of all domains: as many descriptors the manager needs for them.
pub const HOLDERS: usize = 16_384;

/// How long applications of an earlier run have to present themselves, and their ports.
pub const PRESENT_WITHIN: Duration = Duration::from_secs(5);

/// A device, as far as a [`Manager`] changes it. Each call is one step: it has happened
/// when it returns `Ok`, and may be repeated.
pub trait Device {
    /// What an application is handed beside numbers.
    type Parts;

    /// Numbers that nobody can guess.
    ///
    /// # Errors
    /// What the kernel reports.
    fn random(&mut self) -> io::Result<[u8; 16]>;

    /// Takes a number for an application, one that `is_free`, and what lies ready for it.
    /// [`Device::clear`] gives it back.
    ///
    /// # Errors
    /// EBUSY where none is ready yet.
    fn take_number(&mut self, is_free: &dyn Fn(u16) -> bool) -> io::Result<u16>;

    /// The device as [`Joined`] describes it to applications; the manager fills in what is theirs.
    fn describe(&self) -> Joined;

    /// Writes an application's entry in the journal.
    ///
    /// # Errors
    /// What the kernel reports.
    fn record(&mut self, application: u16, entry: &Entry) -> io::Result<()>;

    /// Bytes of memory that an application keeps which joins so.
    ///
    /// # Errors
    /// EINVAL for sizes out of range.
    fn bytes(&self, join: &Join) -> io::Result<u64>;

    /// Whether anything that was handed to an application of this token, which has ended, is
    /// still referred to.
    ///
    /// # Errors
    /// What the kernel reports.
    fn is_held(&mut self, token: &[u8; 16]) -> io::Result<bool>;

    /// Makes the tables and queues of an application; how many queues, and what is to be
    /// handed over. In private mode no frame leaves by them that is not the application's
    /// to send.
    ///
    /// # Errors
    /// EBUSY where no queue is left; EOPNOTSUPP where there is no private mode; what the kernel reports. What is half made then is
    /// left to [`Device::clear`].
    fn make(
        &mut self,
        application: u16,
        join: &Join,
        private: bool,
    ) -> io::Result<(u32, Self::Parts)>;

    /// Takes tables and queues away, as far as there are some.
    ///
    /// # Errors
    /// What the kernel reports.
    fn clear(&mut self, application: u16) -> io::Result<()>;

    /// Has the driver give an application the frames of a port, also if another had them.
    ///
    /// # Errors
    /// ENOBUFS; what the kernel reports.
    fn own_port(&mut self, port: &PortKey, application: u16) -> io::Result<()>;

    /// Has the kernel get the frames of a port.
    ///
    /// # Errors
    /// What the kernel reports.
    fn disown_port(&mut self, port: &PortKey) -> io::Result<()>;

    /// Has the kernel asked about a socket that is kept, which may take long:
    /// [`Manager::looked_at`] gets the answer. `user`: whose it is, beside the owner of its
    /// file.
    fn look_at(&mut self, cookie: u64, user: u32);

    /// Has the kernel asked whether another user than this has a socket at a port:
    /// [`Manager::is_anothers`] is called if so.
    fn look_at_port(&mut self, port: &PortKey, user: u32);

    /// Keeps a copy of the socket that came beside the message, so that the kernel goes on
    /// refusing its port to others. `cookie`: its SO_COOKIE.
    ///
    /// # Errors
    /// EBADF where another socket came; EMFILE; what the kernel reports.
    fn keep(&mut self, cookie: u64) -> io::Result<()>;

    /// Closes the copy that is kept of a socket, if there is one.
    fn release(&mut self, cookie: u64);

    /// Has the driver give an application the frames of a circuit that nobody has.
    ///
    /// # Errors
    /// EADDRINUSE for one that an application has.
    fn own_circuit(&mut self, label: Label, application: u16) -> io::Result<()>;

    /// Has the kernel get the frames of a circuit.
    fn disown_circuit(&mut self, label: Label);

    /// Binds a kernel socket to each of these ports, as far as that has not been done, so
    /// that the kernel refuses them to others. Returns the first port that another has, behind
    /// which none is held.
    ///
    /// # Errors
    /// EMFILE; what the kernel reports. Some may be held then.
    fn hold_block(
        &mut self,
        protocol: Protocol,
        ports: RangeInclusive<u16>,
    ) -> io::Result<Option<u16>>;

    /// Closes those sockets, some in each turn of the loop: closing all of a domain's takes
    /// longer than a client is to wait.
    fn release_block(&mut self, protocol: Protocol, ports: RangeInclusive<u16>);

    /// Keeps these blocks, and no others of this manager's, from the kernel's own choice of
    /// ports.
    ///
    /// # Errors
    /// EADDRINUSE where others keep a port of a new block; what the kernel reports.
    fn reserve(&mut self, blocks: &Blocks) -> io::Result<()>;

    /// What the driver program counts on a queue; `None` where there is no such queue.
    fn counters(&self, queue: u32) -> Option<QueueCounters>;

    /// Time of the kernel's polling threads that an application was charged.
    fn charged(&self, application: u16) -> Duration;

    /// What concerns an application's own queues and nobody else: moderation, NAPI probes,
    /// input tests, helpers, neighbours. The answer, and what goes beside it.
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

    /// Whether a user is one of them by its id.
    pub fn names(&self, uid: u32) -> bool {
        matches!(self, Users::Listed(users) if users.contains(&uid))
    }
}

/// A user, or a unit of systemd's, whose processes a grant is for.
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

/// What the processes of a program or a unit may do, under any user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Have the device's queues, by which any frame can be sent; one of them at a time.
    Direct,
    /// Join in private mode.
    Private,
}

/// What a manager grants.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// User ids that may join, beside processes of user 0 with CAP_NET_RAW
    /// ([`Manager::may_send_anything`]). A queue of the device can send any frame, so they
    /// are trusted as with that capability.
    pub trusted: Vec<u32>,
    /// Who may join beside those, in private mode.
    pub private: Users,
    /// Units whose processes may join, and as what: whatever their users are, they are that
    /// unit's. Each is a domain of its own; all others' domains are their users.
    pub units: Vec<(UnitName, Trust)>,
    /// Weights of domains that have another than 1: their parts of what they contend for.
    pub weights: Vec<(Whom, u32)>,
    /// What the processes of the program that this manager is for may do
    /// ([`Manager::is_of_program`]); others then join in private mode if their users are
    /// among `private`, and else not at all. `None`: it is for no program.
    pub program: Option<Trust>,
    /// Ports that private applications may own, and all of a program's manager, beside those
    /// that leases are cut from, by which a client goes out; `None`: all that they can bind a
    /// socket to.
    pub ports: Option<PortRanges>,
    /// Connections, before they join, of all users who may join because every user may and
    /// have no application.
    pub clients: usize,
    /// Connections, before they join, of one user.
    pub clients_of_user: usize,
    /// Applications of one domain, with those that have ended and of which something is still
    /// referred to.
    pub applications_of_domain: usize,
    /// Bytes that all of these have been handed; `None`: as many as that many applications
    /// take that ask for nothing special.
    pub bytes_of_domain: Option<u64>,
    /// Sockets of one domain that hold ports.
    pub holders_of_domain: usize,
    /// Sockets of all domains that hold ports: the manager has a copy of each.
    pub holders: usize,
    /// Blocks of one domain.
    pub blocks_of_domain: usize,
    /// Calls of one domain, those that it has not accepted aside.
    pub calls_of_domain: usize,
    /// Ports that leases are cut from.
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
            // As net.ipv4.ip_local_port_range begins.
            lease_ports: 32_768..=60_999,
        }
    }
}
