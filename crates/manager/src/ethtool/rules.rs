//! The rule table of a device: encoding a flow, finding a location, inserting.
//!
//! Everything here uses a `call` that carries out one request, so that a test can play a
//! device's table.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{
    FLOW_TCP4, FLOW_TCP6, FLOW_UDP4, FLOW_UDP6, FlowSpec, FlowUnion, LOCATION_ANY,
    LOCATION_SPECIAL, Rules,
};
use tidewall_device::demux::layout::Protocol;
use tidewall_sys::ethtool::{
    DELETE_RULE, GET_ALL_RULES, GET_RULE_COUNT, INSERT_RULE, LOCATIONS_AT, RULES_BYTES,
};

/// Carries out one request, whose answer replaces it.
pub(super) type Call<'a> = dyn FnMut(&mut [u8]) -> io::Result<()> + 'a;

/// How often the table is reread because it changed meanwhile.
const ATTEMPTS: u32 = 3;
/// An upper bound on plausible rules of a device: 4 MiB of answer.
const MOST_RULES: u32 = 1 << 20;

/// `struct ethtool_tcpip4_spec`: destination address and port.
const V4_ADDRESS: std::ops::Range<usize> = 4..8;
const V4_PORT: std::ops::Range<usize> = 10..12;
/// `struct ethtool_tcpip6_spec`.
const V6_ADDRESS: std::ops::Range<usize> = 16..32;
const V6_PORT: std::ops::Range<usize> = 34..36;

/// A rule that steers `protocol` for this address and port to `queue`; the unspecified
/// address stands for all of its family.
pub(super) fn encode(protocol: Protocol, address: IpAddr, port: u16, queue: u32) -> FlowSpec {
    let mut spec = FlowSpec::new_zeroed();
    spec.ring_cookie = u64::from(queue);
    let any = address.is_unspecified();
    let FlowSpec {
        flow_type,
        header,
        header_mask,
        ..
    } = &mut spec;
    match address {
        IpAddr::V4(address) => {
            *flow_type = match protocol {
                Protocol::Tcp => FLOW_TCP4,
                Protocol::Udp => FLOW_UDP4,
            };
            require(header, header_mask, V4_PORT, &port.to_be_bytes());
            if !any {
                require(header, header_mask, V4_ADDRESS, &address.octets());
            }
        }
        IpAddr::V6(address) => {
            *flow_type = match protocol {
                Protocol::Tcp => FLOW_TCP6,
                Protocol::Udp => FLOW_UDP6,
            };
            require(header, header_mask, V6_PORT, &port.to_be_bytes());
            if !any {
                require(header, header_mask, V6_ADDRESS, &address.octets());
            }
        }
    }
    spec
}

fn require(
    header: &mut FlowUnion,
    mask: &mut FlowUnion,
    range: std::ops::Range<usize>,
    value: &[u8],
) {
    if let (Some(header), Some(mask)) = (header.get_mut(range.clone()), mask.get_mut(range)) {
        for ((to, from), mask) in header.iter_mut().zip(value).zip(mask) {
            *to = *from;
            *mask = 0xff;
        }
    }
}

/// The address families that need a rule.
pub(super) fn families(address: Option<IpAddr>) -> Vec<IpAddr> {
    match address {
        // A v4 address in v6 form arrives in v4 packets.
        Some(address) => vec![address.to_canonical()],
        None => vec![
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ],
    }
}

/// Location of the next rule: the lowest free one, which also takes precedence over rules
/// after it, or [`LOCATION_ANY`] where the driver chooses.
///
/// # Errors
/// ENOSPC for a full table; what the device reports.
pub(super) fn free_location(call: &mut Call<'_>) -> io::Result<u32> {
    let mut attempt = 1;
    loop {
        let mut count = request(GET_RULE_COUNT);
        call(count.as_mut_bytes())?;
        if count.data & u64::from(LOCATION_SPECIAL) != 0 {
            return Ok(LOCATION_ANY);
        }
        match all_locations(call, count.rule_count.min(MOST_RULES)) {
            Ok((mut used, size)) => {
                used.sort_unstable();
                return lowest_free(&used, size)
                    .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC));
            }
            // There are more rules now than were counted.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Used locations, in the driver's order, and the total number of locations.
fn all_locations(call: &mut Call<'_>, count: u32) -> io::Result<(Vec<u32>, u32)> {
    let mut header = request(GET_ALL_RULES);
    header.rule_count = count;
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize((LOCATIONS_AT + 4 * count as usize).max(RULES_BYTES), 0);
    call(&mut bytes)?;
    let (header, _) = Rules::read_from_prefix(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    let locations = bytes
        .get(LOCATIONS_AT..)
        .unwrap_or_default()
        .as_chunks::<4>()
        .0
        .iter()
        .take(header.rule_count.min(count) as usize)
        .map(|word| u32::from_ne_bytes(*word))
        .collect();
    let size = u32::try_from(header.data).unwrap_or(u32::MAX);
    Ok((locations, size & !LOCATION_SPECIAL))
}

/// The lowest number below `size` that is not in `used`, which is sorted.
fn lowest_free(used: &[u32], size: u32) -> Option<u32> {
    let mut free = 0;
    for &location in used {
        if location > free {
            break;
        }
        if location == free {
            free += 1;
        }
    }
    (free < size).then_some(free)
}

/// Inserts a rule and returns its location.
pub(super) fn insert(call: &mut Call<'_>, spec: &FlowSpec, location: u32) -> io::Result<u32> {
    let mut rule = request(INSERT_RULE);
    rule.spec = *spec;
    rule.spec.location = location;
    call(rule.as_mut_bytes())?;
    Ok(rule.spec.location)
}

/// Removes the rule at a location.
pub(super) fn delete(call: &mut Call<'_>, location: u32) -> io::Result<()> {
    call(deletion(location).as_mut_bytes())
}

/// The request that deletes the rule at a location.
pub(super) fn deletion(location: u32) -> Rules {
    let mut rule = request(DELETE_RULE);
    rule.spec.location = location;
    rule
}

fn request(command: u32) -> Rules {
    let mut rules = Rules::new_zeroed();
    rules.command = command;
    rules
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
