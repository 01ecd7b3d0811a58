//! The data path of circuits: AAL5 PDUs beside UDP datagrams through the same stack, a
//! blast on one circuit beside an echo on another, and PDUs that arrive in parts.

use std::time::Duration;

use tidewall_load::{BlastSpec, Content, LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::super::{Experiment, Run, USUAL, ratio, trips, waited};
use super::through;
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-data",
    paper: "ATM sockets, Data Path",
    about: "AAL5 PDUs beside UDP datagrams, an echo beside a blast, reassembly",
    x: "blast, packets/s offered",
    y: "delivered PDUs/s",
    senders: &["skb", "XDP frames beside echoes"],
    measure,
    claims,
    ..USUAL
};

/// VCIs below 32 are reserved for signalling.
const ECHO_CIRCUIT: u16 = 107;
const BLAST_PORT: u16 = 109;
/// The blast beside which echoes are compared, as a share of `bare`'s capacity.
const BESIDE: f64 = 0.5;
const TIMEOUT: Duration = Duration::from_millis(20);
const LOADS: [Option<f64>; 3] = [Some(0.5), Some(0.9), None];

/// A blast: a setting's name, the kind of packets, and their payload.
type Blasted = (&'static str, Content, u16);

const DATAGRAMS: Blasted = ("UDP, 40 bytes", Content::Datagrams, 40);
const PDUS: Blasted = ("AAL5, 40 bytes", Content::Pdus, 40);
/// As much of either as one frame of an MTU of 1,500 carries.
const LONG_DATAGRAMS: Blasted = ("UDP, 1,472 bytes", Content::Datagrams, 1472);
const LONG_PDUS: Blasted = ("AAL5, 1,472 bytes", Content::Pdus, 1472);
/// Six frames of 31 cells.
const PARTS: Blasted = ("AAL5, 8,920 bytes", Content::Pdus, 8920);
const CELLS_OF_FRAME: f64 = 31.0;
const FRAMES_OF_PDU: f64 = 6.0;
const ECHOES: &str = "echoes on a circuit beside a blast on another";

fn curves((config, capacity): Bed) -> Vec<Curve> {
    let blast = |(_, content, payload): Blasted, share| LoadSpec {
        blast: capacity
            .blast(SenderKind::Skb, BLAST_PORT, share)
            .map(|blast| BlastSpec {
                content,
                payload,
                ..blast
            }),
        ..load(config)
    };
    let discard = ServiceSpec {
        kind: Kind::Discard,
        port: BLAST_PORT,
        work: 0,
    };
    let delivered = |system, what: Blasted, shares: &[Option<f64>]| Curve {
        system,
        setting: Some(what.0),
        circuits: what.1 != Content::Datagrams,
        services: vec![discard],
        loads: shares.iter().map(|&share| blast(what, share)).collect(),
        ..Curve::default()
    };
    let mut curves = Vec::new();
    for what in [DATAGRAMS, PDUS] {
        curves.push(delivered(System::Bare, what, &LOADS));
        curves.push(delivered(System::Tidewall, what, &LOADS));
    }
    for what in [LONG_DATAGRAMS, LONG_PDUS] {
        curves.push(delivered(System::Tidewall, what, &[None]));
    }
    for system in [System::Bare, System::Tidewall] {
        curves.push(delivered(system, PARTS, &[None]));
        let echo = |share| {
            let mut load = blast(PDUS, Some(share));
            if let Some(blast) = &mut load.blast {
                // The client's stack owns the queue by which the others send.
                blast.kind = SenderKind::Frame;
            }
            load.ping = Some(PingSpec {
                timeout: TIMEOUT,
                circuit: true,
                ..PingSpec::new(server(ECHO_CIRCUIT))
            });
            load
        };
        let echoes = ServiceSpec {
            kind: Kind::Echo,
            port: ECHO_CIRCUIT,
            work: 0,
        };
        curves.push(Curve {
            system,
            setting: Some(ECHOES),
            y: Some("echoes/s"),
            circuits: true,
            services: vec![echoes, discard],
            loads: [0.0, BESIDE].map(echo).into(),
            ..Curve::default()
        });
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    run.series = run.sweep(&curves(bed), run.options.within(5, 75), reduce)?;
    through::measure(run)?;
    run.note(
        "PDUs are AAL5 in RFC 4717's frame mode. One circuit or UDP socket, which discards; 1,472 \
         bytes fill a frame of an MTU of 1,500 of either; PDUs of 8,920 bytes come in six frames of \
         31 cells and are reassembled, while bare counts the frames. The echo's client is a stack \
         of its own, 8 bytes at a time, given up after 20 ms. A stack on veth finds the device's poll \
         by datagrams, so the services have had some.",
    );
    run.note(
        "Cells through one processor: `tidewall atm switch` between two interfaces, beside a program \
         that only exchanges link addresses, with datagrams that fill the same frames; counted \
         behind the second interface. TCP: one connection of the kernels' over `tidewall atm ip` at \
         both ends, beside the same link without it, whose frames of 9,224 bytes the kernels cut \
         and join by GSO and GRO (checksums left out, as with a card that makes them), or handle \
         one by one. Packets of RFC 2225's 9,180 bytes fill such a frame; those of 65,000 and \
         1,472 bytes have MTUs of 65,535 and 1,500.",
    );
    Ok(())
}

fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let mut sample = Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y: measured.outcome.delivered.last().copied()?,
        drops: measured.drops.clone(),
        values: [waited(measured)].into(),
        ..Sample::default()
    };
    if let Some(ping) = &report.ping {
        sample.y = ping.rate;
        sample.values.extend(trips::values(ping, TIMEOUT));
    }
    Some(sample)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let of = |system: &str, (setting, ..): Blasted| find(series, system, Some(setting));
    let last = |system: &str, what| of(system, what)?.last().map(|point| point.y);
    let ours = |what| last("tidewall", what);
    let echoes = |system: &str| {
        let curve = find(series, system, Some(ECHOES))?;
        let at = |share| Some(curve.offered(share)?.y);
        ratio(at(BESIDE), at(0.0))
    };
    let through = |system: &str, setting| Some(find(series, system, Some(setting))?.last()?.y);
    let frames = through(through::BARE, through::FRAMES);
    let tcp = |system| through(system, through::TCP);
    let cells = |pdus: f64| pdus * FRAMES_OF_PDU * CELLS_OF_FRAME;
    vec![
        Claim::at_least(
            "pdus",
            "40 bytes at the highest offered rate: AAL5 PDUs/s over UDP datagrams/s",
            ratio(ours(PDUS), ours(DATAGRAMS)),
            0.9,
        ),
        Claim::at_least(
            "pdus-long",
            "1,472 bytes at the highest offered rate: AAL5 PDUs/s over UDP datagrams/s",
            ratio(ours(LONG_PDUS), ours(LONG_DATAGRAMS)),
            0.9,
        ),
        Claim::at_least(
            "flat",
            "40 bytes: PDUs/s at the highest offered rate over the peak",
            ratio(ours(PDUS), of("tidewall", PDUS).and_then(Series::peak)),
            0.95,
        ),
        Claim::at_least(
            "echo",
            format!(
                "echoes/s on a circuit beside a blast of {BESIDE} of bare's capacity on another, over \
                 those without it: tidewall over bare"
            ),
            ratio(echoes("tidewall"), echoes("bare")),
            0.8,
        ),
        Claim::at_least(
            "reassembly",
            "cells/s of reassembled PDUs over those of the frames that bare receives",
            ratio(
                ours(PARTS).map(cells),
                last("bare", PARTS).map(|frames| frames * CELLS_OF_FRAME),
            ),
            0.5,
        ),
        Claim::at_least(
            "switch",
            "cells/s through one processor, PDUs in frames: cell switch over bare forwarding",
            ratio(through(through::SWITCH, through::FRAMES), frames),
            0.5,
        ),
        Claim::at_least(
            "switch-cells",
            "the same, packets of 28 single cells: cell switch over bare forwarding of frames",
            ratio(through(through::SWITCH, through::CELLS), frames),
            0.5,
        ),
        Claim::at_least(
            "tcp",
            "bytes/s of a TCP connection: over ATM over those on the same Ethernet",
            ratio(tcp(through::ATM), tcp(through::ETHERNET)),
            0.55,
        )
        .paper(0.75),
        Claim::new(
            "tcp-large",
            "the same, packets of 65,000 bytes, each in a frame",
            ratio(tcp(through::ATM_LARGE), tcp(through::ETHERNET)),
        ),
        Claim::new(
            "tcp-in-frame",
            "the same, packets of 1,472 bytes, each in a frame of 1,500",
            ratio(tcp(through::ATM_IN_FRAME), tcp(through::ETHERNET)),
        ),
        Claim::new(
            "tcp-plain",
            "bytes/s of a TCP connection: over ATM over those on the same Ethernet without GSO and GRO",
            ratio(tcp(through::ATM), tcp(through::ETHERNET_PLAIN)),
        ),
        Claim::new(
            "switch-cost",
            "ns per cell of the switch, packets of single cells",
            ratio(Some(1e9), through(through::SWITCH, through::CELLS)),
        ),
        Claim::new(
            "cell-cost",
            "ns per cell of reassembled PDUs, at the highest offered rate",
            ratio(Some(1e9), ours(PARTS).map(cells)),
        ),
        Claim::new(
            "of-bare",
            "40 bytes at the highest offered rate: AAL5 PDUs/s over bare's frames/s",
            ratio(ours(PDUS), last("bare", PDUS)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::{all_hold, curve};
    use crate::testbed::Config;

    #[test]
    fn claims_follow_from_the_curves() {
        let echoes = |system, idle, beside| {
            let mut curve = curve(system, Some(ECHOES), &[(0.0, idle), (5e5, beside)]);
            for (point, share) in curve.points.iter_mut().zip([0.0, BESIDE]) {
                point.share = Some(share);
            }
            curve
        };
        let of = |system, what: Blasted, y| curve(system, Some(what.0), &[(1e6, y)]);
        let series = [
            of("tidewall", DATAGRAMS, 1e6),
            curve("tidewall", Some(PDUS.0), &[(9e5, 9.6e5), (1e6, 9.5e5)]),
            of("bare", PDUS, 1.9e6),
            of("tidewall", LONG_DATAGRAMS, 5e5),
            of("tidewall", LONG_PDUS, 4.75e5),
            of("bare", PARTS, 6e5),
            of("tidewall", PARTS, 8e4),
            echoes("bare", 1e5, 5e4),
            echoes("tidewall", 5e4, 2.25e4),
            curve(through::BARE, Some(through::FRAMES), &[(0.0, 2e7)]),
            curve(through::SWITCH, Some(through::FRAMES), &[(0.0, 1.5e7)]),
            curve(through::SWITCH, Some(through::CELLS), &[(0.0, 1e7)]),
            curve(through::ETHERNET, Some(through::TCP), &[(0.0, 1e9)]),
            curve(through::ETHERNET_PLAIN, Some(through::TCP), &[(0.0, 6e8)]),
            curve(through::ATM, Some(through::TCP), &[(0.0, 9e8)]),
            curve(through::ATM_LARGE, Some(through::TCP), &[(0.0, 1.1e9)]),
            curve(through::ATM_IN_FRAME, Some(through::TCP), &[(0.0, 4e8)]),
        ];
        all_hold(
            &claims(&series),
            &[
                ("pdus", 0.95),
                ("pdus-long", 0.95),
                ("flat", 0.95 / 0.96),
                ("echo", 0.9),
                ("reassembly", 0.8),
                ("switch", 0.75),
                ("switch-cells", 0.5),
                ("tcp", 0.9),
                ("tcp-large", 1.1),
                ("tcp-in-frame", 0.4),
                ("tcp-plain", 1.5),
                ("switch-cost", 100.0),
                ("cell-cost", 1e9 / (8e4 * 186.0)),
                ("of-bare", 0.5),
            ],
        );
    }

    #[test]
    fn loads_can_be_run() {
        let curves = curves((Config::default(), MILLION));
        let loads = curves.iter().flat_map(|curve| &curve.loads);
        assert!(loads.clone().all(|load| load.check().is_ok()));
    }
}
