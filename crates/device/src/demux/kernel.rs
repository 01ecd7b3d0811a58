//! Frames that are the kernel's: their class, its token bucket, and the shares
//! of senders that find it empty.
//!
//! Change `bpf/kernel.h` with it: `tests/demux_agreement.rs` runs both.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::TrustedTables;
use super::drive::{Driver, Verdict, add_one};
use super::headers::{
    Datagram, HOP_BY_HOP, ICMP, ICMPV6, IGMP, NETWORK, Part, TCP, UDP, V6_HEADER, read, read_u8,
};
use super::layout::{Class, ClassBucket, Counter, KERNEL_SHARES, QUEUES};
use super::siphash::siphash;

/// Most frames a second that a class may be given: keeps the bucket's
/// arithmetic below 2^64.
const MAXIMUM_RATE: u64 = (1 << 30) - 1;
/// Billionths of a frame in a token; nanoseconds in a second.
const TOKEN: u64 = 1_000_000_000;
/// Bits of a time in ns that are below an epoch's number.
const EPOCH_SHIFT: u32 = 30;

/// How many frames of a class the kernel gets of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLimit {
    /// Frames a second of all senders together; 0 is no limit.
    pub rate: u64,
    /// Frames at once; 0 leaves the shares alone.
    pub burst: u64,
    /// Frames a second of one sender, and of one purpose, beyond `rate`; 0 is
    /// none.
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

    /// Beyond which each sender and each purpose has so much.
    pub const fn and_each(self, share: u64, share_burst: u64) -> Self {
        ClassLimit {
            share,
            share_burst,
            ..self
        }
    }
}

/// Segments of no connection that a queue lets through to the kernel's
/// listening socket: each costs the kernel a reset (RFC 9293 §3.5.2), which
/// nobody needs fast. What all had in common could be counted by one of them
/// (CVE-2016-5696), so each network has its own.
const RESETS: ClassLimit = ClassLimit::of(1, 0).and_each(50, 50);

/// What a queue lets through to the kernel, unless asked for otherwise. The
/// rates bound what the kernel may cost a receiver that has excess frames
/// dropped for the cost of the driver program; the shares are what one
/// conversation needs under attack.
const LIMITS: [(Class, ClassLimit); 9] = [
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
];
/// Frames a second of which the kernel takes many for little.
const FAST: u64 = 200_000;

/// What happened to kernel-bound frames of one class on one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Let through to the kernel.
    pub passed: u64,
    /// Dropped, for want of a token.
    pub dropped: u64,
}

impl TrustedTables {
    /// Bounds a class of kernel-bound frames on a queue. Rates are clamped to
    /// 2^30 - 1 a second, bursts to 2^32 - 1.
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

    /// Sets on all queues the limits of a host's interface. Where the host
    /// `forwards`, what comes to its own ports may be translated and go on, to a
    /// container: such frames get the rate of established connections.
    pub fn limit_kernel_frames(&self, forwards: bool) {
        // Queues may be added later, too.
        for queue in 0..QUEUES as u32 {
            for (class, mut limit) in LIMITS {
                if forwards && matches!(class, Class::Syn | Class::Udp) {
                    limit.rate = FAST;
                }
                self.set_class(queue, class, limit);
            }
        }
    }

    pub(super) fn limit_resets(&self) {
        for queue in 0..QUEUES as u32 {
            self.set_class(queue, Class::NoConnection, RESETS);
        }
    }

    fn bucket(&self, queue: u32, class: Class) -> Option<&ClassBucket> {
        self.queue(queue)?.classes.get(class as usize)
    }
}

/// A number of these bytes, the first the lowest.
fn gather(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Who sent a frame and what it is for, as the shares know them.
struct Parties {
    sender: u64,
    purpose: u64,
    /// The rest of the sender's address.
    host: u64,
}

impl Parties {
    fn of(class: Class, frame: &[u8], datagram: Option<&Datagram>) -> Option<Self> {
        let link: [u8; 12] = read(frame, 0)?;
        let Some(datagram) = datagram.filter(|_| class != Class::Neighbour) else {
            return Some(Parties {
                sender: gather(&link[6..]) << 1 | u64::from(link[0] & 1),
                purpose: gather(&link[..6]),
                host: 0,
            });
        };
        let (sender, host) = if datagram.version == 4 {
            let source: [u8; 4] = read(frame, NETWORK + 12)?;
            (gather(&source[..3]), u64::from(source[3]))
        } else {
            let source: [u8; 16] = read(frame, NETWORK + 8)?;
            let host = source.last_chunk().copied().map(u64::from_ne_bytes);
            (gather(&source[..6]), host?)
        };
        let header = read::<4>(frame, datagram.transport).filter(|_| class != Class::Other);
        let purpose = match (header, class) {
            (None, _) => datagram.protocol.into(),
            (Some([message, ..]), Class::Icmp) => message.into(),
            (Some(ports), Class::Established) => gather(&ports),
            (Some([_, _, port @ ..]), _) => gather(&port),
        };
        Some(Parties {
            sender,
            purpose,
            host,
        })
    }
}

impl Driver<'_> {
    /// Lets a kernel-bound frame pass if its class has a token, or it a share: no
    /// kernel is asked here for a socket ([`Class::Open`]).
    /// No `datagram` for a frame of which no more than the Ethernet header was
    /// checked.
    pub(super) fn to_kernel(
        &self,
        counter: Counter,
        class: Class,
        frame: &[u8],
        datagram: Option<&Datagram>,
    ) -> Verdict {
        let Some(bucket) = self.counts.classes.get(class as usize) else {
            return Verdict::Drop { counter };
        };
        if self.has_token(bucket, class) || self.has_share(bucket, class, frame, datagram) {
            add_one(&bucket.passed);
            Verdict::Kernel { class }
        } else {
            add_one(&bucket.dropped);
            Verdict::Drop { counter }
        }
    }

    fn hash(&self, words: [u64; 3]) -> u64 {
        siphash::<1, 3>(self.tables.trusted.hash_key(), words)
    }

    fn has_token(&self, bucket: &ClassBucket, class: Class) -> bool {
        let rate = bucket.rate.load(Acquire);
        if rate == 0 {
            return true;
        }
        let (now, updated) = (self.now_ns, bucket.updated.load(Relaxed));
        let mut drawn = bucket.drawn.load(Relaxed);
        // What one sender can count of a budget of unknown size says little of
        // what others had of it.
        if drawn == 0 || (now ^ updated) >> EPOCH_SHIFT != 0 {
            let epoch = now >> EPOCH_SHIFT << 8 | 0xff;
            drawn = 128 + (self.hash([epoch, class as u64, self.queue.into()]) & 0xff);
            bucket.drawn.store(drawn, Relaxed);
        }
        let drawn_of = |number: u64| (number.wrapping_mul(drawn).wrapping_add(255)) >> 8;
        // 4.29 s: keeps the product below 2^63 for any rate below 2^30.
        let elapsed = now.saturating_sub(updated).min(u32::MAX.into());
        let earned = elapsed.wrapping_mul(drawn_of(rate));
        let most = drawn_of(bucket.burst.load(Relaxed)).wrapping_mul(TOKEN);
        let tokens = bucket.tokens.load(Relaxed).wrapping_add(earned).min(most);
        bucket.updated.store(now, Relaxed);
        let left = tokens.checked_sub(TOKEN);
        bucket.tokens.store(left.unwrap_or(tokens), Relaxed);
        left.is_some()
    }

    /// True if the frame's sender, or what it is for, has a share left. A sender
    /// is known by its /24 or /48, which it cannot leave as it can an address, or
    /// by its link address where it is on this link; a purpose is a port, a type
    /// of message, a protocol, the flow of an established connection, or the link
    /// address that it was sent to, so that answers to ours do not share with
    /// what all get.
    fn has_share(
        &self,
        bucket: &ClassBucket,
        class: Class,
        frame: &[u8],
        datagram: Option<&Datagram>,
    ) -> bool {
        if bucket.share_interval.load(Relaxed) == 0 {
            return false;
        }
        let Some(parties) = Parties::of(class, frame, datagram) else {
            return false;
        };
        let Parties {
            sender,
            purpose,
            host,
        } = parties;
        let domain = self.now_ns >> EPOCH_SHIFT << 8 | class as u64;
        let by_sender = self.hash([domain, sender, 0]);
        if self.take_share(bucket, 0, by_sender) {
            return true;
        }
        let by_purpose = match class {
            // Resets are to nobody but the sender: a place that others share
            // would say what they were sent (CVE-2016-5696).
            Class::NoConnection => return false,
            Class::Established => self.hash([by_sender, host, purpose]),
            _ => self.hash([domain, purpose, 0]),
        };
        self.take_share(bucket, 1, by_purpose)
    }

    /// Takes the token of a place, if there is one: the generic cell rate
    /// algorithm (ITU-T I.371).
    fn take_share(&self, bucket: &ClassBucket, kind: usize, hash: u64) -> bool {
        let shares = self.tables.device().kernel_shares.get(self.queue as usize);
        let place = shares.and_then(|shares| shares.get(kind)?.get(hash as usize % KERNEL_SHARES));
        let take = |place: &AtomicU64| {
            let due = place.load(Relaxed).max(self.now_ns);
            let free = due - self.now_ns <= bucket.share_tolerance.load(Relaxed);
            if free {
                let interval = bucket.share_interval.load(Relaxed);
                place.store(due.wrapping_add(interval), Relaxed);
            }
            free
        };
        place.is_some_and(take)
    }
}

/// Router and neighbour solicitation and advertisement, redirect: from beyond
/// the link none has a hop limit of 255 (RFC 4861 §§6.1, 7.1, 8.1).
fn icmpv6_class(message: [u8; 2], hop_limit: u8) -> Class {
    match message {
        [133..=137, 0] if hop_limit == 255 => Class::Neighbour,
        _ => Class::Icmp,
    }
}

/// Class of a frame to a group, of which nothing was checked yet.
pub(super) fn group_class(frame: &[u8], ethertype: u16) -> Class {
    match ethertype {
        0x0806 => Class::Arp,
        0x0800 => match read_u8(frame, NETWORK + 9) {
            Some(ICMP | IGMP) => Class::Icmp,
            _ => Class::Multicast,
        },
        0x86dd => {
            let Some([next, hop_limit]) = read(frame, NETWORK + 6) else {
                return Class::Multicast;
            };
            match (next, read(frame, NETWORK + V6_HEADER)) {
                (ICMPV6, Some(message)) => icmpv6_class(message, hop_limit),
                (ICMPV6, None) => Class::Icmp,
                // MLD comes behind a router alert (RFC 3810 §5).
                (HOP_BY_HOP, Some([ICMPV6, _])) => Class::Icmp,
                _ => Class::Multicast,
            }
        }
        _ => Class::Forwarded,
    }
}

impl Datagram {
    /// Which bucket pays for it when it goes to the kernel.
    pub(super) fn class(&self, frame: &[u8]) -> Class {
        if self.part == Part::Later {
            return Class::Other;
        }
        let inside = |length: usize| self.transport + length <= self.end;
        match (self.protocol, self.version) {
            (UDP, _) => Class::Udp,
            (TCP, _) => match read_u8(frame, self.transport + 13).filter(|_| inside(14)) {
                // ACK or RST set (RFC 9293 §3.1).
                Some(flags) if flags & 0x14 != 0 => Class::Established,
                _ => Class::Syn,
            },
            (ICMP | IGMP, 4) => Class::Icmp,
            (ICMPV6, 6) => {
                let message = read(frame, self.transport).filter(|_| inside(2));
                let hop_limit = read_u8(frame, NETWORK + 7);
                message
                    .zip(hop_limit)
                    .map_or(Class::Icmp, |(message, hop_limit)| {
                        icmpv6_class(message, hop_limit)
                    })
            }
            _ => Class::Other,
        }
    }
}
