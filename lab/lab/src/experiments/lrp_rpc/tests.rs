use super::*;
use crate::capacity::tests::MILLION;
use crate::result::tests::curve;
use crate::testbed::Config;

/// One point of a system: calls/s, the worker's steps/s, and further values.
fn series(system: &str, setting: &str, (x, y): (f64, f64), values: &[(&str, f64)]) -> Series {
    let mut series = curve(system, Some(setting), &[(x, y)]);
    let named = values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    series.points[0].values = named.collect();
    series
}

fn claim(series: &[Series], id: &str) -> Claim {
    let mut claims = claims(series).into_iter();
    claims.find(|claim| claim.id == id).unwrap()
}

#[test]
fn a_share_is_progress_over_progress_alone() {
    let all = [
        series("linux-rps", WORKER_ALONE, (10.0, 900.0), &[]),
        // It keeps 90 % of the processor busy with 9,000 calls/s: 100 µs each.
        series(
            "private",
            MEDIUM.alone,
            (9e3, 0.0),
            &[(FIRST, 9e3), (BUSY, 90.0)],
        ),
        series(
            "private",
            MEDIUM.both,
            (6e3, 270.0),
            &[(FIRST, 3.2e3), (SECOND, 2.8e3)],
        ),
    ];
    let least = claim(&all, "medium-least");
    assert!((least.measured.unwrap() - 0.84).abs() < 1e-9, "{least:?}");
    assert_eq!(least.holds, Some(false));
    let most = claim(&all, "medium-most");
    assert!((most.measured.unwrap() - 0.96).abs() < 1e-9, "{most:?}");
    let elapsed = claim(&all, "medium-elapsed").measured.unwrap();
    assert!((elapsed - 11.5 / 0.3).abs() < 1e-9);
    assert_eq!(claim(&all, "fast-least").measured, None);
    assert_eq!(claim(&all, "medium-linux-rps-least").measured, None);
}

#[test]
fn a_quiet_server_is_due_what_it_asks() {
    let quiet = [
        (FIRST, 4.5e3),
        (SECOND, 950.0),
        (ASKED, 1e3),
        (RAN[1], 10.0),
    ];
    let all = [
        series("linux-rps", WORKER_ALONE, (10.0, 900.0), &[]),
        series(
            "private",
            MEDIUM.alone,
            (1e4, 0.0),
            &[(FIRST, 1e4), (BUSY, 100.0)],
        ),
        series("private", QUIET, (5.45e3, 360.0), &quiet),
    ];
    for (id, measured, holds) in [
        ("quiet-least", 0.4 / 0.45, false),
        ("quiet-most", 1.0, true),
        ("quiet-answered", 0.95, true),
    ] {
        let claim = claim(&all, id);
        assert!(
            (claim.measured.unwrap() - measured).abs() < 1e-9,
            "{claim:?}"
        );
        assert_eq!(claim.holds, Some(holds), "{id}");
    }
}

#[test]
fn threads_are_set_beside_their_due_and_bsd() {
    let mut all = vec![series("linux-rps", WORKER_ALONE, (10.0, 1.0), &[])];
    for (calls, share) in CALLS.iter().zip([0.32, 0.33, 0.345]) {
        all.push(series("tidewall", calls.both, (1.1e5, share), &[]));
    }
    let [low, high] = ["share-low", "share-high"].map(|id| claim(&all, id));
    assert_eq!((low.measured, high.measured), (Some(0.32), Some(0.345)));
    assert!(low.holds == Some(true) && high.holds == Some(true));
    assert_eq!(claim(&all, "fast-calls-vs-bsd").measured, None);
    all.push(series("bsd", CALLS[0].both, (1e5, 0.24), &[]));
    let elapsed = claim(&all, "fast-elapsed-vs-bsd");
    assert!((elapsed.measured.unwrap() - 0.75).abs() < 1e-9);
    assert_eq!(elapsed.paper, Some(0.70));
    assert!((claim(&all, "fast-calls-vs-bsd").measured.unwrap() - 1.1).abs() < 1e-9);
    // All three or nothing.
    all.remove(1);
    assert_eq!(claim(&all, "share-low").measured, None);
}

#[test]
fn sizes_of_caches_are_read() {
    assert_eq!(size("2048K"), Some(2 << 20));
    assert_eq!(size("1M"), Some(1 << 20));
    assert_eq!(size("512"), Some(512));
    assert_eq!(size("x"), None);
}

#[test]
fn worker_and_servers_are_three_everywhere() {
    for quick in [false, true] {
        for curve in curves((Config::default(), MILLION), quick, 4096) {
            assert!(curve.loads.iter().all(|load| load.check().is_ok()));
            let setting = curve.setting.unwrap();
            let loads: Vec<_> = loads().map(|(_, setting, ..)| setting).collect();
            let threads = curve.services.len() + usize::from(curve.compute.is_some());
            if loads.contains(&setting) {
                assert_eq!(threads + curve.beside.len(), 3, "{setting}");
                assert_eq!(curve.loads[0].beside.len(), 1);
            } else {
                assert_eq!(threads, 1, "{setting}");
            }
        }
    }
}
