//! Limits and counts of each class of kernel-bound frames (`bpf/kernel.h`).

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::TrustedTables;
use super::layout::{Class, ClassBucket, QUEUES, USE_FORWARDING, USE_NOT_FOR_HOST};

/// Highest rate of a class, in frames per second: keeps the bucket's arithmetic below
/// 2^64.
const MAXIMUM_RATE: u64 = (1 << 30) - 1;
/// Billionths of a frame in a token; nanoseconds in a second.
const TOKEN: u64 = 1_000_000_000;

/// How many frames of a class the kernel receives from one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLimit {
    /// Frames per second of all senders together; 0 is no limit.
    pub rate: u64,
    /// Frames at once; 0 leaves the shares alone.
    pub burst: u64,
    /// Frames per second of one sender, and of one purpose, beyond `rate`; 0 is none.
    pub share: u64,
    /// Frames at once of a share.
    pub share_burst: u64,
}

impl ClassLimit {
    /// No limit.
    pub const NONE: ClassLimit = ClassLimit::of(0, 0);

    /// A limit for all together.
    pub const fn of(rate: u64, burst: u64) -> Self {
        ClassLimit {
            rate,
            burst,
            share: 0,
            share_burst: 0,
        }
    }

    /// Adds a share beyond the limit for each sender and each purpose.
    pub const fn and_each(self, share: u64, share_burst: u64) -> Self {
        ClassLimit {
            share,
            share_burst,
            ..self
        }
    }
}

/// Segments without a connection that a queue passes to the kernel's listening socket.
/// Each costs the kernel a reset (RFC 9293 §3.5.2), which is never urgent. One sender
/// could count the use of a limit common to all (CVE-2016-5696), so each network has its
/// own.
const RESETS: ClassLimit = ClassLimit::of(1, 0).and_each(50, 50);

/// Default limits of what a queue passes to the kernel. The rates bound the kernel's cost
/// to a receiver whose excess frames are dropped at the driver program's cost. The shares
/// are what one conversation needs under attack.
const LIMITS: [(Class, ClassLimit); 10] = [
    (
        Class::Neighbour,
        ClassLimit::of(2_000, 200).and_each(50, 32),
    ),
    (Class::Arp, ClassLimit::of(2_000, 200).and_each(50, 32)),
    (Class::Icmp, ClassLimit::of(2_000, 200).and_each(20, 16)),
    (
        Class::Established,
        ClassLimit::of(FAST, 4_096).and_each(400, 128),
    ),
    (Class::Syn, ClassLimit::of(10_000, 512).and_each(50, 32)),
    (Class::Udp, ClassLimit::of(10_000, 512).and_each(50, 32)),
    (Class::Open, ClassLimit::of(FAST, 4_096)),
    (
        Class::Multicast,
        ClassLimit::of(10_000, 512).and_each(50, 32),
    ),
    (
        Class::Other,
        ClassLimit::of(50_000, 2_048).and_each(100, 64),
    ),
    // A share covers each control protocol of the link; PTP sends 128 frames/s.
    (
        Class::Forwarded,
        ClassLimit::of(50_000, 2_048).and_each(400, 128),
    ),
];
/// Frames per second of a class that the kernel handles cheaply in large numbers.
const FAST: u64 = 200_000;

/// Uses that the kernel has for an interface's frames not addressed to this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelUses {
    /// It forwards them. A datagram or SYN to one of the host's ports may also be
    /// translated and forwarded to a container. Such frames share the rate of frames for
    /// kernel sockets.
    pub is_forwarding: bool,
    /// Another use: an interface above this one, a capture, a transparent proxy.
    pub is_open: bool,
}

/// Kernel-bound frames of one class on one queue, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Passed to the kernel.
    pub passed: u64,
    /// Dropped for want of a token.
    pub dropped: u64,
}

impl TrustedTables {
    /// Limits a class of kernel-bound frames on a queue. Rates are clamped to 2^30 - 1
    /// per second, bursts to 2^32 - 1. On adopted tables ([`TrustedTables::adopt`]) it
    /// has no effect.
    pub fn set_class(&self, queue: u32, class: Class, limit: ClassLimit) {
        let Some(bucket) = self.bucket(queue, class) else {
            return;
        };
        let most = u64::from(u32::MAX);
        let interval = TOKEN.checked_div(limit.share.min(TOKEN)).unwrap_or(0);
        let early = limit.share_burst.clamp(1, most) - 1;
        bucket.share_tolerance.store(interval * early, Relaxed);
        bucket.share_interval.store(interval, Relaxed);
        bucket.burst.store(limit.burst.min(most), Relaxed);
        bucket.rate.store(limit.rate.min(MAXIMUM_RATE), Release);
    }

    /// Sets the limits of a host's interface on all queues.
    pub fn limit_kernel_frames(&self) {
        // Queues may be added later, too.
        for queue in 0..QUEUES as u32 {
            for (class, limit) in LIMITS {
                self.set_class(queue, class, limit);
            }
        }
    }

    /// Sets which frames the kernel can use although they are not for this host. Takes
    /// effect at once, also on adopted tables.
    pub fn set_kernel_uses(&self, uses: KernelUses) {
        let bit = |is_used, bit: u32| if is_used { bit as u8 } else { 0 };
        let bits = bit(uses.is_forwarding, USE_FORWARDING) | bit(uses.is_open, USE_NOT_FOR_HOST);
        self.map().control.kernel_uses.store(bits, Release);
    }

    pub(super) fn limit_resets(&self) {
        for queue in 0..QUEUES as u32 {
            self.set_class(queue, Class::NoConnection, RESETS);
        }
    }

    fn bucket(&self, queue: u32, class: Class) -> Option<&ClassBucket> {
        self.writable_queue(queue)?.classes.get(class as usize)
    }
}
