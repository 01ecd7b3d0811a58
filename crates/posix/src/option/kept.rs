//! Options that change nothing of a connection of the stack's, and that programs set all the
//! same, some of each that they accept (Erlang SO_PRIORITY): they are kept, and read back.

use super::table::{TABLE, Values, place_of};
use super::{between, int};
use crate::{Errno, Result};

/// What was set of them, by their places in the table; few are set of any socket.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Kept(Vec<(u8, i32)>);

impl Kept {
    /// # Errors
    /// EINVAL for a value that Linux refuses, ENOPROTOOPT for one that no stack's socket has.
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

    /// Whether something was set that no connection has of its listener.
    pub(crate) fn is_only_the_listeners(&self) -> bool {
        self.0.iter().any(|known| is_priority(known.0))
    }

    /// Leaves a connection what it has of its listener.
    pub(crate) fn inherit(&mut self) {
        self.0.retain(|known| !is_priority(known.0));
    }

    /// What is read back.
    pub(crate) fn get(&self, which: (i32, i32)) -> i32 {
        let place = place_of(which).map(|place| place as u8);
        let known = self.0.iter().find(|known| Some(known.0) == place);
        known.map_or_else(|| default_of(which), |known| known.1)
    }
}

/// SO_PRIORITY, of which each connection has its own.
fn is_priority(place: u8) -> bool {
    let row = TABLE.get(usize::from(place));
    row.is_some_and(|row| row.which == (libc::SOL_SOCKET, libc::SO_PRIORITY))
}

/// What a socket has of which nothing was set.
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
