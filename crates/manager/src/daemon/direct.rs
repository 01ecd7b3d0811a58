//! The device of a manager in direct mode: the pinned driver program, and the host state
//! that belongs to it.

mod following;
mod holders;
mod removal;
mod shared;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tidewall_device::afxdp::{HELPER_PORTS, Made, frame_size_of};
use tidewall_device::demux::ClassCounts;
use tidewall_device::demux::layout::{
    APPLICATIONS, Application, CLASSES, COUNTERS, Class, Counter, Protocol, QUEUES,
};
use tidewall_device::interface::{UsesReader, queue_count, queue_counts};
use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;
use tidewall_wire::atm::pseudowire::Label;
use zerocopy::FromZeros;

use super::closing::close_elsewhere;
use super::foreign::ForeignFd;
use super::handed::{Handed, Id};
use super::journal::{ACTIVE, Entry, FREE};
use super::neighbours::Neighbours;
use super::polls::Polls;
use super::ports::PortKey;
use super::private::{self, Private};
use super::queues::{self, Queues};
use super::reserved::Reserved;
use super::slots::Slots;
use super::{Device, Recovered};
use crate::XdpMode;
use crate::pinned::{PinDirectory, PinnedProgram};
use crate::protocol::{
    Answer, Blocks, Empty, JOIN_WITHOUT_QUEUES, Join, Joined, QueueCounters, Request, address,
};

pub(in crate::daemon) use holders::Holders;
use holders::Kept;

/// The objects handed over to an application beside [`Joined`].
#[derive(Debug)]
pub struct Parts {
    /// The map of its tables.
    pub tables: OwnedFd,
    /// The map of the driver program's counters.
    pub counters: OwnedFd,
    /// Its queues.
    pub queues: Vec<Made>,
}

pub use shared::LINGER;

/// Queries to the kernel that threads make for the manager.
#[derive(Debug)]
pub(in crate::daemon) enum Look {
    /// A holder's current state: its cookie, a descriptor of its own, its user.
    Holder(u64, OwnedFd, u32),
    /// Whether a user other than this has a socket at a port.
    Port(PortKey, u32),
}

/// A Linux interface that is taken over, with the driver program pinned.
#[derive(Debug)]
pub struct DirectDevice {
    program: PinnedProgram,
    interface: String,
    index: u32,
    mode: XdpMode,
    holders: Holders,
    kept: Kept,
    looks: Vec<Look>,
    netlink: Rtnetlink,
    uses: UsesReader,
    /// Source of random bytes.
    random: File,
    reserved: Reserved,
    neighbours: Neighbours,
    queues: Queues,
    /// Set once applications may join.
    slots: Option<Slots>,
    /// Set where private mode is offered.
    private: Option<Private>,
    /// Applications that have state, by the journal: their users and tokens.
    present: HashMap<u16, (u32, Id)>,
    handed: Handed,
    /// The private application that may poll the device, being alone on it.
    lent: Option<u16>,
    /// How often it was lent.
    lends: u32,
    /// Whether the device was switched to polling by threads.
    polled: bool,
    /// The account of those threads.
    polls: Polls,
    /// When it is to be lent, switched to polling by threads, or returned from either.
    switch_at: Option<(shared::Polling, Duration)>,
    /// Description of the device; its number of queues may change unnoticed.
    described: Joined,
    /// Whether a stock was drawn from since the last [`DirectDevice::tick`].
    taken: bool,
    /// When the stock is to be refilled.
    refill_at: Option<Duration>,
    /// The manager's own entry in the journal.
    own: Entry,
    /// Whether an earlier process had loaded the program.
    adopted: bool,
}

/// The manager's own entry in the journal: where the program runs, its reserved blocks,
/// and the device's original settings.
const OWN_ENTRY: u16 = APPLICATIONS as u16;

/// A device's queues have one user and its successor.
const SUCCESSION: usize = 2;

impl DirectDevice {
    /// Takes over what an earlier process has pinned, or loads and attaches the program.
    /// If it `expects` an application that is to have the queues, threads prepare the
    /// queues' parts and the tables meanwhile. Otherwise the first application waits for
    /// them.
    ///
    /// # Errors
    /// As [`PinnedProgram::create`] and [`PinnedProgram::adopt`]; `NotFound`, with an
    /// explanation, where the interface no longer exists, or has another name now.
    pub fn open(
        directory: PinDirectory,
        interface: &str,
        mode: Option<XdpMode>,
        expects: bool,
    ) -> io::Result<Self> {
        let directory = removal::of_interface(directory, interface)?;
        let index = interface::index(interface)?;
        let adopted = directory.is_whole();
        let (mut begun, mut slots) = (None, None);
        let begin = |applications| {
            if expects {
                let queues = begun.insert(Queues::new(interface, index, None, None));
                queues.stock(queue_count_of(interface))?;
                slots = Some(Slots::start(applications, &[], SUCCESSION)?);
            }
            Ok(())
        };
        let (program, mode) = match adopted {
            true => {
                let program = PinnedProgram::adopt(directory)?;
                let own = program.entry(OWN_ENTRY)?;
                let mode = match own.queues {
                    GENERIC => XdpMode::Generic,
                    _ => XdpMode::Native,
                };
                (program, mode)
            }
            false => {
                let (mut program, mode) = PinnedProgram::create(directory, interface, mode, begin)?;
                program.set_entry(OWN_ENTRY, &own_entry(mode, index))?;
                (program, mode)
            }
        };
        let own = program.entry(OWN_ENTRY)?;
        let reserved = Reserved::new(&own.leases[0]);
        let mut netlink = Rtnetlink::open()?;
        let (mut active, mut present) = (Vec::new(), HashMap::new());
        let mut holder = None;
        for number in 0..APPLICATIONS as u16 {
            let entry = program.entry(number)?;
            if entry.state == ACTIVE {
                active.push(number);
            }
            if entry.state != FREE {
                present.insert(number, identity(&entry));
                if entry.queues > 0 && entry.private == 0 {
                    holder = Some(number);
                }
            }
        }
        let neighbours = Neighbours::recover(&mut netlink, index, active.into_iter())?;
        let mut device = DirectDevice {
            program,
            interface: interface.to_owned(),
            index,
            mode,
            holders: Holders::here(index)?,
            kept: Kept::new()?,
            looks: Vec::new(),
            netlink,
            uses: UsesReader::new(index),
            random: File::open("/dev/urandom")?,
            reserved,
            neighbours,
            queues: begun
                .unwrap_or_else(|| Queues::new(interface, index, holder, queues::noted(&own))),
            slots,
            private: None,
            present,
            handed: Handed::new()?,
            lent: None,
            lends: 0,
            polled: false,
            polls: Polls::default(),
            switch_at: None,
            described: Joined::new_zeroed(),
            taken: false,
            refill_at: None,
            own,
            adopted,
        };
        device.refresh_addresses()?;
        device.refresh_link();
        // Accounts for the resources of an earlier process's private applications.
        if !device.program.near_ends()?.is_empty() {
            device.offer_private()?;
        }
        Ok(device)
    }

    /// Starts threads that prepare what applications will request.
    ///
    /// # Errors
    /// EAGAIN where no thread can be started; what the kernel reports.
    pub fn get_ready(&mut self) -> io::Result<()> {
        if self.slots.is_some() {
            return Ok(());
        }
        let mut used = Vec::new();
        for number in 0..APPLICATIONS as u16 {
            if self.program.entry(number)?.state != FREE {
                used.push(number);
            }
        }
        let ready = match self.private {
            Some(_) => private::READY,
            None => SUCCESSION,
        };
        let applications = self.program.applications().try_clone_to_owned()?;
        self.slots = Some(Slots::start(applications, &used, ready)?);
        Ok(())
    }

    /// True where an earlier process had attached the program.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// The mode in which the program runs.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// The state that an earlier process left, for [`super::Manager::new`].
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn recovered(&self) -> io::Result<Recovered> {
        let entries = (0..APPLICATIONS as u16).map(|number| self.program.entry(number));
        let ports = self.program.trusted().owned_ports()?;
        let keyed = |(protocol, address, port, application)| {
            let key = PortKey {
                protocol,
                address,
                port,
            };
            (key, application)
        };
        let circuits = self.program.trusted().owned_circuits().into_iter();
        let circuit = |(label, of): (Label, u16)| Some((label.circuit()?, of));
        Ok(Recovered {
            entries: entries.collect::<io::Result<_>>()?,
            ports: ports.into_iter().map(keyed).collect(),
            circuits: circuits.filter_map(circuit).collect(),
        })
    }

    /// The checker for descriptors that applications pass.
    pub(in crate::daemon) fn holders(&self) -> Holders {
        self.holders
    }

    /// Sets the socket that arrived beside a message; it may be kept until
    /// [`DirectDevice::hide`].
    pub(in crate::daemon) fn show(&mut self, cookie: u64, socket: ForeignFd) {
        self.kept.show(cookie, socket);
    }

    /// Drops the socket that was shown, unless it is kept.
    pub(in crate::daemon) fn hide(&mut self) {
        self.kept.hide();
    }

    /// Returns holders that no longer hold anything, to be dropped.
    pub(in crate::daemon) fn take_released(&mut self) -> Vec<ForeignFd> {
        std::mem::take(&mut self.kept.released)
    }

    /// True where [`DirectDevice::take_released`] has something.
    pub(in crate::daemon) fn has_released(&self) -> bool {
        !self.kept.released.is_empty()
    }

    /// The queries that threads must make.
    pub(in crate::daemon) fn take_looks(&mut self) -> Vec<Look> {
        std::mem::take(&mut self.looks)
    }

    /// Becomes readable when a kept socket has changed.
    pub(in crate::daemon) fn holder_changes(&self) -> BorrowedFd<'_> {
        self.kept.changes()
    }

    /// The cookies of some sockets that have changed.
    pub(in crate::daemon) fn take_changed_holders(&self) -> Vec<u64> {
        self.kept.take_changed()
    }

    /// Queues on which the driver program counts.
    fn queue_count(&self) -> u32 {
        queue_count_of(&self.interface)
    }

    /// Kernel-bound frames on each queue, by class and outcome.
    pub fn classes(&self) -> Vec<[ClassCounts; CLASSES]> {
        let counts = |queue| Class::ALL.map(|class| self.program.trusted().class(queue, class));
        (0..self.queue_count()).map(counts).collect()
    }

    /// The interface's index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    fn note(&mut self, change: impl FnOnce(&mut Entry)) -> io::Result<()> {
        let mut own = self.own.clone();
        change(&mut own);
        self.program.set_entry(OWN_ENTRY, &own)?;
        self.own = own;
        Ok(())
    }

    /// Makes an application's queues, which receive its frames from then on.
    fn make_queues(&mut self, application: u16, join: &Join) -> io::Result<Vec<Made>> {
        if self.private.as_ref().is_some_and(Private::is_used)
            && join.flags & JOIN_WITHOUT_QUEUES == 0
        {
            return Err(shared::busy(&self.interface));
        }
        // From the application that stays alone if this one has no queues.
        self.take_back()?;
        let [queues, transmit_queues] = queue_counts(&self.interface).unwrap_or([1, 0]);
        self.described.transmit_queues = transmit_queues;
        let shape = (queues, self.described.mtu);
        let made = self.queues.make(application, join, self.mode, shape)?;
        if let Err(error) = self.enter_queues(application, &made) {
            close_elsewhere(made);
            return Err(error);
        }
        Ok(made)
    }

    fn enter_queues(&mut self, application: u16, made: &[Made]) -> io::Result<()> {
        for queue in made {
            self.program.set_queue(application, queue)?;
        }
        if !made.is_empty() {
            self.program
                .trusted()
                .set_fragment_application(Some(application));
        }
        Ok(())
    }

    /// The maps of an application.
    fn maps(&mut self, application: u16) -> io::Result<(OwnedFd, OwnedFd)> {
        let slots = self.slots.as_mut().ok_or(io::ErrorKind::ResourceBusy)?;
        let counters = self.program.queues().try_clone_to_owned()?;
        Ok((slots.hand_out(application)?, counters))
    }
}

fn identity(entry: &Entry) -> (u32, Id) {
    (entry.uid, id_of(&entry.token))
}

fn id_of(token: &[u8; 16]) -> Id {
    let [number, _]: [Id; 2] = zerocopy::transmute!(*token);
    number
}

fn queue_count_of(interface: &str) -> u32 {
    queue_count(interface).unwrap_or(1).min(QUEUES as u32)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

const NATIVE: u32 = 1;
const GENERIC: u32 = 2;

fn own_entry(mode: XdpMode, index: u32) -> Entry {
    let mut entry = Entry::free();
    entry.state = ACTIVE;
    entry.interface = index;
    entry.queues = match mode {
        XdpMode::Native => NATIVE,
        XdpMode::Generic => GENERIC,
    };
    entry
}

impl Device for DirectDevice {
    type Parts = Parts;

    fn random(&mut self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        self.random.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn take_number(&mut self, is_free: &dyn Fn(u16) -> bool) -> io::Result<u16> {
        let slots = self.slots.as_mut().ok_or(io::ErrorKind::ResourceBusy)?;
        let number = slots.take()?;
        if !is_free(number) {
            // Its entry in the journal is still to be cleared.
            slots.give_back(number);
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(number)
    }

    fn describe(&self) -> Joined {
        self.described.clone()
    }

    fn record(&mut self, application: u16, entry: &Entry) -> io::Result<()> {
        self.program.set_entry(application, entry)?;
        match entry.state {
            FREE => self.present.remove(&application),
            _ => self.present.insert(application, identity(entry)),
        };
        Ok(())
    }

    fn make(&mut self, application: u16, join: &Join, private: bool) -> io::Result<(u32, Parts)> {
        // Slow work is done after the answer.
        self.taken = true;
        let id = self.present.get(&application).map_or(0, |of| of.1);
        let queues = match private {
            true => self.make_private(application, join, id)?,
            false => self.make_queues(application, join)?,
        };
        let maps = self.maps(application).and_then(|(tables, counters)| {
            let memory = queues.iter().filter_map(Made::memory);
            self.handed.watch(id, tables.as_fd(), memory)?;
            Ok((tables, counters))
        });
        let (tables, counters) = match maps {
            Ok(maps) => maps,
            Err(error) => {
                close_elsewhere(queues);
                return Err(error);
            }
        };
        let parts = Parts {
            tables,
            counters,
            queues,
        };
        Ok((parts.queues.len() as u32, parts))
    }

    fn bytes(&self, join: &Join) -> io::Result<u64> {
        let tables = size_of::<Application>() as u64;
        if join.flags & JOIN_WITHOUT_QUEUES != 0 {
            return Ok(tables);
        }
        let (frames, receive_ring) = queues::sizes(join, &self.interface)?;
        // For both sockets: fill and completion rings of addresses, rings of descriptors.
        let frame = frame_size_of(self.described.mtu as usize) as u64 + 2 * 8;
        let rings = 2 * 16 * u64::from(receive_ring);
        let queue = u64::from(frames) * frame + rings;
        Ok(tables + u64::from(self.queue_count()) * queue)
    }

    fn is_held(&mut self, token: &[u8; 16]) -> io::Result<bool> {
        self.handed.is_held(id_of(token))
    }

    fn clear(&mut self, application: u16) -> io::Result<()> {
        self.neighbours
            .clear(&mut self.netlink, self.index, application);
        self.program.clear(application)?;
        let tables = self.program.trusted();
        // Later fragments of its datagrams go to the kernel.
        tables.forget_fragments();
        if let Some(private) = &mut self.private {
            private.clear(&mut self.program, application)?;
        }
        if self.lent == Some(application) {
            self.forget_lent();
        }
        let queues = self.queue_count();
        let tables = self.program.trusted();
        self.polls.forget(application, tables, queues);
        let is_shared = self.private.as_ref().is_some_and(Private::is_used);
        let tables = self.program.trusted();
        // While several share the device, the last of them restores its settings.
        if self.queues.are_of(application) && !is_shared {
            tables.set_fragment_application(None);
            self.queues.release(queues::noted(&self.own))?;
            self.note(|own| queues::note(own, None))?;
        }
        if let Some(slots) = &mut self.slots {
            slots.give_back(application);
        }
        Ok(())
    }

    fn own_port(&mut self, key: &PortKey, application: u16) -> io::Result<()> {
        let tables = self.program.trusted();
        tables.own_port(key.protocol, Some(key.address), key.port, application)
    }

    fn disown_port(&mut self, key: &PortKey) -> io::Result<()> {
        let tables = self.program.trusted();
        tables.disown_port(key.protocol, Some(key.address), key.port)
    }

    fn look_at(&mut self, cookie: u64, user: u32) {
        // Without a spare descriptor it is checked next time.
        if let Ok(socket) = self.kept.holder(cookie) {
            self.looks.push(Look::Holder(cookie, socket, user));
        }
    }

    fn look_at_port(&mut self, port: &PortKey, user: u32) {
        self.looks.push(Look::Port(*port, user));
    }

    fn keep(&mut self, cookie: u64) -> io::Result<()> {
        self.kept.keep(cookie)
    }

    fn release(&mut self, cookie: u64) {
        self.kept.release(cookie);
    }

    fn own_circuit(&mut self, label: Label, application: u16) -> io::Result<()> {
        self.program.trusted().own_circuit(label, application)
    }

    fn disown_circuit(&mut self, label: Label) {
        self.program.trusted().disown_circuit(label);
    }

    fn hold_block(
        &mut self,
        protocol: Protocol,
        ports: RangeInclusive<u16>,
    ) -> io::Result<Option<u16>> {
        for port in ports {
            if !self.kept.hold_port(protocol, port)? {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    fn release_block(&mut self, protocol: Protocol, ports: RangeInclusive<u16>) {
        for port in ports {
            self.kept.release_port(protocol, port);
        }
    }

    fn reserve(&mut self, blocks: &Blocks) -> io::Result<()> {
        if self.reserved.blocks() == blocks {
            return Ok(());
        }
        let change = self.reserved.begin(blocks)?;
        // A successor clears the leases of both sets.
        let mut either = *blocks;
        for (word, before) in either.iter_mut().zip(self.reserved.blocks()) {
            *word |= before;
        }
        self.note(|own| own.leases[0] = either)?;
        self.reserved.write(change)?;
        self.note(|own| own.leases[0] = *blocks)
    }

    fn counters(&self, queue: u32) -> Option<QueueCounters> {
        let queues = self.queue_count();
        if queue >= queues {
            return None;
        }
        let of_queue = self.program.trusted().counters(queue);
        let mut counters = [0; COUNTERS];
        for counter in Counter::ALL {
            if let Some(place) = counters.get_mut(counter as usize) {
                *place = of_queue.counter(counter);
            }
        }
        Some(QueueCounters {
            queue,
            queues,
            counters,
        })
    }

    fn charged(&self, application: u16) -> Duration {
        self.polls.charged(application)
    }

    fn request(
        &mut self,
        application: u16,
        request: &Request,
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        match request {
            // It could forge frames from others.
            Request::Input(_) if self.lent.is_some() => Err(invalid(
                "of a private application nothing is taken for input",
            )),
            // It could also send its frames to other sockets.
            Request::Probe(probe)
                if self.lent.is_some()
                    && probe.port != 0
                    && !HELPER_PORTS.contains(&probe.port)
                    && !self.queues.has_given(probe.port) =>
            {
                Err(invalid("a probe goes to a port that helpers have"))
            }
            // Ports for them are few, and also the next application's.
            Request::GetHelpers(_)
                if self.lent.is_some()
                    && self.queues.given()
                        >= shared::HELPERS_LENT * self.queue_count() as usize =>
            {
                Err(io::ErrorKind::ResourceBusy.into())
            }
            Request::Resolve(of) => {
                let address = address(of.address);
                let user = self.present.get(&application).map(|of| of.0);
                let all = self.present.iter();
                let of_user = all.filter(|(_, of)| Some(of.0) == user).map(|(of, _)| *of);
                let netlink = &mut self.netlink;
                self.neighbours
                    .keep(netlink, self.index, address, application, of_user)?;
                Ok((Answer::Done(Empty {}), Vec::new()))
            }
            _ => self
                .queues
                .request(application, request, self.program.trusted()),
        }
    }
}
