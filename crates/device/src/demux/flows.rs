//! The table of exact flows, and each flow's share of a channel that many use.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

use tidewall_wire::atm::pseudowire::Label;

use super::application::check;
use super::ends::{Ends, address_of, flow_tag};
use super::layout::{
    FLOW_BUCKETS, FLOW_WAYS, FlowEntry, LISTEN_CONNECTED, Protocol, SHARE, SHARE_SHIFT, SHARES,
    Share, WAIT_ACKNOWLEDGMENTS, WAIT_ALL, WAIT_UNTIL,
};
use super::maps::no_room;
use super::raw_native::flow_hash;
use super::tables::{invalid, port_index};
use super::waits::{Waits, tick};
use super::{ApplicationTables, ChannelId};

impl ApplicationTables {
    /// Delivers frames from `remote` to `local` to a channel. Replaces an earlier entry.
    ///
    /// # Errors
    /// EINVAL for port 0, no channel or ends of different families; ENOBUFS when both of
    /// the flow's buckets are full (from about 190,000 flows on).
    pub fn connect(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
    ) -> io::Result<()> {
        self.connect_sharing(protocol, local, remote, channel, 0)
    }

    /// As [`ApplicationTables::connect`], but limits the flow to a part of the channel,
    /// which [`ApplicationTables::set_share`] sets for `share`. 0 is all of it.
    ///
    /// # Errors
    /// As [`ApplicationTables::connect`]; EINVAL for a share over [`SHARES`].
    pub fn connect_sharing(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
        share: u8,
    ) -> io::Result<()> {
        check(channel)?;
        if usize::from(share) > SHARES {
            return Err(invalid("no such share"));
        }
        if local.ip().to_canonical().is_ipv4() != remote.ip().to_canonical().is_ipv4() {
            return Err(invalid("ends of different address families"));
        }
        if remote.port() == 0 {
            return Err(invalid("port 0"));
        }
        self.insert_flow(
            &Ends::connected(protocol, local, remote),
            (channel, share),
            LISTEN_CONNECTED,
        )
    }

    /// Sets which segments of a TCP flow may wait for the next round; entering the flow
    /// again clears this. Without such a flow it does nothing.
    pub fn set_waits(&self, local: SocketAddr, remote: SocketAddr, waits: Waits) {
        let ends = Ends::connected(Protocol::Tcp, local, remote);
        let hash = flow_hash(self.hash_key, &ends);
        let _state = self.state();
        if let Some((_, flow)) = self.held_flow(hash, &ends) {
            flow.set_waits(waits);
        }
    }

    /// Undoes [`ApplicationTables::connect`]. Without such a flow it does nothing.
    pub fn disconnect(&self, protocol: Protocol, local: SocketAddr, remote: SocketAddr) {
        self.remove_flow(&Ends::connected(protocol, local, remote), LISTEN_CONNECTED);
    }

    /// Entries of the flow table.
    pub fn flows(&self) -> usize {
        self.state().entries
    }

    /// Finds a connected flow of `channel` in a place that a flow from `remote` to
    /// `local` could use, and returns its local and remote end. It is a candidate for
    /// removal when [`ApplicationTables::connect`] finds no room.
    pub fn replaceable(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        channel: ChannelId,
    ) -> Option<(SocketAddr, SocketAddr)> {
        let ends = Ends::connected(protocol, local, remote);
        let _state = self.state();
        let places = self.flow_places(flow_hash(self.hash_key, &ends));
        let found = places
            .into_iter()
            .flat_map(|(_, flows)| flows)
            .find(|flow| flow.channel.load(Acquire) & !SHARE == channel.value())?;
        let end = |address: &[AtomicU64; 2], port: &AtomicU16| {
            let words = address.each_ref().map(|word| word.load(Relaxed));
            SocketAddr::new(address_of(words), u16::from_be(port.load(Relaxed)))
        };
        let local = end(&found.local, &found.local_port);
        Some((local, end(&found.remote, &found.remote_port)))
    }

    fn share(&self, share: u8) -> Option<&Share> {
        let place = share.checked_sub(1)?;
        self.map().shares.get(usize::from(place))
    }

    /// Limits how many frames of each flow entered with `share` a channel receives until
    /// [`ApplicationTables::renew_shares`]. The rest is dropped ([`Counter::OverShare`]).
    /// 0 is no limit. A share outside 1 to [`SHARES`] is ignored.
    ///
    /// [`Counter::OverShare`]: super::layout::Counter::OverShare
    pub fn set_share(&self, share: u8, most: u16) {
        if let Some(share) = self.share(share) {
            share.most.store(most, Release);
        }
    }

    /// Restores each flow's full share, after the channel of flows with this share was
    /// emptied.
    pub fn renew_shares(&self, share: u8) {
        if let Some(share) = self.share(share) {
            share.epoch.fetch_add(1, Release);
        }
    }

    /// The places that a flow may use: those of two buckets, one for each half of its
    /// hash, each with its tag.
    fn flow_places(&self, hash: u64) -> [(&[AtomicU8], &[FlowEntry]); 2] {
        let application = self.map();
        [hash, hash >> 32].map(|half| {
            let bucket = half as usize % FLOW_BUCKETS;
            let tags = application.tags.get(bucket).map(<[_; FLOW_WAYS]>::as_slice);
            let flows = application.flows.get(bucket);
            let flows = flows.map(<[_; FLOW_WAYS]>::as_slice);
            (tags.unwrap_or_default(), flows.unwrap_or_default())
        })
    }

    fn held_flow(&self, hash: u64, ends: &Ends) -> Option<(&AtomicU8, &FlowEntry)> {
        let tag = flow_tag(hash);
        self.flow_places(hash)
            .into_iter()
            .flat_map(|(tags, flows)| tags.iter().zip(flows))
            .find(|(place, flow)| place.load(Acquire) == tag && holds(flow, ends))
    }

    /// A free place in the emptier of a flow's buckets.
    fn free_flow(&self, hash: u64) -> Option<(&AtomicU8, &FlowEntry)> {
        let is_free = |tag: &AtomicU8| tag.load(Relaxed) == 0;
        let [first, second] = self.flow_places(hash);
        let free = |(tags, _): (&[AtomicU8], _)| tags.iter().filter(|tag| is_free(tag)).count();
        let (tags, flows) = if free(first) >= free(second) {
            first
        } else {
            second
        };
        tags.iter().zip(flows).find(|(tag, _)| is_free(tag))
    }

    /// Delivers a circuit's frames, those with this label, to a channel. Replaces an
    /// earlier entry.
    ///
    /// # Errors
    /// EINVAL for no channel; ENOBUFS as [`ApplicationTables::connect`].
    pub fn open_circuit(&self, label: Label, channel: ChannelId) -> io::Result<()> {
        check(channel)?;
        self.insert_flow(&Ends::circuit(label), (channel, 0), 0)
    }

    /// Undoes [`ApplicationTables::open_circuit`]. A circuit that is not open is ignored.
    pub fn close_circuit(&self, label: Label) {
        self.remove_flow(&Ends::circuit(label), 0);
    }

    /// Enters a flow with its channel and share, or changes them. `flag`: the flag at its
    /// port that marks such flows; 0 for a flow without a port.
    #[expect(clippy::indexing_slicing, reason = "a flag indexes two counts")]
    pub(super) fn insert_flow(
        &self,
        ends: &Ends,
        (channel, share): (ChannelId, u8),
        flag: u32,
    ) -> io::Result<()> {
        let (protocol, port) = ends.port();
        let listener = match flag {
            0 => None,
            _ => Some(self.listener(protocol, port)?),
        };
        // Before the lock: the key never changes.
        let hash = flow_hash(self.hash_key, ends);
        let channel = channel.value() | u32::from(share) << SHARE_SHIFT;
        let mut state = self.state();
        if let Some((_, flow)) = self.held_flow(hash, ends) {
            flow.set_waits(Waits::None);
            flow.channel.store(channel, Release);
            return Ok(());
        }
        let Some((tag, flow)) = self.free_flow(hash) else {
            return Err(no_room());
        };
        for (place, word) in flow.local.iter().zip(ends.local) {
            place.store(word, Release);
        }
        for (place, word) in flow.remote.iter().zip(ends.remote) {
            place.store(word, Release);
        }
        flow.local_port.store(ends.local_port, Release);
        flow.remote_port.store(ends.remote_port, Release);
        flow.protocol.store(ends.protocol, Release);
        flow.version.store(ends.version, Release);
        flow.set_waits(Waits::None);
        flow.channel.store(channel, Release);
        tag.store(flow_tag(hash), Release);
        state.entries += 1;
        let Some(listener) = listener else {
            return Ok(());
        };
        let counts = state.flows.entry(port_index(protocol, port)).or_default();
        let count = &mut counts[usize::from(flag == LISTEN_CONNECTED)];
        *count += 1;
        if *count == 1 {
            listener.flags.fetch_or(flag, Release);
        }
        Ok(())
    }

    #[expect(clippy::indexing_slicing, reason = "a flag indexes two counts")]
    pub(super) fn remove_flow(&self, ends: &Ends, flag: u32) {
        let (protocol, port) = ends.port();
        let hash = flow_hash(self.hash_key, ends);
        let mut state = self.state();
        let Some((tag, flow)) = self.held_flow(hash, ends) else {
            return;
        };
        flow.channel.store(0, Release);
        tag.store(0, Release);
        state.entries = state.entries.saturating_sub(1);
        if flag == 0 {
            return;
        }
        let index = port_index(protocol, port);
        let counts = state.flows.entry(index).or_default();
        let count = &mut counts[usize::from(flag == LISTEN_CONNECTED)];
        *count = count.saturating_sub(1);
        if *count == 0
            && let Ok(listener) = self.listener(protocol, port)
        {
            listener.flags.fetch_and(!flag, Release);
        }
        if *counts == [0, 0] {
            state.flows.remove(&index);
        }
    }
}

impl FlowEntry {
    fn set_waits(&self, waits: Waits) {
        let word = match waits {
            Waits::None => 0,
            Waits::Acknowledgments => WAIT_ACKNOWLEDGMENTS,
            Waits::AllUntil(time) => WAIT_ALL | (tick(time).wrapping_add(1) & WAIT_UNTIL),
        };
        self.waits.store(word as u16, Release);
    }
}

/// True if an occupied slot holds this flow.
fn holds(flow: &FlowEntry, ends: &Ends) -> bool {
    let words = |place: &[std::sync::atomic::AtomicU64; 2]| {
        [place[0].load(Acquire), place[1].load(Acquire)]
    };
    flow.channel.load(Acquire) != 0
        && words(&flow.local) == ends.local
        && words(&flow.remote) == ends.remote
        && flow.local_port.load(Acquire) == ends.local_port
        && flow.remote_port.load(Acquire) == ends.remote_port
        && flow.protocol.load(Acquire) == ends.protocol
}
