//! Credit: how the driver knows that a channel is full, and why the count cannot leak.
//!
//! For each channel and queue the driver counts frames admitted (`head`) and writes the
//! count into each frame's metadata. User space counts frames that are no longer
//! outstanding (`tail`). The driver drops when `head − tail` reaches the channel's limit.
//! But a frame can vanish between the two: the redirect fails after the program has
//! returned (receive ring full, no empty frame). The ring keeps order, so a vanished
//! frame shows as a gap in the numbers that arrive, and [`Account::arrived`] writes the
//! gap off. When no more frames arrive there is no gap to see. Then
//! [`Account::caught_up`] writes off everything up to a head that was read *before* the
//! ring was found empty.
//!
//! That head may count frames which the driver has admitted but not yet published. The
//! driver publishes at the end of its poll, perhaps on another CPU. Such a frame is
//! written off too early. It arrives later with a number at or below the mark, and its
//! write-off is reversed. So each number is credited exactly once, whatever the
//! interleaving: either when its frame is consumed, or as a write-off that stands.
//!
//! All channels of a queue together have one more bound: the empty frames given to the
//! device, and the entries of the receive ring. The poller writes it with each refill
//! ([`ApplicationTables::set_given`]), so a flood at many sockets dies in the driver
//! program and not in the ring.
//!
//! [`ApplicationTables::set_given`]: tidewall_device::demux::ApplicationTables::set_given

/// The adjustment of `tail` for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjust {
    /// Nothing.
    Keep,
    /// Frames are gone: add.
    WriteOff(u32),
    /// A frame written off arrived after all: subtract one.
    TakeBack,
}

/// The account of one channel on one queue; touched only by the poller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Highest number that has arrived or been written off.
    mark: u32,
}

impl Account {
    /// An account that begins at the driver's current head.
    pub fn starting_at(head: u32) -> Self {
        Account { mark: head }
    }

    /// Records the arrival of a frame with this number.
    pub fn arrived(&mut self, number: u32) -> Adjust {
        // Numbers wrap; the outstanding ones span far less than half the range.
        let ahead = number.wrapping_sub(self.mark) as i32;
        if ahead <= 0 {
            return Adjust::TakeBack;
        }
        self.mark = number;
        match ahead - 1 {
            0 => Adjust::Keep,
            gap => Adjust::WriteOff(gap as u32),
        }
    }

    /// Records that the ring was found empty after the driver's head had been `head`.
    pub fn caught_up(&mut self, head: u32) -> Adjust {
        let missing = head.wrapping_sub(self.mark) as i32;
        if missing <= 0 {
            return Adjust::Keep;
        }
        self.mark = head;
        Adjust::WriteOff(missing as u32)
    }
}

/// Consecutive checks that must find the same frames missing, and no other frame moving,
/// before they count as lost.
const STILL_LOOKS: u32 = 3;
/// Consecutive checks that may find frames missing while others move. A driver on another
/// CPU publishes up to 64 frames at the end of its poll, which takes many checks.
const MOVING_LOOKS: u32 = 1024;

/// Decides when frames that the driver admitted, and that are not in the ring, are lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suspicion {
    /// Frames admitted and arrived at the last check.
    seen: (u32, u32),
    looks: u32,
    still: u32,
}

impl Suspicion {
    /// Records that nothing is missing.
    pub fn clear(&mut self) {
        (self.looks, self.still) = (0, 0);
    }

    /// Records that some of the frames that the driver has `admitted` have not `arrived`.
    /// Returns true where they count as lost, and then starts over.
    pub fn confirms(&mut self, admitted: u32, arrived: u32) -> bool {
        let seen = (admitted, arrived);
        let is_still = self.looks > 0 && seen == self.seen;
        self.seen = seen;
        self.still = if is_still { self.still + 1 } else { 1 };
        self.looks += 1;
        let confirmed = self.still >= STILL_LOOKS || self.looks >= MOVING_LOOKS;
        if confirmed {
            self.clear();
        }
        confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_on_their_way_are_not_taken_for_lost() {
        let mut suspicion = Suspicion::default();
        // The driver admits while earlier frames wait to be published.
        for admitted in 1..MOVING_LOOKS {
            assert!(!suspicion.confirms(admitted, 0), "{admitted}");
        }
        assert!(
            suspicion.confirms(MOVING_LOOKS, 0),
            "it cannot go on for ever"
        );
        for look in 1..STILL_LOOKS {
            assert!(!suspicion.confirms(7, 3), "{look}");
        }
        assert!(!suspicion.confirms(7, 4), "one more has arrived");
        suspicion.clear();
        for look in 1..STILL_LOOKS {
            assert!(!suspicion.confirms(7, 4), "{look}");
        }
        assert!(suspicion.confirms(7, 4));
    }

    #[test]
    fn frames_in_order_need_no_adjustment() {
        let mut account = Account::starting_at(u32::MAX);
        assert_eq!(account.arrived(0), Adjust::Keep);
        assert_eq!(account.arrived(1), Adjust::Keep);
    }

    #[test]
    fn a_gap_is_written_off_once() {
        let mut account = Account::starting_at(10);
        assert_eq!(account.arrived(14), Adjust::WriteOff(3));
        assert_eq!(account.arrived(15), Adjust::Keep);
    }

    #[test]
    fn silence_is_written_off_and_taken_back_if_it_was_premature() {
        let mut account = Account::starting_at(0);
        assert_eq!(account.caught_up(2), Adjust::WriteOff(2));
        assert_eq!(account.caught_up(2), Adjust::Keep);
        assert_eq!(account.arrived(1), Adjust::TakeBack);
        assert_eq!(account.arrived(2), Adjust::TakeBack);
        assert_eq!(account.arrived(3), Adjust::Keep);
    }
}
