//! Options that change nothing about a connection of the stack. Programs set them all the
//! same, some on each accepted connection (Erlang SO_PRIORITY). They are stored and read
//! back.

use super::table::{TABLE, Values, place_of};
use super::{between, int};
use crate::{Errno, Result};

/// The values that were set, keyed by table row. Few are set on any socket.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Kept(Vec<(u8, i32)>);

impl Kept {
    /// # Errors
    /// EINVAL for a value that Linux refuses, ENOPROTOOPT for one that no socket of the stack
    /// supports.
    pub(crate) fn set(&mut self, place: usize, values: Values, value: &[u8]) -> Result<()> {
        let place = place as u8;
        let value = match (values, int(value)?) {
            (Values::Any, value) => value,
            (Values::Flag, value) => (value != 0).into(),
            (Values::One, 0 | 1) => 1,
            (Values::One, _) => return Err(Errno(libc::ENOPROTOOPT)),
            (Values::Between(least, most), value) => between(value, least, most)? as i32,
        };
        self.0.retain(|known| known.0 != place);
        self.0.push((place, value));
        Ok(())
    }

    /// Reports whether an option was set that connections do not inherit from their
    /// listener.
    pub(crate) fn is_only_the_listeners(&self) -> bool {
        self.0.iter().any(|known| is_priority(known.0))
    }

    /// Keeps only what a connection inherits from its listener.
    pub(crate) fn inherit(&mut self) {
        self.0.retain(|known| !is_priority(known.0));
    }

    /// Returns the value that is read back.
    pub(crate) fn get(&self, which: (i32, i32)) -> i32 {
        let place = place_of(which).map(|place| place as u8);
        let known = self.0.iter().find(|known| Some(known.0) == place);
        known.map_or_else(|| default_of(which), |known| known.1)
    }
}

/// SO_PRIORITY, which each connection sets for itself.
fn is_priority(place: u8) -> bool {
    let row = TABLE.get(usize::from(place));
    row.is_some_and(|row| row.which == (libc::SOL_SOCKET, libc::SO_PRIORITY))
}

/// Returns the value of an option that was not set.
fn default_of(which: (i32, i32)) -> i32 {
    match which {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => 1,
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => -1,
        // IP_PMTUDISC_WANT, IPV6_PMTUDISC_WANT
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => 1,
        _ => 0,
    }
}
