//! The demonstration without privileges: the same service and the same stack,
//! on a link inside this process.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tidewall::{MemoryConfig, Stack};
use tidewall_device::memory::{Link, LinkConfig, Side, pair_on_clock};
use tidewall_load::template::{Ends, Template};
use tidewall_service::tidewall::Tidewall;
use tidewall_service::{BATCH, Counters, Kind, Reader, ServiceSpec, serve};

use crate::environment::Environment;
use crate::experiments::lrp_overload;
use crate::interrupt;
use crate::progress::Progress;
use crate::result::{Axes, Point, ResultFile, Series};
use crate::sweep::median;
use crate::testbed::{CLIENT, CLIENT_MAC_ADDRESS, SERVER, SERVER_MAC_ADDRESS};
use crate::worker::scratch;

const PORT: u16 = 9;
const PAYLOAD: u16 = 14;
/// The last rate is well over the service's capacity. It is limited: a sender that never
/// pauses would keep the link's lock from the receiver, which no wire does.
const RATES: [u64; 7] = [
    10_000, 50_000, 100_000, 300_000, 700_000, 1_000_000, 2_000_000,
];
const RUNS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_millis(250);
/// Most frames sent between two checks of the clock.
const BURST_MAX: u64 = 32;
/// Sleep of the sender when nothing is due.
const PAUSE: Duration = Duration::from_micros(100);

/// Runs the sweep; the result states its limits.
pub(super) fn run(progress: &mut dyn Progress) -> anyhow::Result<ResultFile> {
    let start = Instant::now();
    let config = LinkConfig {
        frames: 8192,
        ..LinkConfig::default()
    };
    let (link, _client, server) = pair_on_clock(config, move || start.elapsed())?;
    let stack = Stack::in_memory(
        server,
        MemoryConfig {
            addresses: vec![IpAddr::from(SERVER.0)],
            mac: SERVER_MAC_ADDRESS,
            peer: CLIENT_MAC_ADDRESS,
        },
    )?;
    let ends = Ends {
        source_mac: CLIENT_MAC_ADDRESS,
        destination_mac: SERVER_MAC_ADDRESS,
        source: SocketAddr::new(CLIENT.0.into(), 49152),
        destination: SocketAddr::new(SERVER.0.into(), PORT),
    };
    let frame = Template::new(&ends, PAYLOAD)?.frame().to_vec();
    let page = scratch("counters");
    let counters = Counters::create(&page, 1)?;
    let reader = Reader::open(&page)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (ready, is_ready) = sync_channel(1);
    let points = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let services = [ServiceSpec {
                kind: Kind::Discard,
                port: PORT,
                work: 0,
            }];
            let host = Tidewall::new(stack, None);
            serve(
                &host,
                SERVER.0.into(),
                &services,
                BATCH,
                &counters,
                &stop,
                |_| {
                    // The thread that waits for it is there until it arrives.
                    let _ = ready.send(());
                },
            )
        });
        let swept = match is_ready.recv_timeout(Duration::from_secs(5)) {
            Ok(()) => sweep(&link, &frame, &reader, progress),
            Err(_) => Err(anyhow!("the service did not start")),
        };
        stop.store(true, Ordering::Relaxed);
        serving
            .join()
            .map_err(|_| anyhow!("the service's thread ended badly"))?
            .context("the service on the in-memory device")?;
        swept
    })?;
    let series = vec![Series {
        system: "tidewall".into(),
        points,
        ..Series::default()
    }];
    let mut claims = lrp_overload::claims(&series);
    claims.retain(|claim| claim.id == "flat");
    Ok(ResultFile {
        bare: None,
        experiment: "demo-memory".to_owned(),
        paper: "after LRP, Figure 3".to_owned(),
        quick: true,
        rounds: None,
        environment: Environment {
            senders: vec!["a thread of this process, onto the in-memory link".to_owned()],
            qdisc: "none".to_owned(),
            ..Environment::of_machine()
        },
        axes: Axes {
            x: "offered packets/s".into(),
            y: "delivered packets/s".into(),
        },
        claims,
        series,
        reference: Vec::new(),
        notes: vec![
            "In-memory device. It shows: the real service, sockets, channels and early discard \
             hold their peak whatever is offered."
                .to_owned(),
            "It does not show: a kernel, a driver, a network card, or Linux beside it. Nothing is \
             pinned, sender and service share the processors and one lock, and the rates say \
             nothing about a real link. Run it as root for that."
                .to_owned(),
        ],
    })
}

fn sweep(
    link: &Link,
    frame: &[u8],
    reader: &Reader,
    progress: &mut dyn Progress,
) -> anyhow::Result<Vec<Point>> {
    progress.begin("demo on the in-memory device", (RATES.len() * RUNS) as u64);
    let mut points = Vec::new();
    for rate in RATES {
        let (mut xs, mut ys) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            interrupt::check()?;
            let (offered, delivered) = measure(link, frame, rate, reader);
            progress.step(&format!("{offered:.0}/s → {delivered:.0}/s"));
            xs.push(offered);
            ys.push(delivered);
        }
        let y = |of: fn(f64, f64) -> f64, from: f64| ys.iter().copied().fold(from, of);
        points.push(Point {
            x: median(&xs).unwrap_or(0.0),
            y: median(&ys).unwrap_or(0.0),
            low: y(f64::min, f64::MAX),
            high: y(f64::max, 0.0),
            runs: RUNS as u32,
            ..Point::default()
        });
    }
    progress.end();
    Ok(points)
}

/// Offers one rate; returns the offered and delivered rates, per second of the window.
fn measure(link: &Link, frame: &[u8], rate: u64, reader: &Reader) -> (f64, f64) {
    let received = || reader.read().first().map_or(0, |counts| counts.received);
    let start = Instant::now();
    let mut sent = 0u64;
    let mut mark = None;
    loop {
        let elapsed = start.elapsed();
        if elapsed >= WARM_UP && mark.is_none() {
            mark = Some((elapsed, sent, received()));
        }
        if let Some((begun, sent_before, received_before)) = mark
            && elapsed >= WARM_UP + WINDOW
        {
            let seconds = (elapsed - begun).as_secs_f64();
            return (
                (sent - sent_before) as f64 / seconds,
                received().saturating_sub(received_before) as f64 / seconds,
            );
        }
        let due = (elapsed.as_secs_f64() * rate as f64) as u64;
        if sent >= due {
            // Pauses leave the link's lock to the receiver, as gaps on a wire leave a
            // device its ring.
            thread::sleep(PAUSE);
            continue;
        }
        for _ in 0..BURST_MAX.min(due - sent) {
            link.send(Side::A, frame);
            sent += 1;
        }
    }
}
