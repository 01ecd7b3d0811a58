//! Explicit congestion notification (RFC 3168 §6.1): which segments are marked, what is
//! echoed, and what an echo does.
//!
//! New data is ECT(0); retransmissions, acknowledgments and probes are not (RFC 3168
//! §6.1.4 to §6.1.6). If the RFC leaves a choice, this follows Linux's classic mode.

use super::connection::{Connection, Pending};
use super::{Config, Ecn, Segment};
use tidewall_wire::tcp::Flags;

/// The two bits of the traffic class or type of service (RFC 3168 §5).
const FIELD: u8 = 3;
/// ECN-capable transport, the codepoint that senders use.
pub(super) const ECT_0: u8 = 2;
const EXPERIENCED: u8 = 3;

/// Number of undelayed acknowledgments when the sender's window may be small.
const QUICK: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EcnState {
    pub(super) flags: u8,
    /// Segments covered by acknowledgments with ECE (`tcpi_delivered_ce`).
    pub(super) delivered: u32,
}

impl EcnState {
    /// Both ends have agreed on it.
    const AGREED: u8 = 1;
    /// A mark is echoed until the sender reports that it has reduced its window.
    const ECHO: u8 = 2;
    /// The next new data reports that the window was reduced.
    const REDUCED: u8 = 4;
    /// Data with an ECN codepoint has come (`TCPI_OPT_ECN_SEEN`).
    const SEEN: u8 = 8;
    pub(super) const ALL: u8 = 15;

    /// Whether both ends have agreed on it.
    #[inline]
    pub(super) fn is_agreed(self) -> bool {
        self.flags & Self::AGREED != 0
    }

    pub(super) fn agree(&mut self, agreed: bool) {
        self.flags = if agreed { Self::AGREED } else { 0 };
    }

    /// Whether data with an ECN codepoint has come.
    pub(super) fn has_seen(self) -> bool {
        self.flags & Self::SEEN != 0
    }

    /// The flags of a segment that is not a SYN.
    #[inline]
    pub(super) fn echo(self, flags: Flags) -> Flags {
        // Without a branch: every segment passes through here.
        Flags(flags.0 | ((self.flags & Self::ECHO) * (Flags::ECE.0 / Self::ECHO)))
    }

    /// Whether the next new data must report that the window was reduced. One segment
    /// reports it, so that segment leaves alone.
    #[inline]
    pub(super) fn owes_cwr(self) -> bool {
        self.flags & Self::REDUCED != 0
    }

    pub(super) fn cwr_sent(&mut self) {
        self.flags &= !Self::REDUCED;
    }

    /// Records that the congestion window was reduced, for whatever reason.
    pub(super) fn reduced(&mut self) {
        if self.is_agreed() {
            self.flags |= Self::REDUCED;
        }
    }
}

/// Whether a SYN asks for ECN and we accept. A SYN with an ECN codepoint was mangled,
/// since the RFC forbids it (§6.1.1). A path that sets the bits itself must not be
/// trusted with them (as Linux).
pub(super) fn accepts(config: &Config, syn: &Segment<'_>) -> bool {
    config.ecn != Ecn::Off
        && syn.header.flags.contains(Flags::ECE | Flags::CWR)
        && syn.traffic_class & FIELD == 0
}

impl Connection {
    /// The flags of our SYN besides SYN. An unanswered SYN may have been dropped for
    /// them, so the next one omits them (RFC 3168 §6.1.1.1).
    pub(super) fn ecn_request(&self) -> Flags {
        if self.config.ecn == Ecn::Active && self.send.retries == 0 {
            Flags::ECE | Flags::CWR
        } else {
            Flags::NONE
        }
    }

    /// Processes the peer's SYN that crossed ours, or its SYN-ACK (`acknowledges`). A
    /// peer that reflects both flags does not know ECN (RFC 3168 §6.1.1).
    pub(super) fn ecn_answer(&mut self, flags: Flags, acknowledges: bool) {
        let echo = flags.contains(Flags::ECE);
        let both = echo && flags.contains(Flags::CWR);
        self.ecn.agree(if acknowledges {
            self.config.ecn == Ecn::Active && echo && !both
        } else {
            both && self.ecn_request() != Flags::NONE
        });
    }

    /// Processes the codepoint of data that is not a mere copy (RFC 3168 §6.1.3).
    #[inline(never)]
    pub(super) fn receive_codepoint(&mut self, traffic_class: u8) {
        match traffic_class & FIELD {
            0 => {
                // Probably a retransmission: the sender waits for it.
                if self.ecn.has_seen() {
                    self.enter_quickack(QUICK);
                }
                return;
            }
            EXPERIENCED if self.ecn.flags & EcnState::ECHO == 0 => {
                // The sender's window may be too small to wait for more.
                self.enter_quickack(QUICK);
                self.ecn.flags |= EcnState::ECHO;
            }
            _ => {}
        }
        self.ecn.flags |= EcnState::SEEN;
    }

    /// Processes ECE and CWR of a segment that acknowledges. `first` was the first byte
    /// in flight before it; `plain` marks a segment without payload. Recovery has already
    /// applied ECE to the window (`enter_cwr`).
    #[cold]
    pub(super) fn receive_echo(&mut self, flags: Flags, first: u32, plain: bool) {
        if flags.contains(Flags::ECE) && first != self.send.nxt {
            let mss = u32::from(self.send.mss);
            let bytes = self.send.una.wrapping_sub(first);
            self.ecn.delivered = self.ecn.delivered.wrapping_add(bytes.div_ceil(mss));
        }
        if flags.contains(Flags::CWR) {
            // On any segment, though the RFC sends it on new data only: some senders put
            // it on acknowledgments.
            self.ecn.flags &= !EcnState::ECHO;
            if !plain {
                self.pending.add(Pending::ACKNOWLEDGE);
            }
        }
    }
}
