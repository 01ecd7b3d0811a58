//! The three things `select` asks about a descriptor.

use super::Events;

/// Reading, writing, exceptions: as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes(u8);

/// How many there are; their order is that of `select`'s arguments.
pub(crate) const CLASSES: usize = 3;

/// POLLNVAL.
const NVAL: u32 = libc::POLLNVAL as u32;
/// Linux's POLLIN_SET (fs/select.c).
const READ_SET: u32 =
    Events::IN.0 | Events::RDNORM.0 | Events::RDBAND.0 | Events::HUP.0 | Events::ERR.0 | NVAL;
/// Linux's POLLOUT_SET.
const WRITE_SET: u32 = Events::OUT.0 | Events::WRNORM.0 | Events::WRBAND.0 | Events::ERR.0 | NVAL;
/// Linux's POLLEX_SET.
const EXCEPT_SET: u32 = Events::PRI.0 | NVAL;
/// What `poll` reports without being asked.
const ALWAYS: u32 = Events::ERR.0 | Events::HUP.0;

impl Classes {
    pub(crate) const NONE: Classes = Classes(0);
    pub(crate) const READ: Classes = Classes(1);
    pub(crate) const WRITE: Classes = Classes(2);
    pub(crate) const EXCEPT: Classes = Classes(4);
    pub(crate) const ALL: Classes = Classes(7);

    /// Those in whose word the bit is set.
    pub(crate) fn of_words(words: [u64; CLASSES], bit: u32) -> Classes {
        let [read, write, except] = words.map(|word| (word >> (bit % u64::BITS) & 1) as u8);
        Classes(read | write << 1 | except << 2)
    }

    /// The bit, in the words of these classes.
    pub(crate) fn to_words(self, bit: u32) -> [u64; CLASSES] {
        let bit = bit % u64::BITS;
        [0, 1, 2].map(|class| u64::from(self.0 >> class & 1) << bit)
    }

    pub(crate) fn with(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    pub(crate) fn and(self, other: Classes) -> Classes {
        Classes(self.0 & other.0)
    }

    pub(crate) fn without(self, other: Classes) -> Classes {
        Classes(self.0 & !other.0)
    }

    pub(crate) fn is_none(self) -> bool {
        self == Classes::NONE
    }

    /// The changes that must be hinted to a call that asks about these.
    pub(crate) fn interest(self) -> Events {
        let mut events = 0;
        if self.0 & Classes::READ.0 != 0 {
            events |= READ_SET | Events::RDHUP.0 | Events::MSG.0;
        }
        if self.0 & Classes::WRITE.0 != 0 {
            events |= WRITE_SET;
        }
        if self.0 & Classes::EXCEPT.0 != 0 {
            events |= EXCEPT_SET | ALWAYS;
        }
        Events(events & !NVAL)
    }

    /// What `select` reports of a file's state.
    pub(crate) fn ready(state: Events) -> Classes {
        Self::from_sets(state, READ_SET, WRITE_SET, EXCEPT_SET)
    }

    /// The classes for which a file of this state has something that `select` or
    /// `poll` may report: at least [`Classes::ready`]. A file that has nothing
    /// has nothing until it is hinted.
    pub(crate) fn pending(state: Events) -> Classes {
        let read = Classes::READ.interest().0;
        let write = Classes::WRITE.interest().0;
        let except = Classes::EXCEPT.interest().0;
        Self::from_sets(state, read, write, except)
    }

    fn from_sets(state: Events, read: u32, write: u32, except: u32) -> Classes {
        let [read, write, except] = [read, write, except].map(|set| u8::from(state.0 & set != 0));
        Classes(read | write << 1 | except << 2)
    }

    /// The classes that cover what a `poll` asks for. Errors and hang-ups are
    /// always asked for; they are found under exceptions.
    pub(crate) fn polled(asked: Events) -> Classes {
        let read =
            Events::IN.0 | Events::RDNORM.0 | Events::RDBAND.0 | Events::RDHUP.0 | Events::MSG.0;
        let write = Events::OUT.0 | Events::WRNORM.0 | Events::WRBAND.0;
        let mut classes = Classes::EXCEPT;
        if asked.0 & read != 0 {
            classes = classes.with(Classes::READ);
        }
        if asked.0 & write != 0 {
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
            let classes = Classes::polled(Events(asked));
            for bit in 0..14 {
                let state = Events(1 << bit);
                if state.0 & (asked | ALWAYS) & !NVAL & 0x27df == 0 {
                    continue;
                }
                let pending = Classes::pending(state).and(classes);
                assert!(
                    !pending.is_none(),
                    "{state:?} of {asked:#x} would be missed"
                );
                assert!(state.0 & classes.interest().0 != 0, "{state:?}: no hint");
            }
        }
    }

    #[test]
    fn what_select_reports_is_pending_and_hinted() {
        for bit in 0..14 {
            let state = Events(1 << bit & !NVAL);
            let ready = Classes::ready(state);
            assert_eq!(ready.without(Classes::pending(state)), Classes::NONE);
            for class in [Classes::READ, Classes::WRITE, Classes::EXCEPT] {
                if !ready.and(class).is_none() {
                    assert!(class.interest().0 & state.0 != 0, "{class:?}: {state:?}");
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
