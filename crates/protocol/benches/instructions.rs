//! Instructions that the TCP engine spends on a segment of the clean path,
//! counted by valgrind: a shared machine changes times, not counts.
//!
//! `cargo bench -p tidewall-protocol --bench instructions` prints each count
//! beside the one that is kept in `benches/instructions.txt` and fails if one is
//! above it by more than a twentieth. `-- --keep` writes the file. Another compiler
//! makes another program: counts are only judged against those of the same one.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{self, Checksum, Config, Connection, Flow, Handshake, Link, State};
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::Timestamps;

/// What is counted: its name, and the run of so many rounds.
type Scenario = (&'static str, fn(u32));

const SCENARIOS: [Scenario; 3] = [
    ("bulk, a segment of 1448 bytes", bulk),
    ("request and response, an exchange", exchange),
    ("bulk with offload, 64 KiB", offload),
];

/// Rounds of the two runs whose difference is counted: the beginning, slow start
/// included, is the same in both.
const ROUNDS: [u32; 2] = [2000, 4000];

/// Beyond what is kept, in hundredths.
const TOLERANCE: u64 = 5;

const WIRE: InputOptions = InputOptions {
    verified: true,
    checksum_offload_possible: false,
};

const LINK: Link = Link {
    source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
    destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
    hop_limit: 64,
    checksum: Checksum::Offload,
};

/// Two established ends, and the frame between them.
struct Pair {
    ends: [Connection; 2],
    now: Duration,
    frame: Vec<u8>,
}

impl Pair {
    fn new(config: &Config) -> Self {
        let flow = Flow {
            local: "192.0.2.1:40000".parse().expect("an address"),
            remote: "192.0.2.2:80".parse().expect("an address"),
        };
        let handshake = |flow, local_isn, remote_isn| Handshake {
            flow,
            local_isn,
            remote_isn,
            mss: 1460,
            window_scale: Some(7),
            local_window_scale: 7,
            sack: true,
            ecn: false,
            timestamps: Some(Timestamps { value: 1, echo: 1 }),
            timestamp_offset: 0,
            window: 65_535,
            round_trip: Some(Duration::from_micros(100)),
            fast_open: None,
        };
        let back = Flow {
            local: flow.remote,
            remote: flow.local,
        };
        let now = Duration::from_secs(1);
        Self {
            ends: [
                Connection::accept(&handshake(flow, 1000, 9000), config, now),
                Connection::accept(&handshake(back, 9000, 1000), config, now),
            ],
            now,
            frame: vec![0; 1 << 17],
        }
    }

    /// Lets one end send all it may, to the other; the segments sent.
    fn send(&mut self, from: usize) -> usize {
        let [first, second] = &mut self.ends;
        let (sender, receiver) = if from == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let (flow, now, frame) = (*sender.flow(), self.now, &mut self.frame);
        let mut sent = 0;
        sender.output(now, &mut |outgoing| {
            let length = tcp::output(frame, &LINK, &flow, outgoing).expect("room for a segment");
            let segment = tcp::input(&frame[HEADER_LEN..length], 20, &WIRE).expect("a segment");
            receiver.input(&segment, now);
            sent += 1;
            true
        });
        sent
    }

    /// Until neither end has anything to send at this time.
    fn settle(&mut self) {
        while self.send(0) + self.send(1) > 0 {}
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            if end.next_timeout().is_some_and(|at| at <= self.now) {
                end.timeout(self.now);
            }
        }
    }
}

fn stream(config: &Config, length: usize, rounds: u32) {
    let mut pair = Pair::new(config);
    let bytes = vec![7; length];
    let mut buffer = vec![0; 1 << 17];
    for _ in 0..rounds {
        let written = pair.ends[0].write(&bytes).expect("room");
        assert_eq!(written, length);
        // As a receiver does that takes what its channel holds: several
        // segments, then what they want sent.
        while pair.ends[0].wants_output() {
            pair.send(0);
            pair.pass(Duration::from_micros(20));
            while let Ok(1..) = pair.ends[1].read(&mut buffer) {}
            pair.send(1);
        }
        pair.pass(Duration::from_millis(41));
        pair.settle();
    }
    assert_eq!(pair.ends[0].state(), State::Established);
    assert_eq!(pair.ends[0].info().retransmissions, 0);
    let sent = u64::from(rounds) * length as u64;
    assert_eq!(pair.ends[0].info().bytes_acknowledged, sent);
}

/// Ten full segments a round: what is counted is a tenth of a round.
fn bulk(rounds: u32) {
    stream(&Config::default(), 14_480, rounds / 10);
}

fn offload(rounds: u32) {
    let config = Config {
        offload: 65_000,
        ..Config::default()
    };
    stream(&config, 65_160, rounds);
}

fn exchange(rounds: u32) {
    let mut pair = Pair::new(&Config {
        nodelay: true,
        ..Config::default()
    });
    let (request, response) = ([1; 100], [2; 1000]);
    let mut buffer = [0; 2000];
    for _ in 0..rounds {
        pair.ends[0].write(&request).expect("room");
        pair.send(0);
        pair.pass(Duration::from_micros(10));
        assert_eq!(pair.ends[1].read(&mut buffer), Ok(request.len()));
        pair.ends[1].write(&response).expect("room");
        pair.send(1);
        pair.pass(Duration::from_micros(10));
        assert_eq!(pair.ends[0].read(&mut buffer), Ok(response.len()));
    }
}

/// Instructions of one run, those aside that libc spends on copying and
/// clearing payload: they would hide the engine's.
fn count(scenario: usize, rounds: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("tidewall-instructions-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .arg(format!("--cachegrind-out-file={}", file.display()))
        .arg(program)
        .args(["--run", &scenario.to_string(), &rounds.to_string()])
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); `make setup` installs it"))?;
    let profile = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind has failed:\n{said}"));
    }
    let profile = profile.map_err(|error| format!("{}: {error}", file.display()))?;
    // Lines "fn=NAME", then "LINE COUNT" for every line of it.
    let (mut copies, mut sum) = (false, 0u64);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            copies = name.starts_with("__mem") || name.starts_with("mem");
        } else if !copies
            && line.starts_with(|first: char| first.is_ascii_digit())
            && let Some((_, count)) = line.split_once(' ')
        {
            sum += count.trim().parse::<u64>().unwrap_or(0);
        }
    }
    Ok(sum)
}

/// What `rustc --version` says.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn measure(keep: bool) -> Result<bool, String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let compiler = compiler();
    let same = kept.lines().next() == Some(compiler.as_str());
    if !keep && !same {
        println!("not judged: what is kept was counted with another compiler than {compiler}");
    }
    let (mut text, mut good) = (format!("{compiler}\n"), true);
    for (scenario, (name, _)) in SCENARIOS.iter().enumerate() {
        let [less, more] = ROUNDS.map(|rounds| count(scenario, rounds));
        let each = more?.saturating_sub(less?) / u64::from(ROUNDS[1] - ROUNDS[0]);
        let before = kept
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
            .unwrap_or(u64::MAX);
        let within = each.saturating_mul(100) <= before.saturating_mul(100 + TOLERANCE);
        good &= keep || !same || within;
        let word = if within { "" } else { " ABOVE" };
        println!(
            "{name}: {each} instructions, {:.3} of {before}{word}",
            each as f64 / before as f64
        );
        let _ = writeln!(text, "{name}: {each}");
    }
    if keep {
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(good)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [run, scenario, rounds] = arguments.as_slice()
        && run == "--run"
        && let (Ok(scenario), Ok(rounds)) = (scenario.parse::<usize>(), rounds.parse())
        && let Some((_, scenario)) = SCENARIOS.get(scenario)
    {
        scenario(rounds);
        return ExitCode::SUCCESS;
    }
    match measure(arguments.iter().any(|argument| argument == "--keep")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
