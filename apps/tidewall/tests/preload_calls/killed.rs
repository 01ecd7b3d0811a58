//! Programs that are killed (SIGKILL) at random points of their calls: nothing of them is
//! left, and their peers learn of it.

use std::fs;
use std::io::{BufReader, Bytes, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tidewall_manager::places;
use tidewall_manager::protocol::Counters;
use tidewall_manager::view::View;

use crate::common::host::{Host, library};
use crate::peer::Peer;
use crate::subject::{HERE, Random, address};
use crate::{PEER, PORT, SEED};

/// How many are killed: 10,000 take some minutes.
const COUNT: &str = "TIDEWALL_KILLED_PROGRAMS";
/// Default number of killed programs, of each kind.
const FEW: usize = 80;
/// Number of those that live at the same time.
const AT_ONCE: &str = "TIDEWALL_TEST_AT_ONCE";

/// Printed by a program when it begins, has a listener, has accepted, and after each
/// step; the test harness never prints it.
pub const STEP: u8 = b'#';
/// A program is killed after at most this many steps.
const STEPS: usize = 40;
/// One in this many is killed while it begins, with its stack made or not.
const BEGINNERS: usize = 6;
/// Longest duration of the beginning, and of a step.
const BEGINNING: Duration = Duration::from_millis(60);
const STEPPING: Duration = Duration::from_millis(2);
/// Programs after which the manager's stock is complete.
const FIRST: usize = 12;

#[test]
fn programs_killed_at_any_point_leave_nothing() {
    let Some(host) = Host::or_skip("programs_killed_at_any_point_leave_nothing", "pk") else {
        return;
    };
    let peer = crate::peer_namespace(&host);
    for (options, at_once, port) in [(&[][..], 1, 7000), (&["--private"], 4, 15_000)] {
        let program = std::env::current_exe().unwrap();
        let words = [
            format!("{AT_ONCE}={at_once}"),
            format!("{PORT}={port}"),
            format!("{PEER}={}", peer.as_raw_fd()),
            program.to_str().unwrap().to_owned(),
        ];
        let words = words.iter().map(String::as_str);
        let killer = ["--exact", "killed::killer", "--nocapture"];
        let words: Vec<&str> = ["env"].into_iter().chain(words).chain(killer).collect();
        let status = host.run(options, &words).status().unwrap();
        assert!(status.success(), "{options:?}");
        host.check_clean();
    }
}

/// The program under `tidewall run`: starts the victims and kills them; by itself it does
/// nothing.
#[test]
fn killer() {
    let (Ok(at_once), Ok(peer)) = (std::env::var(AT_ONCE), std::env::var(PEER)) else {
        return;
    };
    let count = std::env::var(COUNT).ok();
    let count = count.map_or(FEW, |count| count.parse().expect(COUNT));
    let killer = Killer {
        peer: Peer::new(peer.parse().unwrap()),
        manager: places::of_environment().unwrap(),
        at_once: at_once.parse().unwrap(),
        first_port: std::env::var(PORT).unwrap().parse().unwrap(),
    };
    killer.kill(count);
}

/// A running program that reports its progress.
struct Victim {
    process: Child,
    steps: Bytes<BufReader<ChildStdout>>,
    port: u16,
}

struct Killer {
    peer: Peer,
    manager: PathBuf,
    at_once: usize,
    first_port: u16,
}

/// The manager's resources, as counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
struct Held {
    descriptors: usize,
    interfaces: usize,
}

impl Victim {
    fn start(first_port: u16, number: usize) -> Self {
        // Used ports linger at the peer.
        let port = first_port + 4 * (number % 2000) as u16;
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "subject", "--nocapture"])
            .env(SEED, number.to_string())
            .env(PORT, port.to_string())
            .env("LD_PRELOAD", library())
            // Its first connection must be the stack's.
            .env("TIDEWALL_PROMOTE", "at-once")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let steps = BufReader::new(process.stdout.take().unwrap()).bytes();
        Victim {
            process,
            steps,
            port,
        }
    }

    /// Waits until it has made this many more steps.
    fn proceed(&mut self, steps: usize) {
        let said = &mut self.steps;
        let marks = said.filter(|byte| byte.as_ref().is_ok_and(|&byte| byte == STEP));
        assert_eq!(marks.take(steps).count(), steps, "it ended by itself");
    }

    /// Kills it, a while after its last step.
    fn kill(mut self, after: Duration) {
        let end = Instant::now() + after;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Reports a completed step; the output is a pipe.
pub fn step() {
    let mut out = std::io::stdout().lock();
    out.write_all(&[STEP]).and_then(|()| out.flush()).unwrap();
}

fn random_part(random: &mut Random, of: Duration) -> Duration {
    of * random.below(1000) as u32 / 1000
}

impl Killer {
    fn counters(&self) -> Counters {
        View::connect(&self.manager).unwrap().counters().unwrap()
    }

    /// Returns the open descriptors and the objects of the manager, which is this
    /// process's parent.
    fn held(&self) -> Held {
        let count = |path: &str| fs::read_dir(path).unwrap().count();
        Held {
            descriptors: count(&format!("/proc/{}/fd", parent_id())),
            interfaces: count("/sys/class/net"),
        }
    }

    /// Returns the same, once it makes nothing more.
    fn settled(&self) -> Held {
        let mut before = self.held();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.held();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", parent_id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
        kibibytes.parse().unwrap()
    }

    fn kill(&self, count: usize) {
        let mut random = Random::new(4711);
        let (mut accepted, mut killed) = (0, 0);
        let mut first = None;
        while killed < count {
            let together = killed..count.min(killed + self.at_once);
            let victims: Vec<_> = together
                .map(|number| Victim::start(self.first_port, number))
                .collect();
            for mut victim in victims {
                killed += 1;
                victim.proceed(1);
                if random.below(BEGINNERS) == 0 {
                    victim.kill(random_part(&mut random, BEGINNING));
                    continue;
                }
                victim.proceed(1);
                let peer = self.peer.connect(address(HERE, victim.port));
                victim.proceed(1 + random.below(STEPS));
                accepted += 1;
                victim.kill(random_part(&mut random, STEPPING));
                // On a kernel connection this would be an orderly end.
                peer.try_send(b"?");
                assert_eq!(peer.end(), "reset", "program {killed}");
            }
            if killed >= FIRST.min(count) && first.is_none() {
                first = Some((self.settled(), self.memory()));
            }
        }
        let (held, memory) = first.unwrap();
        self.wait_until("its applications are cleared away", || {
            let counted = self.counters();
            (counted.applications, counted.ports, counted.blocks) == (0, 0, 0)
        });
        self.wait_until("what it has in stock is left", || self.held() <= held);
        let grown = self.memory().saturating_sub(memory);
        let joined = self.counters().joined;
        println!(
            "{killed} programs killed, {accepted} of them with a connection, {} at once: {joined} applications, {grown} KiB more than after {FIRST}",
            self.at_once
        );
        assert!(joined as usize >= accepted, "{joined}");
        assert!(grown <= 1024, "{grown} KiB more");
    }

    fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < end, "never: {what}: {:?}", self.held());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
