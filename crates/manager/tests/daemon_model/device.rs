//! A device whose steps fail, or are the last before the daemon is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_manager::daemon::Device;
use tidewall_manager::daemon::journal::Entry;
use tidewall_manager::daemon::ports::PortKey;
use tidewall_manager::protocol::*;
use tidewall_wire::atm::pseudowire::Label;

use crate::kernel::Kernel;

/// A step that fails, or before which the daemon is killed, this many steps from now.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Nothing has happened.
    Fail(u8),
    /// It has happened nonetheless, where a step may.
    FailAfter(u8),
    Kill(u8),
}

pub struct FakeDevice {
    pub journal: Vec<Entry>,
    pub table: BTreeMap<PortKey, u16>,
    pub circuits: BTreeMap<Label, u16>,
    pub made: BTreeSet<u16>,
    /// The application that has the queues.
    pub queues: Option<u16>,
    pub reserved: Blocks,
    pub kernel: Kernel,
    /// The cookie of the socket that came beside the message.
    pub shown: Option<u64>,
    /// Sockets to be examined, and for which users.
    pub looks: Vec<(u64, u32)>,
    pub port_looks: Vec<(PortKey, u32)>,
    pub fault: Option<Fault>,
    pub killed: bool,
    pub failed: bool,
    pub drawn: u8,
    /// Tokens and users of applications of which a process keeps a part when they end.
    pub kept: BTreeMap<[u8; 16], u32>,
    /// Time that the steps since the last turn of the loop have taken.
    pub worked: Duration,
}

/// Bytes handed over to each application.
const BYTES: u64 = 1 << 20;

/// The longest delay of the next client, by [`FakeDevice::worked`].
pub const TURN_MOST: Duration = Duration::from_millis(10);

/// Durations of steps: a slow processor's system calls, whatever machine runs this.
mod cost {
    use std::time::Duration;

    /// A store to a mapped table of ports.
    pub const STORE: Duration = Duration::from_nanos(100);
    /// A call that touches one map element or descriptor.
    pub const CALL: Duration = Duration::from_micros(2);
    /// A socket made and bound, or closed.
    pub const SOCKET: Duration = Duration::from_micros(5);
    /// A file of /proc read and written, under a lock.
    pub const FILE: Duration = Duration::from_micros(100);
    /// Ready queues handed over, or removed.
    pub const QUEUES: Duration = Duration::from_millis(1);
}

fn of_key(port: &PortKey) -> Duration {
    match port.is_on_all() {
        true => cost::STORE,
        false => cost::CALL,
    }
}

impl FakeDevice {
    /// The next client's delay, which is checked.
    pub fn end_turn(&mut self) -> Duration {
        let worked = std::mem::take(&mut self.worked);
        assert!(worked <= TURN_MOST, "the next client waits for {worked:?}");
        worked
    }

    /// Whether the step has its effect, and what it returns.
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
        self.worked += cost::CALL;
        self.drawn = self.drawn.wrapping_add(1);
        self.step(false).1.map(|()| [self.drawn; 16])
    }

    fn take_number(&mut self, is_free: &dyn Fn(u16) -> bool) -> io::Result<u16> {
        self.worked += cost::CALL;
        self.step(false).1?;
        let number = (0..APPLICATIONS as u16).find(|&number| is_free(number));
        number.ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }

    fn describe(&self) -> Joined {
        zerocopy::FromZeros::new_zeroed()
    }

    fn record(&mut self, application: u16, entry: &Entry) -> io::Result<()> {
        self.worked += cost::CALL;
        let (effect, result) = self.step(false);
        if effect {
            self.journal[usize::from(application)] = entry.clone();
        }
        result
    }

    fn bytes(&self, _: &Join) -> io::Result<u64> {
        Ok(BYTES)
    }

    fn is_held(&mut self, token: &[u8; 16]) -> io::Result<bool> {
        self.worked += cost::CALL;
        Ok(self.kept.contains_key(token))
    }

    fn make(&mut self, application: u16, join: &Join, private: bool) -> io::Result<(u32, ())> {
        self.worked += cost::QUEUES;
        let queues = join.flags & JOIN_WITHOUT_QUEUES == 0 && !private;
        if queues && self.queues.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (effect, result) = self.step(true);
        if effect {
            assert!(self.made.insert(application), "made twice");
            self.queues = self.queues.or(queues.then_some(application));
        }
        result.map(|()| (queues.into(), ()))
    }

    fn clear(&mut self, application: u16) -> io::Result<()> {
        self.worked += cost::QUEUES;
        let (effect, result) = self.step(true);
        if effect {
            self.made.remove(&application);
            self.queues.take_if(|of| *of == application);
        }
        result
    }

    fn own_port(&mut self, port: &PortKey, application: u16) -> io::Result<()> {
        self.worked += of_key(port);
        let (effect, result) = self.step(true);
        if effect {
            self.table.insert(*port, application);
        }
        result
    }

    fn disown_port(&mut self, port: &PortKey) -> io::Result<()> {
        self.worked += of_key(port);
        let (effect, result) = self.step(true);
        if effect {
            self.table.remove(port);
        }
        result
    }

    fn own_circuit(&mut self, label: Label, application: u16) -> io::Result<()> {
        self.worked += cost::CALL;
        let (effect, result) = self.step(true);
        if effect {
            self.circuits.insert(label, application);
        }
        result
    }

    fn disown_circuit(&mut self, label: Label) {
        self.worked += cost::CALL;
        self.circuits.remove(&label);
    }

    fn hold_block(
        &mut self,
        protocol: Protocol,
        ports: RangeInclusive<u16>,
    ) -> io::Result<Option<u16>> {
        let sockets = &self.kernel.sockets;
        let has = |port: u16| {
            let facts = sockets.iter().map(|socket| &socket.facts);
            let mut bound = facts.map(|facts| (facts.protocol, facts.local.port()));
            // A permanent socket has one.
            port == 33_000 || bound.any(|of| of == (protocol, port))
        };
        let other = ports.clone().find(|&port| has(port));
        let free = ports.take_while(|&port| Some(port) != other);
        let mut free: Vec<_> = free.map(|port| (protocol, port)).collect();
        free.retain(|port| !self.kernel.held.contains(port));
        self.worked += cost::SOCKET * (free.len() as u32 + 1);
        let (effect, result) = self.step(true);
        if effect {
            self.kernel.held.extend(free);
        }
        result.map(|()| other)
    }

    fn release_block(&mut self, protocol: Protocol, ports: RangeInclusive<u16>) {
        // They are closed in separate turns.
        self.worked += cost::STORE * ports.clone().count() as u32;
        for port in ports {
            self.kernel.held.remove(&(protocol, port));
        }
    }

    fn look_at(&mut self, cookie: u64, user: u32) {
        self.worked += cost::CALL;
        self.looks.push((cookie, user));
    }

    fn look_at_port(&mut self, port: &PortKey, user: u32) {
        self.worked += cost::CALL;
        self.port_looks.push((*port, user));
    }

    fn keep(&mut self, cookie: u64) -> io::Result<()> {
        self.worked += cost::CALL;
        let (effect, result) = self.step(false);
        if effect && self.shown == Some(cookie) {
            self.kernel.get(cookie).unwrap().kept = true;
        }
        result
    }

    fn release(&mut self, cookie: u64) {
        self.worked += cost::CALL;
        self.kernel.release(|socket| socket.facts.cookie == cookie);
    }

    fn reserve(&mut self, blocks: &Blocks) -> io::Result<()> {
        self.worked += cost::FILE;
        let (effect, result) = self.step(false);
        if effect {
            self.reserved = *blocks;
        }
        result
    }

    fn counters(&self, _: u32) -> Option<QueueCounters> {
        None
    }

    fn charged(&self, _: u16) -> Duration {
        Duration::ZERO
    }

    fn request(&mut self, _: u16, _: &Request) -> io::Result<(Answer, Vec<OwnedFd>)> {
        self.worked += cost::CALL;
        let answer = self.step(false).1.map(|()| Answer::Done(Empty {}));
        answer.map(|answer| (answer, Vec::new()))
    }
}

impl FakeDevice {
    pub fn new() -> Self {
        FakeDevice {
            journal: (0..APPLICATIONS).map(|_| Entry::free()).collect(),
            table: BTreeMap::new(),
            circuits: BTreeMap::new(),
            made: BTreeSet::new(),
            queues: None,
            reserved: [0; 4],
            kernel: Kernel::default(),
            shown: None,
            looks: Vec::new(),
            port_looks: Vec::new(),
            fault: None,
            killed: false,
            failed: false,
            drawn: 0,
            kept: BTreeMap::new(),
            worked: Duration::ZERO,
        }
    }
}
