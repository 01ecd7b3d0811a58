//! How values are written and read.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use crate::tcp::{Errno, Time};

/// Writes a value and returns it, or returns the value that was written.
pub(in crate::tcp) trait Codec {
    fn word(&mut self, value: u64, bytes: usize) -> u64;
    fn data(&mut self, pieces: [&[u8]; 2]) -> Vec<u8>;
    fn now(&self) -> Time;
    fn damaged(&mut self);
    /// Whether the values read so far are invalid.
    fn is_damaged(&self) -> bool;

    fn u8(&mut self, value: u8) -> u8 {
        self.word(value.into(), 1) as u8
    }
    fn u16(&mut self, value: u16) -> u16 {
        self.word(value.into(), 2) as u16
    }
    fn u32(&mut self, value: u32) -> u32 {
        self.word(value.into(), 4) as u32
    }
    fn u64(&mut self, value: u64) -> u64 {
        self.word(value, 8)
    }
    fn flag(&mut self, value: bool) -> bool {
        self.word(value.into(), 1) != 0
    }
    fn length(&mut self, value: Duration) -> Duration {
        let microseconds = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.u64(microseconds))
    }
    /// A moment, relative to the current time.
    fn time(&mut self, value: Time) -> Time {
        let now = self.now();
        let past = self.length(now.saturating_sub(value));
        let future = self.length(value.saturating_sub(now));
        now.saturating_sub(past).saturating_add(future)
    }
    fn maybe<T: Copy>(
        &mut self,
        value: Option<T>,
        none: T,
        each: impl FnOnce(&mut Self, T) -> T,
    ) -> Option<T>
    where
        Self: Sized,
    {
        let some = self.flag(value.is_some());
        let value = each(self, value.unwrap_or(none));
        some.then_some(value)
    }
    fn errno(&mut self, value: Option<Errno>) -> Option<Errno>
    where
        Self: Sized,
    {
        let number = self.maybe(value.map(|errno| errno.0 as u32), 0, Self::u32);
        number.map(|number| Errno((number as i32).clamp(1, Errno::LAST)))
    }
    fn address(&mut self, value: SocketAddr) -> SocketAddr {
        let v4 = self.flag(value.is_ipv4());
        let (high, low) = match value.ip() {
            IpAddr::V4(ip) => (0, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ((ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        let (high, low) = (self.u64(high), self.u64(low));
        let ip = if v4 {
            IpAddr::V4((low as u32).into())
        } else {
            IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into())
        };
        SocketAddr::new(ip, self.u16(value.port()))
    }
}

pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    pub(super) now: Time,
}

impl Codec for Writer {
    fn word(&mut self, value: u64, bytes: usize) -> u64 {
        self.bytes.extend(value.to_le_bytes().iter().take(bytes));
        value
    }
    fn data(&mut self, pieces: [&[u8]; 2]) -> Vec<u8> {
        let [first, second] = pieces;
        self.u64((first.len() + second.len()) as u64);
        self.bytes.extend_from_slice(first);
        self.bytes.extend_from_slice(second);
        Vec::new()
    }
    fn now(&self) -> Time {
        self.now
    }
    fn damaged(&mut self) {}
    fn is_damaged(&self) -> bool {
        false
    }
}

pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) now: Time,
    pub(super) damaged: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> &'a [u8] {
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.bytes.split_at_checked(length));
        match split {
            Some((taken, rest)) => {
                self.bytes = rest;
                taken
            }
            None => {
                self.damaged = true;
                &[]
            }
        }
    }
}

impl Codec for Reader<'_> {
    fn word(&mut self, _: u64, bytes: usize) -> u64 {
        let taken = self.take(bytes as u64);
        taken
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
    fn data(&mut self, _: [&[u8]; 2]) -> Vec<u8> {
        let length = self.u64(0);
        self.take(length).to_vec()
    }
    fn now(&self) -> Time {
        self.now
    }
    fn damaged(&mut self) {
        self.damaged = true;
    }
    fn is_damaged(&self) -> bool {
        self.damaged
    }
}

/// FNV-1a, to detect accidents; an attacker cannot reach the bytes.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// One value of an enumerated type, by its number.
pub(super) fn one_of<T: Copy + Default>(all: &[T], number: u8, codec: &mut impl Codec) -> T {
    let number = codec.u8(number);
    all.get(usize::from(number)).copied().unwrap_or_else(|| {
        codec.damaged();
        T::default()
    })
}
