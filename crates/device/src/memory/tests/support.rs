//! Helpers of the tests: frames, table entries, and one line for each action of an end or
//! a wire.

use std::net::Ipv4Addr;
use std::time::Duration;

use tidewall_wire::checksum::{self, Sum};

use crate::demux::layout::Protocol;
use crate::demux::{ChannelId, Tables};
use crate::memory::{Impairments, Link, LinkConfig, LinkPort, Side, pair};
use crate::queue::{Interrupt, Offload, Received};

/// The port that a channel owns, where one does.
pub(super) const PORT: u16 = 7000;

pub(super) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(super) fn numbered(number: u32) -> Vec<u8> {
    let mut frame = vec![2u8; 60];
    // IEEE 802 "local experimental ethertype 1".
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

pub(super) fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

pub(super) fn link(config: LinkConfig) -> (Link, LinkPort, LinkPort) {
    pair(config).unwrap()
}

pub(super) fn a_to_b(impairments: Impairments) -> LinkConfig {
    LinkConfig {
        a_to_b: impairments,
        ..LinkConfig::default()
    }
}

pub(super) fn poll(end: &mut LinkPort) {
    end.queues[0].receive.poll(Interrupt::Masked).unwrap();
}

pub(super) fn receive(end: &mut LinkPort) -> Vec<Received> {
    let mut batch = Vec::new();
    end.queues[0].receive.receive(&mut batch, usize::MAX);
    batch
}

pub(super) fn fill(end: &mut LinkPort, count: usize) {
    let queue = &mut end.queues[0];
    let mut frames = queue.frames.split_off(queue.frames.len() - count);
    queue.receive.fill(&mut frames);
    queue.frames.append(&mut frames);
}

/// Queues and flushes one frame.
pub(super) fn transmit(end: &mut LinkPort, bytes: &[u8], offload: Option<Offload>) {
    let queue = &mut end.queues[0];
    let mut frame = queue.frames.pop().unwrap();
    frame.set_extent(queue.transmit.headroom(), bytes.len() as u16);
    queue.memory.packet_mut(&mut frame).copy_from_slice(bytes);
    queue.transmit.transmit(frame, offload).unwrap();
    queue.transmit.flush().unwrap();
    queue.transmit.reclaim(&mut queue.frames);
}

/// Everything that reached the end so far, through the driver, in order.
pub(super) fn arrived(link: &Link, end: &mut LinkPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        poll(end);
        let batch = link.take_kernel(end.side);
        if batch.is_empty() {
            return frames;
        }
        frames.extend(batch.into_iter().map(|frame| frame.bytes));
    }
}

pub(super) fn numbers(link: &Link, end: &mut LinkPort) -> Vec<u32> {
    arrived(link, end)
        .iter()
        .map(|frame| number(frame))
        .collect()
}

/// Sends `count` numbered frames from A, one per millisecond, and returns those that
/// arrived until a second after.
pub(super) fn run(impairments: Impairments, seed: u64, count: u32) -> (Link, Vec<Vec<u8>>) {
    let config = LinkConfig {
        seed,
        ..a_to_b(impairments)
    };
    let (link, _a, mut b) = link(config);
    let mut frames = Vec::new();
    for sent in 0..count {
        link.advance_to(ms(u64::from(sent)));
        link.send(Side::A, &numbered(sent));
        frames.append(&mut arrived(&link, &mut b));
    }
    link.advance_to(ms(u64::from(count) + 1000));
    frames.append(&mut arrived(&link, &mut b));
    (link, frames)
}

const FROM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A correct UDP datagram over IPv4 to `port` of the address that
/// [`own_port`] makes local.
pub(super) fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    let udp = 8 + payload.len() as u16;
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(FROM.octets());
    frame.extend(TO.octets());
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(5000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    let sum = Sum::ZERO
        .bytes(&frame[26..34])
        .word(17)
        .word(udp)
        .bytes(&frame[34..])
        .checksum();
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Gives a port of [`TO`] to a channel with room for `limit` frames. Returns
/// the channel's id.
pub(super) fn own_port(tables: &Tables, port: u16, limit: u32) -> u32 {
    let channel = ChannelId::new(1, 1);
    tables.trusted.set_locals(&[TO.into()]).unwrap();
    tables
        .trusted
        .own_port(Protocol::Udp, None, port, 0)
        .unwrap();
    tables.embedded.set_limit(0, channel.index(), limit);
    tables
        .embedded
        .listen(Protocol::Udp, None, port, channel)
        .unwrap();
    channel.value()
}

/// Frames that the driver admitted to the channel.
pub(super) fn channel_head(tables: &Tables, channel: u32) -> u32 {
    tables
        .embedded
        .head(0, ChannelId::from_value(channel).index())
}
