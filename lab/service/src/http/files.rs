//! Files of a directory, with a cache.
//!
//! The kernel resolves each path below the root (`openat2`, RESOLVE_BENEATH): neither
//! `..` nor a symbolic link leads out of it, whatever changes in between. Small files are
//! kept in memory, larger ones open. Either is trusted for a second ([`FRESH`]) before
//! the file is checked again.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::entry::{Bytes, Entry};
use super::site::{Clock, Found, Store};

/// How long an entry is served before its file is checked again.
pub const FRESH: Duration = Duration::from_secs(1);
/// Largest file, in bytes, that is kept in memory.
pub const SMALL: u64 = 64 * 1024;
/// Most bytes of files kept in memory.
pub const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Most files kept, in memory or open.
pub const CACHE_FILES: usize = 1024;
/// Most attempts to read a file that changes meanwhile.
const READ_TRIES: usize = 3;

/// Opens a file below `root` for reading. The kernel resolves the path and rejects
/// (EXDEV) everything that leaves the root: `..`, absolute symbolic links, those of
/// /proc. Does not block on a FIFO.
fn open_beneath(root: &File, path: &CStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?.into())
}

/// Distinguishes versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[derive(Debug)]
struct Cached {
    entry: Rc<Entry>,
    identity: Identity,
    checked: Duration,
    /// Requested since eviction last passed by.
    used: bool,
}

impl Cached {
    fn bytes(&self) -> u64 {
        match &self.entry.bytes {
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::File(_) => 0,
        }
    }
}

/// The files of a directory.
#[derive(Debug)]
pub struct Files {
    root: File,
    cached: HashMap<Rc<[u8]>, Cached>,
    /// The keys of `cached`, in the order in which eviction examines them.
    order: VecDeque<Rc<[u8]>>,
    bytes: u64,
}

impl Files {
    /// Opens the files below `root`.
    ///
    /// # Errors
    /// NotFound, PermissionDenied, NotADirectory; ENOSYS before Linux 5.6.
    pub fn open(root: &Path) -> io::Result<Self> {
        let opened = File::open(root)?;
        if !opened.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // Better to learn now whether openat2 works here.
        open_beneath(&opened, c".")?;
        Ok(Files {
            root: opened,
            cached: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        })
    }

    fn look(&self, path: &[u8]) -> io::Result<(File, Metadata)> {
        let name = match path {
            [] => c".".to_owned(),
            path => CString::new(path).map_err(|_| io::ErrorKind::InvalidInput)?,
        };
        let file = open_beneath(&self.root, &name)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    }

    fn load(&mut self, path: &[u8], clock: &Clock) -> io::Result<Found> {
        let (file, metadata) = self.look(path)?;
        if metadata.is_dir() {
            return Ok(Found::Directory);
        }
        if !metadata.is_file() {
            return Ok(Found::Forbidden);
        }
        let identity = Identity::of(&metadata);
        if let Some(cached) = self.cached.get_mut(path)
            && cached.identity == identity
        {
            cached.checked = clock.now();
            return Ok(Found::Entry(cached.entry.clone()));
        }
        let (bytes, identity) = read(file, identity)?;
        let seconds = u64::try_from(identity.modified.0).unwrap_or(0);
        let nanoseconds = u32::try_from(identity.modified.1).unwrap_or(0);
        let content_type = mime_guess::from_path(Path::new(&*String::from_utf8_lossy(path)))
            .first_raw()
            .unwrap_or("application/octet-stream");
        let entry = Rc::new(Entry::new(
            bytes,
            identity.size,
            identity.inode,
            Duration::new(seconds, nanoseconds),
            clock.unix(),
            content_type.to_owned(),
        ));
        self.keep(
            path,
            Cached {
                entry: entry.clone(),
                identity,
                checked: clock.now(),
                used: false,
            },
        );
        Ok(Found::Entry(entry))
    }

    fn keep(&mut self, path: &[u8], cached: Cached) {
        self.bytes += cached.bytes();
        let key: Rc<[u8]> = path.into();
        match self.cached.insert(key.clone(), cached) {
            Some(old) => self.bytes -= old.bytes(),
            None => self.order.push_back(key),
        }
        // Second chance: an entry that was requested stays for another round.
        while self.cached.len() > CACHE_FILES || self.bytes > CACHE_BYTES {
            let Some(key) = self.order.pop_front() else {
                break;
            };
            match self.cached.get_mut(&key) {
                Some(cached) if cached.used => {
                    cached.used = false;
                    self.order.push_back(key);
                }
                _ => self.remove(&key),
            }
        }
    }

    /// Forgets an entry whose key `order` no longer has.
    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.cached.remove(key) {
            self.bytes -= old.bytes();
        }
    }

    /// Forgets an entry.
    fn forget(&mut self, path: &[u8]) {
        if self.cached.contains_key(path) {
            self.order.retain(|key| **key != *path);
            self.remove(path);
        }
    }
}

impl Store for Files {
    fn find(&mut self, path: &[u8], clock: &Clock) -> Found {
        if let Some(cached) = self.cached.get_mut(path)
            && clock.now().saturating_sub(cached.checked) < FRESH
        {
            cached.used = true;
            return Found::Entry(cached.entry.clone());
        }
        match self.load(path, clock) {
            Ok(Found::Entry(entry)) => Found::Entry(entry),
            Ok(other) => {
                self.forget(path);
                other
            }
            Err(error) => match error.raw_os_error() {
                // Nothing is known of the file: a cached one may return.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Found::Busy,
                Some(libc::EACCES | libc::EPERM) => {
                    self.forget(path);
                    Found::Forbidden
                }
                // EXDEV and ELOOP: it led out of the root, or nowhere. ENXIO: a socket.
                Some(
                    libc::ENOENT
                    | libc::ENOTDIR
                    | libc::ENAMETOOLONG
                    | libc::EXDEV
                    | libc::ELOOP
                    | libc::ENXIO,
                ) => {
                    self.forget(path);
                    Found::Missing
                }
                _ => {
                    self.forget(path);
                    Found::Failed
                }
            },
        }
    }
}

/// Reads a small file completely, as it was at one time. Larger ones, and those that keep
/// changing, are read while they are sent.
fn read(file: File, identity: Identity) -> io::Result<(Bytes, Identity)> {
    let mut identity = identity;
    for _ in 0..READ_TRIES {
        if identity.size > SMALL {
            break;
        }
        let mut bytes = vec![0; usize::try_from(identity.size).unwrap_or(0)];
        let whole = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        let after = Identity::of(&file.metadata()?);
        if whole && after == identity {
            return Ok((Bytes::Memory(bytes.into()), identity));
        }
        identity = after;
    }
    Ok((Bytes::File(file), identity))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A temporary directory, removed on drop.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tw-files-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("root/sub")).unwrap();
            Place(path)
        }

        fn root(&self) -> PathBuf {
            self.0.join("root")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn at(seconds: u64) -> Clock {
        Clock::new(Duration::from_secs(seconds), 4_000_000_000)
    }

    fn entry(found: Found) -> Rc<Entry> {
        match found {
            Found::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn memory(entry: &Entry) -> &[u8] {
        match &entry.bytes {
            Bytes::Memory(bytes) => bytes,
            Bytes::File(_) => panic!("not in memory"),
        }
    }

    #[test]
    fn symbolic_links_stay_within_the_root() {
        let place = Place::new("links");
        let root = place.root();
        fs::write(place.0.join("secret"), "no").unwrap();
        fs::write(root.join("plain.txt"), "yes").unwrap();
        symlink("plain.txt", root.join("inside")).unwrap();
        symlink("../plain.txt", root.join("sub/up")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink(place.0.join("secret"), root.join("absolute")).unwrap();
        symlink("/", root.join("slash")).unwrap();
        symlink("../..", root.join("sub/parent")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let mut files = Files::open(&root).unwrap();
        for path in ["plain.txt", "inside", "sub/up"] {
            let found = entry(files.find(path.as_bytes(), &at(0)));
            assert_eq!(memory(&found), b"yes", "{path}");
        }
        for path in [
            "out",
            "absolute",
            "slash",
            "slash/etc/passwd",
            "sub/parent/secret",
            "loop",
            "nothing",
            "plain.txt/x",
            "../secret",
            "/etc/passwd",
        ] {
            assert!(
                matches!(files.find(path.as_bytes(), &at(0)), Found::Missing),
                "{path}"
            );
        }
        assert!(matches!(files.find(&[b'x'; 300], &at(0)), Found::Missing));
        assert!(matches!(files.find(b"sub", &at(0)), Found::Directory));
        assert!(matches!(files.find(b"", &at(0)), Found::Directory));
    }

    #[test]
    fn a_change_is_seen_after_a_second_and_not_before() {
        let place = Place::new("change");
        let name = place.root().join("a.html");
        fs::write(&name, "one").unwrap();
        let mut files = Files::open(&place.root()).unwrap();
        let first = entry(files.find(b"a.html", &at(10)));
        assert_eq!(
            (memory(&first), &*first.content_type),
            (b"one".as_slice(), "text/html")
        );
        fs::write(&name, "three").unwrap();
        let same = entry(files.find(b"a.html", &at(10)));
        assert!(Rc::ptr_eq(&first, &same));
        let second = entry(files.find(b"a.html", &at(11)));
        assert_eq!(memory(&second), b"three");
        assert_ne!(first.etag, second.etag);
        let kept = entry(files.find(b"a.html", &at(100)));
        assert!(
            Rc::ptr_eq(&second, &kept),
            "an unchanged file is not read again"
        );
        fs::remove_file(&name).unwrap();
        assert!(matches!(files.find(b"a.html", &at(101)), Found::Missing));
        assert_eq!(
            (files.cached.len(), files.order.len(), files.bytes),
            (0, 0, 0)
        );
    }

    #[test]
    fn large_files_are_not_read_into_memory() {
        let place = Place::new("large");
        let file = File::create(place.root().join("large.bin")).unwrap();
        file.set_len(SMALL + 1).unwrap();
        let mut files = Files::open(&place.root()).unwrap();
        let found = entry(files.find(b"large.bin", &at(0)));
        assert!(matches!(found.bytes, Bytes::File(_)));
        assert_eq!((found.size, files.bytes), (SMALL + 1, 0));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let place = Place::new("bounded");
        for number in 0..CACHE_FILES + 10 {
            fs::write(place.root().join(format!("{number}")), "x").unwrap();
        }
        let mut files = Files::open(&place.root()).unwrap();
        for number in 0..CACHE_FILES + 10 {
            entry(files.find(format!("{number}").as_bytes(), &at(0)));
            entry(files.find(b"0", &at(0)));
        }
        assert_eq!(
            (files.cached.len(), files.order.len()),
            (CACHE_FILES, CACHE_FILES)
        );
        assert_eq!(files.bytes, CACHE_FILES as u64);
        assert!(
            files.cached.contains_key(b"0".as_slice()),
            "it is asked for all the time"
        );
        assert!(!files.cached.contains_key(b"1".as_slice()));
    }

    #[test]
    fn devices_and_pipes_are_not_served() {
        let place = Place::new("special");
        let socket = place.root().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let mut files = Files::open(&place.root()).unwrap();
        assert!(matches!(files.find(b"socket", &at(0)), Found::Missing));
        let made = std::process::Command::new("mkfifo")
            .arg(place.root().join("pipe"))
            .status();
        if made.is_ok_and(|status| status.success()) {
            assert!(matches!(files.find(b"pipe", &at(0)), Found::Forbidden));
        }
        let error = Files::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
