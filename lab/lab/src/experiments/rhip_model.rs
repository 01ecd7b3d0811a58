//! RHIP, section III: the goodput that the model predicts against the measured
//! one, over budgets and rates that cover its three modes, in the softirq.
//!
//! The costs that the model needs are measured first, as in `tidewall tune`
//! ([`crate::tune`]). The model decides the mode of a point; for comparison, the point's
//! values include its rounds and interrupts.

use tidewall::tuning::PolicyKind;
use tidewall_load::LoadSpec;
use tidewall_receive::control::Setting;
use tidewall_receive::control::model::{Load, Machine, Room};

use super::rhip::{self, Place};
use super::{Experiment, Run, USUAL};
use crate::bench::Measured;
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, merge};
use crate::sweep::{Curve, Sample};
use crate::system::Control;
use crate::tune;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-model",
    paper: "RHIP, section III",
    about: "the goodput that the paper's model predicts against the measured, in its three modes",
    x: "Bp, frames a round",
    y: "delivered packets/s",
    measure,
    claims,
    ..USUAL
};

const SIZE: u32 = 64;
const BUDGETS: [u32; 9] = [2, 8, 16, 32, 64, 128, 300, 1000, 3000];
const BUDGETS_QUICK: [u32; 4] = [8, 64, 300, 3000];
/// Shares of `bare`'s capacity (`None`: as fast as possible) and the setting's name.
const SHARES: [(Option<f64>, &str); 6] = [
    (Some(0.05), "0.05 of bare"),
    (Some(0.1), "0.1 of bare"),
    (Some(0.2), "0.2 of bare"),
    (Some(0.35), "0.35 of bare"),
    (Some(0.5), "0.5 of bare"),
    (None, FLAT_OUT),
];
const SHARES_QUICK: [usize; 4] = [1, 2, 4, 5];
const FLAT_OUT: &str = "flat out";
/// The model's curves.
const MODEL: &str = "model";
/// Frames that a veth's ring holds (VETH_RING_SIZE).
const RING: u32 = 256;

const OFFERED: &str = "offered/s";
const BURST: &str = "burst";
const PREDICTED: &str = "predicted/s";
const MODE: &str = "mode";

fn curves((config, capacity): Bed, quick: bool) -> Vec<Curve> {
    let budgets: &[u32] = if quick { &BUDGETS_QUICK } else { &BUDGETS };
    SHARES
        .iter()
        .enumerate()
        .filter(|(number, _)| !quick || SHARES_QUICK.contains(number))
        .flat_map(|(_, &(share, setting))| {
            budgets.iter().map(move |&budget| Curve {
                setting: Some(setting),
                control: Some(Control {
                    budget: Some(budget),
                    interval_us: Some(0),
                    ..rhip::control(PolicyKind::Napi)
                }),
                loads: vec![rhip::load_of(config, quick, SIZE, capacity.rate(share))],
                ..rhip::policy(Place::Softirq, PolicyKind::Napi)
            })
        })
        .collect()
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let payload = (SIZE - rhip::HEADERS) as u16;
    let quick = run.options.quick;
    let window = tune::WINDOW * if quick { 1 } else { 3 };
    let costs = tune::measure(run.bench, rhip::WORK, payload, None, window, run.progress)?;
    let curves = curves(run.bed()?, quick);
    let mut series = merge(run.sweep(&curves, run.options.within(5, 38), reduce)?);
    let room = Room {
        buffer: rhip::RECEIVE_LIMIT,
        ring: RING,
    };
    let predicted: Vec<Series> = series
        .iter_mut()
        .map(|series| predict(series, costs.machine, room))
        .collect();
    series.extend(predicted);
    run.series = series;
    run.note(describe(&costs.machine));
    run.note(
        "The model knows nothing of the about 5 % of a processor that the kernel's fair server \
         leaves an application where it cannot be turned off.",
    );
    Ok(())
}

/// Describes the costs.
fn describe(machine: &Machine) -> String {
    format!(
        "Measured here: Tp {:?}, Ta {:?}, Tc(a) {:?}, Tc(k) {:?}, an interrupt {:?}, the \
         application's quantum {:?}.",
        machine.protocol,
        machine.application,
        machine.switch_application,
        machine.switch_poller,
        machine.interrupt,
        machine.application_quantum,
    )
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let mut sample = rhip::sample(curve.control?.budget?.into(), load, measured)?;
    let burst = measured.outcome.report.blast.as_ref()?.burst;
    sample.values.insert(BURST.to_owned(), burst.into());
    Some(sample)
}

/// Writes the model's predictions into the points of a measured curve, and returns them
/// as a curve.
fn predict(series: &mut Series, machine: Machine, room: Room) -> Series {
    let mut points = Vec::new();
    for point in &mut series.points {
        let value = |name: &str| point.values.get(name).copied();
        let (Some(rate), Some(burst)) = (value(OFFERED), value(BURST)) else {
            continue;
        };
        let prediction = machine.predict(
            Load {
                rate,
                burst: burst as u32,
            },
            Setting {
                budget: point.x as u32,
                interrupt_interval: std::time::Duration::ZERO,
            },
            room,
        );
        let (y, mode) = (prediction.goodput, f64::from(prediction.mode.number()));
        point.values.insert(PREDICTED.to_owned(), y);
        point.values.insert(MODE.to_owned(), mode);
        points.push(Point {
            values: [
                (MODE.to_owned(), mode),
                ("idle CPU %".to_owned(), 100.0 * prediction.idle),
                ("interrupts/s".to_owned(), prediction.interrupts),
            ]
            .into(),
            ..Point::exactly(point.x, y, point.runs)
        });
    }
    Series {
        system: MODEL.to_owned(),
        setting: series.setting.clone(),
        points,
        ..Series::default()
    }
}

/// Returns the largest |measured/predicted − 1| of the points that the model puts in this
/// mode; `None` if there are none.
fn error(series: &[Series], mode: f64) -> Option<f64> {
    series
        .iter()
        .filter(|series| series.system == PolicyKind::Napi.name())
        .flat_map(|series| &series.points)
        .filter(|point| point.values.get(MODE) == Some(&mode))
        .filter_map(|point| {
            let predicted = *point.values.get(PREDICTED)?;
            Some((point.y / predicted.max(1.0) - 1.0).abs())
        })
        .max_by(f64::total_cmp)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    [
        (1.0, "mode-1", "the ring never empties (Tp ≥ 1/λ)"),
        (
            2.0,
            "mode-2",
            "the budget is used up before the ring is empty",
        ),
        (
            3.0,
            "mode-3",
            "a round empties the ring and the device interrupts",
        ),
    ]
    .map(|(mode, id, text)| {
        Claim::at_most(
            id,
            format!("largest |measured/predicted goodput − 1| where {text}"),
            error(series, mode),
            0.15,
        )
    })
    .into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    fn machine() -> Machine {
        Machine {
            protocol: Duration::from_nanos(900),
            application: Duration::from_nanos(600),
            switch_application: Duration::from_nanos(500),
            switch_poller: Duration::from_nanos(1500),
            interrupt: Duration::from_micros(4),
            application_quantum: Duration::from_millis(3),
        }
    }

    /// Returns curves that match the model's predictions, times `factor`.
    fn series(factor: f64) -> Vec<Series> {
        let room = Room {
            buffer: 1024,
            ring: RING,
        };
        let mut all = Vec::new();
        for (setting, rate) in [
            ("0.05 of bare", 5e4),
            ("0.5 of bare", 7e5),
            (FLAT_OUT, 1.3e6),
        ] {
            let mut measured = curve("napi", Some(setting), &[(8.0, 0.0), (3000.0, 0.0)]);
            for point in &mut measured.points {
                point.values.insert(OFFERED.into(), rate);
                point.values.insert(BURST.into(), 5.0);
            }
            let model = predict(&mut measured, machine(), room);
            for (point, predicted) in measured.points.iter_mut().zip(&model.points) {
                point.y = predicted.y * factor;
            }
            all.extend([measured, model]);
        }
        all
    }

    #[test]
    fn the_three_modes_are_covered_and_judged() {
        let claims_of = |factor| claims(&series(factor));
        for claim in claims_of(1.0) {
            assert_eq!(claim.measured, Some(0.0), "{}", claim.id);
            assert!(claim.holds == Some(true));
        }
        for claim in claims_of(1.1) {
            assert!((claim.measured.unwrap() - 0.1).abs() < 1e-9, "{claim:?}");
        }
        assert!(
            claims_of(0.8)
                .iter()
                .all(|claim| claim.holds == Some(false))
        );
    }

    #[test]
    fn a_mode_without_points_is_not_shown() {
        let mut series = series(1.0);
        series.retain(|series| series.setting.as_deref() != Some(FLAT_OUT));
        let claims = claims(&series);
        assert_eq!((claims[0].measured, claims[0].holds), (None, Some(false)));
        assert!(claims[2].holds == Some(true));
    }

    #[test]
    fn loads_are_valid() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick);
            assert!(
                curves
                    .iter()
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
            assert!(curves.iter().any(|curve| curve.setting == Some(FLAT_OUT)));
        }
    }
}
