//! Routing modules, which choose a frame's member (ALRM of the paper).
//!
//! A module belongs to one connection. It sees frames and its own memory, and decides at
//! once: no waiting, no clock, no randomness. So the same frames go to the same members
//! in every run. It does not see repeated frames: the switch sends those to the same
//! member as before, and meanwhile keeps one word per frame for the module.
//!
//! A module that panics, or names a member that takes no frames, has its connection
//! reset; others are not affected. The same applies to one that loops over its input.
//! Each look at a frame's bytes or at a member counts, and a look beyond a frame's limit
//! ends the event by unwinding. A loop over the module's own memory is not detected here,
//! and no thread can be stopped from within its process. `tidewall switch` detects such a
//! loop and exits (docs/switch.md).

mod block_storage;
mod hash;
mod key_value;
mod least_outstanding;
mod round_robin;
mod speed;
mod work;

use core::cell::OnceCell;
use core::ops::{Bound, RangeBounds};
use std::net::{IpAddr, SocketAddr};

use tidewall_protocol::tcp::Time;
use tidewall_wire::pieces::Pieces;

use crate::MemberId;
use crate::flow::End;

pub use block_storage::{BlockStorage, block_of};
pub use hash::{HashOfKey, hash_of};
pub use key_value::KeyValue;
pub use least_outstanding::LeastOutstanding;
pub use round_robin::RoundRobin;
pub use speed::Speed;
pub(crate) use work::{TooMuch, Work};

/// A frame as a module sees it. Its accesses count as work.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    payload: Pieces<'a>,
    /// The payload in one piece, once a module has requested bytes that lie in several.
    joined: &'a OnceCell<Vec<u8>>,
    work: &'a Work,
    /// The switch's time.
    pub now: Time,
}

impl<'a> Frame<'a> {
    pub(crate) const fn new(
        payload: Pieces<'a>,
        joined: &'a OnceCell<Vec<u8>>,
        work: &'a Work,
        now: Time,
    ) -> Self {
        Self {
            payload,
            joined,
            work,
            now,
        }
    }

    /// Bytes after its header.
    #[must_use]
    pub const fn len(self) -> usize {
        self.payload.len()
    }

    /// True if nothing follows its header.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.payload.is_empty()
    }

    /// Everything after its header.
    #[must_use]
    pub fn payload(self) -> &'a [u8] {
        self.work.spend(1 + self.payload.len());
        match self.payload.as_slice() {
            Some(payload) => payload,
            None => self.joined(),
        }
    }

    /// A part of what follows its header; `None` if it is incomplete. A module that reads
    /// field by field requests each with this. An invalid length from the peer then
    /// cannot make it loop for ever.
    ///
    /// A frame longer than one of memory lies in several pieces. Bytes across two of them
    /// are copied, and the whole frame with them, once per frame.
    #[must_use]
    pub fn get(self, range: impl RangeBounds<usize>) -> Option<&'a [u8]> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let part = match self.payload.as_slice() {
            Some(payload) => payload.get(bounds),
            None => self.part(bounds),
        };
        self.work.spend(1 + part.map_or(0, <[u8]>::len));
        part
    }

    #[cold]
    fn part(self, bounds: (Bound<usize>, Bound<usize>)) -> Option<&'a [u8]> {
        let first = self.payload.first();
        // Bytes up to the payload's end are not all in the first piece.
        let in_first = first.get(bounds).filter(|_| bounds.1 != Bound::Unbounded);
        in_first.or_else(|| self.joined().get(bounds))
    }

    fn joined(self) -> &'a [u8] {
        self.joined.get_or_init(|| {
            let mut bytes = Vec::with_capacity(self.payload.len());
            self.payload.append_to(&mut bytes);
            bytes
        })
    }
}

/// A module's decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it to this member. The word is kept with the frame, and returned by
    /// [`Module::retire`].
    Send(MemberId, u32),
    /// Reset the connection: this module does not serve the frame.
    Reset,
}

/// The fate of frames that a dead member has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The connection is reset if there are any: nothing is silently lost or duplicated.
    Reset,
    /// The connection is reset, even if there are none, unless no frame ever went to the
    /// member on it. A request that it acknowledged, and whose reply has not arrived,
    /// would wait for ever.
    ResetIfUsed,
    /// They are idempotent: when the peer repeats them, they are steered again. Their
    /// order among other frames is not guaranteed.
    Resend,
}

/// The window that the peer is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// The smallest of the members': any frame may go to any member.
    Minimum,
    /// The sum: the module sends only to members with room for the frame
    /// ([`MemberView::room`]).
    Sum,
}

/// Chooses members for the frames of one connection.
pub trait Module: Send {
    /// Handles a new frame of the peer; `members` is never empty. A frame that is dropped
    /// because its member's window has no room is shown again when the peer repeats it.
    /// Each byte of the frame can be looked at eight times, each member 64 times, and
    /// 1,024 further looks are free; beyond that the connection is reset.
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict;

    /// Reports that a member has acknowledged up to a frame, or has opened its window.
    fn ack(&mut self, _member: MemberView) {}

    /// Reports that a member takes frames from now on: at the beginning of a connection,
    /// and when one was added.
    fn member_up(&mut self, _member: MemberId) {}

    /// Reports that a member has died on this connection.
    fn member_down(&mut self, _member: MemberId) -> Lost {
        Lost::Reset
    }

    /// Reports that a frame was acknowledged by its member; `state` is the word given
    /// with it.
    fn retire(&mut self, _member: MemberId, _state: u32) {}

    /// The window that the peer is offered; queried once, at the beginning.
    fn windows(&self) -> Windows {
        Windows::Minimum
    }
}

/// Creates the module of each connection.
pub trait Modules: Send {
    /// Creates one for a connection that was just established.
    fn connect(&mut self) -> Box<dyn Module>;
}

impl<F: FnMut() -> Box<dyn Module> + Send> Modules for F {
    fn connect(&mut self) -> Box<dyn Module> {
        self()
    }
}

/// A member as a module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its id. It may be another member's once this one is gone, and this one may return
    /// with another id.
    pub id: MemberId,
    /// Its listening address, which identifies a member that returns.
    pub address: SocketAddr,
    /// Bytes of its window that are open.
    pub room: u64,
    /// Frames sent to it that it has not acknowledged.
    pub outstanding: u16,
    /// Their bytes.
    pub outstanding_bytes: u32,
}

/// The members of a connection that take frames. Each look at one counts as work.
#[derive(Clone, Copy)]
pub struct Members<'a> {
    ends: &'a [End],
    work: &'a Work,
}

impl<'a> Members<'a> {
    pub(crate) const fn new(ends: &'a [End], work: &'a Work) -> Self {
        Self { ends, work }
    }

    /// All members, by number.
    pub fn iter(self) -> impl Iterator<Item = MemberView> + 'a {
        self.work.spend(1);
        let usable = move |(slot, end): (usize, &End)| {
            self.work.spend(1);
            end.takes_frames().then(|| end.view(slot))
        };
        self.ends.iter().enumerate().filter_map(usable)
    }

    /// One of them.
    #[must_use]
    pub fn get(self, id: MemberId) -> Option<MemberView> {
        self.work.spend(1);
        let slot = usize::from(id.0);
        let end = self.ends.get(slot)?;
        end.takes_frames().then(|| end.view(slot))
    }

    /// The one that listens there.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> Option<MemberView> {
        self.iter().find(|member| member.address == address)
    }

    /// The first whose number is `id` or above, else the first of all.
    #[must_use]
    pub fn at_or_after(self, id: u8) -> Option<MemberView> {
        let at = |range: core::ops::Range<usize>| {
            range
                .filter_map(|slot| self.get(MemberId(slot as u8)))
                .next()
        };
        let start = usize::from(id).min(self.ends.len());
        at(start..self.ends.len()).or_else(|| at(0..start))
    }

    /// The owner of a key: the member with the largest [`weight_of`] (rendezvous hashing,
    /// Thaler and Ravishankar 1998). When a member joins or leaves, only its share of the
    /// keys moves; when it returns, it owns that share again.
    #[must_use]
    pub fn for_key(self, key: u64) -> Option<MemberView> {
        self.iter()
            .max_by_key(|member| (weight_of(key, member.address), member.address))
    }
}

/// How much a key prefers the member with an address. It is the same everywhere, so that
/// a loader of the members' data can compute it ([`hash_of`] of the key).
#[must_use]
pub const fn weight_of(key: u64, member: SocketAddr) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let address = match member.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let (high, low) = ((address >> 64) as u64, address as u64);
    let place = low.rotate_left(16) ^ high.wrapping_mul(GOLDEN) ^ member.port() as u64;
    // The finalizer of SplitMix64: every bit of the key and the address counts.
    let mut mixed = key ^ place.wrapping_mul(GOLDEN);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
