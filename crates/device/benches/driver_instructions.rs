//! Instructions that the driver program spends per frame, and its calls of helpers,
//! counted by an emulator: a shared machine changes times, not counts. They are eBPF
//! instructions; the kernel's translation of them for a processor is not counted.
//!
//! `cargo bench -p tidewall-device --bench driver_instructions` compares them with
//! `benches/driver_instructions.txt`; `-- --keep` writes that. See
//! `tidewall_bench_instructions`.

#[path = "../tests/demux_support/mod.rs"]
mod demux_support;
#[path = "../tests/emulator/mod.rs"]
mod emulator;

use std::process::ExitCode;

use demux_support::{HASH_KEY, corpus, set_up};
use emulator::Emulator;
use tidewall_device::demux::Tables;

const KEPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/driver_instructions.txt"
);

/// How far a count may be above the recorded one, in hundredths of that.
const TOLERANCE: u64 = 2;

/// The measured cases, each with its frame of the corpus.
const FRAMES: [(&str, &str); 13] = [
    (
        "UDP over IPv4 to a socket bound to any address",
        "v4-udp-any",
    ),
    (
        "UDP over IPv6 to a socket bound to any address",
        "v6-udp-any",
    ),
    ("UDP of a connected socket", "v4-udp-connected"),
    ("UDP for a full channel", "v4-udp-small-limit"),
    ("UDP for a port without an owner", "v4-udp-unowned"),
    ("TCP over IPv4 of an established flow", "v4-strict-flow-ack"),
    ("TCP over IPv6 of an established flow", "v6-strict-flow-ack"),
    ("SYN for a listener", "v4-strict-syn-linux"),
    (
        "SYN over IPv4 answered with a cookie",
        "v4-cookies-syn-linux",
    ),
    (
        "SYN over IPv6 answered with a cookie",
        "v6-cookies-syn-linux",
    ),
    ("ARP", "arp-broadcast"),
    ("AAL5 of a circuit", "circuit-open"),
    ("MPLS of no circuit", "circuit-unknown"),
];

fn main() -> ExitCode {
    let corpus = corpus();
    let counts = FRAMES.into_iter().flat_map(|(name, sample)| {
        let found = corpus.iter().find(|one| one.name == sample);
        let frame = &found.expect("a frame of the corpus").bytes;
        let tables = Tables::in_memory_with_key(HASH_KEY).expect("memory");
        set_up(&tables);
        let mut driver = Emulator::driver(&tables);
        driver.time = 1_000_000_000;
        // The first fills the small channel.
        let first = driver.run(frame, 0);
        let run = first.and_then(|_| driver.run(frame, 0));
        let run = run.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let helpers: Vec<_> = (run.helpers.iter())
            .map(|(helper, calls)| format!("{calls} {helper}"))
            .collect();
        let calls = run.helpers.values().sum();
        [
            (name.to_owned(), run.instructions, String::new()),
            (
                format!("{name}, helpers"),
                calls,
                format!(" ({})", helpers.join(", ")),
            ),
        ]
    });
    tidewall_bench_instructions::judge(KEPT, Emulator::compiler(), TOLERANCE, counts)
}
