//! Receive control of the kernel's path, from outside: the effect that a policy can have
//! on Linux through Linux's own settings.
//!
//! Every millisecond the policy receives the use of the service's socket buffer, the
//! packets that the receiver's processor handled and its softirqs' squeezes. Its
//! decisions are written to the device's `gro_flush_timeout` (T) and to
//! `net.core.netdev_budget` (Bp/10: a softirq takes as many as ten budgets). It runs on
//! the lab's processor, the client's, since the receiver's may be livelocked.
//!
//! Three things differ from the paper:
//! - The kernel takes at least its weight of 64 per poll, so a smaller Bp has no effect.
//! - T is never under 10 µs, or the driver's poll would move to the sender's processor.
//! - A policy learns of a full buffer a millisecond late.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall_manager::restore::{Knob, Restorer};
use tidewall_receive::control::{
    Activity, BUDGET_MAX, Controller, INTERVAL_MAX, Limits, Round, Setting,
};

use crate::system::{Control, RECEIVE_BUFFER};
use crate::testbed::SERVER_INTERFACE;

const EVERY: Duration = Duration::from_millis(1);
const NETDEV_BUDGET: &str = "/proc/sys/net/core/netdev_budget";
const SOFTNET: &str = "/proc/net/softnet_stat";
/// MAX_SOFTIRQ_RESTART.
const RESTARTS: u32 = 10;
/// Shortest T.
const INTERVAL_MIN: Duration = Duration::from_micros(10);
/// Frames that a veth's ring holds (VETH_RING_SIZE).
const RING: u32 = 256;

/// A policy that controls the kernel; dropping it ends it.
pub(crate) struct Governor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    // Restored when the thread has ended.
    _budget: Option<Knob>,
}

/// The service to observe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Its process, in the server's namespaces.
    pub(crate) process: u32,
    /// The receiver's processor.
    pub(crate) cpu: usize,
    /// Its port.
    pub(crate) port: u16,
}

impl Governor {
    /// Starts it. If `netdev_budget` cannot be written, notes that in `shortcomings` and
    /// sets only T.
    ///
    /// # Errors
    /// An error of opening the device's setting or the kernel's accounts.
    pub(crate) fn start(
        restorer: &Restorer,
        service: Service,
        control: Control,
        shortcomings: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let controller = Controller::new(
            control.policy,
            Limits {
                budget: control.budget.unwrap_or(BUDGET_MAX),
                interrupt_interval: control
                    .interval_us
                    .map_or(INTERVAL_MAX, |us| Duration::from_micros(us.into())),
                ring: RING,
                preempts: true,
                ..Limits::default()
            },
        );
        let process = format!("/proc/{}", service.process);
        let timeout = writable(Path::new(&format!(
            "{process}/root/sys/class/net/{SERVER_INTERFACE}/gro_flush_timeout"
        )))?;
        // Written unchanged, so that the restorer knows the value to restore.
        let budget = fs::read_to_string(NETDEV_BUDGET)
            .and_then(|value| Knob::set(restorer, NETDEV_BUDGET, value.trim()));
        let (knob, budget) = match budget {
            Ok(knob) => (Some(knob), Some(writable(Path::new(NETDEV_BUDGET))?)),
            Err(error) => {
                let text = format!("policies in the kernel set T alone ({NETDEV_BUDGET}: {error})");
                if !shortcomings.contains(&text) {
                    shortcomings.push(text);
                }
                (None, None)
            }
        };
        let sockets = format!("{process}/net/udp");
        fs::metadata(&sockets).with_context(|| format!("cannot read {sockets}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut work = Work {
            controller,
            timeout,
            budget,
            sockets,
            service,
            last: Counts::default(),
        };
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let start = Instant::now();
            work.last = work.counts();
            work.apply(work.controller.setting());
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(EVERY);
                work.look(start.elapsed());
            }
        });
        Ok(Governor {
            stop,
            thread: Some(thread),
            _budget: knob,
        })
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn writable(path: &Path) -> anyhow::Result<File> {
    File::options()
        .write(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The kernel's accounts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Packets that the processor handled, and softirqs that used up their budget.
    processed: u32,
    squeezed: u32,
    /// Bytes in the socket's buffer.
    waiting: u64,
    /// Packets that found it full.
    dropped: u64,
}

struct Work {
    controller: Controller,
    timeout: File,
    budget: Option<File>,
    sockets: String,
    service: Service,
    last: Counts,
}

impl Work {
    fn counts(&self) -> Counts {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (processed, squeezed) = of_processor(&read(SOFTNET), self.service.cpu);
        let (waiting, dropped) = of_socket(&read(&self.sockets), self.service.port);
        Counts {
            processed,
            squeezed,
            waiting,
            dropped,
        }
    }

    fn look(&mut self, now: Duration) {
        let counts = self.counts();
        let round = round(&self.last, &counts);
        self.last = counts;
        let activity = Activity {
            interrupted: round.frames > 0 && !round.exhausted,
            sent: 0,
        };
        let before = self.controller.setting();
        self.controller.round(now, &round, activity);
        let setting = self.controller.setting();
        if setting != before {
            self.apply(setting);
        }
    }

    fn apply(&self, setting: Setting) {
        let (timeout, budget) = knobs(setting);
        // A failed write is repeated with the next change; the service may be gone
        // already.
        let _ = self.timeout.write_at(timeout.to_string().as_bytes(), 0);
        if let Some(file) = &self.budget {
            let _ = file.write_at(budget.to_string().as_bytes(), 0);
        }
    }
}

/// Returns `gro_flush_timeout`, ns, and `netdev_budget` for a setting.
fn knobs(setting: Setting) -> (u128, u32) {
    (
        setting.interrupt_interval.max(INTERVAL_MIN).as_nanos(),
        (setting.budget / RESTARTS).max(1),
    )
}

/// Returns the changes between two looks, as one round.
fn round(last: &Counts, counts: &Counts) -> Round {
    let overflowed = counts.dropped.saturating_sub(last.dropped);
    // SO_RCVBUF is doubled by the kernel (socket(7)).
    let whole = 2.0 * f64::from(RECEIVE_BUFFER);
    let buffer_use = match overflowed {
        0 => (counts.waiting as f64 / whole).min(1.0) as f32,
        _ => 1.0,
    };
    Round {
        frames: counts.processed.wrapping_sub(last.processed),
        exhausted: counts.squeezed != last.squeezed,
        buffer_use,
        overflowed: u32::try_from(overflowed).unwrap_or(u32::MAX),
    }
}

/// Returns packets and squeezes of a processor, from /proc/net/softnet_stat.
fn of_processor(text: &str, cpu: usize) -> (u32, u32) {
    text.lines()
        .find_map(|line| {
            let fields: Vec<u32> = line
                .split_whitespace()
                .map(|field| u32::from_str_radix(field, 16))
                .collect::<Result<_, _>>()
                .ok()?;
            // The thirteenth names the processor.
            (usize::try_from(*fields.get(12)?).ok()? == cpu)
                .then_some((*fields.first()?, *fields.get(2)?))
        })
        .unwrap_or_default()
}

/// Returns the bytes waiting and packets dropped of the socket on a port, from
/// /proc/net/udp.
fn of_socket(text: &str, port: u16) -> (u64, u64) {
    let port = format!("{port:04X}");
    text.lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (_, local) = fields.get(1)?.split_once(':')?;
            if local != port {
                return None;
            }
            let (_, waiting) = fields.get(4)?.split_once(':')?;
            Some((
                u64::from_str_radix(waiting, 16).ok()?,
                fields.last()?.parse().ok()?,
            ))
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_accounts_are_read() {
        let softnet = "03f6fdca 00000000 0000002e 00000000 00000000 00000000 00000000 00000000 \
                       00000000 003edd3b 00000000 00000000 00000000 00000000 00000000\n\
                       28dfb06f 00000000 00000043 00000000 00000000 00000000 00000000 00000000 \
                       00000000 0063afde 00000000 00000000 00000001 00000000 00000000\n";
        assert_eq!(of_processor(softnet, 1), (0x28df_b06f, 0x43));
        assert_eq!(of_processor(softnet, 2), (0, 0));
        let udp = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                    9: 00000000:0007 00000000:0000 07 00000000:00000001 00:00000000 00000000     0        0 12 2 0000000000000000 1\n\
                   11: 00000000:0009 00000000:0000 07 00000000:00100000 00:00000000 00000000     0        0 13 2 0000000000000000 77\n";
        assert_eq!(of_socket(udp, 9), (1 << 20, 77));
        assert_eq!(of_socket(udp, 10), (0, 0));
    }

    #[test]
    fn two_looks_make_a_round() {
        let first = Counts {
            processed: u32::MAX,
            squeezed: 4,
            waiting: 0,
            dropped: 10,
        };
        let quiet = Counts {
            processed: 99,
            waiting: u64::from(RECEIVE_BUFFER),
            ..first
        };
        let seen = round(&first, &quiet);
        assert_eq!((seen.frames, seen.exhausted), (100, false));
        assert_eq!((seen.buffer_use, seen.overflowed), (0.5, 0));
        let flooded = Counts {
            squeezed: 5,
            dropped: 13,
            ..quiet
        };
        let seen = round(&quiet, &flooded);
        assert!(seen.exhausted);
        assert_eq!((seen.buffer_use, seen.overflowed), (1.0, 3));
    }

    #[test]
    fn settings_become_what_the_kernel_can_do() {
        let setting = |budget, microseconds| Setting {
            budget,
            interrupt_interval: Duration::from_micros(microseconds),
        };
        assert_eq!(knobs(setting(3000, 0)), (10_000, 300));
        assert_eq!(knobs(setting(0, 500)), (500_000, 1));
    }
}
