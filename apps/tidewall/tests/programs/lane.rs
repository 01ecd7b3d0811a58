//! One program, twice: on the kernel's sockets and by `tidewall run`, with the same clients.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::bed::Bed;
use crate::common::host::{Host, LIBRARY, library};
use crate::common::{PROGRAM, Place, Running, content, text};

/// Address of the server, from the clients' side.
pub const SERVER: &str = "10.99.0.2";
/// Address of the clients.
pub const CLIENT: &str = "10.99.0.1";
/// Longest time for a program to start or to end; far more than any needs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time for a client, in timeout(1)'s format.
const LIMIT: &str = "60";

/// A program under test: its commands, and its requests.
pub struct Program<'a> {
    /// Its name in docs/compatibility.md, and of its files.
    pub name: &'a str,
    /// Debian's package, which has the version.
    pub package: &'a str,
    /// Other programs that have to be installed.
    pub needs: &'a [&'a str],
    /// Files in a directory of the test, by name; `$DIR` there stands for the directory.
    pub files: &'a [(&'a str, &'a str)],
    /// Shell words that start it in the foreground. `$DIR` is the directory, `$SERVER`
    /// and `$CLIENT` are addresses.
    pub server: &'a str,
    /// Further servers, on the kernel's sockets.
    pub beside: &'a [Beside],
    /// TCP ports that show that it is ready; none for a client.
    pub ports: &'a [u16],
    /// The requests.
    pub asks: &'a [Ask<'a>],
    /// Expected text of the report for each socket that must be Tidewall's.
    pub takes: &'a [&'a str],
    /// Known failures, for docs/compatibility.md.
    pub lacks: &'a str,
}

/// A server on the kernel's sockets.
pub struct Beside {
    pub at: End,
    /// Its address, in bash(1)'s format: ADDRESS/PORT.
    pub listens: &'static str,
    /// Shell words that start it.
    pub server: &'static str,
}

/// A web server with `$DIR/www` on loopback, for proxies.
pub const LOCAL_WEB: Beside = Beside {
    at: End::Server,
    listens: "127.0.0.1/9001",
    server: "$TIDEWALL serve http $DIR/www --on linux --address 127.0.0.1 --port 9001",
};

/// The same at the other end of the wire.
pub const REMOTE_WEB: Beside = Beside {
    at: End::Client,
    listens: "10.99.0.1/9002",
    server: "$TIDEWALL serve http $DIR/www --on linux --address 10.99.0.1 --port 9002",
};

/// An end of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Server,
    Client,
}

/// A shell script, whose output is the same on both stacks.
pub struct Ask<'a> {
    /// Its description, for docs/compatibility.md.
    pub what: &'a str,
    /// The end on which it runs, on the kernel's sockets.
    pub at: End,
    /// The script; it has `$DIR`, `$SERVER` and `$CLIENT`, and exits with 0.
    pub script: &'a str,
}

/// Returns a client's request.
pub const fn ask<'a>(what: &'a str, script: &'a str) -> Ask<'a> {
    Ask {
        what,
        at: End::Client,
        script,
    }
}

/// Returns a request over the server's loopback and AF_UNIX.
pub const fn ask_locally<'a>(what: &'a str, script: &'a str) -> Ask<'a> {
    Ask {
        what,
        at: End::Server,
        script,
    }
}

/// The owner of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    Kernel,
    Tidewall,
}

/// The results of a run.
struct Answers {
    /// By request.
    asked: Vec<String>,
    code: Option<i32>,
    /// Standard error of the program and of `tidewall run`.
    said: String,
}

impl Program<'_> {
    /// Runs it on both, and compares.
    pub fn check(&self) {
        let programs = [&["redis-cli", "curl", "bash"], self.needs].concat();
        if !tidewall_skip::has_programs(self.name, &programs) {
            return;
        }
        let library = library();
        let Some(kernel) = self.run(Stack::Kernel, &library) else {
            return;
        };
        let Some(tidewall) = self.run(Stack::Tidewall, &library) else {
            return;
        };
        for (number, ask) in self.asks.iter().enumerate() {
            assert_eq!(
                tidewall.asked[number], kernel.asked[number],
                "{}: {}: Tidewall's (left) is not the kernel's\n{}",
                self.name, ask.what, tidewall.said
            );
        }
        assert_eq!(tidewall.code, kernel.code, "{}", tidewall.said);
        for socket in self.takes {
            let words = |line: &&str| line.contains(" Tidewall ") && line.contains(socket);
            let taken = tidewall.said.lines().find(words);
            assert!(
                taken.is_some(),
                "{}: {socket}: {}",
                self.name,
                tidewall.said
            );
        }
        self.record();
    }

    fn run(&self, on: Stack, library: &Path) -> Option<Answers> {
        // Tests run side by side, and the names of interfaces are short.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let host = Host::or_skip(self.name, &tag)?;
        let mut place = Place::new(&format!("program-{tag}"));
        let directory = place.name("");
        let directory = directory.trim_end_matches('/');
        for (name, content) in self.files {
            place = place.with(name, content.replace("$DIR", directory));
        }
        for (name, length) in [
            ("0k", 0),
            ("1k", 1 << 10),
            ("100k", 100 << 10),
            ("large", 8 << 20),
        ] {
            place = place.with(&format!("www/{name}"), content(length));
        }
        // Servers that drop their privileges write there, too.
        shell(&format!("chmod -R a+rwX {directory}"));

        let of = |end: End, script: &str| {
            let mut command = match end {
                End::Server => host.command("bash", &["-c", script]),
                End::Client => Bed::other(&host.bed.client, "bash", &["-c", script]),
            };
            variables(&mut command, directory);
            command
        };
        let answers = |at: End, listens: &str, process: &mut Running| {
            let script = format!("exec 3<>/dev/tcp/{listens}");
            let until = Instant::now() + TIMEOUT;
            while !succeeds(of(at, &script)) {
                if Instant::now() > until || process.0.try_wait().unwrap().is_some() {
                    return false;
                }
            }
            true
        };
        let mut beside = Vec::new();
        for (number, server) in self.beside.iter().enumerate() {
            let mut command = of(server.at, &format!("exec {}", server.server));
            let log = place.name(&format!("beside-{number}"));
            let file = File::create(&log).unwrap();
            command.stdout(file.try_clone().unwrap()).stderr(file);
            let mut process = Running(command.spawn().unwrap());
            let answers = answers(server.at, server.listens, &mut process);
            assert!(
                answers,
                "{}: {}",
                server.server,
                fs::read_to_string(&log).unwrap()
            );
            beside.push(process);
        }
        let log = place.name("said");
        let script = format!("exec {}", self.server);
        let mut command = match on {
            Stack::Kernel => of(End::Server, &script),
            Stack::Tidewall => {
                let mut command =
                    host.run_on(&host.bed.interface, &["--report"], &["bash", "-c", &script]);
                command.env(LIBRARY, library);
                variables(&mut command, directory);
                command
            }
        };
        command
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        let mut server = Running(command.spawn().unwrap());
        let failed = |what: &str| -> ! {
            panic!(
                "{} on {on:?}: {what}: {}",
                self.name,
                fs::read_to_string(&log).unwrap()
            )
        };
        for port in self.ports {
            if !answers(End::Client, &format!("{SERVER}/{port}"), &mut server) {
                failed(&format!("port {port} does not answer"));
            }
        }
        let mut asked = Vec::new();
        for ask in self.asks {
            let script = format!(
                "exec timeout {LIMIT} bash -e -o pipefail -c {}",
                quoted(ask.script)
            );
            let output = of(ask.at, &script).output().unwrap();
            let (out, errors) = (text_of(&output.stdout), text_of(&output.stderr));
            if !output.status.success() || out.trim().is_empty() {
                failed(&format!(
                    "{}: {}: {out}\n{errors}\n",
                    ask.what, output.status
                ));
            }
            asked.push(out);
        }
        // A client has ended by itself, or does so.
        let _ = Command::new("kill")
            .args(["-TERM", &server.0.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let code = match ended(&mut server.0) {
            Some(code) => code,
            None => failed("it does not end"),
        };
        let said = fs::read_to_string(&log).unwrap_or_default();
        assert!(!said.contains("panicked"), "{said}");
        if on == Stack::Tidewall {
            host.check_clean();
        }
        Some(Answers { asked, code, said })
    }

    /// Leaves a row for scripts/compatibility.sh.
    fn record(&self) {
        let Some(directory) = std::env::var_os("TIDEWALL_COMPATIBILITY").map(PathBuf::from) else {
            return;
        };
        let version = Command::new("dpkg-query")
            .args(["-W", "-f", "${Version}", self.package])
            .output();
        let version = text_of(&version.unwrap().stdout);
        let ran: Vec<&str> = self.asks.iter().map(|ask| ask.what).collect();
        let mut row = String::new();
        writeln!(
            row,
            "| {} | {} | {} | as on Linux | {} |",
            self.name,
            version.trim(),
            ran.join("; "),
            self.lacks
        )
        .unwrap();
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(self.name), row).unwrap();
    }
}

fn variables(command: &mut Command, directory: &str) {
    command
        .env("DIR", directory)
        .env("SERVER", SERVER)
        .env("CLIENT", CLIENT);
    command.env("TIDEWALL", PROGRAM);
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(mut command: Command) -> bool {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn shell(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Quotes a shell word.
fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

/// Returns the exit code of a process, as in shells; `None` if it continues for long.
fn ended(process: &mut Child) -> Option<Option<i32>> {
    use std::os::unix::process::ExitStatusExt;
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        if let Some(status) = process.try_wait().unwrap() {
            return Some(status.code().or(status.signal().map(|signal| 128 + signal)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
