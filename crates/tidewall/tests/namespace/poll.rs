//! The driver's poll over the device crate alone, without a stack.

use std::net::UdpSocket as KernelSocket;

use tidewall_device::demux::layout::{Counter, Protocol};
use tidewall_device::demux::{ChannelId, EMBEDDED_APPLICATION};
use tidewall_device::queue::{Interrupt, InterruptModeration, Queue};
use tidewall_manager::{AfXdp, Config};

use super::support::*;

/// A device whose queue takes what comes to [`SERVICE`].
fn device() -> AfXdp {
    let device = AfXdp::open(&Config::new(HERE)).unwrap();
    let tables = device.tables();
    let channel = ChannelId::new(1, 1);
    tables.trusted.set_locals(&[HERE4.into()]).unwrap();
    tables.embedded.set_limit(0, channel.index(), u32::MAX);
    tables
        .embedded
        .listen(Protocol::Udp, None, SERVICE, channel)
        .unwrap();
    tables
        .trusted
        .own_port(Protocol::Udp, None, SERVICE, EMBEDDED_APPLICATION)
        .unwrap();
    device
}

/// Throws away what has come.
fn discard(queue: &mut Queue) {
    let mut batch = Vec::new();
    while queue
        .receive
        .take_kernel_delivered(&mut Vec::new())
        .is_some()
    {}
    queue.receive.receive(&mut batch, usize::MAX);
    queue.frames.extend(batch.into_iter().map(|it| it.frame));
    queue.receive.fill(&mut queue.frames);
}

/// A frame that waits behind a masked interrupt is found by a poll that is to enable it. That
/// holds also while one of the two sockets that poll does not know the device's NAPI id. A
/// peer that only sends, as in an upload, makes no bare acknowledgment but the first, so that
/// may be for ever.
pub fn a_poll_before_a_sleep_takes_what_waits_with_one_id_known() {
    let mut device = device();
    let mut queue = device.queues.remove(0);
    let peer: KernelSocket = peer_socket(PEER4);
    let send = || peer.send_to(b"here", at(HERE4, SERVICE)).unwrap();
    let found = wait_until(|| {
        discard(&mut queue);
        send();
        queue.receive.poll(Interrupt::Armed).unwrap();
        discard(&mut queue);
        queue.receive.napi().ids[0] != 0
    });
    assert!(found, "{:?}", queue.receive.napi());
    let Queue {
        receive, counters, ..
    } = &mut queue;
    assert_eq!(receive.napi().ids[1], 0, "one datagram finds one id");
    receive.set_moderation(InterruptModeration::BusyPoll);
    let frames = || counters.counter(Counter::Frames);
    for interrupt in [Interrupt::Masked, Interrupt::Armed].repeat(8) {
        receive.poll(Interrupt::Masked).unwrap();
        let before = frames();
        send();
        receive.poll(interrupt).unwrap();
        assert_eq!(frames(), before + 1, "{interrupt:?}");
    }
}
