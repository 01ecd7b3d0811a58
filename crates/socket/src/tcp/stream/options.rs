//! Options of a stream, and queries.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;

use tidewall_protocol::tcp::{Congestion, Connection, Keepalive, StreamOptions};

use super::{Inner, NO_LINGER, TcpStream};
use crate::tcp::connection::{State, error};
use crate::tcp::kernel_stream::{self, KernelStream, TCP_NOTSENT_LOWAT};

impl TcpStream {
    /// Makes reading and writing return EAGAIN when they would block.
    ///
    /// # Errors
    /// The kernel's errors, for a kernel connection.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        self.kernels()
            .map_or(Ok(()), |kernel| kernel.stream.set_nonblocking(nonblocking))
    }

    /// Reports whether reading and writing return EAGAIN when they would block.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Bounds how long reading waits (SO_RCVTIMEO).
    ///
    /// # Errors
    /// EINVAL for a zero duration.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(timeout)?;
        self.kernels()
            .map_or(Ok(()), |kernel| kernel.stream.set_read_timeout(timeout))
    }

    /// Bounds how long writing waits (SO_SNDTIMEO).
    ///
    /// # Errors
    /// EINVAL for a zero duration.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(timeout)?;
        self.kernels()
            .map_or(Ok(()), |kernel| kernel.stream.set_write_timeout(timeout))
    }

    /// Returns the bound on reading, if any.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.read_timeout.get())
    }

    /// Returns the bound on writing, if any.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.write_timeout.get())
    }

    /// Sends small segments at once (TCP_NODELAY).
    ///
    /// # Errors
    /// The kernel's errors, for a kernel connection.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_nodelay(on),
            |kernel| kernel.stream.set_nodelay(on),
        )
    }

    /// Reports whether small segments are sent at once.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        self.ask(|own| own.nodelay(), |kernel| kernel.stream.nodelay())
    }

    /// Sends full segments only, until it is cleared (TCP_CORK).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_cork(&self, on: bool) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_cork(on),
            |kernel| kernel.set(libc::IPPROTO_TCP, libc::TCP_CORK, on.into()),
        )
    }

    /// Accepts more data only while fewer bytes than this wait unsent (TCP_NOTSENT_LOWAT;
    /// at least 1; `None` means no limit). Waiting data does not become stale, and the
    /// application keeps the choice of what is next. A write is accepted up to the mark
    /// in whole bursts. The stream is writable again when less than half of the mark waits,
    /// as on Linux.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_not_sent_low_water(&self, bytes: Option<u32>) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_not_sent_low_water(bytes),
            |kernel| {
                let value = bytes.unwrap_or(u32::MAX).max(1);
                kernel.set(libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, value.cast_signed())
            },
        )
    }

    /// See [`TcpStream::set_not_sent_low_water`].
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn not_sent_low_water(&self) -> io::Result<Option<u32>> {
        self.ask(
            |own| own.not_sent_low_water(),
            |kernel| {
                let value = kernel.get(libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT)?;
                // Zero selects the kernel parameter's value.
                let own = value.cast_unsigned();
                Ok((!matches!(own, 0 | u32::MAX)).then_some(own))
            },
        )
    }

    /// Acknowledges at once (TCP_QUICKACK).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_quick_ack(&self, on: bool) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_quick_ack(on),
            |kernel| kernel.set(libc::IPPROTO_TCP, libc::TCP_QUICKACK, on.into()),
        )
    }

    /// Reports whether data is acknowledged at once.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn quick_ack(&self) -> io::Result<bool> {
        self.ask(
            |own| own.quick_ack(),
            |kernel| Ok(kernel.get(libc::IPPROTO_TCP, libc::TCP_QUICKACK)? != 0),
        )
    }

    /// Returns the bytes that can be read (SIOCINQ), and whether the end of the stream
    /// follows them. On a connection of frames it returns the bytes of the next one.
    /// `None` for a kernel connection.
    pub fn unread(&self) -> Option<(u32, bool)> {
        let state = self.own_connection()?.look();
        let connection = &state.connection;
        let unread = if connection.is_framed() {
            let next = connection.frame().unwrap_or_default();
            next.iter().map(|piece| piece.len() as u32).sum()
        } else {
            connection.info().unread
        };
        Some((unread, connection.receive_closed()))
    }

    /// Returns how long ago data last arrived (tcpi_last_data_recv); `None` for a kernel
    /// connection.
    pub fn since_received(&self) -> Option<Duration> {
        let connection = self.own_connection()?;
        let now = self.stack.core().now();
        Some(connection.look().connection.since_received(now))
    }

    /// Returns the socket of a kernel connection.
    pub fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kernels()?.stream.as_fd())
    }

    /// Probes a silent peer (SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL,
    /// TCP_KEEPCNT).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.set(
            |state, now| state.connection.set_keepalive(keepalive, now),
            |kernel| kernel.set_keepalive(keepalive),
        )
    }

    /// Returns how a silent peer is probed, if it is.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        self.ask(|own| own.keepalive(), |kernel| kernel.keepalive())
    }

    /// Sends at most this many bytes per second (SO_MAX_PACING_RATE). Without a limit, or with
    /// one of 4 GiB/s or more, sends as fast as the windows allow.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_pacing_rate_max(&self, limit: Option<u64>) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_pacing_rate_max(limit),
            |kernel| {
                let limit = limit.and_then(|limit| u32::try_from(limit).ok());
                let limit = limit.unwrap_or(u32::MAX).cast_signed();
                kernel.set(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, limit)
            },
        )
    }

    /// Aborts the connection when data stays unacknowledged for this long
    /// (TCP_USER_TIMEOUT).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_user_timeout(timeout),
            |kernel| {
                let time = kernel_stream::milliseconds(timeout.unwrap_or_default());
                let time = i32::try_from(time).unwrap_or(i32::MAX);
                kernel.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, time)
            },
        )
    }

    /// See [`TcpStream::set_user_timeout`].
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.ask(
            |own| own.user_timeout(),
            |kernel| {
                let time = kernel.get(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT)?;
                let time = u64::try_from(time).unwrap_or(0);
                Ok((time > 0).then(|| Duration::from_millis(time)))
            },
        )
    }

    /// Never exceeds this many bytes of payload and TCP options in a segment (TCP_MAXSEG,
    /// 88 to 32,767), nor the previous limit. To announce it to the peer, set
    /// [`StreamOptions::maximum_segment`].
    ///
    /// # Errors
    /// EINVAL out of range; those of [`TcpStream::set_nodelay`].
    pub fn set_maximum_segment(&self, bytes: u16) -> io::Result<()> {
        let asked = StreamOptions {
            maximum_segment: Some(bytes),
            ..StreamOptions::default()
        };
        asked.check().map_err(error)?;
        self.set(
            |state, _| state.connection.set_maximum_segment(bytes),
            |kernel| kernel.set(libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes.into()),
        )
    }

    /// Returns the bytes of a full segment now, as both sides and the path allow
    /// (TCP_MAXSEG).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn maximum_segment(&self) -> io::Result<u16> {
        self.ask(
            |own| own.maximum_segment(),
            |kernel| {
                let bytes = kernel.get(libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
                Ok(u16::try_from(bytes).unwrap_or(u16::MAX))
            },
        )
    }

    /// Sets how often the SYN is retransmitted before connecting fails (TCP_SYNCNT, 1 to
    /// 127).
    ///
    /// # Errors
    /// EINVAL out of range; those of [`TcpStream::set_nodelay`].
    pub fn set_syn_retries(&self, count: u8) -> io::Result<()> {
        let asked = StreamOptions {
            syn_retries: Some(count),
            ..StreamOptions::default()
        };
        asked.check().map_err(error)?;
        self.set(
            |state, _| state.connection.set_syn_retries(count),
            |kernel| kernel.set(libc::IPPROTO_TCP, libc::TCP_SYNCNT, count.into()),
        )
    }

    /// See [`TcpStream::set_syn_retries`].
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn syn_retries(&self) -> io::Result<u8> {
        self.ask(
            |own| own.syn_retries(),
            |kernel| {
                let count = kernel.get(libc::IPPROTO_TCP, libc::TCP_SYNCNT)?;
                Ok(u8::try_from(count).unwrap_or(u8::MAX))
            },
        )
    }

    /// Bounds FIN-WAIT-2 once the stream is dropped (TCP_LINGER2, whole seconds for a
    /// kernel connection): how long the peer may take to close its half. Two minutes at
    /// most; with zero it does not last.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_fin_timeout(&self, time: Duration) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_fin_timeout(time),
            |kernel| {
                let time = kernel_stream::linger2(time);
                kernel.set(libc::IPPROTO_TCP, libc::TCP_LINGER2, time)
            },
        )
    }

    /// See [`TcpStream::set_fin_timeout`].
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn fin_timeout(&self) -> io::Result<Duration> {
        self.ask(
            |own| own.fin_timeout(),
            |kernel| {
                let time = kernel.get(libc::IPPROTO_TCP, libc::TCP_LINGER2)?;
                Ok(Duration::from_secs(u64::try_from(time).unwrap_or(0)))
            },
        )
    }

    /// Chooses the congestion control algorithm (TCP_CONGESTION); a connection in
    /// mid-transfer continues from its current window.
    ///
    /// # Errors
    /// For a kernel connection: ENOENT if the kernel lacks this algorithm, EPERM if the
    /// namespace may not choose it.
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_congestion(congestion),
            |kernel| kernel_stream::set_congestion(kernel.stream.as_fd(), congestion),
        )
    }

    /// Returns the congestion control algorithm (TCP_CONGESTION); `None` for a kernel
    /// connection whose algorithm the engine lacks.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn congestion(&self) -> io::Result<Option<Congestion>> {
        self.ask(
            |own| Some(own.congestion()),
            |kernel| {
                let name = tcp_congestion(&kernel.stream)?;
                Ok(Congestion::from_name(&name))
            },
        )
    }

    /// Sets what dropping the stream does (SO_LINGER). `None` sends the rest in the
    /// background; zero resets the connection; another time bounds how long it waits
    /// until everything is acknowledged.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let value = linger.map_or(NO_LINGER, |time| {
            u64::try_from(time.as_nanos()).unwrap_or(NO_LINGER - 1)
        });
        self.linger.store(value, Ordering::Relaxed);
        self.kernels()
            .map_or(Ok(()), |kernel| kernel.set_linger(linger))
    }

    /// Returns what dropping the stream does; see [`TcpStream::set_linger`].
    pub fn linger(&self) -> Option<Duration> {
        match self.linger.load(Ordering::Relaxed) {
            NO_LINGER => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Sets the bytes that may wait to be read (SO_RCVBUF).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_receive_buffer(&self, bytes: u32) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_receive_buffer(bytes),
            |kernel| {
                let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
                kernel.set(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
            },
        )
    }

    /// Sets the bytes that may wait to be sent and acknowledged (SO_SNDBUF).
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_send_buffer(&self, bytes: u32) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_send_buffer(bytes),
            |kernel| {
                let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
                kernel.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
            },
        )
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of outgoing datagrams.
    ///
    /// # Errors
    /// As [`TcpStream::set_nodelay`].
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_traffic_class(tos),
            |kernel| {
                let v6 = kernel.stream.local_addr()?.is_ipv6();
                kernel_stream::set_traffic_class(kernel.stream.as_fd(), v6, tos)
            },
        )
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6), 1 to 255.
    ///
    /// # Errors
    /// EINVAL for 0.
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        if ttl == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.set(
            |state, _| state.path.hop_limit = ttl,
            |kernel| kernel.stream.set_ttl(ttl.into()),
        )
    }

    /// Queries a connection of the stack, or the kernel about its own.
    pub(super) fn ask<T>(
        &self,
        own: impl FnOnce(&Connection) -> T,
        kernel: impl FnOnce(&KernelStream) -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.inner {
            Inner::Own(connection) => Ok(own(&connection.lock().connection)),
            Inner::Kernel(of_kernel) => kernel(of_kernel),
        }
    }

    /// As [`TcpStream::change`], or makes the kernel change its own.
    pub(super) fn set(
        &self,
        own: impl FnOnce(&mut State, Duration),
        kernel: impl FnOnce(&KernelStream) -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.inner {
            Inner::Own(_) => self.change(own),
            Inner::Kernel(of_kernel) => kernel(of_kernel),
        }
    }

    /// Changes a connection of the stack, and sends what the change releases.
    pub(super) fn change(&self, how: impl FnOnce(&mut State, Duration)) -> io::Result<()> {
        let Some(connection) = self.own_connection() else {
            return Ok(());
        };
        let core = self.stack.here()?;
        let wants = connection.with(core, |state, deferred| {
            how(state, core.now());
            connection.update(core, state, deferred);
            state.connection.wants_output()
        });
        if wants {
            self.send_unless_later(connection, false);
        }
        Ok(())
    }
}
