//! Switched circuits: what a socket knows of its call, and calling somebody.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tidewall_atm::signalling::CallId;
use tidewall_wire::atm::Nsap;
use tidewall_wire::atm::q2931::Cause;

use super::circuit::CircuitInner;
use super::{AtmOptions, AtmSocket, Sap, errno, timed_out};
use crate::Atm;
use tidewall_readiness::Events;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::threads::{Waitable, Waker};
use tidewall_stack::timeout::Timeout;

/// Where a call is, for its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Progress {
    /// Called, and not answered.
    Connecting,
    /// Accepted here, and the caller has not acknowledged that.
    Accepted,
    /// Payloads go both ways.
    Connected,
    /// Released, by either end.
    Ended,
}

/// A socket's call.
pub(super) struct Call {
    /// Set with the lock of the calls held.
    pub(super) id: OnceLock<CallId>,
    /// The stack's number for it, where a manager controls it.
    pub(super) number: OnceLock<u32>,
    /// The number at this end.
    pub(super) local: Nsap,
    /// The number at the other end; `None` for a caller that does not say it.
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

/// Whom to call, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Who calls; by default the stack's address.
    pub from: Option<Nsap>,
    /// What the circuit carries. The called end may agree on shorter payloads.
    pub circuit: AtmOptions,
    /// How long to wait until the call is answered; `None`: as long as signalling does.
    pub timeout: Option<Duration>,
}

/// Somebody who waits until a call is in another state than these.
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
    /// Calls somebody, and waits until the call is answered: what Linux's AF_ATMSVC socket
    /// does in `connect`.
    ///
    /// # Errors
    /// As Linux: EUNATCH without control (`Stack::control_atm`); EADDRNOTAVAIL for a
    /// number that nobody has, ECONNREFUSED where nobody takes the call, EHOSTUNREACH where
    /// there is no way or no circuit, EHOSTDOWN where the signalling link cannot be brought
    /// up or is lost, ETIMEDOUT without an answer; ENETUNREACH where the interface does not
    /// lead to the next hop; EINTR, after which the call is released. EINVAL for options out
    /// of range, ENFILE when the stack's channels are all in use, ENOBUFS when there are too
    /// many calls.
    pub fn connect(stack: &StackHandle, to: impl Into<Sap>) -> io::Result<Self> {
        Self::connect_with(stack, to, &CallOptions::default())
    }

    /// As [`AtmSocket::connect`], with options.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(
        stack: &StackHandle,
        to: impl Into<Sap>,
        options: &CallOptions,
    ) -> io::Result<Self> {
        let socket = Self::connect_nonblocking(stack, to, options)?;
        socket.finish_connect(options.timeout)?;
        Ok(socket)
    }

    /// Calls somebody, and does not wait. The socket is writable once the call is answered;
    /// [`AtmSocket::finish_connect`] says how that ended.
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
        // The question for its link address goes out now, if it is not known.
        match Atm::of(core).neighbour(core) {
            Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return Err(error),
            _ => {}
        }
        let inner = Atm::of(core).call(core, &to.into(), options)?;
        Ok(Self::of(inner, stack, false))
    }

    /// Waits until the call is answered, not longer than `timeout` if there is one.
    ///
    /// # Errors
    /// Why it was not, as [`AtmSocket::connect`]; ETIMEDOUT, EINTR: the call goes on.
    pub fn finish_connect(&self, timeout: Option<Duration>) -> io::Result<()> {
        let inner = &*self.inner;
        let not = Progress::Connecting;
        let answered = self.attempt(&Until { inner, not }, false, timeout, |_| {
            (inner.progress() != not).then_some(inner.progress())
        });
        match answered {
            // The error was taken by an earlier call.
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

    /// True until a call of ours is answered.
    pub fn is_connecting(&self) -> bool {
        self.inner.progress() == Progress::Connecting
    }

    /// True for a call that is released; what had come can be received still.
    pub fn is_released(&self) -> bool {
        self.inner.has_ended()
    }

    /// The number at this end of a call (`getsockname`); `None` for a permanent circuit.
    pub fn local_number(&self) -> Option<Nsap> {
        self.inner.call.as_ref().map(|call| call.local)
    }

    /// The number at the other end of a call (`getpeername`); `None` for a permanent
    /// circuit, and for a caller that does not say its number.
    pub fn peer_number(&self) -> Option<Nsap> {
        self.inner.peer()
    }

    /// That something can be sent. Waits for the acknowledgment of a call that was accepted.
    ///
    /// # Errors
    /// ENOTCONN before the call is answered, EPIPE once it is released; EAGAIN at the end of
    /// waiting, ENODEV.
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
    /// The call is in another state; of one that has ended why, 0 for no error.
    pub(super) fn advance(&self, to: Progress, error: i32) {
        let Some(call) = &self.call else { return };
        if error != 0 {
            self.pending_error.store(error, Ordering::Relaxed);
        }
        call.progress.store(to as u8, Ordering::Release);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }
}

/// The error of a call that has ended, by where it was; 0 where it ended as calls do.
pub(super) fn error(progress: Progress, cause: Cause) -> i32 {
    match progress {
        Progress::Connecting => refusal(cause),
        _ => ending(cause),
    }
}

/// The error of a call that did not come about, as Linux's atmsigd has it.
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

/// The error of a call that was connected; 0 where it ended as calls do.
fn ending(cause: Cause) -> i32 {
    match cause.value() {
        Cause::NORMAL | Cause::NORMAL_UNSPECIFIED => 0,
        _ => libc::ECONNRESET,
    }
}
