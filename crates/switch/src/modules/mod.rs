//! Routing modules: which member gets a frame (ALRM of the paper).
//!
//! A module belongs to one connection. It sees frames and its own memory, and decides
//! at once: no waiting, no clock, no randomness, so that the same frames go to the same
//! members in every run. It does not see repeated frames: the switch sends those to
//! where they went before, and keeps one word a frame for the module meanwhile.
//!
//! A module that panics, or names a member that takes no frames, costs its connection
//! a reset and others nothing. So does one that loops over what it is shown: each look at a
//! frame's bytes or at a member counts, and the look that is beyond a frame's
//! bound ends the event by unwinding. What a loop does with its own memory alone is not
//! seen here, and no thread can be stopped from within its process: `tidewall switch` finds
//! that out and ends (docs/switch.md).

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

/// A frame as a module sees it. What it asks for counts as work.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    payload: Pieces<'a>,
    /// The payload in one piece, once a module has asked for bytes that lie in several.
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

    /// Bytes behind its header.
    #[must_use]
    pub const fn len(self) -> usize {
        self.payload.len()
    }

    /// True when nothing is behind its header.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.payload.is_empty()
    }

    /// All that is behind its header.
    #[must_use]
    pub fn payload(self) -> &'a [u8] {
        self.work.spend(1 + self.payload.len());
        match self.payload.as_slice() {
            Some(payload) => payload,
            None => self.joined(),
        }
    }

    /// A part of what is behind its header; `None` if it is not all there. A module that
    /// reads field by field asks for each with this: a length of the peer's that leads
    /// nowhere then cannot make it go on for ever.
    ///
    /// A frame that is longer than one of memory lies in several pieces. Bytes across two of
    /// them are copied, and the whole frame with them, once for a frame.
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

/// What a module wants done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to this member. The word is kept with the frame, and given back by
    /// [`Module::retire`].
    Send(MemberId, u32),
    /// The connection is reset: the frame is nothing that this module serves.
    Reset,
}

/// What becomes of frames that a dead member has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The connection is reset if there are any: nothing is lost or doubled in silence.
    Reset,
    /// The connection is reset, also if there are none, unless no frame ever went to the
    /// member on it: a request that it acknowledged, and whose reply has not come, would
    /// wait for ever.
    ResetIfUsed,
    /// They are idempotent: when the peer repeats them, they are steered anew. Nothing
    /// is promised about their order among other frames.
    Resend,
}

/// What window the peer is offered.
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
    /// A new frame of the peer; `members` are never none. One that is dropped, as the member
    /// that it was for has no room for it in its window, is shown again when the peer
    /// repeats it. Each byte of the frame can be looked
    /// at eight times, each member 64 times, and 1,024 looks more are free; beyond, the
    /// connection is reset.
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict;

    /// A member has acknowledged up to a frame, or has opened its window.
    fn ack(&mut self, _member: MemberView) {}

    /// A member takes frames from now on: at the beginning of a connection, and when
    /// one was added.
    fn member_up(&mut self, _member: MemberId) {}

    /// A member has died on this connection.
    fn member_down(&mut self, _member: MemberId) -> Lost {
        Lost::Reset
    }

    /// A frame was acknowledged by its member; `state` is the word given with it.
    fn retire(&mut self, _member: MemberId, _state: u32) {}

    /// What the peer is offered; asked for once, at the beginning.
    fn windows(&self) -> Windows {
        Windows::Minimum
    }
}

/// Makes the module of each connection.
pub trait Modules: Send {
    /// For a connection that was just established.
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
    /// Which. Another member's once this one is gone, and this one may come back as another.
    pub id: MemberId,
    /// Where it listens: by this a member is known that comes back.
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

    /// They, by number.
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

    /// The owner of a key: where [`weight_of`] is largest (rendezvous hashing, Thaler and
    /// Ravishankar 1998). When a member comes or goes, only its share of the keys moves; when
    /// it comes back, that share is its own again.
    #[must_use]
    pub fn for_key(self, key: u64) -> Option<MemberView> {
        self.iter()
            .max_by_key(|member| (weight_of(key, member.address), member.address))
    }
}

/// How much a key prefers the member of an address: the same everywhere, so that what
/// loads the members' data can compute it ([`hash_of`] of the key).
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
