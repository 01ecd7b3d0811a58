//! Misconfigured interfaces, in namespaces, and the reports about them. Needs root.

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::bed::Bed;
use common::host::library;
use common::{PROGRAM, Place, Service, text};

#[test]
fn an_interface_that_is_down_is_said() {
    let test = "an_interface_that_is_down_is_said";
    let Some(bed) = Bed::or_skip(test, "w") else {
        return;
    };
    let set = |state| {
        let words = ["link", "set", "dev", &bed.interface, state];
        let set = Bed::other(&bed.server, "ip", &words).status().unwrap();
        assert!(set.success());
    };
    set("down");
    let wanted = format!(
        "{0} is down: no frame comes or leaves (ip link set dev {0} up)",
        bed.interface
    );
    let place = Place::new("down");
    let errors = place.name("errors");
    let script = format!(
        "exec {PROGRAM} serve echo --interface {} 2>{errors}",
        bed.interface
    );
    let service = Service::start(Bed::other(&bed.server, "sh", &["-c", &script]));
    let process = service.id();
    let doctor = || {
        let shown = Bed::command(&bed.server, &["doctor"]).output().unwrap();
        let shown = text(&shown.stdout);
        shown.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        doctor().contains(&format!("process {process}: {wanted}")),
        "{}",
        doctor()
    );
    set("up");
    let up = doctor();
    assert!(!up.contains(&wanted), "{up}");
    service.end();
    let said = fs::read_to_string(&errors).unwrap();
    assert!(said.contains(&wanted), "{said}");
    set("down");
    let run = ["run", "--interface", &bed.interface, "--", "true"];
    library();
    let said = text(&Bed::command(&bed.server, &run).output().unwrap().stderr);
    assert!(said.contains(&wanted), "{said}");
}

#[test]
fn a_bridge_without_ports_is_refused_with_what_helps() {
    let test = "a_bridge_without_ports_is_refused_with_what_helps";
    let Some(bed) = Bed::or_skip(test, "b") else {
        return;
    };
    let script = format!(
        "ip link add twbr type bridge && ip link set twbr up && {PROGRAM} serve echo --interface twbr"
    );
    let said = text(
        &Bed::other(&bed.server, "sh", &["-c", &script])
            .output()
            .unwrap()
            .stderr,
    );
    assert!(
        said.contains("take a network card or a veth instead"),
        "{said}"
    );
    // The remedy agrees with the cause.
    let script = format!(
        "ip link set {0} master twbr && {PROGRAM} doctor --interface twbr",
        bed.interface
    );
    let said = text(
        &Bed::other(&bed.server, "sh", &["-c", &script])
            .output()
            .unwrap()
            .stdout,
    );
    let mend = format!("mend: tidewall doctor --interface {}", bed.interface);
    assert!(said.contains(&mend), "{said}");
}

/// Returns the standard error of a program that runs beside a new veth in namespaces made
/// by these options of unshare(1).
fn said_in(options: &[&str], program: &str) -> Option<String> {
    let script = format!(
        "ip link add twu0 type veth peer name twu1 && ip address add 10.99.0.2/24 dev twu0 && \
         ip link set twu0 up && echo made && exec {PROGRAM} {program}"
    );
    let mut command = Command::new("unshare");
    let command = command.args(options).args(["sh", "-c", &script]);
    let output = command.stdin(Stdio::null()).output().ok()?;
    let made = text(&output.stdout).starts_with("made");
    made.then(|| text(&output.stderr))
}

#[test]
fn namespaces_that_hide_an_interface_are_said() {
    let test = "namespaces_that_hide_an_interface_are_said";
    let serve = "serve echo --interface twu0";
    let Some(said) = said_in(&["-n"], serve) else {
        return tidewall_skip::missing(test, "a network namespace (root)");
    };
    assert!(
        said.contains("/sys is of another network namespace"),
        "{said}"
    );
    assert!(!said.contains("no interface twu0"), "{said}");
    library();
    let Some(said) = said_in(&["-U", "-r", "-n"], "run --interface twu0 -- true") else {
        return tidewall_skip::missing(test, "a user namespace");
    };
    assert!(said.contains("this is a user namespace"), "{said}");
    assert!(said.contains("run it outside"), "{said}");
}
