//! The path's MTU, found by sending: packetization-layer path MTU discovery (RFC 4821),
//! and the search and timers of RFC 8899 §5 where they fit TCP.
//!
//! Sizes are maximum segment sizes: an MTU less the IP and TCP headers, TCP options
//! included. The rest follows Linux: the size to fall back to, the conditions for a
//! probe, and that the loss of a probe is not congestion.
//!
//! A probe is one segment of data that is larger than the others. If it alone is lost,
//! its size is too large; its data is retransmitted in ordinary segments.

use super::close::{PATH_MSS_MIN_V4, PATH_MSS_MIN_V6};
use super::connection::{Connection, MSS_MIN, TIMESTAMPS_LEN};
use super::timers::Timer;
use super::{MtuProbing, Time};
use tidewall_wire::tcp::before;

/// The size to fall back to in a black hole over IPv4, and where a search begins (Linux
/// `tcp_base_mss`). Over IPv6 every path carries more.
const BASE_V4: u16 = 1024;

/// Timeouts of the same data after which its size is suspected (Linux `tcp_retries1`).
const TIMEOUTS: u8 = 3;

/// A search within this many bytes of its end tries the largest size, and ends (Linux
/// `tcp_probe_threshold`, which ends without trying).
const NEAR: u16 = 8;

/// The smallest congestion window for a probe, in segments (as Linux).
const WINDOW_MIN: u32 = 11;

/// Segments that must follow a probe, so that its loss shows at once: as many as the
/// duplicates that mean a loss, and one more.
const FOLLOWERS: u32 = 4;

/// Seconds after which the path may carry more than before (RFC 1191 §6.3, RFC 8899
/// §5.1.1, Linux `tcp_probe_interval`).
const RAISE_AFTER: u32 = 600;

/// Knowledge of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathMtu {
    /// `searching`, or ICMP has set a limit: the path state is checked before data is
    /// sent.
    pub(super) limited: bool,
    /// The size is being searched for: `low` limits the segments sent.
    pub(super) searching: bool,
    /// The largest size is tried first: it got through once.
    pub(super) largest_first: bool,
    /// The size that gets through, or is assumed to.
    pub(super) low: u16,
    /// The largest size that may get through.
    pub(super) high: u16,
    /// The limit from ICMP, or `u16::MAX`.
    pub(super) icmp_limit: u16,
    /// The size of the probe in flight, or zero.
    pub(super) probe: u16,
    /// When the search began or the ICMP error arrived, in seconds.
    pub(super) since: u32,
    /// How often the size was reduced since data was last acknowledged.
    pub(super) reductions: u8,
    /// The size before those reductions.
    pub(super) size_before: u16,
    /// The end of the data outstanding then.
    pub(super) stalled_to: u32,
    /// The size that got through after an outage, or zero. If larger segments are lost
    /// again, size is the cause.
    pub(super) passed: u16,
}

impl PathMtu {
    /// Nothing is known and no search runs.
    pub(super) const fn new() -> Self {
        Self {
            limited: false,
            searching: false,
            largest_first: false,
            low: 0,
            high: u16::MAX,
            icmp_limit: u16::MAX,
            probe: 0,
            since: 0,
            reductions: 0,
            size_before: 0,
            stalled_to: 0,
            passed: 0,
        }
    }

    /// The largest segment now.
    pub(super) fn limit(&self) -> u16 {
        if self.searching {
            self.low.min(self.icmp_limit)
        } else {
            self.icmp_limit
        }
    }

    /// The next size to try, at most `most`.
    fn next(&self, most: u16) -> Option<u16> {
        let high = self.high.min(most);
        let distance = high.checked_sub(self.low)?;
        match distance {
            0 => None,
            1..NEAR => Some(high),
            _ if self.largest_first => Some(high),
            _ => Some(self.low + distance / 2),
        }
    }

    /// Records that a probe was lost, and nothing that followed it.
    pub(super) fn refused(&mut self) {
        self.high = self.high.min(self.probe.saturating_sub(1)).max(self.low);
        self.probe = 0;
        self.largest_first = false;
    }

    /// Invariants that a frozen connection must satisfy.
    pub(super) fn is_sound(&self) -> bool {
        (!self.searching || self.low >= MSS_MIN) && (self.probe == 0 || self.searching)
    }
}

impl Connection {
    /// The smallest size that an ICMP error can set.
    pub(super) fn path_mss_min(&self) -> u16 {
        if self.flow.remote.is_ipv4() {
            PATH_MSS_MIN_V4
        } else {
            PATH_MSS_MIN_V6
        }
    }

    /// The largest size that the device and the peer accept.
    fn most(&self) -> u16 {
        self.config.mss.min(self.send.peer_mss)
    }

    fn timestamps_len(&self) -> u16 {
        if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// The payload of a segment of such a size.
    fn payload_of(&self, size: u16) -> u32 {
        size.saturating_sub(self.timestamps_len()).into()
    }

    /// Bytes of the IP and TCP headers without options.
    pub(super) fn headers_len(&self) -> u32 {
        if self.flow.remote.is_ipv4() { 40 } else { 60 }
    }

    /// Begins a search from size `low`.
    fn search(&mut self, low: u16, now: Time) {
        self.path.limited = true;
        self.path.searching = true;
        self.path.low = low.clamp(MSS_MIN, self.most().max(MSS_MIN));
        self.path.high = self.most().min(self.path.icmp_limit);
        self.path.largest_first = true;
        self.path.probe = 0;
        self.path.since = now.as_secs() as u32;
    }

    /// The connection is established.
    pub(super) fn begin_path(&mut self, now: Time) {
        if self.config.mtu_probing == MtuProbing::Always {
            self.search(self.base(), now);
            // Nothing of it is known yet.
            self.path.largest_first = false;
            self.update_mss();
        }
    }

    fn base(&self) -> u16 {
        if self.flow.remote.is_ipv4() {
            BASE_V4
        } else {
            PATH_MSS_MIN_V6
        }
    }

    /// The retransmission timer has expired, after `send.retries` earlier times for the
    /// same data. Data larger than the base may have met a black hole. Such a router
    /// drops it silently, or its ICMP errors are lost (RFC 2923 §2.1).
    pub(super) fn suspect_black_hole(&mut self, now: Time) {
        let outstanding = self.send.outstanding();
        if self.config.mtu_probing == MtuProbing::Off
            || self.send.retries < TIMEOUTS
            || self.send.wnd == 0
        {
            return;
        }
        let now_sent = self.path.limit().min(self.most());
        let least = if self.flow.remote.is_ipv4() {
            MSS_MIN
        } else {
            PATH_MSS_MIN_V6
        };
        let end = self.send.nxt;
        if self.path.reductions == 0 || !before(self.send.una, self.path.stalled_to) {
            (self.path.reductions, self.path.size_before) = (0, now_sent);
        }
        let base = self.base();
        let mut smaller = match self.path.passed {
            passed @ 1.. if self.path.reductions == 0 && passed < now_sent => passed,
            _ if base < now_sent => base,
            _ => now_sent / 2,
        }
        .max(least);
        // A size that fits all outstanding data would change nothing.
        while outstanding <= self.payload_of(smaller) && smaller > least {
            smaller = (smaller / 2).max(least);
        }
        if smaller >= now_sent || outstanding <= self.payload_of(smaller) {
            return;
        }
        self.search(smaller, now);
        self.path.reductions = self.path.reductions.saturating_add(1);
        self.path.stalled_to = end;
        self.update_mss();
    }

    /// Ends a stall once everything that was outstanding is acknowledged. If smaller
    /// copies were lost as well, the path was down, not narrow. A single reduction fits
    /// either; the first time, the path counts as down. The earlier size is restored,
    /// unless a probe can try it at once.
    fn end_stall(&mut self, now: Time) {
        if self.path.reductions == 0 || before(self.send.una, self.path.stalled_to) {
            return;
        }
        let was_down = self.path.reductions > 1 || self.path.passed == 0;
        self.path.reductions = 0;
        self.path.passed = if was_down { self.path.low } else { 0 };
        let size = self.path.size_before.min(self.most());
        let probed = self.payload_of(size) + FOLLOWERS * u32::from(self.send.mss);
        if was_down && size > self.path.low && self.unsent() < probed {
            self.search(size, now);
            self.update_mss();
        }
    }

    /// Applies the path MTU from an ICMP error. Returns true when segments become smaller
    /// by it.
    pub(super) fn take_path_mtu(&mut self, mss: u16, now: Time) -> bool {
        let mss = mss.max(self.path_mss_min());
        if mss >= self.path.icmp_limit {
            return false;
        }
        let old = self.send.mss;
        self.path.limited = true;
        self.path.icmp_limit = mss;
        self.path.high = self.path.high.min(mss);
        self.path.since = now.as_secs() as u32;
        self.update_mss();
        self.send.mss < old
    }

    /// After a while the path may carry more. With probing off the path is assumed to, as
    /// Linux does when a route's MTU expires. Otherwise larger segments are tried.
    fn raise_path(&mut self, now: Time) {
        if (now.as_secs() as u32).wrapping_sub(self.path.since) < RAISE_AFTER {
            return;
        }
        let size = self.path.limit().min(self.most());
        self.path.icmp_limit = u16::MAX;
        self.path.passed = 0;
        if self.config.mtu_probing == MtuProbing::Off {
            self.path = PathMtu::new();
        } else {
            self.search(size, now);
        }
        self.update_mss();
    }

    /// The payload of the probe that is due now, if any (Linux `tcp_mtu_probe`).
    #[cold]
    pub(super) fn path_probe_due(&mut self, now: Time) -> Option<u32> {
        let (mss, quiet) = (u32::from(self.send.mss), self.recovery.is_quiet());
        let open = self.state.may_send_data();
        if self.path.probe != 0 || !quiet || !open || self.timers.is_running(Timer::Pace) {
            return None;
        }
        self.end_stall(now);
        self.raise_path(now);
        if !self.path.searching {
            return None;
        }
        let size = self.path.next(self.most().min(self.path.icmp_limit))?;
        let payload = self.payload_of(size);
        let needed = payload + FOLLOWERS * mss;
        let window_end = self.send.window_end();
        let fits = self.unsent() >= needed
            && self.send.wnd >= needed
            && !before(window_end, self.send.nxt.wrapping_add(needed));
        let window = self.congestion.window();
        // Only if two segments may leave; the probe takes the second's place.
        let room = self.pipe().saturating_add(2 * mss) <= window && window >= WINDOW_MIN * mss;
        // Space taken by SACK blocks would be mistaken for the path's limit.
        let plain = (!self.sack || !self.receive.assembler.has_sack_blocks())
            // A probe does not cross the end of a record either.
            && !self.send.push_marks.has_records();
        (fits && room && plain && payload > mss).then_some(payload)
    }

    /// Records that a probe of `payload` bytes has left, from `start` on.
    pub(super) fn path_probe_sent(&mut self, start: u32, payload: u32) {
        self.path.probe = u16::try_from(payload)
            .unwrap_or(u16::MAX)
            .saturating_add(self.timestamps_len());
        let end = start.wrapping_add(payload);
        self.recovery.path_probe = Some((start, end));
        // Later data is counted, and retransmitted, separately.
        self.send.snd_sml = end;
    }

    /// Data was acknowledged while a probe is in flight. Once the probe is acknowledged,
    /// larger segments get through.
    #[cold]
    pub(super) fn path_probe_acknowledged(&mut self) {
        if self
            .recovery
            .path_probe
            .is_some_and(|(_, end)| before(self.send.una, end))
        {
            return;
        }
        self.recovery.path_probe = None;
        self.path.low = self.path.low.max(self.path.probe);
        self.path.high = self.path.high.max(self.path.low);
        self.path.probe = 0;
        self.update_mss();
    }

    /// Other data was lost with the probe: its loss proves nothing.
    #[cold]
    pub(super) fn path_probe_void(&mut self) {
        self.recovery.path_probe = None;
        self.path.probe = 0;
    }
}
