//! Parts that RHIP's experiments share.
//!
//! The policies run in two *places*. In the softirq, the paper's arrangement: the device
//! wakes a thread that stands for the softirq. It handles Bp frames per round ahead of
//! the application and leaves the rest to a thread behind it. In the receiver: the
//! application's thread polls for itself, as Tidewall does everywhere else. The
//! application makes 200 float multiplications per packet; the largest Bp is 3000 (10 ×
//! netdev_budget). The load is flat out, or as much as an emulated link carries, which as
//! in the paper limits only large packets: a share of `bare`'s capacity here.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall::tuning::PolicyKind;
use tidewall_load::{BlastSpec, LoadSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::Options;
use crate::bench::{Measured, Watching, blast, load};
use crate::capacity::Capacity;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::{Control, System};
use crate::testbed::Config;
use crate::verdict::{over, over_best};

/// Series of policies in the softirq.
pub(super) const SOFTIRQ: &str = "in the softirq";
/// Series of policies in the receiver.
pub(super) const RECEIVER: &str = "in the receiver";

/// Series of policies on the kernel's own path.
pub(super) const KERNEL: &str = "in the kernel";
/// The note on them for readers.
pub(super) const KERNEL_NOTE: &str = "In the kernel: the policy samples the socket's buffer every \
     millisecond from the client's processor and sets gro_flush_timeout (at least 10 µs) and \
     netdev_budget (Bp/10). The kernel takes at least its weight of 64 a poll, whatever Bp. \
     on-off is not there: the kernel has no budget of zero.";

/// Port of the service that discards.
pub(super) const PORT: u16 = 9;
/// Float multiplications per packet.
pub(super) const WORK: u32 = 200;
/// Frames that a socket holds.
pub(super) const RECEIVE_LIMIT: u32 = 1024;
/// Rate of the emulated link for the largest packets, as a share of `bare`'s capacity.
const LINK: f64 = 0.3;
/// Bytes of IP in these.
const LARGEST: u32 = 1500;
/// Bytes of a packet on an Ethernet besides the IP packet: header 14, check sequence 4,
/// preamble 8, gap 12 (IEEE 802.3).
const FRAMING: u32 = 38;
/// Headers of IPv4 and UDP.
pub(super) const HEADERS: u32 = 28;
/// From this share on the sender sends as fast as it can.
const FLAT_OUT: f64 = 0.9;

/// The policies that the paper compares with RHIP.
pub(super) const OTHERS: &[PolicyKind] = POLICIES.split_at(4).0;
/// All but `adaptive`.
pub(super) const BUT_ADAPTIVE: &[PolicyKind] = POLICIES.split_at(5).0;
/// All that are compared.
pub(super) const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Napi,
    PolicyKind::OnOff,
    PolicyKind::Aic,
    PolicyKind::QaPolling,
    PolicyKind::Rhip,
    PolicyKind::Adaptive,
];

/// The place in which a policy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Softirq,
    Receiver,
}

impl Place {
    pub(super) const BOTH: [Place; 2] = [Place::Softirq, Place::Receiver];

    /// Returns the setting of its series.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Place::Softirq => SOFTIRQ,
            Place::Receiver => RECEIVER,
        }
    }

    pub(super) fn system(self) -> System {
        match self {
            Place::Softirq => System::Softirq,
            Place::Receiver => System::Tidewall,
        }
    }

    /// Returns `name` for the softirq, `name-receiver` for the receiver.
    pub(super) fn claim(self, name: &str) -> String {
        match self {
            Place::Softirq => name.to_owned(),
            Place::Receiver => format!("{name}-receiver"),
        }
    }
}

/// Returns a policy without bounds of its own.
pub(super) fn control(policy: PolicyKind) -> Control {
    Control {
        policy,
        budget: None,
        interval_us: None,
        receive_limit: Some(RECEIVE_LIMIT),
    }
}

/// Returns the packets/s, of `size` bytes of IP, that the emulated link carries; `None`
/// if the sender is slower.
pub(super) fn link_rate(capacity: Capacity, size: u32) -> Option<u64> {
    let share = LINK * f64::from(LARGEST + FRAMING) / f64::from(size + FRAMING);
    capacity.rate(Some(share)).filter(|_| share < FLAT_OUT)
}

/// Returns a blast of packets of `size` bytes of IP at the service that discards.
pub(super) fn blast_of(size: u32, rate: Option<u64>) -> BlastSpec {
    BlastSpec {
        // Sizes are constants from 46 to 1500.
        payload: size.saturating_sub(HEADERS) as u16,
        ..blast(SenderKind::Skb, PORT, rate)
    }
}

/// Returns that blast as a load: long enough for policies to adapt first.
pub(super) fn load_of(config: Config, quick: bool, size: u32, rate: Option<u64>) -> LoadSpec {
    let (warm_up, duration) = if quick { (250, 400) } else { (400, 700) };
    LoadSpec {
        blast: Some(blast_of(size, rate)),
        warm_up: Duration::from_millis(warm_up),
        duration: Duration::from_millis(duration),
        ..load(config)
    }
}

/// Returns the service that discards.
pub(super) fn discard(work: u32) -> ServiceSpec {
    ServiceSpec {
        kind: Kind::Discard,
        port: PORT,
        work,
    }
}

/// Returns a curve of an unmodified system, with the paper's application.
pub(super) fn curve(system: System, setting: Option<&'static str>) -> Curve {
    Curve {
        system,
        setting,
        // The boundaries of the measured window are known to 50 ms.
        watching: Watching {
            every_ms: 50,
            trace: false,
            profile: false,
        },
        services: vec![discard(WORK)],
        loads: Vec::new(),
        ..Curve::default()
    }
}

/// Returns a curve of a policy in a place.
pub(super) fn policy(place: Place, policy: PolicyKind) -> Curve {
    Curve {
        control: Some(control(policy)),
        ..curve(place.system(), Some(place.setting()))
    }
}

/// Returns a curve of a policy that governs the kernel's path.
fn kernel(kind: PolicyKind) -> Curve {
    Curve {
        control: Some(control(kind)),
        ..curve(System::LinuxTimer, Some(KERNEL))
    }
}

/// Returns curves of all policies in both places, and of Linux as an expert configures
/// it.
pub(super) fn contestants(options: Options) -> Vec<Curve> {
    let mut curves = Vec::new();
    for place in Place::BOTH {
        if place == Place::Softirq && !options.quick {
            curves.push(policy(place, PolicyKind::Interrupt));
        }
        curves.extend(POLICIES.map(|kind| policy(place, kind)));
    }
    curves.push(curve(System::LinuxBusy, None));
    if options.quick {
        curves.push(kernel(PolicyKind::Rhip));
    } else {
        curves.push(curve(System::LinuxTimer, None));
        curves.push(curve(System::LinuxRps, None));
        curves.extend(
            POLICIES
                .into_iter()
                .filter(|kind| *kind != PolicyKind::OnOff)
                .map(kernel),
        );
    }
    curves
}

/// Returns the numbers of a load on the service that discards; the experiment sets `x`.
pub(super) fn sample(x: f64, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = measured.outcome.report.blast.as_ref()?;
    // The blast's service is the last one.
    let delivered = measured.outcome.delivered.last().copied()?;
    if report.measured.sent == 0 {
        return None;
    }
    let size = load
        .blast
        .as_ref()
        .map_or(0.0, |blast| f64::from(blast.payload) + f64::from(HEADERS));
    let window = &measured.window;
    let mut values = BTreeMap::from([
        ("offered/s".to_owned(), report.rate),
        ("goodput Mbit/s".to_owned(), delivered * size * 8.0 / 1e6),
        (OVERFLOW.to_owned(), window.overflow),
    ]);
    let mut add = |name: &str, value: f64| {
        values.insert(name.to_owned(), value);
    };
    if let Some(usage) = &measured.outcome.usage {
        add(IDLE, 100.0 * usage.left());
        add("idle processor %", 100.0 * usage.idle);
        add("sleeps/s", usage.sleeps);
    }
    if let Some(control) = &window.control {
        add("Bp", control.budget.into());
        add("T µs", control.interrupt_interval as f64 / 1e3);
        add("interrupts/s", window.interrupts);
        add("rounds/s", window.rounds);
        add("exhausted/s", window.exhausted);
    }
    Some(Sample {
        x,
        y: delivered,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

/// Packets/s lost to a full socket buffer, in the measured window.
pub(super) const OVERFLOW: &str = "overflow/s";
/// Share of the receiver's processor that the service leaves idle, in the same window.
pub(super) const IDLE: &str = "idle CPU %";

/// Returns another figure of the same points as separate curves.
pub(super) fn figure(series: &[Series], value: &str, y: &str) -> Vec<Series> {
    let drawn = series.iter().map(|series| {
        let setting = match &series.setting {
            Some(setting) => format!("{y}, {setting}"),
            None => y.to_owned(),
        };
        series.redrawn(value, &setting, y, "")
    });
    drawn.filter(|series| !series.points.is_empty()).collect()
}

/// Returns the point at exactly this position on the axis.
pub(super) fn at(series: &Series, x: f64) -> Option<&Point> {
    series
        .points
        .iter()
        .find(|point| (point.x - x).abs() <= 1e-6 * x.abs())
}

/// Claims that `system` in `setting` does as well as the best of `others` at every point
/// that `keep` selects. [`over_best`] judges it over the rounds in which all of them were
/// measured; without such rounds, the smallest ratio of the figures does.
pub(super) fn at_least_the_best(
    claim: impl FnOnce(Option<f64>) -> Claim,
    series: &[Series],
    setting: &str,
    (system, others): (PolicyKind, &[PolicyKind]),
    keep: impl Fn(&Point) -> bool,
) -> Claim {
    let claim = claim(least_ratio(series, setting, system, others, &keep));
    let points = rounds(series, setting, (system, others), keep);
    match points.as_deref().and_then(over_best) {
        Some(ratios) => claim.with_points(&ratios.points, &ratios.mean),
        None => claim,
    }
}

/// Figures of `system` and of `others`, by point and by round.
type Rounds = Vec<Vec<(f64, Vec<f64>)>>;

/// Returns those of the rounds in which all of them were measured at all points.
fn rounds(
    series: &[Series],
    setting: &str,
    (system, others): (PolicyKind, &[PolicyKind]),
    keep: impl Fn(&Point) -> bool,
) -> Option<Rounds> {
    let of = |kind: &PolicyKind| find(series, kind.name(), Some(setting));
    let own = of(&system)?;
    let others = others.iter().map(of).collect::<Option<Vec<&Series>>>()?;
    let mut points = Vec::new();
    for point in own.points.iter().filter(|point| keep(point)) {
        let beside = others.iter().map(|other| at(other, point.x));
        points.push((point, beside.collect::<Option<Vec<&Point>>>()?));
    }
    let in_round = |point: &Point, round: u32| {
        let sample = point.samples.iter().find(|sample| sample.round == round)?;
        Some(sample.y)
    };
    let row = |(own, others): &(&Point, Vec<&Point>), round: u32| {
        let others = others.iter().map(|other| in_round(other, round));
        Some((in_round(own, round)?, others.collect::<Option<Vec<f64>>>()?))
    };
    let numbers = own.points.first()?.samples.iter().map(|it| it.round);
    let all = numbers.filter_map(|round| {
        let rows = points.iter().map(|point| row(point, round));
        rows.collect::<Option<Vec<_>>>()
    });
    let mut by_point = vec![Vec::new(); points.len()];
    for rows in all {
        for (point, row) in by_point.iter_mut().zip(rows) {
            point.push(row);
        }
    }
    Some(by_point)
}

/// Returns the smallest ratio, over the points of `system` in `setting`, of its result to
/// the best of `others` there. `None` unless all were measured at all points.
fn least_ratio(
    series: &[Series],
    setting: &str,
    system: PolicyKind,
    others: &[PolicyKind],
    keep: impl Fn(&Point) -> bool,
) -> Option<f64> {
    let own = find(series, system.name(), Some(setting))?;
    let mut least: Option<f64> = None;
    for point in own.points.iter().filter(|point| keep(point)) {
        let mut best: Option<f64> = None;
        for other in others {
            let other = find(series, other.name(), Some(setting))?;
            let figure = at(other, point.x)?.y;
            best = Some(best.map_or(figure, |best| best.max(figure)));
        }
        let ratio = over(point.y, best?);
        least = Some(least.map_or(ratio, |least| least.min(ratio)));
    }
    least
}

/// Returns the largest figure over the points of `system` in `setting`; `None` if one is
/// missing.
pub(super) fn largest(
    series: &[Series],
    setting: &str,
    system: PolicyKind,
    value: &str,
) -> Option<f64> {
    let own = find(series, system.name(), Some(setting))?;
    own.points
        .iter()
        .map(|point| point.values.get(value).copied())
        .collect::<Option<Vec<f64>>>()?
        .into_iter()
        .max_by(f64::total_cmp)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;

    /// Returns a curve with one further figure at every point.
    pub(crate) fn with(mut series: Series, name: &str, figures: &[f64]) -> Series {
        for (point, figure) in series.points.iter_mut().zip(figures) {
            point.values.insert(name.to_owned(), *figure);
        }
        series
    }

    #[test]
    fn the_link_limits_large_packets_only() {
        assert_eq!(link_rate(MILLION, 46), None);
        assert_eq!(link_rate(MILLION, 128), None);
        assert_eq!(link_rate(MILLION, 1500), Some(300_000));
        assert_eq!(link_rate(MILLION, 512), Some(838_909));
        assert_eq!(blast_of(46, None).payload, 18);
        assert_eq!(blast_of(1500, None).payload, 1472);
    }

    #[test]
    fn points_of_one_system_become_one_curve() {
        let merged = crate::result::merge(vec![
            curve("rhip", Some(SOFTIRQ), &[(1.0, 10.0)]),
            curve("napi", Some(SOFTIRQ), &[(1.0, 11.0)]),
            curve("rhip", Some(SOFTIRQ), &[(2.0, 20.0)]),
            curve("rhip", Some(RECEIVER), &[(2.0, 30.0)]),
        ]);
        assert_eq!(merged.len(), 3);
        assert_eq!(merged[0].points.len(), 2);
        assert_eq!(at(&merged[0], 2.0).unwrap().y, 20.0);
        assert!(at(&merged[0], 3.0).is_none());
    }

    #[test]
    fn a_figure_becomes_a_curve() {
        let series = [
            with(
                curve("rhip", Some(SOFTIRQ), &[(1.0, 10.0), (2.0, 5.0)]),
                IDLE,
                &[40.0],
            ),
            curve("napi", None, &[(1.0, 1.0)]),
        ];
        let idle = figure(&series, IDLE, "idle CPU, %");
        assert_eq!(idle.len(), 1, "what has no such figure has no such curve");
        assert_eq!(
            idle[0].setting.as_deref(),
            Some("idle CPU, %, in the softirq")
        );
        assert_eq!((idle[0].points.len(), idle[0].points[0].y), (1, 40.0));
    }

    #[test]
    fn the_worst_point_counts() {
        let mut series = vec![
            curve("rhip", Some(SOFTIRQ), &[(1.0, 10.0), (2.0, 9.0)]),
            curve("napi", Some(SOFTIRQ), &[(1.0, 5.0), (2.0, 10.0)]),
            curve("aic", Some(SOFTIRQ), &[(1.0, 8.0), (2.0, 1.0)]),
        ];
        let others = [PolicyKind::Napi, PolicyKind::Aic];
        let least = |series: &[Series], keep: fn(&Point) -> bool| {
            least_ratio(series, SOFTIRQ, PolicyKind::Rhip, &others, keep)
        };
        assert_eq!(least(&series, |_| true), Some(0.9));
        assert_eq!(least(&series, |point| point.x < 2.0), Some(1.25));
        series[2].points.pop();
        assert_eq!(least(&series, |_| true), None, "one was not measured");
        assert_eq!(least(&[], |_| true), None);
        series[1].points[0].y = 0.0;
        series[2].points[0].y = 0.0;
        series[0].points[0].y = 0.0;
        assert_eq!(least(&series, |point| point.x < 2.0), Some(1.0));
    }

    #[test]
    fn the_largest_figure_needs_all() {
        let full = [with(
            curve("rhip", Some(SOFTIRQ), &[(1.0, 1.0), (2.0, 1.0)]),
            OVERFLOW,
            &[0.0, 3.0],
        )];
        let of = |series: &[Series]| largest(series, SOFTIRQ, PolicyKind::Rhip, OVERFLOW);
        assert_eq!(of(&full), Some(3.0));
        let part = [with(full[0].clone(), OVERFLOW, &[])];
        assert_eq!(of(&part), Some(3.0));
        assert_eq!(of(&[curve("rhip", Some(SOFTIRQ), &[(1.0, 1.0)])]), None);
    }

    #[test]
    fn loads_keep_to_their_bounds() {
        for quick in [false, true] {
            for size in [46, 64, 1500] {
                let load = load_of(Config::default(), quick, size, link_rate(MILLION, size));
                assert!(load.check().is_ok());
                // The safeguards are off no longer.
                assert!(load.warm_up + load.duration <= crate::testbed::RealTime::LOAD_MAX);
            }
        }
    }
}
