//! Tracks objects handed over to applications until nothing refers to them: an
//! application that ends may keep descriptors and mappings, or have passed them on.
//!
//! The kernel reports each kind in another way.
//!
//! - A map is in an epoll(7) set until its last descriptor and mapping are gone;
//!   /proc/self/fdinfo lists the set.
//! - Frame memory has no name; inotify(7) reports its end.
//! - An AF_XDP socket keeps memory pinned. It is gone once another can be bound in its
//!   place ([`super::private`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::epoll;
use rustix::fs::inotify;
use rustix::io::Errno;

/// An application's number among all that ever existed: a part of its token.
pub(super) type Id = u64;

/// Held as long as a socket may be referenced.
pub(super) type Share = Arc<()>;

#[derive(Debug)]
pub(super) struct Handed {
    /// An epoll set that is never waited on.
    maps: OwnedFd,
    memory: OwnedFd,
    /// The application that owns the memory behind each watch.
    watches: HashMap<i32, Id>,
    sockets: HashMap<Id, Weak<()>>,
}

impl Handed {
    /// Starts empty.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn new() -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Ok(Handed {
            maps: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            memory: inotify::init(flags)?,
            watches: HashMap::new(),
            sockets: HashMap::new(),
        })
    }

    /// A token that each socket of an application must hold.
    pub(super) fn share(&mut self, id: Id) -> Share {
        let share = Share::default();
        self.sockets.insert(id, Arc::downgrade(&share));
        share
    }

    /// Watches the map of an application's tables and its frame memory.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC; what the kernel reports.
    pub(super) fn watch<'a>(
        &mut self,
        id: Id,
        tables: BorrowedFd<'_>,
        memory: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(id);
        epoll::add(&self.maps, tables, data, epoll::EventFlags::empty())?;
        for file in memory {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let watch = inotify::add_watch(&self.memory, path, inotify::WatchFlags::DELETE_SELF)?;
            self.watches.insert(watch, id);
        }
        Ok(())
    }

    /// Whether any object handed over to an application is still referenced.
    ///
    /// # Errors
    /// Those /proc reports.
    pub(super) fn is_held(&mut self, id: Id) -> io::Result<bool> {
        self.forget_memory()?;
        let has_sockets = self
            .sockets
            .get(&id)
            .is_some_and(|it| it.strong_count() > 0);
        if has_sockets || self.watches.values().any(|of| *of == id) {
            return Ok(true);
        }
        self.sockets.remove(&id);
        let path = format!("/proc/self/fdinfo/{}", self.maps.as_raw_fd());
        Ok(ids(&fs::read_to_string(path)?).any(|of| of == id))
    }

    /// Takes inotify's reports.
    fn forget_memory(&mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.memory, &mut buffer);
        loop {
            match events.next() {
                // It is the last event of each watch: the kernel removes it.
                Ok(event) => drop(self.watches.remove(&event.wd())),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The ids of maps in a set: `tfd: 5 events: 18 data: 2a pos:…` (proc_pid_fdinfo(5)).
fn ids(fdinfo: &str) -> impl Iterator<Item = Id> {
    fdinfo.lines().filter_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        words.find(|word| *word == "data:")?;
        Id::from_str_radix(words.next()?, 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn what_is_handed_out_is_held_until_its_last_copy_is_gone() {
        let mut handed = Handed::new().unwrap();
        assert!(!handed.is_held(1).unwrap());
        // Another file that epoll accepts, in place of the map.
        let (tables, _other) = pipe().unwrap();
        let memory = memfd_create("tw-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 4096).unwrap();
        let share = handed.share(1);
        let (one, two) = (tables.as_fd(), memory.as_fd());
        handed.watch(1, one, [two].into_iter()).unwrap();
        assert!(handed.is_held(1).unwrap());
        assert!(!handed.is_held(2).unwrap());

        // A copy, and another description of the same memory.
        let copy = tables.try_clone().unwrap();
        let again = fs::File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        drop((tables, memory, share));
        assert!(handed.is_held(1).unwrap());
        drop(copy);
        assert!(handed.is_held(1).unwrap());
        drop(again);
        assert!(!handed.is_held(1).unwrap());
        assert!(handed.watches.is_empty() && handed.sockets.is_empty());
    }
}
