//! One round of receiving on one queue: poll the device, sort its frames into channels,
//! keep the credit accounts correct.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidewall_device::demux::layout::{CHANNELS, Counter};
use tidewall_device::demux::{ApplicationTables, ChannelId};
use tidewall_device::frame::Frame;
use tidewall_device::queue::{
    Interrupt, KernelDelivered, NapiState, POLL_MAX, Pieces, Queue, Receive, Received, Transmit,
};

use crate::channel::{Run, Sender};
use crate::control::{self as receive_control, Controller};
use crate::credit::{Account, Adjust, Suspicion};
use crate::free::{Chain, FreeStack};
use crate::schedule::Schedule;
use crate::slots::Slots;

mod control;
mod origins;
mod shared;

use control::{Fullness, Taken};
pub use origins::Origins;
use shared::ChannelEnd;
pub use shared::{Channel, Done, QueueCounters, Shared};

/// Maximum number of frames taken from the receive ring after one poll. Frames delivered
/// by interrupt are there too, so this must exceed [`POLL_MAX`] or the ring overflows for
/// no reason.
pub const BATCH: usize = 256;

/// Frames that the device has while it is polled and receives nothing between two polls.
/// Frames that its timer delivers to a late thread may fill a channel of the usual
/// length, with as many left for all others. The device uses frames in the order in which
/// it got them, and so cycles through this many: the fewer, the more of them are in the
/// processor's caches.
const POLLED_FRAMES: usize = 4 * BATCH;

/// One frame in this many is reserved for channels that hold few, whatever floods the
/// others.
const SPARE: usize = 32;

/// Bit beside a channel's number: no thread waits for the frames that it received.
pub const WAITED: u16 = 1 << 15;

/// The results of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Frames taken from the ring.
    pub frames: usize,
    /// Frames that the driver admitted and that have neither arrived nor been written
    /// off. While this is not zero a sleeper must soon wake by itself and poll again.
    /// Otherwise a channel whose whole credit was lost stays closed.
    pub missing: u64,
    /// Frames that the driver processed in this round's poll, including kernel-bound and
    /// dropped ones: how busy the device is. Only a poll that finds none leaves the
    /// interrupt armed.
    pub driven: u64,
    /// It took all that its budget allowed: the device may hold more.
    pub exhausted: bool,
    /// Use of the fullest channel just after frames were appended to it, 0 to 1. Only
    /// channels that their receivers empty count.
    pub buffer_use: f32,
    /// Frames of this application that found no room in its channels.
    pub overflowed: u64,
}

impl Round {
    /// The round in receive control's terms.
    pub fn seen(&self) -> receive_control::Round {
        receive_control::Round {
            frames: self.frames as u32,
            exhausted: self.exhausted,
            buffer_use: self.buffer_use,
            // Overflow of a channel that no receiver empties harms no application.
            overflowed: if self.buffer_use > 0.0 {
                u32::try_from(self.overflowed).unwrap_or(u32::MAX)
            } else {
                0
            },
        }
    }
}

/// The part of a queue that one thread at a time may use: the queue lock
/// guards it.
pub struct Poller {
    shared: Arc<Shared>,
    device: Box<dyn Receive>,
    batch: Vec<Received>,
    empty_frames: Vec<Frame>,
    /// Frames that the device is given just now, from those.
    to_device: Vec<Frame>,
    accounts: Box<[Account]>,
    /// Numbers of open channels, for reconciling.
    open: Vec<u32>,
    /// Credited frames that arrived, and those that were written off, modulo 2^32.
    arrived: u32,
    written_off: u32,
    suspicion: Suspicion,
    /// Frames for receiving, and how many of them the device has.
    receive_frames: usize,
    in_device: usize,
    /// As [`Receive::ring_limit`].
    ring_limit: u32,
    /// [`Pieces::most`] when last read.
    pieces_most: u32,
    /// Bp, and how it is divided into polls.
    budget: u32,
    polls: u32,
    each: u32,
    /// Largest Bp, whatever receive control decides.
    most: u32,
    controller: Option<Controller>,
    fullness: Fullness,
    /// For each channel, what its receiver had taken when frames were last appended.
    taken: Box<[Taken]>,
    /// Number of the round.
    round_number: u32,
    schedule: Schedule,
}

/// Splits a device queue into its poller, its shared part and its transmitter.
/// `transmit_frames` frames stay with the transmitter; the rest receive.
pub fn open(
    queue: u32,
    device: Queue,
    tables: Arc<ApplicationTables>,
    transmit_frames: usize,
) -> (Poller, Arc<Shared>, Box<dyn Transmit>, Vec<Frame>) {
    let Queue {
        receive,
        transmit,
        memory,
        mut frames,
        counters: driver,
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
        first_frame: frames.iter().map(Frame::index).min().unwrap_or(0),
        slots,
        free: FreeStack::default(),
        ends,
        memory,
        tables,
        driver,
        counters: QueueCounters::default(),
        appending: Mutex::new(()),
        control: Mutex::new(None),
        recorder: receive_control::Recorder::default(),
    });
    let accounts = (0..CHANNELS as u16)
        .map(|number| Account::starting_at(shared.tables.head(queue, number)))
        .collect();
    // Most frames are kept for receiving frames that wake a thread.
    let waiting = receive.waiting_limit().min(frames.len() as u32 / 4);
    shared.tables.set_waiting_limit(queue, waiting);
    let arrived = shared.tables.total_head(queue);
    let receive_frames = frames.len();
    let mut poller = Poller {
        receive_frames,
        in_device: 0,
        ring_limit: receive.ring_limit(),
        pieces_most: 0,
        shared: shared.clone(),
        device: receive,
        batch: Vec::with_capacity(BATCH),
        empty_frames: frames,
        to_device: Vec::new(),
        accounts,
        open: Vec::new(),
        arrived,
        written_off: 0,
        suspicion: Suspicion::default(),
        budget: POLL_MAX,
        polls: 1,
        each: POLL_MAX,
        most: u32::MAX,
        controller: None,
        fullness: Fullness::default(),
        taken: vec![Taken::default(); CHANNELS].into(),
        round_number: 0,
        schedule: Schedule::default(),
    };
    poller.refill_to_sleep();
    (poller, shared, transmit, for_transmit)
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

    /// Returns the datagrams that arrived through the kernel during start-up. They are
    /// for a thread that no longer holds this poller: transmissions that they cause need
    /// it.
    pub fn take_kernel_delivered(&mut self) -> Vec<(KernelDelivered, Vec<u8>)> {
        let mut all = Vec::new();
        let mut payload = Vec::new();
        while let Some(one) = self.device.take_kernel_delivered(&mut payload) {
            all.push((one, std::mem::take(&mut payload)));
        }
        all
    }

    /// As [`Receive::joins`].
    pub fn joins(&self) -> bool {
        self.device.joins()
    }

    /// As [`Receive::set_mtu`].
    pub fn set_mtu(&mut self, mtu: usize) {
        self.device.set_mtu(mtu);
    }

    /// As [`Receive::napi`].
    pub fn napi(&self) -> NapiState {
        self.device.napi()
    }

    /// As [`Receive::take_doubt`].
    pub fn take_doubt(&mut self) -> bool {
        self.device.take_doubt()
    }

    /// As [`Receive::rediscover`].
    ///
    /// # Errors
    /// As [`Receive::rediscover`].
    pub fn rediscover(&mut self) -> io::Result<()> {
        self.device.rediscover()
    }

    /// Opens channel `id` with room for `limit` frames.
    ///
    /// # Errors
    /// EBUSY when the number is already open, EINVAL for number 0 or one out of range.
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
        self.schedule.opened(number);
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

    /// Closes a channel. No more frames are appended. Frames in it are returned with
    /// their credit, and so are those still on their way.
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

    /// Makes one round: refill, poll, sort, until the budget is used up or the device
    /// empty. Appends the number of each channel that received frames to `ready` (perhaps
    /// more than once), with [`WAITED`] if all of them had waited for the round.
    ///
    /// # Errors
    /// Those the device reports; frames already received are still sorted.
    pub fn round(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
        let mut round = Round::default();
        if self.budget == 0 {
            round.buffer_use = self.fullest();
            return Ok(round);
        }
        let full = self.dropped();
        self.fullness = Fullness::default();
        self.round_number = self.round_number.wrapping_add(1);
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
        round.overflowed = self.dropped().wrapping_sub(full);
        round.buffer_use = self.fullness.largest;
        let counters = &self.shared.counters;
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        counters.driven.fetch_add(round.driven, Ordering::Relaxed);
        if round.frames == 0 {
            counters.empty_rounds.fetch_add(1, Ordering::Relaxed);
        }
        failed.map(|()| round)
    }

    /// Makes one poll of a round.
    fn poll(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
        if interrupt == Interrupt::Masked && !self.device.receives_ahead() {
            // Frames that wait in our rings are no longer the device's.
            let waiting = self.not_here(self.admitted());
            self.refill(POLLED_FRAMES + usize::try_from(waiting).unwrap_or(0));
        } else {
            self.refill_to_sleep();
        }
        let seen = self.shared.driver.counter(Counter::Frames);
        let polled = self.device.poll(interrupt);
        let driven = self
            .shared
            .driver
            .counter(Counter::Frames)
            .wrapping_sub(seen);
        let (frames, missing) = self.sort(ready);
        polled?;
        Ok(Round {
            frames,
            missing,
            driven,
            ..Round::default()
        })
    }

    /// Frames of those that the driver has admitted that have not arrived here.
    fn not_here(&self, admitted: u32) -> i32 {
        admitted.wrapping_sub(self.arrived.wrapping_add(self.written_off)) as i32
    }

    /// Frames that the driver has admitted to this application: others may share the device.
    fn admitted(&self) -> u32 {
        self.shared.tables.total_head(self.shared.queue)
    }

    /// Frames of this application that ever found no room.
    fn dropped(&self) -> u64 {
        self.shared.tables.total_dropped(self.shared.queue)
    }

    /// Sorts a batch from the ring. Returns its frames, and how many are missing
    /// ([`Round::missing`]).
    fn sort(&mut self, ready: &mut Vec<u16>) -> (usize, u64) {
        // Read before the ring: what the driver admitted up to here is in the
        // ring, lost, or being published this moment.
        let admitted = self.admitted();
        let before = ready.len();
        let frames = self.receive(ready);
        let Shared { tables, queue, .. } = &*self.shared;
        let dropped = |channel| tables.dropped(*queue, channel);
        let channels = ready.get(before..).unwrap_or(&[]);
        self.schedule.sorted(channels, frames, dropped);
        let mut missing = 0;
        if frames < BATCH {
            missing = self.not_here(admitted);
            if missing <= 0 {
                self.suspicion.clear();
            } else if self.suspicion.confirms(admitted, self.arrived) {
                self.reconcile(ready);
                missing = 0;
            }
        }
        (frames, missing.max(0) as u64)
    }

    /// Sorts frames that the device delivered without a poll: a sleeper does this first
    /// when it wakes. No budget applies to them: the device's own poll took them.
    pub fn collect(&mut self, ready: &mut Vec<u16>) -> Round {
        self.fullness = Fullness::default();
        self.round_number = self.round_number.wrapping_add(1);
        let mut round = Round::default();
        loop {
            self.refill_to_sleep();
            let (frames, missing) = self.sort(ready);
            round.frames += frames;
            round.missing = missing;
            if frames < BATCH {
                break;
            }
        }
        round.buffer_use = self.fullness.largest;
        round
    }

    /// True when less than a quarter of the receive frames are available to the device:
    /// slow receivers hold the rest.
    pub fn short_of_frames(&self) -> bool {
        // None are linked while no packet has arrived in several.
        let hanging = match self.pieces_most {
            0 | 1 => 0,
            _ => self.device.pieces().hanging as usize,
        };
        let has = self.in_device.saturating_sub(hanging);
        has + self.empty_frames.len() < self.receive_frames / 4
    }

    /// A round for the host architectures: passes every frame to `each`, undemultiplexed
    /// ones included.
    ///
    /// # Errors
    /// Those the device reports.
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
        let driven = || shared.driver.counter(Counter::Frames);
        let before = driven();
        for _ in 0..self.polls {
            self.refill_to_sleep();
            let seen = driven();
            let polled = self.device.poll(interrupt);
            let taken = driven().wrapping_sub(seen);
            // Frames that the device delivered by itself count too.
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
        counters.driven.fetch_add(round.driven, Ordering::Relaxed);
        if round.frames == 0 {
            counters.empty_rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(round)
    }

    /// As [`Poller::take_round`], for frames that the device's own poll has delivered: a
    /// sleeper does this first when the device's timer woke it.
    pub fn take_delivered(&mut self, mut each: impl FnMut(&Shared, Received)) -> Round {
        let shared = self.shared.clone();
        let mut round = Round::default();
        loop {
            self.refill_to_sleep();
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

    /// Gives the device as many frames as it may need between polls, before a thread
    /// sleeps on it. That is all where it receives ahead, else the quarter below which
    /// frames are short ([`Poller::short_of_frames`]).
    pub fn refill_to_sleep(&mut self) {
        self.refill(if self.device.receives_ahead() {
            usize::MAX
        } else {
            (self.receive_frames / 4).max(POLLED_FRAMES)
        });
    }

    /// Gives the device empty frames, most recently used first, until it has `most`.
    fn refill(&mut self, most: usize) {
        self.shared
            .free
            .take_all(&self.shared.slots, &mut self.empty_frames);
        let Pieces {
            most: each,
            hanging,
        } = self.device.pieces();
        let each = each.max(1);
        let hanging = hanging as usize;
        let has = self.in_device.saturating_sub(hanging);
        let most = most.saturating_mul(each as usize);
        let room = most.saturating_sub(has);
        let count = room.min(self.empty_frames.len());
        if count > 0 {
            let rest = self.empty_frames.len() - count;
            self.to_device.extend(self.empty_frames.drain(rest..));
            self.device.fill(&mut self.to_device);
            self.in_device += count - self.to_device.len();
            self.empty_frames.append(&mut self.to_device);
        }
        // Frames on their way here are already counted.
        let seen = self.arrived.wrapping_add(self.written_off);
        let hanging = match hanging {
            0 => 0,
            // Fewer, now.
            _ => self.device.pieces().hanging as usize,
        };
        let has = self.in_device.saturating_sub(hanging) as u32;
        let has = has.min(self.ring_limit);
        if each != self.pieces_most {
            self.pieces_most = each;
            let frames = self.receive_frames.min(self.ring_limit as usize);
            let spare = (frames / SPARE) as u32 / each;
            self.shared.tables.set_spare(self.shared.queue, spare);
        }
        let given = seen.wrapping_add(if each == 1 { has } else { has / each });
        self.shared.tables.set_given(self.shared.queue, given);
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
            round_number,
            ..
        } = self;
        let round_number = *round_number;
        let frames = device.receive(batch, BATCH);
        *in_device -= frames.min(*in_device);
        if frames == 0 {
            return 0;
        }
        let queue = shared.queue;
        let mut append = |id, run, latest, waited| {
            let state = (&mut *fullness, &mut taken[..], round_number);
            append(shared, id, run, (latest, waited), ready, state);
        };
        // The channel whose frames are being collected, the number of the latest of
        // them, and whether all have waited.
        let mut current: Option<(ChannelId, Run)> = None;
        let mut latest = 0;
        let mut waited = false;
        let mut waiting = 0;
        let mut stale = Chain::default();
        let mut stale_frames = 0;
        for Received { frame, metadata } in batch.drain(..) {
            let id = metadata.channel_id();
            let number = id.index();
            let has_waited = metadata.waited_since() != 0;
            waiting += u32::from(has_waited);
            if let Some(account) = accounts.get_mut(number as usize) {
                *arrived = arrived.wrapping_add(1);
                match account.arrived(metadata.credit) {
                    Adjust::Keep => {}
                    adjust => adjust_credit(shared, number, adjust, written_off),
                }
            }
            match &mut current {
                Some((open, run)) if *open == id => {
                    run.add(&shared.slots, frame);
                    latest = metadata.credit;
                    waited &= has_waited;
                }
                _ => {
                    if let Some((open, run)) = current.take() {
                        append(open, run, latest, waited);
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
                        waited = has_waited;
                    } else {
                        stale_frames += 1;
                        stale.add(&shared.slots, frame);
                        shared.tables.tail_add(queue, number, 1);
                    }
                }
            }
        }
        if let Some((open, run)) = current.take() {
            append(open, run, latest, waited);
        }
        if waiting > 0 {
            shared.tables.waiting_taken(queue, waiting);
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

    /// Handles frames that were lost: the driver stays ahead although the ring is empty.
    /// Reads the heads first, then empties the ring, then writes off what is still
    /// missing.
    fn reconcile(&mut self, ready: &mut Vec<u16>) {
        let queue = self.shared.queue;
        let waiting = self.shared.tables.waiting_head(queue);
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
        self.shared.tables.waiting_caught_up(queue, waiting);
        for (number, head) in heads {
            let adjust = match self.accounts.get_mut(number as usize) {
                Some(account) => account.caught_up(head),
                None => Adjust::Keep,
            };
            adjust_credit(&self.shared, number, adjust, &mut self.written_off);
        }
    }
}

fn append(
    shared: &Shared,
    id: ChannelId,
    run: Run,
    (latest, waited): (u32, bool),
    ready: &mut Vec<u16>,
    (fullness, taken, round_number): (&mut Fullness, &mut [Taken], u32),
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
        if taken.round_number != round_number {
            let moves = taken.tail != tail;
            *taken = Taken {
                tail,
                round_number,
                moves,
            };
        }
        // A channel that no receiver empties is no indication of how fast frames should
        // arrive.
        if taken.moves {
            fullness.see(waiting.max(0) as u32, tables.limit(queue, number));
        }
        ready.push(if waited { number | WAITED } else { number });
    }
}

/// Applies an adjustment to a channel's tail and to the running totals.
fn adjust_credit(shared: &Shared, number: u16, adjust: Adjust, written_off: &mut u32) {
    let (tail, total) = match adjust {
        Adjust::Keep => return,
        Adjust::WriteOff(frames) => (frames, i64::from(frames)),
        Adjust::TakeBack => (1u32.wrapping_neg(), -1),
    };
    shared.tables.tail_add(shared.queue, number, tail);
    *written_off = written_off.wrapping_add(tail);
    shared
        .counters
        .lost_in_ring
        .fetch_add(total as u64, Ordering::Relaxed);
}
