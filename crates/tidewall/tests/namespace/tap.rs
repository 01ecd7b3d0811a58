//! Stacks at the far end of a tap, against the kernel at the near one.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewall::{Stack, TapConfig, UdpSocket};

use super::support::*;

pub const NAME: &str = "tw-tap";
pub const KERNEL4: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
pub const TAP4: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
pub const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1);
pub const TAP6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 2);

fn config() -> TapConfig {
    TapConfig {
        name: NAME.to_owned(),
        addresses: vec![TAP4.into(), TAP6.into()],
        control: false,
        ..TapConfig::default()
    }
}

/// A stack at the far end of a tap whose near end has addresses.
pub fn tap_stack() -> Stack {
    let stack = Stack::tap(config()).unwrap();
    assert_eq!(stack.warnings(), [] as [String; 0]);
    shell(&format!(
        "ip addr add {KERNEL4}/24 dev {NAME}; ip addr add {KERNEL6}/64 dev {NAME} nodad"
    ));
    stack
}

/// Runs `ask` while a thread answers every datagram.
fn beside_echo(stack: &Stack, ask: impl FnOnce()) {
    let socket = UdpSocket::bind(stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let echo = std::thread::spawn(move || {
        while !ended.load(Ordering::Acquire) {
            let result = socket.recv_batch(64, |received| {
                socket.queue_to(received.payload, received.source).unwrap();
            });
            match result {
                Ok(_) => socket.flush().unwrap(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    });
    ask();
    stop.store(true, Ordering::Release);
    echo.join().unwrap();
}

fn kernel_socket(address: impl Into<IpAddr>) -> KernelSocket {
    let socket = KernelSocket::bind(SocketAddr::new(address.into(), 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

pub fn a_tap_serves_the_kernel_at_its_other_end() {
    let stack = tap_stack();
    let mut asked = 0;
    beside_echo(&stack, || {
        let (four, six) = (kernel_socket(KERNEL4), kernel_socket(KERNEL6));
        for offload in ["on", "off"] {
            shell(&format!("ethtool -K {NAME} tx {offload} >/dev/null"));
            for size in [0, 1, 2, 255, 256, 257, 1000, 1451, 1452] {
                let payload: Vec<u8> = (0..size).map(|n| (n * 7 + n / 256) as u8).collect();
                ask(&four, at(TAP4, SERVICE), &payload);
                ask(&six, at(TAP6, SERVICE), &payload);
                asked += 2;
            }
        }
    });
    let snapshot = stack.snapshot();
    assert!(
        snapshot.counters.protocol.is_empty(),
        "{:?}",
        snapshot.counters.protocol
    );
    assert_eq!(
        (
            snapshot.counters.no_socket,
            snapshot.counters.kernel_delivered
        ),
        (0, 0)
    );
    assert!(snapshot.queues[0].transmitted >= asked, "{snapshot:?}");
    assert_eq!(snapshot.interface, NAME);
    drop(stack);
    assert!(
        !shell("ip -o link").contains(NAME),
        "the tap outlived its stack"
    );
}

/// From the other namespace, through this one's kernel: what a machine behind
/// its own gateway sees.
pub fn a_tap_is_a_host_that_is_routed_to() {
    let stack = tap_stack();
    let peer = peer_namespace();
    shell(&format!(
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
         ip -n {peer} route add {TAP4}/32 via {HERE4}
         ip -n {peer} route add {TAP6}/128 via {HERE6}"
    ));
    beside_echo(&stack, || {
        let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
        for size in [8, 600, 1400] {
            let payload = vec![size as u8; size];
            ask(&four, at(TAP4, SERVICE), &payload);
            ask(&six, at(TAP6, SERVICE), &payload);
        }
    });
    let snapshot = stack.snapshot();
    assert!(
        snapshot.counters.protocol.is_empty(),
        "{:?}",
        snapshot.counters.protocol
    );
}

pub fn a_tap_that_cannot_be_is_refused() {
    let refused = |config: TapConfig| Stack::tap(config).map(drop).unwrap_err();
    let none = TapConfig {
        addresses: Vec::new(),
        ..config()
    };
    assert_eq!(refused(none).kind(), ErrorKind::InvalidInput);
    let any = TapConfig {
        addresses: vec![Ipv4Addr::UNSPECIFIED.into()],
        ..config()
    };
    assert_eq!(refused(any).kind(), ErrorKind::InvalidInput);
    let taken = TapConfig {
        name: HERE.to_owned(),
        ..config()
    };
    let error = refused(taken);
    assert!(error.raw_os_error().is_some(), "{error}");
    assert!(!shell("ip -o link").contains(NAME));
}
