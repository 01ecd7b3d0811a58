//! The unsafe edge of this crate: descriptors that the application names by number.

pub(crate) mod epoll;
