//! An unmodified program under `tidewall run` with the library.

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
    /// Starts it in its own host; it has its listeners before clients arrive.
    pub fn start(host: Host, program: &[&str]) -> Self {
        Self::launch(host, "at-once", &[], program, Stdio::inherit())
    }

    /// Acts as [`Preloaded::start`], with options of `tidewall run`; standard error goes
    /// to `errors`.
    pub fn start_with(host: Host, options: &[&str], program: &[&str], errors: Stdio) -> Self {
        Self::launch(host, "at-once", options, program, errors)
    }

    /// Starts a program with default settings; Tidewall takes its listeners at the time
    /// `when`.
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

    /// Runs a program in the peer's namespace.
    pub fn peer(&self, program: &str, arguments: &[&str]) -> Output {
        let limited = [&["60", program], arguments].concat();
        let mut command = Bed::other(&self.host.bed.client, "timeout", &limited);
        command.output().unwrap()
    }

    /// Acts as [`Preloaded::peer`], until it succeeds; returns its output.
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

    /// Returns the records of the report: verdict, kind of socket, address, reason.
    pub fn records(&self) -> Vec<[String; 4]> {
        let records = fs::read_to_string(&self.report).unwrap();
        let record = |line: &str| {
            let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
            let [_, _, verdict, what, address, why] = fields.try_into().expect("six fields");
            [verdict, what, address, why]
        };
        records.lines().map(record).collect()
    }

    /// Returns the process that has the first record.
    pub fn recording_process(&self) -> String {
        let records = fs::read_to_string(&self.report).unwrap();
        records.split('\t').next().unwrap().to_owned()
    }

    /// Returns whether the records include this one.
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

    /// Returns how many connections the stack has accepted, according to `tidewall stat`.
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
        // The run passes it on, and restores everything.
        super::signal("-TERM", &self.process);
        let _ = self.process.0.wait();
        let _ = fs::remove_file(&self.report);
    }
}
