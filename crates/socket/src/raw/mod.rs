//! The unsafe edge of this crate: system calls of the sockets that hold our
//! ports, of netlink, and of sleeping.

pub(crate) mod descriptor;
pub(crate) mod epoll;
pub(crate) mod options;
pub(crate) mod poll;
pub(crate) mod unix;
