//! The programs beside traffic to other ports: SYNs, UDP, and nearly all that the link
//! carries. Those ports have no owner.
//!
//! The flood comes from the client's own processor. So it leaves the client only part of
//! its own capacity, whatever the server does: requests/s in a closed loop depend on the
//! client as much as on the server. A program is therefore judged by its answers to a
//! fixed rate. The client reaches that rate while it sends the same packets to an
//! interface without a receiver ([`Config::void`]). The rate is [`ASKED`] of that
//! client's capacity, and no more than [`ASKED`] of what the program serves without a
//! flood. A program that keeps that share of its own rate beside a flood answers all of
//! it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tidewall_load::{BlastSpec, LoadSpec, RateStep, SenderKind};

use super::super::{Experiment, Run, ratio};
use super::{Asked, OURS, installed, note_programs, origin, reduce, site};
use crate::bench::{Measured, blast, flood};
use crate::capacity::Capacity;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Curve, Plan, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, CLIENT, Config, VOID_INTERFACE};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-floods",
    paper: "beyond the papers",
    about: "the programs of `unmodified` beside SYNs, UDP and a blast to ports that nobody has",
    x: "flood, packets/s offered",
    y: "requests/s",
    config,
    busy: BusyTimeout::Millisecond,
    senders: &[
        "skb",
        "client on kernel sockets, epoll, an open loop and a closed one",
    ],
    measure,
    claims,
};

fn config() -> Config {
    Config {
        void: true,
        xdp_sink: true,
        ..Config::default()
    }
}

/// Ports without an owner.
const SYN_PORT: u16 = 81;
const UDP_PORT: u16 = 9;
/// Requested share, both of the program's own rate and of the client's capacity.
const ASKED: f64 = 0.8;
/// Share of it that is answered by a program that keeps [`ASKED`] of its own rate.
const ANSWERED: f64 = 0.95;
/// When a flood begins: the connections are established by then.
const FLOOD_AFTER: Duration = Duration::from_millis(40);
/// Warm-up and measured time in a quick run: a round has 120 loads. Segments lost at a
/// flood's beginning are retransmitted after 200 ms by the client's Linux; that must be
/// over by then.
const QUICK: (Duration, Duration) = (Duration::from_millis(280), Duration::from_millis(190));
const ASKED_RATE: &str = "asked/s";

/// The traffic beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flood {
    Syn,
    Udp,
    Blast,
}

impl Flood {
    const ALL: [Flood; 3] = [Flood::Syn, Flood::Udp, Flood::Blast];

    fn id(self) -> &'static str {
        match self {
            Flood::Syn => "syn",
            Flood::Udp => "udp",
            Flood::Blast => "blast",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Flood::Syn => "400,000 SYN/s at another port",
            Flood::Udp => "1.0 M/s UDP at another port",
            Flood::Blast => "a blast of 0.9 of bare's capacity at another port",
        }
    }

    /// Returns packets/s: no more than that share of the bed's capacity.
    fn rate(self, capacity: Capacity) -> u64 {
        let share = |most: f64| most * capacity.packets;
        let rate = match self {
            Flood::Syn => share(0.3).min(400_000.0),
            Flood::Udp => share(0.75).min(1_000_000.0),
            Flood::Blast => share(0.9),
        };
        rate.round() as u64
    }

    /// Adds the flood to a load.
    fn beside(self, load: LoadSpec, capacity: Capacity, to: To) -> LoadSpec {
        let mut packets = match self {
            Flood::Syn => flood(SenderKind::Skb, SYN_PORT, None),
            Flood::Udp | Flood::Blast => blast(SenderKind::Skb, UDP_PORT, None),
        };
        if to == To::Nobody {
            packets = BlastSpec {
                interface: Some(VOID_INTERFACE.to_owned()),
                // It has no other port.
                allow_any_interface: true,
                source: Some(IpAddr::V4(CLIENT.0)),
                // Forged addresses leave only by a veth. This many ports make the sender
                // rewrite each frame's source likewise.
                flows: packets.spoof.take().map_or(1, |_| 4096),
                ..packets
            };
        }
        LoadSpec {
            blast: Some(BlastSpec {
                rate: Some(1),
                steps: vec![RateStep {
                    after: FLOOD_AFTER,
                    rate: self.rate(capacity),
                }],
                ..packets
            }),
            ..load
        }
    }
}

/// Destination of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Server,
    Nobody,
}

/// How requests are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    Closed,
    Open,
}

/// Returns the setting of a curve.
fn setting(asked: Asked, flood: Flood, to: To, how: Loop) -> &'static str {
    macro_rules! settings {
        ($($asked:ident $name:literal),*) => {
            match (asked, how, to) {
                $(
                    (Asked::$asked, Loop::Closed, To::Server) => match flood {
                        Flood::Syn => concat!($name, " beside SYNs"),
                        Flood::Udp => concat!($name, " beside UDP"),
                        Flood::Blast => concat!($name, " beside a blast"),
                    },
                    (Asked::$asked, Loop::Closed, To::Nobody) => match flood {
                        Flood::Syn => concat!($name, ", SYNs to nobody"),
                        Flood::Udp => concat!($name, ", UDP to nobody"),
                        Flood::Blast => concat!($name, ", a blast to nobody"),
                    },
                    (Asked::$asked, Loop::Open, To::Server) => match flood {
                        Flood::Syn => concat!($name, " at a rate, beside SYNs"),
                        Flood::Udp => concat!($name, " at a rate, beside UDP"),
                        Flood::Blast => concat!($name, " at a rate, beside a blast"),
                    },
                    (Asked::$asked, Loop::Open, To::Nobody) => match flood {
                        Flood::Syn => concat!($name, " at a rate, SYNs to nobody"),
                        Flood::Udp => concat!($name, " at a rate, UDP to nobody"),
                        Flood::Blast => concat!($name, " at a rate, a blast to nobody"),
                    },
                )*
            }
        };
    }
    settings!(
        RedisGet "redis GET", RedisSet "redis SET", Memcached "memcached get",
        Unbound "unbound", Nginx "nginx", Haproxy "haproxy"
    )
}

/// Returns the figure of a system in a setting.
fn figure(series: &[Series], system: &str, setting: &str) -> Option<f64> {
    Some(find(series, system, Some(setting))?.points.first()?.y)
}

/// Returns the requests/s sent to a system beside a flood: [`ASKED`] of what it serves
/// without one, or of the client's capacity beside the same packets without a receiver.
fn pace(series: &[Series], system: System, asked: Asked, flood: Flood) -> Option<u64> {
    let own = figure(series, system.name(), asked.setting())?;
    let nobody = setting(asked, flood, To::Nobody, Loop::Closed);
    let client = figure(series, system.name(), nobody)?;
    Some(((ASKED * own.min(client)) as u64).max(1))
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (config, capacity) = run.steady_bed()?;
    let quick = run.options.quick;
    let site = site()?;
    let _origin = origin(run, &site)?;
    let installed = installed(run, &site);
    let load = |asked: Asked, rate| {
        let mut load = asked.load(config, rate);
        if quick {
            (load.warm_up, load.duration) = QUICK;
        }
        load
    };
    let curve =
        |system, asked: Asked, setting, load| asked.curve(system, &site, setting, vec![load]);
    // Only the mode that keeps most beside a flood, or all.
    let linux: &[System] = if quick {
        &[System::LinuxBusy]
    } else {
        &System::LINUX
    };
    let systems = [&[System::Run], linux].concat();
    let each = || {
        systems
            .iter()
            .copied()
            .flat_map(|system| installed.iter().map(move |&asked| (system, asked)))
    };

    let begun = Instant::now();
    let mut closed = Vec::new();
    for (system, asked) in each() {
        let alone = load(asked, None);
        closed.push(curve(system, asked, asked.setting(), alone.clone()));
        for flood in Flood::ALL {
            let name = setting(asked, flood, To::Nobody, Loop::Closed);
            let beside = flood.beside(alone.clone(), capacity, To::Nobody);
            closed.push(curve(system, asked, name, beside));
        }
    }
    let part = "unmodified-floods, what can be asked";
    let most = run.sweep_part(
        part,
        &closed,
        Plan::exactly(if quick { 1 } else { 3 }),
        reduce,
    )?;
    run.spent += begun.elapsed();

    let mut curves = Vec::new();
    let mut rates: BTreeMap<(System, &str), Vec<String>> = BTreeMap::new();
    for (system, asked) in each() {
        let alone = load(asked, None);
        curves.push(curve(system, asked, asked.setting(), alone.clone()));
        for flood in Flood::ALL {
            let mut add = |how, to, load: LoadSpec| {
                let beside = flood.beside(load, capacity, to);
                curves.push(curve(system, asked, setting(asked, flood, to, how), beside));
            };
            add(Loop::Closed, To::Server, alone.clone());
            if let Some(rate) = pace(&most, system, asked, flood) {
                add(Loop::Open, To::Server, load(asked, Some(rate)));
                add(Loop::Open, To::Nobody, load(asked, Some(rate)));
                let rates = rates.entry((system, asked.setting())).or_default();
                rates.push(format!("{rate} ({})", flood.id()));
            }
        }
    }
    run.series = run.sweep(&curves, run.options.within(5, 380), answered)?;
    note_programs(run);
    run.note(format!(
        "Floods: {} SYN/s, {} UDP/s, and a blast of {}/s, no more than 0.3, 0.75 and 0.9 of what \
         bare takes here, the same in all rounds: that much of the server's processor would bare \
         spend on them. They begin once the connections stand, from the client's thread.",
        Flood::Syn.rate(capacity),
        Flood::Udp.rate(capacity),
        Flood::Blast.rate(capacity)
    ));
    run.note(format!(
        "Asked are {ASKED} of what the program serves beside nothing, or of what the client can \
         ask while it sends the same packets to nobody, which costs it what sending costs: the \
         lower of the two, measured before the rounds. A query that is not answered within 100 ms \
         is given up, and its place free again."
    ));
    for ((system, what), rates) in rates {
        let (system, rates) = (system.name(), rates.join(", "));
        run.note(format!("{what}, {system}: requests/s asked: {rates}."));
    }
    Ok(())
}

/// Reduces a load to responses/s, and the requested rate.
fn answered(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let mut sample = reduce(curve, load, measured)?;
    let of_http = load.http.as_ref().and_then(|http| http.rate);
    let asked = of_http.or(load.ping.as_ref().and_then(|ping| ping.rate));
    if let Some(asked) = asked {
        sample.values.insert(ASKED_RATE.to_owned(), asked as f64);
    }
    Some(sample)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut reached = Vec::new();
    for asked in Asked::ALL {
        for flood in Flood::ALL {
            let of = |system, to, how| figure(series, system, setting(asked, flood, to, how));
            let answered = |system| {
                ratio(
                    of(system, To::Server, Loop::Open),
                    of(system, To::Nobody, Loop::Open),
                )
            };
            let kept = |system| {
                ratio(
                    of(system, To::Server, Loop::Closed),
                    figure(series, system, asked.setting()),
                )
            };
            let best = |figure: &dyn Fn(&'static str) -> Option<f64>| {
                let figures = System::LINUX.map(|system| figure(system.name()));
                figures.into_iter().flatten().max_by(f64::total_cmp)
            };
            let id = format!("{}-{}", asked.id(), flood.id());
            let beside = format!("{} beside {}", asked.setting(), flood.about());
            claims.push(Claim::at_least(
                id.clone(),
                format!(
                    "{beside}, at a fixed rate: answers by `tidewall run` over those beside the \
                     same packets to a void interface"
                ),
                answered(OURS),
                ANSWERED,
            ));
            claims.push(Claim::new(
                format!("{id}-linux"),
                format!(
                    "{beside}, at a fixed rate: the same of the best Linux mode, at its own rate"
                ),
                best(&answered),
            ));
            let closed =
                "a closed loop in the CPU time that the sender leaves its client: requests/s";
            claims.push(Claim::new(
                format!("{id}-raw"),
                format!("{beside}, {closed} by `tidewall run` over its own without a flood"),
                kept(OURS),
            ));
            claims.push(Claim::new(
                format!("{id}-linux-raw"),
                format!("{beside}, {closed} of the best Linux mode over its own without a flood"),
                best(&kept),
            ));
            let nobody = setting(asked, flood, To::Nobody, Loop::Open);
            let point = find(series, OURS, Some(nobody)).and_then(|it| it.points.first());
            let share = |point: &Point| Some(point.y / point.values.get(ASKED_RATE)?);
            reached.extend(point.and_then(share));
        }
    }
    claims.push(Claim::new(
        "reached",
        "beside packets to a void interface: smallest share of requests to `tidewall run` that were answered",
        reached.into_iter().min_by(f64::total_cmp),
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;

    /// Returns curves of one program beside one flood, Tidewall's and Linux's.
    fn series() -> Vec<Series> {
        let (asked, flood) = (Asked::RedisGet, Flood::Udp);
        let of = |system, to, how, y| {
            let name = Some(setting(asked, flood, to, how));
            let mut series = curve(system, name, &[(1e6, y)]);
            series.points[0].values.insert(ASKED_RATE.to_owned(), 4e4);
            series
        };
        vec![
            curve(OURS, Some(asked.setting()), &[(0.0, 1e5)]),
            of(OURS, To::Server, Loop::Closed, 5e4),
            of(OURS, To::Nobody, Loop::Closed, 5e4),
            of(OURS, To::Server, Loop::Open, 3e4),
            of(OURS, To::Nobody, Loop::Open, 3.9e4),
            curve("linux-busy", Some(asked.setting()), &[(0.0, 8e4)]),
            of("linux-busy", To::Server, Loop::Closed, 8e3),
            of("linux-busy", To::Server, Loop::Open, 0.0),
            of("linux-busy", To::Nobody, Loop::Open, 4e4),
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        assert_eq!(claims.len(), 6 * 3 * 4 + 1);
        for (id, measured, holds) in [
            ("redis-get-udp", Some(3.0 / 3.9), Some(false)),
            ("redis-get-udp-raw", Some(0.5), None),
            ("redis-get-udp-linux", Some(0.0), None),
            ("redis-get-udp-linux-raw", Some(0.1), None),
            ("reached", Some(3.9 / 4.0), None),
        ] {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            assert_eq!((claim.measured, claim.holds), (measured, holds), "{id}");
        }
    }

    #[test]
    fn no_more_is_asked_than_the_program_serves_and_its_client_can_ask() {
        let mut series = series();
        let pace = |series: &[Series], flood| pace(series, System::Run, Asked::RedisGet, flood);
        assert_eq!(pace(&series, Flood::Udp), Some(40_000));
        series[0].points[0].y = 4e4;
        assert_eq!(pace(&series, Flood::Udp), Some(32_000));
        assert_eq!(pace(&series, Flood::Syn), None);
    }

    #[test]
    fn floods_are_bounded_by_what_the_bed_takes() {
        let rates = Flood::ALL.map(|flood| flood.rate(MILLION));
        assert_eq!(rates, [300_000, 750_000, 900_000]);
        for asked in Asked::ALL {
            for flood in Flood::ALL {
                for to in [To::Server, To::Nobody] {
                    let load = asked.load(config(), Some(1_000));
                    flood.beside(load, MILLION, to).check().unwrap();
                }
            }
        }
    }
}
