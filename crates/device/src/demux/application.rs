//! The application level: what an application may write for itself.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ChannelId;
use super::ends::Ends;
use super::layout::{
    Application, CHANNELS, ChannelApplication, ChannelDriver, LISTEN_LOCAL, Listener, Protocol,
    Total,
};
use super::raw_tables::Memory;
use super::tables::{invalid, port_index, specified};

/// Tables of one application: its listeners, flows and channels. They lie in one map of
/// the driver program, whose descriptor only this application has. For a device without a
/// driver they lie on the heap. Nothing of the trusted level ([`super::TrustedTables`])
/// can be reached from here:
///
/// ```compile_fail,E0599
/// fn own(tables: &tidewall_device::demux::ApplicationTables) {
///     let tcp = tidewall_device::demux::layout::Protocol::Tcp;
///     tables.own_port(tcp, None, 80, tables.number()).ok();
/// }
/// ```
///
/// Shared by threads in an `Arc`. Reads and per-frame operations
/// ([`ApplicationTables::tail_add`]) are wait-free and take no lock. Per-socket
/// operations take one mutex. A channel's counters follow the rule of `bpf/tables.h`: the
/// driver writes heads, the receiver writes tails and limits. An index or queue out of
/// range reads as 0 and writes nothing.
#[derive(Debug)]
pub struct ApplicationTables {
    number: u16,
    memory: Memory<Application>,
    pub(super) hash_key: [u64; 2],
    state: Mutex<State>,
}

/// Number of entries behind each flag of a port, so that flags can be cleared again.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Entries in `flows` by port: those for one address, and connected ones.
    pub(super) flows: HashMap<usize, [u32; 2]>,
    /// Entries in `flows`.
    pub(super) entries: usize,
}

impl ApplicationTables {
    /// Opens the empty tables in an application's own map. `number` names the application
    /// to the device's owner. `hash_key` is the random key of its flows.
    ///
    /// # Errors
    /// EINVAL when the map is too short; what mapping it reports.
    pub fn of_map(map: BorrowedFd<'_>, number: u16, hash_key: [u64; 2]) -> io::Result<Self> {
        Ok(Self::new(Memory::mapped(map)?, number, hash_key))
    }

    pub(super) fn in_memory(number: u16, hash_key: [u64; 2]) -> io::Result<Self> {
        Ok(Self::new(Memory::heap()?, number, hash_key))
    }

    fn new(memory: Memory<Application>, number: u16, hash_key: [u64; 2]) -> Self {
        for (place, key) in memory.get().hash_key.words.iter().zip(hash_key) {
            place.store(key, Release);
        }
        ApplicationTables {
            number,
            memory,
            hash_key,
            state: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The application's number, by which the trusted level names it.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The tables in the driver program's layout, for code that stands in for it.
    /// `bpf/tables.h` states which party writes what.
    pub fn map(&self) -> &Application {
        self.memory.get()
    }

    pub(super) fn listener(&self, protocol: Protocol, port: u16) -> io::Result<&Listener> {
        let listener = self.map().listeners.get(port_index(protocol, port));
        listener
            .filter(|_| port != 0)
            .ok_or_else(|| invalid("port 0"))
    }

    /// Delivers frames for a port, on one local address or on any, to a channel. Without
    /// an address it covers any address of both families; an unspecified address covers
    /// any of its family. Replaces an earlier entry.
    ///
    /// # Errors
    /// EINVAL for port 0 or no channel; ENOBUFS when both of the flow table's buckets for
    /// this address are full.
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
                &Ends::listening(protocol, address, port),
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

    /// Undoes [`ApplicationTables::listen`]. Without such a listener it does nothing.
    pub fn unlisten(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        match specified(address) {
            Some(address) => {
                self.remove_flow(&Ends::listening(protocol, address, port), LISTEN_LOCAL)
            }
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

    /// Sets the channel for later fragments. Orphans are among them where the device's
    /// owner gives them to this application
    /// ([`super::TrustedTables::set_fragment_application`]).
    pub fn set_fragment_channel(&self, channel: ChannelId) {
        let place = &self.map().fragment_channel;
        place.store(channel.value(), Release);
    }

    /// Sets how many frames may be outstanding on a channel's share of a queue; 0 closes
    /// it.
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

    /// Counts `frames` frames as no longer outstanding, for the driver program.
    pub fn tail_add(&self, queue: u32, index: u16, frames: u32) {
        if let Some(channel) = self.channel(queue, index) {
            channel.tail.fetch_add(frames, Release);
        }
    }

    /// Reserves the last `frames` frames of a queue for channels that hold few.
    pub fn set_spare(&self, queue: u32, frames: u32) {
        if let Some(total) = self.total(queue) {
            total.spare.store(frames, Release);
        }
    }

    /// Sets the limit of a queue's [`ApplicationTables::total_head`]; 0 means none, the
    /// initial state.
    pub fn set_given(&self, queue: u32, given: u32) {
        if let Some(total) = self.total(queue)
            && total.given.load(Relaxed) != given
        {
            total.given.store(given, Release);
        }
    }

    /// Frames that the driver has ever admitted to all channels of a queue, modulo 2^32.
    pub fn total_head(&self, queue: u32) -> u32 {
        self.total(queue)
            .map_or(0, |total| total.head.load(Acquire))
    }

    /// Frames of this application alone that were ever dropped on a queue because their
    /// channel, or all of them, had no room.
    pub fn total_dropped(&self, queue: u32) -> u64 {
        self.total(queue)
            .map_or(0, |total| total.dropped.load(Relaxed))
    }

    fn total(&self, queue: u32) -> Option<&Total> {
        self.map().totals.get(queue as usize)
    }

    /// Frames ever returned, thus no longer outstanding, modulo 2^32.
    pub fn tail(&self, queue: u32, index: u16) -> u32 {
        self.channel(queue, index)
            .map_or(0, |channel| channel.tail.load(Acquire))
    }

    /// Frames that the driver has ever admitted, modulo 2^32.
    pub fn head(&self, queue: u32, index: u16) -> u32 {
        self.driver(queue, index)
            .map_or(0, |driver| driver.head.load(Acquire))
    }

    /// Frames that the driver has ever dropped at the limit.
    pub fn dropped(&self, queue: u32, index: u16) -> u64 {
        self.driver(queue, index)
            .map_or(0, |driver| driver.dropped.load(Relaxed))
    }

    pub(super) fn channel(&self, queue: u32, index: u16) -> Option<&ChannelApplication> {
        self.map()
            .channels
            .get(queue as usize)?
            .get(usize::from(index))
    }

    pub(super) fn driver(&self, queue: u32, index: u16) -> Option<&ChannelDriver> {
        self.map()
            .heads
            .get(queue as usize)?
            .get(usize::from(index))
    }
}

pub(super) fn check(channel: ChannelId) -> io::Result<()> {
    match usize::from(channel.index()) {
        1..CHANNELS => Ok(()),
        _ => Err(invalid("no such channel")),
    }
}

/// The any-address channels that an unspecified address covers.
fn families(listener: &Listener, address: Option<IpAddr>) -> &[AtomicU32] {
    let [v4, v6] = &listener.channel;
    match address {
        None => &listener.channel,
        Some(IpAddr::V4(_)) => std::slice::from_ref(v4),
        Some(IpAddr::V6(_)) => std::slice::from_ref(v6),
    }
}
