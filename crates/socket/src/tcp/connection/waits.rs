//! Which segments of a connection wake nobody.
//!
//! An acknowledgment that nobody waits for goes to a socket that nobody sleeps on, and
//! is seen to with what comes next, or before a timer that it may make void. So
//! does all that comes once the application is gone, for a moment.

use std::time::Duration;

use tidewall_device::demux::Waits;

use super::{ConnectionInner, State};
use crate::tcp::frames::Deferred;
use tidewall_stack::core::Core;

/// Linux delays an acknowledgment by no less, ms (TCP_DELACK_MIN, HZ / 25): so much a peer
/// expects of any receiver before it repeats a segment.
const DELAYED_ACKNOWLEDGMENT_MIN: u64 = 40;
/// How long what comes for a connection without an application may wait. It ends up
/// to [`Waits::TICK`] later, when a timer looks: together less than any receiver may take.
const LONGEST_WAIT: Duration = Duration::from_millis(DELAYED_ACKNOWLEDGMENT_MIN / 4);

impl ConnectionInner {
    /// Says what of it wakes nobody, where that has changed.
    pub(super) fn update_waits(&self, core: &Core, state: &mut State, deferred: &mut Deferred) {
        // Measurements of what comes by a shared channel would include the wait.
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
            // What waits already is waited for now. What the driver is just putting
            // there is seen to when the timer expires.
            deferred.look |= waits == Waits::None;
            self.arm(core, state, core.now() + LONGEST_WAIT + Waits::TICK);
        }
    }
}
