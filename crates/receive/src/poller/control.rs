//! Receive control of a queue: the budget, and the reports of each round.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_device::queue::{InterruptModeration, POLL_MAX};

use super::{Poller, Round};
use crate::control::{self, Activity, Controller, Limits, PolicyKind, Waiting};
use crate::schedule::Poll;

/// A channel's receiver position, at the first append of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) tail: u32,
    pub(super) round_number: u32,
    /// It had taken frames since the round before.
    pub(super) moves: bool,
}

/// Use of channels seen in a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fullness {
    pub(super) largest: f32,
}

impl Fullness {
    pub(super) fn see(&mut self, waiting: u32, limit: u32) {
        if limit > 0 {
            self.largest = self.largest.max((waiting as f32 / limit as f32).min(1.0));
        }
    }
}

impl Poller {
    /// Sets Bp: the maximum number of frames that a round takes from the device, in as
    /// many polls of one size as it needs. Zero: none, until it is set again.
    ///
    /// # Errors
    /// EINVAL or EPERM from the device.
    pub fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        let frames = frames.min(self.most);
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

    /// Limits rounds to `most` frames from now on, whatever receive control decides;
    /// `None` removes the limit.
    pub fn limit_budget(&mut self, most: Option<u32>) {
        self.most = most.unwrap_or(u32::MAX);
        let controlled = self.controller.as_ref();
        let usual = controlled.map_or(POLL_MAX, |it| it.state().setting.budget);
        // If the device refuses it the budget stays as it was.
        let _ = self.set_budget(usual);
    }

    /// True while the budget is zero.
    pub fn is_stopped(&self) -> bool {
        self.budget == 0
    }

    /// As [`tidewall_device::queue::Receive::delivers`].
    pub fn delivers(&self) -> bool {
        self.device.delivers()
    }

    /// Notes a poll that began and ended at these times, in ns since any fixed moment.
    /// Returns when the next one is due ([`crate::schedule`]).
    pub fn polled(&mut self, began: u64, ended: u64, round: &Round) -> u64 {
        if round.driven > 0 {
            let counters = &self.shared.counters;
            let took = ended.saturating_sub(began);
            counters.timed.fetch_add(took, Ordering::Relaxed);
            let frames = &counters.timed_frames;
            frames.fetch_add(round.driven, Ordering::Relaxed);
        }
        self.schedule.polled(Poll {
            began,
            ended,
            driven: round.driven,
            sorted: round.frames as u64,
            dropped: round.overflowed,
            more: round.exhausted,
        })
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

    /// Reports a round that ended at `now` (time since the start of the stack) to the
    /// driver and receive control, and applies the budget. Returns how the caller must
    /// wait, if a policy is in control.
    pub fn control(
        &mut self,
        now: Duration,
        round: &control::Round,
        activity: Activity,
    ) -> Option<Waiting> {
        self.shared.tables.note_round(self.shared.queue, now);
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
            // A device that refuses a budget keeps its current one.
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
    pub(super) fn fullest(&self) -> f32 {
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

    /// Sets T; see [`tidewall_device::queue::Receive::set_moderation`].
    pub fn set_moderation(&mut self, moderation: InterruptModeration) -> bool {
        self.device.set_moderation(moderation)
    }

    /// See [`tidewall_device::queue::Receive::set_deferral`].
    pub fn set_deferral(&mut self, deferred: bool) -> bool {
        self.device.set_deferral(deferred)
    }

    /// See [`tidewall_device::queue::Receive::moderation_lags`].
    pub fn moderation_lags(&mut self) -> bool {
        self.device.moderation_lags()
    }
}
