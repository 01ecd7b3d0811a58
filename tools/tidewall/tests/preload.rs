//! Programs that know nothing of Tidewall, with `libtidewall.so` in place of the C
//! library's socket calls (docs/preload.md). Needs root; skipped without.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::host::{Host, library};
use common::{PROGRAM, Running, text};

const HERE: &str = "10.99.0.2";

/// A program that runs under `tidewall run` with the library, and its report.
struct Preloaded {
    host: Host,
    process: Running,
    report: PathBuf,
}

impl Preloaded {
    fn start(host: Host, program: &[&str]) -> Self {
        let report = std::env::temp_dir().join(format!("{}.report", host.bed.interface));
        fs::write(&report, "").unwrap();
        let preload = format!("LD_PRELOAD={}", library().display());
        let told = format!("TIDEWALL_REPORT={}", report.display());
        let environment = ["env", &preload, &told];
        let mut run = host.run(&[], &[&environment, program].concat());
        let process = Running(run.stdout(Stdio::null()).spawn().unwrap());
        Preloaded {
            host,
            process,
            report,
        }
    }

    /// A program in the peer's namespace.
    fn peer(&self, program: &str, arguments: &[&str]) -> Output {
        let limited = [&["60", program], arguments].concat();
        let mut command = Bed::other(&self.host.bed.client, "timeout", &limited);
        command.output().unwrap()
    }

    /// As [`Preloaded::peer`], until it succeeds: what it prints.
    fn answered(&self, program: &str, arguments: &[&str]) -> String {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let output = self.peer(program, arguments);
            if output.status.success() {
                return text(&output.stdout);
            }
            assert!(Instant::now() < end, "{}", text(&output.stderr));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Records of the report: what became of a socket, which, where, why.
    fn records(&self) -> Vec<[String; 4]> {
        let records = fs::read_to_string(&self.report).unwrap();
        let record = |line: &str| {
            let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
            let [_, _, verdict, what, address, why] = fields.try_into().expect("six fields");
            [verdict, what, address, why]
        };
        records.lines().map(record).collect()
    }

    /// Whether something is among the records.
    fn has(&self, wanted: [&str; 3]) -> bool {
        let mut records = self.records().into_iter();
        records.any(|[verdict, what, address, _]| wanted == [&*verdict, &what, &address])
    }

    /// How many connections the stack has accepted, as `tidewall stat` says.
    fn accepted(&self) -> u64 {
        let stat = self.host.output(PROGRAM, &["stat"]);
        let line = stat
            .lines()
            .find(|line| line.trim_start().starts_with("accepted "));
        let count = line.and_then(|line| line.split_whitespace().nth(1));
        count.map_or(0, |count| count.replace(',', "").parse().unwrap())
    }
}

impl Drop for Preloaded {
    fn drop(&mut self) {
        // The run passes it on, and puts everything back.
        common::signal("-TERM", &self.process);
        let _ = self.process.0.wait();
        let _ = fs::remove_file(&self.report);
    }
}

#[test]
fn redis_answers_by_the_stack() {
    let test = "redis_answers_by_the_stack";
    if !tidewall_skip::has_programs(test, &["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    let Some(host) = Host::or_skip(test, "pr") else {
        return;
    };
    let server = [
        "redis-server",
        "--save",
        "",
        "--protected-mode",
        "no",
        "--bind",
        "0.0.0.0",
    ];
    let redis = Preloaded::start(host, &server);
    assert_eq!(redis.answered("redis-cli", &["-h", HERE, "ping"]), "PONG\n");
    assert!(redis.has(["promoted", "listener", "0.0.0.0:6379"]));
    let value = "v".repeat(100_000);
    let set = redis.answered("redis-cli", &["-h", HERE, "set", "key", &value]);
    assert_eq!(set, "OK\n");
    let got = redis.answered("redis-cli", &["-h", HERE, "get", "key"]);
    assert_eq!(got.trim(), value);
    let benchmark = ["-h", HERE, "-c", "20", "-n", "4000", "-q", "-t", "get,set"];
    let said = redis.answered("redis-benchmark", &benchmark);
    assert!(said.contains("GET: ") && said.contains("SET: "), "{said}");
    // Three commands and twice twenty clients, at least.
    let accepted = redis.accepted();
    assert!(accepted >= 43, "{accepted}");
    // By loopback it is the kernel's.
    let local = redis.host.output("redis-cli", &["ping"]);
    assert_eq!(local, "PONG\n");
    assert_eq!(redis.accepted(), accepted);
}
