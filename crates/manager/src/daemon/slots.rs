//! Tables of applications, made and entered in the driver program's map before they are
//! requested.
//!
//! Entering and removing tables waits for an RCU grace period, and making them zeroes 15
//! MB. So a thread keeps some numbers ready, and gives a used number fresh tables before
//! it is used again. A process that shares memory with one that has ended may still write
//! to the old ones.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tidewall_device::demux::layout::{APPLICATIONS, Application};
use tidewall_sys::bpf::{ArrayMap, create_array, delete_element, set_object};

use crate::domains::stock::{Maker, Stock};

/// A number in the driver program's map.
#[derive(Debug)]
struct Slot {
    number: u16,
    /// The tables entered there; `None` once an application has them.
    tables: Option<OwnedFd>,
}

/// Numbers with tables, those of applications and those that are ready.
#[derive(Debug)]
pub(super) struct Slots {
    stock: Stock<Slot>,
    in_use: BTreeMap<u16, Slot>,
}

impl Slots {
    /// Starts keeping `ready` numbers ready, in the driver program's map of applications'
    /// tables. `used` are an earlier process's applications; everything else that it left
    /// is replaced.
    ///
    /// # Errors
    /// EAGAIN where no thread can be started.
    pub(super) fn start(applications: OwnedFd, used: &[u16], ready: usize) -> io::Result<Self> {
        let of_used = |&number: &u16| {
            let tables = None;
            (number, Slot { number, tables })
        };
        let free = (0..APPLICATIONS as u16).rev();
        let maker = SlotMaker {
            applications,
            free: free.filter(|number| !used.contains(number)).collect(),
            swept: false,
            wanted: ready,
        };
        Ok(Slots {
            stock: Stock::start(ready, maker)?,
            in_use: used.iter().map(of_used).collect(),
        })
    }

    /// Makes a thread refill the stock.
    pub(super) fn refill(&self) {
        self.stock.refill();
    }

    /// Takes a ready number; another one is ready after [`Slots::refill`].
    ///
    /// # Errors
    /// EBUSY where none is ready; some are being made.
    pub(super) fn take(&mut self) -> io::Result<u16> {
        let slot = self.stock.take_several(1).and_then(|mut one| one.pop());
        let slot = slot.ok_or_else(|| self.stock.not_ready("tables"))?;
        let number = slot.number;
        self.in_use.insert(number, slot);
        Ok(number)
    }

    /// The tables of a taken number, for its application.
    ///
    /// # Errors
    /// ENOENT if they were already handed over.
    pub(super) fn hand_out(&mut self, number: u16) -> io::Result<OwnedFd> {
        let slot = self.in_use.get_mut(&number);
        let tables = slot.and_then(|slot| slot.tables.take());
        tables.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns a number, if it was taken.
    pub(super) fn give_back(&mut self, number: u16) {
        match self.in_use.remove(&number) {
            // No application has had them.
            Some(slot) if slot.tables.is_some() => self.stock.put_back(slot),
            Some(slot) => self.stock.give_back(slot),
            None => {}
        }
    }
}

struct SlotMaker {
    /// The map of maps.
    applications: OwnedFd,
    /// Numbers without tables, the lowest last.
    free: Vec<u16>,
    /// Whether an earlier process's tables were removed.
    swept: bool,
    wanted: usize,
}

impl SlotMaker {
    /// Enters fresh tables in place of the present ones.
    fn enter(&self, number: u16) -> io::Result<Slot> {
        let map = create_array(&ArrayMap {
            name: "tw_application",
            value_bytes: size_of::<Application>() as u32,
            entries: 1,
            mapped: true,
        })?;
        set_object(self.applications.as_fd(), number.into(), map.as_fd())?;
        let tables = Some(map);
        Ok(Slot { number, tables })
    }
}

impl Maker for SlotMaker {
    type Item = Slot;

    fn make(&mut self) -> io::Result<Slot> {
        if !self.swept {
            for &number in &self.free {
                delete_element(self.applications.as_fd(), number.into())?;
            }
            self.swept = true;
        }
        let all_in_use = || io::Error::other("all numbers are in use");
        let number = *self.free.last().ok_or_else(all_in_use)?;
        let slot = self.enter(number)?;
        self.free.pop();
        Ok(slot)
    }

    /// No more than the stock can hold, since the others would only be removed again.
    fn rest(&mut self, used: Vec<Slot>) -> (Vec<Slot>, Vec<Slot>) {
        let (mut rested, mut others) = (Vec::new(), Vec::new());
        for slot in used {
            if rested.len() < self.wanted
                && let Ok(fresh) = self.enter(slot.number)
            {
                rested.push(fresh);
            } else {
                others.push(slot);
            }
        }
        (rested, others)
    }

    fn take_away(&mut self, ended: &[Slot]) -> io::Result<()> {
        for slot in ended {
            delete_element(self.applications.as_fd(), slot.number.into())?;
        }
        self.free.extend(ended.iter().map(|slot| slot.number));
        Ok(())
    }
}
