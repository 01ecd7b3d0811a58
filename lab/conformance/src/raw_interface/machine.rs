//! A host that two threads share: one plays the script (packets, time), the other makes
//! the calls that block.
//!
//! No thread waits for real time. The clock moves from event to event when the script's
//! thread sleeps or waits for a packet. It stands still until the thread that an event
//! has woken has handled it and asked for the time. So the end of a call's wait is exact.

use core::time::Duration;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use tidewall::VirtualTime as _;
use tidewall_posix::Posix;

use super::device::Device;
use super::environment::{self, Flags};
use crate::host::{Host, Time};

/// The clock's initial value, in seconds since 1970; any time will do.
pub(super) const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How much later than requested a sleeper wakes: the tool sleeps until shortly before an
/// event, and then polls the clock.
const SPIN: Duration = Duration::from_micros(20);

/// Consecutive reads of the clock without a waiting thread; for each further one the
/// clock moves by [`TICK`].
const LOOKS: u32 = 8;
const TICK: Duration = Duration::from_micros(1);

/// The furthest that the clock moves while a packet is awaited.
const HORIZON: Duration = Duration::from_secs(3600);

/// See the module documentation.
pub struct Machine {
    host: Mutex<Host>,
    device: Mutex<Option<Device>>,
    posix: Arc<Posix>,
    time: Arc<Time>,
    script: ThreadId,
    /// Reads of the clock since it last moved.
    looks: AtomicU32,
}

impl Machine {
    /// Creates a host from the flags and the network namespace. The calling thread
    /// becomes the script's.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub(super) fn new(flags: Flags) -> io::Result<Self> {
        let time = Arc::new(Time::asking());
        let host = Host::new(flags.config(), time.clone())?;
        Ok(Self {
            posix: host.posix().clone(),
            host: Mutex::new(host),
            device: Mutex::new(flags.device()),
            time,
            script: thread::current().id(),
            looks: AtomicU32::new(0),
        })
    }

    /// A panic in one call ends only that call.
    fn lock(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the host's device accept packets if the namespace's device now does.
    fn look_at_device(&self) {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &mut *device {
            let room = device.has_room();
            self.lock().set_room(room);
        }
    }

    pub(super) fn owns(&self, fd: i32) -> bool {
        self.posix.owns(fd)
    }

    /// Makes a call. The script's thread must not make one that blocks (EINTR).
    pub(super) fn call<T>(&self, call: impl FnOnce(&Posix) -> T) -> T {
        self.looks.store(0, Ordering::Relaxed);
        self.look_at_device();
        if thread::current().id() == self.script {
            let result = call(&self.posix);
            self.lock().run_until_idle();
            return result;
        }
        self.time.enter();
        let result = call(&self.posix);
        self.time.leave();
        result
    }

    /// Reads the current kernel parameters.
    pub(super) fn refresh(&self) {
        let stack = self.posix.stack();
        let sysctl = environment::sysctl();
        stack.set_fast_open_black_hole(environment::fast_open_black_hole());
        if stack.sysctl() != sysctl {
            stack.set_sysctl(&sysctl);
        }
    }

    /// As [`Machine::call`], with the current kernel parameters.
    pub(super) fn refreshed<T>(&self, call: impl FnOnce(&Posix) -> T) -> T {
        self.refresh();
        self.call(call)
    }

    /// A packet arrives.
    pub(super) fn packet_in(&self, packet: &[u8]) {
        self.looks.store(0, Ordering::Relaxed);
        self.look_at_device();
        self.lock().packet_in(packet);
    }

    /// The script sleeps.
    pub(super) fn sleep(&self, time: Duration) {
        self.looks.store(0, Ordering::Relaxed);
        self.look_at_device();
        let mut host = self.lock();
        let end = host.now() + time + SPIN;
        host.advance(end);
    }

    /// The next packet that leaves, and its time since 1970. The clock moves until there
    /// is one; `None` if none will come.
    pub(super) fn receive(&self) -> Option<(Duration, Vec<u8>)> {
        self.look_at_device();
        let mut host = self.lock();
        host.run_until_idle();
        let end = host.now() + HORIZON;
        loop {
            if let Some((at, packet)) = host.packet_out() {
                return Some((EPOCH + at, packet));
            }
            let now = host.now();
            let event = host.next_event()?;
            if event > end || event <= now {
                return None;
            }
            host.advance(event);
        }
    }

    /// The time since 1970.
    pub(super) fn time(&self) -> Duration {
        self.time.asked();
        if thread::current().id() == self.script {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            if looks >= LOOKS {
                let mut host = self.lock();
                let to = host.now() + TICK;
                host.advance(to);
            }
        }
        EPOCH + self.time.now()
    }
}
