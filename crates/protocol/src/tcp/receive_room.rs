//! How far the announced window may reach beyond what was taken.
//!
//! Segments wait for their receiver in a place that holds so many of them; the driver drops
//! the rest. So the window begins at three quarters of that place: a receiver that stays
//! away then loses nothing, whatever it announced. A receiver that comes often may announce
//! more, as most of a window is on the way then and not in the place. The window grows by
//! quarters while the peer needs it, a window each two round trips, and no more than half
//! of the place was ever full. Where the place was nearly full it is what it was at first;
//! each such time the next growth takes twice as long to come.

use tidewall_wire::tcp::before;

use super::connection::Connection;
use super::{Time, microseconds};

/// After so many overflows the next growth takes no longer.
const SHY_MOST: u8 = 12;
/// What a round trip is taken for where none was measured.
const TRIP_UNKNOWN: u32 = 1000;

/// See the module's documentation.
pub(super) struct ReceiveRoom {
    /// Bytes by which the window reaches beyond what was taken, at most.
    most: u32,
    /// Where the next look at `peak` is.
    mark: u32,
    /// When the last look was, in microseconds that wrap.
    looked: u32,
    /// Segments that the place holds; 0: any number.
    segments: u16,
    /// Most that were taken at once since the last look.
    peak: u16,
    /// Looks until the window may grow.
    wait: u16,
    /// Overflows, as far as they were not forgotten.
    shy: u8,
    /// Since the last look the window would have been wider.
    holds_back: bool,
}

impl Default for ReceiveRoom {
    /// Any number of segments.
    fn default() -> Self {
        ReceiveRoom {
            most: u32::MAX,
            mark: 0,
            looked: 0,
            segments: 0,
            peak: 0,
            wait: 0,
            shy: 0,
            holds_back: false,
        }
    }
}

impl ReceiveRoom {
    /// `room` bytes, or what may be announced of them.
    #[inline(always)]
    pub(super) fn bound(&mut self, room: u32) -> u32 {
        if room > self.most {
            self.holds_back = true;
        }
        room.min(self.most)
    }

    /// Bytes by which the window reaches beyond what was taken, at most.
    #[inline(always)]
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// What the place holds, with a quarter left for what is not full-sized.
    fn first(&self, mss: u16) -> u32 {
        u32::from(self.segments) * u32::from(mss) / 4 * 3
    }
}

impl Connection {
    /// Says how many segments wait until they are given to [`Connection::input`]; what
    /// comes beyond them is lost. 0: any number.
    pub fn set_receive_room(&mut self, segments: u16) {
        let room = &mut self.receive.room;
        if room.segments == segments {
            return;
        }
        room.segments = segments;
        room.most = match segments {
            0 => u32::MAX,
            _ => room.first(self.config.mss),
        };
    }

    /// Notes that so many segments had waited and were given to [`Connection::input`] by
    /// `now`, for [`Connection::set_receive_room`].
    #[inline]
    pub fn segments_taken(&mut self, count: usize, now: Time) {
        let next = self.next_expected();
        let room = &mut self.receive.room;
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        room.peak = room.peak.max(count);
        let nearly_full = u32::from(count) * 8 > u32::from(room.segments) * 7;
        if room.segments != 0 && (nearly_full || !before(next, room.mark)) {
            self.adapt_receive_room(nearly_full, next, now);
        }
    }

    #[cold]
    fn adapt_receive_room(&mut self, nearly_full: bool, next: u32, now: Time) {
        let trip = match self.round_trip.srtt() {
            0 => TRIP_UNKNOWN,
            measured => measured,
        };
        let most = self.config.receive_buffer_max;
        let room = &mut self.receive.room;
        let first = room.first(self.config.mss);
        let took = microseconds(now).wrapping_sub(room.looked);
        if nearly_full {
            // Below what it was at first only where segments are not full-sized.
            room.most = if room.most > first {
                first
            } else {
                (room.most / 2).max(first / 8)
            };
            room.shy = (room.shy + 1).min(SHY_MOST);
            room.wait = 1 << room.shy;
        } else if room.holds_back && room.peak <= room.segments / 2 && took / 2 <= trip {
            match room.wait.checked_sub(1) {
                Some(wait) => room.wait = wait,
                None => {
                    room.most = room.most.saturating_add(room.most / 4).min(most.max(first));
                    room.shy = room.shy.saturating_sub(1);
                }
            }
        } else if room.most < first && room.peak <= room.segments / 2 {
            room.most = (room.most + room.most / 4).min(first);
        }
        room.mark = next.wrapping_add(room.most);
        room.looked = microseconds(now);
        room.peak = 0;
        room.holds_back = false;
    }
}
