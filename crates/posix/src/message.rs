//! Control messages of `recvmsg(2)`, and the error queue in Linux's encoding.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall::tcp::Notification;
use tidewall_protocol::tcp::{TimestampEvent, TimestampKeys, Timestamping};

use crate::option::Stamps;

/// All flags of `SO_TIMESTAMPING` that Linux defines (6.18).
const TIMESTAMPING: u32 = (1 << 19) - 1;
/// `linux/errqueue.h`, where the libc crate lacks them.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
/// `linux/tcp.h`: the control message of `TCP_INQ` has the option's number.
pub const TCP_CM_INQ: i32 = 36;

/// The result of a receiving call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Number of bytes; 0 at the end of a stream. With MSG_TRUNC, the bytes of a stream
    /// are counted but not copied.
    pub bytes: usize,
    /// The sender of a datagram.
    pub from: Option<SocketAddr>,
    /// `msg_flags`.
    pub flags: i32,
    /// With `SO_TIMESTAMPING`: time since 1970 at which the data arrived, or at which the
    /// event in the error queue happened (`SCM_TIMESTAMPING`).
    pub arrived: Option<Duration>,
    /// With `TCP_INQ`: number of bytes left to read; one more than that after the end of
    /// the stream.
    pub left: Option<u32>,
    /// An entry of the error queue.
    pub error: Option<ExtendedError>,
    /// Control messages that a datagram socket's options request: IP_PKTINFO, IP_TTL,
    /// IP_TOS, and their IPv6 equivalents. For a stream: SO_TIMESTAMP or SO_TIMESTAMPNS.
    pub packet: Vec<ControlMessage>,
}

impl Received {
    /// Returns the control messages, in order.
    pub fn control(&self) -> Vec<ControlMessage> {
        let mut messages = Vec::new();
        messages.extend(self.arrived.map(ControlMessage::timestamping));
        messages.extend(self.left.map(|left| ControlMessage {
            level: libc::IPPROTO_TCP,
            kind: TCP_CM_INQ,
            data: left.to_ne_bytes().to_vec(),
        }));
        messages.extend(self.error.map(|error| error.control()));
        messages.extend(self.packet.iter().cloned());
        messages
    }
}

/// `struct cmsghdr` and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlMessage {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// `CMSG_DATA`.
    pub data: Vec<u8>,
}

impl ControlMessage {
    /// Builds `SCM_TIMESTAMP`, a `struct timeval`, or `SCM_TIMESTAMPNS`, a `struct
    /// timespec`.
    pub(crate) fn stamp(stamps: Stamps, since_epoch: Duration) -> Option<Self> {
        let (kind, part) = match stamps {
            Stamps::None => return None,
            Stamps::Micros => (libc::SO_TIMESTAMP, since_epoch.subsec_micros()),
            Stamps::Nanos => (libc::SO_TIMESTAMPNS, since_epoch.subsec_nanos()),
        };
        let seconds = since_epoch.as_secs() as i64;
        Some(Self {
            level: libc::SOL_SOCKET,
            kind,
            data: [seconds, part.into()].map(i64::to_ne_bytes).concat(),
        })
    }

    /// Builds `SCM_TIMESTAMPING`: the software timestamp, and two that only hardware
    /// provides.
    #[must_use]
    pub fn timestamping(since_epoch: Duration) -> Self {
        let mut data = (since_epoch.as_secs() as i64).to_ne_bytes().to_vec();
        data.extend(i64::from(since_epoch.subsec_nanos()).to_ne_bytes());
        data.resize(48, 0);
        Self {
            level: libc::SOL_SOCKET,
            kind: libc::SO_TIMESTAMPING,
            data,
        }
    }
}

/// `struct sock_extended_err` of `linux/errqueue.h`: the control message
/// `IP_RECVERR` or `IPV6_RECVERR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedError {
    /// `ee_errno`.
    pub errno: u32,
    /// `ee_origin`.
    pub origin: u8,
    /// `ee_code`.
    pub code: u8,
    /// `ee_info`.
    pub info: u32,
    /// `ee_data`.
    pub data: u32,
    /// The socket is IPv6, whether its addresses are mapped or not: `IPV6_RECVERR`.
    pub v6: bool,
}

impl ExtendedError {
    /// Builds the control message. The offender has no family, since no host sent the
    /// error.
    pub fn control(&self) -> ControlMessage {
        let (level, kind, offender) = if self.v6 {
            let offender = size_of::<libc::sockaddr_in6>();
            (libc::SOL_IPV6, libc::IPV6_RECVERR, offender)
        } else {
            let offender = size_of::<libc::sockaddr_in>();
            (libc::SOL_IP, libc::IP_RECVERR, offender)
        };
        let mut data = self.errno.to_ne_bytes().to_vec();
        // Type and padding are zero.
        data.extend([self.origin, 0, self.code, 0]);
        data.extend(self.info.to_ne_bytes());
        data.extend(self.data.to_ne_bytes());
        data.resize(data.len() + offender, 0);
        ControlMessage { level, kind, data }
    }

    /// Encodes a notification as Linux does; `None` for a kind that has no encoding.
    pub(crate) fn of(notification: &Notification, v6: bool) -> Option<Self> {
        let (errno, origin, code, info, data) = match *notification {
            Notification::Time { event, key, .. } => {
                let info = match event {
                    TimestampEvent::Sent => 0,
                    TimestampEvent::Scheduled => 1,
                    TimestampEvent::Acknowledged => 2,
                };
                let errno = libc::ENOMSG as u32;
                (errno, libc::SO_EE_ORIGIN_TIMESTAMPING, 0, info, key)
            }
            Notification::Free {
                first,
                last,
                copied,
            } => {
                let code = if copied {
                    SO_EE_CODE_ZEROCOPY_COPIED
                } else {
                    0
                };
                (0, SO_EE_ORIGIN_ZEROCOPY, code, first, last)
            }
            _ => return None,
        };
        Some(Self {
            errno,
            origin,
            code,
            info,
            data,
            v6,
        })
    }
}

/// Converts flags of `SO_TIMESTAMPING` for the stream. `None` for those that Linux
/// refuses: an unknown flag, and `OPT_ID` without a connection, whose bytes it numbers.
/// `None` also for `OPT_STATS` and `BIND_PHC`, which streams here do not support.
pub(crate) fn timestamping(flags: u32, connected: bool) -> Option<Timestamping> {
    let has = |which| flags & which != 0;
    let id = has(libc::SOF_TIMESTAMPING_OPT_ID);
    let numbered = has(libc::SOF_TIMESTAMPING_OPT_ID_TCP);
    let refused = flags & !TIMESTAMPING != 0
        || has(libc::SOF_TIMESTAMPING_OPT_STATS | libc::SOF_TIMESTAMPING_BIND_PHC)
        || numbered && !id
        || id && !connected;
    (!refused).then_some(Timestamping {
        scheduled: has(libc::SOF_TIMESTAMPING_TX_SCHED),
        sent: has(libc::SOF_TIMESTAMPING_TX_SOFTWARE),
        acknowledged: has(libc::SOF_TIMESTAMPING_TX_ACK),
        received: has(libc::SOF_TIMESTAMPING_RX_SOFTWARE),
        keys: match (id, numbered) {
            (false, _) => TimestampKeys::None,
            (true, false) => TimestampKeys::FromUnacknowledged,
            (true, true) => TimestampKeys::FromWritten,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_control_message_is_the_first_of_three() {
        let control = ControlMessage::timestamping(Duration::new(3, 5));
        assert_eq!((control.level, control.kind), (1, 37));
        assert_eq!(control.data.len(), 48);
        assert_eq!(control.data.get(..8), Some(&3i64.to_ne_bytes()[..]));
        assert_eq!(control.data.get(8..16), Some(&5i64.to_ne_bytes()[..]));
    }

    #[test]
    fn flags_are_refused_as_linux_does() {
        let id = libc::SOF_TIMESTAMPING_OPT_ID;
        assert!(timestamping(id, false).is_none());
        assert!(timestamping(libc::SOF_TIMESTAMPING_OPT_ID_TCP, true).is_none());
        assert!(timestamping(1 << 19, true).is_none());
        assert!(timestamping(libc::SOF_TIMESTAMPING_OPT_STATS, true).is_none());
        let found = timestamping(id | libc::SOF_TIMESTAMPING_OPT_ID_TCP, true);
        assert_eq!(found.map(|it| it.keys), Some(TimestampKeys::FromWritten));
    }
}
