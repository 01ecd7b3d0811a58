//! The trusted level: tables that only the owner of a device may write.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::ethernet::{self, MacAddress};

use super::counters::DriverCounters;
use super::ends::{address_bytes, address_words};
use super::kernel::ClassCounts;
use super::layout::{
    APPLICATIONS, Class, Counter, Device, FragmentKey, LOCAL_PROBES, LOCALS, OWNER_APPLICATION,
    OWNER_BY_ADDRESS, OWNER_SHIFT_V6, OwnerKey, Protocol, QUEUES, Queue,
};
use super::maps::{KernelMaps, Maps, no_room};
use super::raw_native::local_slot;
use super::raw_tables::Memory;
use super::tables::{invalid, port_index};

/// Tables of a device that only its owner may write: the application that owns each port,
/// the host's addresses, the limits of kernel-bound frames, NAPI probes and traces. They
/// lie in the driver program's maps or, for a device without a driver, on the heap; no
/// application has a descriptor of these maps.
///
/// Shared by threads in an `Arc`. Per-port operations take one mutex. A queue out of
/// range reads as 0 and writes nothing.
#[derive(Debug)]
pub struct TrustedTables {
    memory: Memory<Device>,
    queues: Arc<Memory<[Queue; QUEUES]>>,
    hash_key: [u64; 2],
    state: Mutex<State>,
}

/// The hash maps, and the number of entries behind each flag of a port, so that flags can
/// be cleared again.
#[derive(Debug)]
struct State {
    maps: Maps,
    owned_addresses: HashMap<usize, u32>,
}

fn owner_key(protocol: u8, address: IpAddr, port: u16) -> OwnerKey {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&address_bytes(address));
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key[18] = protocol;
    key
}

/// A port that an application owns: protocol, local address, port, application. The
/// unspecified address of a family stands for all of that family.
pub type OwnedPort = (Protocol, IpAddr, u16, u16);

/// All local addresses of each family.
pub const ANY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// The addresses that need an entry each: `None` is all of both families.
fn each(address: &Option<IpAddr>) -> &[IpAddr] {
    address.as_ref().map_or(&ANY, std::slice::from_ref)
}

/// Shift of the owner of all of a family's addresses in a port's entry; `None` for one
/// address.
fn shift_of_all(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Some(0),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some(OWNER_SHIFT_V6),
        _ => None,
    }
}

/// The fields of a NAPI probe before the driver rewrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiProbe {
    /// The port that it was sent to.
    pub port: u16,
    /// The port that it came from.
    pub source: u16,
    /// Sequence number of a TCP segment; UDP's length and checksum have replaced it in
    /// the frame.
    pub sequence: Option<u32>,
    /// Its sender's link address.
    pub neighbour: MacAddress,
}

impl TrustedTables {
    /// Opens the tables in the maps of a driver program that was just loaded.
    ///
    /// `device` and `queues` are the program's maps of these names. The program's loader
    /// draws `hash_key` at random: it is the key of the places for shares, which no
    /// application needs.
    ///
    /// # Errors
    /// EINVAL when the map is too short; what mapping it reports.
    pub fn of_maps(
        device: BorrowedFd<'_>,
        queues: BorrowedFd<'_>,
        maps: KernelMaps,
        hash_key: [u64; 2],
    ) -> io::Result<Self> {
        let (memory, queues) = (Memory::mapped(device)?, Memory::mapped(queues)?);
        Ok(Self::new(memory, queues, Maps::Kernel(maps), hash_key))
    }

    /// Opens the tables of a program that an earlier process loaded, as that process left
    /// them. The map `queues` is frozen: class limits stay as they are.
    ///
    /// # Errors
    /// EINVAL when the map is too short; what the kernel reports.
    pub fn adopt(
        device: BorrowedFd<'_>,
        queues: BorrowedFd<'_>,
        maps: KernelMaps,
    ) -> io::Result<Self> {
        let memory = Memory::<Device>::mapped(device)?;
        let words = &memory.get().control.hash_key.words;
        let hash_key = words.each_ref().map(|word| word.load(Acquire));
        let tables = TrustedTables {
            memory,
            queues: Arc::new(Memory::frozen(queues)?),
            hash_key,
            state: Mutex::new(State {
                maps: Maps::Kernel(maps),
                owned_addresses: HashMap::new(),
            }),
        };
        tables.count_owned_addresses()?;
        Ok(tables)
    }

    /// Recounts the owners by address and flags their ports. The process that wrote them
    /// may have died between the two.
    fn count_owned_addresses(&self) -> io::Result<()> {
        let mut counts: HashMap<usize, u32> = HashMap::new();
        for (protocol, _, port, _) in self.owners_by_address()? {
            *counts.entry(port_index(protocol, port)).or_default() += 1;
        }
        for (index, entry) in self.map().ports.iter().enumerate() {
            let value = entry.load(Relaxed);
            let flagged = match counts.contains_key(&index) {
                true => value | OWNER_BY_ADDRESS,
                false => value & !OWNER_BY_ADDRESS,
            };
            if flagged != value {
                entry.store(flagged, Release);
            }
        }
        self.state().owned_addresses = counts;
        Ok(())
    }

    fn owners_by_address(&self) -> io::Result<Vec<OwnedPort>> {
        let owners = self.state().maps.owners()?;
        let owners = owners.into_iter().filter_map(|(key, application)| {
            let address = IpAddr::from(*key.first_chunk::<16>()?).to_canonical();
            let port = u16::from_be_bytes(*key.get(16..18)?.first_chunk()?);
            let protocol = [Protocol::Tcp, Protocol::Udp]
                .into_iter()
                .find(|&protocol| Some(&(protocol as u8)) == key.get(18))?;
            Some((protocol, address, port, application as u16))
        });
        Ok(owners.collect())
    }

    /// Every owned port.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn owned_ports(&self) -> io::Result<Vec<OwnedPort>> {
        let mut owned = self.owners_by_address()?;
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for port in 1..=u16::MAX {
                let entry = self.map().ports.get(port_index(protocol, port));
                let value = entry.map_or(0, |entry| entry.load(Relaxed));
                for address in ANY {
                    let number = value >> shift_of_all(address).unwrap_or(0) & OWNER_APPLICATION;
                    if let Some(application) = number.checked_sub(1) {
                        owned.push((protocol, address, port, application as u16));
                    }
                }
            }
        }
        Ok(owned)
    }

    pub(super) fn in_memory(hash_key: [u64; 2]) -> io::Result<Self> {
        let (memory, queues) = (Memory::heap()?, Memory::heap()?);
        Ok(Self::new(memory, queues, Maps::on_the_heap(), hash_key))
    }

    fn new(
        memory: Memory<Device>,
        queues: Memory<[Queue; QUEUES]>,
        maps: Maps,
        hash_key: [u64; 2],
    ) -> Self {
        for (place, key) in memory.get().control.hash_key.words.iter().zip(hash_key) {
            place.store(key, Release);
        }
        let tables = TrustedTables {
            memory,
            queues: Arc::new(queues),
            hash_key,
            state: Mutex::new(State {
                maps,
                owned_addresses: HashMap::new(),
            }),
        };
        tables.limit_resets();
        tables
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tables in the driver program's layout, for code that stands in for it.
    /// `bpf/tables.h` states which party writes what.
    pub fn map(&self) -> &Device {
        self.memory.get()
    }

    pub(super) fn queue(&self, queue: u32) -> Option<&Queue> {
        self.queues.get().get(queue as usize)
    }

    /// The driver program's counters, in its own layout; see [`TrustedTables::map`].
    pub fn queues(&self) -> &[Queue; QUEUES] {
        self.queues.get()
    }

    /// The fields that are set before frames arrive; `None` once they are frozen.
    pub(super) fn writable_queue(&self, queue: u32) -> Option<&Queue> {
        self.queues.writable()?.get(queue as usize)
    }

    /// Key of the places for shares.
    pub fn hash_key(&self) -> [u64; 2] {
        self.hash_key
    }

    /// The driver program's read-only counters of a queue.
    pub fn counters(&self, queue: u32) -> DriverCounters {
        DriverCounters::new(Arc::clone(&self.queues), queue)
    }

    /// A counter of a queue, since the tables were created.
    pub fn counter(&self, queue: u32, counter: Counter) -> u64 {
        self.counters(queue).counter(counter)
    }

    /// Kernel-bound frames of a class on a queue, passed and dropped.
    pub fn class(&self, queue: u32, class: Class) -> ClassCounts {
        self.counters(queue).class(class)
    }

    /// Makes `application` the owner of a port. With an address the owner has that
    /// address, or all addresses of a family if it is unspecified; with `None` all of
    /// both families. The owner of one address takes precedence over the owner of all.
    /// Replaces an earlier owner: the kernel socket that holds the port decides who may
    /// own it.
    ///
    /// # Errors
    /// EINVAL for port 0 or an application out of range; ENOBUFS when the table of
    /// addresses is full; what the kernel reports otherwise.
    pub fn own_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
        application: u16,
    ) -> io::Result<()> {
        if port == 0 || usize::from(application) >= APPLICATIONS {
            return Err(invalid("port 0 or application out of range"));
        }
        let index = port_index(protocol, port);
        let mut state = self.state();
        let Some(entry) = self.map().ports.get(index) else {
            return Err(no_room());
        };
        let mut value = entry.load(Relaxed);
        for &address in each(&address) {
            let address = address.to_canonical();
            if let Some(shift) = shift_of_all(address) {
                value &= !(OWNER_APPLICATION << shift);
                value |= (u32::from(application) + 1) << shift;
                continue;
            }
            let key = owner_key(protocol as u8, address, port);
            if state.maps.insert_owner(key, application.into())? {
                *state.owned_addresses.entry(index).or_default() += 1;
            }
            value |= OWNER_BY_ADDRESS;
        }
        entry.store(value, Release);
        Ok(())
    }

    /// Undoes [`TrustedTables::own_port`]: the port's frames go to the kernel again. Does
    /// nothing if there was no owner.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn disown_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
    ) -> io::Result<()> {
        let index = port_index(protocol, port);
        let mut state = self.state();
        let Some(entry) = self.map().ports.get(index) else {
            return Ok(());
        };
        let mut value = entry.load(Relaxed);
        for &address in each(&address) {
            let address = address.to_canonical();
            if let Some(shift) = shift_of_all(address) {
                value &= !(OWNER_APPLICATION << shift);
                continue;
            }
            let key = owner_key(protocol as u8, address, port);
            if !state.maps.remove_owner(&key)? {
                continue;
            }
            let left = state.owned_addresses.entry(index).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.owned_addresses.remove(&index);
                value &= !OWNER_BY_ADDRESS;
            }
        }
        entry.store(value, Release);
        Ok(())
    }

    fn label(&self, label: Label) -> Option<&AtomicU8> {
        self.map().labels.get(label.value() as usize)
    }

    /// Makes `application` the owner of a label's circuit.
    ///
    /// # Errors
    /// EADDRINUSE when an application owns it; EINVAL for an application out of range.
    pub fn own_circuit(&self, label: Label, application: u16) -> io::Result<()> {
        let application = Some(application).filter(|&it| usize::from(it) < APPLICATIONS);
        let number = application.and_then(|it| u8::try_from(it + 1).ok());
        let (Some(number), Some(entry)) = (number, self.label(label)) else {
            return Err(invalid("application out of range"));
        };
        entry
            .compare_exchange(0, number, Release, Relaxed)
            .map(drop)
            .map_err(|_| io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// Undoes [`TrustedTables::own_circuit`]. Does nothing if the circuit was not owned.
    pub fn disown_circuit(&self, label: Label) {
        if let Some(entry) = self.label(label) {
            entry.store(0, Release);
        }
    }

    /// All owned circuits, each with its application.
    pub fn owned_circuits(&self) -> Vec<(Label, u16)> {
        let labels = self.map().labels.iter().zip(0..);
        let owned = labels.filter_map(|(entry, label)| {
            let number = entry.load(Relaxed).checked_sub(1)?;
            Some((Label::new(label)?, number.into()))
        });
        owned.collect()
    }

    /// Sets the addresses of this host; frames for all others go to the kernel. While the
    /// set changes, a frame may still be judged by the old one, or go to the kernel.
    ///
    /// # Errors
    /// ENOBUFS when they do not fit: [`LOCALS`] places, fewer when many collide. The old
    /// set then stays.
    #[expect(
        clippy::indexing_slicing,
        reason = "`place` is a remainder by the set's length"
    )]
    pub fn set_locals(&self, addresses: &[IpAddr]) -> io::Result<()> {
        let _state = self.state();
        let mut set = [[0u64; 2]; LOCALS];
        for &address in addresses {
            let words = address_words(address);
            let first = local_slot(words);
            let place = (0..LOCAL_PROBES)
                .map(|probe| (first + probe) % LOCALS)
                .find(|&place| set[place] == [0; 2] || set[place] == words);
            let Some(place) = place else {
                return Err(no_room());
            };
            set[place] = words;
        }
        for (place, words) in self.map().control.locals.iter().zip(set) {
            for (word, value) in place.iter().zip(words) {
                word.store(value, Relaxed);
            }
        }
        Ok(())
    }

    /// Sets the device's index, its link address, to which circuits' frames are sent, and
    /// its MTU in bytes. All three are used to check the frames of private applications.
    pub fn set_device(&self, interface: u32, link: MacAddress, mtu: u32) {
        let control = &self.map().control;
        // No frame is that short, so none leaves while these change.
        control.longest.store(0, Release);
        control.interface.store(interface, Release);
        for (place, byte) in control.link.iter().zip(link.0) {
            place.store(byte, Release);
        }
        let longest = mtu.saturating_add(ethernet::HEADER_LEN as u32);
        control.longest.store(longest, Release);
    }

    /// Sets the application that receives orphans: later fragments that arrived before
    /// their first. `None` leaves them to the kernel.
    pub fn set_fragment_application(&self, application: Option<u16>) {
        let number = application.map_or(0, |application| u32::from(application) + 1);
        let place = &self.map().control.fragment_application;
        place.store(number, Release);
    }

    /// If true, owned frames go to their application without a channel lookup.
    pub fn set_raw(&self, raw: bool) {
        self.map().control.raw.store(raw.into(), Release);
    }

    /// Requests a NAPI probe. The driver passes the queue's next owned datagram, or TCP
    /// segment without content, to the kernel's UDP socket bound to `port`. That socket
    /// then knows the queue's NAPI id. The probe's source port is `source`, which
    /// distinguishes it from anything else sent there. Port 0 cancels the request.
    pub fn probe_napi(&self, queue: u32, port: u16, source: u16) {
        let control = &self.map().control;
        let queue = queue as usize;
        if let (Some(from), Some(to)) = (
            control.probe_source.get(queue),
            control.probe_port.get(queue),
        ) {
            // The driver must not take one with the old source meanwhile.
            to.store(0, Release);
            from.store(source, Release);
            to.store(port, Release);
        }
    }

    /// After the driver has carried out [`TrustedTables::probe_napi`]: the datagram's
    /// original fields.
    pub fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        let control = &self.map().control;
        let queue = queue as usize;
        let pending = control.probe_port.get(queue)?.load(Acquire);
        let port = control.probed_port.get(queue)?.load(Acquire);
        let source = control.probe_source.get(queue)?.load(Acquire);
        let protocol = control.probed_protocol.get(queue)?.load(Acquire);
        let sequence = control.probed_sequence.get(queue)?.load(Acquire);
        let link = control.probed_link.get(queue)?;
        (pending == 0 && port != 0).then_some(NapiProbe {
            port,
            source,
            sequence: (protocol != Protocol::Udp as u8).then_some(sequence),
            neighbour: MacAddress(link.each_ref().map(|byte| byte.load(Acquire))),
        })
    }

    /// Samples the next `frames` frames: each gets a trace id, and a record in
    /// the driver program's ring buffer.
    pub fn start_trace(&self, frames: u32) {
        self.map().control.trace_remaining.store(frames, Release);
    }

    pub(super) fn owner_by_address(&self, key: &OwnerKey) -> Option<u32> {
        self.state().maps.owner(key)
    }

    pub(super) fn fragment_decision(&self, key: &FragmentKey) -> Option<u32> {
        self.state().maps.decision(key)
    }

    pub(super) fn decide_fragments(&self, key: FragmentKey, decision: u32) {
        self.state().maps.decide(key, decision);
    }

    /// Forgets which application received the first fragments of incomplete datagrams.
    /// Their later fragments become orphans.
    pub fn forget_fragments(&self) {
        self.state().maps.forget_fragments();
    }
}
