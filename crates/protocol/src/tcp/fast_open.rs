//! Fast Open (RFC 7413): data in the SYN, for peers that show a cookie.
//!
//! What a client knows of a server ([`FastOpenPeer`]) is its owner's to keep:
//! nothing here is shared between connections. A server's cookies
//! ([`FastOpenKeys`]) are Linux's, so that machines with the same key take each
//! other's.

use core::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use tidewall_wire::tcp::FastOpen;

use super::FourTuple;

mod opening;

pub(super) use opening::FastOpenState;

/// What a client knows of a server, to be kept by address of the server from
/// one connection to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenPeer {
    /// The cookie that it has given, in the form of the option that it was in.
    pub cookie: Option<FastOpen>,
    /// Its maximum segment size, which data in a SYN are bounded by.
    pub mss: Option<u16>,
    /// How requests for a cookie were answered.
    pub form: FastOpenForm,
    /// Times in a row that a SYN with data seems to have been lost for that.
    pub losses: u8,
}

/// The form of the option that a cookie is requested in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum FastOpenForm {
    /// The standard one (kind 34).
    #[default]
    Standard,
    /// The standard one brought no cookie: the experimental one next (kind 254).
    Experimental,
    /// Neither did: the standard one again.
    Neither,
}

impl FastOpenPeer {
    /// Takes what a connection to this server has found out.
    pub fn learn(&mut self, outcome: &FastOpenOutcome) {
        self.mss = Some(outcome.mss);
        match outcome.cookie {
            Some(cookie) => self.cookie = Some(cookie),
            None if self.cookie.is_none() && outcome.form > self.form => self.form = outcome.form,
            None => {}
        }
        self.losses = if outcome.syn_lost {
            self.losses.saturating_add(1)
        } else {
            0
        };
    }

    /// What a SYN is to say: the cookie, or a request for one.
    fn option(&self) -> FastOpen {
        let experimental = self.form == FastOpenForm::Experimental;
        self.cookie
            .unwrap_or(FastOpen::REQUEST.with_experimental(experimental))
    }
}

/// What a client's connection has found out of its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenOutcome {
    /// The cookie that the SYN-ACK has brought.
    pub cookie: Option<FastOpen>,
    /// The server's maximum segment size.
    pub mss: u16,
    /// The SYN had to be retransmitted, and its answer knew nothing of the first:
    /// either the SYN with data was lost or its answer was.
    pub syn_lost: bool,
    /// What is to be known of the form of the option.
    pub form: FastOpenForm,
}

/// Why data was not taken with the SYN (`tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// It was, or there was none to be taken.
    #[default]
    None = 0,
    /// There was no cookie to send it with.
    CookieUnavailable = 1,
    /// The SYN-ACK has acknowledged the SYN alone.
    DataNotAcknowledged = 2,
    /// So it has, and the SYN had to be retransmitted.
    SynRetransmitted = 3,
}

/// How a SYN that was taken with its data is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenAnswer {
    /// A cookie for the client, whose own will not be good for long.
    pub cookie: Option<FastOpen>,
}

/// The keys of a server's cookies (`tcp_fastopen_key`, `TCP_FASTOPEN_KEY`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Of the cookies that are given.
    pub primary: [u8; 16],
    /// Of cookies that are still taken.
    pub backup: Option<[u8; 16]>,
}

impl core::fmt::Debug for FastOpenKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FastOpenKeys(..)")
    }
}

/// What a server makes of a client's cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cookie {
    Wrong,
    Right,
    /// By the backup key.
    Aging,
}

impl FastOpenKeys {
    /// The cookie of a client, in the form that it speaks.
    pub fn cookie(&self, flow: &FourTuple, experimental: bool) -> Option<FastOpen> {
        let cookie = FastOpen::cookie_of(&hash(&self.primary, flow))?;
        Some(cookie.with_experimental(experimental))
    }

    pub(super) fn check(&self, flow: &FourTuple, cookie: &FastOpen) -> Cookie {
        let made_by = |key: &[u8; 16]| hash(key, flow)[..] == *cookie.cookie();
        if made_by(&self.primary) {
            Cookie::Right
        } else if self.backup.as_ref().is_some_and(made_by) {
            Cookie::Aging
        } else {
            Cookie::Wrong
        }
    }
}

/// SipHash-2-4 of the client's address and the server's, as Linux.
fn hash(key: &[u8; 16], flow: &FourTuple) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(key);
    for end in [flow.remote.ip(), flow.local.ip()] {
        match end {
            IpAddr::V4(end) => hasher.write(&end.octets()),
            IpAddr::V6(end) => hasher.write(&end.octets()),
        }
    }
    hasher.finish().to_le_bytes()
}

/// A listener's share of Fast Open (`TCP_FASTOPEN`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenServer {
    /// Connections at most that have begun by a SYN with data and whose handshake
    /// is not complete, accepted ones included: beyond, SYNs are answered as if
    /// there were no Fast Open.
    pub queue: u32,
    /// Of its cookies.
    pub keys: FastOpenKeys,
    /// Data is taken without a cookie, too: where the network keeps strangers out
    /// (`tcp_fastopen` with 0x200).
    pub without_cookie: bool,
}
