//! The unsafe edge of this crate: descriptors that the application names by number.
//!
//! Lives here: calls of epoll_ctl and fcntl on descriptors that this crate does not own.
//! Does not live here: any other unsafe code.
//!
//! Read first: epoll_ctl(2).

pub(crate) mod epoll;
