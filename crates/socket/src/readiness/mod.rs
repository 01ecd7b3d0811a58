//! Which descriptors are ready, at a cost that does not grow with those that
//! are not.

pub(crate) mod classes;
pub mod descriptor_set;
pub(crate) mod interest;

/// What a file is ready for, or is asked about, with Linux's `EPOLL*` values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(pub(crate) u32);

#[allow(missing_docs)]
impl Events {
    pub const IN: Events = Events(libc::EPOLLIN as u32);
    pub const PRI: Events = Events(libc::EPOLLPRI as u32);
    pub const OUT: Events = Events(libc::EPOLLOUT as u32);
    pub const ERR: Events = Events(libc::EPOLLERR as u32);
    pub const HUP: Events = Events(libc::EPOLLHUP as u32);
    pub const NVAL: Events = Events(libc::POLLNVAL as u32);
    pub const RDNORM: Events = Events(libc::EPOLLRDNORM as u32);
    pub const RDBAND: Events = Events(libc::EPOLLRDBAND as u32);
    pub const WRNORM: Events = Events(libc::EPOLLWRNORM as u32);
    pub const WRBAND: Events = Events(libc::EPOLLWRBAND as u32);
    pub const MSG: Events = Events(libc::EPOLLMSG as u32);
    pub const RDHUP: Events = Events(libc::EPOLLRDHUP as u32);
}
