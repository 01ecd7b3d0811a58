//! The handle on the tables that everybody above the driver uses.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ChannelId;
use super::headers::{Ends, address_bytes, address_words, local_slot};
use tidewall_wire::ethernet::MacAddress;

use super::layout::{
    APPLICATIONS, Application, CHANNELS, Counter, Device, FragmentKey, LISTEN_LOCAL, LOCAL_PROBES,
    LOCALS, Listener, OWNER_ANY, OWNER_APPLICATION, OWNER_BY_ADDRESS, OwnerKey, Protocol, Queue,
};
use super::maps::{KernelMaps, State, no_room};
use super::raw_tables::Memory;

/// Tables of a device and of the application that lives on it; shared by
/// threads in an `Arc`. They lie in the driver program's maps or, for a device
/// without a driver, on the heap.
///
/// Reading and what happens per frame ([`Tables::tail_add`]) is wait-free and
/// takes no lock. What happens per socket takes one mutex. A channel's numbers
/// follow the rule of `bpf/tables.h`: the driver writes heads, its receiver
/// tails and limits. An index or queue out of range reads as 0 and writes
/// nothing.
#[derive(Debug)]
pub struct Tables {
    memory: Memory,
    pub(super) hash_key: [u64; 2],
    state: Mutex<State>,
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

/// Index of a port in the tables that hold UDP, then TCP, each by the port as
/// it stands in a header (`bpf/tables.h`).
pub(super) fn port_index(protocol: Protocol, port: u16) -> usize {
    (if protocol == Protocol::Tcp { 65536 } else { 0 }) + usize::from(port.to_be())
}

fn owner_key(protocol: Protocol, address: IpAddr, port: u16) -> OwnerKey {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&address_bytes(address));
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key[18] = protocol as u8;
    key
}

/// An address to bind to, `None` for any.
pub(super) fn specified(address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(|address| !address.to_canonical().is_unspecified())
}

/// What a NAPI probe was before the driver rewrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NapiProbe {
    /// The port that it was sent to.
    pub port: u16,
    /// The port that it came from.
    pub source: u16,
    /// Of a TCP segment its sequence number, in whose place UDP's length and
    /// checksum are now.
    pub sequence: Option<u32>,
    /// Its sender's link address.
    pub neighbour: MacAddress,
}

impl Tables {
    /// Empty tables on the heap, for a device inside this process and for
    /// tests. The flow table's key is constant: no stranger sends here.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory() -> io::Result<Self> {
        Self::in_memory_with_key([0; 2])
    }

    /// As [`Tables::in_memory`] with a key for the flow table's SipHash, which
    /// a device that strangers reach must draw at random.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory_with_key(hash_key: [u64; 2]) -> io::Result<Self> {
        Ok(Self::new(Memory::heap()?, State::on_the_heap(), hash_key))
    }

    /// Tables in the driver program's maps, fresh ones.
    pub(crate) fn in_kernel(memory: Memory, maps: KernelMaps, hash_key: [u64; 2]) -> Self {
        Self::new(memory, State::in_kernel(maps), hash_key)
    }

    fn new(memory: Memory, state: State, hash_key: [u64; 2]) -> Self {
        for (place, key) in memory.device().control.hash_key.iter().zip(hash_key) {
            place.store(key, Release);
        }
        let tables = Tables {
            memory,
            hash_key,
            state: Mutex::new(state),
        };
        tables.limit_resets();
        tables
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state stays true at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trusted level as the driver program has it, for what stands in for
    /// that. Who writes what, `bpf/tables.h` says.
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    /// The application level, as [`Tables::device`].
    pub fn application(&self) -> &Application {
        self.memory.application()
    }

    pub(super) fn queue(&self, queue: u32) -> Option<&Queue> {
        self.device().queues.get(queue as usize)
    }

    /// Key of the flow table and of the places for shares.
    pub fn hash_key(&self) -> [u64; 2] {
        self.hash_key
    }

    // ---- Trusted level ----------------------------------------------------

    /// Gives a port to `application`, on one local address or, with `None` or
    /// an unspecified address, on all. An owner of one address comes before
    /// the owner of all. Replaces an earlier owner: who may have a port is
    /// settled by the kernel socket that holds it.
    ///
    /// # Errors
    /// EINVAL for port 0 or an application out of range; ENOBUFS when the table
    /// of addresses is full; what the kernel reports otherwise.
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
        let Some(entry) = self.device().ports.get(index) else {
            return Err(no_room());
        };
        let Some(address) = specified(address) else {
            let by_address = entry.load(Relaxed) & OWNER_BY_ADDRESS;
            entry.store(
                by_address | OWNER_ANY | (u32::from(application) + 1),
                Release,
            );
            return Ok(());
        };
        if state.insert_owner(owner_key(protocol, address, port), application.into())? {
            *state.owned_addresses.entry(index).or_default() += 1;
        }
        entry.store(entry.load(Relaxed) | OWNER_BY_ADDRESS, Release);
        Ok(())
    }

    /// Takes back what [`Tables::own_port`] gave: the kernel gets the port's
    /// frames again. Nothing happens when there was no owner.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn disown_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
    ) -> io::Result<()> {
        let index = port_index(protocol, port);
        let mut state = self.state();
        let Some(entry) = self.device().ports.get(index) else {
            return Ok(());
        };
        let Some(address) = specified(address) else {
            entry.store(entry.load(Relaxed) & OWNER_BY_ADDRESS, Release);
            return Ok(());
        };
        if !state.remove_owner(&owner_key(protocol, address, port))? {
            return Ok(());
        }
        let left = state.owned_addresses.entry(index).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 {
            state.owned_addresses.remove(&index);
            entry.store(
                entry.load(Relaxed) & (OWNER_ANY | OWNER_APPLICATION),
                Release,
            );
        }
        Ok(())
    }

    /// Declares the addresses of this host; every other destination is the
    /// kernel's. While the set changes, a frame may still be judged by the old
    /// one, or go to the kernel.
    ///
    /// # Errors
    /// ENOBUFS when they do not fit: [`LOCALS`] places, fewer when many collide.
    /// The old set then stays.
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
        for (place, words) in self.device().control.locals.iter().zip(set) {
            for (word, value) in place.iter().zip(words) {
                word.store(value, Relaxed);
            }
        }
        Ok(())
    }

    /// True where the driver program writes its metadata as the first bytes of
    /// each frame of the queue, not before it.
    pub fn metadata_in_frame(&self, queue: u32) -> bool {
        self.queue(queue)
            .is_some_and(|queue| queue.metadata_in_frame.load(Acquire) != 0)
    }

    /// True: owned frames are handed on without looking for their channel.
    pub fn set_raw(&self, raw: bool) {
        self.device().control.raw.store(raw.into(), Release);
    }

    /// Asks the driver to turn the next owned datagram of the queue, or TCP
    /// segment without content, over to the kernel's UDP socket bound to `port`,
    /// which then knows the queue's NAPI id. It comes from port `source`, by which
    /// it is known from whatever else is sent there. Port 0 asks for nothing.
    pub fn probe_napi(&self, queue: u32, port: u16, source: u16) {
        let control = &self.device().control;
        let queue = queue as usize;
        if let (Some(from), Some(to)) = (
            control.probe_source.get(queue),
            control.probe_port.get(queue),
        ) {
            // Not while the driver may be taking one with the old source.
            to.store(0, Release);
            from.store(source, Release);
            to.store(port, Release);
        }
    }

    /// Once the driver has done what [`Tables::probe_napi`] asked: what the
    /// datagram was before.
    pub fn napi_probe(&self, queue: u32) -> Option<NapiProbe> {
        let control = &self.device().control;
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
    /// the program's ring buffer (`afxdp::Program::traces`).
    pub fn start_trace(&self, frames: u32) {
        self.device().control.trace_remaining.store(frames, Release);
    }

    // ---- Application level ------------------------------------------------

    pub(super) fn listener(&self, protocol: Protocol, port: u16) -> io::Result<&Listener> {
        let listener = self.application().listeners.get(port_index(protocol, port));
        listener
            .filter(|_| port != 0)
            .ok_or_else(|| invalid("port 0"))
    }

    /// Sends what comes to a port, on one local address or on any, to a
    /// channel. No address means any of both families, an unspecified one any of
    /// its own. Replaces what was there.
    ///
    /// # Errors
    /// EINVAL for port 0 or no channel; ENOBUFS when both of
    /// the flow table's buckets for this address are full.
    pub fn listen(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
        channel: ChannelId,
    ) -> io::Result<()> {
        check(channel)?;
        match specified(address) {
            Some(address) => self.insert_flow(
                &Ends::listening(address_words(address), port, protocol as u8),
                (channel, 0),
                LISTEN_LOCAL,
            ),
            None => {
                let _state = self.state();
                let listener = self.listener(protocol, port)?;
                for any in families(listener, address) {
                    any.store(channel.value(), Release);
                }
                Ok(())
            }
        }
    }

    /// Undoes [`Tables::listen`]. Nothing happens when nobody listened.
    pub fn unlisten(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        match specified(address) {
            Some(address) => self.remove_flow(
                &Ends::listening(address_words(address), port, protocol as u8),
                LISTEN_LOCAL,
            ),
            None => {
                let _state = self.state();
                if let Ok(listener) = self.listener(protocol, port) {
                    for any in families(listener, address) {
                        any.store(0, Release);
                    }
                }
            }
        }
    }

    /// Channel that gets later fragments, and, from now on, orphans too: later
    /// fragments that came before their first. [`ChannelId::NONE`] leaves
    /// orphans to the kernel.
    pub fn set_fragment_channel(&self, channel: ChannelId) {
        let _state = self.state();
        self.application()
            .fragment_channel
            .store(channel.value(), Release);
        let application = u32::from(!channel.is_none());
        self.device()
            .control
            .fragment_application
            .store(application, Release);
    }

    // ---- Channels ---------------------------------------------------------

    /// Sets the most frames that may be outstanding on a channel's share of a
    /// queue; 0 closes it.
    pub fn set_limit(&self, queue: u32, index: u16, limit: u32) {
        if let Some(channel) = self.channel(queue, index).filter(|_| index != 0) {
            channel.limit.store(limit, Release);
        }
    }

    /// Most frames that may be outstanding; 0 = closed.
    pub fn limit(&self, queue: u32, index: u16) -> u32 {
        self.channel(queue, index)
            .map_or(0, |channel| channel.limit.load(Relaxed))
    }

    /// Tells the driver that `frames` frames are no longer outstanding.
    pub fn tail_add(&self, queue: u32, index: u16, frames: u32) {
        if let Some(channel) = self.channel(queue, index) {
            channel.tail.fetch_add(frames, Release);
        }
    }

    /// Frames no longer outstanding, ever, modulo 2^32.
    pub fn tail(&self, queue: u32, index: u16) -> u32 {
        self.channel(queue, index)
            .map_or(0, |channel| channel.tail.load(Acquire))
    }

    /// Frames that the driver has admitted, ever, modulo 2^32.
    pub fn head(&self, queue: u32, index: u16) -> u32 {
        self.driver(queue, index)
            .map_or(0, |driver| driver.head.load(Acquire))
    }

    /// Frames that the driver has dropped at the limit, ever.
    pub fn dropped(&self, queue: u32, index: u16) -> u64 {
        self.driver(queue, index)
            .map_or(0, |driver| driver.dropped.load(Relaxed))
    }

    pub(super) fn channel(
        &self,
        queue: u32,
        index: u16,
    ) -> Option<&super::layout::ChannelApplication> {
        self.application()
            .channels
            .get(queue as usize)?
            .get(usize::from(index))
    }

    pub(super) fn driver(&self, queue: u32, index: u16) -> Option<&super::layout::ChannelDriver> {
        self.application()
            .heads
            .get(queue as usize)?
            .get(usize::from(index))
    }

    // ---- Counters ---------------------------------------------------------

    /// A counter of a queue, since the tables were made.
    pub fn counter(&self, queue: u32, counter: Counter) -> u64 {
        let place = self
            .queue(queue)
            .and_then(|queue| queue.counters.get(counter as usize));
        place.map_or(0, |place| place.load(Relaxed))
    }

    // ---- Hash maps --------------------------------------------------------

    pub(super) fn owner_by_address(&self, key: &OwnerKey) -> Option<u32> {
        self.state().owner(key)
    }

    pub(super) fn fragment_decision(&self, key: &FragmentKey) -> Option<u32> {
        self.state().decision(key)
    }

    pub(super) fn decide_fragments(&self, key: FragmentKey, decision: u32) {
        self.state().decide(key, decision);
    }

    /// Forgets who got the first fragments of datagrams that are still on their
    /// way: their later fragments become orphans.
    pub fn forget_fragments(&self) {
        self.state().forget_fragments();
    }
}

pub(super) fn check(channel: ChannelId) -> io::Result<()> {
    match usize::from(channel.index()) {
        1..CHANNELS => Ok(()),
        _ => Err(invalid("no such channel")),
    }
}

/// The any-address channels that an address without bits stands for.
fn families(listener: &Listener, address: Option<IpAddr>) -> &[AtomicU32] {
    let [v4, v6] = &listener.channel;
    match address {
        None => &listener.channel,
        Some(IpAddr::V4(_)) => std::slice::from_ref(v4),
        Some(IpAddr::V6(_)) => std::slice::from_ref(v6),
    }
}
