//! Differences must be detected: a runner that passes everything tests nothing.

use super::*;
use crate::script::parse;

const HANDSHAKE: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
    +0 bind(3, ..., ...) = 0
    +0 listen(3, 1) = 0
    +0 < S 0:0(0) win 65535 <mss 1000>
    +0 > S. 0:0(0) ack 1 <mss 1460>
    +.1 < . 1:1(0) ack 1 win 65535
    +0 accept(3, ..., ...) = 4\n";

/// Runs the events after a handshake.
fn after(text: &str) -> Result<(), Failure> {
    run(&parse(&format!("{HANDSHAKE}{text}")).unwrap())
}

/// The reason of a failure.
fn failure(text: &str) -> String {
    match after(text) {
        Ok(()) => panic!("passes: {text}"),
        Err(failure) => {
            assert!(!failure.trace.is_empty(), "{text}");
            failure.to_string()
        }
    }
}

#[test]
fn a_script_passes() {
    after(
        "+0 write(4, ..., 100) = 100
        +0 > P. 1:101(100) ack 1
        +.1 < . 1:1(0) ack 101 win 65535",
    )
    .unwrap();
}

#[test]
fn every_field_is_compared() {
    let write = "+0 write(4, ..., 100) = 100\n";
    for (line, field) in [
        ("+0 > . 1:101(100) ack 1", "flags"),
        ("+0 > P. 2:102(100) ack 1", "sequence number"),
        ("+0 > P. 1:101(100) ack 2", "acknowledgment number"),
        ("+0 > P. 1:101(100) ack 1 win 7", "window"),
        ("+0 > PU. 1:101(100) ack 1 urg 5", "flags, urgent pointer"),
        ("+0 > P. 1:100(99) ack 1", "length"),
        ("+0 > P. 1:101(100) ack 1 <nop,nop,sackOK>", "options"),
        ("+0 > [ce] P. 1:101(100) ack 1", "ECN field"),
        ("+0 > [ect01] P. 1:101(100) ack 1", "ECN field"),
        ("+0 > [tos 0x10] P. 1:101(100) ack 1", "traffic class"),
        ("+0 > [ttl 7] P. 1:101(100) ack 1", "hop limit"),
        ("+0 > 8080 > 1 P. 1:101(100) ack 1", "ports"),
    ] {
        let message = failure(&format!("{write}{line}"));
        let expected = format!("8:1: with ipv4: the packet differs in: {field}\n");
        let found = message
            .lines()
            .next()
            .unwrap_or_default()
            .replace("9:1", "8:1");
        assert_eq!(format!("{found}\n"), expected, "{line}\n{message}");
        assert!(message.contains("  expected: > "), "{message}");
        assert!(message.contains("    actual: > "), "{message}");
    }
}

#[test]
fn times_are_exact_unless_the_script_allows_more() {
    let write = "+0 write(4, ..., 100) = 100\n";
    let late = failure(&format!("{write}+.01 > P. 1:101(100) ack 1"));
    assert!(
        late.contains("the packet was to leave at 0.110000 but did at 0.100000"),
        "{late}"
    );
    let silent = failure("+.5 > P. 1:101(100) ack 1");
    assert!(silent.contains("no packet has left until 0.60"), "{silent}");
    // The retransmission is at 0.4.
    let again = format!("{write}+0 > P. 1:101(100) ack 1\n");
    let early = failure(&format!("{again}+.2~+.25 > P. 1:101(100) ack 1"));
    assert!(early.contains("no packet has left until 0.35"), "{early}");
    after(&format!("{again}+.2~+.35 > P. 1:101(100) ack 1")).unwrap();
    after(&format!("{again}0.4 > P. 1:101(100) ack 1")).unwrap();
    after(&format!("{again}* > P. 1:101(100) ack 1")).unwrap();
    for option in ["--tolerance_usecs=10000", "--tolerance_percent=5"] {
        let text = format!("{option}\n{HANDSHAKE}{again}+.295 > P. 1:101(100) ack 1");
        run(&parse(&text).unwrap()).unwrap();
    }
}

#[test]
fn an_event_of_the_past_is_refused() {
    let message = failure("0.05 write(4, ..., 100) = 100");
    assert!(message.contains("it is 0.100000 already"), "{message}");
}

#[test]
fn what_is_left_over_is_reported() {
    let message = failure("+0 write(4, ..., 100) = 100");
    assert!(message.contains("not in the script"), "{message}");
    assert!(
        message.contains("actual: 0.100000 > P. 1:101(100) ack 1"),
        "{message}"
    );
    let message = failure("+0...0.5 read(4, ..., 100) = 100");
    assert!(
        message.contains("read was to return at 0.600000 but still blocks"),
        "{message}"
    );
}

#[test]
fn results_of_calls_are_compared() {
    for (line, expected) in [
        (
            "+0 write(4, ..., 100) = 99",
            "write returns 100, expected 99",
        ),
        (
            "+0 write(9, ..., 100) = 100",
            "write returns -1 EBADF, expected 100",
        ),
        (
            "+0 close(9) = -1 EINVAL",
            "close returns -1 EBADF, expected -1 EINVAL",
        ),
        ("+0 read(4, ..., 100) = 0", "read blocks"),
        (
            "+0 getsockopt(4, SOL_TCP, TCP_NODELAY, [1], [4]) = 0",
            "getsockopt gives [0], expected [1]",
        ),
        (
            "+0 poll([{fd=4, events=POLLOUT, revents=POLLIN}], 1, 0) = 1",
            "poll gives revents=0x4, expected 0x1",
        ),
        (
            "+0 ioctl(4, SIOCINQ, [7]) = 0",
            "ioctl returns [0], expected [7]",
        ),
        ("+0 frobnicate(4) = 0", "there is no call frobnicate"),
        (
            "+0 close(4, 5) = 0",
            "there is no call close with 2 arguments",
        ),
        (
            "+0 setsockopt(4, SOL_TCP, TCP_NONSENSE, [1], 4) = 0",
            "the constant TCP_NONSENSE is not known here",
        ),
        ("+0 accept(3, ..., ...) = 4", "accept blocks"),
    ] {
        let message = failure(line);
        assert!(message.contains(expected), "{line}\n{message}");
    }
}

#[test]
fn control_messages_are_compared() {
    let reported = |message: &str| {
        format!(
            "+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE], 4) = 0
            +0 write(4, ..., 100) = 100
            +0 > P. 1:101(100) ack 1
            +0 recvmsg(4, {{msg_iov(1)=[{{..., 0}}], {message}}}, MSG_ERRQUEUE) = 0"
        )
    };
    let time = "{cmsg_level=SOL_SOCKET, cmsg_type=SCM_TIMESTAMPING, cmsg_data={scm_sec=0, scm_nsec=100000000}}";
    let error = |data: u32| {
        format!(
            "{{cmsg_level=CMSG_LEVEL_IP, cmsg_type=CMSG_TYPE_RECVERR, cmsg_data={{ee_errno=ENOMSG, ee_data={data}}}}}"
        )
    };
    let flags = "msg_flags=MSG_ERRQUEUE|MSG_TRUNC";
    let good = format!("{flags}, msg_control=[{time}, {}]", error(0));
    after(&reported(&good)).unwrap();
    for (message, expected) in [
        (
            "msg_flags=MSG_ERRQUEUE".to_owned(),
            "msg_flags is 0x2020, expected 0x2000",
        ),
        (
            format!("{flags}, msg_control=[{time}]"),
            "control messages (level, type)",
        ),
        (
            format!("{flags}, msg_control=[{}, {time}]", error(0)),
            "control messages (level, type)",
        ),
        (
            format!("{flags}, msg_control=[{time}, {}]", error(7)),
            "ee_data is 0, expected 7",
        ),
        (good.replace("scm_nsec=1", "scm_nsec=2"), "expected 200ms"),
    ] {
        let message = failure(&reported(&message));
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn bytes_are_compared_with_what_was_written() {
    // The second reader would need the data that the first one took.
    after(
        "+0 < P. 1:101(100) ack 1 win 65535
        +0 > . 1:1(0) ack 101
        +0 recv(4, ..., 10, MSG_PEEK) = 10
        +0 read(4, ..., 10) = 10
        +0 read(4, ..., 100) = 90",
    )
    .unwrap();
    let message = failure(
        "+0 < P. 1:101(100) ack 1 win 65535
        +0 > . 1:1(0) ack 101
        +0 read(4, \"hello\", 10) = 10",
    );
    assert!(message.contains("expected \"hello\""), "{message}");
    // The script's own data.
    after("+0 write(4, \"hello\", 5) = 5\n+0 > P. 1:6(5) ack 1").unwrap();
}

#[test]
fn blocking_calls_return_when_the_script_says() {
    let data = "+.1 < P. 1:101(100) ack 1 win 65535\n+0 > . 1:1(0) ack 101";
    after(&format!("+0...0.1 read(4, ..., 100) = 100\n{data}")).unwrap();
    let message = failure(&format!("+0...0.2 read(4, ..., 100) = 100\n{data}"));
    assert!(
        message.contains("was to return at 0.300000 but did at 0.200000"),
        "{message}"
    );
    // Another call waits for the one that blocks.
    let message = failure("+0...0.2 read(4, ..., 100) = 100\n+0 close(4) = 0");
    assert!(message.contains("still blocks"), "{message}");
    let message = failure("+0...0.2 write(4, ..., 100) = 100");
    assert!(message.contains("returns at once"), "{message}");
    after("+0...0.05 poll([{fd=4, events=POLLIN}], 1, 50) = 0").unwrap();
}

#[test]
fn assertions_tell_what_was_found() {
    after("+0 %{ assert tcpi_snd_mss == 1000 and tcpi_state == TCP_ESTABLISHED }%").unwrap();
    let message = failure("+0 %{ assert tcpi_snd_mss == 1, 'because' }%");
    assert!(
        message.contains("assertion failed: tcpi_snd_mss == 1\n  tcpi_snd_mss = 1000\n  because"),
        "{message}"
    );
    let message = failure("+0 %{ assert tcpi_nonsense == 1 }%");
    assert!(
        message.contains("`tcpi_nonsense` is not known"),
        "{message}"
    );
}

#[test]
fn a_line_may_stand_for_several_segments() {
    let write = "+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2501(2500) ack 1";
    after(write).unwrap();
    let strict = format!("--strict_segments\n{HANDSHAKE}{write}");
    let message = run(&parse(&strict).unwrap()).unwrap_err().to_string();
    assert!(message.contains("differs in: length"), "{message}");
    let message = failure("+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2301(2300) ack 1");
    assert!(message.contains("differs in: length"), "{message}");
}

#[test]
fn echoes_are_of_what_was_sent() {
    let script = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
        +0 bind(3, ..., ...) = 0
        +0 listen(3, 1) = 0
        +0 < S 0:0(0) win 65535 <mss 1000,sackOK,TS val 7 ecr 0>
        +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,TS val 100 ecr 7>
        +.1 < . 1:1(0) ack 1 win 65535 <nop,nop,TS val 8 ecr 555>";
    let message = run(&parse(script).unwrap()).unwrap_err().to_string();
    assert!(message.contains("`ecr 555`"), "{message}");
    let scaled = format!("--tcp_ts_ecr_scaled\n{script}");
    run(&parse(&scaled).unwrap()).unwrap();
    // Values count if the script states their unit.
    let clock = script.replace("ecr 555", "ecr 100")
        + "\n+.4 accept(3, ..., ...) = 4
        +0 write(4, ..., 1) = 1
        +0 > P. 1:2(1) ack 1 <nop,nop,TS val 605 ecr 8>";
    run(&parse(&clock).unwrap()).unwrap();
    let strict = format!("--tcp_ts_tick_usecs=1000\n{clock}");
    let message = run(&parse(&strict).unwrap()).unwrap_err().to_string();
    assert!(message.contains("differs in: timestamp"), "{message}");
    run(&parse(&strict.replace("val 605", "val 600")).unwrap()).unwrap();
}

#[test]
fn options_that_are_wrong_are_reported() {
    for (line, expected) in [
        (
            "--ip_version=ipv5",
            "1:1: with ipv4: expected --ip_version=",
        ),
        ("--mtu=many", "expected --mtu=BYTES"),
        ("--frobnicate", "--frobnicate is not known here"),
        ("`sysctl net.ipv4.tcp_nonsense=1`", "is not a setting"),
        (
            "`sysctl net.ipv4.tcp_ecn=many`",
            "net.ipv4.tcp_ecn cannot be `many`",
        ),
    ] {
        let script = parse(&format!("{line}\n0 close(3) = 0")).unwrap();
        let message = run(&script).unwrap_err().to_string();
        assert!(message.contains(expected), "{line}: {message}");
    }
    let udp = parse("0 < udp (10)").unwrap();
    assert!(run(&udp).unwrap_err().message.contains("no UDP"));
}

#[test]
fn each_family_of_addresses_runs() {
    let families = |option: &str| {
        families(&parse(&format!("{option}\n0 close(3) = 0")).unwrap())
            .unwrap()
            .iter()
            .map(|family| family.name())
            .collect::<Vec<_>>()
    };
    assert_eq!(families(""), ["ipv4", "ipv6"]);
    assert_eq!(families("--ip_version=ipv6"), ["ipv6"]);
    let mapped = "--ip_version=ipv4-mapped-ipv6";
    assert_eq!(families(mapped), ["ipv4-mapped-ipv6"]);
    let text = format!("{mapped}\n{HANDSHAKE}+0 close(4) = 0\n+0 > F. 1:1(0) ack 1");
    run(&parse(&text).unwrap()).unwrap();
}
