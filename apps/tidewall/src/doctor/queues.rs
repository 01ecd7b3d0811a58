//! An interface's receive queues: how many there are, which process polls them, and when
//! the device may interrupt.

use tidewall::snapshot::StackSnapshot;
use tidewall_device::demux::layout::QUEUES;
use tidewall_device::interface::queue_count;
use tidewall_sys::netlink::Queue;

use super::{Finding, line_of};

/// Reports what only sysfs shows: number of queues, interrupt deferral, threaded polling.
pub fn sysfs(name: &str, index: u32, kind: &str, owner: Option<&StackSnapshot>) -> Vec<Finding> {
    let read = |file: &str| line_of(&format!("/sys/class/net/{name}/{file}"));
    let number = |file: &str| read(file).and_then(|value| value.parse::<u64>().ok());
    if number("ifindex") != Some(index.into()) {
        return vec![Finding::unknown(
            "queues",
            "sysfs shows another network namespace, so queues and interrupt deferral were left out; enter it by \
             `ip netns exec`, which shows the right one",
        )];
    }
    let queues = queue_count(name).unwrap_or(0) as usize;
    vec![
        queue_layout(name, kind, queues, owner),
        deferral(
            name,
            number("gro_flush_timeout"),
            number("napi_defer_hard_irqs"),
            owner,
        ),
        threaded(name, number("threaded")),
    ]
}

fn queue_layout(name: &str, kind: &str, queues: usize, owner: Option<&StackSnapshot>) -> Finding {
    const CHECK: &str = "queues";
    let plural = if queues == 1 { "" } else { "s" };
    let Some(stack) = owner else {
        if queues > QUEUES {
            return Finding::problem(
                CHECK,
                format!(
                    "{name} has {queues} receive queues; a stack takes all, and at most {QUEUES}"
                ),
                format!("ethtool -L {name} combined {QUEUES}"),
            );
        }
        return Finding::ok(CHECK, format!("{name} has {queues} receive queue{plural}"));
    };
    let taken = stack.queues.len();
    if taken >= queues {
        return Finding::ok(CHECK, format!("the stack has all {queues} of {name}"));
    }
    let mend = if kind == "veth" {
        format!(
            "restart the service, which then takes all {queues}: kill -TERM {}",
            stack.process
        )
    } else {
        format!("ethtool -L {name} combined {taken}")
    };
    Finding::problem(
        CHECK,
        format!(
            "the stack has {taken} of {queues} receive queues of {name}; datagrams and new connections on the others \
             go to the kernel, unprotected, and connections that were here break there (driver: no-socket)"
        ),
        mend,
    )
}

fn deferral(
    name: &str,
    timeout: Option<u64>,
    defer: Option<u64>,
    owner: Option<&StackSnapshot>,
) -> Finding {
    const CHECK: &str = "interrupt deferral";
    let (Some(timeout), Some(defer)) = (timeout, defer) else {
        return Finding::unknown(
            CHECK,
            "this kernel has no gro_flush_timeout or napi_defer_hard_irqs (5.8)",
        );
    };
    let values = format!("gro_flush_timeout {timeout} ns, napi_defer_hard_irqs {defer}");
    let set = |timeout: u64, defer: u64| {
        format!(
            "echo {timeout} > /sys/class/net/{name}/gro_flush_timeout; echo {defer} > \
             /sys/class/net/{name}/napi_defer_hard_irqs"
        )
    };
    match owner {
        // The stack sets the timeout: zero while a thread sleeps.
        Some(stack) if defer == 0 && stack.architecture == "tidewall" && stack.deferred => {
            Finding::problem(
                CHECK,
                format!(
                    "{values}: the device interrupts a busy receiver, and overload will starve it"
                ),
                set(timeout, 1),
            )
        }
        Some(_) => Finding::ok(CHECK, values),
        None if timeout == 0 || defer == 0 => {
            Finding::ok(CHECK, format!("{values}: the kernel's usual"))
        }
        None => Finding::warning(
            CHECK,
            format!("{values}, but no stack is live: what the kernel receives may wait that long"),
            set(0, 0),
        ),
    }
}

fn threaded(name: &str, value: Option<u64>) -> Finding {
    const CHECK: &str = "threaded NAPI";
    match value {
        Some(0) | None => Finding::ok(CHECK, "off"),
        Some(_) => Finding::warning(
            CHECK,
            format!("a kernel thread polls {name} and competes with the receiver"),
            format!("echo 0 > /sys/class/net/{name}/threaded"),
        ),
    }
}

/// Reports whether the driver names the poll of each queue.
pub fn napi(name: &str, kind: &str, queues: Option<&[Queue]>) -> Finding {
    const CHECK: &str = "NAPI ids";
    let known: Vec<Queue> = queues
        .unwrap_or_default()
        .iter()
        .filter(|queue| queue.napi.is_some())
        .copied()
        .collect();
    let helper = "helper sockets learn them from the first datagrams of each queue";
    match queues {
        None => Finding::ok(CHECK, format!("this kernel does not show it; {helper}")),
        Some(_) if known.is_empty() && kind == "veth" => {
            Finding::ok(CHECK, format!("veth registers none; {helper}"))
        }
        Some(_) if known.is_empty() => Finding::ok(
            CHECK,
            format!("the driver of {name} registers none; {helper}"),
        ),
        Some(queues) => {
            let mut ids: Vec<u32> = known.iter().filter_map(|queue| queue.napi).collect();
            ids.sort_unstable();
            let text: Vec<String> = known
                .iter()
                .filter_map(|queue| Some(format!("queue {}: {}", queue.number, queue.napi?)))
                .collect();
            let before = ids.len();
            ids.dedup();
            if ids.len() == before && known.len() == queues.len() {
                Finding::ok(CHECK, text.join(", "))
            } else {
                Finding::warning(
                    CHECK,
                    format!(
                        "queues of {name} share or lack a NAPI ({}): one poll serves several",
                        text.join(", ")
                    ),
                    format!("ethtool -l {name}"),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::firewall::tests::stack;
    use super::*;

    #[test]
    fn a_stack_must_have_every_queue_and_a_deferred_interrupt() {
        let mut owner = stack(7, "tidewall", "0.0.0.0:7");
        assert_eq!(
            queue_layout("x", "", 0, Some(&owner)).severity,
            Severity::Ok
        );
        assert_eq!(queue_layout("x", "", 8, None).severity, Severity::Ok);
        let finding = queue_layout("x", "", 16, None);
        assert_eq!(finding.mend.as_deref(), Some("ethtool -L x combined 8"));
        let finding = queue_layout("x", "", 4, Some(&owner));
        assert_eq!(
            (finding.severity, finding.mend.as_deref()),
            (Severity::Problem, Some("ethtool -L x combined 0"))
        );
        assert_eq!(
            deferral("x", Some(0), Some(0), Some(&owner)).severity,
            Severity::Problem
        );
        assert_eq!(
            deferral("x", Some(1_000_000), Some(1), Some(&owner)).severity,
            Severity::Ok
        );
        assert_eq!(
            deferral("x", Some(1_000_000), Some(1), None).severity,
            Severity::Warning
        );
        assert_eq!(deferral("x", Some(0), Some(0), None).severity, Severity::Ok);
        // No frames arrive for the stack.
        owner.deferred = false;
        assert_eq!(
            deferral("x", Some(0), Some(0), Some(&owner)).severity,
            Severity::Ok
        );
        (owner.architecture, owner.deferred) = ("bsd".to_owned(), true);
        assert_eq!(
            deferral("x", Some(0), Some(0), Some(&owner)).severity,
            Severity::Ok
        );
        assert_eq!(threaded("x", Some(1)).severity, Severity::Warning);
    }

    #[test]
    fn napi_ids_must_differ() {
        let queue = |number, napi| Queue { number, napi };
        assert_eq!(
            napi("x", "veth", Some(&[queue(0, None)])).severity,
            Severity::Ok
        );
        let finding = napi("x", "", Some(&[queue(0, Some(8193)), queue(1, Some(8194))]));
        assert_eq!(finding.text, "queue 0: 8193, queue 1: 8194");
        assert_eq!(
            napi("x", "", Some(&[queue(0, Some(9)), queue(1, Some(9))])).severity,
            Severity::Warning
        );
    }
}
