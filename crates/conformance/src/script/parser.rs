//! Tokens to a [`Script`]: options, events, times, calls.

use core::fmt;
use core::time::Duration;
use std::collections::HashMap;

use super::lexer::{self, Kind, LexError, Position, Token};
use super::{
    Action, Call, Command, Direction, Event, Expression, OptionLine, Script, When, assertion,
    packet,
};

/// What may be nested in what, so deep: a script needs four.
const DEPTH_MAX: u8 = 32;

/// Why text is not a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Where.
    pub position: Position,
    /// What was expected, and what was found.
    pub message: String,
}

impl fmt::Display for ParseError {
    /// `line:column: what was expected`, to be put after the file's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl std::error::Error for ParseError {}

impl From<LexError> for ParseError {
    fn from(error: LexError) -> Self {
        Self {
            position: error.position,
            message: error.message,
        }
    }
}

/// Reads a script.
///
/// # Errors
/// Where the text is not one: the first place, and what was expected there.
pub fn parse(text: &str) -> Result<Script, ParseError> {
    let mut cursor = Cursor::new(lexer::tokens(text)?);
    let mut script = Script::default();
    while let Kind::Option(name, value) = cursor.peek().clone() {
        let position = cursor.position();
        cursor.next();
        script.options.push(OptionLine {
            position,
            name,
            value,
        });
    }
    cursor.define(&script.options)?;
    script.init = command(&mut cursor)?;
    while *cursor.peek() != Kind::End {
        if let Some(cleanup) = command(&mut cursor)? {
            script.cleanup = Some(cleanup);
            if *cursor.peek() != Kind::End {
                return Err(cursor.expected("the end of the script after its last command"));
            }
        } else {
            script.events.push(event(&mut cursor)?);
        }
    }
    if script.events.is_empty() {
        return Err(cursor.expected("an event: a time and a packet or a system call"));
    }
    Ok(script)
}

fn command(cursor: &mut Cursor) -> Result<Option<Command>, ParseError> {
    let Kind::Shell(text) = cursor.peek().clone() else {
        return Ok(None);
    };
    let position = cursor.position();
    cursor.next();
    Command::parse(&text)
        .map(Some)
        .map_err(|message| ParseError { position, message })
}

fn event(cursor: &mut Cursor) -> Result<Event, ParseError> {
    let position = cursor.position();
    let when = when(cursor)?;
    let until = match cursor.peek() {
        Kind::Ellipsis => {
            cursor.next();
            Some(time(cursor)?)
        }
        _ => None,
    };
    let action = match cursor.peek() {
        Kind::Word(_) => Action::Call(call(cursor, until)?),
        _ if until.is_some() => {
            return Err(cursor.expected("a system call after the time until which it blocks"));
        }
        Kind::Mark('<') => Action::Packet(packet::packet(cursor, Direction::Inbound)?),
        Kind::Mark('>') => Action::Packet(packet::packet(cursor, Direction::Outbound)?),
        Kind::Shell(_) => match command(cursor)? {
            Some(command) => Action::Command(command),
            None => return Err(cursor.expected("a command")),
        },
        Kind::Code(text) => {
            let (text, position) = (text.clone(), cursor.position());
            cursor.next();
            // The code begins after the two characters `%{`.
            let column = position.column.saturating_add(2);
            let tokens = lexer::code_tokens(&text, Position { column, ..position })?;
            Action::Assertions(assertion::assertions(&mut Cursor::new(tokens))?)
        }
        _ => {
            return Err(
                cursor.expected("`<`, `>`, a system call, a command or `%{` after the time")
            );
        }
    };
    let outbound =
        matches!(&action, Action::Packet(packet) if packet.direction == Direction::Outbound);
    if !outbound && !matches!(when, When::Absolute(_) | When::Relative(_)) {
        return Err(ParseError {
            position,
            message: "expected one exact time: `*` and ranges are for outbound packets".into(),
        });
    }
    if let (When::Absolute(start), Some(until)) = (when, until)
        && until < start
    {
        return Err(ParseError {
            position,
            message: "the call would return before it begins".into(),
        });
    }
    Ok(Event {
        position,
        when,
        action,
    })
}

fn when(cursor: &mut Cursor) -> Result<When, ParseError> {
    let position = cursor.position();
    if cursor.mark('*') {
        return Ok(When::Any);
    }
    let relative = cursor.mark('+');
    let start = time(cursor)?;
    if !cursor.mark('~') {
        return Ok(if relative {
            When::Relative(start)
        } else {
            When::Absolute(start)
        });
    }
    if relative {
        cursor.expect('+', "`+` before the end of a relative range")?;
    }
    let end = time(cursor)?;
    if end < start {
        return Err(ParseError {
            position,
            message: "the range of time ends before it begins".into(),
        });
    }
    Ok(if relative {
        When::RelativeRange(start, end)
    } else {
        When::AbsoluteRange(start, end)
    })
}

/// Seconds, with nine digits of fraction at the most.
fn time(cursor: &mut Cursor) -> Result<Duration, ParseError> {
    const WHAT: &str = "a time in seconds";
    let Kind::Number(text) = cursor.peek() else {
        return Err(cursor.expected(WHAT));
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = if whole.is_empty() { "0" } else { whole };
    // Four months: longer than any timer here runs.
    let whole: Option<u64> = whole.parse().ok().filter(|whole| *whole <= 10_000_000);
    let nanoseconds: Option<u32> = (fraction.len() <= 9)
        .then(|| format!("{fraction:0<9}").parse().ok())
        .flatten();
    let (Some(whole), Some(nanoseconds)) = (whole, nanoseconds) else {
        return Err(cursor.expected(WHAT));
    };
    cursor.next();
    Ok(Duration::new(whole, nanoseconds))
}

fn call(cursor: &mut Cursor, until: Option<Duration>) -> Result<Call, ParseError> {
    let name = cursor.word("the name of a system call")?;
    cursor.expect('(', "`(` after the name of a system call")?;
    let arguments = Expression::list(cursor, ')')?;
    cursor.expect('=', "`=` and what the call returns")?;
    let result = Expression::result(cursor)?;
    let errno = match cursor.peek().clone() {
        Kind::Word(name) => {
            cursor.next();
            Some(name)
        }
        _ => None,
    };
    // The words of strerror are for the reader.
    if cursor.mark('(') {
        while !cursor.mark(')') {
            if *cursor.peek() == Kind::End {
                return Err(cursor.expected("`)` after the note"));
            }
            cursor.next();
        }
    }
    Ok(Call {
        name,
        arguments,
        result,
        errno,
        until,
    })
}

/// Tokens and how far they have been read.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    at: usize,
    depth: u8,
}

impl Cursor {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
        }
    }

    /// Puts the values of `--define=NAME=VALUE` where the names stand.
    fn define(&mut self, options: &[OptionLine]) -> Result<(), ParseError> {
        let mut values = HashMap::new();
        for option in options.iter().filter(|option| option.name == "define") {
            let value = option.value.as_deref().unwrap_or_default();
            let Some((name, value)) = value.split_once('=') else {
                return Err(ParseError {
                    position: option.position,
                    message: "expected --define=NAME=VALUE".into(),
                });
            };
            let kind = match lexer::tokens(value).as_deref() {
                Ok([Token { kind, .. }, _])
                    if matches!(kind, Kind::Number(_) | Kind::Hex(_) | Kind::Word(_)) =>
                {
                    kind.clone()
                }
                _ => Kind::String(value.to_owned()),
            };
            values.insert(name.to_owned(), kind);
        }
        for token in &mut self.tokens {
            if let Kind::Word(word) = &token.kind
                && let Some(value) = values.get(word)
            {
                token.kind = value.clone();
            }
        }
        Ok(())
    }

    pub(super) fn peek(&self) -> &Kind {
        self.tokens
            .get(self.at)
            .map_or(&Kind::End, |token| &token.kind)
    }

    pub(super) fn peek_second(&self) -> &Kind {
        self.tokens
            .get(self.at + 1)
            .map_or(&Kind::End, |token| &token.kind)
    }

    pub(super) fn position(&self) -> Position {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(Position { line: 1, column: 1 }, |token| token.position)
    }

    pub(super) fn next(&mut self) {
        if self.at < self.tokens.len() {
            self.at += 1;
        }
    }

    /// Takes this mark if it is next.
    pub(super) fn mark(&mut self, mark: char) -> bool {
        let found = *self.peek() == Kind::Mark(mark);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect(&mut self, mark: char, what: &str) -> Result<(), ParseError> {
        if self.mark(mark) {
            Ok(())
        } else {
            Err(self.expected(what))
        }
    }

    /// Takes this word if it is next.
    pub(super) fn keyword(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Kind::Word(found) if found == word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn word(&mut self, what: &str) -> Result<String, ParseError> {
        let Kind::Word(word) = self.peek().clone() else {
            return Err(self.expected(what));
        };
        self.next();
        Ok(word)
    }

    /// A whole number that fits `T`.
    pub(super) fn integer<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T, ParseError> {
        let value = match self.peek() {
            Kind::Number(text) => text.parse::<i64>().ok(),
            Kind::Hex(value) => i64::try_from(*value).ok(),
            _ => None,
        };
        let Some(value) = value.and_then(|value| T::try_from(value).ok()) else {
            return Err(self.expected(what));
        };
        self.next();
        Ok(value)
    }

    /// Runs `inner` one level deeper; too deep is an error, not a full stack.
    pub(super) fn nested<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        if self.depth >= DEPTH_MAX {
            return Err(self.fail(format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    pub(super) fn expected(&self, what: &str) -> ParseError {
        self.fail(format!("expected {what}, found {}", self.peek()))
    }

    pub(super) fn fail(&self, message: impl Into<String>) -> ParseError {
        ParseError {
            position: self.position(),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        EcnCheck, Icmp, IpFields, Packet, Quoted, Tcp, TcpFlags, TcpOption, TcpOptions, Transport,
    };
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
}
