//! The capacity of `bare` on this machine: the unit of offered loads.

use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tidewall_load::{BlastSpec, LoadSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use crate::bench::{Bench, Setup, Watching, blast, load};
use crate::progress::Progress;
use crate::sweep::median;
use crate::system::System;
use crate::testbed::Config;
use crate::verdict::is_disturbed;

/// Port of the blasted service.
const PORT: u16 = 9;
/// Number of blasts, and the measured time of each.
const RUNS: usize = 5;
const TIME: Duration = Duration::from_millis(200);

/// Packets per second, of 14 bytes, that `bare` delivered when offered all that the link
/// carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// The median.
    pub packets: f64,
    /// The lowest of the runs.
    pub low: f64,
    /// The highest of the runs.
    pub high: f64,
    /// Number of runs.
    pub runs: u32,
}

/// A test bed, and `bare`'s capacity there.
pub(crate) type Bed = (Config, Capacity);

/// The capacity of `bare` when first measured, and since.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    /// The unit of offered loads.
    pub(crate) capacity: Capacity,
    /// The current capacity of `bare` divided by that one; not 1 if the machine has
    /// changed its speed.
    pub(crate) speed: f64,
    /// Loads stay as they are whatever `speed` is.
    pub(crate) steady: bool,
    /// Runs at this speed.
    probes: Vec<f64>,
}

impl Probed {
    /// Measures it.
    pub(crate) fn measure(bench: &mut Bench, progress: &mut dyn Progress) -> anyhow::Result<Self> {
        let probes = runs(bench, RUNS)?;
        let capacity = Capacity::of(&probes).context("bare delivered nothing")?;
        progress.line(&format!(
            "bare takes {:.0} packets/s here",
            capacity.packets
        ));
        Ok(Probed {
            capacity,
            speed: 1.0,
            steady: false,
            probes,
        })
    }

    /// Returns the factor by which to scale loads.
    pub(crate) fn loads(&self) -> f64 {
        if self.steady { 1.0 } else { self.speed }
    }

    /// Runs `bare` once more. Returns false if its result was far lower or higher than
    /// usual: something else had the processor, or the machine's speed has changed.
    pub(crate) fn probe(&mut self, bench: &mut Bench) -> anyhow::Result<bool> {
        let probe = runs(bench, 1)?.into_iter().sum();
        if self.is_usual(probe) {
            return Ok(true);
        }
        let probes = runs(bench, RUNS)?;
        self.follow(probes);
        Ok(false)
    }

    /// Accepts a probe, unless it is far from the earlier ones.
    fn is_usual(&mut self, probe: f64) -> bool {
        let usual = !is_disturbed(probe, &self.probes);
        if usual {
            self.probes.push(probe);
        }
        usual
    }

    /// Uses these probes from now on if they, too, are far from the earlier ones.
    fn follow(&mut self, probes: Vec<f64>) {
        let now = Capacity::of(&probes);
        if let Some(now) = now.filter(|now| is_disturbed(now.packets, &self.probes)) {
            self.speed = now.packets / self.capacity.packets;
            self.probes = probes;
        }
    }
}

/// Returns what `bare` delivered in `count` runs, packets/s.
fn runs(bench: &mut Bench, count: usize) -> anyhow::Result<Vec<f64>> {
    let setup = Setup {
        system: System::Bare,
        services: vec![ServiceSpec {
            kind: Kind::Discard,
            port: PORT,
            work: 0,
        }],
        ..Setup::default()
    };
    let load = LoadSpec {
        blast: Some(blast(SenderKind::Skb, PORT, None)),
        warm_up: TIME / 4,
        duration: TIME,
        ..load(bench.testbed.config())
    };
    let watching = Watching {
        every_ms: 50,
        ..Watching::default()
    };
    let mut session = bench.serve(&setup)?;
    (0..count)
        .map(|_| {
            let measured = session.measure(&load, watching)?;
            Ok(measured.outcome.delivered.first().copied().unwrap_or(0.0))
        })
        .collect()
}

impl Capacity {
    /// Summarizes runs; `None` if nothing was delivered.
    fn of(delivered: &[f64]) -> Option<Self> {
        Some(Capacity {
            packets: median(delivered).filter(|packets| *packets >= 1.0)?,
            low: delivered.iter().copied().min_by(f64::total_cmp)?,
            high: delivered.iter().copied().max_by(f64::total_cmp)?,
            runs: delivered.len() as u32,
        })
    }

    /// Returns this share of the capacity, packets/s; `None`, as fast as possible, stays
    /// so.
    pub(crate) fn rate(&self, share: Option<f64>) -> Option<u64> {
        share.map(|share| (share * self.packets).round() as u64)
    }

    /// Returns a blast of such a share: none for 0.
    pub(crate) fn blast(
        &self,
        kind: SenderKind,
        port: u16,
        share: Option<f64>,
    ) -> Option<BlastSpec> {
        (share != Some(0.0)).then(|| blast(kind, port, self.rate(share)))
    }

    /// Returns the share that a load offers, to three decimals; `None` for a load without
    /// limit.
    pub(crate) fn share(&self, load: &LoadSpec) -> Option<f64> {
        let Some(blast) = &load.blast else {
            return Some(0.0);
        };
        let asked = blast.steps.last().map(|step| step.rate).or(blast.rate)?;
        Some((asked as f64 / self.packets * 1e3).round() / 1e3)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine on which `bare` delivers a million packets/s.
    pub(crate) const MILLION: Capacity = Capacity {
        packets: 1e6,
        low: 1e6,
        high: 1e6,
        runs: 5,
    };

    #[test]
    fn it_is_the_median_of_its_runs() {
        let capacity = Capacity::of(&[9e5, 1.1e6, 1e6]).unwrap();
        assert_eq!(
            (capacity.packets, capacity.low, capacity.high, capacity.runs),
            (1e6, 9e5, 1.1e6, 3)
        );
        assert_eq!(Capacity::of(&[]), None);
        assert_eq!(Capacity::of(&[0.0, 0.0, 5.0]), None);
    }

    #[test]
    fn loads_follow_a_machine_that_changes_its_speed() {
        let mut probed = Probed {
            capacity: MILLION,
            speed: 1.0,
            steady: false,
            probes: vec![1e6; 5],
        };
        assert!(probed.is_usual(0.95e6));
        // A moment's disturbance changes nothing.
        assert!(!probed.is_usual(0.5e6));
        probed.follow(vec![0.98e6; 5]);
        assert_eq!(probed.speed, 1.0);
        // Another speed is the usual one from then on.
        assert!(!probed.is_usual(1.7e6));
        probed.follow(vec![1.75e6; 5]);
        assert_eq!((probed.speed, probed.capacity), (1.75, MILLION));
        assert_eq!(probed.loads(), 1.75);
        probed.steady = true;
        assert_eq!(probed.loads(), 1.0);
        assert!(probed.is_usual(1.7e6) && !probed.is_usual(1e6));
    }

    #[test]
    fn shares_survive_their_rates() {
        for packets in [1e6, 1_234_567.0, 98_765.5] {
            let capacity = Capacity { packets, ..MILLION };
            for share in [0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1] {
                let load = LoadSpec {
                    blast: capacity.blast(SenderKind::Skb, PORT, Some(share)),
                    ..load(Config::default())
                };
                assert_eq!(load.blast.is_none(), share == 0.0);
                assert_eq!(capacity.share(&load), Some(share));
            }
        }
    }

    #[test]
    fn all_that_the_link_carries_is_no_share() {
        assert_eq!(MILLION.rate(None), None);
        let blast = MILLION.blast(SenderKind::Skb, PORT, None);
        let load = LoadSpec {
            blast,
            ..load(Config::default())
        };
        assert_eq!(MILLION.share(&load), None);
    }
}
