//! A real service on Tidewall in network namespaces, observed by `stat`, `trace` and
//! `doctor` while a blast runs. Needs root; skipped without.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::host::library;
use common::{PROGRAM, Place, Running, Service, program, signal, tidewall};
use serde_json::Value;

fn serve(bed: &Bed, options: &[&str]) -> Service {
    let echo = ["serve", "echo", "--interface", &bed.interface];
    Service::start(Bed::command(&bed.server, &[&echo, options].concat()))
}

/// Starts a `tidewall stat` whose output is read while it runs.
fn watch(arguments: &[&str]) -> (Running, BufReader<ChildStdout>) {
    let mut child = program(&[&["stat"], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (Running(child), output)
}

#[test]
fn every_address_of_the_host_is_answered_from() {
    let test = "every_address_of_the_host_is_answered_from";
    let Some(bed) = Bed::or_skip(test, "m") else {
        return;
    };
    let add = |address: &str| {
        let arguments = ["addr", "add", address, "dev", &bed.interface];
        let added = Bed::other(&bed.server, "ip", &arguments).status().unwrap();
        assert!(added.success(), "{address}");
    };
    add("10.99.0.3/24");
    let linux = ["serve", "echo", "--on", "linux", "--port", "8"];
    let services = [
        (7, serve(&bed, &[])),
        (8, Service::start(Bed::command(&bed.server, &linux))),
    ];
    add("10.99.0.4/24");
    for (port, service) in services {
        for host in [2, 3, 4] {
            // It accepts answers only from the peer that it asks.
            let (to, port) = (format!("10.99.0.{host}:9"), port.to_string());
            let load = ["blast", "--to", &to, "--sender", "socket", "--rate", "10"];
            let ping = ["--ping", &port, "--block", "--for", "1s", "--json"];
            let output = Bed::command(&bed.client, &[&load[..], &ping[..]].concat()).output();
            let report = json(&output.unwrap());
            let echoed = report["ping"]["measured"]["echoed"].as_u64();
            assert!(echoed > Some(0), "{to}, {port}: {report}");
        }
        service.end();
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

#[test]
fn a_live_service_is_seen_by_stat_trace_and_doctor() {
    // Namespaces need root, and so does everything after them.
    let Some(bed) = Bed::or_skip("a_live_service_is_seen_by_stat_trace_and_doctor", "a") else {
        return;
    };
    let service = serve(&bed, &[]);
    let first = &service.first;
    assert!(
        first.starts_with("echo on 0.0.0.0:7/udp, Tidewall (tidewall)"),
        "{first}"
    );
    // Device, mode, queues, checksums and segmentation.
    let device = "veth, native XDP, copy mode, 1 receive and 1 transmit queue, \
                  checksums by the device (proven at start), segments cut by the device";
    assert!(
        first.contains(&format!("interface {} ({device})", bed.interface)),
        "{first}"
    );
    let process = service.id();
    let mut blast = Bed::command(
        &bed.client,
        &[
            "blast",
            "--to",
            "10.99.0.2:7",
            "--sender",
            "socket",
            "--rate",
            "2k",
            "--size",
            "18",
            "--for",
            "4s",
        ],
    );
    let blast = Running(blast.stdout(Stdio::null()).spawn().unwrap());

    let stat = json(&tidewall(&["stat", &process, "--json"]));
    let stack = &stat["stacks"][0];
    assert_eq!(stack["now"]["interface"], bed.interface.as_str());
    let json_device = &stack["now"]["device"];
    assert_eq!(json_device["driver"], "veth");
    assert_eq!(json_device["zero_copy"], false);
    let received = |which: &str| stack[which]["sockets"][0]["received"].as_u64().unwrap();
    let gained = received("now") - received("before");
    assert!(
        (500..=4_000).contains(&gained),
        "{gained} received in a second at 2,000/s"
    );
    // The kernel's count of the interface, up to a tenth before the second look.
    let arrived = stack["received"].as_u64().unwrap();
    assert!((450..=4_000).contains(&arrived), "{arrived} arrived");
    let text = String::from_utf8(tidewall(&["stat", &process]).stdout).unwrap();
    assert!(
        text.contains("0.0.0.0:7") && text.contains("driver: channel") && text.contains(device),
        "{text}"
    );
    assert!(!text.contains("saw none"), "{text}");

    let file = std::env::temp_dir().join(format!("tw-live-{process}.pcapng"));
    let trace = tidewall(&[
        "trace",
        &process,
        "-n",
        "5",
        "--write",
        file.to_str().unwrap(),
    ]);
    let text = String::from_utf8(trace.stdout).unwrap();
    assert!(
        trace.status.success(),
        "{}",
        String::from_utf8_lossy(&trace.stderr)
    );
    assert_eq!(text.matches("redirect to channel").count(), 5, "{text}");
    assert!(
        text.contains("delivered  18 bytes from 10.99.0.1:"),
        "{text}"
    );
    match Command::new("tshark")
        .args(["-n", "-T", "fields", "-e", "udp.dstport", "-r"])
        .arg(&file)
        .output()
    {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "7\n".repeat(5)),
        Err(error) => tidewall_skip::missing("reading the capture by tshark", error),
    }
    fs::remove_file(&file).unwrap();

    let doctor = Bed::command(
        &bed.server,
        &["doctor", "--json", "--interface", &bed.interface],
    )
    .output()
    .unwrap();
    let findings = json(&doctor);
    let of = |check: &str| -> &Value {
        let found = findings
            .as_array()
            .unwrap()
            .iter()
            // Others of this host may have stacks.
            .find(|it| it["check"] == check && it["interface"] == bed.interface.as_str());
        found.unwrap_or_else(|| panic!("{check} was not looked at"))
    };
    for check in [
        "interface",
        "native XDP",
        "XDP program",
        "queues",
        "interrupt deferral",
        "MTU",
        "interrupt interval",
    ] {
        assert_eq!(of(check)["severity"], "ok", "{}", of(check));
    }
    assert_eq!(of("device")["text"], device);
    // One queue, or two that only the sender can choose between.
    assert_ne!(of("flow steering")["severity"], "problem");
    drop(blast);

    let totals = service.end();
    assert!(
        totals.starts_with("received ") && totals.contains(", 0 errors in "),
        "{totals}"
    );
    let gone = tidewall(&["stat", &process]);
    assert_eq!(
        gone.status.code(),
        Some(1),
        "its control socket is gone with it"
    );
}

#[test]
fn a_killed_service_leaves_no_control_socket() {
    let Some(bed) = Bed::or_skip("a_killed_service_leaves_no_control_socket", "k") else {
        return;
    };
    let service = serve(&bed, &[]);
    let socket = PathBuf::from(format!("/run/tidewall/{}.0.sock", service.id()));
    assert!(socket.exists());
    signal("-KILL", &service.process);
    let end = Instant::now() + Duration::from_secs(5);
    while socket.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!socket.exists(), "{}", socket.display());
}

#[test]
fn receive_control_is_watched_until_the_stack_ends() {
    let Some(bed) = Bed::or_skip("receive_control_is_watched_until_the_stack_ends", "b") else {
        return;
    };
    let options = ["--policy", "napi", "--budget", "64"];
    let service = serve(&bed, &options);
    let first = &service.first;
    assert!(first.starts_with("echo on 0.0.0.0:7/udp"), "{first}");
    let process = service.id();

    // Text, ended as by Ctrl-C.
    let (mut text, lines) = watch(&[&process, "--watch=0.1"]);
    let mut seen = String::new();
    let mut blocks = 0;
    for line in lines.lines().map(Result::unwrap) {
        assert!(!line.contains('\x1b'), "not on a terminal: {line:?}");
        blocks += usize::from(line.trim_start().starts_with("queue  policy"));
        seen.push_str(&line);
        seen.push('\n');
        if blocks == 2 {
            break;
        }
    }
    assert_eq!(blocks, 2, "{seen}");
    assert!(
        seen.contains("receive control: napi, Bp 64, T 0,"),
        "{seen}"
    );
    assert!(seen.contains("% idle"), "{seen}");
    assert!(seen.contains("delivered to channels"), "{seen}");
    signal("-INT", &text);
    assert!(text.0.wait().unwrap().success());

    // A terminal gets the block in place, and nothing that needs undoing.
    let terminal = Command::new("script")
        .arg("-qefc")
        .arg(format!(
            "stty rows 12 cols 60; exec {PROGRAM} stat {process} --watch=0.1"
        ))
        .arg("/dev/null")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    match terminal {
        Ok(mut terminal) => {
            let mut output = terminal.stdout.take().unwrap();
            let _terminal = Running(terminal);
            let mut shown = Vec::new();
            let mut part = [0; 4096];
            while shown.windows(3).filter(|three| three == b"\x1b[H").count() < 2 {
                let length = output.read(&mut part).unwrap();
                shown.extend(&part[..length]);
                let so_far = String::from_utf8_lossy(&shown);
                assert!(length > 0, "it ended after {so_far:?}");
            }
            let shown = String::from_utf8_lossy(&shown);
            assert!(!shown.contains("\x1b[?"), "{shown:?}");
            assert!(shown.contains("more lines"), "{shown:?}");
        }
        Err(error) => tidewall_skip::missing("watching on a terminal by script", error),
    }

    // JSON, one line per look, until the stack disappears.
    let (mut json, mut lines) = watch(&[&process, "--watch=0.1", "--json"]);
    for _ in 0..2 {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let look: Value = serde_json::from_str(&line).unwrap();
        let stack = &look["stacks"][0];
        assert_eq!(stack["now"]["interface"], bed.interface.as_str());
        let control = &stack["now"]["queues"][0]["control"];
        assert_eq!(control["policy"], "napi");
        assert_eq!(control["budget"], 64);
        assert!(stack["rates"][0]["rounds"].is_number(), "{line}");
        let seconds = stack["processors"]["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.1, "{line}");
    }
    service.end();
    lines.read_to_string(&mut String::new()).unwrap();
    assert_eq!(json.0.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    json.0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(
        said,
        format!(
            "tidewall: the stack of process {process} on {} has ended\n",
            bed.interface
        )
    );
}

#[test]
fn doctor_says_beforehand_whether_a_program_can_be_served() {
    let test = "doctor_says_beforehand_whether_a_program_can_be_served";
    if !tidewall_skip::has_programs(test, &["python3", "ldconfig"]) {
        return;
    }
    let Some(bed) = Bed::or_skip(test, "d") else {
        return;
    };
    library();
    let place = Place::new("foreseen");
    let place = place.with("no-program", "hello");
    let setuid = place.name("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    std::os::unix::fs::chown(&setuid, Some(12345), Some(12345)).unwrap();
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(&setuid, mode(0o4755)).unwrap();
    let text = place.name("no-program");
    let command = |words: &[&str]| Bed::command(&bed.server, words).output().unwrap();
    let found = |output: &Output| {
        let findings = json(output);
        let of = |it: &&Value| it["check"] == "program";
        let found = findings.as_array().unwrap().iter().find(of).unwrap();
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("severity"), text("text"))
    };
    let ask = |words: &[&str]| {
        let doctor = ["doctor", "--interface", &bed.interface, "--json", "--"];
        command(&[&doctor, words].concat())
    };
    let (severity, said) = found(&ask(&["python3", "-c", "pass"]));
    let served = format!(
        "`tidewall run --interface {}` can serve python3",
        bed.interface
    );
    assert_eq!(severity, "ok", "{said}");
    assert!(said.starts_with(&served), "{said}");
    for (program, why, code) in [
        // ldconfig(8) is static.
        ("ldconfig", "linked statically", 2),
        (&setuid, "it is setuid or setgid", 2),
        ("tw-no-such", "there is no program tw-no-such in PATH", 127),
        ("./tw-no-such", "No such file", 127),
        (&text, "Permission denied", 126),
        ("/", "", 126),
    ] {
        let output = ask(&[program]);
        let (severity, said) = found(&output);
        assert_eq!(severity, "problem", "{program}: {said}");
        assert!(said.contains(why), "{program}: {said}");
        assert_eq!(output.status.code(), Some(1));
        // The same as at its start.
        let run = ["run", "--interface", &bed.interface, "--", program];
        let run = command(&run);
        let error = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{program}: {error}");
        let reason = said.split_once(": ").unwrap().1;
        assert!(code != 2 || error.contains(reason), "{error}: {said}");
    }
    fs::set_permissions(&text, mode(0o755)).unwrap();
    let (_, said) = found(&ask(&[&text]));
    assert!(said.contains("neither an ELF file nor a script"), "{said}");
    let mut without = Bed::command(
        &bed.server,
        &[
            "doctor",
            "--interface",
            &bed.interface,
            "--json",
            "--",
            "python3",
        ],
    );
    let (severity, said) = found(&without.env("TIDEWALL_LIBRARY", "/none").output().unwrap());
    assert_eq!(severity, "problem");
    assert!(said.contains("no such file is there"), "{said}");
}
