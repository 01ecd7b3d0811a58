//! Private mode: applications each behind virtual pairs of their own, on a device that
//! the only one polls, or else a kernel thread.

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

/// Pairs that are kept ready for each queue of the device: of more applications that join
/// at the same time some wait.
pub(super) const READY: usize = 4;
/// Grace periods (RCU) that a used pair rests for until its last socket is gone, at most.
const RESTS: usize = 4;

/// A pair with a socket on its far end, or one whose socket is an application's alone.
#[derive(Debug)]
struct Socketed {
    pair: Pair,
    made: Option<Made>,
    /// Beside its application's copy of the second socket, for the same reason as of the
    /// device's own queues.
    held: Option<OwnedFd>,
    /// Until no other socket is bound there any more.
    share: Option<Share>,
}

/// What private applications of one device have, and what is ready for more.
#[derive(Debug)]
pub(super) struct Private {
    stock: Stock<Socketed>,
    /// Of another size than those in stock.
    order: Order<(u32, u32), Socketed>,
    /// Frames and places of the receive ring of those in stock.
    sizes: (u32, u32),
    opened: Opened,
    interface: String,
    queues: u32,
    /// Of each application, by queue.
    in_use: HashMap<u16, Vec<Socketed>>,
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
        let mut in_use: HashMap<u16, Vec<Socketed>> = HashMap::new();
        for (near, application) in program.near_ends()? {
            // The other end is not asked for again: such a pair is not used again.
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

    /// The interface has another name.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.interface);
    }

    /// True if some application has pairs.
    pub(super) fn is_used(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// The application that has pairs, where only one has.
    pub(super) fn only_user(&self) -> Option<u16> {
        let mut users = self.in_use.keys();
        users.next().copied().filter(|_| users.next().is_none())
    }

    /// Makes what was taken anew, by a thread.
    pub(super) fn refill(&self) {
        self.stock.refill();
    }

    /// What the stock has counted.
    pub(super) fn counters(&self) -> StockCounters {
        self.stock.counters()
    }

    /// Enters the sockets that an application asks for, each on the far end of a pair. What
    /// is half done then is taken away by [`Private::clear`].
    ///
    /// # Errors
    /// EINVAL for another number of queues than all, and sizes out of range; EBUSY where
    /// none is ready; what the kernel reports. Each socket holds the `share`.
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
        // What fails from here on leaves its sockets there: the last descriptor of a bound
        // one is closed by the stock's thread, as the kernel waits for RCU then.
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

    /// Takes an application's pairs back, whose sockets are its process's alone, or were
    /// never handed out.
    ///
    /// # Errors
    /// What the kernel reports.
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

/// Of which device pairs are made.
#[derive(Clone, Debug)]
struct Opened {
    index: u32,
    mtu: u32,
    programs: Arc<PairPrograms>,
}

/// Makes pairs with sockets, and deletes them.
#[derive(Debug)]
struct SocketMaker {
    opened: Opened,
    /// `None` before the first is made.
    pairs: Option<Pairs>,
    /// Frames and places of the receive ring.
    sizes: (u32, u32),
    /// As many are to be ready.
    wanted: usize,
    /// Pairs whose sockets an application that has ended still has, or a descendant of it.
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

/// Bound on a pair's far end.
fn socket(pair: Pair, (frames, receive_ring): (u32, u32)) -> io::Result<Made> {
    let name = interface::name(pair.far)?;
    let settings = Settings {
        interface: &name,
        frames,
        receive_ring,
        copy: true,
        wait: false,
        // It could have a checksum written into what was judged already, and the device
        // polled.
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
                // What cannot be deleted now is when the device is opened next.
                let _ = pairs.delete(&[pair.near]);
                Err(error)
            }
        }
    }

    /// Until the kernel has let go of the sockets that were on them. One whose socket an
    /// application still has waits, and so counts as handed out.
    fn rest(&mut self, used: Vec<Socketed>) -> (Vec<Socketed>, Vec<Socketed>) {
        let mut waiting: Vec<Socketed> = used;
        for one in &mut waiting {
            // Of an application that was refused half-way: frames may have come to it.
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
        // No more than could be ready.
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
