//! Options that change nothing of a connection of the stack's, and that programs set all the
//! same, some of each that they accept (Erlang SO_PRIORITY): they are kept, and read back.

use super::int;
use crate::{Errno, Result};

/// A level and a name, and the values that Linux takes.
const ALL: [(i32, i32, Values); 11] = [
    // Of queueing disciplines, which the stack's frames do not pass.
    (libc::SOL_SOCKET, libc::SO_PRIORITY, Values::Any),
    // Of datagrams, and of sockets that are bound.
    (libc::SOL_SOCKET, libc::SO_BROADCAST, Values::Flag),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, Values::Flag),
    // Urgent data is in line whatever is asked for (RFC 6093).
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, Values::Flag),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Values::One),
    // Of control messages, which no stream has (but by IP_PKTOPTIONS).
    (libc::IPPROTO_IP, libc::IP_PKTINFO, Values::Flag),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, Values::Flag),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, Values::Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, Values::Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, Values::Flag),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, Values::Flag),
];

#[derive(Clone, Copy)]
enum Values {
    Any,
    Flag,
    /// One byte is enough to read; more is not waited for.
    One,
}

/// What was set of them.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Kept([i32; ALL.len()]);

fn place((level, name): (i32, i32)) -> Option<(usize, Values)> {
    let found = |&(_, it): &(usize, (i32, i32, Values))| (it.0, it.1) == (level, name);
    let (place, (_, _, values)) = ALL.into_iter().enumerate().find(found)?;
    Some((place, values))
}

impl Kept {
    /// # Errors
    /// ENOPROTOOPT for an option that is not kept, or not with that value.
    pub(crate) fn set(&mut self, which: (i32, i32), value: &[u8]) -> Result<()> {
        let missing = Errno(libc::ENOPROTOOPT);
        let (place, values) = place(which).ok_or(missing)?;
        let value = match (values, int(value)?) {
            (Values::Any, value) => value,
            (Values::Flag, value) => (value != 0).into(),
            // Linux makes one of zero.
            (Values::One, 0 | 1) => 0,
            (Values::One, _) => return Err(missing),
        };
        *self.0.get_mut(place).ok_or(missing)? = value;
        Ok(())
    }

    /// What is read back.
    pub(crate) fn get(&self, which: (i32, i32)) -> Option<i32> {
        let (place, values) = place(which)?;
        match values {
            Values::One => Some(1),
            Values::Any | Values::Flag => self.0.get(place).copied(),
        }
    }
}
