//! Streams: the application's side of connections.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidewall_protocol::tcp::{self, Info, SendFlags, SendingTimes, State as Phase};
use tidewall_readiness::Events;
use tidewall_readiness::poll_context::{in_turn, note_sent_in_turn, turn_is_long};
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::protocol::Hold;
use tidewall_stack::timeout::Timeout;

use super::connection::{ConnectionInner, State, Waiting, error};
use super::kernel_stream::KernelStream;
use super::listener::as_bound;
use crate::pieces::scatter;

mod acp;
mod connecting;
mod file;
mod io_traits;
mod notifications;
mod options;
mod polling;

pub use acp::ReceivedFrame;
pub use connecting::ConnectOptions;
pub use notifications::Notification;

/// Options of a send.
#[derive(Clone, Copy, Default)]
struct Sending {
    flags: SendFlags,
    /// The caller is notified when the memory is free again.
    zero_copy: bool,
    /// Does not block, even if the stream is blocking.
    at_once: bool,
}

/// [`TcpStream::linger`] when it is not set.
const NO_LINGER: u64 = u64::MAX;

/// A TCP connection on a [`StackHandle`].
///
/// ```no_run
/// use std::io::{Read, Write};
/// use tidewall::{EmbeddedConfig, Stack, TcpStream};
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let mut stream = TcpStream::connect(&stack, ([192, 0, 2, 1], 80).into())?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
/// let mut page = Vec::new();
/// stream.read_to_end(&mut page)?;
/// # std::io::Result::Ok(())
/// ```
///
/// Reading, writing and waiting run the protocol on the connection's frames. Several
/// threads may use one stream at once; `&TcpStream` reads and writes too, as the standard
/// library's does. Dropping it closes the connection: written data is sent in the
/// background, for as long as the stack exists.
///
/// A connection with a peer on this host, or whose route does not use the stack's
/// interface, is a kernel connection; it behaves the same.
pub struct TcpStream {
    inner: Inner,
    #[cfg(feature = "mio")]
    pub(crate) event_loop: tidewall_readiness::event_loop::Slot,
    // Dropped after `inner`'s use in Drop; keeps the device open.
    pub(crate) stack: StackHandle,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
    write_timeout: Timeout,
    /// Nanoseconds, or [`NO_LINGER`].
    linger: AtomicU64,
    /// Addresses are reported as by a dual-stack socket.
    mapped: bool,
}

enum Inner {
    Own(Arc<ConnectionInner>),
    Kernel(KernelStream),
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_address())
            .finish_non_exhaustive()
    }
}

impl TcpStream {
    /// Wraps a connection of the stack. `mapped`: it arrived at an IPv6 socket.
    pub(crate) fn own(connection: Arc<ConnectionInner>, stack: StackHandle, mapped: bool) -> Self {
        Self::new(Inner::Own(connection), stack, mapped)
    }

    /// Wraps a kernel connection.
    pub(crate) fn kernel(stream: KernelStream, stack: StackHandle) -> Self {
        Self::new(Inner::Kernel(stream), stack, false)
    }

    fn new(inner: Inner, stack: StackHandle, mapped: bool) -> Self {
        TcpStream {
            inner,
            #[cfg(feature = "mio")]
            event_loop: Default::default(),
            stack,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            linger: AtomicU64::new(NO_LINGER),
            mapped,
        }
    }

    // ---- Reading ------------------------------------------------------------

    /// Receives without consuming: the next read returns the same bytes.
    ///
    /// # Errors
    /// As [`std::io::Read::read`] of this type.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_pieces(&mut [IoSliceMut::new(buffer)], libc::MSG_PEEK)
    }

    /// `at_once`: does not block, even if the stream is blocking.
    fn peek_own(
        &self,
        connection: &Arc<ConnectionInner>,
        buffers: &mut [IoSliceMut<'_>],
        at_once: bool,
    ) -> io::Result<usize> {
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        self.receive(connection, at_once, &mut |state| {
            let copied = scatter(&state.connection.received(), buffers);
            if copied > 0 {
                return Ok(copied);
            }
            // The end, an error or nothing: there is no data that this could consume.
            state.connection.read(&mut [0])
        })
    }

    /// Receives without copying: passes the available bytes to `each`, in up to two
    /// pieces; `each` returns how many it consumes. Returns that number; 0 at the end of
    /// the stream, when `each` is not called.
    ///
    /// # Errors
    /// Those of [`std::io::Read::read`] of this type; `Unsupported` for a kernel
    /// connection, which has no memory to lend, and for one of frames.
    pub fn receive_with(&self, mut each: impl FnMut([&[u8]; 2]) -> usize) -> io::Result<usize> {
        let connection = self.own_connection().filter(|it| !it.is_framed());
        let connection = connection.ok_or(io::ErrorKind::Unsupported)?;
        self.receive(connection, false, &mut |state| {
            let pieces = state.connection.received();
            let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
            if length == 0 {
                return state.connection.read(&mut [0]);
            }
            let taken = each(pieces).min(length);
            state.connection.consume(taken);
            Ok(taken)
        })
    }

    /// `at_once`: does not block, even if the stream is blocking.
    fn receive(
        &self,
        connection: &Arc<ConnectionInner>,
        at_once: bool,
        take: &mut dyn FnMut(&mut State) -> Result<usize, tcp::Errno>,
    ) -> io::Result<usize> {
        let core = self.stack.here()?;
        core.helper.application_is_here();
        let timeout = self.read_timeout.get();
        let deadline = timeout.and_then(|timeout| core.clock.instant_now().checked_add(timeout));
        let nonblocking = at_once || self.nonblocking.load(Ordering::Relaxed);
        core.receiver.poll_if_due(core)?;
        let mut polled = false;
        loop {
            let mut opened = false;
            let result = connection.with(core, |state, deferred| {
                // Nothing arrives before the SYN has left.
                let begun = state.begin();
                let came = connection.take_frames(core, state, deferred) > 0;
                if came || begun {
                    connection.update(core, state, deferred);
                }
                let result = take(state);
                if came {
                    connection.notify_read(state);
                }
                if result.is_ok() && state.connection.wants_output() {
                    // The window has opened.
                    connection.update(core, state, deferred);
                    opened = true;
                } else if let Some(due) = state.connection.release_due() {
                    connection.arm(core, state, due);
                }
                result
            });
            if opened && has_event_loops(core) {
                // The loop's next turn may not be on this stack.
                core.flush();
            }
            match result {
                Ok(length) => return Ok(length),
                Err(tcp::Errno::AGAIN) => {}
                Err(errno) => return Err(error(errno)),
            }
            if nonblocking {
                // A connection with a selector is polled there.
                if !polled && !connection.wait_queue.is_polled() {
                    polled = true;
                    core.before_sleep(core.now());
                    core.receiver.round(core, false)?;
                    continue;
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if !polled && core.receiver.is_polling() && !core.receiver.device_polls() {
                polled = true;
                core.before_sleep(core.now());
                core.receiver.round_and_return(core)?;
                continue;
            }
            polled = false;
            let waiting = Waiting {
                connection,
                want: Events::IN,
            };
            if !core.receiver.sleep(core, &[&waiting], deadline)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    // ---- Writing ------------------------------------------------------------

    fn send(
        &self,
        connection: &Arc<ConnectionInner>,
        pieces: &[IoSlice<'_>],
        sending: Sending,
    ) -> io::Result<usize> {
        let Sending {
            flags,
            zero_copy,
            at_once,
        } = sending;
        let core = self.stack.here()?;
        core.helper.application_is_here();
        let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
        let timeout = self.write_timeout.get();
        let deadline = timeout.and_then(|timeout| core.clock.instant_now().checked_add(timeout));
        let nonblocking = at_once || self.nonblocking.load(Ordering::Relaxed);
        // An event loop may have many answers to write before it waits again.
        core.receiver.poll_if_due(core)?;
        let mut written = 0;
        let mut polled = false;
        // The handshake was not complete at the last check.
        let mut opening = false;
        loop {
            let mut failed = None;
            let (blocked, done, is_full) = connection.with(core, |state, deferred| {
                let notified = state.connection.notification_count();
                if connection.take_frames(core, state, deferred) > 0 {
                    connection.notify_changes(state);
                }
                // Skips what an earlier turn has written.
                let mut skip = written;
                let mut ahead = wanted - written;
                let stream = if connection.is_framed() {
                    match acp::write(state, pieces, flags.more) {
                        Ok(length) => written = length,
                        Err(errno) => failed = Some(errno),
                    }
                    if failed == Some(tcp::Errno::AGAIN) {
                        state.note_no_space();
                    }
                    &[]
                } else {
                    pieces
                };
                for piece in stream {
                    let Some(rest) = piece.get(skip..) else {
                        skip -= piece.len();
                        continue;
                    };
                    skip = 0;
                    if rest.is_empty() && wanted > 0 {
                        continue;
                    }
                    // A record ends with the last piece.
                    ahead = ahead.saturating_sub(rest.len());
                    let flags = SendFlags {
                        record: flags.record && ahead == 0,
                        ..flags
                    };
                    match state.connection.write_with(rest, flags) {
                        Ok(length) => {
                            written += length;
                            if length < rest.len() {
                                state.note_no_space();
                                break;
                            }
                        }
                        Err(errno) => {
                            if errno == tcp::Errno::AGAIN {
                                state.note_no_space();
                            }
                            failed = Some(errno);
                            break;
                        }
                    }
                }
                let blocked = failed.is_none_or(|errno| errno == tcp::Errno::AGAIN);
                // A frame may be empty, and is not written yet for that.
                let done = written >= wanted && (failed.is_none() || !connection.is_framed());
                opening = match state.connection.state() {
                    Phase::SynSent => true,
                    Phase::Closed => opening,
                    _ => false,
                };
                if opening && !done && blocked && !nonblocking {
                    // The rest leaves with the handshake's last acknowledgment.
                    state.connection.set_writer_waiting();
                }
                if done || nonblocking || !blocked {
                    // This call writes no more.
                    state.connection.end_write(written, zero_copy);
                    connection.notify_notifications(state, notified);
                }
                // The written data leaves with the SYN.
                state.begin();
                connection.update(core, state, deferred);
                (blocked, done, state.connection.has_full_burst())
            });
            self.send_unless_later(connection, is_full);
            // Data sent with an unanswered SYN was not written.
            if let Some(errno) = failed.filter(|_| (written == 0 || opening) && !blocked) {
                return Err(error(errno));
            }
            // A blocking write on Linux writes everything.
            if done || (written > 0 && (nonblocking || !blocked)) {
                return Ok(written);
            }
            if nonblocking {
                if !polled && !connection.wait_queue.is_polled() {
                    polled = true;
                    core.receiver.round(core, false)?;
                    continue;
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let waiting = Waiting {
                connection,
                want: Events::OUT,
            };
            match core.receiver.sleep(core, &[&waiting], deadline) {
                Ok(true) => {}
                _ if written > 0 => {
                    let mut state = connection.lock();
                    let notified = state.connection.notification_count();
                    state.connection.end_write(written, zero_copy);
                    connection.notify_notifications(&mut state, notified);
                    return Ok(written);
                }
                Ok(false) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the segments that may be sent, unless a later wait will send them soon enough.
    /// That is the selector's next wait, or one of the event loop on the calling thread. The
    /// user of a blocking stream may wait elsewhere. `is_full`: a burst waits that more data would not make larger.
    fn send_unless_later(&self, connection: &Arc<ConnectionInner>, is_full: bool) {
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        let turns = nonblocking && in_turn(self.stack.core());
        self.send_unless(turns || connection.wait_queue.is_sent_later(), is_full);
    }

    fn send_unless(&self, later: bool, is_full: bool) {
        let core = self.stack.core();
        let unsent = core.output.sockets();
        if !later || unsent >= super::MANY_DIRTY {
            core.flush();
        } else if turn_is_long(core) {
            core.flush_without(Hold::Acknowledgments);
            note_sent_in_turn(core);
        } else if is_full {
            core.flush_without(Hold::Partial);
        } else {
            core.helper.wake();
        }
    }

    // ---- Ends ---------------------------------------------------------------

    /// The peer's address.
    ///
    /// # Errors
    /// ENOTCONN before the connection is established, and after it has ended. By it a
    /// caller that connects without blocking learns that it must wait.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            Inner::Own(connection) => {
                let state = connection.lock();
                if matches!(state.connection.state(), Phase::SynSent | Phase::Closed) {
                    return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
                }
                let remote = state.connection.flow().remote;
                drop(state);
                Ok(self.shown(remote))
            }
            Inner::Kernel(kernel) => kernel.stream.peer_addr(),
        }
    }

    /// Returns an address as the socket at which it arrived shows it.
    fn shown(&self, address: SocketAddr) -> SocketAddr {
        let address = self.stack.core().ip.scoped(address);
        as_bound(address, self.mapped)
    }

    /// Returns the peer's address, whatever the state of the connection.
    pub(crate) fn peer_address(&self) -> SocketAddr {
        match &self.inner {
            Inner::Own(connection) => self.shown(connection.flow().remote),
            Inner::Kernel(kernel) => {
                let peer = kernel.stream.peer_addr();
                peer.unwrap_or_else(|_| SocketAddr::from(([0; 4], 0)))
            }
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The kernel's errors, for a kernel connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            Inner::Own(connection) => Ok(self.shown(connection.flow().local)),
            Inner::Kernel(kernel) => kernel.stream.local_addr(),
        }
    }

    /// Returns true for a kernel connection.
    pub fn is_kernels(&self) -> bool {
        self.kernels().is_some()
    }

    /// Returns the connection, if it is the stack's.
    fn own_connection(&self) -> Option<&Arc<ConnectionInner>> {
        match &self.inner {
            Inner::Own(connection) => Some(connection),
            Inner::Kernel(_) => None,
        }
    }

    /// Returns the connection, if it is the kernel's.
    fn kernels(&self) -> Option<&KernelStream> {
        match &self.inner {
            Inner::Own(_) => None,
            Inner::Kernel(kernel) => Some(kernel),
        }
    }

    /// Closes one half or both.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.stream.shutdown(how),
            Inner::Own(connection) => {
                let how = match how {
                    Shutdown::Read => tcp::Shutdown::Read,
                    Shutdown::Write => tcp::Shutdown::Write,
                    Shutdown::Both => tcp::Shutdown::Both,
                };
                let core = self.stack.here()?;
                let result = connection.with(core, |state, deferred| {
                    connection.take_frames(core, state, deferred);
                    let result = state.connection.shutdown(how, core.now());
                    connection.update(core, state, deferred);
                    connection.notify_state(state);
                    result
                });
                self.send_unless_later(connection, false);
                result.map_err(error)
            }
        }
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// The kernel's errors, for a kernel connection.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.stream.take_error(),
            Inner::Own(connection) => Ok(connection.lock().connection.take_error().map(error)),
        }
    }

    /// Returns numbers of the connection, as in TCP_INFO; `None` for a kernel connection.
    pub fn info(&self) -> Option<Info> {
        let connection = self.own_connection()?;
        let info = connection.look().connection.info();
        if info.unacknowledged == 0 {
            return Some(info);
        }
        // A caller that polls these numbers waits for them to change.
        let core = self.stack.core();
        core.take_waiting();
        Some(connection.look().connection.info())
    }

    /// Returns how long there was data to send, and how long of that the peer's window or
    /// the send buffer limited it (tcpi_busy_time and its parts). These times show whether
    /// the network, the peer or this application makes a connection slow. `None` for a
    /// kernel connection.
    pub fn sending_times(&self) -> Option<SendingTimes> {
        let connection = self.own_connection()?;
        let now = self.stack.core().now();
        Some(connection.look().connection.sending_times(now))
    }

    fn finish(&self, connection: &Arc<ConnectionInner>) {
        let core = self.stack.core();
        let linger = self.linger();
        connection.close(core, linger);
        self.send_unless_later(connection, false);
        let Some(time) = linger.filter(|time| !time.is_zero()) else {
            return;
        };
        if self.nonblocking.load(Ordering::Relaxed) {
            return;
        }
        let deadline = core.clock.instant_now().checked_add(time);
        while !connection.is_over() {
            let waiting = Waiting {
                connection,
                // Acknowledged data makes it neither readable nor writable; its end does.
                want: Events::NONE,
            };
            match core.receiver.sleep(core, &[&waiting], deadline) {
                Ok(true) => connection.process(core),
                _ => return,
            }
        }
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if self.stack.here().is_err() {
            return;
        }
        match &self.inner {
            Inner::Own(connection) => {
                connection.wait_queue.close();
                self.finish(connection);
            }
            Inner::Kernel(kernel) => kernel.wait_queue.close(),
        }
    }
}

/// Returns true while sockets are in event loops that do not turn the stack.
fn has_event_loops(core: &Core) -> bool {
    #[cfg(feature = "mio")]
    let has = core
        .find_protocol::<tidewall_readiness::event_loop::Notifier>()
        .is_some_and(|it| it.is_used());
    #[cfg(not(feature = "mio"))]
    let has = {
        let _ = core;
        false
    };
    has
}
