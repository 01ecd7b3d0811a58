//! `tidewall run` in a network namespace, with its own bpffs and /run. Needs root;
//! skipped without.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::host::{Host, LIBRARY, library};
use common::{PROGRAM, Place, Running, Service, signal, text};

/// A library that can be loaded, and does nothing there.
const HARMLESS: &str = "/lib/x86_64-linux-gnu/libm.so.6";
/// No user of this host has this id.
const USER: &str = "12345";
impl Host {
    /// Returns a service's answer to a datagram from the peer.
    fn echo(&self, port: u16, words: &str) -> String {
        let script = format!(
            "exec 3<>/dev/udp/10.99.0.2/{port}; echo {words} >&3; timeout 10 dd bs=2048 count=1 status=none <&3"
        );
        let output = Bed::other(&self.bed.client, "bash", &["-c", &script]).output();
        text(&output.unwrap().stdout).trim().to_owned()
    }

    /// Another process of that user does not belong to the program, nor does one of user
    /// 0.
    fn check_strangers_are_refused(&self) {
        let manager = format!("/run/tidewall/{}.manager", self.bed.interface);
        let other = [&service("7008")[..], &["--manager", &manager]].concat();
        let start = other.iter().position(|&word| word == PROGRAM).unwrap();
        for other in [&other[..], &other[start..]] {
            let other = self.command(other[0], &other[1..]).output().unwrap();
            let refused = text(&other.stderr);
            assert!(
                refused.contains("may not join: this manager is for the program"),
                "{refused}"
            );
        }
    }
}

/// Returns a service of an unprivileged user.
fn service(port: &str) -> Vec<&str> {
    let user = [
        "setpriv",
        "--reuid",
        USER,
        "--regid",
        USER,
        "--clear-groups",
    ];
    [&user, &[PROGRAM, "serve", "echo", "--port", port][..]].concat()
}

/// Returns the children of a run, including those whose parents have ended.
fn children(run: &Service) -> String {
    let id = run.id();
    std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap()
}

/// Kills those of them that are left.
fn kill(processes: &str) {
    let mut kill = Command::new("kill");
    let kill = kill.arg("-KILL").args(processes.split_whitespace());
    kill.stderr(Stdio::null()).status().unwrap();
}

#[test]
fn a_program_without_privileges_serves_and_leaves_nothing() {
    let name = "a_program_without_privileges_serves_and_leaves_nothing";
    let Some(host) = Host::or_skip(name, "rs") else {
        return;
    };
    let mut run = Service::start(host.run(&[], &service("7007")));
    assert!(run.first.contains("Tidewall"), "{}", run.first);
    assert_eq!(host.echo(7007, "hello"), "hello");
    host.check_strangers_are_refused();
    // Nor does another take the interface.
    let (code, said) = host.ends(&[], &["true"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("another `tidewall run`"), "{said}");
    assert_eq!(host.echo(7007, "still"), "still");
    let totals = run.end();
    assert!(totals.contains('2'), "{totals}");
    host.check_clean();

    // The program is killed.
    run = Service::start(host.run(&[], &service("7007")));
    kill(&children(&run));
    assert_eq!(run.process.0.wait().unwrap().code(), Some(128 + 9));
    host.check_clean();
}

#[test]
fn operators_see_what_a_run_has() {
    let Some(host) = Host::or_skip("operators_see_what_a_run_has", "ro") else {
        return;
    };
    let run = Service::start(host.run(&[], &service("7007")));
    let program = children(&run).trim().to_owned();
    let doctor = |host: &Host| {
        host.output(PROGRAM, &["doctor"])
            .replace("\n         ", " ")
    };
    let found = doctor(&host);
    let answers = format!(
        "manager: that of {} answers; 1 applications",
        host.bed.interface
    );
    assert!(found.contains(&answers), "{found}");
    // Only user 0 may follow the frames of all users.
    let trace = [PROGRAM, "trace", &program, "-n", "1"];
    let user = [&service("7007")[1..6], &trace].concat();
    let refused = host.command("setpriv", &user).output().unwrap();
    let refused = text(&refused.stderr);
    assert!(refused.contains("only user 0 may follow them"), "{refused}");
    let mut trace = host.command(PROGRAM, &["trace", &program, "--for", "10s"]);
    let trace = trace.stdout(Stdio::piped()).spawn().unwrap();
    let mut trace = Running(trace);
    while trace.0.try_wait().unwrap().is_none() {
        assert_eq!(host.echo(7007, "traced"), "traced");
    }
    let mut shown = String::new();
    trace
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut shown)
        .unwrap();
    assert!(shown.contains("redirect to channel"), "{shown}");
    assert!(shown.contains("delivered"), "{shown}");

    // Bp and T: the program's own user, and root.
    let timer = format!("/sys/class/net/{}/gro_flush_timeout", host.bed.interface);
    let fixed = |interval| {
        let tune = [PROGRAM, "tune", &program, "--policy", "napi"];
        [&tune[..], &["--budget", "32", "--interval", interval]].concat()
    };
    for (user, interval) in [(USER, "75"), ("0", "85us")] {
        let tune = [&["--reuid", user, "--clear-groups"], &fixed(interval)[..]].concat();
        let tuned = host.command("setpriv", &tune).output().unwrap();
        let said = [text(&tuned.stdout), text(&tuned.stderr)].concat();
        assert!(said.contains("queue 0: napi, Bp 32, T"), "{said}");
        let nanoseconds = format!("{}000", interval.trim_end_matches("us"));
        let end = Instant::now() + Duration::from_secs(10);
        while host.output("cat", &[&timer]).trim() != nanoseconds {
            assert!(Instant::now() < end, "T is not {interval}");
            assert_eq!(host.echo(7007, "tuned"), "tuned");
        }
    }
    let stranger = [&["--reuid", "54321", "--clear-groups"], &fixed("50")[..]].concat();
    let refused = host.command("setpriv", &stranger).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let refused = text(&refused.stderr);
    assert!(
        refused.contains("its own user and user 0 only"),
        "{refused}"
    );
    assert!(refused.contains("sudo tidewall tune"), "{refused}");

    // Both killed: the leftovers are named.
    let mut process = run.process;
    process.0.kill().unwrap();
    process.0.wait().unwrap();
    kill(&program);
    let found = doctor(&host);
    assert!(
        found.contains("leftover run: a `tidewall run` that was killed"),
        "{found}"
    );
    assert_eq!(host.ends(&[], &["true"]).0, Some(0));
    host.check_clean();
}

#[test]
fn a_run_ends_as_its_program_does() {
    let Some(host) = Host::or_skip("a_run_ends_as_its_program_does", "rc") else {
        return;
    };
    assert_eq!(host.ends(&[], &["true"]), (Some(0), String::new()));
    assert_eq!(host.ends(&[], &["sh", "-c", "exit 7"]).0, Some(7));
    assert_eq!(host.ends(&["--report"], &["true"]).0, Some(0));
    assert_eq!(
        host.ends(&[], &["sh", "-c", "kill -TERM $$"]).0,
        Some(128 + 15)
    );
    let (code, said) = host.ends(&[], &["tw-no-such-program"]);
    assert_eq!(code, Some(127), "{said}");
    assert!(said.contains("tw-no-such-program"), "{said}");
    assert_eq!(host.ends(&[], &["/"]).0, Some(126));
    host.check_clean();

    let script = "trap 'exit 5' INT; echo waits; while :; do sleep 0.05; done";
    let run = Service::start(host.run(&[], &["sh", "-c", script]));
    signal("-INT", &run.process);
    let mut process = run.process;
    assert_eq!(process.0.wait().unwrap().code(), Some(5));
    host.check_clean();

    // Without a manager there is none to join.
    let mut run = host.command(PROGRAM, &["run", "--", "true"]);
    let output = run.env(LIBRARY, "").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--interface IF"));
}

#[test]
fn what_cannot_work_is_refused_or_runs_on_the_kernel() {
    let test = "what_cannot_work_is_refused_or_runs_on_the_kernel";
    let Some(host) = Host::or_skip(test, "rx") else {
        return;
    };
    let interface = &host.bed.interface;
    let ends_on = |interface: &str, options: &[&str], program: &[&str]| {
        let mut run = host.run_on(interface, options, program);
        run.env(LIBRARY, HARMLESS).env("LD_PRELOAD", "libdl.so.2");
        let output = run.output().unwrap();
        let (code, said) = (output.status.code(), text(&output.stderr));
        (code, text(&output.stdout), said)
    };
    let show = ["sh", "-c", "echo $LD_PRELOAD $TIDEWALL_POLICY; exit 3"];

    let (code, shown, said) = ends_on(interface, &["--policy", "napi"], &show);
    assert_eq!(shown.trim(), format!("{HARMLESS}:libdl.so.2 napi"));
    assert_eq!((code, said), (Some(3), String::new()));

    // Earlier preloads stay, without the library in front.
    let refused = |on: &str, options: &[&str], why: &str| {
        let (code, shown, said) = ends_on(on, options, &show);
        assert!(said.contains(why), "{said}");
        assert!(said.contains("the program was not started"), "{said}");
        assert!(!said.contains("all sockets stayed"), "{said}");
        assert_eq!((code, shown), (Some(2), String::new()));
        let (code, shown, said) = ends_on(on, &[&["--or-kernel"], options].concat(), &show);
        assert!(said.contains(why), "{said}");
        assert_eq!((code, shown.trim()), (Some(3), "libdl.so.2"));
        said
    };
    refused("tw-no-such", &[], "no interface tw-no-such");

    // An interface with the same name, whose manager is not for this one.
    let run = Service::start(host.run(&[], &service("7009")));
    let script = format!(
        "mount -t bpf tw-bpf /sys/fs/bpf; ip link add {interface} type veth peer name tw-other
         ip address add 10.98.0.1/24 dev {interface}; ip link set {interface} up
         ! {PROGRAM} run --interface {interface} -- sh -c 'exit 4'
         exec {PROGRAM} run --interface {interface} --or-kernel -- sh -c 'exit 4'"
    );
    let mut other = host.command("unshare", &["-nm", "sh", "-ec", &script]);
    let output = other.env(LIBRARY, HARMLESS).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("is of another network namespace"), "{said}");
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(host.echo(7009, "still"), "still");
    run.end();

    // Without a library.
    let (here, elsewhere) = (PROGRAM, Place::new("no-library"));
    let elsewhere = elsewhere.name("tidewall");
    std::fs::copy(here, &elsewhere).unwrap();
    for (options, code) in [(&[][..], 2), (&["--or-kernel"], 5)] {
        let run = [&["run", "--interface", interface], options].concat();
        let run = [&run[..], &["--", "sh", "-c", "exit 5"]].concat();
        let output = host.command(&elsewhere, &run).output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains("there is no libtidewall.so"), "{said}");
        assert_eq!(output.status.code(), Some(code), "{said}");
    }

    let flush = ["address", "flush", "dev", interface];
    assert!(host.command("ip", &flush).status().unwrap().success());
    let said = refused(interface, &["--report"], "has no address");
    assert!(
        said.contains("all sockets stayed with the kernel"),
        "{said}"
    );
    host.check_clean();

    // ldconfig(8) is static, for the day on which no library can be loaded.
    let ldconfig = ["/sbin/ldconfig", "--version"];
    let (code, _, said) = ends_on(interface, &[], &ldconfig);
    assert!(said.contains("linked statically"), "{said}");
    assert_eq!(code, Some(2));
    let (code, shown, _) = ends_on(interface, &["--or-kernel"], &ldconfig);
    assert!(shown.contains("ldconfig"), "{shown}");
    assert_eq!(code, Some(0));

    let mut run = host.run(&["--or-kernel"], &["true"]);
    let output = run.env(LIBRARY, "/tw/none.so").output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("no such file"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_user_without_capabilities_is_told_which() {
    let test = "a_user_without_capabilities_is_told_which";
    let Some(host) = Host::or_skip(test, "rcap") else {
        return;
    };
    let run = ["run", "--interface", &host.bed.interface, "--"];
    let user = [
        &service("1")[1..6],
        &[PROGRAM],
        &run,
        &["sh", "-c", "exit 6"],
    ]
    .concat();
    let mut command = host.command("setpriv", &user);
    let output = command.env(LIBRARY, "").output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("this process lacks CAP_NET_ADMIN"), "{said}");
    assert!(said.contains("run it as root"), "{said}");
    assert!(!said.contains("mount"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn words_after_the_program_are_its_own() {
    let Some(host) = Host::or_skip("words_after_the_program_are_its_own", "rw") else {
        return;
    };
    // As env(1), nice(1) and their like, without `--`.
    let words = [
        "run",
        "--interface",
        &host.bed.interface,
        "echo",
        "-e",
        "--report",
        "--",
        "x",
    ];
    let output = host.command(PROGRAM, &words).env(LIBRARY, "").output();
    let output = output.unwrap();
    assert_eq!(text(&output.stdout), "--report -- x\n");
    let output = host
        .command(PROGRAM, &["run", "--iface", "x", "true"])
        .output();
    let said = text(&output.unwrap().stderr);
    assert!(said.contains("unexpected argument '--iface'"), "{said}");

    // And the interface of the default route where none is named.
    let route = ["route", "add", "default", "via", "10.99.0.1"];
    assert!(host.command("ip", &route).status().unwrap().success());
    let show = "ls /run/tidewall | grep manager";
    let output = host
        .command(PROGRAM, &["run", "sh", "-c", show])
        .env(LIBRARY, "")
        .output();
    let manager = format!("{}.manager\n", host.bed.interface);
    assert_eq!(text(&output.unwrap().stdout), manager);
    host.check_clean();
}

#[test]
fn a_program_that_goes_to_the_background_stays_protected() {
    let test = "a_program_that_goes_to_the_background_stays_protected";
    let Some(host) = Host::or_skip(test, "rb") else {
        return;
    };
    let is_taken = || {
        let link = ["-d", "link", "show", "dev", &host.bed.interface];
        host.output("ip", &link).contains("xdp")
    };
    // daemon(3): another session, and the process that was started ends.
    let script = format!("setsid -f {}", service("7007").join(" "));
    let mut run = Service::start(host.run(&[], &["sh", "-c", &script]));
    assert!(run.first.contains("Tidewall"), "{}", run.first);
    let started = |run: &Service| children(run).split_whitespace().count();
    let end = Instant::now() + Duration::from_secs(20);
    while started(&run) != 1 {
        assert!(Instant::now() < end, "{}", children(&run));
    }
    assert_eq!(host.echo(7007, "behind"), "behind");
    assert!(is_taken() && run.process.0.try_wait().unwrap().is_none());
    // Signals and the exit code belong to the remaining process.
    let totals = run.end();
    assert!(totals.contains('1'), "{totals}");
    assert!(!is_taken());
    host.check_clean();

    for (script, code) in [
        ("(sleep 0.2; exit 7) & exit 0", 7),
        ("(sleep 0.2; exit 7) & exit 3", 3),
        ("sleep 600 & exit 0", 128 + 15),
    ] {
        let mut run = Running(host.run(&[], &["sh", "-c", script]).spawn().unwrap());
        if script.contains("600") {
            let list = format!("/proc/{0}/task/{0}/children", run.0.id());
            let left = || std::fs::read_to_string(&list).unwrap_or_default();
            let is_left = |process: &str| {
                let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
                name.is_ok_and(|name| name.trim() == "sleep")
            };
            let end = Instant::now() + Duration::from_secs(20);
            while !left().split_whitespace().all(is_left) || left().is_empty() {
                assert!(Instant::now() < end, "{}", left());
            }
            signal("-TERM", &run);
        }
        assert_eq!(run.0.wait().unwrap().code(), Some(code), "{script}");
    }
    host.check_clean();
}

#[test]
fn descendants_may_join_and_strangers_may_not() {
    let Some(host) = Host::or_skip("descendants_may_join_and_strangers_may_not", "rd") else {
        return;
    };
    // A process whose parent has ended, as of a program that goes to the background.
    let serve = service("7007").join(" ");
    let script = format!("({serve} &); exec sleep 600");
    let run = Service::start(host.run(&[], &["sh", "-c", &script]));
    assert!(run.first.contains("Tidewall"), "{}", run.first);
    assert_eq!(host.echo(7007, "orphan"), "orphan");
    let orphans = children(&run);
    assert_eq!(orphans.split_whitespace().count(), 2, "{orphans}");
    host.check_strangers_are_refused();
    // The program ends by the signal, and then its remaining processes, too.
    signal("-TERM", &run.process);
    let mut process = run.process;
    assert_eq!(process.0.wait().unwrap().code(), Some(128 + 15));
    host.check_clean();
    for orphan in orphans.split_whitespace() {
        let path = format!("/proc/{orphan}");
        assert!(!std::path::Path::new(&path).exists(), "{path}");
    }
}

/// A server for one client, which it greets.
const GREETS: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(7021) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (void *)&any, sizeof any) || listen(listener, 1))
		return 1;
	puts("serves");
	fflush(stdout);
	int client = accept(listener, NULL, NULL);
	return write(client, "greetings\n", 10) != 10 || close(client);
}
"#;

#[test]
fn a_program_with_address_sanitizer_serves() {
    let test = "a_program_with_address_sanitizer_serves";
    let Some(host) = Host::or_skip(test, "ra") else {
        return;
    };
    let place = Place::new("sanitized");
    let source = place.name("greets.c");
    std::fs::write(&source, GREETS).unwrap();
    let program = place.name("greets");
    let mut compile = Command::new("cc");
    compile.args(["-fsanitize=address", "-o", &program, &source]);
    if !compile.status().is_ok_and(|status| status.success()) {
        return tidewall_skip::missing(test, "gcc's libasan");
    }
    let mut run = host.run_on(&host.bed.interface, &["--report"], &[&program]);
    run.env(LIBRARY, library())
        .env("ASAN_OPTIONS", "detect_leaks=0")
        // It serves one connection, which must be the stack's.
        .env("TIDEWALL_PROMOTE", "at-once");
    let log = place.name("said");
    run.stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap());
    let said = || std::fs::read_to_string(&log).unwrap();
    let mut run = Running(run.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(run.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "serves\n", "{}", said());
    let ask = "exec 3<>/dev/tcp/10.99.0.2/7021; timeout 20 cat <&3";
    let answer = Bed::other(&host.bed.client, "bash", &["-c", ask])
        .output()
        .unwrap();
    assert_eq!(text(&answer.stdout), "greetings\n", "{}", said());
    assert_eq!(run.0.wait().unwrap().code(), Some(0), "{}", said());
    let taken = said()
        .lines()
        .any(|line| line.contains(" Tidewall ") && line.contains(":7021"));
    assert!(taken, "{}", said());
    host.check_clean();
}

#[test]
fn a_run_needs_no_bpffs() {
    let Some(host) = Host::or_skip("a_run_needs_no_bpffs", "rm") else {
        return;
    };
    // As in `ip netns exec` and containers: an empty /sys/fs/bpf.
    let interface = &host.bed.interface;
    let script = format!(
        "umount /sys/fs/bpf; exec {PROGRAM} run --interface {interface} -- {}",
        service("7007").join(" ")
    );
    let mut run = host.command("unshare", &["-m", "sh", "-c", &script]);
    run.env(LIBRARY, "");
    let run = Service::start(run);
    assert!(run.first.contains("Tidewall"), "{}", run.first);
    assert_eq!(host.echo(7007, "nowhere"), "nowhere");
    // Another stack is rejected, with the name of the interface's owner.
    let (code, said) = host.ends(&[], &["true"]);
    let another = format!("another `tidewall run` (process {})", run.id());
    assert!(said.contains(&another), "{said}");
    assert_eq!(code, Some(2));
    run.end();
    host.check_clean();

    let serve = ["serve", "echo", "--interface", interface, "--port", "7010"];
    let serve = Service::start(host.command(PROGRAM, &serve));
    let (code, said) = host.ends(&[], &["true"]);
    let holder = format!("by process {} (tidewall)", serve.id());
    assert!(said.contains(&holder), "{said}");
    assert_eq!(code, Some(2));
    serve.end();

    // Without the capability to create one, the remedy is named.
    let script = format!(
        "umount /sys/fs/bpf; exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin \
         {PROGRAM} run --interface {interface} -- true"
    );
    let mut run = host.command("unshare", &["-m", "sh", "-c", &script]);
    let output = run.env(LIBRARY, "").output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains("mount -t bpf -o mode=0700 bpf /sys/fs/bpf"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(2));
    host.check_clean();
}

#[test]
fn private_programs_have_their_ports_only() {
    let Some(host) = Host::or_skip("private_programs_have_their_ports_only", "rp") else {
        return;
    };
    let options = ["--private", "--ports", "7007-7008"];
    let script = format!(
        "trap 'kill $A $B; wait; exit 0' TERM; {} & A=$!; {} & B=$!; wait",
        service("7007").join(" "),
        service("7008").join(" ")
    );
    let mut run = Service::start(host.run(&options, &["sh", "-c", &script]));
    // Both report that they serve.
    run.first.clear();
    run.line_with("Tidewall");
    for port in [7007, 7008] {
        assert_eq!(host.echo(port, "private"), "private");
    }
    // Bp and T cannot be set by users there.
    let shell = children(&run);
    let services = format!("/proc/{0}/task/{0}/children", shell.trim());
    let services = std::fs::read_to_string(services).unwrap();
    let process = services.split_whitespace().next().unwrap();
    let mut tune = host.command(PROGRAM, &["tune", process, "--policy", "napi"]);
    let refused = tune.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let refused = text(&refused.stderr);
    assert!(refused.contains("in private mode"), "{refused}");
    assert!(refused.contains("tidewalld --trust"), "{refused}");
    run.end();
    host.check_clean();
    let (code, said) = host.ends(&options, &service("7009"));
    assert_ne!(code, Some(0));
    assert!(said.contains("port 7009 is not among those"), "{said}");
    host.check_clean();
}

#[test]
fn a_killed_run_leaves_its_program_to_the_next() {
    let Some(host) = Host::or_skip("a_killed_run_leaves_its_program_to_the_next", "rk") else {
        return;
    };
    for _ in 0..2 {
        let mut run = Service::start(host.run(&[], &service("7007")));
        let child = children(&run);
        run.process.0.kill().unwrap();
        run.process.0.wait().unwrap();
        assert_eq!(host.echo(7007, "alone"), "alone");
        kill(&child);
        let process = format!("/proc/{}", child.trim());
        let end = Instant::now() + Duration::from_secs(10);
        while std::path::Path::new(&format!("{process}/exe")).exists() {
            assert!(Instant::now() < end, "it is not gone");
        }
        let pins = host.output("ls", &["/sys/fs/bpf/tidewall-run"]);
        assert_eq!(pins.trim(), host.bed.interface);
    }
    let run = Service::start(host.run(&[], &service("7007")));
    assert_eq!(host.echo(7007, "again"), "again");
    run.end();
    host.check_clean();
}
