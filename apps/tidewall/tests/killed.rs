//! A service that is killed together with its restorer, as by a kill of its whole cgroup,
//! and the steps to restore its interface. Needs root; skipped without.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::{Running, Service, text};

const KNOBS: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];
/// An administrator's earlier settings, which differ from a device's defaults.
const SET: &str = "3 70000";

fn knobs(bed: &Bed) -> String {
    let read = KNOBS.map(|knob| {
        let path = format!("/sys/class/net/{}/{knob}", bed.interface);
        let read = Bed::other(&bed.server, "cat", &[&path]).output().unwrap();
        text(&read.stdout).trim().to_owned()
    });
    read.join(" ")
}

/// Returns a bed with an administrator's settings.
fn bed(test: &str, name: &str) -> Option<Bed> {
    let bed = Bed::or_skip(test, name)?;
    for (knob, value) in KNOBS.iter().zip(SET.split(' ')) {
        let script = format!("echo {value} > /sys/class/net/{}/{knob}", bed.interface);
        let set = Bed::other(&bed.server, "sh", &["-c", &script]).status();
        assert!(set.unwrap().success());
    }
    Some(bed)
}

/// Sends datagrams from the client until dropped: interrupts are deferred while they
/// arrive.
fn traffic(bed: &Bed) -> Running {
    let script = "while :; do echo x > /dev/udp/10.99.0.2/7; sleep 0.01; done";
    let sender = Bed::other(&bed.client, "bash", &["-c", script])
        .stderr(Stdio::null())
        .spawn();
    Running(sender.unwrap())
}

/// Waits until the stack has changed the administrator's settings.
fn wait_until_changed(bed: &Bed) {
    let end = Instant::now() + Duration::from_secs(10);
    while knobs(bed) == SET {
        assert!(Instant::now() < end, "nothing was changed");
    }
}

fn serve(bed: &Bed) -> Service {
    let service = Bed::command(
        &bed.server,
        &["serve", "echo", "--interface", &bed.interface],
    );
    let service = Service::start(service);
    assert!(service.first.starts_with("echo on "), "{}", service.first);
    service
}

/// Kills it and its restorer.
fn kill_all(mut service: Service) {
    let id = service.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let restorers: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(restorers.len(), 1, "{children}");
    let killed = Command::new("kill")
        .arg("-KILL")
        .args(&restorers)
        .arg(&id)
        .status();
    assert!(killed.unwrap().success());
    service.process.0.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let alive = |pid: &&str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.starts_with("tw-restorer"))
            && Path::new(&format!("/proc/{pid}/exe")).exists()
    };
    while restorers.iter().any(alive) {
        assert!(Instant::now() < end, "it is not gone");
        std::thread::yield_now();
    }
}

/// Returns the program's output in the server's namespace.
fn doctor(bed: &Bed, arguments: &[&str]) -> String {
    let output = Bed::command(&bed.server, &[&["doctor"], arguments].concat()).output();
    text(&output.unwrap().stdout)
}

#[test]
fn doctor_finds_and_mends_what_was_left() {
    let Some(bed) = bed("doctor_finds_and_mends_what_was_left", "k") else {
        return;
    };
    let _traffic = traffic(&bed);
    let service = serve(&bed);
    wait_until_changed(&bed);
    // Settings of a live stack are not leftovers.
    assert!(doctor(&bed, &[]).contains("leftover settings: none"));
    assert_eq!(doctor(&bed, &["--mend"]), "");
    wait_until_changed(&bed);
    kill_all(service);
    assert_ne!(knobs(&bed), SET, "nobody was left to put them back");
    let found = doctor(&bed, &[]);
    assert!(found.contains("mend: tidewall doctor --mend\n"), "{found}");
    assert_eq!(doctor(&bed, &["--mend", "--interface", "lo"]), "");
    let mended = doctor(&bed, &["--mend", "--interface", &bed.interface]);
    assert!(
        mended.contains("napi_defer_hard_irqs set to 3\n"),
        "{mended}"
    );
    assert_eq!(knobs(&bed), SET);
    assert!(doctor(&bed, &[]).contains("leftover settings: none"));
}

#[test]
fn a_restart_restores_what_the_first_one_found() {
    let Some(bed) = bed("a_restart_restores_what_the_first_one_found", "r") else {
        return;
    };
    let _traffic = traffic(&bed);
    for _ in 0..3 {
        let service = serve(&bed);
        wait_until_changed(&bed);
        kill_all(service);
        assert_ne!(knobs(&bed), SET);
    }
    serve(&bed).end();
    assert_eq!(knobs(&bed), SET);
}

/// As systemd does with Restart=always: the restorer of the dead service may be at work
/// while the next one begins.
#[test]
fn restarts_in_a_row_keep_what_the_first_one_found() {
    let Some(bed) = bed("restarts_in_a_row_keep_what_the_first_one_found", "w") else {
        return;
    };
    for _ in 0..5 {
        let mut service = serve(&bed);
        service.process.0.kill().unwrap();
        service.process.0.wait().unwrap();
    }
    serve(&bed).end();
    assert_eq!(knobs(&bed), SET);
}
