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
/// the driver program, which only this application has a descriptor of, or, for a device
/// without a driver, on the heap. Nothing of the trusted level
/// ([`super::TrustedTables`]) can be reached from here:
///
/// ```compile_fail,E0599
/// fn own(tables: &tidewall_device::demux::ApplicationTables) {
///     let tcp = tidewall_device::demux::layout::Protocol::Tcp;
///     tables.own_port(tcp, None, 80, tables.number()).ok();
/// }
/// ```
///
/// Shared by threads in an `Arc`. Reading and what happens per frame
/// ([`ApplicationTables::tail_add`]) is wait-free and takes no lock. What happens per
/// socket takes one mutex. A channel's numbers follow the rule of `bpf/tables.h`: the
/// driver writes heads, its receiver tails and limits. An index or queue out of range
/// reads as 0 and writes nothing.
#[derive(Debug)]
pub struct ApplicationTables {
    number: u16,
    memory: Memory<Application>,
    pub(super) hash_key: [u64; 2],
    state: Mutex<State>,
}

/// How many entries stand behind each flag of a port, so that flags can be taken back.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Entries in `flows` by port: for one address, connected.
    pub(super) flows: HashMap<usize, [u32; 2]>,
    /// Entries in `flows`.
    pub(super) entries: usize,
}

impl ApplicationTables {
    /// Tables in an application's own map, empty so far. `number` names the application
    /// to the device's owner. `hash_key` is that of its flows, drawn at random.
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
        // The state stays true at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the application: what the trusted level calls it.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The tables as the driver program has them, for what stands in for that.
    /// Who writes what, `bpf/tables.h` says.
    pub fn map(&self) -> &Application {
        self.memory.get()
    }

    pub(super) fn listener(&self, protocol: Protocol, port: u16) -> io::Result<&Listener> {
        let listener = self.map().listeners.get(port_index(protocol, port));
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

    /// Undoes [`ApplicationTables::listen`]. Nothing happens when nobody listened.
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

    /// Channel that gets later fragments, orphans among them where the device's owner
    /// gives this application those ([`super::TrustedTables::set_fragment_application`]).
    pub fn set_fragment_channel(&self, channel: ChannelId) {
        let place = &self.map().fragment_channel;
        place.store(channel.value(), Release);
    }

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

    /// Counts `frames` frames as no longer outstanding, for the driver program.
    pub fn tail_add(&self, queue: u32, index: u16, frames: u32) {
        if let Some(channel) = self.channel(queue, index) {
            channel.tail.fetch_add(frames, Release);
        }
    }

    /// Sets how many of the frames of a queue, the last ones, are for channels that hold
    /// few.
    pub fn set_spare(&self, queue: u32, frames: u32) {
        if let Some(total) = self.total(queue) {
            total.spare.store(frames, Release);
        }
    }

    /// Sets what [`ApplicationTables::total_head`] of a queue may reach; 0: anything, as at
    /// first.
    pub fn set_given(&self, queue: u32, given: u32) {
        if let Some(total) = self.total(queue)
            && total.given.load(Relaxed) != given
        {
            total.given.store(given, Release);
        }
    }

    /// Frames that the driver has admitted to all channels of a queue, ever, modulo 2^32.
    pub fn total_head(&self, queue: u32) -> u32 {
        self.total(queue)
            .map_or(0, |total| total.head.load(Acquire))
    }

    /// Frames of this application alone that found no room on a queue, in their channel or
    /// in all of them, ever.
    pub fn total_dropped(&self, queue: u32) -> u64 {
        self.total(queue)
            .map_or(0, |total| total.dropped.load(Relaxed))
    }

    fn total(&self, queue: u32) -> Option<&Total> {
        self.map().totals.get(queue as usize)
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

/// The any-address channels that an address without bits stands for.
fn families(listener: &Listener, address: Option<IpAddr>) -> &[AtomicU32] {
    let [v4, v6] = &listener.channel;
    match address {
        None => &listener.channel,
        Some(IpAddr::V4(_)) => std::slice::from_ref(v4),
        Some(IpAddr::V6(_)) => std::slice::from_ref(v6),
    }
}
