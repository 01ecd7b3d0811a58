//! One round of receiving on one queue: poll the device, sort what came into
//! channels, keep the credit accounts straight.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidewall_device::demux::layout::{CHANNELS, Counter};
use tidewall_device::demux::{ChannelId, Tables};
use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::{Interrupt, Patience, Queue, Receive, Received, Stray, Transmit};

use crate::channel::{Receiver, Run, Sender};
use crate::credit::{Account, Adjust};
use crate::free::{Chain, FreeStack};
use crate::slots::Slots;

/// Most frames taken from the receive ring in one round. One poll of the
/// device can deliver twice its budget of 64, so this must exceed 128 or the
/// ring overflows for no reason.
pub const ROUND: usize = 256;

/// Rounds that must find the driver ahead of us before its frames are taken
/// for lost: a frame in flight on another CPU is not lost yet.
const PATIENCE: u32 = 2;

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Frames taken from the ring.
    pub frames: usize,
    /// Frames that the driver admitted and that have neither arrived nor been
    /// written off. While this is not zero a sleeper must wake by itself soon
    /// and poll again, or a channel whose whole credit was lost stays shut.
    pub missing: u64,
    /// Frames that the driver processed in this round's poll, the kernel's and
    /// the dropped ones included: how busy the device is. Only a poll that
    /// finds none leaves the interrupt armed.
    pub driven: u64,
}

/// Counters of one queue, each a way a frame can go after the driver.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Frames appended to a channel.
    pub delivered: AtomicU64,
    /// Dropped: the channel was closed while the frame was on its way.
    pub stale: AtomicU64,
    /// Admitted by the driver but never seen: no room in the receive ring or
    /// no empty frame. Their credit was given back.
    pub lost_in_ring: AtomicU64,
    /// Rounds.
    pub rounds: AtomicU64,
    /// Rounds that found nothing.
    pub empty_rounds: AtomicU64,
}

/// The part of a queue that every thread may use at once.
#[derive(Debug)]
pub struct Shared {
    queue: u32,
    slots: Slots,
    free: FreeStack,
    ends: Box<[ChannelEnd]>,
    memory: FrameMemory,
    tables: Arc<Tables>,
    counters: QueueCounters,
    /// Held while a host architecture appends, and while a channel closes.
    appending: Mutex<()>,
}

/// The appending side of one channel number.
#[derive(Debug)]
struct ChannelEnd {
    /// Id of the channel that is open under this number, 0 when none.
    id: AtomicU32,
    sender: Sender,
}

/// The removing side of one open channel on one queue; closing gives the
/// number back.
#[derive(Debug)]
pub struct Channel {
    shared: Arc<Shared>,
    id: ChannelId,
    receiver: Receiver,
}

/// The part of a queue that one thread at a time may use: the queue lock
/// guards it.
pub struct Poller {
    shared: Arc<Shared>,
    device: Box<dyn Receive>,
    batch: Vec<Received>,
    empty_frames: Vec<Frame>,
    accounts: Box<[Account]>,
    /// Numbers of open channels, for reconciling.
    open: Vec<u32>,
    /// Credited frames that arrived, and that were written off.
    arrived: u64,
    written_off: u64,
    suspicion: u32,
    /// Frames for receiving, and how many of them the device has.
    receive_frames: usize,
    in_device: usize,
}

/// Splits a device queue into its poller, its shared part and its transmitter.
/// `transmit_frames` frames stay with the transmitter; the rest receive.
pub fn open(
    queue: u32,
    device: Queue,
    tables: Arc<Tables>,
    transmit_frames: usize,
) -> (Poller, Arc<Shared>, Box<dyn Transmit>, Vec<Frame>) {
    let Queue {
        receive,
        transmit,
        memory,
        mut frames,
    } = device;
    let slots = Slots::new(memory.frames(), CHANNELS as u32);
    let ends = (0..CHANNELS as u32)
        .map(|number| ChannelEnd {
            id: AtomicU32::new(0),
            sender: Sender::new(&slots, number),
        })
        .collect();
    let for_transmit = frames.split_off(frames.len().saturating_sub(transmit_frames));
    let shared = Arc::new(Shared {
        queue,
        slots,
        free: FreeStack::default(),
        ends,
        memory,
        tables,
        counters: QueueCounters::default(),
        appending: Mutex::new(()),
    });
    let accounts = (0..CHANNELS as u16)
        .map(|number| Account::starting_at(shared.tables.head(queue, number)))
        .collect();
    let arrived = shared.tables.counter(queue, Counter::Channel);
    let receive_frames = frames.len();
    let mut poller = Poller {
        receive_frames,
        in_device: 0,
        shared: shared.clone(),
        device: receive,
        batch: Vec::with_capacity(ROUND),
        empty_frames: frames,
        accounts,
        open: Vec::new(),
        arrived,
        written_off: 0,
        suspicion: 0,
    };
    poller.refill();
    (poller, shared, transmit, for_transmit)
}

impl Shared {
    /// Number of the device queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Frame memory of the queue.
    pub fn memory(&self) -> &FrameMemory {
        &self.memory
    }

    /// Counters since the start.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// The demux tables.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// Gives back frames removed from channel `id`, and their credit: the
    /// driver admits as many again. Two atomic operations, however many.
    pub fn give_back(&self, id: ChannelId, done: Done) {
        if done.frames > 0 {
            self.free.put_chain(&self.slots, done.chain);
            self.give_credit(id, done.frames);
        }
    }

    /// Gives back credit alone, of datagrams whose frames went back before
    /// them because their bytes were copied out.
    pub fn give_credit(&self, id: ChannelId, frames: u32) {
        self.tables.tail_add(self.queue, id.index(), frames);
    }

    /// Gives one frame back, without credit.
    pub fn free(&self, frame: Frame) {
        self.free.put(&self.slots, frame);
    }

    /// Appends to a channel on behalf of a host architecture's threads, which
    /// keep its bound themselves (the driver has counted nothing).
    pub(crate) fn append(&self, id: ChannelId, frame: Frame) -> Result<(), Frame> {
        let _appending = self
            .appending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match self.ends.get(id.index() as usize) {
            Some(end) if end.id.load(Ordering::Acquire) == id.value() => {
                let mut run = Run::default();
                run.add(&self.slots, frame);
                end.sender.append(&self.slots, run);
                Ok(())
            }
            _ => Err(frame),
        }
    }
}

impl Poller {
    /// The part every thread may use.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Descriptors to sleep on.
    pub fn descriptors(&self) -> Vec<i32> {
        self.device.descriptors()
    }

    /// Sets Bp.
    ///
    /// # Errors
    /// EINVAL or EPERM from the device.
    pub fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        self.device.set_budget(frames)
    }

    /// Sets T; see [`Receive::set_patience`].
    pub fn set_patience(&mut self, patience: Patience) {
        self.device.set_patience(patience);
    }

    /// A datagram that came through the kernel during start-up.
    pub fn take_stray(&mut self, payload: &mut Vec<u8>) -> Option<Stray> {
        self.device.take_stray(payload)
    }

    /// Opens channel `id` with room for `limit` frames.
    ///
    /// # Errors
    /// EBUSY when the number is open already, EINVAL for number 0 or one out
    /// of range.
    pub fn open_channel(&mut self, id: ChannelId, limit: u32) -> io::Result<Channel> {
        let number = id.index();
        let end = match self.shared.ends.get(number as usize) {
            Some(end) if number != 0 => end,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        if end.id.load(Ordering::Relaxed) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        end.id.store(id.value(), Ordering::Release);
        self.open.push(u32::from(number));
        self.shared
            .tables
            .set_limit(self.shared.queue, number, limit);
        // A closed channel leaves its stub as the only node, wherever it
        // stands, so the receiver starts at the stub again.
        let receiver = end.sender.receiver();
        Ok(Channel {
            shared: self.shared.clone(),
            id,
            receiver,
        })
    }

    /// Closes a channel: no frame is appended any more, those in it are given
    /// back with their credit, and those still on their way will be.
    pub fn close_channel(&mut self, mut channel: Channel) {
        let number = channel.id.index();
        self.shared.tables.set_limit(self.shared.queue, number, 0);
        if let Some(end) = self.shared.ends.get(number as usize) {
            let _appending = self
                .shared
                .appending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            end.id.store(0, Ordering::Release);
        }
        self.open.retain(|&open| open != u32::from(number));
        let mut done = Done::default();
        while let Some(frame) = channel.remove() {
            done.add(&self.shared, frame);
        }
        self.shared.give_back(channel.id, done);
    }

    /// One round: refill, poll, sort. Appends the number of each channel that
    /// got frames to `ready` (perhaps more than once).
    ///
    /// # Errors
    /// What the device reports; frames already received are sorted all the
    /// same.
    pub fn round(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
        self.refill();
        let seen = self
            .shared
            .tables
            .counter(self.shared.queue, Counter::Frames);
        let polled = self.device.poll(interrupt);
        let driven = self
            .shared
            .tables
            .counter(self.shared.queue, Counter::Frames)
            .wrapping_sub(seen);
        // Read before the ring: what the driver admitted up to here is in the
        // ring, lost, or being published this moment.
        let admitted = self
            .shared
            .tables
            .counter(self.shared.queue, Counter::Channel);
        let frames = self.receive(ready);
        let mut missing = 0;
        if frames < ROUND {
            missing = admitted.wrapping_sub(self.arrived + self.written_off) as i64;
            if missing <= 0 {
                self.suspicion = 0;
            } else {
                self.suspicion += 1;
                if self.suspicion > PATIENCE {
                    self.suspicion = 0;
                    self.reconcile(ready);
                    missing = 0;
                }
            }
        }
        let counters = &self.shared.counters;
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        if frames == 0 {
            counters.empty_rounds.fetch_add(1, Ordering::Relaxed);
        }
        polled?;
        Ok(Round {
            frames,
            missing: missing.max(0) as u64,
            driven,
        })
    }

    /// Sorts what the device has delivered by itself, without polling it: what
    /// a sleeper does first when it wakes.
    pub fn collect(&mut self, ready: &mut Vec<u16>) -> usize {
        self.refill();
        self.receive(ready)
    }

    /// True when less than a quarter of the receive frames are with the
    /// device: slow receivers hold the rest.
    pub fn short_of_frames(&self) -> bool {
        self.in_device < self.receive_frames / 4
    }

    /// A round for the host architectures: gives every frame to `each`,
    /// undemultiplexed ones included.
    ///
    /// # Errors
    /// What the device reports.
    pub fn take_round(
        &mut self,
        interrupt: Interrupt,
        mut each: impl FnMut(&Shared, Received),
    ) -> io::Result<usize> {
        self.refill();
        let polled = self.device.poll(interrupt);
        let frames = self.device.receive(&mut self.batch, ROUND);
        self.in_device -= frames.min(self.in_device);
        for received in self.batch.drain(..) {
            each(&self.shared, received);
        }
        polled?;
        Ok(frames)
    }

    fn refill(&mut self) {
        self.shared
            .free
            .take_all(&self.shared.slots, &mut self.empty_frames);
        if !self.empty_frames.is_empty() {
            let before = self.empty_frames.len();
            self.device.fill(&mut self.empty_frames);
            self.in_device += before - self.empty_frames.len();
        }
    }

    fn receive(&mut self, ready: &mut Vec<u16>) -> usize {
        let Self {
            shared,
            device,
            batch,
            accounts,
            arrived,
            written_off,
            in_device,
            ..
        } = self;
        let frames = device.receive(batch, ROUND);
        *in_device -= frames.min(*in_device);
        if frames == 0 {
            return 0;
        }
        let queue = shared.queue;
        let mut current: Option<(ChannelId, Run)> = None;
        let mut stale = Chain::default();
        let mut stale_frames = 0;
        for Received { frame, metadata } in batch.drain(..) {
            let id = metadata.channel_id();
            let number = id.index();
            if let Some(account) = accounts.get_mut(number as usize) {
                *arrived += 1;
                match account.arrived(metadata.credit) {
                    Adjust::Keep => {}
                    adjust => settle(shared, number, adjust, written_off),
                }
            }
            match &mut current {
                Some((open, run)) if *open == id => run.add(&shared.slots, frame),
                _ => {
                    if let Some((open, run)) = current.take() {
                        append(shared, open, run, ready);
                    }
                    let open = shared
                        .ends
                        .get(number as usize)
                        .is_some_and(|end| end.id.load(Ordering::Relaxed) == id.value());
                    if open && number != 0 {
                        let mut run = Run::default();
                        run.add(&shared.slots, frame);
                        current = Some((id, run));
                    } else {
                        stale_frames += 1;
                        stale.add(&shared.slots, frame);
                        shared.tables.tail_add(queue, number, 1);
                    }
                }
            }
        }
        if let Some((open, run)) = current.take() {
            append(shared, open, run, ready);
        }
        if stale_frames > 0 {
            shared.free.put_chain(&shared.slots, stale);
            shared
                .counters
                .stale
                .fetch_add(stale_frames, Ordering::Relaxed);
        }
        frames
    }

    /// The driver stays ahead although the ring is empty: frames were lost.
    /// Heads are read first, then the ring is emptied, then what is still
    /// missing is written off.
    fn reconcile(&mut self, ready: &mut Vec<u16>) {
        let queue = self.shared.queue;
        let heads: Vec<(u16, u32)> = (0..CHANNELS as u16)
            .filter(|&number| {
                let limit = self.shared.tables.limit(queue, number);
                limit != 0
                    || self.shared.tables.head(queue, number)
                        != self.shared.tables.tail(queue, number)
            })
            .map(|number| (number, self.shared.tables.head(queue, number)))
            .collect();
        while self.receive(ready) == ROUND {}
        for (number, head) in heads {
            let adjust = match self.accounts.get_mut(number as usize) {
                Some(account) => account.caught_up(head),
                None => Adjust::Keep,
            };
            settle(&self.shared, number, adjust, &mut self.written_off);
        }
    }
}

fn append(shared: &Shared, id: ChannelId, run: Run, ready: &mut Vec<u16>) {
    let number = id.index();
    if let Some(end) = shared.ends.get(number as usize) {
        shared
            .counters
            .delivered
            .fetch_add(u64::from(run.length()), Ordering::Relaxed);
        end.sender.append(&shared.slots, run);
        ready.push(number);
    }
}

/// Applies an adjustment to a channel's tail and to the running totals.
fn settle(shared: &Shared, number: u16, adjust: Adjust, written_off: &mut u64) {
    let (tail, total) = match adjust {
        Adjust::Keep => return,
        Adjust::WriteOff(frames) => (frames, i64::from(frames)),
        Adjust::TakeBack => (1u32.wrapping_neg(), -1),
    };
    shared.tables.tail_add(shared.queue, number, tail);
    *written_off = written_off.wrapping_add(total as u64);
    shared
        .counters
        .lost_in_ring
        .fetch_add(total as u64, Ordering::Relaxed);
}

impl Channel {
    /// The channel's id.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// The queue it is on.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn end(&self) -> Option<&ChannelEnd> {
        self.shared.ends.get(self.id.index() as usize)
    }

    /// True when there is surely nothing in it.
    pub fn looks_empty(&self) -> bool {
        self.end()
            .is_none_or(|end| end.sender.looks_empty(&self.receiver))
    }

    /// Removes the oldest frame. It and its credit go back with
    /// [`Shared::give_back`].
    pub fn remove(&mut self) -> Option<Frame> {
        let end = self.shared.ends.get(self.id.index() as usize)?;
        end.sender.remove(&self.shared.slots, &mut self.receiver)
    }
}

/// Frames of one channel that the receiver is done with.
#[derive(Debug, Default)]
pub struct Done {
    chain: Chain,
    frames: u32,
}

impl Done {
    /// Adds a frame that was removed from the channel.
    pub fn add(&mut self, shared: &Shared, frame: Frame) {
        self.chain.add(&shared.slots, frame);
        self.frames += 1;
    }
}
