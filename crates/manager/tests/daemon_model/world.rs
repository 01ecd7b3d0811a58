//! Processes, their sockets and the manager, and the events that they undergo.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;
use tidewall_manager::connection::Credentials;
use tidewall_manager::daemon::ports::{HolderFacts, PortKey, Proof};
use tidewall_manager::daemon::{
    ClientId, Limits, Manager, PRESENT_WITHIN, Recovered, Reply, Users,
};
use tidewall_manager::protocol::*;

use crate::action::{Action, Change};
use crate::device::FakeDevice;
use crate::kernel::{Bound, Socket, State};
use crate::{LOOK_EVERY, RETRY};

#[derive(Default)]
pub struct Process {
    pub uid: u32,
    pub client: Option<ClientId>,
    /// The manager's answer when it joined.
    pub joined: Option<Joined>,
    /// Ports that the manager confirmed, in this connection.
    pub owned: BTreeMap<u64, Vec<PortKey>>,
    pub blocks: Vec<Block>,
}

/// Users of processes that know the manager: the last ones have private mode.
pub const UIDS: [u32; 7] = [0, 1000, 1000, 2000, UNTRUSTED, PRIVATE[0], PRIVATE[1]];
pub const UNTRUSTED: u32 = 3000;
const PRIVATE: [u32; 2] = [4000, 5000];
/// Users of processes that do not know it.
pub const STRANGERS: [u32; 2] = [0, 6000];
pub const ADDRESSES: [&str; 5] = ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fd00::1"];
/// Sockets that the manager was shown, and those that it accepted as holders.
pub static ASKED: AtomicUsize = AtomicUsize::new(0);
pub static OWNED: AtomicUsize = AtomicUsize::new(0);
pub const PORTS: [u16; 3] = [80, 33_100, 33_400];

pub struct World {
    pub device: FakeDevice,
    pub manager: Manager,
    pub processes: Vec<Process>,
    pub now: Duration,
    pub next: u64,
    /// Start of the present run of the daemon, if another preceded it.
    pub restarted: Option<Duration>,
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.trusted = vec![1000, 2000];
    limits.private = Users::Listed(PRIVATE.into());
    limits.applications_of_domain = 2;
    limits.holders_of_domain = 4;
    limits.blocks_of_domain = 2;
    limits.clients_of_user = 2;
    limits.lease_ports = 32_800..=34_000;
    limits
}

pub fn block_keys(block: &Block) -> impl Iterator<Item = PortKey> {
    let protocol = transport(block.protocol).unwrap();
    let ports = block.first..block.first + block.count;
    ports.flat_map(move |port| PortKey::on_all(protocol, port))
}

impl World {
    pub fn new() -> Self {
        let mut device = FakeDevice::new();
        let now = Duration::from_secs(1000);
        let manager = Manager::new(limits(), Recovered::default(), now, &mut device);
        let processes = UIDS.iter().map(|&uid| Process {
            uid,
            ..Process::default()
        });
        World {
            device,
            manager,
            processes: processes.collect(),
            now,
            next: 1,
            restarted: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn ask(&mut self, process: usize, request: &Request, holder: Option<HolderFacts>) -> Answer {
        self.ask_bytes(process, &request.emit(7), holder)
    }

    /// `Done` if the daemon was killed before it answered.
    fn ask_bytes(&mut self, process: usize, bytes: &[u8], holder: Option<HolderFacts>) -> Answer {
        let Some(client) = self.processes[process].client else {
            return Answer::Done(Empty {});
        };
        let (now, holder) = (self.now, holder.as_ref());
        self.device.worked = Duration::ZERO;
        self.device.shown = holder.map(|holder| holder.cookie);
        let (_, reply) = self
            .manager
            .handle(client, bytes, holder, now, &mut self.device);
        self.device.end_turn();
        if self.device.killed {
            return Answer::Done(Empty {});
        }
        match reply {
            Reply::Answer(answer, _) => answer,
            Reply::Joined(joined, ()) => Answer::Joined(joined),
            Reply::Attached(attached) => Answer::AtmAttached(attached),
            Reply::Left => {
                self.disconnected(process);
                self.processes[process].joined = None;
                Answer::Done(Empty {})
            }
        }
    }

    /// The end of a connection, as its process sees it.
    fn disconnected(&mut self, process: usize) {
        let process = &mut self.processes[process];
        process.client = None;
        process.owned.clear();
        process.blocks.clear();
    }

    fn hang_up(&mut self, process: usize) {
        if let Some(client) = self.processes[process].client {
            self.manager.gone(client, self.now, &mut self.device);
        }
        self.disconnected(process);
    }

    pub fn act(&mut self, action: Action) {
        match action {
            Action::Connect(process) => {
                if self.processes[process].client.is_some() {
                    return;
                }
                let client = self.number();
                let uid = self.processes[process].uid;
                let credentials = Credentials { uid, pid: 1 };
                let connected = self.manager.connected(client, credentials);
                if uid == 0 {
                    self.manager.may_send_anything(client);
                }
                if connected
                    .and_then(|()| self.manager.admit(client, self.now))
                    .is_ok()
                {
                    assert_ne!(uid, UNTRUSTED);
                    self.processes[process].client = Some(client);
                }
            }
            Action::Join(process, queues) => {
                let join = Request::Join(Join {
                    queues: 1,
                    frames: 0,
                    receive_ring: 0,
                    flags: if queues { 0 } else { JOIN_WITHOUT_QUEUES },
                });
                if let Answer::Joined(joined) = self.ask(process, &join, None) {
                    assert_ne!(self.processes[process].uid, UNTRUSTED);
                    self.processes[process].joined = Some(joined);
                }
            }
            Action::Bind { .. } => self.bind(&action),
            Action::Change(socket, change) => self.change(socket, change),
            Action::Own(process, socket) => self.own(process, socket),
            Action::OwnWrongly(process, socket, how) => self.own_wrongly(process, socket, how),
            Action::Disown(process, socket) => {
                let Some(socket) = self.device.kernel.sockets.get(socket) else {
                    return;
                };
                let cookie = socket.facts.cookie;
                let answer = self.ask(process, &Request::DisownPort(Holder { cookie }), None);
                if matches!(answer, Answer::Done(_)) {
                    self.processes[process].owned.remove(&cookie);
                }
            }
            Action::CloseSocket(socket) => {
                if let Some(&Socket { facts, .. }) = self.device.kernel.sockets.get(socket) {
                    let kernel = &mut self.device.kernel;
                    kernel.close(|socket| socket.facts.cookie == facts.cookie);
                }
            }
            Action::Lease(process, tcp) => {
                let protocol = if tcp { 6 } else { 17 };
                let pad = [0; 7];
                let lease = Request::Lease(Transport { protocol, pad });
                if let Answer::Leased(block) = self.ask(process, &lease, None) {
                    let ports = block.first..=block.first + (block.count - 1);
                    assert!(!ports.contains(&33_000), "somebody else has a port of it");
                    assert!(*ports.start() >= 32_800 && *ports.end() <= 34_000);
                    self.processes[process].blocks.push(block);
                }
            }
            Action::Return(process, block) => {
                let Some(block) = self.processes[process].blocks.get(block).cloned() else {
                    return;
                };
                let back = Request::ReturnLease(block.clone());
                if matches!(self.ask(process, &back, None), Answer::Done(_)) {
                    self.processes[process]
                        .blocks
                        .retain(|other| *other != block);
                }
            }
            Action::ReturnForeign(process, first) => {
                let block = Block {
                    first,
                    count: 1,
                    protocol: 6,
                    pad: [0; 3],
                };
                let own = |other: &Block| {
                    (other.protocol, other.first / BLOCK_PORTS) == (6, first / BLOCK_PORTS)
                };
                if !self.processes[process].blocks.iter().any(own) && !self.may_be_leased(process) {
                    let answer = self.ask(process, &Request::ReturnLease(block), None);
                    assert!(self.device.killed || !self.is_connected(process) || refuses(&answer));
                }
            }
            Action::Present(process) => self.present(process),
            Action::Keep(process) => {
                let Process { uid, joined, .. } = &self.processes[process];
                if let (true, Some(joined)) = (self.is_connected(process), joined) {
                    self.device.kept.insert(joined.token, *uid);
                }
            }
            Action::DropKept => self.device.kept.clear(),
            Action::Leave(process) => {
                self.ask(process, &Request::Leave(Empty {}), None);
            }
            Action::Die(process) => {
                self.device
                    .kernel
                    .close(|socket| socket.process == Some(process));
                self.hang_up(process);
                self.processes[process].joined = None;
            }
            Action::Garbage(process, bytes) => {
                self.ask_bytes(process, &bytes, None);
            }
            Action::Inject(fault) => self.device.fault = Some(fault),
            Action::Kill => self.device.killed = true,
            Action::Wait(milliseconds) => {
                self.advance(self.now + Duration::from_millis(milliseconds.into()));
            }
        }
    }

    /// As the daemon's loop: it turns whenever something is due, unless it is killed.
    pub fn advance(&mut self, to: Duration) {
        while !self.device.killed && self.now < to {
            let due = self.manager.deadline().unwrap_or(to);
            self.now = due.clamp(self.now, to);
            while let Some(client) = self.manager.overdue(self.now) {
                self.manager.gone(client, self.now, &mut self.device);
                let of_client = |process: &Process| process.client == Some(client);
                let process = self.processes.iter().position(of_client).unwrap();
                self.disconnected(process);
            }
            self.tick();
        }
    }

    fn is_joined(&self, process: usize) -> bool {
        self.is_connected(process) && self.processes[process].joined.is_some()
    }

    fn is_connected(&self, process: usize) -> bool {
        self.processes[process].client.is_some()
    }

    /// A lease was granted and the answer lost with the daemon.
    fn may_be_leased(&self, process: usize) -> bool {
        self.processes[process].joined.is_some() && self.restarted.is_some()
    }

    fn bind(&mut self, action: &Action) {
        let &Action::Bind {
            process,
            address,
            port,
            tcp,
            only_v6,
            shares,
            device,
            listens,
        } = action
        else {
            return;
        };
        if self.device.kernel.sockets.len() >= 8 {
            return;
        }
        let local = SocketAddr::new(ADDRESSES[address].parse().unwrap(), PORTS[port]);
        let cookie = self.number();
        let users = UIDS.iter().chain(&STRANGERS);
        let bound = self.device.kernel.bind(Socket {
            facts: HolderFacts {
                protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
                local,
                dual: local.is_ipv6() && !only_v6,
                cookie,
                here: true,
                proof: Proof::Alone,
            },
            process: Some(process),
            user: users.copied().nth(process).unwrap(),
            shares,
            device,
            state: State::Idle,
            kept: false,
            changed: false,
        });
        if bound && listens {
            self.device.kernel.listen(cookie);
        }
    }

    fn change(&mut self, socket: usize, change: Change) {
        let Some(socket) = self.device.kernel.sockets.get_mut(socket) else {
            return;
        };
        if socket.process.is_none() {
            return;
        }
        socket.changed = true;
        let cookie = socket.facts.cookie;
        match change {
            Change::Share(shares) => socket.shares = shares,
            // Without a capability it works only the first time.
            Change::BindToDevice(device) if socket.device == Bound::Nowhere => {
                socket.device = device;
            }
            Change::BindToDevice(_) => {}
            Change::Listen => self.device.kernel.listen(cookie),
            Change::Connect => self.device.kernel.connect(cookie),
            Change::Shut => {
                self.device.kernel.shut(cookie);
                // The kernel reports that for a listener.
                let now = self.now;
                self.manager.holder_changed(cookie, now, &mut self.device);
                self.look_for_manager();
            }
        }
    }

    pub fn tick(&mut self) {
        self.device.worked = Duration::ZERO;
        self.manager.tick(self.now, &mut self.device);
        self.device.end_turn();
        self.look_for_manager();
    }

    /// Does the threads' work.
    pub fn look_for_manager(&mut self) {
        let (now, device) = (self.now, &mut self.device);
        for (cookie, user) in std::mem::take(&mut device.looks) {
            let facts = device.kernel.shown(cookie, user);
            self.manager.looked_at(cookie, facts.as_ref(), now, device);
        }
        for (key, user) in std::mem::take(&mut device.port_looks) {
            if device.kernel.is_anothers(&key, user) {
                self.manager.is_anothers(&key, now, device);
            }
        }
    }

    /// Advances time until the manager has examined what others may have changed, where
    /// that matters.
    pub fn look(&mut self) {
        while self.device.killed || self.robbed().is_some() {
            if self.device.killed {
                self.restart();
                self.retry();
                continue;
            }
            let before = self.manager.deadline();
            self.advance(self.now + LOOK_EVERY);
            self.retry();
            if !self.device.killed && self.robbed().is_some() {
                panic!("{:?} {before:?} {:?}", self.robbed(), self.device.table);
            }
        }
    }

    fn port_of(facts: &HolderFacts) -> Port {
        Port {
            address: address_bytes(facts.local.ip()),
            port: facts.local.port(),
            protocol: facts.protocol as u8,
            pad: 0,
        }
    }

    fn own(&mut self, process: usize, socket: usize) {
        // One of its own sockets, if there is one.
        let sockets = &self.device.kernel.sockets;
        let is_own = |socket: &&Socket| socket.process == Some(process);
        let own: Vec<&Socket> = sockets.iter().filter(is_own).collect();
        let chosen = match own.is_empty() {
            true => sockets.get(socket),
            false => own.get(socket % own.len()).copied(),
        };
        let Some(&Socket { facts, .. }) = chosen else {
            return;
        };
        let user = self.processes[process].uid;
        let Some(facts) = self.device.kernel.shown(facts.cookie, user) else {
            return;
        };
        let request = Request::OwnPort(Self::port_of(&facts));
        ASKED.fetch_add(usize::from(self.is_joined(process)), Relaxed);
        if let Answer::Owned(holder) = self.ask(process, &request, Some(facts)) {
            OWNED.fetch_add(1, Relaxed);
            assert_eq!(holder.cookie, facts.cookie);
            let owned = &mut self.processes[process].owned;
            let before = owned.insert(facts.cookie, facts.keys());
            if let Some(socket) = self.device.kernel.get(facts.cookie)
                && before.is_none()
            {
                socket.changed = false;
            }
        }
    }

    fn own_wrongly(&mut self, process: usize, socket: usize, how: u8) {
        let Some(&Socket { mut facts, .. }) = self.device.kernel.sockets.get(socket) else {
            return;
        };
        let mut port = Self::port_of(&facts);
        let mut passed = true;
        match how {
            0 => port.port ^= 1,
            1 => port.address[15] ^= 1,
            2 => facts.here = false,
            _ => passed = false,
        }
        let answer = self.ask(process, &Request::OwnPort(port), passed.then_some(facts));
        assert!(self.device.killed || !self.is_connected(process) || refuses(&answer));
    }

    fn present(&mut self, process: usize) {
        let Some(joined) = self.processes[process].joined.clone() else {
            return;
        };
        let token = joined.token;
        match self.ask(process, &Request::Present(Present { token }), None) {
            Answer::Joined(again) => {
                assert_eq!(again.application, joined.application);
                assert!(
                    self.restarted
                        .is_some_and(|at| self.now <= at + PRESENT_WITHIN)
                );
                // Blocks that it does not know, since the answer was lost, are returned.
                self.processes[process].blocks = leased_blocks(&again.leases);
            }
            Answer::Error(failure) if failure.errno == libc::ENOENT => {
                self.processes[process].joined = None;
            }
            _ => {}
        }
    }

    pub fn restart(&mut self) {
        // Only the run that handed something over knows what is left of it.
        self.device.kept.clear();
        for process in 0..self.processes.len() {
            self.disconnected(process);
        }
        // Killed again while it recovers, but not for ever.
        for _ in 0..4 {
            self.device.killed = false;
            // The process's own sockets.
            self.device.kernel.held.clear();
            self.device.kernel.release(|_| true);
            self.device.looks.clear();
            self.device.port_looks.clear();
            let recovered = Recovered {
                entries: self.device.journal.clone(),
                ports: self
                    .device
                    .table
                    .iter()
                    .map(|(&key, &application)| (key, application))
                    .collect(),
                circuits: Vec::new(),
            };
            self.restarted = Some(self.now);
            self.manager = Manager::new(limits(), recovered, self.now, &mut self.device);
            if !self.device.killed {
                return;
            }
            self.device.fault = None;
        }
    }

    /// Continues until no failed step is left.
    pub fn retry(&mut self) {
        while std::mem::take(&mut self.device.failed) && !self.device.killed {
            self.now += RETRY;
            self.tick();
        }
    }
}

fn refuses(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(_))
}

/// The blocks of a set, as leases name them.
fn leased_blocks(leases: &[Blocks; 2]) -> Vec<Block> {
    let limits = limits().lease_ports;
    let mut blocks = Vec::new();
    for (protocol, of) in [17, 6].into_iter().zip(leases) {
        for number in 0..256u16 {
            if of[usize::from(number / 64)] & (1 << (number % 64)) != 0 {
                let first = (number * BLOCK_PORTS).max(*limits.start());
                let last = (number * BLOCK_PORTS + (BLOCK_PORTS - 1)).min(*limits.end());
                blocks.push(Block {
                    first,
                    count: last - first + 1,
                    protocol,
                    pad: [0; 3],
                });
            }
        }
    }
    blocks
}
