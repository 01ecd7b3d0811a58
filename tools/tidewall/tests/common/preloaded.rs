//! A program that knows nothing of Tidewall, under `tidewall run` with the library.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use super::bed::Bed;
use super::host::{Host, library};
use super::{PROGRAM, Running, text};

/// A program that runs under `tidewall run` with the library, and its report.
pub struct Preloaded {
    pub host: Host,
    pub process: Running,
    report: PathBuf,
}

impl Preloaded {
    /// In a host of its own; it has its listeners before clients come.
    pub fn start(host: Host, program: &[&str]) -> Self {
        Self::launch(host, "at-once", &[], program, Stdio::inherit())
    }

    /// As [`Preloaded::start`], with options of `tidewall run`; what it says of errors goes to
    /// `errors`.
    pub fn start_with(host: Host, options: &[&str], program: &[&str], errors: Stdio) -> Self {
        Self::launch(host, "at-once", options, program, errors)
    }

    /// As a program runs by default, whose listeners Tidewall takes `when` it may.
    pub fn start_when(host: Host, when: &str, program: &[&str]) -> Self {
        Self::launch(host, when, &[], program, Stdio::inherit())
    }

    fn launch(host: Host, when: &str, options: &[&str], program: &[&str], errors: Stdio) -> Self {
        let report = std::env::temp_dir().join(format!("{}.report", host.bed.interface));
        fs::write(&report, "").unwrap();
        let preload = format!("LD_PRELOAD={}", library().display());
        let told = format!("TIDEWALL_REPORT={}", report.display());
        let when = format!("TIDEWALL_PROMOTE={when}");
        let environment = ["env", &when, &preload, &told];
        let mut run = host.run(options, &[&environment, program].concat());
        let run = run.stdout(Stdio::null()).stderr(errors);
        let process = Running(run.spawn().unwrap());
        Preloaded {
            host,
            process,
            report,
        }
    }

    /// A program in the peer's namespace.
    pub fn peer(&self, program: &str, arguments: &[&str]) -> Output {
        let limited = [&["60", program], arguments].concat();
        let mut command = Bed::other(&self.host.bed.client, "timeout", &limited);
        command.output().unwrap()
    }

    /// As [`Preloaded::peer`], until it succeeds: what it prints.
    pub fn answered(&self, program: &str, arguments: &[&str]) -> String {
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
    pub fn records(&self) -> Vec<[String; 4]> {
        let records = fs::read_to_string(&self.report).unwrap();
        let record = |line: &str| {
            let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
            let [_, _, verdict, what, address, why] = fields.try_into().expect("six fields");
            [verdict, what, address, why]
        };
        records.lines().map(record).collect()
    }

    /// Number of the process that has the first record.
    pub fn recording_process(&self) -> String {
        let records = fs::read_to_string(&self.report).unwrap();
        records.split('\t').next().unwrap().to_owned()
    }

    /// Whether something is among the records.
    pub fn has(&self, wanted: [&str; 3]) -> bool {
        let mut records = self.records().into_iter();
        records.any(|[verdict, what, address, _]| wanted == [&*verdict, &what, &address])
    }

    /// Waits until the last record of a listener is this one.
    pub fn until_listener(&self, verdict: &str, address: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        let is_of = |record: &[String; 4]| record[1] == "listener" && record[2] == address;
        while self
            .records()
            .into_iter()
            .rfind(is_of)
            .is_none_or(|it| it[0] != verdict)
        {
            assert!(Instant::now() < end, "no {verdict}: {:?}", self.records());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many connections the stack has accepted, as `tidewall stat` says.
    pub fn accepted(&self) -> u64 {
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
        super::signal("-TERM", &self.process);
        let _ = self.process.0.wait();
        let _ = fs::remove_file(&self.report);
    }
}
