//! The four architectures over the same protocol code.

use tidewall_socket::{Architecture, EmbeddedConfig, Stack};

use super::support::*;

pub fn all_architectures_exchange_datagrams() {
    exchange();
}

pub fn all_architectures_on_two_queues() {
    exchange();
}

fn exchange() {
    for architecture in Architecture::ALL {
        let started = Stack::embedded(EmbeddedConfig {
            architecture,
            receiver_cpu: Some(1),
            ..config()
        });
        let stack = match started {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                println!("SKIPPED {architecture}: needs CAP_SYS_NICE for SCHED_FIFO ({error})");
                continue;
            }
            started => started.unwrap(),
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
