//! The trusted level's hash maps, in the kernel or on the heap.

use std::collections::HashMap;
use std::io;

use aya::maps::MapData;

use super::layout::{FRAGMENTS, FragmentKey, OWNERS, OwnerKey};

/// BPF_NOEXIST of linux/bpf.h: only a new entry.
const NO_EXIST: u64 = 1;

/// Hash maps of the driver program, accessed by system calls.
#[derive(Debug)]
pub struct KernelMaps {
    /// Its map `owners`.
    pub owners: aya::maps::HashMap<MapData, OwnerKey, u32>,
    /// Its map `fragments`.
    pub fragments: aya::maps::HashMap<MapData, FragmentKey, u32>,
}

#[derive(Debug)]
pub(super) enum Maps {
    Kernel(KernelMaps),
    Heap {
        owners: HashMap<OwnerKey, u32>,
        fragments: RecentFragments,
    },
}

/// A bounded map that forgets the least recently used entry, as
/// BPF_MAP_TYPE_LRU_HASH does.
#[derive(Debug, Default)]
pub(super) struct RecentFragments {
    entries: HashMap<FragmentKey, (u32, u64)>,
    clock: u64,
}

impl RecentFragments {
    fn get(&mut self, key: &FragmentKey) -> Option<u32> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.1 = self.clock;
        Some(entry.0)
    }

    fn insert(&mut self, key: FragmentKey, value: u32) {
        self.clock += 1;
        if self.entries.len() >= FRAGMENTS && !self.entries.contains_key(&key) {
            // Rare and bounded: a scan of 4096 entries beats keeping order at every
            // lookup. A quarter is evicted at once, so that a flood of first fragments
            // triggers a scan only every thousandth frame.
            let mut ages: Vec<u64> = self.entries.values().map(|&(_, used)| used).collect();
            let (_, &mut oldest, _) = ages.select_nth_unstable(FRAGMENTS / 4);
            self.entries.retain(|_, &mut (_, used)| used > oldest);
        }
        self.entries.insert(key, (value, self.clock));
    }
}

pub(super) fn no_room() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOBUFS)
}

fn kernel_error(error: aya::maps::MapError) -> io::Error {
    match error {
        aya::maps::MapError::SyscallError(error) => error.io_error,
        error => io::Error::other(error),
    }
}

impl Maps {
    pub(super) fn on_the_heap() -> Self {
        Maps::Heap {
            owners: HashMap::new(),
            fragments: RecentFragments::default(),
        }
    }

    pub(super) fn owner(&self, key: &OwnerKey) -> Option<u32> {
        match self {
            Maps::Kernel(maps) => maps.owners.get(key, 0).ok(),
            Maps::Heap { owners, .. } => owners.get(key).copied(),
        }
    }

    /// All owners by address.
    pub(super) fn owners(&self) -> io::Result<Vec<(OwnerKey, u32)>> {
        match self {
            Maps::Kernel(maps) => maps
                .owners
                .iter()
                .map(|entry| entry.map_err(kernel_error))
                .collect(),
            Maps::Heap { owners, .. } => {
                Ok(owners.iter().map(|(&key, &number)| (key, number)).collect())
            }
        }
    }

    pub(super) fn decision(&mut self, key: &FragmentKey) -> Option<u32> {
        match self {
            Maps::Kernel(maps) => maps.fragments.get(key, 0).ok(),
            Maps::Heap { fragments, .. } => fragments.get(key),
        }
    }

    pub(super) fn decide(&mut self, key: FragmentKey, decision: u32) {
        match self {
            // A full table forgets: later fragments become orphans.
            Maps::Kernel(maps) => drop(maps.fragments.insert(key, decision, 0)),
            Maps::Heap { fragments, .. } => fragments.insert(key, decision),
        }
    }

    pub(super) fn forget_fragments(&mut self) {
        match self {
            Maps::Kernel(maps) => {
                let keys: Vec<FragmentKey> = maps.fragments.keys().flatten().collect();
                for key in keys {
                    // An entry already removed is fine.
                    drop(maps.fragments.remove(&key));
                }
            }
            Maps::Heap { fragments, .. } => *fragments = RecentFragments::default(),
        }
    }

    /// True if the key is new; otherwise its owner is replaced.
    pub(super) fn insert_owner(&mut self, key: OwnerKey, application: u32) -> io::Result<bool> {
        match self {
            Maps::Kernel(maps) => {
                let mut insert = |flags| {
                    let inserted = maps.owners.insert(key, application, flags);
                    inserted.map_err(kernel_error)
                };
                match insert(NO_EXIST).map_err(|error| (error.raw_os_error(), error)) {
                    Ok(()) => Ok(true),
                    Err((Some(libc::EEXIST), _)) => insert(0).map(|()| false),
                    // The error of a full hash map.
                    Err((Some(libc::E2BIG), _)) => Err(no_room()),
                    Err((_, error)) => Err(error),
                }
            }
            Maps::Heap { owners, .. } => {
                let is_new = !owners.contains_key(&key);
                if is_new && owners.len() >= OWNERS {
                    return Err(no_room());
                }
                owners.insert(key, application);
                Ok(is_new)
            }
        }
    }

    /// True if the key was there.
    pub(super) fn remove_owner(&mut self, key: &OwnerKey) -> io::Result<bool> {
        match self {
            Maps::Kernel(maps) => match maps.owners.remove(key) {
                Ok(()) => Ok(true),
                Err(aya::maps::MapError::KeyNotFound) => Ok(false),
                Err(error) => match kernel_error(error) {
                    error if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
                    error => Err(error),
                },
            },
            Maps::Heap { owners, .. } => Ok(owners.remove(key).is_some()),
        }
    }
}
