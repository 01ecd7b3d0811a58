//! The driver program in the kernel and compiled for the processor must agree on
//! every input: verdict, frame, metadata, every counter, every channel's account.

mod demux_support;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use demux_support::outcome::{DROP, Outcome, PASS, REDIRECT, TRANSMIT};
use demux_support::waits::{Wait, flow, segments};
use demux_support::{COOKIES, HASH_KEY, Random, SHARE, Sample, af_xdp, corpus, mutate, set_up};
use tidewall_device::demux::layout::{Class, Counter, Metadata};
use tidewall_device::demux::{
    Bound, ClassLimit, CookieMode, EMBEDDED_APPLICATION, Polled, Tables, Verdict, Waits,
    classify_host, drive,
};
use tidewall_manager::Program;

/// BPF_PROG_TEST_RUN accepts no shorter frame.
const SHORTEST: usize = 14;
/// The driver's clock, ns.
fn monotonic() -> u64 {
    tidewall_sys::monotonic().as_nanos() as u64
}

/// Both sides, with the same history.
struct Pair {
    program: Program,
    tables: Tables,
    /// For the answer that a frame would have received a moment ago.
    earlier: Tables,
    _socket: OwnedFd,
}

impl Pair {
    /// `None`, with a message, without the privilege.
    fn new(test: &str) -> Option<Self> {
        let skip = |error: io::Error| {
            if error.kind() != io::ErrorKind::PermissionDenied {
                panic!("{error}");
            }
            let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW ({error})");
            tidewall_skip::missing(test, what);
        };
        let mut program = Program::load_with_key(HASH_KEY).map_err(skip).ok()?;
        let socket = af_xdp().map_err(skip).ok()?;
        program.set_socket(0, 0, socket.as_fd()).unwrap();
        program.set_waiting_socket(0, 0, socket.as_fd()).unwrap();
        let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
        let earlier = Tables::in_memory_with_key(HASH_KEY).unwrap();
        set_up(&tables);
        set_up(&earlier);
        set_up(&program.tables());
        Some(Pair {
            earlier,
            program,
            tables,
            _socket: socket,
        })
    }

    /// Applies the same to both.
    fn both(&self, act: impl Fn(&Tables)) {
        act(&self.tables);
        act(&self.earlier);
        act(&self.program.tables());
    }

    /// Runs both on a frame and compares; the verdict if there was one to
    /// compare.
    fn run(&mut self, name: &str, bytes: &[u8]) -> Option<Verdict> {
        if bytes.len() < SHORTEST {
            return None;
        }
        let before = monotonic();
        let result = self.program.test_run(bytes).unwrap();
        let after = monotonic();
        let mut frame = bytes.to_vec();
        let mut verdict = drive(&self.tables, 0, &mut frame, after);
        if let Verdict::Answered(answer) = verdict
            && answer.as_bytes() != result.frame
        {
            // The clock in the answer may have ticked since the driver read it. These
            // tables have not seen the frames before this one: a NAPI probe that one of
            // those was would still be due.
            self.earlier.trusted.probe_napi(0, 0, 0);
            let mut copy = bytes.to_vec();
            verdict = drive(&self.earlier, 0, &mut copy, before);
        }
        let ours = Outcome::of_verdict(&self.tables, verdict, frame);
        let theirs = Outcome::new(
            &self.program.tables(),
            result.action,
            result.frame,
            result.metadata,
        );
        assert_eq!(
            ours, theirs,
            "native (left) and the driver (right) on {name}: {bytes:02x?}"
        );
        Some(verdict)
    }

    /// Every frame of the corpus in order; calls `each` before each.
    fn run_corpus(&mut self, each: impl Fn(&Tables)) -> Vec<(Sample, Verdict)> {
        let mut verdicts = Vec::new();
        for sample in corpus() {
            self.both(&each);
            if let Some(verdict) = self.run(&sample.name, &sample.bytes) {
                verdicts.push((sample, verdict));
            }
        }
        verdicts
    }
}

#[test]
fn agree_on_the_corpus() {
    let Some(mut pair) = Pair::new("agree_on_the_corpus") else {
        return;
    };
    let verdicts = pair.run_corpus(|_| ());
    // The corpus reaches every outcome that one queue can reach here; the other counters
    // have tests of their own below.
    let elsewhere = [
        Counter::Raw,
        Counter::NoSocket,
        Counter::NoMetadata,
        Counter::NapiProbe,
        Counter::CookieValid,
        Counter::OverShare,
        Counter::ApplicationFull,
        Counter::OverBudget,
    ];
    for counter in Counter::ALL
        .into_iter()
        .filter(|counter| !elsewhere.contains(counter))
    {
        assert_ne!(
            pair.tables.trusted.counter(0, counter),
            0,
            "the corpus misses {}",
            counter.name()
        );
    }
    for class in Class::ALL {
        if class == Class::Open {
            continue;
        }
        assert_ne!(
            pair.tables.trusted.class(0, class).passed,
            0,
            "the corpus misses {}",
            class.name()
        );
    }
    for channel in [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 15, 16, 17] {
        let reached = |verdict: &Verdict| {
            matches!(verdict,
            Verdict::Channel(metadata) if metadata.channel_id().index() == channel)
        };
        assert!(
            verdicts.iter().any(|(_, verdict)| reached(verdict)),
            "misses channel {channel}"
        );
    }
}

#[test]
fn agree_on_every_prefix_of_the_corpus() {
    let Some(mut pair) = Pair::new("agree_on_every_prefix_of_the_corpus") else {
        return;
    };
    for sample in corpus() {
        for length in SHORTEST..sample.bytes.len().min(160) {
            pair.run(&sample.name, &sample.bytes[..length]);
        }
    }
}

/// A sample's frame with a payload that extends it to this length.
fn lengthened(sample: &Sample, length: usize) -> Option<Vec<u8>> {
    let mut bytes = sample.bytes.clone();
    bytes.resize(length, 0x5a);
    let (ip, before) = if sample.name.starts_with("v4-") {
        (16, 14)
    } else {
        (18, 54)
    };
    let longest = u16::try_from(length - before).ok()?;
    bytes[ip..ip + 2].copy_from_slice(&longest.to_be_bytes());
    if sample.name.contains("-udp-") {
        let udp = if before == 14 { 34 } else { 54 };
        let length = (length - udp) as u16;
        bytes[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
    }
    Some(bytes)
}

#[test]
fn agree_on_frames_in_several_pieces() {
    let Some(mut pair) = Pair::new("agree_on_frames_in_several_pieces") else {
        return;
    };
    let plain = [
        "-udp-any",
        "-udp-by-address",
        "-udp-connected",
        "-udp-unowned",
    ];
    let mut admitted = 0;
    for length in [3_000, 3_520, 3_521, 9_014, 65_535] {
        for sample in corpus() {
            let Some(bytes) = lengthened(&sample, length) else {
                continue;
            };
            let name = format!("{} of {length}", sample.name);
            if let Some(Verdict::Channel(metadata)) = pair.run(&name, &bytes) {
                let is_whole = usize::from(metadata.end) == length;
                assert!(is_whole || !plain.iter().any(|it| sample.name.ends_with(it)));
                admitted += usize::from(is_whole);
            }
            // Cut short.
            pair.run(&name, &bytes[..length - 1]);
        }
    }
    assert!(admitted > 30, "only {admitted} admitted");
}

#[test]
fn agree_when_nothing_is_set_up() {
    let Some(mut pair) = Pair::new("agree_when_nothing_is_set_up") else {
        return;
    };
    pair.both(|tables| {
        tables.trusted.set_locals(&[]).unwrap();
        tables
            .embedded
            .set_fragment_channel(tidewall_device::demux::ChannelId::NONE);
    });
    pair.run_corpus(|_| ());
    // Local, but orphans are the kernel's.
    pair.both(|tables| {
        tables
            .trusted
            .set_locals(&["192.0.2.1".parse().unwrap()])
            .unwrap()
    });
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
}

#[test]
fn agree_on_raw_frames_and_the_host_finds_their_channels() {
    let Some(mut pair) = Pair::new("agree_on_raw_frames_and_the_host_finds_their_channels") else {
        return;
    };
    let demultiplexed = pair.run_corpus(|_| ());
    pair.both(|tables| {
        tables.trusted.set_raw(true);
        tables.trusted.forget_fragments();
    });
    let raw = pair.run_corpus(|_| ());
    assert_ne!(pair.tables.trusted.counter(0, Counter::Raw), 0);
    let mut found = 0;
    for ((sample, direct), (_, raw)) in demultiplexed.iter().zip(&raw) {
        let Verdict::Raw(metadata) = raw else {
            assert!(!matches!(direct, Verdict::Channel(_)), "{}", sample.name);
            continue;
        };
        // Over either kind of tables.
        for tables in [&pair.tables.embedded, &pair.program.tables().embedded] {
            let host = classify_host(tables, &sample.bytes, metadata);
            match direct {
                Verdict::Channel(expected) => {
                    let (channel, host) = host.expect(&sample.name);
                    assert_eq!(channel, expected.channel_id(), "{}", sample.name);
                    assert_eq!(
                        host,
                        Metadata {
                            credit: 0,
                            ..*expected
                        },
                        "{}",
                        sample.name
                    );
                    found += 1;
                }
                Verdict::Drop {
                    counter: Counter::ChannelFull | Counter::ChannelClosed,
                } => {
                    assert!(host.is_some(), "{}", sample.name);
                }
                // The listener's owner judges segments of no connection.
                Verdict::Answered(_)
                | Verdict::Drop {
                    counter: Counter::NoConnection,
                }
                | Verdict::Kernel {
                    class: Class::NoConnection,
                } => {
                    let listener = |index: u16| (11..15).contains(&index);
                    let at_listener = host.is_none_or(|(channel, _)| listener(channel.index()));
                    assert!(at_listener, "{}", sample.name);
                }
                _ => assert_eq!(host, None, "{}", sample.name),
            }
        }
    }
    assert!(found > 50, "only {found} found");
}

#[test]
fn agree_on_napi_probes() {
    let Some(mut pair) = Pair::new("agree_on_napi_probes") else {
        return;
    };
    let probes = pair.run_corpus(|tables| tables.trusted.probe_napi(0, 40_000, 4_242));
    let count = probes
        .iter()
        .filter(|(_, verdict)| *verdict == Verdict::NapiProbe)
        .count();
    assert!(count > 20, "only {count} probes");
    assert_eq!(
        pair.tables.trusted.counter(0, Counter::NapiProbe),
        count as u64
    );
    pair.both(|tables| tables.trusted.probe_napi(0, 0, 0));
}

#[test]
fn agree_on_tracing_and_the_driver_leaves_records() {
    let Some(mut pair) = Pair::new("agree_on_tracing_and_the_driver_leaves_records") else {
        return;
    };
    pair.both(|tables| tables.trusted.start_trace(u32::MAX));
    let mut next = 0;
    for sample in corpus() {
        let Some(verdict) = pair.run(&sample.name, &sample.bytes) else {
            continue;
        };
        next += 1;
        let record = pair
            .program
            .traces()
            .next()
            .expect("a record for each frame");
        assert_eq!(pair.program.traces().next(), None);
        assert_eq!((record.trace, record.queue), (next, 0));
        // For an answered SYN there is the answer, as it left.
        if !matches!(verdict, Verdict::Answered(_)) {
            assert_eq!(record.length as usize, sample.bytes.len());
            let captured = sample.bytes.len().min(256);
            assert_eq!(record.captured as usize, captured);
            assert_eq!(record.bytes[..captured], sample.bytes[..captured]);
        }
        let cause = Counter::from_index(record.cause);
        match verdict {
            Verdict::Channel(metadata) => {
                assert_eq!(metadata.trace, next);
                assert_eq!(
                    (record.channel, record.verdict),
                    (metadata.channel, REDIRECT)
                );
                assert_eq!(cause, Some(Counter::Channel));
            }
            Verdict::Drop { counter } => {
                assert_eq!(
                    (record.verdict, cause),
                    (DROP, Some(counter)),
                    "{}",
                    sample.name
                );
            }
            Verdict::Answered(answer) => {
                assert_eq!(
                    (record.verdict, cause, record.length as usize),
                    (TRANSMIT, Some(Counter::CookieSent), answer.as_bytes().len())
                );
            }
            _ => assert_eq!(record.verdict, PASS),
        }
    }
    // A countdown ends.
    pair.both(|tables| tables.trusted.start_trace(1));
    let sample = &corpus()[0];
    pair.run(&sample.name, &sample.bytes);
    pair.run(&sample.name, &sample.bytes);
    assert_eq!(pair.program.traces().count(), 1);
}

#[test]
fn agree_on_parts_of_shared_channels() {
    let Some(mut pair) = Pair::new("agree_on_parts_of_shared_channels") else {
        return;
    };
    pair.both(|tables| tables.embedded.set_share(SHARE, 1));
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
    let over = |pair: &Pair| pair.tables.trusted.counter(0, Counter::OverShare);
    let first = over(&pair);
    assert_ne!(first, 0);
    assert!(pair.tables.embedded.dropped(0, 6) >= first);
    pair.run_corpus(|tables| tables.embedded.renew_shares(SHARE));
    assert_eq!(over(&pair), first, "each frame had a part of its own");
}

#[test]
fn agree_on_full_applications() {
    let Some(mut pair) = Pair::new("agree_on_full_applications") else {
        return;
    };
    pair.run_corpus(|tables| {
        let head = tables.embedded.total_head(0);
        let room = u32::from(head.is_multiple_of(2));
        tables.embedded.set_given(0, head.wrapping_add(room));
    });
    let full = pair.tables.trusted.counter(0, Counter::ApplicationFull);
    assert!(full > 10, "{full}");
}

#[test]
fn agree_on_budgets() {
    let Some(mut pair) = Pair::new("agree_on_budgets") else {
        return;
    };
    let set_early = |tables: &Tables, until, tolerance| {
        let bound = Some(Bound {
            rate: 1.0,
            tolerance,
            until,
        });
        tables.trusted.set_bound(EMBEDDED_APPLICATION, 0, bound);
    };
    let set = |tables: &Tables, until| set_early(tables, until, Duration::ZERO);
    let far = Duration::from_nanos(monotonic()) + Duration::from_secs(60);
    pair.both(|tables| set(tables, far));
    pair.run_corpus(|_| ());
    let polled = |tables: &Tables| tables.trusted.polled(EMBEDDED_APPLICATION, 0);
    assert_eq!(
        polled(&pair.tables),
        Polled::default(),
        "not before it charges"
    );
    pair.both(|tables| tables.trusted.set_charging(true));
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
    let over = |pair: &Pair| pair.tables.trusted.counter(0, Counter::OverBudget);
    let first = over(&pair);
    let had = polled(&pair.tables);
    assert!(first > 10, "{first}");
    // One per second, and the corpus takes less.
    assert!((1..20).contains(&had.passed), "{had:?}");
    assert_eq!(had, polled(&pair.program.tables()));
    pair.both(|tables| set(tables, Duration::ZERO));
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
    assert_eq!(over(&pair), first, "a bound ends by itself");
    let before = polled(&pair.tables).passed;
    pair.both(|tables| set_early(tables, far, Duration::from_secs(2)));
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
    let passed = polled(&pair.tables).passed - before;
    assert!(passed > 0, "what passed unbound is no debt");
}

#[test]
fn agree_on_segments_that_may_wait() {
    let Some(mut pair) = Pair::new("agree_on_segments_that_may_wait") else {
        return;
    };
    // In the application's time, as long as the test takes. Acknowledgments, which wait
    // some milliseconds after a round, are tested in `demux_emulated`.
    let far = monotonic() - COOKIES.epoch.as_nanos() as u64;
    let until = Duration::from_nanos(far) + Duration::from_secs(60);
    let (local, remote) = flow();
    pair.both(|tables| {
        tables.embedded.set_waiting_limit(0, 1 << 20);
        tables
            .embedded
            .set_waits(local, remote, Waits::AllUntil(until));
    });
    for (name, bytes, which) in segments() {
        let before = pair.tables.embedded.waiting_head(0);
        pair.run(name, &bytes).unwrap();
        let waited = pair.tables.embedded.waiting_head(0) - before;
        assert_eq!(waited, u32::from(which != Wait::Never), "{name}");
    }
    pair.run_corpus(|tables| tables.trusted.forget_fragments());
}

#[test]
fn agree_on_class_limits() {
    let Some(mut pair) = Pair::new("agree_on_class_limits") else {
        return;
    };
    // One per second: the burst and the shares pass, and no more while this test runs.
    // Both must see all of it in one epoch of their clock.
    while monotonic() >> 28 & 3 == 3 {
        std::thread::yield_now();
    }
    pair.both(|tables| {
        for class in Class::ALL {
            tables
                .trusted
                .set_class(0, class, ClassLimit::of(1, 3).and_each(1, 2));
        }
        // This host may have any sockets.
        tables
            .trusted
            .set_class(0, Class::Open, ClassLimit::of(1, 0));
    });
    // Few frames: in a second the driver's buckets would earn more.
    let samples = [
        "v6-ns-this-link",
        "arp-unicast",
        "v4-icmp-8-udp",
        "v4-tcp-22-ack",
        "v4-tcp-22-syn",
        "v4-udp-unowned",
        "v4-multicast",
        "v6-esp",
        "v4-udp-not-local",
        "v4-strict-ack",
    ];
    let corpus = corpus();
    let classes = Class::ALL.into_iter().filter(|&class| class != Class::Open);
    for (class, name) in classes.zip(samples) {
        let sample = corpus.iter().find(|sample| sample.name == name).unwrap();
        for _ in 0..12 {
            pair.run(name, &sample.bytes);
        }
        // Between half and one and a half of the burst, and two shares of 2.
        let counts = pair.tables.trusted.class(0, class);
        let name = class.name();
        assert!((4..=9).contains(&counts.passed), "{name}: {counts:?}");
        assert_eq!(counts.passed + counts.dropped, 12, "{name}");
    }
}

#[test]
fn agree_on_mutations() {
    let Some(mut pair) = Pair::new("agree_on_mutations") else {
        return;
    };
    let corpus = corpus();
    let mut random = Random(0x7469_6465_7761_6c6c);
    let start = Instant::now();
    let mut inputs = 0u32;
    while inputs < 1_000_000 && start.elapsed() < Duration::from_secs(4) {
        if inputs.is_multiple_of(1000) {
            // Two caches of the same size need not forget the same entry.
            pair.both(|tables| tables.trusted.forget_fragments());
            let raw = random.below(4) == 0;
            pair.both(|tables| {
                tables.trusted.set_raw(raw);
                tables.embedded.tail_add(
                    0,
                    8,
                    tables
                        .embedded
                        .head(0, 8)
                        .wrapping_sub(tables.embedded.tail(0, 8)),
                );
            });
        }
        let sample = &corpus[random.below(corpus.len())];
        let other = &corpus[random.below(corpus.len())];
        let mut bytes = sample.bytes.clone();
        mutate(&mut bytes, &other.bytes, &mut random);
        if random.below(64) == 0 {
            pair.both(|tables| tables.trusted.probe_napi(0, 40_000, 4_242));
        }
        pair.run(&sample.name, &bytes);
        inputs += 1;
    }
    println!("{inputs} mutations in {:?}", start.elapsed());
    assert!(inputs >= 10_000, "only {inputs} inputs in four seconds");
}

/// A TCP segment from the peer of an answer: what a client sends next.
fn next_from_client(answer: &[u8], sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = answer.to_vec();
    let (network, transport) = if answer[12] == 8 { (20, 34) } else { (40, 54) };
    let swap = |frame: &mut Vec<u8>, at: usize, length: usize| {
        let (first, second) = frame[at..at + 2 * length].split_at_mut(length);
        first.swap_with_slice(second);
    };
    swap(&mut frame, 0, 6);
    let length = if network == 20 { 4 } else { 16 };
    swap(&mut frame, 14 + network - 2 * length, length);
    swap(&mut frame, transport, 2);
    let cookie = u32::from_be_bytes(frame[transport + 4..][..4].try_into().unwrap());
    frame[transport + 4..][..4].copy_from_slice(&sequence.to_be_bytes());
    frame[transport + 8..][..4].copy_from_slice(&cookie.wrapping_add(1).to_be_bytes());
    frame[transport + 12] = 0x50;
    frame[transport + 13] = 0x10;
    frame.truncate(transport + 20);
    frame.extend_from_slice(payload);
    let total = u16::try_from(frame.len() - 14).unwrap();
    if network == 20 {
        frame[16..18].copy_from_slice(&total.to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&(total - 40).to_be_bytes());
    }
    frame
}

#[test]
fn agree_on_cookies_and_their_acknowledgments() {
    let Some(mut pair) = Pair::new("agree_on_cookies_and_their_acknowledgments") else {
        return;
    };
    let mut answered = 0;
    for sample in corpus() {
        let Some(Verdict::Answered(answer)) = pair.run(&sample.name, &sample.bytes) else {
            continue;
        };
        answered += 1;
        let answer = answer.as_bytes();
        let transport = if answer[12] == 8 { 34 } else { 54 };
        let word =
            |at: usize| u32::from_be_bytes(answer[transport + at..][..4].try_into().unwrap());
        assert_eq!(word(8), 0x0102_0305, "acknowledges the SYN");
        let sequence = word(8);
        let ack = next_from_client(answer, sequence, b"");
        // To the listener's channel, whatever it carries.
        for frame in [&ack, &next_from_client(answer, sequence, b"GET / HTTP/1.1")] {
            let verdict = pair.run(&sample.name, frame);
            let Some(Verdict::Channel(metadata)) = verdict else {
                panic!("{}: {verdict:?}", sample.name)
            };
            assert!((12..15).contains(&metadata.channel_id().index()));
        }
        // With one bit changed it belongs to no connection: an ACK is reset, data is not.
        let valid = pair.tables.trusted.counter(0, Counter::CookieValid);
        for bit in 0..64 {
            let mut forged = ack.clone();
            forged[transport + 4 + bit / 8] ^= 1 << (bit % 8);
            let verdict = pair.run(&sample.name, &forged);
            let class = Class::NoConnection;
            assert_eq!(verdict, Some(Verdict::Kernel { class }), "bit {bit}");
        }
        let early = next_from_client(answer, sequence.wrapping_add(1460), b"more");
        let counter = Counter::NoConnection;
        let dropped = Some(Verdict::Drop { counter });
        assert_eq!(pair.run(&sample.name, &early), dropped);
        assert_eq!(pair.tables.trusted.counter(0, Counter::CookieValid), valid);
        // Accepted after the driver stopped answering, refused when cookies are off.
        let set = |pair: &Pair, mode| {
            pair.both(|tables| {
                (91..94).for_each(|port| tables.embedded.set_cookies(port, mode).unwrap())
            });
        };
        set(&pair, CookieMode::Take);
        for (frame, expected) in [(&ack, true), (&sample.bytes, true)] {
            let verdict = pair.run(&sample.name, frame);
            assert_eq!(matches!(verdict, Some(Verdict::Channel(_))), expected);
        }
        set(&pair, CookieMode::Off);
        let class = Class::NoConnection;
        let verdict = pair.run(&sample.name, &ack);
        assert_eq!(verdict, Some(Verdict::Kernel { class }));
        set(&pair, CookieMode::Answer);
    }
    assert!(answered > 60, "only {answered} answered");
}

/// Cost of a frame in the driver; printed, for comparing two versions.
#[test]
#[ignore = "a measurement"]
fn time_of_the_driver_program() {
    let Some(mut pair) = Pair::new("time_of_the_driver_program") else {
        return;
    };
    let names = [
        "v4-udp-any",
        "v6-udp-any",
        "v4-udp-connected",
        "v6-tcp-connected",
        "v4-strict-flow-ack",
        "v4-strict-syn",
        "v4-strict-ack-data",
        "v4-cookies-ack",
        "v4-cookies-from-zero",
    ];
    for name in names {
        let sample = corpus().into_iter().find(|sample| sample.name == name);
        let bytes = sample.unwrap().bytes;
        let mut times: Vec<_> = (0..9)
            .map(|_| pair.program.test_time(&bytes, 200_000).unwrap())
            .collect();
        times.sort_unstable();
        println!("{name}: median {:?}, fastest {:?}", times[4], times[0]);
    }
}
