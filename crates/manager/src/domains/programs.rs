//! The programs on private pairs, which share the demultiplexer's maps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

use aya::Ebpf;
use aya::programs::SchedClassifier;
use tidewall_sys::bpf::{pin, pinned};

use crate::program::xdp_named;
use crate::refusal::describe;

/// Loaded programs. One passes frames received on a far end to a socket; the other
/// filters what comes out of a near end (`bpf/private.h`).
#[derive(Debug)]
pub struct PairPrograms {
    to_xsk: OwnedFd,
    sent: OwnedFd,
}

/// Names of both, in the object and in bpffs.
const NAMES: [&str; 2] = ["to_xsk", "sent"];

impl PairPrograms {
    /// Loads them from the object that the demultiplexer was loaded from.
    ///
    /// # Errors
    /// As [`crate::Program::load`].
    pub fn load(loaded: &mut Ebpf) -> io::Result<Self> {
        let failed = |error| describe("load the programs of private pairs", error);
        let [to_xsk, sent] = NAMES;
        let xdp = xdp_named(loaded, to_xsk)?;
        xdp.load().map_err(failed)?;
        let to_xsk = xdp.fd().map_err(failed)?.as_fd().try_clone_to_owned()?;
        let classifier: &mut SchedClassifier = loaded
            .program_mut(sent)
            .ok_or(io::ErrorKind::NotFound)?
            .try_into()
            .map_err(failed)?;
        classifier.load().map_err(failed)?;
        let sent = classifier.fd().map_err(failed)?;
        Ok(PairPrograms {
            to_xsk,
            sent: sent.as_fd().try_clone_to_owned()?,
        })
    }

    /// Pins them in a directory of bpffs.
    ///
    /// # Errors
    /// Those the file system reports.
    pub fn pin(&self, directory: &Path) -> io::Result<()> {
        let [to_xsk, sent] = NAMES;
        pin(self.to_xsk.as_fd(), &directory.join(to_xsk))?;
        pin(self.sent.as_fd(), &directory.join(sent))
    }

    /// Opens those that an earlier process has pinned; `None` if it had none.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn pinned(directory: &Path) -> io::Result<Option<Self>> {
        let of = |name: &str| pinned(&directory.join(name));
        let [to_xsk, sent] = NAMES.map(of);
        match (to_xsk, sent) {
            (Ok(to_xsk), Ok(sent)) => Ok(Some(PairPrograms { to_xsk, sent })),
            (Err(error), _) | (_, Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                Err(error)
            }
            _ => Ok(None),
        }
    }

    /// Unpins them.
    ///
    /// # Errors
    /// Those the file system reports.
    pub fn unpin(directory: &Path) -> io::Result<()> {
        for name in NAMES {
            match fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The program for the far end of each pair.
    pub fn to_xsk(&self) -> BorrowedFd<'_> {
        self.to_xsk.as_fd()
    }

    /// The program for frames that the near end of each pair receives.
    pub fn sent(&self) -> BorrowedFd<'_> {
        self.sent.as_fd()
    }
}
