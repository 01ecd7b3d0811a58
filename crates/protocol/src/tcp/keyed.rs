//! Hashes of flows under a secret key (SipHash, Aumasson & Bernstein, 2012).

use core::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use siphasher::sip::{SipHasher13, SipHasher24};

use super::FourTuple;

/// SipHash-2-4 of a flow and optionally one more word. `cookie_hash` of `bpf/cookie.h` is
/// the same function; words have native byte order wherever they have it there.
pub(super) fn hash(key: &[u8; 16], flow: &FourTuple, word: Option<u64>) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    let mut absorb = |word: u64| hasher.write(&word.to_le_bytes());
    match (flow.local.ip(), flow.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let [local, remote] = [local, remote].map(|end| u32::from_ne_bytes(end.octets()));
            absorb(u64::from(local) << 32 | u64::from(remote));
        }
        (local, remote) => {
            for end in [local, remote] {
                let octets = match end {
                    IpAddr::V4(end) => end.to_ipv6_mapped().octets(),
                    IpAddr::V6(end) => end.octets(),
                };
                for half in octets.as_chunks::<8>().0 {
                    absorb(u64::from_ne_bytes(*half));
                }
            }
        }
    }
    let [local, remote] = [flow.local, flow.remote].map(|end| u64::from(end.port().to_be()));
    absorb(local << 32 | remote << 16 | 6);
    if let Some(word) = word {
        absorb(word);
    }
    hasher.finish()
}

/// Creates hashers for a `HashMap` whose keys strangers choose.
#[derive(Clone, Debug)]
pub struct Keyed(pub [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}
