//! `SO_TIMESTAMPING`, `SO_ZEROCOPY` and the error queue (`MSG_ERRQUEUE`), in
//! Linux's encoding: what the engine tells, field by field.

use core::time::Duration;

use tidewall_protocol::tcp::{
    Connection, Notification, TimestampEvent, TimestampKeys, Timestamping,
};

use super::socket::Kind;
use super::{Failure, Fd, Host, Received, Result};

/// All flags that Linux knows (6.18).
const FLAGS: u32 = (1 << 19) - 1;

/// `linux/errqueue.h`, where the libc crate lacks them.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

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
    /// It is a socket of IPv6, mapped addresses or not: `IPV6_RECVERR`.
    pub v6: bool,
}

impl ExtendedError {
    /// Level, type and data of the control message: with an offender of no family,
    /// for nobody is to blame.
    #[must_use]
    pub fn control(&self) -> (i32, i32, Vec<u8>) {
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
        (level, kind, data)
    }
}

/// Level, type and data of the control message `SCM_TIMESTAMPING`: the software's
/// time, and two that only hardware has.
#[must_use]
pub fn time_control(since_epoch: Duration) -> (i32, i32, Vec<u8>) {
    let mut data = (since_epoch.as_secs() as i64).to_ne_bytes().to_vec();
    data.extend(i64::from(since_epoch.subsec_nanos()).to_ne_bytes());
    data.resize(48, 0);
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, data)
}

/// What the engine is told of flags.
pub(super) fn timestamping(flags: u32) -> Timestamping {
    let has = |which| flags & which != 0;
    Timestamping {
        scheduled: has(libc::SOF_TIMESTAMPING_TX_SCHED),
        sent: has(libc::SOF_TIMESTAMPING_TX_SOFTWARE),
        acknowledged: has(libc::SOF_TIMESTAMPING_TX_ACK),
        received: has(libc::SOF_TIMESTAMPING_RX_SOFTWARE),
        keys: match (
            has(libc::SOF_TIMESTAMPING_OPT_ID),
            has(libc::SOF_TIMESTAMPING_OPT_ID_TCP),
        ) {
            (false, _) => TimestampKeys::None,
            (true, false) => TimestampKeys::FromUnacknowledged,
            (true, true) => TimestampKeys::FromWritten,
        },
    }
}

/// When what was read has come, for who wants to know.
pub(super) fn arrived(connection: &Connection, flags: u32) -> Option<Duration> {
    connection
        .read_timestamp()
        .filter(|_| flags & libc::SOF_TIMESTAMPING_SOFTWARE != 0)
}

impl Host {
    /// Whether a socket may be given flags.
    ///
    /// # Errors
    /// EINVAL for an unknown flag; for `OPT_ID` without a connection, whose bytes
    /// are numbered; for `OPT_STATS` and `BIND_PHC`, which no Tidewall socket has.
    pub(super) fn check_timestamping(&self, fd: Fd, flags: u32) -> Result<()> {
        let id = flags & libc::SOF_TIMESTAMPING_OPT_ID != 0;
        let connected = matches!(self.get(fd)?.kind, Kind::Stream(_));
        let refused = flags & !FLAGS != 0
            || flags & (libc::SOF_TIMESTAMPING_OPT_STATS | libc::SOF_TIMESTAMPING_BIND_PHC) != 0
            || flags & libc::SOF_TIMESTAMPING_OPT_ID_TCP != 0 && !id
            || id && !connected;
        if refused {
            return Err(Failure::Errno(libc::EINVAL));
        }
        Ok(())
    }

    /// `recvmsg(2)` with MSG_ERRQUEUE: never waits, and gives no data. A packet is
    /// never looped back; without `OPT_TSONLY`, which says that none is wanted,
    /// MSG_TRUNC tells that all of it was cut off.
    ///
    /// # Errors
    /// EAGAIN when there is nothing.
    pub(super) fn receive_error(&mut self, fd: Fd) -> Result<Received> {
        let empty = Failure::Errno(libc::EAGAIN);
        let id = self.stream(fd)?.ok_or(empty)?;
        let socket = self.get(fd)?;
        let (flags, v6) = (socket.options.timestamping, socket.domain == libc::AF_INET6);
        let entry = self.connections.get_mut(&id).ok_or(empty)?;
        let told = entry.connection.take_notification().ok_or(empty)?;
        let mut received = Received {
            flags: libc::MSG_ERRQUEUE,
            ..Received::default()
        };
        let (errno, origin, code, info, data) = match told {
            Notification::Time { event, key, at } => {
                if flags & libc::SOF_TIMESTAMPING_OPT_TSONLY == 0 {
                    received.flags |= libc::MSG_TRUNC;
                }
                received.arrived = (flags & libc::SOF_TIMESTAMPING_SOFTWARE != 0).then_some(at);
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
            // Another kind of notification has no encoding here.
            _ => return Err(empty),
        };
        received.error = Some(ExtendedError {
            errno,
            origin,
            code,
            info,
            data,
            v6,
        });
        Ok(received)
    }
}
