//! A host that two threads share: one plays the script (packets, time), the
//! other makes the calls that wait.
//!
//! Nobody waits for real time. The clock moves when the script's thread sleeps or
//! waits for a packet, from event to event, and stands still until the one that an
//! event has woken is done with it and has asked for the time: what a call
//! reports as the end of its waiting is then exact.

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

/// What the clock shows at the beginning, in seconds since 1970: any time will
/// do.
pub(super) const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How much later than asked a sleeper wakes: the tool sleeps until so shortly
/// before an event and then looks at the clock until it has come.
const SPIN: Duration = Duration::from_micros(20);

/// Looks at the clock in a row that are nobody's waiting; the clock moves by
/// [`TICK`] for each further one.
const LOOKS: u32 = 8;
const TICK: Duration = Duration::from_micros(1);

/// How far the clock moves at most while a packet is waited for.
const HORIZON: Duration = Duration::from_secs(3600);

/// See the module.
pub struct Machine {
    host: Mutex<Host>,
    device: Mutex<Option<Device>>,
    posix: Arc<Posix>,
    time: Arc<Time>,
    script: ThreadId,
    /// Looks at the clock since it last moved.
    looks: AtomicU32,
}

impl Machine {
    /// A host as the flags and the network namespace say. The calling thread is
    /// the script's.
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

    /// A panic in one call ends that call, not all.
    fn lock(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the host's device take packets if the namespace's does now.
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

    /// Makes a call. The script's thread must not make one that waits (EINTR).
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

    /// Takes the kernel parameters as they are now.
    pub(super) fn refresh(&self) {
        let stack = self.posix.stack();
        let sysctl = environment::sysctl();
        stack.set_fast_open_black_hole(environment::fast_open_black_hole());
        if stack.sysctl() != sysctl {
            stack.set_sysctl(&sysctl);
        }
    }

    /// As [`Machine::call`], with the kernel parameters as they are now.
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

    /// The next packet that leaves and when it did, since 1970. The clock moves
    /// until there is one; nothing when none will come.
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
