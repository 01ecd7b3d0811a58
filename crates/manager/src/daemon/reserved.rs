//! Ports that the kernel does not choose by itself: net.ipv4.ip_local_reserved_ports. The
//! administrator's and other managers' ports are also there. Only ports added here are
//! removed, from the current value, and under a lock that all managers take.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::{BLOCK_PORTS, Blocks};
use crate::restore::record::{DIRECTORY, make_directory};

const PATH: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const PORTS: usize = 65_536;
/// Another manager holds the lock while it reads and writes one file. A manager stopped
/// meanwhile is not waited for.
const LOCKED_WITHIN: Duration = Duration::from_millis(20);

/// The ports that this manager has reserved.
#[derive(Debug)]
pub(super) struct Reserved {
    path: PathBuf,
    /// A directory that other users cannot open, and so cannot keep locked.
    lock: PathBuf,
    blocks: Blocks,
}

/// The ports to reserve, while no other manager changes the file.
#[derive(Debug)]
pub(super) struct Change {
    text: String,
    blocks: Blocks,
    _lock: File,
}

impl Reserved {
    /// `blocks`: the blocks that an earlier run reserved.
    pub(super) fn new(blocks: &Blocks) -> Self {
        Self::at(Path::new(PATH), Path::new(DIRECTORY), blocks)
    }

    fn at(path: &Path, lock: &Path, blocks: &Blocks) -> Self {
        Reserved {
            path: path.to_owned(),
            lock: lock.to_owned(),
            blocks: *blocks,
        }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Prepares to reserve exactly these blocks for this manager.
    ///
    /// # Errors
    /// EADDRINUSE where a port of a new block is already reserved; EBUSY where another
    /// manager has the lock; what the file system reports.
    pub(super) fn begin(&self, blocks: &Blocks) -> io::Result<Change> {
        let lock = self.lock()?;
        let mut ports = parse(&fs::read_to_string(&self.path)?);
        for ((port, before), (_, after)) in block_ports(&self.blocks).zip(block_ports(blocks)) {
            if after && !before && is_marked(&ports, port) {
                return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            if before != after {
                mark(&mut ports, port, after);
            }
        }
        Ok(Change {
            text: print(&ports),
            blocks: *blocks,
            _lock: lock,
        })
    }

    /// Reserves them.
    ///
    /// # Errors
    /// Those the file system reports.
    pub(super) fn write(&mut self, change: Change) -> io::Result<()> {
        fs::write(&self.path, format!("{}\n", change.text))?;
        self.blocks = change.blocks;
        Ok(())
    }

    /// Removes everything that it has reserved.
    ///
    /// # Errors
    /// As [`Reserved::begin`] and [`Reserved::write`].
    pub(super) fn clear(&mut self) -> io::Result<()> {
        if self.blocks == [0; 4] {
            return Ok(());
        }
        let change = self.begin(&[0; 4])?;
        self.write(change)
    }

    fn lock(&self) -> io::Result<File> {
        make_directory(&self.lock)?;
        let file = File::open(&self.lock)?;
        let end = Instant::now() + LOCKED_WITHIN;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
            }
        }
    }
}

/// Every port, and whether its block is in the set.
fn block_ports(blocks: &Blocks) -> impl Iterator<Item = (u16, bool)> {
    let in_set = |port: u16| {
        let block = usize::from(port / BLOCK_PORTS);
        let word = blocks.get(block / 64).copied().unwrap_or(0);
        word & (1 << (block % 64)) != 0
    };
    (0..=u16::MAX).map(move |port| (port, in_set(port)))
}

fn is_marked(ports: &[u64; PORTS / 64], port: u16) -> bool {
    let word = ports.get(usize::from(port) / 64).copied().unwrap_or(0);
    word & (1 << (port % 64)) != 0
}

fn mark(ports: &mut [u64; PORTS / 64], port: u16, value: bool) {
    if let Some(word) = ports.get_mut(usize::from(port) / 64) {
        let bit = 1 << (port % 64);
        *word = if value { *word | bit } else { *word & !bit };
    }
}

/// Parses the kernel's format: `1,2-4,10`.
fn parse(text: &str) -> Box<[u64; PORTS / 64]> {
    let mut ports = Box::new([0; PORTS / 64]);
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            for port in first..=last {
                mark(&mut ports, port, true);
            }
        }
    }
    ports
}

fn print(ports: &[u64; PORTS / 64]) -> String {
    let mut ranges: Vec<String> = Vec::new();
    let mut first = None;
    for port in 0..=u16::MAX {
        let marked = is_marked(ports, port);
        if marked && first.is_none() {
            first = Some(port);
        }
        let last = match marked {
            true if port == u16::MAX => port,
            true => continue,
            false => port.saturating_sub(1),
        };
        if let Some(first) = first.take() {
            ranges.push(match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            });
        }
    }
    ranges.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_printed_as_they_were_read() {
        for text in ["", "1", "0,2-4,10", "32768-33023,65535", "65000-65535"] {
            assert_eq!(print(&parse(&format!("{text}\n"))), text);
        }
    }

    #[test]
    fn what_others_have_reserved_stays() {
        let directory = std::env::temp_dir().join(format!("tw-reserved-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (path, lock) = (directory.join("ports"), directory.join("lock"));
        let [first, second] = [[0, 0, 1, 0], [0, 0, 2, 0]];
        let reserved = || fs::read_to_string(&path).unwrap().trim().to_owned();
        let set = |by: &mut Reserved, blocks| by.begin(blocks).and_then(|it| by.write(it));
        fs::write(&path, "80\n").unwrap();
        let mut one = Reserved::at(&path, &lock, &[0; 4]);
        let mut other = Reserved::at(&path, &lock, &[0; 4]);
        set(&mut one, &first).unwrap();
        // The other manager began before that, and cannot have the same block.
        let taken = set(&mut other, &first).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
        set(&mut other, &second).unwrap();
        assert_eq!(reserved(), "80,32768-33279");
        // An administrator changes it meanwhile.
        fs::write(&path, "5000-5001,32768-33279\n").unwrap();
        set(&mut other, &[0; 4]).unwrap();
        assert_eq!(reserved(), "5000-5001,32768-33023");
        // A manager that is stopped does not block the others.
        let change = other.begin(&second).unwrap();
        let busy = one.begin(&[0; 4]).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        drop(change);
        set(&mut one, &[0; 4]).unwrap();
        assert_eq!(reserved(), "5000-5001");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_block_is_256_ports() {
        let of = |blocks| block_ports(blocks).filter(|of| of.1).map(|of| of.0);
        let ports: Vec<u16> = of(&[0, 0, 1, 1 << 63]).collect();
        assert_eq!(ports.len(), 512);
        assert_eq!(ports.first(), Some(&32_768));
        assert_eq!(ports.last(), Some(&65_535));
        assert!(ports.contains(&33_023) && !ports.contains(&33_024));
    }
}
