//! Common parts of the program's tests: running it, and querying it while it runs.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod bed;
pub mod host;
pub mod preloaded;
pub mod star;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tidewall");

/// Returns the program, to be run here.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("RUST_BACKTRACE", "1");
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn tidewall(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program can be run")
}

/// Returns its output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs it, wants exit code `code`, and returns standard error.
pub fn fails(arguments: &[&str], code: i32) -> String {
    let output = tidewall(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(
        !error.contains("backtrace") && !error.contains("panicked"),
        "{error}"
    );
    error
}

/// A child that does not outlive the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal.
pub fn signal(name: &str, child: &Running) {
    let killed = Command::new("kill")
        .args([name, &child.0.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
}

/// Acts as [`BufRead::read_line`], for a process that prints something within a minute.
fn read_line(lines: &mut BufReader<ChildStdout>, line: &mut String) -> usize {
    if lines.buffer().is_empty() {
        let minute = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let mut waits = [PollFd::new(lines.get_ref(), PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut waits, Some(&minute))).unwrap();
        assert_eq!(ready, 1, "it says nothing");
    }
    lines.read_line(line).unwrap()
}

/// A running `tidewall serve`.
pub struct Service {
    pub process: Running,
    lines: BufReader<ChildStdout>,
    /// The line that reports that it is ready.
    pub first: String,
}

impl Service {
    /// Starts it, and waits until it is ready.
    pub fn start(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = child.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let process = Running(child);
        let mut first = String::new();
        read_line(&mut lines, &mut first);
        Service {
            process,
            lines,
            first,
        }
    }

    /// Waits for a line with this text, which is then the first.
    pub fn line_with(&mut self, part: &str) {
        while !self.first.contains(part) {
            self.first.clear();
            let got = read_line(&mut self.lines, &mut self.first);
            assert!(got > 0, "it ended without {part}");
        }
    }

    /// Returns its process; `ip netns exec` becomes the program.
    pub fn id(&self) -> String {
        self.process.0.id().to_string()
    }

    /// Ends it as an administrator does; returns its final output.
    pub fn end(self) -> String {
        signal("-TERM", &self.process);
        self.ended()
    }

    /// Waits for the end of a service that was asked to end; returns its output. A second
    /// signal would make it abort.
    pub fn ended(mut self) -> String {
        let mut totals = String::new();
        self.lines.read_to_string(&mut totals).unwrap();
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}: {totals}");
        totals
    }
}

/// Returns a free UDP port: the kernel chooses it, and no other process requests it by
/// number.
pub fn udp_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Returns the same for TCP.
pub fn tcp_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Returns bytes that each depend on their position.
pub fn content(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// A directory, removed again.
pub struct Place(PathBuf);

impl Place {
    /// `name` distinguishes it from those of other tests.
    pub fn new(name: &str) -> Self {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("tw-cli-{process}-{name}"));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// Puts a file there.
    pub fn with(self, file: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Compiles a C program there; returns its name.
    pub fn compiled(&self, name: &str, source: &str) -> String {
        let file = self.name(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let program = self.name(name);
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Werror", "-pthread", "-o", &program, &file]);
        assert!(compile.status().unwrap().success());
        program
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The name of a file in it.
    pub fn name(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
