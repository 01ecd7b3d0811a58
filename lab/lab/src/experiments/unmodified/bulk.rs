//! nginx by the size of its documents, unmodified: on the kernel's sockets and by
//! `tidewall run`.

use std::time::Duration;

use tidewall_load::{HttpSpec, LoadSpec, Reuse};

use super::super::tcp::{HTTP_PORT, Site, http_load};
use super::super::{Experiment, Run, USUAL, ratio};
use super::{OURS, note_programs};
use crate::bench::{Measured, server};
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::SERVER_INTERFACE;
use crate::worker::{Program, TcpKind, TcpSpec};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-bulk",
    paper: "beyond the papers",
    about: "nginx by `tidewall run` and on Linux, by the size of what it serves: requests/s",
    x: "bytes a document",
    y: "requests/s",
    senders: &["client on kernel sockets, epoll, a closed loop of 32 connections"],
    measure,
    claims,
    ..USUAL
};

const CONNECTIONS: u32 = 32;
/// A document's path, its bytes, the claim on it and the claim's bound.
const DOCUMENTS: [(&str, usize, &str, f64); 4] = [
    ("/1k", 1_000, "nginx-1k", 3.0),
    ("/10k", 10_000, "nginx-10k", 1.4),
    ("/100k", 100_000, "nginx-100k", 0.9),
    ("/1m", 1_000_000, "nginx-1m", 0.9),
];
const SETTING: &str = "nginx";
/// Linux with its work on the server's processor, and on the client's.
const SYSTEMS: [System; 3] = [System::Run, System::LinuxRps, System::LinuxPlain];
const TIMES: (Duration, Duration) = (Duration::from_millis(400), Duration::from_millis(800));

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let site = Site::with(&DOCUMENTS.map(|(path, bytes, ..)| (path, bytes)))?;
    let root = site.root().to_owned();
    let program = Program::Nginx {
        root,
        sendfile: true,
    };
    if !program.is_there() {
        run.note("nginx: not installed (scripts/setup.sh), so not measured.");
        return Ok(());
    }
    // As with a card.
    let offloads = ["tx", "sg", "gso", "tso"].map(|name| [name, "on"]);
    let on = [
        &["ethtool", "-K", SERVER_INTERFACE],
        offloads.as_flattened(),
    ]
    .concat();
    run.bench.testbed.in_server(&on)?;
    let load = |path: &str| LoadSpec {
        warm_up: TIMES.0,
        duration: TIMES.1,
        ..http_load(
            config,
            HttpSpec {
                connections: CONNECTIONS,
                reuse: Reuse::KeepAlive,
                ..HttpSpec::new(server(HTTP_PORT), path)
            },
        )
    };
    let curves = SYSTEMS.map(|system| Curve {
        setting: Some(SETTING),
        ..Curve::over_tcp(
            system,
            TcpSpec::new(TcpKind::Program(program.clone()), HTTP_PORT),
            DOCUMENTS.map(|(path, ..)| load(path)).to_vec(),
        )
    });
    run.series = run.sweep(&curves, run.options.within(5, 120), reduce)?;
    note_programs(run);
    run.note(
        "sendfile on, no TLS. linux-rps does the kernel's work on nginx's processor, linux-plain \
         on the client's.",
    );
    Ok(())
}

fn reduce(_: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let http = measured.outcome.report.http.as_ref()?;
    let asked = &load.http.as_ref()?.path;
    let (_, bytes, ..) = DOCUMENTS.iter().find(|(path, ..)| path == asked)?;
    Some(Sample {
        x: *bytes as f64,
        y: http.rate,
        drops: measured.drops.clone(),
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let rate = |system: &str, bytes: usize| {
        let curve = find(series, system, Some(SETTING))?;
        let point = curve.points.iter().find(|point| point.x == bytes as f64)?;
        Some(point.y)
    };
    let over = |linux: System, bytes| ratio(rate(OURS, bytes), rate(linux.name(), bytes));
    let steered = DOCUMENTS.map(|(_, bytes, id, bound)| {
        let text = format!("documents of {bytes} bytes: requests/s over Linux's, steered");
        Claim::at_least(id, text, over(System::LinuxRps, bytes), bound)
    });
    let plain = DOCUMENTS.map(|(_, bytes, id, _)| {
        let text = format!("documents of {bytes} bytes: requests/s over Linux's, not steered");
        Claim::new(format!("{id}-plain"), text, over(System::LinuxPlain, bytes))
    });
    [steered, plain].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_are_by_size() {
        let sizes = DOCUMENTS.map(|(_, bytes, ..)| bytes as f64);
        let of = |system, factor: f64| {
            let points: Vec<_> = sizes
                .iter()
                .map(|size| (*size, factor * 1e9 / size))
                .collect();
            curve(system, Some(SETTING), &points)
        };
        let claims = claims(&[of(OURS, 3.0), of("linux-rps", 1.0), of("linux-plain", 1.5)]);
        let measured = |id: &str| {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            claim.measured.unwrap()
        };
        assert!((measured("nginx-100k") - 3.0).abs() < 1e-9);
        assert!((measured("nginx-1m-plain") - 2.0).abs() < 1e-9);
    }
}
