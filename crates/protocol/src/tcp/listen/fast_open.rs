//! How Fast Open answers a SYN (RFC 7413 §4.2.2), and how many connections it may open.

use core::time::Duration;

use super::Listener;
use crate::tcp::fast_open::{Cookie, FastOpenAnswer, FastOpenServer};
use crate::tcp::{FastOpen, Segment, Time};

/// How long a connection that was opened by a SYN and closed by an RST occupies its slot
/// (as Linux).
const RESET_PENALTY: Duration = Duration::from_secs(60);

/// Decision of Fast Open about a SYN.
pub(super) enum Verdict {
    /// No Fast Open.
    Ordinary,
    /// The SYN-ACK carries a cookie.
    Give(FastOpen),
    /// The SYN opens the connection.
    Open(FastOpenAnswer),
}

impl Listener {
    /// Decides about a SYN (RFC 7413 §4.2.2).
    pub(super) fn fast_open(&mut self, syn: &Segment<'_>, now: Time) -> Verdict {
        let option = syn.header.options.fast_open();
        let Some(server) = self
            .fast_open
            .as_ref()
            .filter(|_| !self.config.framing.is_acp())
        else {
            return Verdict::Ordinary;
        };
        if option.is_none() && syn.payload.is_empty() {
            return Verdict::Ordinary;
        }
        if self.opening >= server.queue {
            // The earliest expired slot is freed.
            if self.reset_until.front().is_none_or(|&until| now < until) {
                return Verdict::Ordinary;
            }
            self.reset_until.pop_front();
            self.opening -= 1;
        }
        let keys = &server.keys;
        let given = |option: &FastOpen| keys.cookie(&syn.flow, option.is_experimental());
        if server.without_cookie {
            return Verdict::Open(FastOpenAnswer::default());
        }
        let Some(option) = &option else {
            return Verdict::Ordinary;
        };
        let verdict = if option.is_request() {
            Cookie::Wrong
        } else {
            keys.check(&syn.flow, option)
        };
        match verdict {
            Cookie::Right => Verdict::Open(FastOpenAnswer::default()),
            Cookie::Aging => Verdict::Open(FastOpenAnswer {
                cookie: given(option),
            }),
            Cookie::Wrong => given(option).map_or(Verdict::Ordinary, Verdict::Give),
        }
    }

    /// Accepts data in SYNs from now on, or stops doing so (`TCP_FASTOPEN`).
    pub fn set_fast_open(&mut self, server: Option<FastOpenServer>) {
        self.fast_open = server;
    }

    /// Reports that a connection with
    /// [`Handshake::fast_open`](crate::tcp::Handshake::fast_open) is no longer [fast
    /// opening](crate::tcp::Connection::is_fast_opening), which frees its slot. The slot
    /// of a connection that was `reset` is freed after a minute. Otherwise a flood of
    /// SYNs with stolen cookies would cost the attacker nothing (RFC 7413 §5.1).
    pub fn fast_open_done(&mut self, reset: bool, now: Time) {
        if reset {
            self.reset_until.push_back(now + RESET_PENALTY);
        } else {
            self.opening = self.opening.saturating_sub(1);
        }
    }
}
