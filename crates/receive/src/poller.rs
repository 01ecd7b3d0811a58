//! One round of receiving on one queue: poll the device, sort what came into
//! channels, keep the credit accounts straight.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidewall_device::demux::layout::{CHANNELS, Counter};
use tidewall_device::demux::{ChannelId, Tables};
use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::{
    Interrupt, POLL_MAX, Patience, Queue, Receive, Received, Stray, Transmit,
};

use crate::channel::{Receiver, Run, Sender};
use crate::control::{self, Activity, Controller, Limits, PolicyKind, Waiting};
use crate::credit::{Account, Adjust};
use crate::free::{Chain, FreeStack};
use crate::slots::Slots;

/// Most frames taken from the receive ring after one poll. What the device
/// delivered by interrupt is there too, so this must exceed [`POLL_MAX`] or the
/// ring overflows for no reason.
pub const BATCH: usize = 256;

/// Rounds that must find the driver ahead of us before its frames are taken
/// for lost: a frame in flight on another CPU is not lost yet.
const PATIENCE: u32 = 2;

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// It took all that its budget allowed: the device may hold more.
    pub exhausted: bool,
    /// Use of the fullest channel just after frames were appended to it, 0 to
    /// 1; of channels that their receivers empty.
    pub buffer_use: f32,
    /// Frames that found their channel full, whosever.
    pub overflowed: u64,
}

impl Round {
    /// As receive control sees it.
    pub fn seen(&self) -> control::Round {
        control::Round {
            frames: self.frames as u32,
            exhausted: self.exhausted,
            buffer_use: self.buffer_use,
            // Those of a channel that nobody empties are nobody's loss.
            overflowed: if self.buffer_use > 0.0 {
                u32::try_from(self.overflowed).unwrap_or(u32::MAX)
            } else {
                0
            },
        }
    }
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
    /// Rounds that used up their budget.
    pub exhausted_rounds: AtomicU64,
    /// Times that whoever polls was woken by the device.
    pub interrupts: AtomicU64,
    /// Frames that found their channel full.
    pub overflowed: AtomicU64,
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
    /// What receive control does, for those who watch: written on a change and
    /// at the end of an interval.
    control: Mutex<Option<control::State>>,
    recorder: control::Recorder,
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
    /// Bp, and how it is divided into polls.
    budget: u32,
    polls: u32,
    each: u32,
    controller: Option<Controller>,
    fullness: Fullness,
    /// Of each channel, what its receiver had taken when frames were last
    /// appended.
    taken: Box<[Taken]>,
    /// Number of the round.
    turn: u32,
}

/// How far a channel's receiver had come, at the first append of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    tail: u32,
    turn: u32,
    /// It had taken frames since the round before.
    moves: bool,
}

/// Use of channels seen in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Fullness {
    largest: f32,
}

impl Fullness {
    fn see(&mut self, waiting: u32, limit: u32) {
        if limit > 0 {
            self.largest = self.largest.max((waiting as f32 / limit as f32).min(1.0));
        }
    }
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
        control: Mutex::new(None),
        recorder: control::Recorder::default(),
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
        batch: Vec::with_capacity(BATCH),
        empty_frames: frames,
        accounts,
        open: Vec::new(),
        arrived,
        written_off: 0,
        suspicion: 0,
        budget: POLL_MAX,
        polls: 1,
        each: POLL_MAX,
        controller: None,
        fullness: Fullness::default(),
        taken: vec![Taken::default(); CHANNELS].into(),
        turn: 0,
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

    /// Records what receive control is told.
    pub fn recorder(&self) -> &control::Recorder {
        &self.recorder
    }

    /// What receive control does here; `None` where nothing controls.
    pub fn control(&self) -> Option<control::State> {
        *self.control.lock().unwrap_or_else(PoisonError::into_inner)
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
                self.counters.delivered.fetch_add(1, Ordering::Relaxed);
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

    /// Sets Bp: most frames that a round takes from the device, in as many
    /// polls of one size as it needs. Zero: none, until it is set again.
    ///
    /// # Errors
    /// EINVAL or EPERM from the device.
    pub fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        if frames == self.budget {
            return Ok(());
        }
        if frames > 0 {
            let polls = frames.div_ceil(POLL_MAX);
            let each = frames.div_ceil(polls);
            self.device.set_budget(each)?;
            (self.polls, self.each) = (polls, each);
        }
        self.budget = frames;
        Ok(())
    }

    /// True while the budget is zero.
    pub fn is_stopped(&self) -> bool {
        self.budget == 0
    }

    /// Channels that are open.
    pub(crate) fn open_channels(&self) -> impl Iterator<Item = ChannelId> {
        let ends = &self.shared.ends;
        self.open
            .iter()
            .filter_map(|&number| ends.get(number as usize))
            .map(|end| ChannelId::from_value(end.id.load(Ordering::Relaxed)))
    }

    /// Puts `policy` in control of this queue.
    pub fn set_policy(&mut self, policy: PolicyKind, limits: Limits) {
        let controller = Controller::new(policy, limits);
        let state = controller.state();
        self.controller = Some(controller);
        self.publish(state);
        let _ = self.set_budget(state.setting.budget);
    }

    /// Tells receive control of a round that ended at `now` (time since any
    /// fixed moment), and does what it says about the budget. Returns how the
    /// caller is to wait, when somebody controls.
    pub fn control(
        &mut self,
        now: Duration,
        round: &control::Round,
        activity: Activity,
    ) -> Option<Waiting> {
        let counters = &self.shared.counters;
        if round.exhausted {
            counters.exhausted_rounds.fetch_add(1, Ordering::Relaxed);
        }
        if activity.interrupted {
            counters.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        if round.overflowed > 0 {
            counters
                .overflowed
                .fetch_add(u64::from(round.overflowed), Ordering::Relaxed);
        }
        self.shared.recorder.round(now, round, activity);
        let controller = self.controller.as_mut()?;
        let decided = controller.round(now, round, activity);
        let waiting = controller.waiting();
        if let Some(state) = decided {
            // A device that refuses a budget keeps the one it has.
            let _ = self.set_budget(state.setting.budget);
            self.publish(state);
        }
        Some(waiting)
    }

    fn publish(&self, state: control::State) {
        *self
            .shared
            .control
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// Use of the fullest open channel now.
    fn fullest(&self) -> f32 {
        let (tables, queue) = (&self.shared.tables, self.shared.queue);
        let mut fullness = Fullness::default();
        for number in self.open.iter().map(|&number| number as u16) {
            let waiting = tables
                .head(queue, number)
                .wrapping_sub(tables.tail(queue, number)) as i32;
            fullness.see(waiting.max(0) as u32, tables.limit(queue, number));
        }
        fullness.largest
    }

    /// Sets T; see [`Receive::set_patience`].
    pub fn set_patience(&mut self, patience: Patience) -> bool {
        self.device.set_patience(patience)
    }

    /// See [`Receive::interrupts_at_once`].
    pub fn interrupts_at_once(&self) -> bool {
        self.device.interrupts_at_once()
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

    /// One round: refill, poll, sort, until the budget is used up or the device
    /// empty. Appends the number of each channel that got frames to `ready`
    /// (perhaps more than once).
    ///
    /// # Errors
    /// What the device reports; frames already received are sorted all the
    /// same.
    pub fn round(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
        let mut round = Round::default();
        if self.budget == 0 {
            round.buffer_use = self.fullest();
            return Ok(round);
        }
        let (tables, queue) = (self.shared.tables.clone(), self.shared.queue);
        let full = tables.counter(queue, Counter::ChannelFull);
        self.fullness = Fullness::default();
        self.turn = self.turn.wrapping_add(1);
        let mut failed = Ok(());
        for _ in 0..self.polls {
            match self.poll(interrupt, ready) {
                Ok(poll) => {
                    round.frames += poll.frames;
                    round.driven += poll.driven;
                    round.missing = poll.missing;
                    if poll.driven < u64::from(self.each) {
                        break;
                    }
                }
                Err(error) => {
                    failed = Err(error);
                    break;
                }
            }
        }
        let taken = round.driven.max(round.frames as u64);
        round.exhausted = taken >= u64::from(self.budget);
        round.overflowed = tables
            .counter(queue, Counter::ChannelFull)
            .wrapping_sub(full);
        round.buffer_use = self.fullness.largest;
        let counters = &self.shared.counters;
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        if round.frames == 0 {
            counters.empty_rounds.fetch_add(1, Ordering::Relaxed);
        }
        failed.map(|()| round)
    }

    /// One poll of a round.
    fn poll(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
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
        if frames < BATCH {
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
        polled?;
        Ok(Round {
            frames,
            missing: missing.max(0) as u64,
            driven,
            ..Round::default()
        })
    }

    /// Sorts what the device has delivered by itself, without polling it: what
    /// a sleeper does first when it wakes. No budget holds for what comes this
    /// way: the device's own poll took it.
    pub fn collect(&mut self, ready: &mut Vec<u16>) -> Round {
        self.fullness = Fullness::default();
        self.turn = self.turn.wrapping_add(1);
        let mut round = Round::default();
        loop {
            self.refill();
            let frames = self.receive(ready);
            round.frames += frames;
            if frames < BATCH {
                break;
            }
        }
        round.buffer_use = self.fullness.largest;
        round
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
    ) -> io::Result<Round> {
        let mut round = Round::default();
        if self.budget == 0 {
            round.buffer_use = self.fullest();
            return Ok(round);
        }
        let shared = self.shared.clone();
        let driven = || shared.tables.counter(shared.queue, Counter::Frames);
        let before = driven();
        for _ in 0..self.polls {
            self.refill();
            let seen = driven();
            let polled = self.device.poll(interrupt);
            let taken = driven().wrapping_sub(seen);
            // What the device delivered by itself counts too.
            let left = (self.budget as usize).saturating_sub(round.frames);
            let frames = self.device.receive(&mut self.batch, left.min(BATCH));
            self.in_device -= frames.min(self.in_device);
            for received in self.batch.drain(..) {
                each(&shared, received);
            }
            round.frames += frames;
            polled?;
            if taken.max(frames as u64) < u64::from(self.each) {
                break;
            }
        }
        round.driven = driven().wrapping_sub(before);
        let taken = round.driven.max(round.frames as u64);
        round.exhausted = taken >= u64::from(self.budget);
        let counters = &shared.counters;
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        if round.frames == 0 {
            counters.empty_rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(round)
    }

    /// As [`Poller::take_round`], of what the device's own poll has delivered:
    /// what a sleeper does first when the device's timer woke it.
    pub fn take_delivered(&mut self, mut each: impl FnMut(&Shared, Received)) -> Round {
        let shared = self.shared.clone();
        let mut round = Round::default();
        loop {
            self.refill();
            let frames = self.device.receive(&mut self.batch, BATCH);
            self.in_device -= frames.min(self.in_device);
            for received in self.batch.drain(..) {
                each(&shared, received);
            }
            round.frames += frames;
            if frames < BATCH {
                break;
            }
        }
        shared.counters.rounds.fetch_add(1, Ordering::Relaxed);
        round
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
            fullness,
            taken,
            turn,
            ..
        } = self;
        let turn = *turn;
        let frames = device.receive(batch, BATCH);
        *in_device -= frames.min(*in_device);
        if frames == 0 {
            return 0;
        }
        let queue = shared.queue;
        // The channel whose frames are being collected, and the number of the
        // latest of them.
        let mut current: Option<(ChannelId, Run)> = None;
        let mut latest = 0;
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
                Some((open, run)) if *open == id => {
                    run.add(&shared.slots, frame);
                    latest = metadata.credit;
                }
                _ => {
                    if let Some((open, run)) = current.take() {
                        append(shared, open, run, latest, ready, (fullness, taken, turn));
                    }
                    let open = shared
                        .ends
                        .get(number as usize)
                        .is_some_and(|end| end.id.load(Ordering::Relaxed) == id.value());
                    if open && number != 0 {
                        let mut run = Run::default();
                        run.add(&shared.slots, frame);
                        current = Some((id, run));
                        latest = metadata.credit;
                    } else {
                        stale_frames += 1;
                        stale.add(&shared.slots, frame);
                        shared.tables.tail_add(queue, number, 1);
                    }
                }
            }
        }
        if let Some((open, run)) = current.take() {
            append(shared, open, run, latest, ready, (fullness, taken, turn));
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
        while self.receive(ready) == BATCH {}
        for (number, head) in heads {
            let adjust = match self.accounts.get_mut(number as usize) {
                Some(account) => account.caught_up(head),
                None => Adjust::Keep,
            };
            settle(&self.shared, number, adjust, &mut self.written_off);
        }
    }
}

fn append(
    shared: &Shared,
    id: ChannelId,
    run: Run,
    latest: u32,
    ready: &mut Vec<u16>,
    (fullness, taken, turn): (&mut Fullness, &mut [Taken], u32),
) {
    let number = id.index();
    if let Some(end) = shared.ends.get(number as usize) {
        shared
            .counters
            .delivered
            .fetch_add(u64::from(run.length()), Ordering::Relaxed);
        end.sender.append(&shared.slots, run);
        let (tables, queue) = (&shared.tables, shared.queue);
        let tail = tables.tail(queue, number);
        let waiting = latest.wrapping_sub(tail) as i32;
        let Some(taken) = taken.get_mut(number as usize) else {
            return;
        };
        if taken.turn != turn {
            let moves = taken.tail != tail;
            *taken = Taken { tail, turn, moves };
        }
        // A channel that nobody empties says nothing about how fast frames
        // should come.
        if taken.moves {
            fullness.see(waiting.max(0) as u32, tables.limit(queue, number));
        }
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
