//! What was handed to applications, until nothing refers to it any more: an application that
//! ends may keep descriptors and mappings, or have passed them on.
//!
//! The kernel reports each kind in another way. A map is in a set of epoll(7) until its last
//! descriptor and mapping are gone, which /proc/self/fdinfo lists. Of frame memory, which has
//! no name, inotify(7) reports the end. A socket of AF_XDP, which keeps memory pinned, is gone
//! once another can be bound in its place ([`super::private`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::epoll;
use rustix::fs::inotify;
use rustix::io::Errno;

/// An application's number among all that ever were: a part of its token.
pub(super) type Id = u64;

/// Held as long as a socket may be referred to.
pub(super) type Share = Arc<()>;

#[derive(Debug)]
pub(super) struct Handed {
    /// Nothing is waited for by it.
    maps: OwnedFd,
    memory: OwnedFd,
    /// Whose is the memory behind each watch.
    watches: HashMap<i32, Id>,
    sockets: HashMap<Id, Weak<()>>,
}

impl Handed {
    /// Nothing yet.
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

    /// What each socket of an application is to hold.
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

    /// Whether anything that an application was handed is still referred to.
    ///
    /// # Errors
    /// What /proc reports.
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

    /// Takes what inotify reports.
    fn forget_memory(&mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.memory, &mut buffer);
        loop {
            match events.next() {
                // Of each watch it is the last: the kernel takes it away.
                Ok(event) => drop(self.watches.remove(&event.wd())),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whose maps are in a set: `tfd: 5 events: 18 data: 2a pos:…` (proc_pid_fdinfo(5)).
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
        // Something else that epoll takes, in the map's place.
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
