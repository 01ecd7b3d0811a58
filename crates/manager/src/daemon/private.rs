//! Private mode: applications each behind virtual pairs of their own, on a device that
//! a kernel thread polls.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use tidewall_device::afxdp::{self, Made, Settings};
use tidewall_device::demux::layout::QUEUES;
use tidewall_device::interface::queue_count;
use tidewall_sys::interface;

use super::journal::Entry;
use super::queues::sizes;
use crate::domains::pair::{Pair, Pairs};
use crate::domains::stock::{Stock, StockCounters};
use crate::domains::threaded;
use crate::pinned::PinnedProgram;
use crate::protocol::Join;

/// Pairs that are kept ready, of a device with one queue: of those who join at the same
/// time some wait for a pair to be made.
const READY: usize = 4;

/// What private applications of one device have, and what is ready for more.
#[derive(Debug)]
pub(super) struct Private {
    stock: Stock<Pair>,
    /// Makes what the stock lacks.
    pairs: Pairs,
    interface: String,
    index: u32,
    queues: u32,
    /// Of each application, by queue.
    in_use: HashMap<u16, Vec<Pair>>,
}

impl Private {
    /// Gets ready, with what an earlier process's applications have.
    ///
    /// # Errors
    /// EOPNOTSUPP where the driver program runs generically, which keeps no metadata, or
    /// the kernel refused the programs of pairs; what making pairs reports.
    pub(super) fn open(program: &PinnedProgram, name: &str, mtu: u32) -> io::Result<Self> {
        let index = interface::index(name)?;
        let programs = program.pair_programs().ok_or_else(|| {
            let text = "the kernel refused the programs of private pairs when the driver \
                        program was attached";
            io::Error::new(io::ErrorKind::Unsupported, text)
        })?;
        let queues = queue_count(name).unwrap_or(1).clamp(1, QUEUES as u32);
        let mut in_use: HashMap<u16, Vec<Pair>> = HashMap::new();
        for (near, application) in program.near_ends()? {
            // The other end is not asked for again: such a pair is not used again.
            let pair = Pair { near, far: 0 };
            in_use.entry(application).or_default().push(pair);
        }
        let used: Vec<u32> = in_use.values().flatten().map(|pair| pair.near).collect();
        let mut pairs = Pairs::open(index, mtu, Arc::clone(programs))?;
        pairs.delete_unused(&used)?;
        let of_stock = Pairs::open(index, mtu, Arc::clone(programs))?;
        Ok(Private {
            stock: Stock::start(READY * queues as usize, of_stock)?,
            pairs,
            interface: name.to_owned(),
            index,
            queues,
            in_use,
        })
    }

    /// True if some application has pairs.
    pub(super) fn is_used(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// What the stock has counted.
    pub(super) fn counters(&self) -> StockCounters {
        self.stock.counters()
    }

    /// Makes the sockets that an application asks for, each on the far end of a pair. What
    /// is half made then is taken away by [`Private::clear`].
    ///
    /// # Errors
    /// EINVAL for another number of queues than all, and sizes out of range; what the
    /// kernel reports.
    pub(super) fn make(
        &mut self,
        program: &mut PinnedProgram,
        application: u16,
        join: &Join,
    ) -> io::Result<Vec<Made>> {
        let (frames, receive_ring) = sizes(join, &self.interface)?;
        if join.queues != 0 && join.queues != self.queues {
            let text = format!("an application has all {} receive queues", self.queues);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut made = Vec::new();
        for queue in 0..self.queues {
            let (pair, socket) = self.make_one(frames, receive_ring)?;
            self.in_use.entry(application).or_default().push(pair);
            let socket = socket.numbered(queue);
            program.set_pair(application, queue, pair.near, &socket)?;
            made.push(socket);
        }
        Ok(made)
    }

    /// A pair with a socket on its far end.
    fn make_one(&mut self, frames: u32, receive_ring: u32) -> io::Result<(Pair, Made)> {
        loop {
            let ready = self.stock.take();
            let rested = ready.is_some();
            let pair = ready.map_or_else(|| self.pairs.make(), Ok)?;
            let name = interface::name(pair.far)?;
            let settings = Settings {
                interface: &name,
                frames,
                receive_ring,
                copy: true,
                wait: false,
                // It could have a checksum written into what was judged already, and the
                // device polled.
                trusted: false,
            };
            match afxdp::make(&settings, 0, None) {
                Ok(made) => return Ok((pair, made)),
                // It has not rested long enough.
                Err(error) if rested && error.kind() == io::ErrorKind::ResourceBusy => {
                    self.stock.give_back(pair);
                }
                Err(error) => {
                    self.stock.end(pair);
                    return Err(error);
                }
            }
        }
    }

    /// Takes an application's pairs back, whose sockets are its process's alone.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn clear(
        &mut self,
        program: &mut PinnedProgram,
        application: u16,
    ) -> io::Result<()> {
        let Some(pairs) = self.in_use.get(&application) else {
            return Ok(());
        };
        for pair in pairs {
            program.forget_pair(pair.near)?;
        }
        for pair in self.in_use.remove(&application).into_iter().flatten() {
            match pair.far {
                0 => self.stock.end(pair),
                _ => self.stock.give_back(pair),
            }
        }
        Ok(())
    }

    /// Has a thread poll the device, of low priority where that is allowed (CAP_SYS_NICE).
    ///
    /// # Errors
    /// As [`threaded::set`].
    pub(super) fn poll_by_thread(&self) -> io::Result<()> {
        threaded::set(&self.interface, self.index)
    }
}

/// How a device was polled before, as the journal's own entry has it.
pub(super) fn noted(entry: &Entry) -> Option<threaded::Before> {
    let threaded = entry.threaded_before.checked_sub(1)?;
    Some(threaded::Before {
        threaded: threaded != 0,
    })
}

/// Has the journal's own entry say so.
pub(super) fn note(entry: &mut Entry, before: Option<threaded::Before>) {
    entry.threaded_before = before.map_or(0, |before| 1 + u32::from(before.threaded));
}
