//! Load generators over loopback: their reports, and their ends.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use common::bed::Bed;
use common::{Running, fails, program, signal, tcp_port, text, tidewall};

#[test]
fn a_blast_over_loopback_is_reported_as_json() {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = sink.local_addr().unwrap().to_string();
    let output = tidewall(&[
        "blast", "--to", &to, "--sender", "socket", "--rate", "1k", "--for", "300ms", "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sent = report["blast"]["measured"]["sent"].as_u64().unwrap();
    // The machine decides how many there was time for; never more.
    assert!(
        (1..=310).contains(&sent),
        "{sent} sent in 300 ms at 1,000/s"
    );
}

/// Answers each connection's first request, a byte of body, and closes it.
fn small_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
        }
    });
    address
}

#[test]
fn a_load_of_s_clients_is_reported_as_text_and_as_json() {
    let url = format!("http://{}/doc", small_server());
    let common = ["load", "s-clients", "-R", "100", "--for", "2s"];
    let output = tidewall(&[&common[..], &[&url]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in [
        "S-clients at 100/s: D = 50, T = 500 ms",
        "offered",
        "corrected (from when due)",
        "raw (from when begun)",
        "p99.9",
    ] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    let more = ["--json", "-", "--interval", "100ms", &url];
    let output = tidewall(&[&common[..], &more].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["load"]["s_clients"]["rate"], 100);
    let report = &json["report"]["s_clients"];
    assert!(report["measured"]["begun"].as_u64().unwrap() <= 200);
    assert!(
        report["response"]["corrected"]["percentiles"].is_array(),
        "{report}"
    );
    assert!(!json["intervals"].as_array().unwrap().is_empty());
}

#[test]
fn a_load_that_nobody_answers_ends_with_1() {
    let closed = format!("127.0.0.1:{}", tcp_port());
    let url = format!("http://{closed}/");
    for arguments in [
        &["load", "s-clients", "-R", "50", "-d", "200ms", &url][..],
        &["load", "http", "-c", "1", "-d", "200ms", &url],
        &[
            "load",
            "slow",
            "-c",
            "2",
            "--open-timeout",
            "100ms",
            "-d",
            "100ms",
            &url,
        ],
    ] {
        let error = fails(arguments, 1);
        assert!(error.contains("tidewall: http://127.0.0.1"), "{error}");
    }
    let error = fails(&["load", "rpc", "--to", &closed, "-d", "200ms"], 1);
    assert!(error.contains("no call was answered"), "{error}");
}

#[test]
fn a_load_ends_with_what_it_has_when_interrupted() {
    let url = format!("http://{}/doc", small_server());
    let endless = ["load", "s-clients", "-R", "100", "-d", "10m", "--progress"];
    let mut child = program(&[&endless[..], &["--interval", "50ms", &url]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut output = child.stdout.take().unwrap();
    let mut load = Running(child);
    // The first line of progress: it runs.
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("offered"), "{line}");
    // Its further output must not fill the pipe.
    let rest = thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    signal("-INT", &load);
    let mut report = String::new();
    output.read_to_string(&mut report).unwrap();
    let _ = rest.join();
    assert_eq!(load.0.wait().unwrap().code(), Some(0));
    assert!(report.contains("stopped early"), "{report}");
}

#[test]
fn tune_says_what_no_setting_mends() {
    let test = "tune_says_what_no_setting_mends";
    if Bed::or_skip(test, "t").is_none() {
        return;
    }
    let output = tidewall(&["tune", "--seconds", "3", "--rate", "10k"]);
    let said = text(&output.stdout);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let errors = text(&output.stderr);
    let wanted = "tc qdisc replace dev PEER root pfifo limit 1000";
    assert!(said.contains(wanted), "{said}{errors}");
}
