//! Restores everything, including what belonged to an interface that no longer exists.

use std::io;
use std::path::Path;

use tidewall_sys::interface;

use super::{DirectDevice, OWN_ENTRY, private, queues};
use crate::daemon::journal::Entry;
use crate::daemon::reserved::Reserved;
use crate::domains::pair::Pairs;
use crate::domains::threaded;
use crate::moderation::KNOBS;
use crate::pinned::{PinDirectory, PinnedProgram};

/// The error that the interface no longer exists.
pub(super) fn no_interface(name: &str) -> io::Error {
    let text = format!(
        "there is no interface {name}: see `ip link`; when it is there again, start tidewalld \
         again; or have what is left given back: tidewalld --interface {name} --remove"
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// The error that the interface is in another network namespace, with its settings, where
/// they cannot be changed without CAP_SYS_ADMIN.
pub(super) fn moved(name: &str, own: &Entry) -> io::Error {
    let mut text = format!("{name} was moved to another network namespace");
    let mut before = Vec::new();
    if let Some(values) = queues::noted(own) {
        let values = KNOBS.into_iter().zip(values);
        before.extend(values.map(|(name, value)| format!("{name} was {value}")));
    }
    if let Some(threaded) = private::noted(own) {
        let threaded = u32::from(threaded.threaded);
        before.push(format!("threaded was {threaded}"));
    }
    if !before.is_empty() {
        text += &format!(
            "; to be set again there, in /sys/class/net/{name}: {}",
            before.join(", ")
        );
    }
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// A directory for an interface. Pins that an earlier process left there belong to the
/// same interface, or are cleared because their own no longer exists.
///
/// # Errors
/// `NotFound`, with an explanation, where there is no such interface; what the kernel
/// reports.
pub(super) fn of_interface(directory: PinDirectory, name: &str) -> io::Result<PinDirectory> {
    let index = interface::index(name).ok();
    if !directory.is_whole() {
        if index.is_none() {
            directory.remove()?;
            return Err(no_interface(name));
        }
        return Ok(directory);
    }
    let left = directory.interface()?;
    if left.is_some() && left == index {
        return Ok(directory);
    }
    if let Some(now) = left.and_then(|left| interface::name(left).ok()) {
        let text = format!(
            "the interface that was {name} is called {now}: ip link set {now} name {name}; or \
             have it given back: tidewalld --interface {name} --remove"
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    if index.is_none() {
        return Err(no_interface(name));
    }
    let path = directory.path().to_owned();
    remove_lost(directory)?;
    PinDirectory::take(&path)
}

/// Removes what an interface that is gone left in the host: reserved ports, pairs and
/// pins. Its settings went with it.
///
/// # Errors
/// The first of all, after everything was tried.
fn remove_lost(directory: PinDirectory) -> io::Result<()> {
    let path = directory.path().to_owned();
    let Ok(program) = PinnedProgram::adopt(directory) else {
        // It is of another version, and unusable.
        return PinDirectory::take(&path)?.remove();
    };
    let own = program.entry(OWN_ENTRY)?;
    let reserved = Reserved::new(&own.leases[0]).clear();
    program.remove()?;
    if own.interface != 0 {
        Pairs::remove_all(own.interface)?;
    }
    reserved
}

impl DirectDevice {
    /// Restores what an earlier process has pinned and left, if it did.
    ///
    /// # Errors
    /// ResourceBusy where a process has it; as [`DirectDevice::remove`].
    pub fn remove_left(pins: &Path, name: &str) -> io::Result<()> {
        if !pins.exists() {
            return Ok(());
        }
        let directory = PinDirectory::take(pins)?;
        if !directory.is_whole() {
            return directory.remove();
        }
        // The interface may have another name now.
        let left = directory.interface()?;
        match left.map_or_else(|| Err(no_interface(name)), interface::name) {
            Ok(now) => DirectDevice::open(directory, &now, None, false)?.remove(),
            Err(_) => remove_lost(directory),
        }
    }

    /// Detaches the program and restores everything.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn remove(mut self) -> io::Result<()> {
        self.reserved.clear()?;
        self.neighbours.clear_all(&mut self.netlink, self.index);
        self.queues.release(queues::noted(&self.own))?;
        self.put_back_polling()?;
        // Before its pairs are removed.
        let index = self.index;
        drop((self.private.take(), self.slots.take()));
        self.program.remove()?;
        Pairs::remove_all(index)
    }

    pub(super) fn put_back_polling(&mut self) -> io::Result<()> {
        if let Some(before) = private::noted(&self.own) {
            threaded::put_back(&self.interface, self.index, before)?;
            self.note(|own| private::note(own, None))?;
        }
        Ok(())
    }
}
