//! The manager's state machine against a model: random processes that bind, ask, close,
//! die and lie, a device whose steps fail, and a daemon that is killed between any two
//! steps and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_manager::connection::Credentials;
use tidewall_manager::daemon::journal::{ACTIVE, Entry, FREE};
use tidewall_manager::daemon::ports::{HolderFacts, PortKey};
use tidewall_manager::daemon::{
    ClientId, Device, Limits, Manager, PRESENT_WITHIN, Recovered, Reply,
};
use tidewall_manager::protocol::*;

const RETRY: Duration = Duration::from_millis(100);

/// A step that is to fail, or before which the daemon is killed, so many steps from now.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing has happened.
    Fail(u8),
    /// It has happened all the same, where a step may.
    FailAfter(u8),
    Kill(u8),
}

struct FakeDevice {
    journal: Vec<Entry>,
    table: BTreeMap<PortKey, u16>,
    made: BTreeSet<u16>,
    reserved: Blocks,
    fault: Option<Fault>,
    killed: bool,
    failed: bool,
    drawn: u8,
}

impl FakeDevice {
    /// Whether the step is to have its effect, and what it returns.
    fn step(&mut self, may_fail_after: bool) -> (bool, io::Result<()>) {
        let error = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        if self.killed {
            return (false, error());
        }
        let (next, now) = match self.fault {
            Some(Fault::Fail(0)) => (None, Some((false, false))),
            Some(Fault::FailAfter(0)) => (None, Some((may_fail_after, false))),
            Some(Fault::Kill(0)) => (None, Some((false, true))),
            Some(Fault::Fail(steps)) => (Some(Fault::Fail(steps - 1)), None),
            Some(Fault::FailAfter(steps)) => (Some(Fault::FailAfter(steps - 1)), None),
            Some(Fault::Kill(steps)) => (Some(Fault::Kill(steps - 1)), None),
            None => (None, None),
        };
        self.fault = next;
        match now {
            Some((effect, kill)) => {
                self.killed = kill;
                self.failed = !kill;
                (effect, error())
            }
            None => (true, Ok(())),
        }
    }
}

impl Device for FakeDevice {
    type Parts = ();

    fn random(&mut self) -> io::Result<[u8; 16]> {
        self.drawn = self.drawn.wrapping_add(1);
        self.step(false).1.map(|()| [self.drawn; 16])
    }

    fn describe(&self) -> Joined {
        zerocopy::FromZeros::new_zeroed()
    }

    fn record(&mut self, application: u16, entry: &Entry) -> io::Result<()> {
        let (effect, result) = self.step(false);
        if effect {
            self.journal[usize::from(application)] = entry.clone();
        }
        result
    }

    fn make(&mut self, application: u16, join: &Join) -> io::Result<(u32, ())> {
        let (effect, result) = self.step(true);
        if effect {
            assert!(self.made.insert(application), "made twice");
        }
        result.map(|()| (join.queues, ()))
    }

    fn clear(&mut self, application: u16) -> io::Result<()> {
        let (effect, result) = self.step(true);
        if effect {
            self.made.remove(&application);
        }
        result
    }

    fn own_port(&mut self, port: &PortKey, application: u16) -> io::Result<()> {
        let (effect, result) = self.step(true);
        if effect {
            self.table.insert(*port, application);
        }
        result
    }

    fn disown_port(&mut self, port: &PortKey) -> io::Result<()> {
        let (effect, result) = self.step(true);
        if effect {
            self.table.remove(port);
        }
        result
    }

    fn is_free(&mut self, _: Protocol, ports: RangeInclusive<u16>) -> io::Result<bool> {
        // A socket of somebody else has one.
        let free = !ports.contains(&33_000);
        self.step(false).1.map(|()| free)
    }

    fn reserve(&mut self, blocks: &Blocks) -> io::Result<()> {
        let (effect, result) = self.step(false);
        if effect {
            self.reserved = *blocks;
        }
        result
    }

    fn counters(&self, _: u32) -> Option<QueueCounters> {
        None
    }

    fn request(&mut self, _: u16, _: &Request) -> io::Result<Answer> {
        self.step(false).1.map(|()| Answer::Done(Empty {}))
    }
}

/// A socket of the kernel's.
#[derive(Clone, Copy, Debug)]
struct Socket {
    facts: HolderFacts,
    process: usize,
}

#[derive(Default)]
struct Process {
    uid: u32,
    client: Option<ClientId>,
    /// What it was told when it joined.
    joined: Option<Joined>,
    /// Ports that it was told it owns, in this connection.
    owned: BTreeMap<u64, PortKey>,
    blocks: Vec<Block>,
}

const UIDS: [u32; 5] = [0, 1000, 1000, 2000, 3000];
const UNTRUSTED: u32 = 3000;
const ADDRESSES: [&str; 4] = ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1"];
const PORTS: [u16; 3] = [80, 33_100, 33_400];

struct World {
    device: FakeDevice,
    manager: Manager,
    processes: Vec<Process>,
    sockets: Vec<Socket>,
    now: Duration,
    next: u64,
    /// When the present run of the daemon began after another.
    restarted: Option<Duration>,
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.trusted = vec![1000, 2000];
    limits.applications_of_user = 2;
    limits.holders_of_user = 4;
    limits.blocks_of_user = 2;
    limits.clients_of_user = 2;
    limits.lease_ports = 32_800..=34_000;
    limits
}

#[derive(Clone, Debug)]
enum Action {
    Connect(usize),
    Join(usize),
    Bind {
        process: usize,
        address: usize,
        port: usize,
        tcp: bool,
        exclusive: bool,
    },
    /// Whichever socket there is, its own or not.
    Own(usize, usize),
    /// A socket that is bound elsewhere, in another namespace, or none.
    OwnWrongly(usize, usize, u8),
    Disown(usize, usize),
    CloseSocket(usize),
    Lease(usize, bool),
    Return(usize, usize),
    ReturnForeign(usize, u16),
    Present(usize),
    Leave(usize),
    Die(usize),
    Garbage(usize, Vec<u8>),
    Inject(Fault),
    Kill,
    Wait(u16),
}

fn action() -> impl Strategy<Value = Action> {
    let process = 0..UIDS.len();
    let fault = prop_oneof![
        (0..6u8).prop_map(Fault::Fail),
        (0..6u8).prop_map(Fault::FailAfter),
        (0..6u8).prop_map(Fault::Kill),
        // In the midst of a lease or its end.
        (0..250u8).prop_map(Fault::Kill),
        (0..250u8).prop_map(Fault::Fail),
    ];
    prop_oneof![
        6 => process.clone().prop_map(Action::Connect),
        6 => process.clone().prop_map(Action::Join),
        8 => (process.clone(), 0..ADDRESSES.len(), 0..PORTS.len(), any::<bool>(), any::<bool>())
            .prop_map(|(process, address, port, tcp, exclusive)| Action::Bind {
                process,
                address,
                port,
                tcp,
                exclusive,
            }),
        12 => (process.clone(), 0..8usize).prop_map(|(process, socket)| Action::Own(process, socket)),
        2 => (process.clone(), 0..8usize, 0..4u8)
            .prop_map(|(process, socket, how)| Action::OwnWrongly(process, socket, how)),
        3 => (process.clone(), 0..8usize)
            .prop_map(|(process, socket)| Action::Disown(process, socket)),
        2 => (0..8usize).prop_map(Action::CloseSocket),
        4 => (process.clone(), any::<bool>()).prop_map(|(process, tcp)| Action::Lease(process, tcp)),
        2 => (process.clone(), 0..2usize).prop_map(|(process, block)| Action::Return(process, block)),
        1 => (process.clone(), any::<u16>())
            .prop_map(|(process, first)| Action::ReturnForeign(process, first)),
        6 => process.clone().prop_map(Action::Present),
        1 => process.clone().prop_map(Action::Leave),
        3 => process.clone().prop_map(Action::Die),
        1 => (process, vec(any::<u8>(), 0..300))
            .prop_map(|(process, bytes)| Action::Garbage(process, bytes)),
        5 => fault.prop_map(Action::Inject),
        2 => Just(Action::Kill),
        3 => (0..3000u16).prop_map(Action::Wait),
    ]
}

fn block_keys(block: &Block) -> impl Iterator<Item = PortKey> {
    let protocol = transport(block.protocol).unwrap();
    (block.first..block.first + block.count).map(move |port| PortKey::any(protocol, port))
}

impl World {
    fn new() -> Self {
        let mut device = FakeDevice {
            journal: (0..APPLICATIONS).map(|_| Entry::free()).collect(),
            table: BTreeMap::new(),
            made: BTreeSet::new(),
            reserved: [0; 4],
            fault: None,
            killed: false,
            failed: false,
            drawn: 0,
        };
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
            sockets: Vec::new(),
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

    /// `Done` where the daemon was killed before it answered.
    fn ask_bytes(&mut self, process: usize, bytes: &[u8], holder: Option<HolderFacts>) -> Answer {
        let Some(client) = self.processes[process].client else {
            return Answer::Done(Empty {});
        };
        let (now, holder) = (self.now, holder.as_ref());
        let (_, reply) = self
            .manager
            .handle(client, bytes, holder, now, &mut self.device);
        if self.device.killed {
            return Answer::Done(Empty {});
        }
        match reply {
            Reply::Answer(answer) => answer,
            Reply::Joined(joined, ()) => Answer::Joined(joined),
            Reply::Left => {
                self.disconnected(process);
                self.processes[process].joined = None;
                Answer::Done(Empty {})
            }
        }
    }

    /// The end of a connection, as its process has it.
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

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(process) => {
                if self.processes[process].client.is_some() {
                    return;
                }
                let client = self.number();
                let uid = self.processes[process].uid;
                let credentials = Credentials { uid, pid: 1 };
                if self.manager.connected(client, credentials).is_ok() {
                    self.processes[process].client = Some(client);
                }
            }
            Action::Join(process) => {
                let join = Request::Join(Join {
                    queues: 1,
                    frames: 0,
                    receive_ring: 0,
                    flags: 0,
                });
                if let Answer::Joined(joined) = self.ask(process, &join, None) {
                    assert_ne!(self.processes[process].uid, UNTRUSTED);
                    self.processes[process].joined = Some(joined);
                }
            }
            Action::Bind {
                process,
                address,
                port,
                tcp,
                exclusive,
            } => self.bind(process, address, port, tcp, exclusive),
            Action::Own(process, socket) => self.own(process, socket),
            Action::OwnWrongly(process, socket, how) => self.own_wrongly(process, socket, how),
            Action::Disown(process, socket) => {
                let Some(socket) = self.sockets.get(socket) else {
                    return;
                };
                let cookie = socket.facts.cookie;
                let answer = self.ask(process, &Request::DisownPort(Holder { cookie }), None);
                if matches!(answer, Answer::Done(_)) {
                    self.processes[process].owned.remove(&cookie);
                }
            }
            Action::CloseSocket(socket) => {
                if socket < self.sockets.len() {
                    self.sockets.remove(socket);
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
            Action::Leave(process) => {
                self.ask(process, &Request::Leave(Empty {}), None);
            }
            Action::Die(process) => {
                self.sockets.retain(|socket| socket.process != process);
                self.hang_up(process);
                self.processes[process].joined = None;
            }
            Action::Garbage(process, bytes) => {
                self.ask_bytes(process, &bytes, None);
            }
            Action::Inject(fault) => self.device.fault = Some(fault),
            Action::Kill => self.device.killed = true,
            Action::Wait(milliseconds) => {
                self.now += Duration::from_millis(milliseconds.into());
                self.manager.tick(self.now, &mut self.device);
            }
        }
    }

    fn is_connected(&self, process: usize) -> bool {
        self.processes[process].client.is_some()
    }

    /// A lease was granted and the answer lost with the daemon.
    fn may_be_leased(&self, process: usize) -> bool {
        self.processes[process].joined.is_some() && self.restarted.is_some()
    }

    /// As the kernel binds: who shares with nobody is alone at an address and port.
    fn bind(&mut self, process: usize, address: usize, port: usize, tcp: bool, exclusive: bool) {
        let local = SocketAddr::new(ADDRESSES[address].parse().unwrap(), PORTS[port]);
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let conflict = self.sockets.iter().any(|Socket { facts, .. }| {
            (facts.protocol, facts.local) == (protocol, local) && (exclusive || facts.exclusive)
        });
        if conflict || self.sockets.len() >= 8 {
            return;
        }
        let facts = HolderFacts {
            protocol,
            local,
            cookie: self.number(),
            exclusive,
            here: true,
        };
        self.sockets.push(Socket { facts, process });
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
        let Some(&Socket { facts, .. }) = self.sockets.get(socket) else {
            return;
        };
        let request = Request::OwnPort(Self::port_of(&facts));
        if let Answer::Owned(holder) = self.ask(process, &request, Some(facts)) {
            assert_eq!(holder.cookie, facts.cookie);
            let key = PortKey::of(facts.protocol, facts.local);
            self.processes[process].owned.insert(facts.cookie, key);
        }
    }

    fn own_wrongly(&mut self, process: usize, socket: usize, how: u8) {
        let Some(&Socket { mut facts, .. }) = self.sockets.get(socket) else {
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
                // What it does not know of, as the answer was lost, it gives back.
                self.processes[process].blocks = leased_blocks(&again.leases);
            }
            Answer::Error(failure) if failure.errno == libc::ENOENT => {
                self.processes[process].joined = None;
            }
            _ => {}
        }
    }

    fn restart(&mut self) {
        for process in 0..self.processes.len() {
            self.disconnected(process);
        }
        // Killed again while it recovers, but not for ever.
        for _ in 0..4 {
            self.device.killed = false;
            let recovered = Recovered {
                entries: self.device.journal.clone(),
                ports: self
                    .device
                    .table
                    .iter()
                    .map(|(&key, &application)| (key, application))
                    .collect(),
            };
            self.restarted = Some(self.now);
            self.manager = Manager::new(limits(), recovered, self.now, &mut self.device);
            if !self.device.killed {
                return;
            }
            self.device.fault = None;
        }
    }

    /// Until nothing is left that failed.
    fn retry(&mut self) {
        while std::mem::take(&mut self.device.failed) && !self.device.killed {
            self.now += RETRY;
            self.manager.tick(self.now, &mut self.device);
        }
    }

    fn check(&self) {
        let device = &self.device;
        let mut leased = [0; 4];
        for (number, entry) in (0u16..).zip(&device.journal) {
            assert_eq!(entry.state == ACTIVE, device.made.contains(&number));
            if entry.state == FREE {
                assert!(device.table.values().all(|&owner| owner != number));
                continue;
            }
            assert_eq!(entry.state, ACTIVE, "left half way: {number}");
            let live = self.processes.iter().any(|process| {
                let joined = process.joined.as_ref();
                process.client.is_some() && joined.is_some_and(|of| of.token == entry.token)
            });
            let awaited = self
                .restarted
                .is_some_and(|at| self.now < at + PRESENT_WITHIN);
            assert!(live || awaited, "application {number} has no process");
            for (word, of) in leased
                .iter_mut()
                .zip(entry.leases[0].iter().zip(&entry.leases[1]))
            {
                *word |= of.0 | of.1;
            }
        }
        assert_eq!(device.reserved, leased);
        // What a process was told stays true while it is connected and its socket is there.
        for process in self
            .processes
            .iter()
            .filter(|process| process.client.is_some())
        {
            let Some(joined) = &process.joined else {
                continue;
            };
            let number = joined.application as u16;
            for (cookie, key) in &process.owned {
                if self
                    .sockets
                    .iter()
                    .any(|socket| socket.facts.cookie == *cookie)
                {
                    assert_eq!(device.table.get(key), Some(&number), "{key:?}");
                }
            }
            for key in process.blocks.iter().flat_map(block_keys) {
                assert_eq!(device.table.get(&key), Some(&number), "{key:?}");
            }
        }
        for uid in UIDS {
            let of_user = || {
                device
                    .journal
                    .iter()
                    .filter(move |of| of.uid == uid && of.state == ACTIVE)
            };
            assert!(of_user().count() <= 2);
            let blocks = of_user().flat_map(|entry| entry.leases.iter().flatten());
            assert!(blocks.map(|word| word.count_ones()).sum::<u32>() <= 2);
        }
    }

    fn end(&mut self) {
        self.device.fault = None;
        for process in 0..self.processes.len() {
            self.act(Action::Die(process));
        }
        self.now += PRESENT_WITHIN + RETRY;
        self.manager.tick(self.now, &mut self.device);
        self.now += RETRY;
        self.manager.tick(self.now, &mut self.device);
        assert!(self.device.table.is_empty(), "{:?}", self.device.table);
        assert!(self.device.made.is_empty());
        assert_eq!(self.device.reserved, [0; 4]);
        assert!(self.device.journal.iter().all(|entry| entry.state == FREE));
        let counters = self.manager.counters();
        let kept = [
            counters.applications,
            counters.clients,
            counters.ports,
            counters.blocks,
        ];
        assert_eq!(kept, [0; 4]);
        assert_eq!(self.manager.deadline(), None);
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

fn run(actions: Vec<Action>) -> World {
    let mut world = World::new();
    for action in actions {
        world.act(action);
        world.retry();
        if world.device.killed {
            world.restart();
            world.retry();
        }
        if !world.device.killed {
            world.check();
        }
    }
    if world.device.killed {
        world.restart();
    }
    world
}

/// The same cases every time; `TIDEWALL_SEED` has others drawn.
#[test]
fn nothing_is_lost_nothing_is_left() {
    let seed = std::env::var("TIDEWALL_SEED").ok();
    let seed: u64 = seed.map_or(1, |seed| seed.parse().unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, random);
    let tested = runner.run(&vec(action(), 1..80), |actions| {
        run(actions).end();
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}
