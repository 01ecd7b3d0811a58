//! How scripts are parsed, and how errors are reported.

use core::time::Duration;

use super::*;

fn one(text: &str) -> Event {
    let mut script = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(script.events.len(), 1, "{text}");
    script.events.remove(0)
}

fn packet(text: &str) -> Packet {
    match one(text).action {
        Action::Packet(packet) => packet,
        other => panic!("{other:?}"),
    }
}

fn tcp(text: &str) -> Tcp {
    match packet(text).transport {
        Transport::Tcp(tcp) => tcp,
        other => panic!("{other:?}"),
    }
}

fn call(text: &str) -> Call {
    match one(text).action {
        Action::Call(call) => call,
        other => panic!("{other:?}"),
    }
}

#[test]
fn times() {
    let milliseconds = Duration::from_millis;
    for (text, when) in [
        ("0", When::Absolute(Duration::ZERO)),
        ("1.5", When::Absolute(milliseconds(1500))),
        ("+.25", When::Relative(milliseconds(250))),
        ("+0.000001", When::Relative(Duration::from_micros(1))),
        (
            ".1~.2",
            When::AbsoluteRange(milliseconds(100), milliseconds(200)),
        ),
        (
            "+0~+.01",
            When::RelativeRange(Duration::ZERO, milliseconds(10)),
        ),
        ("*", When::Any),
    ] {
        assert_eq!(
            one(&format!("{text} > . 1:1(0) ack 1")).when,
            when,
            "{text}"
        );
    }
}

#[test]
fn a_segment_with_everything() {
    let tcp = tcp(
        "0 > [ect0] 8080 > 1234 SFRPEWUA. 5:105(100) ack 7 win 9 urg 3 \
         <mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 7>",
    );
    assert_eq!(tcp.ports, Some((8080, 1234)));
    assert_eq!(tcp.flags.bits, 0xff);
    assert!(tcp.flags.accurate_ecn);
    assert_eq!((tcp.sequence, tcp.length), (5, 100));
    assert_eq!(tcp.acknowledgment, Some(7));
    assert_eq!((tcp.window, tcp.urgent), (Some(9), 3));
    assert_eq!(
        tcp.options,
        TcpOptions::List(vec![
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamps { value: 1, echo: 2 },
            TcpOption::Nop,
            TcpOption::WindowScale(7),
        ])
    );
}

#[test]
fn segments_with_little() {
    let plain = tcp("0 < - 1:1(0)");
    assert_eq!(plain.flags, TcpFlags::default());
    assert_eq!((plain.acknowledgment, plain.window), (None, None));
    assert_eq!(plain.options, TcpOptions::List(Vec::new()));
    assert_eq!(tcp("0 > . 1:1(0) ack 1 <...>").options, TcpOptions::Any);
    assert_eq!(tcp("0 > . 1:1(0) ack 1 win *").window, None);
    // Sequence numbers wrap.
    assert_eq!(tcp("0 < R 4294967295:1(2)").sequence, u32::MAX);
}

#[test]
fn options_of_every_kind() {
    let options = |text: &str| match tcp(&format!("0 < . 1:1(0) ack 1 <{text}>")).options {
        TcpOptions::List(list) => list,
        TcpOptions::Any => panic!("{text}"),
    };
    assert_eq!(
        options("sack 1:2 3:4,nop,eol"),
        [
            TcpOption::Sack(vec![(1, 2), (3, 4)]),
            TcpOption::Nop,
            TcpOption::End
        ]
    );
    assert_eq!(
        options("FO 12ab34cd,nop,nop"),
        [
            TcpOption::FastOpen(vec![0x12, 0xab, 0x34, 0xcd]),
            TcpOption::Nop,
            TcpOption::Nop
        ]
    );
    assert_eq!(options("FOEXP"), [TcpOption::FastOpenExperimental(vec![])]);
    assert_eq!(
        options("generic 0xfd 0102"),
        [TcpOption::Other {
            kind: 0xfd,
            data: vec![1, 2]
        }]
    );
}

#[test]
fn icmp_and_the_ip_header() {
    let message = packet("0 < [ce] icmp unreachable frag_needed mtu 1200 [1:1001(1000)]");
    assert_eq!(message.ip.ecn, Some(EcnCheck::Experienced));
    assert_eq!(
        message.transport,
        Transport::Icmp(Icmp {
            kind: "unreachable".into(),
            code: Some("frag_needed".into()),
            mtu: Some(1200),
            id: None,
            quoted: Some(Quoted::Tcp {
                sequence: 1,
                length: 1000
            }),
        })
    );
    let fields = packet("0 > (tos 0x10, ttl 64, flowlabel 0xfffff) S 0:0(0)").ip;
    assert_eq!(
        fields,
        IpFields {
            ecn: None,
            traffic_class: Some(0x10),
            hop_limit: Some(64),
            flow_label: Some(0xfffff)
        }
    );
}

#[test]
fn calls() {
    let connect = call("0...0.2 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in it)");
    assert_eq!(connect.until, Some(Duration::from_millis(200)));
    assert_eq!(connect.result, Expression::Integer(-1));
    assert_eq!(connect.errno.as_deref(), Some("EINPROGRESS"));
    assert_eq!(
        connect.arguments,
        [
            Expression::Integer(3),
            Expression::Ellipsis,
            Expression::Ellipsis
        ]
    );
    for text in [
        "fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0",
        "socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
        "setsockopt(4, SOL_TCP, TCP_CONGESTION, \"cubic\", 5) = 0",
        "setsockopt(4, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0",
        "poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLOUT}], 1, 0) = 1",
        "sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 100}], msg_flags=0}, 0) = 100",
        "bind(3, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr(\"1.2.3.4\")}, \
         ...) = 0",
        "epoll_wait(5, {events=0, ptr=0}, 1, 0) = 0",
        "read(4, \"ab\"..., 10) = 10",
    ] {
        assert_eq!(call(&format!("0 {text}")).to_string(), text);
    }
    // A flag before a note is not a function.
    let flags = call("0 fcntl(3, F_GETFL) = 0x2 (flags O_RDWR)");
    assert_eq!(flags.result, Expression::Integer(2));
}

#[test]
fn a_whole_script() {
    let text = "// RFC 9293\n--mss=1000\n--strict_segments\n--define=LEN=1000\n\
        --define=CC=\"reno\"\n`sysctl -q net.ipv4.tcp_ecn=1`\n\
        0 write(4, ..., LEN) = LEN\n+0 setsockopt(4, SOL_TCP, TCP_CONGESTION, CC, 4) = 0\n\
        +0 %{ assert tcpi_snd_cwnd == 10, \"window\"\nassert 1 }%\n`true`";
    let script = parse(text).unwrap();
    assert_eq!(script.options.len(), 4);
    assert_eq!(script.init.unwrap().settings.len(), 1);
    assert!(script.cleanup.is_some());
    assert_eq!(script.events.len(), 3);
    let calls: Vec<_> = script
        .events
        .iter()
        .filter_map(|event| match &event.action {
            Action::Call(call) => Some(call.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(
        calls,
        [
            "write(4, ..., 1000) = 1000",
            "setsockopt(4, SOL_TCP, TCP_CONGESTION, reno, 4) = 0"
        ]
    );
}

#[test]
fn errors_name_the_place_and_what_was_expected() {
    for (text, error) in [
        (
            "",
            "1:1: expected an event: a time and a packet or a system call, found the end",
        ),
        (
            "0 > Q 1:1(0)",
            "1:5: expected TCP flags: of F S R P E W A U",
        ),
        ("0 > S 1:1(0) ack 1", "1:18: `ack` without the flag `.`"),
        ("0 > S 0:1(0)", "1:7: expected 0:0(0), found 0:1(0)"),
        (
            "0 < S 0:0(0) win 70000",
            "1:18: expected a window of 16 bits or `*`, found `70000`",
        ),
        (
            "0 < . 1:1(0) ack 1 <mss 10,nop>",
            "1:20: expected TCP options of a multiple of 4",
        ),
        (
            "0 < . 1:1(0) ack 1 <foo>",
            "1:21: expected a TCP option: nop, eol",
        ),
        (
            "0 < . 1:1(0) ack 1 <...>",
            "1:21: `<...>` is for outbound packets",
        ),
        ("* < . 1:1(0) ack 1", "1:1: expected one exact time"),
        ("+1~2 > . 1:1(0) ack 1", "1:4: expected `+` before the end"),
        (
            "2~1 > . 1:1(0) ack 1",
            "1:1: the range of time ends before it begins",
        ),
        (
            "-1 > . 1:1(0) ack 1",
            "1:1: expected a time in seconds, found `-1`",
        ),
        ("0 socket(3 = 1", "1:12: expected `,` or `)`, found `=`"),
        ("0 \n+1 `ls`", "2:1: expected `<`, `>`, a system call"),
        ("0 `ls -l`", "1:3: shell commands are not run"),
        (
            "0 %{ import os }%",
            "1:6: expected `assert` (there is no Python here), found `import`",
        ),
        (
            "0 %{\n assert 1 2 }%",
            "2:11: expected an operator, `,`, `;`",
        ),
        (
            "0 > ipv4 1.2.3.4 > 5.6.7.8: S 0:0(0)",
            "1:5: expected TCP, UDP or ICMP",
        ),
        (
            "0...x read(3) = 0",
            "1:5: expected a time in seconds, found `x`",
        ),
        (
            "5...1 read(3) = 0",
            "1:1: the call would return before it begins",
        ),
        (
            "--define=x\n0 close(3) = 0",
            "1:1: expected --define=NAME=VALUE",
        ),
    ] {
        let found = parse(text).unwrap_err().to_string();
        assert!(found.starts_with(error), "{text}: {found}");
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("0 f({}{}) = 0", "[".repeat(10_000), "]".repeat(10_000));
    let error = parse(&deep).unwrap_err();
    assert!(error.message.contains("nested"), "{error}");
    let deep = format!("0 %{{ assert {}1 }}%", "not ".repeat(10_000));
    assert!(parse(&deep).unwrap_err().message.contains("nested"));
    let deep = format!("0 %{{ assert {}1 }}%", "-".repeat(10_000));
    assert!(parse(&deep).unwrap_err().message.contains("nested"));
}
