//! A host in a network namespace, with its own bpffs and /run.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;

use super::bed::Bed;
use super::{PROGRAM, Running, text};

/// Variable with the path of the library for unmodified programs.
pub const LIBRARY: &str = "TIDEWALL_LIBRARY";
/// An administrator's earlier settings, which differ from a device's defaults.
const SET: &str = "3 70000";

/// The library that belongs to the program.
pub fn library() -> PathBuf {
    static BUILT: Once = Once::new();
    let library = PathBuf::from(PROGRAM).with_file_name("libtidewall.so");
    BUILT.call_once(|| {
        // No test of this package builds it, and an existing one may be from other
        // sources.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "-p", "tidewall-preload"]);
        // A process of a test may be anywhere.
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().unwrap().success());
    });
    assert!(library.exists(), "{}", library.display());
    library
}

/// A bed whose server keeps its mounts.
pub struct Host {
    pub bed: Bed,
    keeper: Running,
}

impl Host {
    /// Returns a host if the privileges and programs are there; otherwise reports that
    /// `test` is skipped and returns `None`.
    pub fn or_skip(test: &str, name: &str) -> Option<Self> {
        if !tidewall_skip::has_programs(test, &["setpriv", "nsenter"]) {
            return None;
        }
        let bed = Bed::or_skip(test, name)?;
        let script = format!(
            "mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs tmpfs /run \
             && echo 3 > /sys/class/net/{0}/napi_defer_hard_irqs \
             && echo 70000 > /sys/class/net/{0}/gro_flush_timeout \
             && echo ready && exec cat",
            bed.interface
        );
        let mut keeper = Bed::other(&bed.server, "sh", &["-c", &script])
            // It ends with the test.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(keeper.stdout.take().unwrap());
        lines.read_line(&mut said).unwrap();
        let keeper = Running(keeper);
        if said.trim() != "ready" {
            tidewall_skip::missing(test, "a bpffs of its own (CAP_SYS_ADMIN)");
            return None;
        }
        Some(Host { bed, keeper })
    }

    /// Returns a program there.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let keeper = self.keeper.0.id().to_string();
        command
            .args(["-t", &keeper, "-n", "-m", program])
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// `tidewall run` of a program that is written for Tidewall, on the bed's interface.
    pub fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.run_on(&self.bed.interface, options, program);
        command.env(LIBRARY, "");
        command
    }

    /// Returns the same for any program.
    pub fn run_on(&self, interface: &str, options: &[&str], program: &[&str]) -> Command {
        let interface = ["run", "--interface", interface];
        self.command(PROGRAM, &[&interface, options, &["--"], program].concat())
    }

    /// Returns the output of a program there.
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        text(&self.command(program, arguments).output().unwrap().stdout)
    }

    /// Returns the exit code and standard error.
    pub fn ends(&self, options: &[&str], program: &[&str]) -> (Option<i32>, String) {
        let output = self.run(options, program).output().unwrap();
        (output.status.code(), text(&output.stderr))
    }

    /// Checks that nothing is left of a manager.
    pub fn check_clean(&self) {
        let interface = &self.bed.interface;
        let link = self.output("ip", &["-d", "link", "show", "dev", interface]);
        assert!(!link.contains("xdp"), "{link}");
        let pins = self.output("ls", &["/sys/fs/bpf/tidewall-run"]);
        assert_eq!(pins, "");
        let sockets = self.output("sh", &["-c", "ls /run/tidewall | grep -v restore"]);
        assert_eq!(sockets, "");
        let script = format!(
            "cd /sys/class/net/{interface}; echo $(cat napi_defer_hard_irqs gro_flush_timeout)"
        );
        assert_eq!(self.output("sh", &["-c", &script]).trim(), SET);
        let reserved = "/proc/sys/net/ipv4/ip_local_reserved_ports";
        assert_eq!(self.output("cat", &[reserved]).trim(), "");
        let pairs = self.output("sh", &["-c", "ls /sys/class/net | grep -c ^twD"]);
        assert_eq!(pairs.trim(), "0");
    }
}
