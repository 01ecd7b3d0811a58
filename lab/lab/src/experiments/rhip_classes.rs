//! Traffic classes: a service on one queue beside a blast on another.
//!
//! RHIP has one queue. With several, one per traffic class, a blast on the queue of the
//! lower class must not affect the service on the upper one.
//!
//! The blast and the client share a processor, so a blast slows the client whatever the
//! server does. The control is therefore the client beside the same sender, which sends
//! into a veth whose ring is never emptied. To the sender that is a full ring, as the
//! flooded queue's is, and to the server it is nothing.

use std::net::IpAddr;

use tidewall_load::{BlastSpec, LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, ratio, trips};
use crate::bench::{Measured, blast, load, server};
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, CLIENT, Config, SINK_INTERFACE};
use crate::worker::ClassSpec;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-classes",
    paper: "beyond RHIP: several queues",
    about: "an echo service on one queue beside a blast on another, by traffic class",
    x: "0 alone, 1 control, 2 beside the blast",
    y: "echoes/s",
    config,
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const DISCARD_PORT: u16 = 9;
/// Queues of the two classes.
const ECHO_QUEUE: u32 = 0;
const DISCARD_QUEUE: u32 = 1;

/// Positions on the axis.
const ALONE: f64 = 0.0;
const CONTROL: f64 = 1.0;
const BESIDE: f64 = 2.0;

/// Two queues, each a class, and a server that polls before it sleeps.
const CLASSES: &str = "a class each queue";
/// The same, but sleeping at once.
const BLOCKING: &str = "a class each queue, blocking";
/// Two queues, polled as equals.
const EQUALS: &str = "two equal queues";
/// The blast on the echo service's queue.
const ONE_QUEUE: &str = "one queue for both";

/// As long as Linux polls by its sockets. A server that sleeps at once is woken for each
/// request of a client slowed by the control. It would seem to gain from the blast, which
/// keeps it awake.
const SPIN_MICROSECONDS: u32 = 50;

const DISCARDED: &str = "discarded/s";

/// The test bed.
fn config() -> Config {
    Config {
        queues: 2,
        client_queue: Some(ECHO_QUEUE),
        sink: true,
        ..Config::default()
    }
}

/// Returns the loads: alone, beside a sender whose frames reach no receiver, beside the
/// blast.
fn loads(config: Config, queue: u32) -> Vec<LoadSpec> {
    let alone = LoadSpec {
        ping: Some(PingSpec::new(server(ECHO_PORT))),
        ..load(config)
    };
    let blast = BlastSpec {
        queue,
        source: Some(IpAddr::V4(CLIENT.0)),
        ..blast(SenderKind::Skb, DISCARD_PORT, None)
    };
    let control = BlastSpec {
        interface: Some(SINK_INTERFACE.to_owned()),
        ..blast.clone()
    };
    vec![
        alone.clone(),
        LoadSpec {
            blast: Some(control),
            ..alone.clone()
        },
        LoadSpec {
            blast: Some(blast),
            ..alone
        },
    ]
}

fn curves(config: Config) -> Vec<Curve> {
    let service = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let curve = |system, setting, queue| Curve {
        system,
        setting: Some(setting),
        spin: Some(SPIN_MICROSECONDS),
        services: vec![
            service(Kind::Echo, ECHO_PORT),
            service(Kind::Discard, DISCARD_PORT),
        ],
        loads: loads(config, queue),
        ..Curve::default()
    };
    let class = |port| ClassSpec {
        ports: vec![port],
        budget: None,
    };
    let classed = Curve {
        classes: vec![class(ECHO_PORT), class(DISCARD_PORT)],
        ..curve(System::Tidewall, CLASSES, DISCARD_QUEUE)
    };
    vec![
        classed.clone(),
        Curve {
            setting: Some(BLOCKING),
            spin: None,
            ..classed
        },
        curve(System::Tidewall, EQUALS, DISCARD_QUEUE),
        curve(System::Tidewall, ONE_QUEUE, ECHO_QUEUE),
        curve(System::LinuxBusy, EQUALS, DISCARD_QUEUE),
    ]
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let curves = curves(run.config());
    run.series = run.sweep(&curves, run.options.within(7, 34), reduce)?;
    run.note(format!(
        "At {ALONE} the client asks alone; at {CONTROL}, the control, beside a sender flat out \
         into a veth whose ring nobody empties ({SINK_INTERFACE}), which takes the same time of \
         the client's processor as a flooded queue and none of the server's; at {BESIDE} beside \
         the same sender flat out at the discard service."
    ));
    run.note(
        "One 8-byte request at a time from a spinning client, whose kernel sockets send on queue \
         0 (XPS): a veth cannot be set to put a class on a queue, so the sender chooses. The \
         same thread sends the blast, in bursts of at most 8.",
    );
    Ok(())
}

fn reduce(_: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let ping = report.ping.as_ref()?;
    let (x, offered) = match (&load.blast, &report.blast) {
        (Some(spec), Some(blast)) if blast.measured.sent > 0 => {
            let elsewhere = spec.interface.as_deref() == Some(SINK_INTERFACE);
            (if elsewhere { CONTROL } else { BESIDE }, blast.rate)
        }
        (None, _) => (ALONE, 0.0),
        _ => return None,
    };
    let mut values = trips::values(ping, load.ping.as_ref()?.timeout);
    values.insert("offered/s".to_owned(), offered);
    values.insert(
        DISCARDED.to_owned(),
        measured.outcome.delivered.last().copied()?,
    );
    Some(Sample {
        x,
        y: ping.rate,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let classed = find(series, "tidewall", Some(CLASSES));
    let at = |series: Option<&Series>, x: f64| {
        series?
            .points
            .iter()
            .find(|point| point.x == x)
            .map(|point| point.y)
    };
    let discarded = classed
        .and_then(|series| series.points.iter().find(|point| point.x == BESIDE))
        .and_then(|point| point.values.get(DISCARDED).copied());
    vec![
        Claim::at_least(
            "class-kept",
            "one class per queue: echoes/s beside the blast on the lower class's queue \
             over those beside the same sender whose frames are not received",
            ratio(at(classed, BESIDE), at(classed, CONTROL)),
            0.8,
        ),
        Claim::above(
            "class-below-served",
            "the same: datagrams/s that the lower class's service gets meanwhile",
            discarded,
            0.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::rhip::tests::with;
    use crate::result::tests::curve;

    fn series(beside: f64, discarded: f64) -> Vec<Series> {
        let points = |beside| [(ALONE, 200.0), (CONTROL, 100.0), (BESIDE, beside)];
        vec![
            with(
                curve("tidewall", Some(CLASSES), &points(beside)),
                DISCARDED,
                &[0.0, 0.0, discarded],
            ),
            with(
                curve("tidewall", Some(ONE_QUEUE), &points(1.0)),
                DISCARDED,
                &[0.0, 0.0, 9.0],
            ),
        ]
    }

    #[test]
    fn the_control_is_what_the_blast_is_held_against() {
        let claims = claims(&series(85.0, 5.0));
        assert_eq!(claims[0].id, "class-kept");
        assert_eq!(claims[0].measured, Some(0.85));
        assert_eq!(claims[1].measured, Some(5.0));
        assert!(claims.iter().all(|claim| claim.holds == Some(true)));
    }

    #[test]
    fn neither_class_may_starve() {
        let judged = |beside, discarded| -> Vec<bool> {
            let claims = claims(&series(beside, discarded));
            claims
                .iter()
                .map(|claim| claim.holds == Some(true))
                .collect()
        };
        assert_eq!(judged(79.0, 5.0), [false, true]);
        assert_eq!(judged(90.0, 0.0), [true, false]);
        let mut lacking = series(90.0, 5.0);
        lacking[0].points.remove(1);
        assert_eq!(claims(&lacking)[0].measured, None, "no control");
    }

    #[test]
    fn loads_are_valid_and_the_control_differs_in_its_interface_only() {
        for curve in curves(config()) {
            assert_eq!(curve.loads.len(), 3);
            assert!(curve.loads.iter().all(|load| load.check().is_ok()));
            let [_, control, beside] = curve.loads.as_slice() else {
                panic!("three loads");
            };
            let control = control.blast.clone().unwrap();
            let beside = beside.blast.clone().unwrap();
            assert_ne!(control.interface, beside.interface);
            assert_eq!(
                BlastSpec {
                    interface: beside.interface.clone(),
                    ..control
                },
                beside
            );
        }
    }
}
