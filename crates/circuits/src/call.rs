//! Switched circuits: a socket's view of its call, and making calls.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tidewall_atm::signalling::CallId;
use tidewall_readiness::Events;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::threads::{Waitable, Waker};
use tidewall_stack::timeout::Timeout;
use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::q2931::Cause;

use super::circuit::CircuitInner;
use super::{AtmOptions, AtmSocket, Sap, errno, timed_out};
use crate::Atm;

/// The state of a socket's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Progress {
    /// Called, but not answered.
    Connecting,
    /// Accepted here; the caller has not acknowledged that.
    Accepted,
    /// Payloads flow both ways.
    Connected,
    /// Released, by either end.
    Ended,
}

/// A socket's call.
pub(super) struct Call {
    /// Set with the lock of the calls held.
    pub(super) id: OnceLock<CallId>,
    /// The stack's number for it, if a manager controls it.
    pub(super) number: OnceLock<u32>,
    /// The number at this end.
    pub(super) local: Nsap,
    /// The number at the other end; `None` for a caller that does not state it.
    pub(super) peer: Option<Nsap>,
    progress: AtomicU8,
}

impl Call {
    pub(super) fn new(local: Nsap, peer: Option<Nsap>, progress: Progress) -> Self {
        Call {
            id: OnceLock::new(),
            number: OnceLock::new(),
            local,
            peer,
            progress: AtomicU8::new(progress as u8),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let number = self.progress.load(Ordering::Acquire);
        let all = [
            Progress::Connecting,
            Progress::Accepted,
            Progress::Connected,
        ];
        all.into_iter()
            .find(|it| *it as u8 == number)
            .unwrap_or(Progress::Ended)
    }
}

/// Options of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// The calling number; by default the stack's address.
    pub from: Option<Nsap>,
    /// The circuit's parameters. The called end may agree on shorter payloads.
    pub circuit: AtmOptions,
    /// How long to wait until the call is answered; `None`: as long as signalling does.
    pub timeout: Option<Duration>,
}

/// A thread that waits until a call leaves these states.
pub(super) struct Until<'a> {
    pub(super) inner: &'a CircuitInner,
    pub(super) not: Progress,
}

impl Waitable for Until<'_> {
    fn enter(&self, waker: &Arc<Waker>) {
        self.inner.wait_queue.enter(waker, false);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.inner.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.inner.progress() != self.not
    }
}

impl AtmSocket {
    /// Makes a call, and waits until it is answered: what Linux's AF_ATMSVC socket does in
    /// `connect`.
    ///
    /// # Errors
    /// As Linux:
    ///
    /// - EUNATCH without control (`Stack::control_atm`).
    /// - EADDRNOTAVAIL for an unassigned number.
    /// - ECONNREFUSED if no listener accepts the call.
    /// - EHOSTUNREACH without a route or a circuit.
    /// - EHOSTDOWN if the signalling link cannot be brought up or is lost.
    /// - ETIMEDOUT without an answer.
    /// - ENETUNREACH if the interface does not lead to the next hop.
    /// - EINTR, after which the call is released.
    /// - EINVAL for options out of range.
    /// - ENFILE when the stack's channels are all in use.
    /// - ENOBUFS when there are too many calls.
    pub fn connect(stack: &StackHandle, to: impl Into<Sap>) -> io::Result<Self> {
        Self::connect_with(stack, to, &CallOptions::default())
    }

    /// As [`AtmSocket::connect`], with options.
    ///
    /// # Errors
    /// Those of [`AtmSocket::connect`].
    pub fn connect_with(
        stack: &StackHandle,
        to: impl Into<Sap>,
        options: &CallOptions,
    ) -> io::Result<Self> {
        let socket = Self::connect_nonblocking(stack, to, options)?;
        socket.finish_connect(options.timeout)?;
        Ok(socket)
    }

    /// Makes a call, and does not wait. The socket is writable once the call is answered;
    /// [`AtmSocket::finish_connect`] reports the result.
    ///
    /// # Errors
    /// Those of [`AtmSocket::connect`] that are known at once.
    pub fn connect_nonblocking(
        stack: &StackHandle,
        to: impl Into<Sap>,
        options: &CallOptions,
    ) -> io::Result<Self> {
        let core = stack.here()?;
        core.check_protocol::<Atm>()?;
        core.netdev.check()?;
        check(&options.circuit)?;
        Atm::of(core).attached(core)?;
        // The query for its link address leaves now, if the address is not known.
        match Atm::of(core).neighbour(core) {
            Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return Err(error),
            _ => {}
        }
        let inner = Atm::of(core).call(core, &to.into(), options)?;
        Ok(Self::of(inner, stack, false))
    }

    /// Waits until the call is answered, at most `timeout` if there is one.
    ///
    /// # Errors
    /// The cause of a failure, as [`AtmSocket::connect`]; ETIMEDOUT, EINTR: the call goes
    /// on.
    pub fn finish_connect(&self, timeout: Option<Duration>) -> io::Result<()> {
        let inner = &*self.inner;
        let not = Progress::Connecting;
        let answered = self.attempt(&Until { inner, not }, false, timeout, |_| {
            (inner.progress() != not).then_some(inner.progress())
        });
        match answered {
            // An earlier call took the error.
            Ok(Progress::Ended) => Err(errno(libc::ECONNREFUSED)),
            Ok(_) => Ok(()),
            Err(error) => Err(timed_out(error)),
        }
    }

    /// A socket of a circuit.
    pub(super) fn of(inner: Arc<CircuitInner>, stack: &StackHandle, nonblocking: bool) -> Self {
        AtmSocket {
            inner,
            stack: stack.clone(),
            nonblocking: AtomicBool::new(nonblocking),
            read_timeout: Timeout::default(),
        }
    }

    /// Returns true until an outgoing call is answered.
    pub fn is_connecting(&self) -> bool {
        self.inner.progress() == Progress::Connecting
    }

    /// Returns true for a call that is released; payloads that arrived before can still
    /// be received.
    pub fn is_released(&self) -> bool {
        self.inner.has_ended()
    }

    /// Returns the number at this end of a call (`getsockname`); `None` for a permanent
    /// circuit.
    pub fn local_number(&self) -> Option<Nsap> {
        self.inner.call.as_ref().map(|call| call.local)
    }

    /// Returns the number at the other end of a call (`getpeername`). `None` for a
    /// permanent circuit, and for a caller that does not state its number.
    pub fn peer_number(&self) -> Option<Nsap> {
        self.inner.peer()
    }

    /// Waits until payloads can be sent: for an accepted call, until the caller has
    /// acknowledged.
    ///
    /// # Errors
    /// ENOTCONN before the call is answered, EPIPE once it is released; EAGAIN at the end of
    /// the wait, ENODEV.
    pub(super) fn await_connected(
        &self,
        core: &Core,
        nonblocking: bool,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let inner = &*self.inner;
        if inner.progress() == Progress::Accepted {
            let not = Progress::Accepted;
            let waiting = Until { inner, not };
            self.attempt(&waiting, nonblocking, timeout, |_| {
                (inner.progress() != not).then_some(())
            })?;
        }
        match inner.progress() {
            Progress::Connecting => Err(errno(libc::ENOTCONN)),
            Progress::Ended => Err(errno(libc::EPIPE)),
            _ => core.netdev.check(),
        }
    }
}

/// EINVAL for options out of range.
pub(super) fn check(options: &AtmOptions) -> io::Result<()> {
    let in_range = options.is_in_range();
    in_range.then_some(()).ok_or_else(|| errno(libc::EINVAL))
}

impl CircuitInner {
    /// Moves the call to another state; `error` is the cause if it has ended, 0 for none.
    pub(super) fn advance(&self, to: Progress, error: i32) {
        let Some(call) = &self.call else { return };
        if error != 0 {
            self.pending_error.store(error, Ordering::Relaxed);
        }
        call.progress.store(to as u8, Ordering::Release);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }
}

/// Returns the error of a call that has ended, by its last state; 0 for a normal end.
pub(super) fn error(progress: Progress, cause: Cause) -> i32 {
    match progress {
        Progress::Connecting => refusal(cause),
        _ => ending(cause),
    }
}

/// Returns the error of a call that failed, as Linux's atmsigd does.
fn refusal(cause: Cause) -> i32 {
    match cause.value() {
        Cause::UNALLOCATED_NUMBER => libc::EADDRNOTAVAIL,
        Cause::NO_ROUTE | Cause::CELL_RATE_NOT_AVAILABLE | Cause::RESOURCES_UNAVAILABLE => {
            libc::EHOSTUNREACH
        }
        Cause::NO_USER_RESPONDING | Cause::RECOVERY_ON_TIMER_EXPIRY => libc::ETIMEDOUT,
        Cause::DESTINATION_OUT_OF_ORDER => libc::EHOSTDOWN,
        _ => libc::ECONNREFUSED,
    }
}

/// Returns the error of a call that was connected; 0 for a normal end.
fn ending(cause: Cause) -> i32 {
    match cause.value() {
        Cause::NORMAL | Cause::NORMAL_UNSPECIFIED => 0,
        _ => libc::ECONNRESET,
    }
}
