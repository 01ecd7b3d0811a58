//! Segments of a connection that wake no thread.
//!
//! An acknowledgment that no thread waits for goes to a socket on which no thread sleeps.
//! It is processed with the next frames, or before a timer that it may cancel. The same
//! holds, for a moment, for all segments that arrive after the application has closed the
//! connection.

use std::time::Duration;

use tidewall_device::demux::Waits;
use tidewall_stack::core::Core;

use super::{ConnectionInner, State};
use crate::tcp::frames::Deferred;

/// The least time for which Linux delays an acknowledgment, ms (TCP_DELACK_MIN, HZ / 25).
/// A peer expects as much of any receiver before it retransmits a segment.
const DELAYED_ACKNOWLEDGMENT_MIN: u64 = 40;
/// How long segments for a connection without an application may wait. The wait ends up to
/// [`Waits::TICK`] later, when a timer checks: together less than any receiver may take.
const LONGEST_WAIT: Duration = Duration::from_millis(DELAYED_ACKNOWLEDGMENT_MIN / 4);

impl ConnectionInner {
    /// Updates the driver's table of segments that wake no thread, if that has changed.
    pub(super) fn update_waits(&self, core: &Core, state: &mut State, deferred: &mut Deferred) {
        // On a shared channel the wait would distort measurements.
        let may_wait = state.connection.acknowledgments_may_wait()
            && (state.channel.is_some() || state.orphan);
        let kept = state.waits;
        let waits = match (may_wait, state.orphan, kept) {
            (false, ..) => Waits::None,
            (true, false, _) => Waits::Acknowledgments,
            (true, true, Waits::AllUntil(end)) if core.now() < end => kept,
            // Its time is over: nothing waits any more.
            (true, true, Waits::AllUntil(_)) => Waits::None,
            (true, true, _) if state.waited => Waits::None,
            (true, true, _) => {
                state.waited = true;
                Waits::AllUntil(core.now() + LONGEST_WAIT)
            }
        };
        if waits == kept {
            return;
        }
        state.waits = waits;
        core.tables
            .set_waits(self.flow.local, self.flow.remote, waits);
        if waits != Waits::Acknowledgments {
            // Frames that already wait are processed now. A frame that the driver is just
            // adding is processed when the timer expires.
            deferred.look |= waits == Waits::None;
            self.arm(core, state, core.now() + LONGEST_WAIT + Waits::TICK);
        }
    }
}
