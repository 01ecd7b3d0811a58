//! Parts that the experiments over TCP share: the server, its document, the client, and
//! how a load becomes numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tidewall_load::{BlastSpec, HttpSpec, LoadReport, LoadSpec, RateStep, Reuse};
use tidewall_service::http;

use crate::bench::{Measured, load, server};
use crate::result::{Point, Series};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::{Config, more_clients};
use crate::worker::{TcpKind, TcpSpec, Waiting, scratch};

/// Port of the web server.
pub(crate) const HTTP_PORT: u16 = 80;
/// Port of the same program that listens and never accepts.
pub(crate) const DUMMY_PORT: u16 = 81;
/// UDP port of the same program that it never reads from.
pub(super) const UNREAD_PORT: u16 = 9;
/// The document's path.
pub(crate) const DOCUMENT: &str = "/document";
/// Its length in bytes: the same as LRP's.
const DOCUMENT_BYTES: usize = 1_300;
/// Connections of the client.
pub(super) const CONNECTIONS: u32 = 32;
/// When a flood begins: earlier connections are established by then.
const FLOOD_AFTER: Duration = Duration::from_millis(100);
/// Load before measuring begins.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time measured.
const WINDOW: Duration = Duration::from_millis(700);

/// The modes from which an expert chooses, and the stack.
pub(super) const SYSTEMS: [System; 4] = [
    System::Tidewall,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
];

/// The use of a connection, and its name.
pub(super) const LOOPS: [(&str, Reuse); 2] = [(KEPT, Reuse::KeepAlive), (ONE, Reuse::OneRequest)];
pub(super) const KEPT: &str = "connections kept";
pub(super) const ONE: &str = "one connection a request";

/// Returns closed loops that saturate a server making `work` multiplications per request.
pub(super) fn saturating(
    systems: impl IntoIterator<Item = System>,
    config: Config,
    site: &Site,
    work: u32,
) -> Vec<Curve> {
    let curve = |system| {
        LOOPS.map(|(setting, reuse)| Curve {
            setting: Some(setting),
            ..Curve::over_tcp(
                system,
                site.server(work),
                vec![http_load(config, client(reuse))],
            )
        })
    };
    systems.into_iter().flat_map(curve).collect()
}

/// A directory with the document, removed on drop.
pub(crate) struct Site {
    root: PathBuf,
}

impl Site {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::with(&[(DOCUMENT, DOCUMENT_BYTES)])
    }

    /// Creates one with documents of these lengths at these paths.
    pub(crate) fn with(documents: &[(&str, usize)]) -> anyhow::Result<Self> {
        let site = Site {
            root: scratch("www"),
        };
        fs::create_dir(&site.root)
            .with_context(|| format!("cannot make {}", site.root.display()))?;
        for (path, bytes) in documents {
            let path = site.root.join(path.trim_start_matches('/'));
            fs::write(&path, vec![b'x'; *bytes])
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(site)
    }

    /// Returns the directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a web server that makes `work` multiplications for each request.
    pub(crate) fn server(&self, work: u32) -> TcpSpec {
        TcpSpec {
            kind: TcpKind::Http {
                root: self.root.clone(),
                work,
                limits: http::Limits::default(),
            },
            port: HTTP_PORT,
            dummies: vec![DUMMY_PORT],
            unread: vec![UNREAD_PORT],
            waiting: Waiting::Usual,
            timed: false,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns a client in a closed loop.
pub(super) fn client(reuse: Reuse) -> HttpSpec {
    HttpSpec {
        connections: CONNECTIONS,
        reuse,
        sources: match reuse {
            Reuse::KeepAlive => Vec::new(),
            // Enough ports for a second's connections.
            Reuse::OneRequest => more_clients(),
        },
        ..HttpSpec::new(server(HTTP_PORT), DOCUMENT)
    }
}

/// Returns a client without other load.
pub(super) fn http_load(config: Config, http: HttpSpec) -> LoadSpec {
    LoadSpec {
        http: Some(http),
        warm_up: WARM_UP,
        duration: WINDOW,
        ..load(config)
    }
}

/// Halves its length, for a quick run.
pub(super) fn shorten(load: &mut LoadSpec) {
    (load.warm_up, load.duration) = (load.warm_up / 2, load.duration / 2);
}

/// Returns a blast that begins once the connections are established.
pub(super) fn later(blast: BlastSpec, rate: u64) -> BlastSpec {
    BlastSpec {
        rate: Some(1),
        steps: vec![RateStep {
            after: FLOOD_AFTER,
            rate,
        }],
        ..blast
    }
}

/// Reduces a load to requests/s against the blast's rate.
pub(super) fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let http = report.http.as_ref()?;
    let offered = report.blast.as_ref().map_or(0.0, |blast| blast.rate);
    // No response without a blast: the service was missing. This is not a result.
    if http.measured.responses == 0 && offered < 2.0 {
        return None;
    }
    let mut values = values(report);
    if let Some(usage) = &measured.outcome.usage {
        values.insert(SERVER_IDLE.to_owned(), 100.0 * usage.idle);
    }
    Some(Sample {
        x: if report.blast.is_some() { offered } else { 0.0 },
        y: http.rate,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

/// Returns further figures of a client.
pub(super) fn values(report: &LoadReport) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    if let Some(http) = &report.http {
        if let Some(latency) = http.latency {
            values.insert("p50 µs".to_owned(), latency.p50 as f64 / 1e3);
            values.insert("p99 µs".to_owned(), latency.p99 as f64 / 1e3);
        }
        let counts = http.measured;
        for (name, count) in [
            ("failed", counts.failed),
            ("timed out", counts.timeouts),
            ("other status", counts.other_status),
            (
                "not connected",
                counts.connect_failures + counts.connect_timeouts,
            ),
        ] {
            if count > 0 {
                values.insert(name.to_owned(), count as f64);
            }
        }
    }
    if let Some(probe) = &report.probe
        && probe.begun > 0
    {
        values.insert(NEW_CLIENTS.to_owned(), probe.begun as f64);
        values.insert(
            CONNECTED.to_owned(),
            probe.connected as f64 / probe.begun as f64,
        );
        values.insert(
            "answered".to_owned(),
            probe.answered as f64 / probe.begun as f64,
        );
    }
    values
}

/// Share of the server's processor that was idle, %: if a closed loop leaves much of it,
/// the client was the limit.
pub(super) const SERVER_IDLE: &str = "server idle %";
/// New clients that were tried.
pub(super) const NEW_CLIENTS: &str = "new clients";
/// Share of new clients that were connected in time.
pub(super) const CONNECTED: &str = "connected";

/// Returns the share of the unloaded result that is kept at the point of a load.
pub(super) fn kept(series: &Series, loaded: Option<&Point>) -> Option<f64> {
    let alone = series.points.first().filter(|point| point.x < 2.0)?.y;
    (alone > 0.0).then_some(loaded?.y / alone)
}

/// Writes [`kept`] at the point that `loaded` finds into the curve's summary.
pub(super) fn summarize(series: &mut [Series], loaded: impl Fn(&Series) -> Option<&Point>) {
    for series in series {
        if let Some(share) = kept(series, loaded(series)) {
            series.summary.insert("kept".to_owned(), share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::flood;
    use crate::result::tests::curve;
    use tidewall_load::SenderKind;

    #[test]
    fn a_site_has_one_document_and_goes() {
        let site = Site::new().unwrap();
        let root = site.root.clone();
        let document = fs::metadata(root.join("document")).unwrap();
        assert_eq!(document.len(), 1300);
        assert!(matches!(site.server(5).kind, TcpKind::Http { work: 5, .. }));
        drop(site);
        assert!(!root.exists());
    }

    #[test]
    fn loads_are_valid() {
        for reuse in [Reuse::KeepAlive, Reuse::OneRequest] {
            let mut load = http_load(Config::default(), client(reuse));
            load.check().unwrap();
            load.blast = Some(later(flood(SenderKind::Skb, 81, None), 400_000));
            load.check().unwrap();
        }
    }

    #[test]
    fn what_is_kept_is_told_from_the_unloaded() {
        let series = curve("x", None, &[(0.0, 40_000.0), (390_000.0, 10_000.0)]);
        assert_eq!(kept(&series, series.at(400_000.0)), Some(0.25));
        assert_eq!(kept(&series, series.at(800_000.0)), None);
        let loaded = curve("x", None, &[(390_000.0, 10_000.0)]);
        assert_eq!(kept(&loaded, loaded.at(400_000.0)), None);
        let mut all = [series, loaded];
        summarize(&mut all, |series| series.at(400_000.0));
        assert_eq!(all[0].summary["kept"], 0.25);
        assert!(all[1].summary.is_empty());
    }
}
