//! The program from a user's point of view: useful help, mistakes answered by exit code 2
//! and a helpful line, never a backtrace.

mod common;

use common::{fails, text, tidewall};

#[test]
fn version_is_printed() {
    let output = tidewall(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        text(&output.stdout),
        concat!("tidewall ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn every_subcommand_has_help_with_an_example() {
    let overview = text(&tidewall(&["--help"]).stdout);
    assert!(overview.contains("Exit codes:"), "{overview}");
    assert!(!overview.contains("lab-worker"), "{overview}");
    for command in [
        "serve", "load", "blast", "lab", "demo", "impair", "stat", "trace", "doctor",
    ] {
        assert!(
            overview.contains(&format!("\n  {command} ")),
            "{command} is not in\n{overview}"
        );
        let output = tidewall(&[command, "--help"]);
        assert!(output.status.success(), "{command}");
        let help = text(&output.stdout);
        assert!(
            help.contains(&format!("  tidewall {command} "))
                || help.contains(&format!("  tidewall {command}\n")),
            "no example in\n{help}"
        );
        assert!(help.contains("xit code"), "no exit codes in\n{help}");
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{help}"
        );
    }
    for kind in [
        "s-clients",
        "http",
        "slow",
        "rpc",
        "udp",
        "syn-flood",
        "blast",
    ] {
        let output = tidewall(&["load", kind, "--help"]);
        let help = text(&output.stdout);
        let example = match kind {
            "blast" => "  tidewall blast ".to_owned(),
            kind => format!("  tidewall load {kind} "),
        };
        assert!(
            output.status.success() && help.contains(&example),
            "load {kind}: no example in\n{help}"
        );
        assert!(help.contains("xit code"), "no exit codes in\n{help}");
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{help}"
        );
    }
    for command in ["list", "run", "report"] {
        assert!(
            tidewall(&["lab", command, "--help"]).status.success(),
            "lab {command}"
        );
    }
}

#[test]
fn wrong_arguments_end_with_2_and_say_what_was_expected() {
    for (arguments, help) in [
        (&[][..], "Usage"),
        (&["fly"], "Usage"),
        (&["serve"], "echo"),
        (&["serve", "http", "--on", "linux"], "DIR"),
        (
            &["serve", "http", "/none-such", "--on", "linux"],
            "is no directory",
        ),
        (&["serve", "echo", ".", "--on", "linux"], "DIR is for http"),
        (
            &["serve", "echo", "--on", "linux", "--log", "x"],
            "--log is for http and proxy",
        ),
        (
            &["serve", "http", ".", "--on", "linux", "--limit", "9"],
            "--limit is for datagrams",
        ),
        (
            &["serve", "http", ".", "--on", "linux", "--origin", "a:80"],
            "--origin is for proxy",
        ),
        (
            &[
                "serve", "http", ".", "--on", "linux", "--events", "selector",
            ],
            "there is epoll, select, poll",
        ),
        (
            &[
                "serve",
                "http",
                ".",
                "--on",
                "linux",
                "--allocator",
                "linear",
            ],
            "--allocator is for Tidewall's descriptors",
        ),
        (
            &["serve", "echo", "--on", "linux", "--events", "poll"],
            "--events is for http and proxy",
        ),
        (
            &["serve", "proxy", "--on", "linux", "--origin", "nowhere"],
            "10.0.0.2:80",
        ),
        (&["serve", "chargen", "--interface", "lo"], "echo"),
        (&["serve", "echo"], "--interface"),
        (
            &["serve", "echo", "--interface", "lo", "--port", "0"],
            "1..",
        ),
        (
            &["serve", "echo", "--interface", "lo", "--queues", "9"],
            "1..=8",
        ),
        (
            &[
                "serve",
                "echo",
                "--interface",
                "lo",
                "--architecture",
                "lrp",
            ],
            "early-demux",
        ),
        (
            &["serve", "echo", "--interface", "lo", "--spin", "2s"],
            "at most 1 s",
        ),
        (&["serve", "echo", "--policy", "busy"], "qapolling"),
        (&["serve", "echo", "--budget", "1"], "2 to 3000"),
        (&["impair", "lo"], "<B>"),
        (&["impair", "lo", "lo", "--for", "0s"], "both sides"),
        (&["impair", "lo", "none-such"], "no interface none-such"),
        (&["serve", "echo", "--budget", "3001"], "2 to 3000"),
        (&["serve", "echo", "--interval", "2ms"], "0 to 1 ms"),
        (&["serve", "echo", "--interval", "soon"], "20us"),
        (
            &["serve", "echo", "--on", "linux", "--policy", "rhip"],
            "--policy says how Tidewall receives",
        ),
        (
            &[
                "serve",
                "echo",
                "--on",
                "linux",
                "--architecture",
                "softirq",
                "--budget",
                "64",
                "--interval",
                "0",
            ],
            "--architecture and --budget and --interval say how",
        ),
        (&["serve", "echo", "--class", "0"], "1 to 65535"),
        (&["serve", "echo", "--class", "7:1"], "2 to 3000"),
        (
            &["serve", "echo", "--on", "linux", "--class", "7"],
            "--class says how Tidewall receives",
        ),
        (&["blast", "--rate", "max"], "--to"),
        (&["blast", "--to", "10.0.0.1"], "IP:PORT"),
        (&["blast", "--to", "127.0.0.1:9", "--rate", "fast"], "300k"),
        (&["blast", "--to", "127.0.0.1:9", "--for", "ten"], "200ms"),
        (
            &[
                "blast",
                "--to",
                "127.0.0.1:9",
                "--size",
                "2000",
                "--sender",
                "socket",
            ],
            "1472",
        ),
        (&["load"], "s-clients"),
        (&["load", "s-clients", "http://10.0.0.2/"], "--rate"),
        (&["load", "s-clients", "-R", "5k"], "URL"),
        (
            &["load", "s-clients", "-R", "max", "http://10.0.0.2/"],
            "a number",
        ),
        (
            &["load", "s-clients", "-R", "1M", "http://10.0.0.2/"],
            "need 20 source addresses",
        ),
        (
            &[
                "load",
                "s-clients",
                "-R",
                "1",
                "-T",
                "2m",
                "http://10.0.0.2/",
            ],
            "1 ms to 60 s",
        ),
        (&["load", "http", "10.0.0.2"], "http://"),
        (&["load", "http", "https://10.0.0.2/"], "TLS"),
        (
            &["load", "http", "--for", "2h", "http://127.0.0.1:9/"],
            "at most an hour",
        ),
        (
            &["load", "http", "-c", "5000", "http://127.0.0.1:9/"],
            "1 to 4096",
        ),
        (
            &[
                "load",
                "http",
                "--json",
                "/none-such/x",
                "http://127.0.0.1:9/",
            ],
            "/none-such/x",
        ),
        (
            &["load", "slow", "-c", "100k", "http://10.0.0.2/"],
            "need 4 source addresses",
        ),
        (
            &["load", "slow", "-c", "1000001", "http://10.0.0.2/"],
            "1,000,000",
        ),
        (
            &[
                "load",
                "slow",
                "-c",
                "9",
                "--sources",
                "x",
                "http://10.0.0.2/",
            ],
            "10.0.1.0/26",
        ),
        (&["load", "rpc"], "--to"),
        (&["load", "rpc", "--to", "10.0.0.2"], "10.77.0.2:7"),
        (&["load", "rpc", "--to", "10.0.0.2:7", "-n", "9999"], "1024"),
        (
            &["load", "udp", "--to", "10.0.0.2:9", "--sender", "x"],
            "socket",
        ),
        (&["load", "syn-flood"], "--to"),
        (&["lab", "run"], "NAME"),
        (&["stat", "--watch=4711"], "0.1 to 60"),
        (&["stat", "--watch=0.05"], "0.1 to 60"),
        (&["stat", "--watch="], "--watch"),
        (&["stat", "--watch", "0.5"], "PID"),
        (&["trace", "-n", "0"], "1..="),
        (&["doctor", "eth0"], "--interface"),
    ] {
        let error = fails(arguments, 2);
        assert!(
            error.contains(help),
            "{arguments:?} does not mention {help:?}:\n{error}"
        );
    }
}

#[test]
fn an_unknown_interface_is_named_with_the_command_that_lists_them() {
    for arguments in [
        &["serve", "echo", "--interface", "tw-none-such"][..],
        &["blast", "--interface", "tw-none-such", "--to", "10.0.0.1:9"],
        &["doctor", "--interface", "tw-none-such"],
    ] {
        let error = fails(arguments, 2);
        assert_eq!(
            error,
            "tidewall: no interface tw-none-such in this network namespace; see: ip link\n"
        );
    }
}

#[test]
fn classes_are_checked_before_the_interface_is_looked_for() {
    for (options, help) in [
        (
            &["--class", "7", "--class", "9,7"][..],
            "port 7 is in two classes",
        ),
        (
            &["--queues", "1", "--class", "7", "--class", "9:64"],
            "2 classes need as many queues; --queues says 1",
        ),
        (
            &["--architecture", "softirq", "--class", "7"],
            "--class is for tidewall",
        ),
    ] {
        let arguments = [&["serve", "echo", "--interface", "tw-none-such"], options].concat();
        let error = fails(&arguments, 2);
        assert!(error.contains(help), "{arguments:?}:\n{error}");
    }
}

#[test]
fn values_out_of_range_are_refused_before_the_interface_is_looked_for() {
    for (option, value) in [
        ("--policy", "busy"),
        ("--budget", "0"),
        ("--interval", "1s"),
    ] {
        let error = fails(
            &[
                "serve",
                "echo",
                "--interface",
                "tw-none-such",
                option,
                value,
            ],
            2,
        );
        assert!(error.contains(option), "{error}");
        assert!(!error.contains("no interface"), "{error}");
    }
}

#[test]
fn receive_control_is_in_the_help() {
    for (command, words) in [
        (
            "serve",
            &[
                "--policy",
                "--budget",
                "--interval",
                "softirq",
                "2 to 3000",
                "0 to 1ms",
            ][..],
        ),
        ("stat", &["--watch[=<SECONDS>]", "0.1 to 60", "Bp", "idle"]),
    ] {
        let help = text(&tidewall(&[command, "--help"]).stdout);
        for word in words {
            assert!(help.contains(word), "no {word:?} in\n{help}");
        }
    }
}

#[test]
fn a_stack_that_is_not_live_is_said_to_be_so() {
    // No process has this id: it is above every pid_max.
    for arguments in [
        &["stat", "4194999"][..],
        &["stat", "--watch", "4194999"],
        &["stat", "--watch=0.1", "--json", "4194999"],
        &["trace", "4194999"],
    ] {
        let error = fails(arguments, 1);
        assert!(error.contains("no Tidewall stack"), "{error}");
    }
}

#[test]
fn counters_are_explained_without_a_stack() {
    let output = tidewall(&["stat", "--explain", "channel-full"]);
    assert!(output.status.success());
    assert!(
        text(&output.stdout).contains("Early discard"),
        "{}",
        text(&output.stdout)
    );
    assert!(fails(&["stat", "--explain", "no-such-counter"], 1).contains("--explain"));
}

#[test]
fn doctor_s_json_is_a_list_of_findings_that_agrees_with_its_exit_code() {
    let output = tidewall(&["doctor", "--json"]);
    let findings: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).expect("standard output is one JSON array");
    let problems = findings
        .iter()
        .filter(|finding| finding["severity"] == "problem")
        .count();
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)));
    for check in [
        "kernel",
        "BTF",
        "capabilities",
        "locked memory",
        "firewall",
        "leftover namespaces",
    ] {
        assert!(
            findings.iter().any(|finding| finding["check"] == check),
            "{check} was not looked at"
        );
    }
    for finding in findings
        .iter()
        .filter(|finding| finding["severity"] == "problem")
    {
        assert!(finding["mend"].is_string(), "no cure for {finding}");
    }
}

#[test]
fn a_port_in_use_is_said_before_a_service_has_totals() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = [
        "serve",
        "echo",
        "--on",
        "linux",
        "--address",
        "127.0.0.1",
        "--port",
        &port,
    ];
    let output = tidewall(&serve);
    let said = text(&output.stderr);
    assert!(
        said.contains("another program has the port; see: ss -tulpn"),
        "{said}"
    );
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(2), 0),
        "{said}"
    );
}

#[test]
fn names_for_addresses_are_answered_with_the_form() {
    for arguments in [
        &["serve", "echo", "--on", "linux", "--address", "localhost"][..],
        &["blast", "--to", "localhost:9"],
        &["load", "udp", "--to", "10.0.0.1:9", "--source", "localhost"],
        &["load", "rpc", "--to", "localhost:7"],
        &[
            "load",
            "http",
            "--proxy",
            "localhost:3128",
            "http://10.0.0.2/",
        ],
        &[
            "acp-bridge",
            "client",
            "--listen",
            "localhost:1",
            "--to",
            "10.0.0.1:1",
        ],
        &[
            "acp-bridge",
            "client",
            "--listen",
            "10.0.0.1:1",
            "--to",
            "localhost:1",
        ],
        &["atm", "ping", "--interface", "x", "--next-hop", "localhost"],
    ] {
        let error = fails(arguments, 2);
        assert!(
            error.contains("names are not looked up"),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn the_nearest_experiment_is_named() {
    let error = fails(&["lab", "run", "lrp-overlaod"], 2);
    let said = error.lines().next().unwrap();
    assert!(said.contains("is lrp-overload meant?"), "{error}");
    assert!(error.lines().count() < 4, "{error}");
    let error = fails(&["lab", "run", "zzz"], 2);
    assert!(!error.contains("meant"), "{error}");
    assert!(error.contains("\nlrp-overload "), "{error}");
}
