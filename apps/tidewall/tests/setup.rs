//! `scripts/setup.sh` with programs that only record their arguments: what it installs,
//! and which services it disables. Needs root; skipped without.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use common::{Place, text};

/// The commands by which Debian's packages install a service.
const UNITS: &str = "echo /usr/share/doc\n\
    case $2 in\n\
    openssh-server) echo /lib/systemd/system/ssh.service; echo /lib/systemd/system/ssh@.service;;\n\
    redis-server) echo /usr/lib/systemd/system/redis-server.service;;\n\
    esac";

/// Runs the script on a machine that has none of its programs; returns the recorded
/// arguments.
fn asked(name: &str, what: &str, history: &str, is_active: bool) -> Option<Vec<String>> {
    if !tidewall_skip::has_programs(name, &["unshare"]) || !rustix::process::geteuid().is_root() {
        return None;
    }
    let place = Place::new(name);
    let log = place.name("asked");
    let stub = |program: &str, script: &str| {
        let path = place.name(&format!("bin/{program}"));
        let text = format!("#!/bin/sh\necho {program} \"$@\" >>{log}\n{script}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::create_dir_all(place.name("bin")).unwrap();
    for program in ["sed", "grep", "rm", "chmod", "dirname", "sh"] {
        symlink(
            format!("/bin/{program}"),
            place.name(&format!("bin/{program}")),
        )
        .unwrap();
    }
    stub("id", "echo 0");
    stub("apt-get", "");
    stub("dpkg", UNITS);
    stub("zgrep", &format!("echo '{history}'"));
    let active = if is_active { "exit 0" } else { "exit 3" };
    stub(
        "systemctl",
        &format!("case $1 in is-active) {active};; esac"),
    );
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/setup.sh");
    let script = fs::canonicalize(script).unwrap();
    // Its files in /usr/sbin are the test's own.
    let command = format!(
        "mount -t tmpfs tmpfs /usr/sbin && export HOME=/nowhere PATH={} && exec sh {} {what}",
        place.name("bin"),
        script.display()
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &command])
        .output()
        .unwrap();
    if text(&output.stderr).contains("ermission denied") {
        tidewall_skip::missing(name, "a mount namespace");
        return None;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let asked = fs::read_to_string(&log).unwrap();
    Some(asked.lines().map(str::to_owned).collect())
}

fn installed(asked: &[String]) -> &str {
    let install = asked
        .iter()
        .find(|line| line.starts_with("apt-get install"));
    install.map_or("", String::as_str)
}

#[test]
fn the_demo_installs_no_server() {
    let Some(asked) = asked("the_demo_installs_no_server", "demo", "", false) else {
        return;
    };
    let installed = installed(&asked);
    for package in ["clang", "iproute2", "ethtool", "wrk"] {
        assert!(installed.contains(package), "{installed}");
    }
    for package in [
        "server",
        "nginx",
        "memcached",
        "haproxy",
        "squid",
        "unbound",
        "node",
    ] {
        assert!(!installed.contains(package), "{installed}");
    }
    assert!(
        !asked.iter().any(|line| line.contains("disable")),
        "{asked:?}"
    );
}

#[test]
fn no_service_is_left_enabled() {
    let Some(asked) = asked("no_service_is_left_enabled", "test", "", false) else {
        return;
    };
    assert!(installed(&asked).contains("openssh-server"), "{asked:?}");
    let disabled = |unit: &str| {
        let wanted = format!("systemctl disable -q {unit}");
        asked.contains(&wanted)
    };
    assert!(
        disabled("ssh.service") && disabled("redis-server.service"),
        "{asked:?}"
    );
    assert!(!disabled("ssh@.service"), "{asked:?}");
}

#[test]
fn a_service_that_an_earlier_setup_enabled_is_disabled() {
    let history =
        "Commandline: apt-get install -y -qq --no-install-recommends clang openssh-server wrk";
    for (is_active, history, expected) in [
        (false, history, true),
        // It is used.
        (true, history, false),
        (false, "Commandline: apt-get install openssh-client", false),
    ] {
        let name = "a_service_that_an_earlier_setup_enabled_is_disabled";
        let Some(asked) = asked(name, "demo", history, is_active) else {
            return;
        };
        let disable = "systemctl disable -q ssh.service".to_owned();
        assert_eq!(asked.contains(&disable), expected, "{history}: {asked:?}");
    }
}
