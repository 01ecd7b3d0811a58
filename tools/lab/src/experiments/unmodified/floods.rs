//! The programs beside what comes to other ports: SYNs, UDP, and nearly all that the link
//! carries. Nobody has those ports.
//!
//! The flood comes from the client's own thread, which costs the client a part of what it can
//! ask; so it is sent once more to a link that leads nowhere ([`Config::sink`]), which shows
//! what is left of the client.

use tidewall_load::{LoadSpec, SenderKind};

use super::super::tcp::later;
use super::super::{Experiment, Run, ratio};
use super::{Asked, OURS, installed, note_programs, origin, reduce, site};
use crate::bench::{blast, flood};
use crate::capacity::Capacity;
use crate::result::{Claim, Series, find};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config, SINK_INTERFACE};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-floods",
    paper: "beyond the papers",
    about: "the programs of `unmodified` beside SYNs, UDP and a blast to ports that nobody has",
    x: "flood, packets/s offered",
    y: "requests/s",
    config,
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["skb", "client on kernel sockets, epoll, a closed loop"],
    measure,
    claims,
};

fn config() -> Config {
    Config {
        sink: true,
        xdp_sink: true,
        ..Config::default()
    }
}

/// Ports that nobody has.
const SYN_PORT: u16 = 81;
const UDP_PORT: u16 = 9;
/// What is left of the program's own rate.
const KEPT: f64 = 0.8;

/// What comes beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Packets/s: no more than that share of what the bed takes.
    fn rate(self, capacity: Capacity) -> u64 {
        let share = |most: f64| most * capacity.packets;
        let rate = match self {
            Flood::Syn => share(0.3).min(400_000.0),
            Flood::Udp => share(0.75).min(1_000_000.0),
            Flood::Blast => share(0.9),
        };
        rate.round() as u64
    }

    /// It beside a load, on `interface` in place of the server's where one is named.
    fn beside(self, load: LoadSpec, capacity: Capacity, interface: Option<&str>) -> LoadSpec {
        let mut packets = match self {
            Flood::Syn => flood(SenderKind::Skb, SYN_PORT, None),
            Flood::Udp | Flood::Blast => blast(SenderKind::Skb, UDP_PORT, None),
        };
        if let Some(interface) = interface {
            packets.interface = Some(interface.to_owned());
        }
        LoadSpec {
            blast: Some(later(packets, self.rate(capacity))),
            ..load
        }
    }
}

/// The setting of a curve: program and flood. `elsewhere`: the flood goes nowhere.
fn setting(asked: Asked, flood: Flood, elsewhere: bool) -> &'static str {
    macro_rules! settings {
        ($($asked:ident $name:literal),*) => {
            match (asked, flood, elsewhere) {
                $(
                    (Asked::$asked, Flood::Syn, false) => concat!($name, " beside SYNs"),
                    (Asked::$asked, Flood::Syn, true) => concat!($name, ", SYNs to nowhere"),
                    (Asked::$asked, Flood::Udp, false) => concat!($name, " beside UDP"),
                    (Asked::$asked, Flood::Udp, true) => concat!($name, ", UDP to nowhere"),
                    (Asked::$asked, Flood::Blast, false) => concat!($name, " beside a blast"),
                    (Asked::$asked, Flood::Blast, true) => concat!($name, ", a blast to nowhere"),
                )*
            }
        };
    }
    settings!(
        RedisGet "redis GET", RedisSet "redis SET", Memcached "memcached get",
        Unbound "unbound", Nginx "nginx", Haproxy "haproxy"
    )
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (config, capacity) = run.bed()?;
    let site = site()?;
    let _origin = origin(run, &site)?;
    let mut curves = Vec::new();
    for system in [System::Run, System::LinuxBusy] {
        for &asked in &installed(run, &site) {
            for flood in Flood::ALL {
                let alone = asked.load(config, None);
                let beside = flood.beside(alone.clone(), capacity, None);
                let nowhere = flood.beside(alone.clone(), capacity, Some(SINK_INTERFACE));
                let name = setting(asked, flood, false);
                curves.push(asked.curve(system, &site, name, vec![alone, beside]));
                if system == System::Run {
                    let name = setting(asked, flood, true);
                    curves.push(asked.curve(system, &site, name, vec![nowhere]));
                }
            }
        }
    }
    run.series = run.sweep(&curves, run.options.within(5, 210), reduce)?;
    note_programs(run);
    run.note(format!(
        "Floods: {} SYN/s, {} UDP/s, and a blast of {}/s, no more than 0.3, 0.75 and 0.9 of what bare \
         takes here; they begin once the connections stand, from the client's thread. To nowhere: the \
         same packets on another link, which cost the client the same.",
        Flood::Syn.rate(capacity),
        Flood::Udp.rate(capacity),
        Flood::Blast.rate(capacity)
    ));
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for asked in Asked::ALL {
        for flood in Flood::ALL {
            let of = |system| find(series, system, Some(setting(asked, flood, false)));
            let alone = |series: &Series| series.points.first().map(|it| it.y);
            let beside = |series: &Series| series.points.get(1).map(|it| it.y);
            let kept = |system| ratio(of(system).and_then(beside), of(system).and_then(alone));
            let id = format!("{}-{}", asked.id(), flood.id());
            let beside_what = format!("{} beside {}", asked.setting(), flood.about());
            claims.push(Claim::at_least(
                id.clone(),
                format!("{beside_what}: requests/s by `tidewall run` over those beside nothing"),
                kept(OURS),
                KEPT,
            ));
            claims.push(Claim::new(
                format!("{id}-client"),
                format!(
                    "{beside_what}: the same over those beside as much that the client sends \
                     elsewhere"
                ),
                ratio(
                    of(OURS).and_then(beside),
                    find(series, OURS, Some(setting(asked, flood, true))).and_then(alone),
                ),
            ));
            claims.push(Claim::new(
                format!("{id}-linux"),
                format!("{beside_what}: linux-busy's requests/s over its own beside nothing"),
                kept("linux-busy"),
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;

    #[test]
    fn claims_follow_from_the_curves() {
        let (asked, flood) = (Asked::RedisGet, Flood::Udp);
        let name = Some(setting(asked, flood, false));
        let series = [
            curve(OURS, name, &[(0.0, 1e5), (1e6, 5e4)]),
            curve(OURS, Some(setting(asked, flood, true)), &[(1e6, 6e4)]),
            curve("linux-busy", name, &[(0.0, 1e5), (1e6, 1e3)]),
        ];
        let claims = claims(&series);
        assert_eq!(claims.len(), 54);
        for (id, measured, holds) in [
            ("redis-get-udp", Some(0.5), Some(false)),
            ("redis-get-udp-client", Some(5.0 / 6.0), None),
            ("redis-get-udp-linux", Some(0.01), None),
        ] {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            assert_eq!((claim.measured, claim.holds), (measured, holds), "{id}");
        }
    }

    #[test]
    fn floods_are_bounded_by_what_the_bed_takes() {
        let rates = Flood::ALL.map(|flood| flood.rate(MILLION));
        assert_eq!(rates, [300_000, 750_000, 900_000]);
        for asked in Asked::ALL {
            for flood in Flood::ALL {
                let load = asked.load(config(), None);
                flood
                    .beside(load, MILLION, Some(SINK_INTERFACE))
                    .check()
                    .unwrap();
            }
        }
    }
}
