//! How far the announced window may reach beyond the data taken.
//!
//! Segments wait for their receiver in a queue of limited length; the driver drops the
//! rest. So the window begins at three quarters of that queue: then a receiver that stays
//! away loses nothing, whatever it announced.
//!
//! A receiver that comes often may announce more, since most of a window is then in
//! transit and not in the queue. The window grows by quarters, once per two round trips,
//! while the peer needs it and at most half of the queue was ever full. If the queue was
//! nearly full the window returns to its initial size. Each such time, the next growth
//! takes twice as long.

use tidewall_wire::tcp::before;

use super::connection::Connection;
use super::{Time, microseconds};

/// Overflows after which the wait for the next growth no longer doubles.
const SHY_MOST: u8 = 12;
/// Assumed round trip if none was measured.
const TRIP_UNKNOWN: u32 = 1000;

/// See the module's documentation.
pub(super) struct ReceiveRoom {
    /// Maximum bytes by which the window reaches beyond the data taken.
    most: u32,
    /// The sequence number at which `peak` is examined next.
    mark: u32,
    /// When it was last examined, in microseconds that wrap.
    looked: u32,
    /// Segments that the queue holds; 0: any number.
    segments: u16,
    /// Most segments that were taken at once since the last examination.
    peak: u16,
    /// Examinations until the window may grow.
    wait: u16,
    /// Overflows that are not forgotten yet.
    shy: u8,
    /// The window would have been wider at some time since the last examination.
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
    /// Limits `room` bytes to what may be announced.
    #[inline(always)]
    pub(super) fn bound(&mut self, room: u32) -> u32 {
        if room > self.most {
            self.holds_back = true;
        }
        room.min(self.most)
    }

    /// Maximum bytes by which the window reaches beyond the data taken.
    #[inline(always)]
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// The bytes that the queue holds, less a quarter reserved for segments that are not
    /// full-sized.
    fn first(&self, mss: u16) -> u32 {
        u32::from(self.segments) * u32::from(mss) / 4 * 3
    }
}

impl Connection {
    /// Sets how many segments can wait until they are passed to [`Connection::input`];
    /// any beyond them are lost. 0: any number.
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

    /// Records that `count` segments had waited and were passed to [`Connection::input`]
    /// by `now`, for [`Connection::set_receive_room`].
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
            // Below the initial size only if segments are not full-sized.
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
