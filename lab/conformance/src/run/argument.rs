//! Arguments of calls: converts a script's text to numbers, bytes and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::constant;
use crate::script::Expression;

/// A number: a literal, a constant, several with `|`, `htons(…)`, or the only element of
/// a list (the target of a pointer).
pub(super) fn integer(expression: &Expression) -> Result<i64, String> {
    match expression {
        Expression::Integer(value) => Ok(*value),
        Expression::Word(name) => {
            constant::value(name).ok_or_else(|| format!("the constant {name} is not known here"))
        }
        Expression::Or(all) => all
            .iter()
            .try_fold(0, |value, part| Ok(value | integer(part)?)),
        Expression::List(list) => match list.as_slice() {
            [one] => integer(one),
            _ => Err(format!("expected one number, found {expression}")),
        },
        Expression::Call { name, arguments } if name == "htons" || name == "htonl" => {
            match arguments.as_slice() {
                [one] => integer(one),
                _ => Err(format!("expected one number, found {expression}")),
            }
        }
        _ => Err(format!("expected a number, found {expression}")),
    }
}

/// A number of a C type.
pub(super) fn number<T: TryFrom<i64>>(expression: &Expression) -> Result<T, String> {
    let value = integer(expression)?;
    T::try_from(value).map_err(|_| format!("{value} is out of range"))
}

/// An int: flags whose highest bit is set are negative in C.
pub(super) fn int(expression: &Expression) -> Result<i32, String> {
    let value = integer(expression)?;
    i32::try_from(value)
        .or_else(|_| u32::try_from(value).map(|value| value as i32))
        .map_err(|_| format!("{value} is out of range"))
}

/// The value of a field of a structure: `{fd=3, events=POLLIN}`.
pub(super) fn field<'a>(structure: &'a Expression, wanted: &str) -> Option<&'a Expression> {
    let Expression::Structure(fields) = structure else {
        return None;
    };
    fields.iter().find_map(|field| match field {
        Expression::Assign { name, value, .. } if name == wanted => Some(&**value),
        _ => None,
    })
}

/// The same for a mandatory field.
pub(super) fn needed<'a>(
    structure: &'a Expression,
    wanted: &str,
) -> Result<&'a Expression, String> {
    field(structure, wanted).ok_or_else(|| format!("expected a field {wanted} in {structure}"))
}

/// The bytes of a socket option's value: from an int, a string or `struct linger`;
/// `length` truncates or pads them.
pub(super) fn option_value(
    expression: &Expression,
    length: Option<usize>,
) -> Result<Vec<u8>, String> {
    let mut bytes = match expression {
        Expression::Text(text, _) => text.as_bytes().to_vec(),
        Expression::Structure(_) => {
            let on = int(needed(expression, "onoff")?)?;
            let seconds = int(needed(expression, "linger")?)?;
            [on.to_ne_bytes(), seconds.to_ne_bytes()].concat()
        }
        Expression::List(list) if list.len() > 1 => {
            let mut bytes = Vec::new();
            for item in list {
                bytes.extend(int(item)?.to_ne_bytes());
            }
            bytes
        }
        other => int(other)?.to_ne_bytes().to_vec(),
    };
    if let Some(length) = length {
        bytes.resize(length.min(4096), 0);
    }
    Ok(bytes)
}

/// An address: `{sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("…")}`,
/// or IPv6's fields; `None` for `...`.
pub(super) fn address(expression: &Expression) -> Result<Option<SocketAddr>, String> {
    if *expression == Expression::Ellipsis {
        return Ok(None);
    }
    let any = |names: [&str; 2]| names.into_iter().find_map(|name| field(expression, name));
    let family = any(["sa_family", "sin_family"])
        .or_else(|| any(["sin6_family", "sa_family"]))
        .ok_or_else(|| format!("expected an address or `...`, found {expression}"))?;
    let port =
        any(["sin_port", "sin6_port"]).ok_or_else(|| format!("expected a port in {expression}"))?;
    let text = any(["sin_addr", "sin6_addr"]);
    let text = match text {
        Some(Expression::Call { arguments, .. }) => match arguments.as_slice() {
            [Expression::Text(text, false)] => Some(text.as_str()),
            _ => None,
        },
        _ => None,
    };
    let ip: IpAddr = match (text, integer(family)? as i32) {
        (Some(text), _) => text
            .parse()
            .map_err(|_| format!("`{text}` is not an address"))?,
        (None, libc::AF_INET6) => Ipv6Addr::UNSPECIFIED.into(),
        (None, _) => Ipv4Addr::UNSPECIFIED.into(),
    };
    Ok(Some(SocketAddr::new(ip, number(port)?)))
}

/// The number of bytes in an iovec list: `[{..., 100}, {..., 50}]`.
pub(super) fn iovec_length(list: &Expression) -> Result<usize, String> {
    let Expression::List(list) = list else {
        return Err(format!("expected a list of iovecs, found {list}"));
    };
    let mut total = 0_usize;
    for item in list {
        let Expression::Structure(parts) = item else {
            return Err(format!("expected {{..., LENGTH}}, found {item}"));
        };
        let [_, length] = parts.as_slice() else {
            return Err(format!("expected {{..., LENGTH}}, found {item}"));
        };
        total = total.saturating_add(number::<u32>(length)? as usize);
    }
    Ok(total)
}
