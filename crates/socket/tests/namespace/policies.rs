//! Receive control on a real device: every policy serves, in both places, and
//! sets what the kernel then has.

use std::fs;
use std::time::Duration;

use tidewall_socket::tuning::{Architecture, PolicyKind};
use tidewall_socket::{EmbeddedConfig, Stack};

use super::support::*;

/// The knob that T becomes on a virtual device.
fn timer() -> u64 {
    let path = format!("/sys/class/net/{}/gro_flush_timeout", HERE);
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

pub fn every_policy_serves_in_both_places() {
    let before = timer();
    for architecture in [Architecture::NiLrp, Architecture::Softirq] {
        for policy in PolicyKind::ALL {
            let started = Stack::embedded(
                config()
                    .architecture(architecture)
                    .policy(policy)
                    .receiver_cpu(1),
            );
            let stack = match started {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    let what = format!("CAP_SYS_NICE ({error})");
                    tidewall_skip::missing(architecture.name(), what);
                    break;
                }
                started => started.unwrap(),
            };
            let echo = Echo::start(&stack, SERVICE);
            let peer = peer_socket(PEER4);
            for n in 0..40u8 {
                ask(&peer, at(HERE4, SERVICE), &[n; 16]);
            }
            // Where the processor is busy, each answer may be found by polling.
            let interrupted = wait_until(|| {
                ask(&peer, at(HERE4, SERVICE), &[40; 16]);
                stack.snapshot().queues[0].control.interrupts > 0
            });
            let control = stack.snapshot().queues[0].control.clone();
            assert!(interrupted, "{control:?}");
            assert_eq!(control.policy, policy.name());
            assert!(control.budget <= 3000, "{control:?}");
            assert!(control.interrupt_interval <= 1_000_000, "{control:?}");
            assert_eq!(control.overflowed, 0, "{control:?}");
            assert!(echo.finish() >= 40);
            drop(stack);
            assert_eq!(timer(), before, "{policy}: the timer is put back");
        }
    }
}

pub fn a_fixed_interval_is_what_the_device_gets() {
    let stack = stack_with(
        config()
            .policy(PolicyKind::Napi)
            .budget(32)
            .interrupt_interval(Duration::from_micros(75)),
    );
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    for n in 0..20u8 {
        ask(&peer, at(HERE4, SERVICE), &[n; 16]);
    }
    assert!(wait_until(|| timer() == 75_000), "{}", timer());
    let control = stack.snapshot().queues[0].control.clone();
    assert_eq!((control.budget, control.interrupt_interval), (32, 75_000));
    assert!(echo.finish() >= 20);
}

pub fn what_is_out_of_range_is_refused_before_anything_is_touched() {
    let before = timer();
    for (budget, interval) in [
        (Some(1), None),
        (Some(3001), None),
        (None, Some(Duration::from_micros(1001))),
    ] {
        let error = Stack::embedded(
            EmbeddedConfig::new("no-such-interface")
                .budget(budget)
                .interrupt_interval(interval),
        )
        .err()
        .unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains("must be"), "{text}");
    }
    assert_eq!(timer(), before);
}
