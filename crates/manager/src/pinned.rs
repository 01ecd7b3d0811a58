//! The driver program and its maps in bpffs, where they outlive the process.
//!
//! The link is pinned last and unpinned first. A directory with a link is complete; one
//! without is left from a process that died in between. Without its pin and its process
//! the link ends, and the program is detached.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{Array, DevMap, HashMap, Map, MapData, MapError};
use aya::programs::Xdp;

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use tidewall_device::afxdp::Made;
use tidewall_device::demux::layout::{
    APPLICATIONS, DEPARTURES, PRIVATE_SOCKETS, QUEUES, TraceRecord, WAITING_SOCKETS,
};
use tidewall_device::demux::{KernelMaps, TrustedTables, programs};
use tidewall_device::forked::Unshared;
use tidewall_sys::bpf::{
    ArrayMap, create_array, delete_element, freeze, interface_of_link, pin, pinned, set_object,
};
use tidewall_sys::netlink::Rtnetlink;

use crate::XdpMode;
use crate::daemon::journal::{ENTRY_BYTES, Entry};
use crate::domains::programs::PairPrograms;
use crate::program::{Traces, attach, load, random_bytes, read_no_btf, xdp_named};
use crate::refusal::{check_generic, describe, native};

const MAPS: [&str; 10] = [
    "device",
    "queues",
    "owners",
    "fragments",
    "applications",
    "sockets",
    "pairs",
    "near_ends",
    "departures",
    "traces",
];
const PROGRAM: &str = "program";
const JOURNAL: &str = "journal";
const LINK: &str = "link";
/// linux/magic.h
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Entries of the journal: one for each application, and the manager's own.
const JOURNAL_ENTRIES: u32 = APPLICATIONS as u32 + 1;

/// The mount point of bpffs.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Whether bpffs is mounted at a path, and is writable.
pub fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
        && rustix::fs::statvfs(path)
            .is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// A bpffs that only this process has: pins in it end with it.
#[derive(Debug)]
pub struct PrivateBpffs {
    mount: OwnedFd,
}

impl PrivateBpffs {
    /// Creates one that is mounted nowhere.
    ///
    /// # Errors
    /// PermissionDenied without CAP_SYS_ADMIN; what the kernel reports.
    pub fn new() -> io::Result<Self> {
        let mount = crate::raw::mount::bpffs()?;
        Ok(PrivateBpffs { mount })
    }

    /// Its root, under which only this process finds it, while this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }
}

/// A directory of bpffs that one process has to itself.
#[derive(Debug)]
pub struct PinDirectory {
    path: PathBuf,
    // Locked (flock(2)) as long as it is open.
    _lock: File,
}

impl PinDirectory {
    /// Takes the directory, creating it if necessary.
    ///
    /// # Errors
    /// ResourceBusy where another process has it; Unsupported where it is not in bpffs;
    /// ReadOnlyFilesystem; what the file system reports.
    pub fn take(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path).map_err(|error| {
            if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
                return read_only(path);
            }
            let text = format!(
                "{}: {error} (see: mount -t bpf -o mode=0700 bpf /sys/fs/bpf)",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        let directory = File::open(path)?;
        if fstatvfs(&directory)?
            .f_flag
            .contains(StatVfsMountFlags::RDONLY)
        {
            return Err(read_only(path));
        }
        if rustix::fs::fstatfs(&directory)?.f_type != BPF_FS_MAGIC {
            let text = format!(
                "{} is not in bpffs: mount -t bpf -o mode=0700 bpf /sys/fs/bpf",
                path.display()
            );
            // Created by us, unless it contains something.
            let _ = fs::remove_dir(path);
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        check_owners(path)?;
        match directory.try_lock() {
            Ok(()) => Ok(PinDirectory {
                path: path.to_owned(),
                _lock: directory,
            }),
            Err(TryLockError::WouldBlock) => {
                let text = format!("another manager has {}", path.display());
                Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// True if an earlier process left a complete program.
    pub fn is_whole(&self) -> bool {
        self.at(LINK).exists()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The index of the interface that a complete directory's program is attached to;
    /// `None` if that no longer exists, or is in another network namespace.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn interface(&self) -> io::Result<Option<u32>> {
        let Some((index, program)) = interface_of_link(pinned(&self.at(LINK))?.as_fd())? else {
            return Ok(None);
        };
        // In another namespace it may have a number that another interface has here.
        let here = Rtnetlink::open()?.link(index);
        let is_here = here.is_ok_and(|link| link.xdp_program == Some(program));
        Ok(is_here.then_some(index))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Unpins everything. The program is detached when the last process that has it open
    /// ends.
    ///
    /// # Errors
    /// Those the file system reports.
    pub fn empty(&self) -> io::Result<()> {
        for name in [LINK, PROGRAM, JOURNAL].into_iter().chain(MAPS) {
            match fs::remove_file(self.at(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        PairPrograms::unpin(&self.path)
    }

    /// Does [`PinDirectory::empty`], and removes the directory itself.
    ///
    /// # Errors
    /// As [`PinDirectory::empty`].
    pub fn remove(self) -> io::Result<()> {
        self.empty()?;
        fs::remove_dir(&self.path)
    }
}

/// Rejects a directory if another user could remove it or its entries. A bpffs mounted
/// without a mode permits every user to create directories.
///
/// # Errors
/// PermissionDenied, with the remedy; what the file system reports.
fn check_owners(path: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for (depth, directory) in std::path::absolute(path)?.ancestors().enumerate() {
        let found = fs::metadata(directory)?;
        let (owner, mode) = (found.uid(), found.mode());
        // In a sticky directory each user's entries are protected.
        let is_shared = mode & 0o022 != 0 && (depth == 0 || mode & 0o1000 == 0);
        if is_shared || ![0, own].contains(&owner) {
            let text = format!(
                "{} is user {owner}'s, mode {:o}: another user could take away what is pinned there \
                 (rmdir it, or chown root and chmod 0700)",
                directory.display(),
                mode & 0o7777
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    Ok(())
}

fn read_only(path: &Path) -> io::Error {
    let text = format!(
        "{} is mounted read-only: mount -o remount,rw /sys/fs/bpf",
        path.display()
    );
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, text)
}

/// The driver program, attached and pinned.
pub struct PinnedProgram {
    directory: PinDirectory,
    trusted: TrustedTables,
    queues: OwnedFd,
    journal: Array<MapData, [u8; ENTRY_BYTES]>,
    applications: OwnedFd,
    sockets: OwnedFd,
    pairs: DevMap<MapData>,
    /// The same map, for removing elements.
    pairs_file: OwnedFd,
    near_ends: HashMap<MapData, u32, u32>,
    departures: Array<MapData, [u64; DEPARTURES]>,
    pair_programs: Option<Arc<PairPrograms>>,
    // Another manager may unpin it.
    _link: OwnedFd,
}

impl fmt::Debug for PinnedProgram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PinnedProgram")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl PinnedProgram {
    /// Loads the program, attaches it to an interface of the caller's network namespace
    /// and pins both with all maps, replacing the directory's contents. Attaching waits
    /// for RCU. Before it, `begin` may start work that can proceed meanwhile; it receives
    /// the map of applications' tables.
    ///
    /// # Errors
    /// As [`crate::Program::load`] and [`crate::Program::attach_where_possible`]; what
    /// pinning reports. Nothing is attached then.
    pub fn create(
        directory: PinDirectory,
        interface: &str,
        mode: Option<XdpMode>,
        begin: impl FnOnce(OwnedFd) -> io::Result<()>,
    ) -> io::Result<(Self, XdpMode)> {
        directory.empty()?;
        read_no_btf();
        let mut loaded = load(programs::DEMUX)
            .map_err(|error| describe("load the driver program's maps", error))?;
        let xdp = xdp_named(&mut loaded, "demux")?;
        xdp.load()
            .map_err(|error| describe("load the driver program", error))?;
        for name in MAPS {
            let map = loaded.map(name).ok_or(io::ErrorKind::NotFound)?;
            map.pin(directory.at(name))
                .map_err(|error| describe("pin a map", error))?;
        }
        let journal = create_array(&ArrayMap {
            name: "tw_journal",
            value_bytes: ENTRY_BYTES as u32,
            entries: JOURNAL_ENTRIES,
            mapped: false,
        })?;
        pin(journal.as_fd(), &directory.at(JOURNAL))?;
        let key = random_bytes()?;
        let hash_key: [u64; 2] = zerocopy::transmute!(key);
        let queues = pinned(&directory.at("queues"))?;
        let tables = TrustedTables::of_maps(
            pinned(&directory.at("device"))?.as_fd(),
            queues.as_fd(),
            kernel_maps(&directory.path)?,
            hash_key,
        )?;
        tables.limit_kernel_frames();
        drop(tables);
        // So that applications can map the driver's counters.
        freeze(queues.as_fd())?;
        let xdp = xdp_named(&mut loaded, "demux")?;
        xdp.pin(directory.at(PROGRAM))
            .map_err(|error| describe("pin the driver program", error))?;
        // Without them there is no private mode; everything else works.
        if let Ok(programs) = PairPrograms::load(&mut loaded) {
            programs.pin(&directory.path)?;
        }
        begin(pinned(&directory.at("applications"))?)?;
        let xdp = xdp_named(&mut loaded, "demux")?;
        let (link, mode) = attach_by(xdp, interface, mode)?;
        pin(link.as_fd(), &directory.at(LINK))?;
        Ok((Self::adopt(directory)?, mode))
    }

    /// Opens the program that an earlier process has pinned.
    ///
    /// # Errors
    /// NotFound where a pin is missing; InvalidData where the maps are another build's;
    /// what the kernel reports.
    pub fn adopt(directory: PinDirectory) -> io::Result<Self> {
        let journal = MapData::from_pin(directory.at(JOURNAL))
            .map_err(|error| describe("open the journal", error))?;
        let journal = Array::try_from(Map::Array(journal))
            .map_err(|error| describe("open the journal", error))?;
        let map = |name: &str| {
            MapData::from_pin(directory.at(name)).map_err(|error| describe("open a map", error))
        };
        let near_ends = HashMap::try_from(Map::HashMap(map("near_ends")?))
            .map_err(|error| describe("open map near_ends", error))?;
        let pairs = DevMap::try_from(Map::DevMap(map("pairs")?))
            .map_err(|error| describe("open map pairs", error))?;
        let departures = Array::try_from(Map::Array(map("departures")?))
            .map_err(|error| describe("open map departures", error))?;
        let device = pinned(&directory.at("device"))?;
        let queues = pinned(&directory.at("queues"))?;
        let maps = kernel_maps(&directory.path)?;
        Ok(PinnedProgram {
            trusted: TrustedTables::adopt(device.as_fd(), queues.as_fd(), maps)?,
            queues,
            journal,
            applications: pinned(&directory.at("applications"))?,
            sockets: pinned(&directory.at("sockets"))?,
            pairs,
            pairs_file: pinned(&directory.at("pairs"))?,
            near_ends,
            departures,
            pair_programs: PairPrograms::pinned(&directory.path)?.map(Arc::new),
            _link: pinned(&directory.at(LINK))?,
            directory,
        })
    }

    /// The trusted tables.
    pub fn trusted(&self) -> &TrustedTables {
        &self.trusted
    }

    /// The map of the driver program's counters, which is frozen
    /// ([`tidewall_device::demux::DriverCounters::of_map`]).
    pub fn queues(&self) -> BorrowedFd<'_> {
        self.queues.as_fd()
    }

    /// The journal entry of an application, or at [`APPLICATIONS`] of the manager.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn entry(&self, number: u16) -> io::Result<Entry> {
        let bytes = self
            .journal
            .get(&number.into(), 0)
            .map_err(|error| describe("read the journal", error))?;
        Ok(Entry::of_bytes(bytes))
    }

    /// Writes a journal entry.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn set_entry(&mut self, number: u16, entry: &Entry) -> io::Result<()> {
        let bytes: [u8; ENTRY_BYTES] = zerocopy::transmute!(entry.clone());
        self.journal
            .set(number.into(), bytes, 0)
            .map_err(|error| describe("write the journal", error))
    }

    /// The map of applications' tables, by application.
    pub fn applications(&self) -> BorrowedFd<'_> {
        self.applications.as_fd()
    }

    /// Enters an application's sockets on a queue of the device.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn set_queue(&mut self, application: u16, made: &Made) -> io::Result<()> {
        let place = u32::from(application) * QUEUES as u32 + made.shape().queue;
        self.set_sockets(place, made)
    }

    /// Enters the main socket, and the one for frames that may wait.
    fn set_sockets(&self, place: u32, made: &Made) -> io::Result<()> {
        set_object(self.sockets.as_fd(), place, made.socket())?;
        if let Some(waiting) = made.waiting_socket() {
            let place = WAITING_SOCKETS as u32 + place;
            set_object(self.sockets.as_fd(), place, waiting)?;
        }
        Ok(())
    }

    /// The programs of private pairs; `None` where the kernel refused them.
    pub fn pair_programs(&self) -> Option<&Arc<PairPrograms>> {
        self.pair_programs.as_ref()
    }

    /// Enters the pair by which an application receives the frames of a queue, and the
    /// socket on its far end.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn set_pair(
        &mut self,
        application: u16,
        queue: u32,
        near: u32,
        made: &Made,
    ) -> io::Result<()> {
        let place = u32::from(application) * QUEUES as u32 + queue;
        self.near_ends
            .insert(near, u32::from(application), 0)
            .map_err(|error| describe("enter a private pair", error))?;
        // The pair first: without a socket behind it no frame is sent there.
        self.pairs
            .set(place, near, None, 0)
            .map_err(|error| describe("enter a private pair", error))?;
        self.set_sockets(PRIVATE_SOCKETS as u32 + place, made)
    }

    /// Stops all frames leaving by a pair.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn forget_pair(&mut self, near: u32) -> io::Result<()> {
        match self.near_ends.remove(&near) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
            {
                Ok(())
            }
            Err(error) => Err(describe("take out a private pair", error)),
        }
    }

    /// Pairs in use, by their near ends, with the application of each.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn near_ends(&self) -> io::Result<Vec<(u32, u16)>> {
        let ends = self.near_ends.iter().map(|end| {
            let (near, application) = end?;
            Ok((near, application as u16))
        });
        ends.collect::<Result<_, MapError>>()
            .map_err(|error| describe("read the private pairs", error))
    }

    /// Frames that an application sent, by outcome ([`Sent`]); at [`APPLICATIONS`] those
    /// of no application.
    ///
    /// # Errors
    /// Those the kernel reports.
    ///
    /// [`Sent`]: tidewall_device::demux::layout::Sent
    pub fn departures(&self, application: u16) -> io::Result<[u64; DEPARTURES]> {
        self.departures
            .get(&application.into(), 0)
            .map_err(|error| describe("read what was sent", error))
    }

    /// Removes an application's sockets from the driver's maps; frames of its ports go to
    /// the kernel then.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn clear(&mut self, application: u16) -> io::Result<()> {
        self.departures
            .set(application.into(), [0; DEPARTURES], 0)
            .map_err(|error| describe("count anew what is sent", error))?;
        for queue in 0..QUEUES as u32 {
            let place = u32::from(application) * QUEUES as u32 + queue;
            delete_element(self.pairs_file.as_fd(), place)?;
            for base in [0, PRIVATE_SOCKETS as u32] {
                let place = base + place;
                delete_element(self.sockets.as_fd(), place)?;
                delete_element(self.sockets.as_fd(), WAITING_SOCKETS as u32 + place)?;
            }
        }
        Ok(())
    }

    /// Detaches the program and unpins everything.
    ///
    /// # Errors
    /// Those the file system reports.
    pub fn remove(self) -> io::Result<()> {
        self.directory.remove()
    }
}

/// Frames that a pinned program samples, for a process that may open its maps: user 0's.
/// Its manager need not run. Several readers at one time each receive a part.
#[derive(Debug)]
pub struct PinnedTraces {
    trusted: TrustedTables,
    traces: Traces,
}

impl PinnedTraces {
    /// Opens the traces of the program pinned in a directory.
    ///
    /// # Errors
    /// NotFound; PermissionDenied to users other than 0; what the kernel reports.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let map = |name: &str| pinned(&directory.join(name));
        let (device, queues) = (map("device")?, map("queues")?);
        let maps = kernel_maps(directory)?;
        let traces =
            MapData::from_fd(map("traces")?).map_err(|error| describe("open map traces", error))?;
        Ok(PinnedTraces {
            trusted: TrustedTables::adopt(device.as_fd(), queues.as_fd(), maps)?,
            traces: Traces::of_map(traces)?,
        })
    }

    /// Samples the next frames, of all users. Discards what an earlier trace left.
    pub fn start(&mut self, frames: u32) {
        self.traces.by_ref().for_each(drop);
        self.trusted.start_trace(frames);
    }

    /// Frames sampled since the last call.
    pub fn taken(&mut self) -> impl Iterator<Item = TraceRecord> {
        self.traces.by_ref()
    }
}

impl Drop for PinnedTraces {
    fn drop(&mut self) {
        self.trusted.start_trace(0);
    }
}

/// The hash maps of the program pinned in a directory.
///
/// # Errors
/// NotFound; what the kernel reports.
pub fn kernel_maps(directory: &Path) -> io::Result<KernelMaps> {
    let map = |name: &str| {
        MapData::from_pin(directory.join(name)).map_err(|error| describe("open a map", error))
    };
    let owners = HashMap::try_from(Map::HashMap(map("owners")?));
    let fragments = HashMap::try_from(Map::LruHashMap(map("fragments")?));
    Ok(KernelMaps {
        owners: owners.map_err(|error| describe("open map owners", error))?,
        fragments: fragments.map_err(|error| describe("open map fragments", error))?,
    })
}

/// As [`crate::Program::attach_where_possible`], or in one given mode.
fn attach_by(
    xdp: &mut Xdp,
    interface: &str,
    mode: Option<XdpMode>,
) -> io::Result<(Unshared<OwnedFd>, XdpMode)> {
    let wanted = mode.unwrap_or(XdpMode::Native);
    match attach(xdp, interface, wanted) {
        Ok(link) => Ok((link, wanted)),
        Err(refused)
            if mode.is_some()
                || refused.kind() != io::ErrorKind::Unsupported
                || native(interface) == Some(true) =>
        {
            Err(refused)
        }
        Err(_) => {
            check_generic(interface)?;
            Ok((attach(xdp, interface, XdpMode::Generic)?, XdpMode::Generic))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn pins_are_not_where_another_user_could_remove_them() {
        if !tidewall_skip::is_root("pins_are_not_where_another_user_could_remove_them") {
            return;
        }
        let parent = std::env::temp_dir().join(format!("tw-pins-{}", std::process::id()));
        let inner = parent.join("tw0");
        fs::create_dir_all(&inner).unwrap();
        check_owners(&inner).unwrap();
        let set = |path: &Path, owner, mode| {
            chown(path, Some(owner), None).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, owner, mode) in [
            (&parent, 65_000, 0o755),
            (&inner, 65_000, 0o755),
            (&inner, 0, 0o777),
            (&parent, 0, 0o777),
        ] {
            set(path, owner, mode);
            let error = check_owners(&inner).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            set(path, 0, 0o755);
        }
        set(&parent, 0, 0o1777);
        check_owners(&inner).unwrap();
        fs::remove_dir_all(&parent).unwrap();
    }
}
