//! Compares sent packets with those that the script expects.

use core::time::Duration;

use super::flow;
use crate::script::{EcnCheck, IpFields, Tcp, TcpFlags, TcpOption, TcpOptions};

const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const CWR: u8 = 0x80;

/// How exactly to compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Unit of timestamps, if their values matter, and their tolerance.
    pub(super) tick: Option<Duration>,
    pub(super) tolerance: Duration,
    /// The packet is not the last of those that one script line represents: PSH and FIN
    /// belong to the last.
    pub(super) fragment: bool,
}

/// The names of the fields that differ; `actual` has the script's numbers. Lengths are
/// compared elsewhere.
pub(super) fn differences(
    expected: (IpFields, &Tcp),
    actual: (IpFields, &Tcp),
    rules: Rules,
) -> Vec<&'static str> {
    let mut all = ip(expected.0, actual.0);
    let (expected, actual) = (expected.1, actual.1);
    let mut check = |name, same: bool| {
        if !same {
            all.push(name);
        }
    };
    let ignored = if rules.fragment { PSH | FIN | CWR } else { 0 };
    let flags = |flags: TcpFlags| (flags.bits & !ignored, flags.accurate_ecn);
    check("flags", flags(expected.flags) == flags(actual.flags));
    check("sequence number", expected.sequence == actual.sequence);
    check(
        "acknowledgment number",
        expected.acknowledgment == actual.acknowledgment,
    );
    check(
        "window",
        expected.window.is_none() || expected.window == actual.window,
    );
    check("urgent pointer", expected.urgent == actual.urgent);
    check(
        "ports",
        expected.ports.is_none() || expected.ports == actual.ports,
    );
    let (TcpOptions::List(wanted), TcpOptions::List(found)) = (&expected.options, &actual.options)
    else {
        return all;
    };
    let without_values = |list: &[TcpOption]| -> Vec<TcpOption> {
        list.iter()
            .map(|option| match option {
                TcpOption::Timestamps { echo, .. } => TcpOption::Timestamps {
                    value: 0,
                    echo: *echo,
                },
                other => other.clone(),
            })
            .collect()
    };
    check("options", without_values(wanted) == without_values(found));
    if let (Some(tick), Some((wanted, _)), Some((found, _))) = (
        rules.tick,
        flow::timestamps(expected),
        flow::timestamps(actual),
    ) {
        let apart = wanted.wrapping_sub(found) as i32;
        let apart = tick.saturating_mul(apart.unsigned_abs());
        check("timestamp", apart <= rules.tolerance);
    }
    all
}

fn ip(expected: IpFields, actual: IpFields) -> Vec<&'static str> {
    let mut all = Vec::new();
    let ecn = match (expected.ecn, actual.ecn) {
        (None, _) => true,
        (Some(EcnCheck::CapableAny), actual) => {
            matches!(actual, Some(EcnCheck::Capable0 | EcnCheck::Capable1))
        }
        (expected, actual) => expected == actual,
    };
    if !ecn {
        all.push("ECN field");
    }
    let class = expected.traffic_class;
    if class.is_some() && class != actual.traffic_class {
        all.push("traffic class");
    }
    let hops = expected.hop_limit;
    if hops.is_some() && hops != actual.hop_limit {
        all.push("hop limit");
    }
    // IPv4 has no flow label.
    let label = expected.flow_label;
    if label.is_some() && actual.flow_label.is_some() && label != actual.flow_label {
        all.push("flow label");
    }
    all
}

/// The actual packet in script notation, with only the fields that the expected one
/// names.
pub(super) fn shown(expected: (IpFields, &Tcp), actual: (IpFields, &Tcp)) -> String {
    let (ip, tcp) = actual;
    let fields = IpFields {
        ecn: expected.0.ecn.and(ip.ecn),
        traffic_class: expected.0.traffic_class.and(ip.traffic_class),
        hop_limit: expected.0.hop_limit.and(ip.hop_limit),
        flow_label: expected.0.flow_label.and(ip.flow_label),
    };
    let tcp = Tcp {
        window: expected.1.window.and(tcp.window),
        ..tcp.clone()
    };
    format!("> {fields}{tcp}")
}
