//! Fast Open (RFC 7413): data in the SYN, for peers that present a cookie.
//!
//! The owner keeps what a client knows of a server ([`FastOpenPeer`]): connections share
//! nothing here. A server's cookies ([`FastOpenKeys`]) are Linux's, so machines with the
//! same key accept each other's.

use core::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use tidewall_wire::tcp::FastOpen;

use super::FourTuple;

mod opening;

pub(super) use opening::FastOpenState;

/// A client's knowledge of a server. Its owner keeps it by server address from one
/// connection to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenPeer {
    /// The cookie that the server gave, in the form of the option that carried it.
    pub cookie: Option<FastOpen>,
    /// The server's maximum segment size, which bounds data in a SYN.
    pub mss: Option<u16>,
    /// Which form of request the server answered.
    pub form: FastOpenForm,
    /// How often in a row a SYN with data seems to have been lost for that reason.
    pub losses: u8,
}

/// The form of the option that a cookie is requested in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum FastOpenForm {
    /// The standard one (kind 34).
    #[default]
    Standard,
    /// The standard form brought no cookie: the experimental form is next (kind 254).
    Experimental,
    /// Neither did: back to the standard form.
    Neither,
}

impl FastOpenPeer {
    /// Records what a connection to this server has found out.
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

    /// The option of the next SYN: the cookie, or a request for one.
    fn option(&self) -> FastOpen {
        let experimental = self.form == FastOpenForm::Experimental;
        self.cookie
            .unwrap_or(FastOpen::REQUEST.with_experimental(experimental))
    }
}

/// The outcome of a client's connection with regard to its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenOutcome {
    /// The cookie from the SYN-ACK.
    pub cookie: Option<FastOpen>,
    /// The server's maximum segment size.
    pub mss: u16,
    /// The SYN was retransmitted, and its answer did not know the first: either the SYN
    /// with data or its answer was lost.
    pub syn_lost: bool,
    /// The form of the option to use from now on.
    pub form: FastOpenForm,
}

/// Why data was not accepted with the SYN (`tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum FastOpenFailure {
    /// It was accepted, or there was none.
    #[default]
    None = 0,
    /// There was no cookie to send it with.
    CookieUnavailable = 1,
    /// The SYN-ACK acknowledged only the SYN.
    DataNotAcknowledged = 2,
    /// The SYN-ACK acknowledged only the SYN, and the SYN was retransmitted.
    SynRetransmitted = 3,
}

/// How to answer a SYN whose data was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenAnswer {
    /// A new cookie for a client whose cookie will soon be invalid.
    pub cookie: Option<FastOpen>,
}

/// The keys of a server's cookies (`tcp_fastopen_key`, `TCP_FASTOPEN_KEY`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// The key of cookies that are issued.
    pub primary: [u8; 16],
    /// The key of older cookies that are still accepted.
    pub backup: Option<[u8; 16]>,
}

impl core::fmt::Debug for FastOpenKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FastOpenKeys(..)")
    }
}

/// How a server rates a client's cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cookie {
    Wrong,
    Right,
    /// Valid by the backup key.
    Aging,
}

impl FastOpenKeys {
    /// A client's cookie, in the form that the client uses.
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

/// SipHash-2-4 of the client's and the server's address, as Linux.
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

/// A listener's Fast Open settings (`TCP_FASTOPEN`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenServer {
    /// Limit of connections that a SYN with data has opened and whose handshake is not
    /// complete, accepted ones included. Beyond it, SYNs are answered as if there were no
    /// Fast Open.
    pub queue: u32,
    /// The keys of its cookies.
    pub keys: FastOpenKeys,
    /// Accept data without a cookie, too: for a network that keeps strangers out
    /// (`tcp_fastopen` with 0x200).
    pub without_cookie: bool,
}
