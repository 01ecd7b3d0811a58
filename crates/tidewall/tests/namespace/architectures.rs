//! The four architectures over the same protocol code.

use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidewall::Stack;
use tidewall::tuning::Architecture;

use super::support::*;

pub fn all_architectures_exchange_datagrams() {
    exchange();
}

pub fn all_architectures_on_two_queues() {
    exchange();
}

/// A stack of that architecture, if its threads may run as they must.
fn start(architecture: Architecture) -> Option<Stack> {
    let started = Stack::embedded(config().architecture(architecture).receiver_cpu(1));
    match started {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let what = format!("CAP_SYS_NICE for SCHED_FIFO ({error})");
            tidewall_skip::missing(architecture.name(), what);
            None
        }
        started => Some(started.unwrap()),
    }
}

pub fn closures_that_panic_cost_no_architecture_a_frame() {
    for architecture in Architecture::ALL {
        let Some(stack) = start(architecture) else {
            continue;
        };
        let service = bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE));
        let client = peer_socket(PEER4);
        let mut expected = 0u32;
        let mut seen = Vec::new();
        // More of them than credits: without their frames the channel is shut.
        for _ in 0..40 {
            for n in expected..expected + 50 {
                client
                    .send_to(&n.to_be_bytes(), at(HERE4, SERVICE))
                    .unwrap();
            }
            expected += 50;
            while seen.len() < expected as usize {
                let received = catch_unwind(AssertUnwindSafe(|| {
                    service.recv_batch(64, |received| {
                        let number = received.payload.first_chunk().unwrap();
                        seen.push(u32::from_be_bytes(*number));
                        if seen.len() % 7 == 3 {
                            resume_unwind(Box::new("the application"));
                        }
                    })
                }));
                assert!(
                    !matches!(received, Ok(Err(_))),
                    "{architecture}: {received:?}"
                );
            }
        }
        // The first may have come through the kernel, and late.
        seen.sort_unstable();
        assert_eq!(seen, (0..expected).collect::<Vec<_>>(), "{architecture}");
        let socket = stack.snapshot().sockets.remove(0);
        assert_eq!(socket.received, u64::from(expected), "{architecture}");
        assert_eq!(socket.occupancy, 0, "{architecture}: {socket:?}");
    }
}

fn exchange() {
    for architecture in Architecture::ALL {
        let Some(stack) = start(architecture) else {
            continue;
        };
        let echo = Echo::start(&stack, SERVICE);
        let other = Echo::start(&stack, SERVICE + 1);
        let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
        for n in 0..5u8 {
            ask(&four, at(HERE4, SERVICE), &[n; 32]);
        }
        let mut lost = 0;
        for n in 0..300u32 {
            let payload = n.to_be_bytes();
            lost += u32::from(!ask_once(&four, at(HERE4, SERVICE), &payload));
            lost += u32::from(!ask_once(&six, at(HERE6, SERVICE + 1), &payload));
        }
        assert_eq!(lost, 0, "{architecture}");
        ask(&four, at(HERE4, SERVICE), &vec![9; 5000]);
        let snapshot = stack.snapshot();
        assert_eq!(snapshot.architecture, architecture.name());
        let frames = if architecture.has_threads() {
            "raw"
        } else {
            "channel"
        };
        let mut seen = 0;
        for queue in &snapshot.queues {
            assert_eq!(queue.stale, 0, "{architecture}: {queue:?}");
            assert_eq!(queue.lost_in_ring, 0, "{architecture}: {queue:?}");
            assert!(queue.host.is_empty(), "{architecture}: {queue:?}");
            seen += queue.driver.get(frames).copied().unwrap_or(0);
        }
        assert!(seen >= 600, "{architecture}: {snapshot:?}");
        for socket in &snapshot.sockets {
            assert!(socket.received >= 300, "{architecture}: {socket:?}");
            assert!(socket.occupancy <= 1, "{architecture}: {socket:?}");
            assert!(socket.through_kernel <= 4, "{architecture}: {socket:?}");
        }
        assert!(echo.finish() + other.finish() >= 600);
        println!("{architecture}: 600 questions answered");
    }
}
