//! Receive control on a real device: every policy serves, in both places, and
//! sets what the kernel then has.

use std::fs;
use std::time::Duration;

use tidewall::tuning::{Architecture, PolicyKind, ReceiveControl};
use tidewall::{EmbeddedConfig, Stack};

use super::support::*;

/// The knob that T becomes on a virtual device.
fn timer() -> u64 {
    let path = format!("/sys/class/net/{}/gro_flush_timeout", HERE);
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

pub fn every_policy_serves_in_both_places() {
    let before = timer();
    for architecture in [Architecture::Tidewall, Architecture::Softirq] {
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
            // On a busy CPU, each answer may be found by polling.
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

pub fn receive_control_changes_while_it_serves() {
    let before = timer();
    let stack = stack_with(config());
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    let serves = || (0..20u8).for_each(|n| ask(&peer, at(HERE4, SERVICE), &[n; 16]));
    let control = || stack.snapshot().queues[0].control.clone();
    serves();
    assert_eq!(control().policy, "adaptive");
    let fixed = ReceiveControl {
        policy: PolicyKind::Napi,
        budget: Some(32),
        interrupt_interval: Some(Duration::from_micros(75)),
    };
    stack.set_receive_control(&fixed).unwrap();
    serves();
    assert!(wait_until(|| timer() == 75_000), "{}", timer());
    let now = control();
    assert_eq!(now.policy, "napi");
    assert_eq!((now.budget, now.interrupt_interval), (32, 75_000));
    // A rejected setting changes nothing.
    for (budget, interval) in [(Some(3001), None), (None, Some(Duration::from_millis(2)))] {
        let wrong = ReceiveControl {
            budget,
            interrupt_interval: interval,
            ..fixed
        };
        let error = stack.set_receive_control(&wrong).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("must be"), "{error}");
        assert_eq!(control().budget, 32);
    }
    // Bp of a receiver that polls for itself stays what a channel holds.
    stack
        .set_receive_control(&ReceiveControl::default())
        .unwrap();
    assert_eq!(control().policy, "adaptive");
    assert!(control().budget <= 256, "{:?}", control());
    serves();
    assert!(echo.finish() >= 60);
    drop(stack);
    assert_eq!(timer(), before);
}

pub fn comparators_have_no_receive_control() {
    let started = Stack::embedded(config().architecture(Architecture::Bsd).receiver_cpu(1));
    let stack = match started {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return tidewall_skip::missing("bsd", format!("CAP_SYS_NICE ({error})"));
        }
        started => started.unwrap(),
    };
    let error = stack.set_receive_control(&ReceiveControl::default());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("tidewall"), "{error}");
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
