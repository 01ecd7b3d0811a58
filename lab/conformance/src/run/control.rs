//! The results of `recvmsg` beside bytes: flags and control messages.

use core::time::Duration;

use tidewall_posix::{Received, TCP_CM_INQ};

use super::argument::{field, int, integer, needed, number};
use crate::script::Expression;

/// From `linux/errqueue.h`.
fn name(word: &str) -> Option<i64> {
    Some(match word {
        "SO_EE_ORIGIN_TIMESTAMPING" => 4,
        "SO_EE_ORIGIN_ZEROCOPY" => 5,
        "SO_EE_CODE_ZEROCOPY_COPIED" => 1,
        "SCM_TSTAMP_SND" => 0,
        "SCM_TSTAMP_SCHED" => 1,
        "SCM_TSTAMP_ACK" => 2,
        "ENOMSG" => libc::ENOMSG.into(),
        _ => return None,
    })
}

fn value(expression: &Expression) -> Result<i64, String> {
    match expression {
        Expression::Word(word) => name(word).map_or_else(|| integer(expression), Ok),
        _ => integer(expression),
    }
}

/// Compares a message in the script with the result of a call. `domain` is that of the
/// script's sockets: `CMSG_LEVEL_IP` and `CMSG_TYPE_RECVERR` depend on it, as in the
/// public suite.
pub(super) fn check(message: &Expression, domain: i32, received: &Received) -> Result<(), String> {
    if let Some(flags) = field(message, "msg_flags") {
        let expected = int(flags)?;
        if received.flags != expected {
            let flags = received.flags;
            return Err(format!("msg_flags is {flags:#x}, expected {expected:#x}"));
        }
    }
    let Some(Expression::List(expected)) = field(message, "msg_control") else {
        return Ok(());
    };
    let live: Vec<(i32, i32)> = received
        .control()
        .iter()
        .map(|control| (control.level, control.kind))
        .collect();
    let reported = expected
        .iter()
        .map(|control| header(control, domain))
        .collect::<Result<Vec<_>, _>>()?;
    if live != reported {
        return Err(format!(
            "control messages (level, type) {live:?}, expected {reported:?}"
        ));
    }
    for (control, header) in expected.iter().zip(reported) {
        data(needed(control, "cmsg_data")?, header, received)?;
    }
    Ok(())
}

/// Level and type.
fn header(control: &Expression, domain: i32) -> Result<(i32, i32), String> {
    let v6 = domain == libc::AF_INET6;
    let one = |name| {
        let expression = needed(control, name)?;
        let Expression::Word(word) = expression else {
            return int(expression);
        };
        Ok(match (word.as_str(), v6) {
            ("CMSG_LEVEL_IP", false) => libc::SOL_IP,
            ("CMSG_LEVEL_IP", true) => libc::SOL_IPV6,
            ("CMSG_TYPE_RECVERR", false) => libc::IP_RECVERR,
            ("CMSG_TYPE_RECVERR", true) => libc::IPV6_RECVERR,
            ("SCM_TIMESTAMPING", _) => libc::SO_TIMESTAMPING,
            _ => int(expression)?,
        })
    };
    Ok((one("cmsg_level")?, one("cmsg_type")?))
}

fn data(expected: &Expression, header: (i32, i32), received: &Received) -> Result<(), String> {
    if header == (libc::IPPROTO_TCP, TCP_CM_INQ) {
        let expected: u32 = number(expected)?;
        return match received.left {
            Some(left) if left == expected => Ok(()),
            left => Err(format!("TCP_CM_INQ is {left:?}, expected {expected}")),
        };
    }
    if header == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
        let seconds: u64 = number(needed(expected, "scm_sec")?)?;
        let nanoseconds: u64 = number(needed(expected, "scm_nsec")?)?;
        let expected = Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds);
        return match received.arrived {
            Some(at) if at == expected => Ok(()),
            at => Err(format!("SCM_TIMESTAMPING is {at:?}, expected {expected:?}")),
        };
    }
    let Some(error) = received.error else {
        return Ok(());
    };
    for (name, live) in [
        ("ee_errno", error.errno),
        ("ee_origin", error.origin.into()),
        ("ee_type", 0),
        ("ee_code", error.code.into()),
        ("ee_info", error.info),
        ("ee_data", error.data),
    ] {
        let Some(wanted) = field(expected, name) else {
            continue;
        };
        let wanted = value(wanted)?;
        if wanted != i64::from(live) {
            return Err(format!("{name} is {live}, expected {wanted}"));
        }
    }
    Ok(())
}
