//! Banga and Mogul, Figure 6 and Tables 1 and 2: the use of the proxy's processor:
//! waiting (select and its like), numbering descriptors, everything else, idle.
//!
//! `perf` samples the processor, including the kernel's work on it. The paper's DCPI did
//! the same.

use tidewall_load::LoadSpec;
use tidewall_service::counters::Times;

use super::select::{
    CLASSICAL, CLASSICAL_NAME, COLD, CONNECTIONS, Contestant, EPOLL, IDLE, LINEAR, LINUX_EPOLL,
    LINUX_SELECT, LOOP, RATE, SELECT, SELECT_NAME, SELECTOR, SMALL, Servers, capacity, describe,
    redrawn, reduce, sweeps,
};
use super::select_static::{REALISTIC_SMALL, SENDERS, rising};
use super::{Experiment, Run, USUAL, ratio};
use crate::bench::Measured;
use crate::profile::{self, Profile};
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::testbed::Config;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "select-cpu",
    paper: "select, Figure 6",
    about: "where the proxy's processor goes: select, allocator, others, idle",
    x: "requests/s",
    y: AXIS,
    senders: &SENDERS,
    measure,
    claims,
    ..USUAL
};

/// Multiplications per request, like Squid's own work in the paper.
const WORK: u32 = 20_000;

/// The paper's parts, and the names of their panels.
const WAITING: &str = "select";
const ALLOCATOR: &str = "allocator";
const OTHERS: &str = "others";
const PARTS: [(&str, &str); 4] = [
    (WAITING, "select (epoll, selector)"),
    (ALLOCATOR, "allocator of descriptors"),
    (OTHERS, "others"),
    (IDLE, "idle"),
];
const AXIS: &str = "% of the server's processor";

/// Rates, as shares of what the selector serves. The claims are judged at saturation,
/// which is last, and the only point when quick: reading the samples takes seconds.
const QUICK: [f64; 0] = [];
const FULL: [f64; 4] = [0.1, 0.3, 0.5, 0.7];

/// Returns the part of the paper's profile to which a function belongs.
fn part(function: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
    // Allocating and freeing descriptors; looking an open file up is not part of it,
    // neither there nor here.
    let numbering = [
        "descriptor::bitmap",
        "descriptor..bitmap",
        "descriptor6bitmap",
        "10descriptor6bitmap",
        "comparators::linear",
        "comparators..linear",
        "11comparators6linear",
        "descriptor::numbers",
        "descriptor..numbers",
        "10descriptor7numbers",
        "Table<T>::allocate",
        "alloc_fd",
        "get_unused_fd",
        "find_next_fd",
        "find_next_zero_bit",
        "put_unused_fd",
        "fd_install",
    ];
    // The crate of readiness has them, too.
    let table = [
        "readiness::descriptor::",
        "readiness..descriptor..",
        "readiness10descriptor",
    ];
    let waiting = [
        "readiness",
        "wait_queue",
        "classical_select",
        "select_host",
        // A socket's check whether it is ready.
        "TcpStream::look",
        "Inner::events",
        "State::events",
        "Connection>::writable",
        "Connection>::readable",
        "do_select",
        "core_sys_select",
        "sys_select",
        "sys_pselect",
        "set_fd_set",
        "get_fd_set",
        "poll_select_finish",
        "poll_freewait",
        "__pollwait",
        "pollwake",
        "poll_initwait",
        "tcp_poll",
        "sock_poll",
        "ep_",
        "epoll",
        "eventpoll",
    ];
    if has(&numbering) {
        ALLOCATOR
    } else if has(&waiting) && !has(&table) {
        WAITING
    } else {
        OTHERS
    }
}

/// Returns the same from the event loop's own counts: `idle` is a percentage.
fn counted(seconds: f64, times: &Times, idle: f64) -> [(&'static str, f64); 3] {
    let share = |nanoseconds: u64| nanoseconds as f64 / 1e7 / seconds.max(1e-9);
    let (waiting, opening) = (share(times.waiting), share(times.opening));
    let others = (100.0 - idle - waiting - opening).max(0.0);
    [(WAITING, waiting), (ALLOCATOR, opening), (OTHERS, others)]
}

/// Returns percentages of the processor's time.
fn shares(profile: &Profile) -> Option<[(&'static str, f64); 4]> {
    let total = profile.total();
    if total == 0 {
        return None;
    }
    let share = |samples: u64| 100.0 * samples as f64 / total as f64;
    let of = |name| share(profile.of(|function| part(function) == name));
    Some([
        (WAITING, of(WAITING)),
        (ALLOCATOR, of(ALLOCATOR)),
        (OTHERS, of(OTHERS)),
        (IDLE, share(profile.idle)),
    ])
}

fn contestants(quick: bool, servers: &Servers) -> Vec<Contestant> {
    let mut all = vec![
        CLASSICAL,
        LINEAR,
        SELECT,
        SELECTOR,
        LINUX_SELECT,
        LINUX_EPOLL,
    ];
    if !quick {
        all.push(EPOLL);
    }
    if servers.has(Contestant::Program) {
        all.push(Contestant::Program);
    }
    all
}

fn curves(
    config: Config,
    servers: &Servers,
    quick: bool,
    capacity: f64,
    profile: bool,
) -> Vec<Curve> {
    let fractions: &[f64] = if quick { &QUICK } else { &FULL };
    let rates: Vec<f64> = fractions.iter().map(|part| part * capacity).collect();
    contestants(quick, servers)
        .into_iter()
        .map(|contestant| {
            let what = (SMALL, COLD, REALISTIC_SMALL);
            let mut curve = rising(config, servers, contestant, what, &rates);
            curve.watching.profile = profile;
            if let Some(tcp) = &mut curve.tcp {
                tcp.timed = !profile;
            }
            curve
        })
        .collect()
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let servers = Servers::proxies(WORK)?;
    let _origin = servers.origin(run.bench)?;
    let sampling = profile::is_there(config.server_cpu);
    let capacity = capacity(run, &servers)?;
    let quick = run.options.quick;
    let curves = curves(config, &servers, quick, capacity, sampling.is_ok());
    let swept = sweeps(run, &[(curves, if quick { 1 } else { 3 })], reduce_shares)?;
    for (value, panel) in PARTS {
        let drawn = swept
            .iter()
            .map(|series| redrawn(series, value, panel, AXIS));
        run.series
            .extend(drawn.filter(|series| !series.points.is_empty()));
    }
    run.note(match &sampling {
        Ok(()) => "Samples of the clock on the server's processor (perf record -e cpu-clock), without those \
                   of processes that have no part in the experiment."
            .to_owned(),
        Err(why) => format!(
            "perf cannot sample here ({why}): select is the thread's own time in the calls that wait, on \
             Tidewall with the protocol that they run; the allocator is its time in accept and connect, with \
             the rest of these calls; idle is the kernel's account. Programs are not taken apart."
        ),
    });
    run.note(format!(
        "A forwarding proxy beside {COLD} cold connections, as select-proxy, with {WORK} multiplications a \
         request. Rates are parts of {capacity:.0} requests/s; the last point of each curve is a closed \
         loop of {CONNECTIONS} clients."
    ));
    run.described = Some(describe(&servers));
    Ok(())
}

fn reduce_shares(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let mut sample = reduce(curve, load, measured)?;
    sample.x = sample.values.get(RATE).copied()?;
    let idle = sample.values.get(IDLE).copied()?;
    let shares = match (measured.profile.as_ref().and_then(shares), &measured.times) {
        (Some(shares), _) => shares.to_vec(),
        (None, Some((seconds, times))) => counted(*seconds, times, idle).to_vec(),
        (None, None) => vec![(OTHERS, 100.0 - idle)],
    };
    for (name, share) in shares {
        sample.values.insert(name.to_owned(), share);
    }
    Some(sample)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at_saturation = |system: &str, part: &str| {
        let (_, panel) = PARTS.iter().find(|(name, _)| *name == part)?;
        let last = find(series, system, Some(panel))?.last()?;
        last.values.contains_key(LOOP).then_some(last.y)
    };
    vec![
        Claim::at_most(
            "select-share",
            "750 cold connections, saturation: processor time of the new select over \
             the classical one's (the paper: 11 % over 22 %)",
            ratio(
                at_saturation(SELECT_NAME, WAITING),
                at_saturation(CLASSICAL_NAME, WAITING),
            ),
            0.5,
        )
        .paper(0.5),
        Claim::at_most(
            "allocator-share",
            "the same: percentage of the processor's time in the new allocator (the \
             paper: virtually none)",
            at_saturation(SELECT_NAME, ALLOCATOR),
            2.0,
        )
        .paper(0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_follow_from_the_curves() {
        let mut series = [
            curve(
                CLASSICAL_NAME,
                Some(PARTS[0].1),
                &[(1e3, 50.0), (4e3, 60.0)],
            ),
            curve(SELECT_NAME, Some(PARTS[0].1), &[(1e3, 5.0), (9e3, 9.0)]),
            curve(SELECT_NAME, Some(PARTS[1].1), &[(1e3, 0.2), (9e3, 0.4)]),
        ];
        let unsaturated = super::claims(&series);
        assert!(unsaturated.iter().all(|claim| claim.measured.is_none()));
        for series in &mut series {
            let last = series.points.last_mut().unwrap();
            last.values.insert(LOOP.into(), 8.0);
        }
        let claims = claims(&series);
        assert_eq!(claims[0].measured, Some(0.15));
        assert_eq!(claims[1].measured, Some(0.4));
        assert!(claims.iter().all(|claim| claim.holds == Some(true)));
    }

    #[test]
    fn functions_are_distinguished() {
        for (function, expected) in [
            ("tidewall_readiness::select::ThreadState::select", WAITING),
            (
                "<tidewall_service::select_host::SelectHost<C> as StreamHost>::wait",
                WAITING,
            ),
            (
                "tidewall_readiness::comparators::linear::Linear::first_free",
                ALLOCATOR,
            ),
            (
                "tidewall_readiness::descriptor::table::Table<T>::get",
                OTHERS,
            ),
            ("do_select", WAITING),
            ("ep_send_events", WAITING),
            ("alloc_fd", ALLOCATOR),
            ("tcp_v4_rcv", OTHERS),
            ("tidewall_service::work::multiply", OTHERS),
        ] {
            assert_eq!(part(function), expected, "{function}");
        }
    }

    #[test]
    fn shares_are_of_what_belongs_to_the_experiment() {
        let mut profile = Profile {
            idle: 20,
            others: 1_000,
            ..Profile::default()
        };
        for (function, samples) in [("do_select", 30), ("alloc_fd", 10), ("memcpy", 40)] {
            profile.functions.insert(function.to_owned(), samples);
        }
        let shares = shares(&profile).unwrap();
        assert_eq!(
            shares,
            [
                (WAITING, 30.0),
                (ALLOCATOR, 10.0),
                (OTHERS, 40.0),
                (IDLE, 20.0)
            ]
        );
        assert!(super::shares(&Profile::default()).is_none());
    }

    #[test]
    fn without_perf_the_calls_are_counted() {
        let times = Times {
            waiting: 300_000_000,
            opening: 50_000_000,
            total: 800_000_000,
        };
        let shares = counted(1.0, &times, 20.0);
        assert_eq!(shares, [(WAITING, 30.0), (ALLOCATOR, 5.0), (OTHERS, 45.0)]);
        let busy = counted(1.0, &times, 90.0);
        assert_eq!(busy[2], (OTHERS, 0.0));
    }

    #[test]
    fn every_load_is_valid() {
        let servers = Servers::proxies(WORK).unwrap();
        for quick in [false, true] {
            let curves = curves(Config::default(), &servers, quick, 10_000.0, true);
            for curve in &curves {
                assert!(curve.watching.profile);
                assert!(!curve.tcp.as_ref().unwrap().timed, "perf costs less");
                for load in &curve.loads {
                    load.check().unwrap();
                    assert_eq!(load.idle.as_ref().unwrap().connections, COLD);
                }
            }
            for name in [CLASSICAL_NAME, SELECT_NAME] {
                assert!(curves.iter().any(|curve| curve.name() == name));
            }
        }
    }
}
