//! LRP, Figure 3: delivered against offered rate, 14-byte UDP packets that the
//! receiver discards.
//!
//! Every system receives on one processor; the sender has the other. The sweep uses the
//! skb sender, which builds packets on the sender's time and so flatters the kernel.
//! `frame sender` repeats the highest load as a network card would deliver it. `200 float
//! multiplications` gives the application work for each packet.

use tidewall_load::{LoadSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, RING_LOSS, Run, USUAL, best_linux, ratio, ring_losses, scaled, waited};
use crate::bench::{Measured, load};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Plan, Sample};
use crate::system::System;
use crate::testbed::Config;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-overload",
    paper: "LRP, Figure 3",
    about: "delivered against offered, 14-byte UDP; maximum loss-free rate",
    x: "offered packets/s",
    y: "delivered packets/s",
    senders: &["skb (AF_XDP transmission, packets built on the sender's CPU)"],
    config: steerable,
    measure,
    claims,
    ..USUAL
};

/// Returns a test bed on which `ni-lrp` has one queue more than the others.
pub(super) fn steerable() -> Config {
    Config {
        steerable: true,
        ..Config::default()
    }
}

const PORT: u16 = 9;
const WORK: &str = "200 float multiplications a packet";
const WORK_MULTIPLICATIONS: u32 = 200;
const FRAMES: &str = "frame sender";
/// Share that may be lost at a rate that counts as lossless. The sampled windows of
/// sender and receiver do not match to the packet.
const LOSS: f64 = 0.01;
/// From this share of `bare`'s capacity on, a working application must do better than
/// under Linux.
const WORK_FROM: f64 = 0.3;
/// Up to this share nothing may be lost in the ring.
const UNSATURATED: f64 = 0.9;

/// The sweep, shares of `bare`'s capacity; `None`: as fast as possible.
const FULL: [Option<f64>; 10] = [
    Some(0.05),
    Some(0.1),
    Some(0.2),
    Some(0.3),
    Some(0.5),
    Some(0.7),
    Some(0.9),
    Some(1.0),
    Some(1.1),
    None,
];
const QUICK: [Option<f64>; 3] = [Some(0.5), Some(0.9), None];
const WORK_FULL: [Option<f64>; 6] = [Some(0.1), Some(0.3), Some(0.5), Some(0.7), Some(1.0), None];
const WORK_QUICK: [Option<f64>; 2] = [Some(0.5), None];

/// An idle neighbour: the port of a lone socket is not moved.
const NEIGHBOUR: u16 = 7;

/// Systems of the whole experiment.
const SYSTEMS: [System; 10] = [
    System::Bare,
    System::Tidewall,
    System::NiLrp,
    System::Generic,
    System::SoftLrp,
    System::EarlyDemux,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
];

/// Returns the loads of one curve.
fn loads(bed: Bed, kind: SenderKind, shares: &[Option<f64>]) -> Vec<LoadSpec> {
    let (config, capacity) = bed;
    let load = |&share| LoadSpec {
        blast: capacity.blast(kind, PORT, share),
        ..load(config)
    };
    shares.iter().map(load).collect()
}

/// Makes a curve's blasts arrive on the queue that the device's rules select.
pub(super) fn steer(curve: &mut Curve) {
    let loads = curve.loads.iter_mut();
    for blast in loads.filter_map(|load| load.blast.as_mut()) {
        blast.steered = true;
    }
}

/// A curve of the plain sweep.
pub(crate) fn curve(system: System, bed: Bed, shares: &[Option<f64>]) -> Curve {
    let mut services = vec![ServiceSpec {
        kind: Kind::Discard,
        port: PORT,
        work: 0,
    }];
    if system == System::NiLrp {
        services.push(ServiceSpec {
            kind: Kind::Echo,
            port: NEIGHBOUR,
            work: 0,
        });
    }
    let mut curve = Curve {
        system,
        services,
        loads: loads(bed, SenderKind::Skb, shares),
        ..Curve::default()
    };
    if system == System::NiLrp {
        steer(&mut curve);
    }
    curve
}

fn curves(bed: Bed, quick: bool) -> Vec<Curve> {
    let (plain, work): (&[_], &[_]) = if quick {
        (&QUICK, &WORK_QUICK)
    } else {
        (&FULL, &WORK_FULL)
    };
    let working = [&[System::Bare, System::Tidewall][..], &System::LINUX].concat();
    let mut curves = Vec::new();
    for system in SYSTEMS {
        // The claims use only the peak and the end of these.
        let rest = system.needs_real_time() || system == System::Generic;
        let shares = if quick && rest { &WORK_QUICK } else { plain };
        curves.push(curve(system, bed, shares));
        if working.contains(&system) {
            curves.push(Curve {
                setting: Some(WORK),
                services: vec![ServiceSpec {
                    kind: Kind::Discard,
                    port: PORT,
                    work: WORK_MULTIPLICATIONS,
                }],
                loads: loads(bed, SenderKind::Skb, work),
                ..curve(system, bed, &[])
            });
        }
        // Without XDP and GRO a veth accepts no frames, so there is no RPS here.
        let framed = !matches!(system, System::LinuxRps | System::Generic | System::NiLrp);
        if framed && !(quick && system.needs_real_time()) {
            curves.push(Curve {
                setting: Some(FRAMES),
                loads: loads(bed, SenderKind::Frame, &[None]),
                ..curve(system, bed, &[])
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let curves = curves(bed, run.options.quick);
    run.senders
        .push("frame (XDP live frames, no packet buffers, as from a network card)");
    finish(run, &curves, run.options.plan(5))
}

/// Measures `curves` and creates the result.
pub(crate) fn finish(run: &mut Run<'_>, curves: &[Curve], plan: Plan) -> anyhow::Result<()> {
    run.series = run.sweep(curves, plan, reduce)?;
    run.series.iter_mut().for_each(summarize);
    run.reference = reference(&run.series);
    run.note(
        "Loads are shares of what bare takes here. Offered is what the sender put on the link, the device ring's losses included; unless a \
         setting says otherwise with the skb sender, which flatters the kernel.",
    );
    run.note(
        "Linux frees the buffers of delivered packets on the processor that made them (deferred \
         freeing), here the sender's: a second way in which this sender relieves the kernel's \
         receiver.",
    );
    Ok(())
}

fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let blast = measured.outcome.report.blast.as_ref()?;
    let delivered = measured.outcome.delivered.first().copied()?;
    // Nothing sent is a failed set-up; nothing delivered is livelock.
    (blast.measured.sent > 0).then(|| Sample {
        x: blast.rate,
        y: delivered,
        drops: measured.drops.clone(),
        values: [waited(measured)].into(),
        ..Sample::default()
    })
}

fn summarize(series: &mut Series) {
    let figures = [("peak", series.peak()), ("mlfrr", series.mlfrr(LOSS))];
    for (name, figure) in figures {
        if let Some(figure) = figure {
            series.summary.insert(name.to_owned(), figure);
        }
    }
}

/// Returns the points stated in the paper's text, scaled so that its BSD peak lies at
/// ours.
fn reference(series: &[Series]) -> Vec<Series> {
    let Some(peak) = find(series, "bsd", None).and_then(Series::peak) else {
        return Vec::new();
    };
    let scale = peak / 7_380.0;
    // A bsd that livelocked from the first point on has no peak to scale by.
    if scale < 1.0 {
        return Vec::new();
    }
    // Druschel and Banga 1996, section "Experimental Results", Figure 3.
    let given = [
        ("ni-lrp", [(11_163.0, 11_163.0), (19_000.0, 11_163.0)]),
        ("soft-lrp", [(9_760.0, 9_760.0), (20_000.0, 6_494.0)]),
        ("bsd", [(7_400.0, 7_380.0), (20_000.0, 0.0)]),
    ];
    scaled(
        &format!("the paper's, × {scale:.1}"),
        &given,
        (scale, scale),
    )
}

pub(crate) fn claims(series: &[Series]) -> Vec<Claim> {
    let last = |system: &str, setting| find(series, system, setting)?.last().map(|point| point.y);
    let peak = |system: &str, setting| find(series, system, setting)?.peak();
    let at_most = |system: &str| last(system, None);
    let loss_free = |system: &str| find(series, system, None)?.mlfrr(LOSS);
    // Nothing delivered counts as one packet, or there would be no ratio.
    let over = |system: &str, setting| {
        ratio(
            last("tidewall", setting),
            last(system, setting).map(|rate| rate.max(1.0)),
        )
    };
    let against = |system: &str| over(system, None);
    let with_frames = |system: &str| over(system, Some(FRAMES));
    let steps = [
        ("ni-lrp", "tidewall"),
        ("tidewall", "soft-lrp"),
        ("soft-lrp", "early-demux"),
        ("early-demux", "bsd"),
    ];
    let order = steps
        .iter()
        .map(|(better, worse)| ratio(at_most(better), at_most(worse).map(|rate| rate.max(1.0))))
        .collect::<Option<Vec<f64>>>()
        .and_then(|ratios| ratios.into_iter().min_by(f64::total_cmp));
    vec![
        Claim::at_least(
            "flat",
            "tidewall delivers its peak at the highest offered rate (fraction of its own \
             peak)",
            ratio(at_most("tidewall"), peak("tidewall", None)),
            0.95,
        )
        .paper(1.0),
        Claim::at_least(
            "ni-flat",
            "ni-lrp delivers its peak at the highest offered rate (fraction of its own peak)",
            ratio(at_most("ni-lrp"), peak("ni-lrp", None)),
            0.95,
        )
        .paper(1.0),
        Claim::at_least(
            "peak-vs-linux",
            "tidewall's peak over that of the best Linux mode",
            // Over 4.4BSD, in the paper.
            ratio(
                peak("tidewall", None),
                best_linux(series, None, Series::peak),
            ),
            1.8,
        )
        .paper(1.51),
        Claim::at_least(
            "vs-busy",
            "at the highest offered rate: tidewall over Linux, busy-polled",
            against("linux-busy"),
            3.0,
        ),
        Claim::at_least(
            "vs-rps",
            "at the highest offered rate: tidewall over Linux, packet steering",
            against("linux-rps"),
            20.0,
        ),
        Claim::at_least(
            "vs-timer",
            "at the highest offered rate: tidewall over Linux, timer-driven NAPI",
            against("linux-timer"),
            50.0,
        ),
        Claim::at_least(
            "generic-flat",
            "by generic XDP, tidewall delivers its peak at the highest offered rate \
             (fraction of its own peak)",
            ratio(at_most("tidewall-generic"), peak("tidewall-generic", None)),
            0.9,
        ),
        Claim::at_least(
            "generic-vs-native",
            "at the highest offered rate: tidewall by generic XDP over tidewall by native \
             XDP",
            ratio(at_most("tidewall-generic"), at_most("tidewall")),
            0.3,
        ),
        Claim::at_least(
            "work-flat",
            "with 200 float multiplications a packet: tidewall at the highest offered \
             rate, fraction of its peak",
            ratio(last("tidewall", Some(WORK)), peak("tidewall", Some(WORK))),
            0.95,
        ),
        Claim::above(
            "work-above-linux",
            "with that work, from 0.3 of bare's capacity up: tidewall over the best Linux mode, \
             smallest ratio of the points where not both deliver everything",
            work_above(series),
            1.0,
        ),
        Claim::at_least(
            "frames-vs-busy",
            "frames as from a network card, as fast as they go: tidewall over Linux, \
             busy-polled",
            with_frames("linux-busy"),
            3.0,
        ),
        Claim::at_least(
            "frames-vs-timer",
            "the same: tidewall over Linux, timer-driven NAPI",
            with_frames("linux-timer"),
            50.0,
        ),
        Claim::at_least(
            "order",
            "at the highest offered rate ni-lrp ≥ tidewall ≥ soft-lrp ≥ early-demux ≥ bsd \
             (smallest ratio)",
            order,
            1.0,
        )
        .paper(1.0),
        Claim::new(
            "soft-peak",
            "soft-lrp's peak over bsd's",
            ratio(peak("soft-lrp", None), peak("bsd", None)),
        )
        .paper(1.32),
        Claim::new(
            "soft-end",
            "soft-lrp at the highest offered rate over bsd's peak (the paper: within 12 %)",
            ratio(at_most("soft-lrp"), peak("bsd", None)),
        )
        .paper(0.88),
        Claim::new(
            "soft-loss-free",
            "soft-lrp's maximum loss-free rate over bsd's",
            ratio(loss_free("soft-lrp"), loss_free("bsd")),
        )
        .paper(1.44),
        Claim::new(
            "early-demux",
            "at the highest offered rate: early-demux over soft-lrp (the paper: 0.40 to 0.65)",
            ratio(at_most("early-demux"), at_most("soft-lrp")),
        )
        .paper(0.5),
        Claim::at_most(
            "bsd-collapses",
            "bsd at the highest offered rate, fraction of its peak (the paper: near \
             livelock)",
            ratio(at_most("bsd"), peak("bsd", None)),
            0.1,
        )
        .paper(0.0),
        Claim::at_least(
            "vs-bare",
            "at the highest offered rate: tidewall over bare, the limit of this bed",
            over("bare", None),
            0.85,
        ),
        Claim::at_most(
            "ring-losses",
            "tidewall up to 0.9 of bare's capacity, where bare loses none: lost in the \
             device's rings, largest share of what was offered",
            ring_losses(series, &[None], UNSATURATED),
            RING_LOSS,
        ),
    ]
}

/// Compares by position, since the highest rate differs between systems.
fn work_above(series: &[Series]) -> Option<f64> {
    let ours = find(series, "tidewall", Some(WORK))?;
    let mut worst: Option<f64> = None;
    for (place, point) in ours.points.iter().enumerate() {
        let last = place + 1 == ours.points.len();
        let theirs = best_linux(series, Some(WORK), |series| {
            let point = match point.share {
                Some(share) if !last => series.offered(share),
                _ => series.last(),
            };
            point.map(|point| point.y)
        })?;
        let all = |delivered: f64| delivered >= (1.0 - LOSS) * point.x;
        let light = point.share.is_some_and(|share| share < WORK_FROM);
        if light || (all(point.y) && all(theirs)) {
            continue;
        }
        let ratio = point.y / theirs.max(1.0);
        worst = Some(worst.map_or(ratio, |worst| worst.min(ratio)));
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::{all_hold, curve};
    use crate::testbed::Config;

    /// Returns figures like those of the prototypes.
    fn series() -> Vec<Series> {
        let rates = [4e5, 7e5, 1.5e6];
        let plain = |system, delivered: [f64; 3]| {
            let points: Vec<_> = rates.into_iter().zip(delivered).collect();
            let mut curve = curve(system, None, &points);
            curve.points[0].share = Some(0.3);
            curve.points[1].share = Some(0.5);
            curve
        };
        let work = |system, delivered: [f64; 3]| {
            let points: Vec<_> = [3e5, 7e5, 1.5e6].into_iter().zip(delivered).collect();
            let mut curve = curve(system, Some(WORK), &points);
            curve.points[0].share = Some(0.3);
            curve.points[1].share = Some(0.7);
            curve
        };
        vec![
            plain("tidewall", [4e5, 7e5, 1.3e6]),
            plain("soft-lrp", [4e5, 7e5, 9e5]),
            plain("early-demux", [4e5, 6e5, 5e5]),
            plain("bsd", [4e5, 4.5e5, 5e3]),
            plain("linux-rps", [3.9e5, 5.6e5, 5.5e3]),
            plain("linux-timer", [3.9e5, 6.7e5, 0.0]),
            plain("linux-busy", [4e5, 4.4e5, 4.3e5]),
            plain("tidewall-generic", [4e5, 6e5, 7e5]),
            work("tidewall", [3e5, 6.8e5, 9.3e5]),
            work("linux-rps", [2.999e5, 3.3e5, 7e3]),
            plain("bare", [4e5, 7e5, 1.4e6]),
            curve("tidewall", Some(FRAMES), &[(2e6, 1.2e6)]),
            curve("linux-busy", Some(FRAMES), &[(2e6, 3e5)]),
            curve("linux-timer", Some(FRAMES), &[(2e6, 2e3)]),
            plain("ni-lrp", [4e5, 7e5, 1.35e6]),
        ]
    }

    fn claim(series: &[Series], id: &str) -> Claim {
        claims(series)
            .into_iter()
            .find(|claim| claim.id == id)
            .unwrap()
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let mut series = series();
        // Above 0.9 the ring may overflow.
        for (point, lost) in [(0, 100.0), (1, 350.0), (2, 2e5)] {
            series[0].points[point]
                .drops
                .insert("device ring".into(), lost);
        }
        let expected = [
            ("flat", 1.0),
            ("ni-flat", 1.0),
            ("peak-vs-linux", 1.3e6 / 6.7e5),
            ("vs-busy", 1.3e6 / 4.3e5),
            ("vs-rps", 1.3e6 / 5.5e3),
            // Nothing delivered counts as one packet, or there would be no ratio.
            ("vs-timer", 1.3e6),
            ("generic-flat", 1.0),
            ("generic-vs-native", 7e5 / 1.3e6),
            ("work-flat", 1.0),
            // At 300,000/s both deliver everything, which shows nothing.
            ("work-above-linux", 6.8e5 / 3.3e5),
            ("frames-vs-busy", 1.2e6 / 3e5),
            ("frames-vs-timer", 1.2e6 / 2e3),
            ("order", 1.35 / 1.3),
            ("soft-peak", 2.0),
            ("soft-end", 2.0),
            ("soft-loss-free", 7.0 / 4.0),
            ("early-demux", 5.0 / 9.0),
            ("bsd-collapses", 5e3 / 4.5e5),
            ("vs-bare", 1.3 / 1.4),
            ("ring-losses", 0.0005),
        ];
        let claims = claims(&series);
        all_hold(&claims, &expected);
    }

    #[test]
    fn a_collapse_fails_its_claim() {
        let mut series = series();
        series[0].points[2].y = 6e5;
        assert!(claim(&series, "flat").holds == Some(false));
        assert!(claim(&series, "order").holds == Some(false));
        series[9].points[1].y = 7e5;
        assert!(claim(&series, "work-above-linux").holds == Some(false));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let mut series = series();
        series.retain(|series| series.system != "soft-lrp");
        let order = claim(&series, "order");
        assert!(order.holds == Some(false) && order.measured.is_none());
        assert!(claim(&series, "flat").holds == Some(true));
    }

    #[test]
    fn the_papers_points_are_scaled_to_our_bsd() {
        let reference = reference(&series());
        let bsd = find(&reference, "bsd", reference[0].setting.as_deref()).unwrap();
        assert!((bsd.points[0].y - 4.5e5).abs() < 1.0);
        assert_eq!(bsd.points[1].y, 0.0);
        let ni = &reference[0].points;
        assert!((ni[0].y / bsd.points[0].y - 1.5126).abs() < 1e-3);
        assert!(super::reference(&[]).is_empty());
    }

    #[test]
    fn a_sweep_ends_at_full_speed_and_quick_keeps_all_systems() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick);
            for system in SYSTEMS {
                assert!(
                    curves
                        .iter()
                        .any(|c| c.system == system && c.setting.is_none())
                );
            }
            for curve in &curves {
                let last = curve.loads.last().unwrap();
                assert_eq!(last.blast.as_ref().unwrap().rate, None);
                assert!(curve.loads.iter().all(|load| load.check().is_ok()));
            }
        }
    }
}
