//! Decides whether a device computes the checksums of sent frames.
//!
//! The kernel's registering memory with room for transmit metadata proves nothing. A path
//! that ignores the metadata sends the frame with half a checksum.
//!
//! - In zero-copy mode the driver decides, and announces it through netdev.
//! - In copy mode the kernel decides, and it depends on how it builds its own buffer. By
//!   copying (most drivers), metadata counts. By reference (IFF_TX_SKB_NO_LINEAR:
//!   virtio-net), until lately it did not.
//!
//! The kernel does not report which way it uses, so a test frame finds out. Its metadata
//! requests the time of transmission. A kernel that reads the metadata writes that time
//! at completion. An impossible request, which a kernel that reads it refuses, would show
//! the same without a frame. But early kernels then lose a buffer, and with it the queue
//! until the next boot.
//!
//! Read first: `xsk_build_skb` and `xsk_destruct_skb` of net/xdp/xsk.c;
//! Documentation/networking/xsk-tx-metadata.rst.

use std::fmt;
use std::io;
use std::time::Duration;

use tidewall_wire::ethernet::MacAddress;

use super::socket::TransmitHalf;
use crate::frame::Frame;
use crate::interface::{driver, transmit_queue_count};
use crate::queue::Transmit;
use tidewall_sys::netlink::{Netdev, XSK_TX_CHECKSUM};

/// The party that computes the checksums of sent frames, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The device: a test frame's metadata was honoured.
    Proven,
    /// The device: its driver's zero-copy mode announces it.
    Announced,
    /// We do: the kernel takes no transmit metadata.
    NoMetadata,
    /// We do: the driver's zero-copy mode does not announce that it does.
    NotAnnounced,
    /// We do: the kernel ignored a test frame's metadata.
    Ignored,
    /// We do: the test frame did not leave in time, or at all.
    Unproven,
}

impl Checksums {
    /// True when the device computes checksums.
    pub fn by_device(self) -> bool {
        matches!(self, Checksums::Proven | Checksums::Announced)
    }
}

impl fmt::Display for Checksums {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Checksums::Proven => "by the device (proven at start)",
            Checksums::Announced => "by the device (its driver says so)",
            Checksums::NoMetadata => {
                "in software (this kernel takes no transmit metadata; Linux 6.8 does)"
            }
            Checksums::NotAnnounced => {
                "in software (the driver's zero-copy mode does not offer them)"
            }
            Checksums::Ignored => {
                "in software (the kernel ignores transmit metadata with this driver)"
            }
            Checksums::Unproven => "in software (the device did not send a test frame at start)",
        })
    }
}

/// The outcome of the test frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Honoured,
    Ignored,
    NotSent,
}

/// Decides who computes checksums. `registered`: the kernel accepted memory with transmit
/// metadata. `announced`: the driver's zero-copy mode announces that it computes
/// checksums.
fn decide(
    registered: bool,
    zero_copy: bool,
    announced: impl FnOnce() -> bool,
    test: impl FnOnce() -> Test,
) -> Checksums {
    match (registered, zero_copy) {
        (false, _) => Checksums::NoMetadata,
        (true, true) if announced() => Checksums::Announced,
        (true, true) => Checksums::NotAnnounced,
        (true, false) => match test() {
            Test::Honoured => Checksums::Proven,
            Test::Ignored => Checksums::Ignored,
            Test::NotSent => Checksums::Unproven,
        },
    }
}

/// How often to check whether the test frame has left, and the pause between checks.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Decides for a queue, before anything else is sent on it. `frames` are the free ones.
pub(super) fn find_out(
    (interface, index, queue): (&str, u32, u32),
    registered: bool,
    zero_copy: bool,
    transmit: &mut TransmitHalf,
    frames: &mut Vec<Frame>,
) -> Checksums {
    let announced = || {
        let features = Netdev::open().and_then(|mut netdev| netdev.xsk_features(index));
        features.is_ok_and(|features| features & XSK_TX_CHECKSUM != 0)
    };
    decide(registered, zero_copy, announced, || {
        test(interface, queue, transmit, frames).unwrap_or(Test::NotSent)
    })
}

/// Sends a frame to the interface's own address and checks what the kernel did with its
/// metadata. The frame comes back as any does: here, or by a later reclaim if it takes
/// long.
fn test(
    interface: &str,
    queue: u32,
    transmit: &mut TransmitHalf,
    frames: &mut Vec<Frame>,
) -> io::Result<Test> {
    if transmit_queue_count(interface).is_some_and(|count| queue >= count) {
        // The kernel would leave the frame in the ring.
        return Ok(Test::NotSent);
    }
    let address = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?;
    let content = content(&driver(interface).unwrap_or_default(), &address)
        .ok_or(io::ErrorKind::InvalidData)?;
    let frame = frames.pop().ok_or(io::ErrorKind::OutOfMemory)?;
    let number = frame.index();
    if let Err(frame) = transmit.transmit_timed(frame, &content) {
        frames.push(frame);
        return Ok(Test::NotSent);
    }
    for _ in 0..LOOKS {
        // A device that is busy now may not be so soon; any other error is final.
        transmit.flush()?;
        let before = frames.len();
        transmit.reclaim(frames);
        let back = frames.get_mut(before..).unwrap_or_default();
        if let Some(frame) = back.iter_mut().find(|frame| frame.index() == number) {
            return Ok(if transmit.was_timed(frame) {
                Test::Honoured
            } else {
                Test::Ignored
            });
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Ok(Test::NotSent)
}

/// Bytes of the shortest Ethernet frame, without its check sequence.
const SHORTEST: usize = 60;
/// Bytes of a frame shorter than an Ethernet header: veth drops it instead of passing it
/// to its peer.
const NO_HEADER: usize = 13;
/// Local experimental EtherType 1 (IEEE 802).
const ETHERTYPE: [u8; 2] = 0x88b5u16.to_be_bytes();

/// The test frame: from the interface to itself, so that no switch forwards it and no
/// host accepts it. `None` if `address` is not an Ethernet address.
fn content(driver: &str, address: &str) -> Option<Vec<u8>> {
    let address: MacAddress = address.trim().parse().ok()?;
    let mut content = [address.0, address.0].concat();
    content.extend(ETHERTYPE);
    content.resize(
        if driver == "veth" {
            NO_HEADER
        } else {
            SHORTEST
        },
        0,
    );
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_left_to_a_device_only_on_proof() {
        let unasked = || -> bool { panic!("not asked of the driver") };
        let untried = || -> Test { panic!("no test frame") };
        for zero_copy in [false, true] {
            let found = decide(false, zero_copy, unasked, untried);
            assert_eq!(found, Checksums::NoMetadata);
        }
        for (announced, wanted) in [
            (true, Checksums::Announced),
            (false, Checksums::NotAnnounced),
        ] {
            assert_eq!(decide(true, true, || announced, untried), wanted);
        }
        for (test, wanted) in [
            (Test::Honoured, Checksums::Proven),
            (Test::Ignored, Checksums::Ignored),
            (Test::NotSent, Checksums::Unproven),
        ] {
            assert_eq!(decide(true, false, unasked, || test), wanted);
        }
    }

    #[test]
    fn only_the_two_sure_answers_leave_checksums_to_the_device() {
        use Checksums::*;
        for checksums in [
            Proven,
            Announced,
            NoMetadata,
            NotAnnounced,
            Ignored,
            Unproven,
        ] {
            let text = checksums.to_string();
            assert_eq!(text.starts_with("by the device ("), checksums.by_device());
            assert!(checksums.by_device() || text.starts_with("in software ("));
        }
    }

    #[test]
    fn the_test_frame_is_for_nobody() {
        let frame = content("igb", "02:00:00:00:00:07\n").unwrap();
        assert_eq!(frame.len(), 60);
        assert_eq!(frame[..6], frame[6..12]);
        assert_eq!(frame[12..14], [0x88, 0xb5]);
        assert_eq!(content("veth", "02:00:00:00:00:07").unwrap().len(), 13);
        // An interface without Ethernet addresses gets no test.
        assert_eq!(content("tun", ""), None);
    }
}
