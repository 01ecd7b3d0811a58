//! The time of the kernel thread that polls a device for several private applications:
//! each is charged its share, and a flood is bounded.
//!
//! The thread belongs to no application, and the scheduler gives it a share like any
//! other. When that does not suffice, the device's ring fills and loses frames of all. So
//! the manager examines the thread now and then ([`Look`]) and decides, without I/O:
//!
//! 1. *Charge.* The thread's processor time is divided among the applications by their
//!    frames. A frame that passes to a pair weighs [`PASSED`] times one that is dropped.
//! 2. *Use.* A domain's use is its charge, plus what its processes run on the thread's
//!    processors. The scheduler makes processes equal, so the thread's work for one comes
//!    off the others' shares. Bounding processes that compute is left to the scheduler: a
//!    domain is bound only if its charge, too, is above the mean.
//! 3. *Late.* The thread is one more task. It is late when it waits for a processor and
//!    takes more than an equal share of it, or when it never sleeps. Contenders are the
//!    active domains by their weights, and one more: programs without Tidewall run there,
//!    too.
//! 4. *Bound.* While the thread is late, a domain may use no more than `level` times its
//!    weight. A domain that uses less is not bound (max-min fairness). The level is an
//!    equal share, or the mean of all active domains. While the thread is still behind,
//!    the level falls by a quarter with each look. It rises by an eighth with each look
//!    that finds the thread in time, and is forgotten when it binds no domain.
//! 5. *A domain pays for its drops first.* The rest of its share is for frames that pass,
//!    at least a quarter of it. So the frames of a flood come off the flooded domain's
//!    share.
//! 6. The level stays while a lower one gains little. If dropped frames alone keep the
//!    thread busy, passing fewer would help no neighbour.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Dropped frames that cost as much as one that passes to a pair, where it is copied once
/// more. This is an estimate; the sum of all charges is measured.
const PASSED: u64 = 3;
/// A fraction of time, one part in this many. A thread that sleeps for less is behind,
/// and one that waits longer for a processor is late. A domain that uses more is active,
/// and a lower level that gains more is worth it.
const PART: f64 = 16.0;
/// Part of a domain's time reserved for frames that pass, whatever its drops cost.
const PASSING: f64 = 0.25;

/// One application on the device.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Its number.
    pub application: u16,
    /// Common to all applications of one domain.
    pub domain: u64,
    /// The domain's weight.
    pub weight: u32,
    /// Its frames since the last look.
    pub frames: u64,
    /// Frames of these that passed to its pairs.
    pub passed: u64,
    /// How long its process ran on the threads' processors.
    pub own: Duration,
}

/// The period since the last look.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Length of the period.
    pub elapsed: Duration,
    /// Processor time of all threads that poll the device.
    pub ran: Duration,
    /// The longest time that one of them waited for a processor.
    pub waited: Duration,
    /// The longest time that one of them ran or waited.
    pub busy: Duration,
    /// Frames that belong to no application.
    pub others: u64,
    /// All private applications.
    pub loads: &'a [Load],
}

/// One application's charge and bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Its number.
    pub application: u16,
    /// Time that it is charged for this look.
    pub charged: Duration,
    /// Frames per second that may pass to its pairs; `None`: all.
    pub rate: Option<f64>,
}

/// Bounds and charges; see the module's documentation.
#[derive(Debug, Default)]
pub struct Budget {
    /// Time of the thread that a domain may use per second and unit of weight, s.
    level: Option<f64>,
    /// Cost of a dropped frame, s: smoothed.
    cost: Option<f64>,
    /// Domains that are bound.
    bound: HashSet<u64>,
    /// Time of a domain's processes per frame, s. While a domain is bound it only falls:
    /// a process that polls for few frames would seem to need all its time for them.
    own: HashMap<u64, f64>,
}

/// A domain is bound if it asks for this much more than its share, and is charged this
/// much more than the mean. A closed loop whose one request is dropped stands still for
/// its time-out.
const EXCEEDS: [f64; 2] = [9.0 / 8.0, 4.0 / 3.0];

/// The state of the thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lateness {
    None,
    /// It waits for a processor.
    Waits,
    /// It never sleeps: the ring loses frames.
    Behind,
}

/// A domain in one look. Times are parts of a second.
#[derive(Default)]
struct Domain {
    weight: f64,
    /// Frames per second.
    frames: f64,
    passed: f64,
    /// Processor time beside the threads'.
    own: f64,
    /// Its share of the threads' time.
    charged: f64,
    /// Its processes' time per frame.
    processing: f64,
    /// Additional cost of a frame when it passes.
    passing: f64,
}

impl Domain {
    /// Its use of processors.
    fn uses(&self) -> f64 {
        self.charged + self.own
    }

    /// True unless its use is negligible.
    fn is_active(&self) -> bool {
        self.uses() * PART >= 1.0
    }
}

/// All domains in one look.
struct Domains {
    each: HashMap<u64, Domain>,
    /// Cost of a dropped frame, s.
    cost: f64,
}

impl Domains {
    /// `own`: the time of a domain's processes per frame, given the measured one.
    fn new(look: &Look<'_>, cost: f64, own: impl Fn(u64, f64) -> f64) -> Self {
        let elapsed = look.elapsed.as_secs_f64();
        let mut each: HashMap<u64, Domain> = HashMap::new();
        for load in look.loads {
            let domain = each.entry(load.domain).or_default();
            domain.weight = f64::from(load.weight.max(1));
            domain.frames += load.frames as f64 / elapsed;
            domain.passed += load.passed.min(load.frames) as f64 / elapsed;
            domain.own += load.own.as_secs_f64() / elapsed;
        }
        let passing = (PASSED - 1) as f64 * cost;
        for (number, domain) in &mut each {
            domain.charged = domain.frames * cost + domain.passed * passing;
            domain.processing = own(*number, domain.own / domain.passed.max(1.0));
            domain.passing = passing + domain.processing;
        }
        Domains { each, cost }
    }

    fn own_times(&self) -> HashMap<u64, f64> {
        let each = self.each.iter();
        each.map(|(number, of)| (*number, of.processing)).collect()
    }

    /// A domain's use if all its frames passed.
    fn asks(&self, domain: &Domain) -> f64 {
        domain.frames * (self.cost + domain.passing)
    }

    /// The maximum per unit of weight.
    fn most(&self, of: impl Fn(&Domain) -> f64) -> f64 {
        let each = self.each.values().map(|it| of(it) / it.weight);
        each.fold(0.0, f64::max)
    }

    /// The mean use per unit of weight, of all domains that receive frames or of active
    /// ones.
    fn mean(&self, active: bool) -> f64 {
        let counted =
            (self.each.values()).filter(|it| it.frames > 0.0 && (!active || it.is_active()));
        mean(counted, Domain::uses)
    }

    /// The mean charge of active domains.
    fn mean_charge(&self) -> f64 {
        mean(self.each.values().filter(|it| it.is_active()), |it| {
            it.charged
        })
    }

    fn active(&self) -> usize {
        self.each.values().filter(|it| it.is_active()).count()
    }

    /// An equal share of a processor per unit of weight: of active domains, and of one
    /// more contender.
    fn equal_part(&self) -> f64 {
        let active = self.each.values().filter(|it| it.is_active());
        1.0 / (active.map(|it| it.weight).sum::<f64>() + 1.0)
    }
}

fn mean<'a>(domains: impl Iterator<Item = &'a Domain>, of: impl Fn(&Domain) -> f64) -> f64 {
    let add = |(sum, weights), it: &Domain| (sum + of(it), weights + it.weight);
    let (sum, weights) = domains.fold((0.0, 0.0), add);
    sum / f64::max(weights, 1.0)
}

impl Budget {
    /// Evaluates a look, and returns a share for each load, in their order.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Share> {
        let units = |load: &Load| {
            let passed = load.passed.min(load.frames);
            PASSED * passed + (load.frames - passed)
        };
        let all = look.loads.iter().map(units).sum::<u64>() + look.others;
        if all == 0 || look.elapsed.is_zero() {
            *self = Budget::default();
        }
        let ran = look.ran.as_secs_f64();
        let now = ran / all.max(1) as f64;
        let cost = self.cost.map_or(now, |cost| cost + (now - cost) / 4.0);
        self.cost = Some(cost);
        let domains = Domains::new(look, cost, |number, own| {
            let known = self
                .own
                .get(&number)
                .filter(|_| self.bound.contains(&number));
            known.map_or(own, |known| known.min(own))
        });
        self.own = domains.own_times();
        let part = look.elapsed.div_f64(PART);
        let takes = ran >= domains.equal_part() * look.elapsed.as_secs_f64();
        let lateness = match look.waited >= part && takes {
            _ if look.busy + part >= look.elapsed => Lateness::Behind,
            true => Lateness::Waits,
            false => Lateness::None,
        };
        self.adjust(lateness, &domains);
        let share = |load: &Load| Share {
            application: load.application,
            charged: Duration::from_secs_f64(now * units(load) as f64),
            rate: self.rate(load, &domains, look),
        };
        let shares: Vec<Share> = look.loads.iter().map(share).collect();
        let bound = shares.iter().zip(look.loads);
        let bound = bound.filter(|(share, _)| share.rate.is_some());
        self.bound = bound.map(|(_, load)| load.domain).collect();
        shares
    }

    fn adjust(&mut self, lateness: Lateness, domains: &Domains) {
        let gain: f64 = (domains.each.values())
            .map(|of| of.passed * of.passing)
            .sum();
        if domains.each.values().filter(|of| of.frames > 0.0).count() < 2 {
            // The only domain that receives frames has no neighbour.
            self.level = None;
            return;
        }
        let fair = match domains.active() {
            // The mean of a single domain would be its own use.
            0 | 1 => domains.equal_part(),
            _ => domains.mean(true).max(domains.equal_part()),
        };
        self.level = match lateness {
            Lateness::None => self.level.map(|level| level * 1.125),
            _ if gain * PART < 1.0 => self.level,
            Lateness::Waits => Some(fair),
            // However little of a processor the thread gets.
            Lateness::Behind => {
                let most = domains.most(Domain::uses);
                let level = self.level.unwrap_or(fair).min(fair).min(most);
                Some((level * 0.75).max(domains.mean(false)))
            }
        };
        let asked = domains.most(|of| domains.asks(of));
        self.level.take_if(|level| *level >= asked);
    }

    /// A bound domain's share; `None`: it is not bound.
    fn part(&self, number: u64, domains: &Domains) -> Option<f64> {
        let domain = domains.each.get(&number)?;
        let part = self.level? * domain.weight;
        let asks = domains.asks(domain);
        if self.bound.contains(&number) {
            return Some(part).filter(|part| asks > *part);
        }
        // The scheduler bounds its processes' running time.
        let [asking, charging] = EXCEEDS;
        let charges = domains.mean_charge() * domain.weight;
        let takes = domain.charged > charges * charging || domains.active() < 2;
        Some(part).filter(|part| takes && asks > part * asking)
    }

    /// Frames per second of an application that may pass.
    fn rate(&self, load: &Load, domains: &Domains, look: &Look<'_>) -> Option<f64> {
        let part = self.part(load.domain, domains)?;
        let domain = domains.each.get(&load.domain)?;
        let left = (part - domain.frames * domains.cost) / domain.passing;
        let least = PASSING * part / (domains.cost + domain.passing);
        let rate = left.max(least);
        // Within a domain in turn: an application that asks for less than an equal share
        // is not bound.
        let elapsed = look.elapsed.as_secs_f64();
        let siblings = look.loads.iter().filter(|of| of.domain == load.domain);
        let mut asked: Vec<f64> = siblings.map(|of| of.frames as f64 / elapsed).collect();
        asked.sort_by(f64::total_cmp);
        let (mut left, mut count) = (rate, asked.len() as f64);
        for frames in asked {
            if frames * count > left {
                break;
            }
            left -= frames;
            count -= 1.0;
        }
        let own = load.frames as f64 / elapsed;
        Some(left / count.max(1.0)).filter(|part| own > *part)
    }
}
