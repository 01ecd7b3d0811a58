//! Giving everything back, also what belonged to an interface that is no more.

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

/// The interface is no more.
pub(super) fn no_interface(name: &str) -> io::Error {
    let text = format!(
        "there is no interface {name}: see `ip link`; when it is there again, start tidewalld \
         again; or have what is left given back: tidewalld --interface {name} --remove"
    );
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// The interface is in another network namespace, with what was set of it, where nobody
/// without CAP_SYS_ADMIN can change it.
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

/// A directory for an interface: what an earlier process left there is of the same one, or
/// cleared away because its own is no more.
///
/// # Errors
/// `NotFound`, in words, where there is no such interface; what the kernel reports.
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

/// With an interface went its settings, but not what is the host's: reserved ports, pairs
/// and pins.
///
/// # Errors
/// The first of all, after everything was tried.
fn remove_lost(directory: PinDirectory) -> io::Result<()> {
    let path = directory.path().to_owned();
    let Ok(program) = PinnedProgram::adopt(directory) else {
        // Of another version, and of no use.
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
    /// Gives back what an earlier process has pinned and left, if it did.
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
        // It may be called otherwise now.
        let left = directory.interface()?;
        match left.map_or_else(|| Err(no_interface(name)), interface::name) {
            Ok(now) => DirectDevice::open(directory, &now, None, false)?.remove(),
            Err(_) => remove_lost(directory),
        }
    }

    /// Detaches the program and gives everything back.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn remove(mut self) -> io::Result<()> {
        self.reserved.clear()?;
        self.neighbours.clear_all(&mut self.netlink, self.index);
        self.queues.release(queues::noted(&self.own))?;
        self.put_back_polling()?;
        // Before its pairs go.
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
