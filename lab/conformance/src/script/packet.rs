//! Converts tokens to packets.

use super::lexer::Kind;
use super::parser::{Cursor, ParseError};
use super::{
    Direction, EcnCheck, Icmp, IpFields, Packet, Quoted, Tcp, TcpFlags, TcpOption, TcpOptions,
    Transport, Udp,
};

/// The most bytes of options (RFC 9293 §3.1).
const OPTIONS_MAX: usize = 40;

/// The packet that begins with the direction's mark, which is the next token.
pub(super) fn packet(cursor: &mut Cursor, direction: Direction) -> Result<Packet, ParseError> {
    cursor.next();
    let ip = ip_fields(cursor, direction)?;
    let transport = if cursor.keyword("icmp") {
        Transport::Icmp(icmp(cursor)?)
    } else if cursor.keyword("udp") {
        Transport::Udp(udp(cursor)?)
    } else if matches!(cursor.peek(), Kind::Word(word)
        if matches!(word.as_str(), "ipv4" | "ipv6" | "gre" | "GREv0" | "mpls" | "encap"))
    {
        return Err(cursor.expected("TCP, UDP or ICMP (there is no encapsulation here)"));
    } else {
        Transport::Tcp(tcp(cursor, direction)?)
    };
    Ok(Packet {
        direction,
        ip,
        transport,
    })
}

fn ip_fields(cursor: &mut Cursor, direction: Direction) -> Result<IpFields, ParseError> {
    let mut fields = IpFields::default();
    let end = match cursor.peek() {
        Kind::Mark('[') => ']',
        Kind::Mark('(') => ')',
        _ => return Ok(fields),
    };
    cursor.next();
    loop {
        if cursor.keyword("tos") {
            fields.traffic_class = Some(cursor.integer("a byte after `tos`")?);
        } else if cursor.keyword("ttl") {
            fields.hop_limit = Some(cursor.integer("a byte after `ttl`")?);
        } else if cursor.keyword("flowlabel") {
            let label: u32 = cursor.integer("20 bits after `flowlabel`")?;
            if label >= 1 << 20 {
                return Err(cursor.fail("a flow label has 20 bits"));
            }
            fields.flow_label = Some(label);
        } else {
            let known = [
                ("noecn", EcnCheck::NotCapable),
                ("ect0", EcnCheck::Capable0),
                ("ect1", EcnCheck::Capable1),
                ("ce", EcnCheck::Experienced),
                ("ect01", EcnCheck::CapableAny),
            ];
            let Some((_, ecn)) = known.into_iter().find(|(word, _)| cursor.keyword(word)) else {
                return Err(cursor.expected(
                    "`noecn`, `ect0`, `ect1`, `ect01`, `ce`, `tos`, `ttl` or `flowlabel`",
                ));
            };
            if ecn == EcnCheck::CapableAny && direction == Direction::Inbound {
                return Err(cursor.fail("`ect01` is for outbound packets"));
            }
            fields.ecn = Some(ecn);
        }
        if cursor.mark(end) {
            break;
        }
        cursor.expect(',', &format!("`,` or `{end}`"))?;
    }
    if fields.ecn.is_some() && fields.traffic_class.is_some() {
        return Err(cursor.fail("`tos` has the ECN bits already"));
    }
    Ok(fields)
}

/// `8080 > 40000`, if the next token is a number.
fn ports(cursor: &mut Cursor) -> Result<Option<(u16, u16)>, ParseError> {
    if !matches!(cursor.peek(), Kind::Number(_)) {
        return Ok(None);
    }
    let source = cursor.integer("a port or TCP flags")?;
    cursor.expect('>', "`>` and the destination port")?;
    Ok(Some((source, cursor.integer("a port")?)))
}

fn udp(cursor: &mut Cursor) -> Result<Udp, ParseError> {
    let ports = ports(cursor)?;
    cursor.expect('(', "`(` and the bytes of payload")?;
    let length = cursor.integer("the bytes of payload")?;
    cursor.expect(')', "`)`")?;
    Ok(Udp { ports, length })
}

fn icmp(cursor: &mut Cursor) -> Result<Icmp, ParseError> {
    let mut icmp = Icmp {
        kind: cursor.word("the type of an ICMP message")?,
        code: None,
        mtu: None,
        id: None,
        quoted: None,
    };
    loop {
        if cursor.keyword("mtu") {
            icmp.mtu = Some(cursor.integer("an MTU in bytes")?);
        } else if cursor.keyword("id") {
            icmp.id = Some(cursor.integer("an identifier of 16 bits")?);
        } else if icmp.code.is_none() && matches!(cursor.peek(), Kind::Word(_)) {
            icmp.code = Some(cursor.word("a code")?);
        } else {
            break;
        }
    }
    if cursor.mark('[') {
        icmp.quoted = Some(if cursor.keyword("udp") {
            Quoted::Udp {
                length: udp(cursor)?.length,
            }
        } else {
            let (sequence, length) = sequence(cursor)?;
            Quoted::Tcp { sequence, length }
        });
        cursor.expect(']', "`]`")?;
    }
    Ok(icmp)
}

fn tcp(cursor: &mut Cursor, direction: Direction) -> Result<Tcp, ParseError> {
    let ports = ports(cursor)?;
    let flags = flags(cursor)?;
    let (sequence, length) = sequence(cursor)?;
    let acknowledges = flags.bits & ACK != 0;
    let acknowledgment = match cursor.keyword("ack") {
        true if acknowledges => Some(cursor.integer("a sequence number of 32 bits")?),
        true => return Err(cursor.fail("`ack` without the flag `.`")),
        // A reset that only resembles an acknowledgment need not name a number.
        false => acknowledges.then_some(0),
    };
    let window = if cursor.keyword("win") {
        if cursor.mark('*') {
            None
        } else {
            Some(cursor.integer("a window of 16 bits or `*`")?)
        }
    } else {
        None
    };
    let urgent = if cursor.keyword("urg") {
        cursor.integer("an urgent pointer of 16 bits")?
    } else {
        0
    };
    let options = options(cursor, direction)?;
    Ok(Tcp {
        ports,
        flags,
        sequence,
        length,
        acknowledgment,
        window,
        urgent,
        options,
    })
}

const ACK: u8 = 0x10;

/// The letters of the control bits, in the order in which they are written.
pub(super) const LETTERS: [(char, u8); 8] = [
    ('S', 0x02),
    ('F', 0x01),
    ('R', 0x04),
    ('P', 0x08),
    ('E', 0x40),
    ('W', 0x80),
    ('U', 0x20),
    ('.', ACK),
];

fn flags(cursor: &mut Cursor) -> Result<TcpFlags, ParseError> {
    const WHAT: &str = "TCP flags: of F S R P E W A U and at last `.`, or `-` for none";
    let mut flags = TcpFlags::default();
    if cursor.mark('-') {
        return Ok(flags);
    }
    if let Kind::Word(word) = cursor.peek() {
        for letter in word.chars() {
            if letter == 'A' {
                flags.accurate_ecn = true;
                continue;
            }
            let bit = LETTERS.iter().find(|(known, _)| *known == letter);
            let Some((_, bit)) = bit else {
                return Err(cursor.expected(WHAT));
            };
            flags.bits |= bit;
        }
        cursor.next();
        if cursor.mark('.') {
            flags.bits |= ACK;
        }
    } else if cursor.mark('.') {
        flags.bits |= ACK;
    } else {
        return Err(cursor.expected(WHAT));
    }
    Ok(flags)
}

/// `first:end(length)`
fn sequence(cursor: &mut Cursor) -> Result<(u32, u16), ParseError> {
    let position = cursor.position();
    let first: u32 = cursor.integer("a sequence number of 32 bits")?;
    cursor.expect(':', "`:` and one past the last sequence number")?;
    let end: u32 = cursor.integer("a sequence number of 32 bits")?;
    cursor.expect('(', "`(` and the bytes of payload")?;
    let length: u16 = cursor.integer("the bytes of payload, 65535 at the most")?;
    cursor.expect(')', "`)`")?;
    if end.wrapping_sub(first) != u32::from(length) {
        return Err(ParseError {
            position,
            message: format!(
                "expected {first}:{}({length}), found {first}:{end}({length})",
                first.wrapping_add(length.into())
            ),
        });
    }
    Ok((first, length))
}

fn options(cursor: &mut Cursor, direction: Direction) -> Result<TcpOptions, ParseError> {
    let mut options = Vec::new();
    let position = cursor.position();
    // The `>` of a following outbound packet never comes after a `<`.
    if !cursor.mark('<') {
        return Ok(TcpOptions::List(options));
    }
    if *cursor.peek() == Kind::Ellipsis {
        if direction == Direction::Inbound {
            return Err(cursor.fail("`<...>` is for outbound packets"));
        }
        cursor.next();
        cursor.expect('>', "`>` after `<...`")?;
        return Ok(TcpOptions::Any);
    }
    loop {
        options.push(option(cursor)?);
        if cursor.mark('>') {
            break;
        }
        cursor.expect(',', "`,` or `>` after a TCP option")?;
    }
    let length: usize = options.iter().map(TcpOption::wire_length).sum();
    if !length.is_multiple_of(4) || length > OPTIONS_MAX {
        return Err(ParseError {
            position,
            message: format!(
                "expected TCP options of a multiple of 4 bytes, {OPTIONS_MAX} at the most, \
                 found {length} (add `nop`s)"
            ),
        });
    }
    Ok(TcpOptions::List(options))
}

fn option(cursor: &mut Cursor) -> Result<TcpOption, ParseError> {
    const WHAT: &str = "a TCP option: nop, eol, mss, wscale, sackOK, sack, TS, FO, FOEXP, md5 or \
                        generic";
    let Kind::Word(word) = cursor.peek().clone() else {
        return Err(cursor.expected(WHAT));
    };
    let option = match word.as_str() {
        "nop" => TcpOption::Nop,
        "eol" => TcpOption::End,
        "sackOK" => TcpOption::SackPermitted,
        "mss" => {
            cursor.next();
            return cursor.integer("16 bits after `mss`").map(TcpOption::Mss);
        }
        "wscale" => {
            cursor.next();
            let shift = cursor.integer("a byte after `wscale`")?;
            return Ok(TcpOption::WindowScale(shift));
        }
        "sack" => {
            cursor.next();
            return sack(cursor);
        }
        "TS" => {
            cursor.next();
            if !cursor.keyword("val") {
                return Err(cursor.expected("`val` after `TS`"));
            }
            let value = cursor.integer("32 bits after `val`")?;
            if !cursor.keyword("ecr") {
                return Err(cursor.expected("`ecr` after the timestamp's value"));
            }
            let echo = cursor.integer("32 bits after `ecr`")?;
            return Ok(TcpOption::Timestamps { value, echo });
        }
        "FO" => {
            cursor.next();
            return hexadecimal(cursor).map(TcpOption::FastOpen);
        }
        "FOEXP" => {
            cursor.next();
            return hexadecimal(cursor).map(TcpOption::FastOpenExperimental);
        }
        "md5" => {
            cursor.next();
            return hexadecimal(cursor).map(TcpOption::Md5);
        }
        "generic" => {
            cursor.next();
            let kind = cursor.integer("the option's kind, a byte")?;
            if kind < 2 {
                return Err(cursor.fail("kinds 0 and 1 have no data: `eol`, `nop`"));
            }
            let data = hexadecimal(cursor)?;
            return Ok(TcpOption::Other { kind, data });
        }
        _ => return Err(cursor.expected(WHAT)),
    };
    cursor.next();
    Ok(option)
}

fn sack(cursor: &mut Cursor) -> Result<TcpOption, ParseError> {
    let mut blocks = Vec::new();
    while matches!(cursor.peek(), Kind::Number(_)) {
        let first = cursor.integer("a sequence number of 32 bits")?;
        cursor.expect(':', "`:` in a SACK block")?;
        blocks.push((first, cursor.integer("a sequence number of 32 bits")?));
        // Four blocks fill the options already, and the vector is bounded.
        if blocks.len() > 4 {
            return Err(cursor.fail("a SACK option has four blocks at the most"));
        }
    }
    if blocks.is_empty() {
        return Err(cursor.expected("a SACK block: first:end"));
    }
    Ok(TcpOption::Sack(blocks))
}

/// Pairs of hexadecimal digits; none are valid too.
fn hexadecimal(cursor: &mut Cursor) -> Result<Vec<u8>, ParseError> {
    let digits = match cursor.peek() {
        Kind::Word(text) | Kind::Number(text) => text.clone(),
        _ => return Ok(Vec::new()),
    };
    let even = digits.len().is_multiple_of(2) && digits.len() <= 2 * OPTIONS_MAX;
    let bytes: Option<Vec<u8>> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = core::str::from_utf8(pair).ok()?;
            pair.bytes()
                .all(|digit| digit.is_ascii_hexdigit())
                .then(|| u8::from_str_radix(pair, 16).ok())?
        })
        .collect();
    let (true, Some(bytes)) = (even, bytes) else {
        return Err(cursor.expected("bytes as pairs of hexadecimal digits"));
    };
    cursor.next();
    Ok(bytes)
}
