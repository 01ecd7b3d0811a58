//! Private mode: applications each behind their own virtual pairs, on a device that the
//! only one polls, or else a kernel thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewall_device::afxdp::{self, Made, Settings};
use tidewall_device::demux::layout::QUEUES;
use tidewall_device::interface::queue_count;
use tidewall_sys::interface;
use zerocopy::FromZeros;

use super::closing::close_elsewhere;
use super::handed::Share;
use super::journal::Entry;
use super::order::Order;
use super::queues::sizes;
use crate::domains::pair::{Pair, Pairs};
use crate::domains::programs::PairPrograms;
use crate::domains::stock::{Maker, Stock, StockCounters};
use crate::domains::threaded;
use crate::pinned::PinnedProgram;
use crate::protocol::Join;

/// Pairs kept ready for each queue of the device: if more applications join at the same
/// time some wait.
pub(super) const READY: usize = 4;
/// Maximum number of RCU grace periods that a used pair rests until its last socket is
/// gone.
const RESTS: usize = 4;

/// A pair with a socket on its far end, or one whose socket only an application has.
#[derive(Debug)]
struct Socketed {
    pair: Pair,
    made: Option<Made>,
    /// Kept beside its application's copy of the second socket, for the same reason as
    /// for the device's own queues.
    held: Option<OwnedFd>,
    /// Held until no other socket is bound there.
    share: Option<Share>,
}

/// The resources of a device's private applications, and the stock for more.
#[derive(Debug)]
pub(super) struct Private {
    stock: Stock<Socketed>,
    /// Pairs of other sizes than those in stock.
    order: Order<(u32, u32), Socketed>,
    /// Frames and receive ring entries of those in stock.
    sizes: (u32, u32),
    opened: Opened,
    interface: String,
    queues: u32,
    /// Pairs of each application, by queue.
    in_use: HashMap<u16, Vec<Socketed>>,
}

impl Private {
    /// Prepares private mode, with the resources of an earlier process's applications.
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
        let mut in_use: HashMap<u16, Vec<Socketed>> = HashMap::new();
        for (near, application) in program.near_ends()? {
            // The other end is not needed: such a pair is not reused.
            let pair = Pair { near, far: 0 };
            let used = Socketed {
                pair,
                made: None,
                held: None,
                share: None,
            };
            in_use.entry(application).or_default().push(used);
        }
        let used: Vec<u32> = in_use.values().flatten().map(|one| one.pair.near).collect();
        let mut pairs = Pairs::open(index, mtu, Arc::clone(programs))?;
        pairs.delete_unused(&used)?;
        let sizes = sizes(&Join::new_zeroed(), name)?;
        let wanted = READY * queues as usize;
        let opened = Opened {
            index,
            mtu,
            programs: Arc::clone(programs),
        };
        let maker = SocketMaker::new(sizes, wanted, opened.clone(), Some(pairs));
        Ok(Private {
            stock: Stock::start(wanted, maker)?,
            order: Order::NONE,
            sizes,
            opened,
            interface: name.to_owned(),
            queues,
            in_use,
        })
    }

    /// Records the interface's new name.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.interface);
    }

    /// True if some application has pairs.
    pub(super) fn is_used(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// The application that has pairs, if only one has.
    pub(super) fn only_user(&self) -> Option<u16> {
        let mut users = self.in_use.keys();
        users.next().copied().filter(|_| users.next().is_none())
    }

    /// Makes a thread refill the stock.
    pub(super) fn refill(&self) {
        self.stock.refill();
    }

    /// The stock's counters.
    pub(super) fn counters(&self) -> StockCounters {
        self.stock.counters()
    }

    /// Enters the sockets that an application requested, each on the far end of a pair.
    /// [`Private::clear`] removes what is then half done. Each socket holds the `share`.
    ///
    /// # Errors
    /// EINVAL for a number of queues other than all, and sizes out of range; EBUSY where
    /// none is ready; what the kernel reports.
    pub(super) fn make(
        &mut self,
        program: &mut PinnedProgram,
        application: u16,
        join: &Join,
        share: &Share,
    ) -> io::Result<Vec<Made>> {
        let sizes = sizes(join, &self.interface)?;
        if join.queues != 0 && join.queues != self.queues {
            let text = format!("an application has all {} receive queues", self.queues);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // A failure from here on leaves its sockets there. The stock's thread closes the
        // last descriptor of a bound one, since the kernel then waits for RCU.
        let in_use = self.in_use.entry(application).or_default();
        let count = self.queues as usize;
        let ready = match sizes == self.sizes {
            true => {
                let ready = self.stock.take_several(count);
                ready.ok_or_else(|| self.stock.not_ready("pairs"))?
            }
            false => {
                let opened = || self.opened.clone();
                let start = || Stock::start(count, SocketMaker::new(sizes, count, opened(), None));
                let ready = self.order.take(sizes, count, "pairs", start)?;
                self.order.clear();
                ready
            }
        };
        in_use.extend(ready.into_iter().map(|one| Socketed {
            share: Some(share.clone()),
            ..one
        }));
        for (queue, one) in (0..).zip(&*in_use) {
            if let Some(made) = &one.made {
                program.set_pair(application, queue, one.pair.near, made)?;
            }
        }
        let handed = in_use.iter_mut().map(|one| {
            let second = one.made.as_ref().and_then(Made::waiting_socket);
            one.held = second.and_then(|socket| socket.try_clone_to_owned().ok());
            one.made.take()
        });
        let numbered = (0..).zip(handed);
        Ok(numbered
            .filter_map(|(queue, made)| Some(made?.numbered(queue)))
            .collect())
    }

    /// Takes back an application's pairs, whose sockets only its process has, or that
    /// were never handed over.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub(super) fn clear(
        &mut self,
        program: &mut PinnedProgram,
        application: u16,
    ) -> io::Result<()> {
        let Some(all) = self.in_use.get(&application) else {
            return Ok(());
        };
        for one in all {
            program.forget_pair(one.pair.near)?;
        }
        let mut held = Vec::new();
        for mut used in self.in_use.remove(&application).into_iter().flatten() {
            held.extend(used.held.take());
            match used.pair.far {
                0 => self.stock.end(used),
                _ => self.stock.give_back(used),
            }
        }
        if !held.is_empty() {
            close_elsewhere(held);
        }
        Ok(())
    }
}

/// The device whose pairs are made.
#[derive(Clone, Debug)]
struct Opened {
    index: u32,
    mtu: u32,
    programs: Arc<PairPrograms>,
}

/// Makes and deletes pairs with sockets.
#[derive(Debug)]
struct SocketMaker {
    opened: Opened,
    /// `None` before the first is made.
    pairs: Option<Pairs>,
    /// Frames and receive ring entries.
    sizes: (u32, u32),
    /// Number to keep ready.
    wanted: usize,
    /// Pairs whose sockets an ended application, or a descendant of it, still has.
    busy: Vec<Socketed>,
}

impl SocketMaker {
    fn new(sizes: (u32, u32), wanted: usize, opened: Opened, pairs: Option<Pairs>) -> Self {
        SocketMaker {
            opened,
            pairs,
            sizes,
            wanted,
            busy: Vec::new(),
        }
    }

    fn pairs(&mut self) -> io::Result<&mut Pairs> {
        let pairs = match self.pairs.take() {
            Some(pairs) => pairs,
            None => {
                let Opened {
                    index,
                    mtu,
                    programs,
                } = self.opened.clone();
                Pairs::open(index, mtu, programs)?
            }
        };
        Ok(self.pairs.insert(pairs))
    }
}

/// Binds a socket on a pair's far end.
fn socket(pair: Pair, (frames, receive_ring): (u32, u32)) -> io::Result<Made> {
    let name = interface::name(pair.far)?;
    let settings = Settings {
        interface: &name,
        frames,
        receive_ring,
        copy: true,
        wait: false,
        // Otherwise it could have a checksum written into an already checked frame, and
        // poll the device.
        trusted: false,
    };
    afxdp::make(&settings, 0, None)
}

impl Maker for SocketMaker {
    type Item = Socketed;

    fn make(&mut self) -> io::Result<Socketed> {
        let sizes = self.sizes;
        let pairs = self.pairs()?;
        let pair = pairs.make()?;
        match socket(pair, sizes) {
            Ok(made) => Ok(Socketed {
                pair,
                made: Some(made),
                held: None,
                share: None,
            }),
            Err(error) => {
                // Pairs that cannot be deleted now are deleted when the device is next
                // opened.
                let _ = pairs.delete(&[pair.near]);
                Err(error)
            }
        }
    }

    /// Waits until the kernel has released the sockets that were on them. A pair whose
    /// socket an application still has waits, and so counts as handed over.
    fn rest(&mut self, used: Vec<Socketed>) -> (Vec<Socketed>, Vec<Socketed>) {
        let mut waiting: Vec<Socketed> = used;
        for one in &mut waiting {
            // It is of an application that was refused half-way: frames may have reached
            // it.
            one.made = None;
        }
        let mut done = Vec::new();
        let mut bind = |waiting: &mut Vec<Socketed>| {
            done.extend(waiting.extract_if(.., |one| {
                one.made = socket(one.pair, self.sizes).ok();
                one.share.take_if(|_| one.made.is_some());
                one.made.is_some()
            }));
        };
        bind(&mut self.busy);
        for _ in 0..RESTS {
            if waiting.is_empty() || Pairs::rest().is_err() {
                break;
            }
            bind(&mut waiting);
        }
        self.busy.append(&mut waiting);
        // No more than the stock can hold.
        let surplus = done.split_off(done.len().min(self.wanted));
        (done, surplus)
    }

    fn is_waiting(&self) -> bool {
        !self.busy.is_empty()
    }

    fn take_away(&mut self, ended: &[Socketed]) -> io::Result<()> {
        let near: Vec<u32> = ended.iter().map(|one| one.pair.near).collect();
        self.pairs()?.delete(&near)
    }
}

/// How a device was polled before, from the manager's own journal entry.
pub(super) fn noted(entry: &Entry) -> Option<threaded::Before> {
    let threaded = entry.threaded_before.checked_sub(1)?;
    Some(threaded::Before {
        threaded: threaded != 0,
    })
}

/// Records that in the manager's own journal entry.
pub(super) fn note(entry: &mut Entry, before: Option<threaded::Before>) {
    entry.threaded_before = before.map_or(0, |before| 1 + u32::from(before.threaded));
}
