//! The three classes of readiness that `select` queries.

use crate::events::Events;

/// Reading, writing, exceptions: as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u8);

/// Number of classes; their order is that of `select`'s arguments.
pub const CLASSES: usize = 3;

/// POLLNVAL.
const NVAL: u32 = libc::POLLNVAL as u32;
/// Linux's POLLIN_SET (fs/select.c).
const READ_SET: u32 = Events::IN.bits()
    | Events::RDNORM.bits()
    | Events::RDBAND.bits()
    | Events::HUP.bits()
    | Events::ERR.bits()
    | NVAL;
/// Linux's POLLOUT_SET.
const WRITE_SET: u32 =
    Events::OUT.bits() | Events::WRNORM.bits() | Events::WRBAND.bits() | Events::ERR.bits() | NVAL;
/// Linux's POLLEX_SET.
const EXCEPT_SET: u32 = Events::PRI.bits() | NVAL;
/// Events that `poll` always reports.
const ALWAYS: u32 = Events::ERR.bits() | Events::HUP.bits();

impl Classes {
    pub const NONE: Classes = Classes(0);
    pub const READ: Classes = Classes(1);
    pub const WRITE: Classes = Classes(2);
    pub const EXCEPT: Classes = Classes(4);
    pub const ALL: Classes = Classes(7);

    /// Returns the classes in whose word the bit is set.
    pub fn of_words(words: [u64; CLASSES], bit: u32) -> Classes {
        let [read, write, except] = words.map(|word| (word >> (bit % u64::BITS) & 1) as u8);
        Classes(read | write << 1 | except << 2)
    }

    /// Returns the bit, in the words of these classes.
    pub fn to_words(self, bit: u32) -> [u64; CLASSES] {
        let bit = bit % u64::BITS;
        [0, 1, 2].map(|class| u64::from(self.0 >> class & 1) << bit)
    }

    pub fn with(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    pub fn and(self, other: Classes) -> Classes {
        Classes(self.0 & other.0)
    }

    pub fn without(self, other: Classes) -> Classes {
        Classes(self.0 & !other.0)
    }

    pub fn is_none(self) -> bool {
        self == Classes::NONE
    }

    /// Returns the changes that must be hinted to a call that queries these classes.
    pub fn interest(self) -> Events {
        let mut events = 0;
        if self.0 & Classes::READ.0 != 0 {
            events |= READ_SET | Events::RDHUP.bits() | Events::MSG.bits();
        }
        if self.0 & Classes::WRITE.0 != 0 {
            events |= WRITE_SET;
        }
        if self.0 & Classes::EXCEPT.0 != 0 {
            events |= EXCEPT_SET | ALWAYS;
        }
        Events::from_bits(events & !NVAL)
    }

    /// Returns what `select` reports for a file in this state.
    pub fn ready(state: Events) -> Classes {
        Self::from_sets(state, READ_SET, WRITE_SET, EXCEPT_SET)
    }

    /// Returns the classes for which a file in this state has something that `select` or
    /// `poll` may report: at least [`Classes::ready`]. A file with nothing pending stays
    /// so until it is hinted.
    pub fn pending(state: Events) -> Classes {
        let read = Classes::READ.interest().bits();
        let write = Classes::WRITE.interest().bits();
        let except = Classes::EXCEPT.interest().bits();
        Self::from_sets(state, read, write, except)
    }

    fn from_sets(state: Events, read: u32, write: u32, except: u32) -> Classes {
        let [read, write, except] =
            [read, write, except].map(|set| u8::from(state.bits() & set != 0));
        Classes(read | write << 1 | except << 2)
    }

    /// Returns the classes that cover the events that a `poll` requests. Errors and
    /// hang-ups are always requested; they belong to exceptions.
    pub fn polled(asked: Events) -> Classes {
        let read = Events::IN.bits()
            | Events::RDNORM.bits()
            | Events::RDBAND.bits()
            | Events::RDHUP.bits()
            | Events::MSG.bits();
        let write = Events::OUT.bits() | Events::WRNORM.bits() | Events::WRBAND.bits();
        let mut classes = Classes::EXCEPT;
        if asked.bits() & read != 0 {
            classes = classes.with(Classes::READ);
        }
        if asked.bits() & write != 0 {
            classes = classes.with(Classes::WRITE);
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_that_poll_reports_is_pending_where_it_was_asked_for() {
        for asked in 0..0x4000u32 {
            let classes = Classes::polled(Events::from_bits(asked));
            for bit in 0..14 {
                let state = Events::from_bits(1 << bit);
                if state.bits() & (asked | ALWAYS) & !NVAL & 0x27df == 0 {
                    continue;
                }
                let pending = Classes::pending(state).and(classes);
                assert!(
                    !pending.is_none(),
                    "{state:?} of {asked:#x} would be missed"
                );
                assert!(
                    state.bits() & classes.interest().bits() != 0,
                    "{state:?}: no hint"
                );
            }
        }
    }

    #[test]
    fn what_select_reports_is_pending_and_hinted() {
        for bit in 0..14 {
            let state = Events::from_bits(1 << bit & !NVAL);
            let ready = Classes::ready(state);
            assert_eq!(ready.without(Classes::pending(state)), Classes::NONE);
            for class in [Classes::READ, Classes::WRITE, Classes::EXCEPT] {
                if !ready.and(class).is_none() {
                    assert!(
                        class.interest().bits() & state.bits() != 0,
                        "{class:?}: {state:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn words_and_classes_are_the_same() {
        for classes in 0..8 {
            let classes = Classes(classes);
            for bit in [0, 5, 63] {
                assert_eq!(Classes::of_words(classes.to_words(bit), bit), classes);
            }
        }
    }
}
