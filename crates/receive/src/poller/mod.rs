//! One round of receiving on one queue: poll the device, sort what came into
//! channels, keep the credit accounts straight.

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

/// Most frames taken from the receive ring after one poll. What the device
/// delivered by interrupt is there too, so this must exceed [`POLL_MAX`] or the
/// ring overflows for no reason.
pub const BATCH: usize = 256;

/// Frames that the device has while it is polled and receives nothing between two polls:
/// what its timer brings to a thread that is late may fill a channel of the usual length,
/// and leaves as many for all others. The device takes frames in the order in which it got
/// them, so as many are touched in turn: the fewer, the more of them are in the processor's
/// caches.
const POLLED_FRAMES: usize = 4 * BATCH;

/// One part in so many of the frames is for channels that hold few, whatever the others are
/// flooded with.
const SPARE: usize = 32;

/// Bit beside a channel's number: nobody waits for the frames that it got.
pub const WAITED: u16 = 1 << 15;

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
    /// Frames of this application that found no room in its channels.
    pub overflowed: u64,
}

impl Round {
    /// As receive control sees it.
    pub fn seen(&self) -> receive_control::Round {
        receive_control::Round {
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

/// The part of a queue that one thread at a time may use: the queue lock
/// guards it.
pub struct Poller {
    shared: Arc<Shared>,
    device: Box<dyn Receive>,
    batch: Vec<Received>,
    empty_frames: Vec<Frame>,
    /// Of them, those that the device is given just now.
    to_device: Vec<Frame>,
    accounts: Box<[Account]>,
    /// Numbers of open channels, for reconciling.
    open: Vec<u32>,
    /// Credited frames that arrived, and that were written off, modulo 2^32.
    arrived: u32,
    written_off: u32,
    suspicion: Suspicion,
    /// Frames for receiving, and how many of them the device has.
    receive_frames: usize,
    in_device: usize,
    /// As [`Receive::ring_limit`].
    ring_limit: u32,
    /// As [`Pieces::most`] when it was last looked at.
    pieces_most: u32,
    /// Bp, and how it is divided into polls.
    budget: u32,
    polls: u32,
    each: u32,
    /// Largest Bp, whatever receive control says.
    most: u32,
    controller: Option<Controller>,
    fullness: Fullness,
    /// Of each channel, what its receiver had taken when frames were last
    /// appended.
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
    // Most frames stay for what wakes somebody.
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

    /// The datagrams that came through the kernel during start-up. They are for
    /// a thread that no longer holds this poller: what they cause to be sent needs it.
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
    /// As there.
    pub fn rediscover(&mut self) -> io::Result<()> {
        self.device.rediscover()
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
    /// (perhaps more than once), with [`WAITED`] if all of them had waited for the
    /// round.
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

    /// One poll of a round.
    fn poll(&mut self, interrupt: Interrupt, ready: &mut Vec<u16>) -> io::Result<Round> {
        if interrupt == Interrupt::Masked && !self.device.receives_ahead() {
            // What waits in our rings is the device's no more.
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

    /// Of so many frames that the driver has admitted, those that have not arrived here.
    fn not_here(&self, admitted: u32) -> i32 {
        admitted.wrapping_sub(self.arrived.wrapping_add(self.written_off)) as i32
    }

    /// Frames that the driver has admitted to this application: others may share the device.
    fn admitted(&self) -> u32 {
        self.shared.tables.total_head(self.shared.queue)
    }

    /// Frames of this application that found no room, ever.
    fn dropped(&self) -> u64 {
        self.shared.tables.total_dropped(self.shared.queue)
    }

    /// Sorts a batch out of the ring. Returns its frames, and how many are missing
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

    /// Sorts what the device has delivered by itself, without polling it: what
    /// a sleeper does first when it wakes. No budget holds for what comes this
    /// way: the device's own poll took it.
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

    /// True when less than a quarter of the receive frames are the device's to have: slow
    /// receivers hold the rest.
    pub fn short_of_frames(&self) -> bool {
        // None hang while no packet has come in several.
        let hanging = match self.pieces_most {
            0 | 1 => 0,
            _ => self.device.pieces().hanging as usize,
        };
        let has = self.in_device.saturating_sub(hanging);
        has + self.empty_frames.len() < self.receive_frames / 4
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
        let driven = || shared.driver.counter(Counter::Frames);
        let before = driven();
        for _ in 0..self.polls {
            self.refill_to_sleep();
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
        counters.driven.fetch_add(round.driven, Ordering::Relaxed);
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

    /// Gives the device as many frames as it may need while nobody polls it: all, where it
    /// receives ahead, else the quarter below which frames are short
    /// ([`Poller::short_of_frames`]). Before a thread sleeps on it.
    pub fn refill_to_sleep(&mut self) {
        self.refill(if self.device.receives_ahead() {
            usize::MAX
        } else {
            (self.receive_frames / 4).max(POLLED_FRAMES)
        });
    }

    /// Gives the device empty frames, those first that were used last, until it has `most`.
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
        // Frames on their way here are in the count already.
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

    /// The driver stays ahead although the ring is empty: frames were lost.
    /// Heads are read first, then the ring is emptied, then what is still
    /// missing is written off.
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
        // A channel that nobody empties says nothing about how fast frames
        // should come.
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
