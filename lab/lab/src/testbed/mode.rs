//! The ways in which the server's interface is set up: they decide where receiving runs.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::bail;

use super::{CLIENT_INTERFACE, SERVER, SERVER_INTERFACE, Testbed, cpu_mask};

/// Interval of the timer mode's interrupts, ns.
const TIMER_PERIOD: u64 = 20_000;
/// The same while interrupts may be suspended: how long an event loop that sleeps waits,
/// ns.
const SUSPEND_FLUSH: u64 = 200_000;
/// How long a busy event loop may keep interrupts suspended: many times the length of a
/// turn.
pub(crate) const SUSPEND: Duration = Duration::from_millis(20);
/// `gro_flush_timeout` of busy polling: how long the device waits for the application's
/// poll. The better value depends on the work, so each experiment uses the one with which
/// Linux does best in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyTimeout {
    /// 1 ms. Softirq helps a socket that falls behind sooner: more is delivered under
    /// overload.
    #[default]
    Millisecond,
    /// 5 ms, longer than a scheduler tick, so that a poll never has to program the clock:
    /// the fastest answers.
    FiveMilliseconds,
}

impl BusyTimeout {
    fn nanoseconds(self) -> u64 {
        match self {
            BusyTimeout::Millisecond => 1_000_000,
            BusyTimeout::FiveMilliseconds => 5_000_000,
        }
    }
}

/// A value of `napi_defer_hard_irqs` that no idle period uses up: the device's poll then
/// stays on the processor to which it was bound. The customary 100 is used up after a
/// tenth of a second without traffic. The next packet then makes the poll run on the
/// *sender's* processor, which gives Linux a second one.
pub(super) const FOR_EVER: u32 = 100_000_000;
/// A port without a listener, for packets that only have to arrive.
const DISCARD_PORT: u16 = 9;

/// How the server receives. Without one of these, the driver's receive work runs on the
/// *sender's* processor, and nothing can be overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Receive packet steering, no XDP, no GRO: a packet becomes work in the softirq of
    /// the server's processor by an inter-processor interrupt. The closest to an
    /// interrupt for each packet.
    Rps,
    /// A timer of 20 µs drives the driver's NAPI in the softirq of the server's
    /// processor, as a coalescing device does.
    Timer,
    /// The application's sockets poll the driver (SO_PREFER_BUSY_POLL); the device
    /// interrupts only if they have not polled for a [`BusyTimeout`].
    Busy,
    /// As [`Mode::Busy`], but the application's epoll instance polls: interrupts are
    /// suspended for as long as its waits find something (Linux 6.13).
    Suspend,
    /// The kernel's default: the driver's NAPI on the sender's processor. Fair only for
    /// idle systems.
    Plain,
    /// For a Tidewall stack, which sets its own parameters.
    Tidewall,
}

impl Mode {
    /// Describes the settings.
    pub fn describe(self) -> &'static str {
        match self {
            Mode::Rps => "receive packet steering to the receiver's CPU, GRO off, no XDP",
            Mode::Timer => {
                "NAPI in softirq on the receiver's CPU by a 20 µs timer (gro_flush_timeout=20000, \
                 napi_defer_hard_irqs=100000000), GRO on"
            }
            Mode::Busy => {
                "SO_PREFER_BUSY_POLL, GRO on, gro_flush_timeout 1 ms (lrp-overload) or 5 ms \
                 (lrp-latency, lrp-base), whichever is better, bound to the receiver's CPU \
                 (napi_defer_hard_irqs=100000000)"
            }
            Mode::Suspend => {
                "interrupt suspension: GRO on, irq_suspend_timeout 20 ms by netlink, \
                 gro_flush_timeout 200 µs, bound to the receiver's CPU \
                 (napi_defer_hard_irqs=100000000)"
            }
            Mode::Plain => "kernel defaults, NAPI on the sender's CPU",
            Mode::Tidewall => "AF_XDP, GRO on, the stack's own interrupt deferral",
        }
    }

    fn gro(self) -> bool {
        !matches!(self, Mode::Rps | Mode::Plain)
    }

    fn knobs(self, busy: BusyTimeout) -> (u64, u32) {
        match self {
            Mode::Rps | Mode::Plain | Mode::Tidewall => (0, 0),
            Mode::Timer => (TIMER_PERIOD, FOR_EVER),
            Mode::Busy => (busy.nanoseconds(), FOR_EVER),
            Mode::Suspend => (SUSPEND_FLUSH, FOR_EVER),
        }
    }
}

impl Testbed {
    /// Returns the present mode.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Sets how long the device waits for a busy-polling socket, from the next change of
    /// mode on.
    pub fn set_busy_timeout(&mut self, timeout: BusyTimeout) {
        if self.busy_timeout != timeout {
            self.busy_timeout = timeout;
            self.mode = None;
        }
    }

    /// Forgets the present mode, since another process has changed its settings: the next
    /// one is set in full.
    pub(crate) fn forget_mode(&mut self) {
        self.mode = None;
    }

    /// Sets the server's interface up for `mode`. No stack may be attached to
    /// it.
    ///
    /// # Errors
    /// The output of a failed step.
    pub fn set_mode(&mut self, mode: Mode) -> anyhow::Result<()> {
        if self.mode == Some(mode) {
            return Ok(());
        }
        self.mode = None;
        let class = format!("/sys/class/net/{SERVER_INTERFACE}");
        let (timeout, defer) = mode.knobs(self.busy_timeout);
        let gro = if mode.gro() { "on" } else { "off" };
        let steer = match mode {
            Mode::Rps => cpu_mask(self.config.server_cpu),
            _ => "0".to_owned(),
        };
        // First to zero, which ends a running timer; GRO switches NAPI.
        self.in_server_shell(&format!(
            "echo 0 > {class}/napi_defer_hard_irqs; echo 0 > {class}/gro_flush_timeout; \
             ethtool -K {SERVER_INTERFACE} gro {gro}; \
             for q in {class}/queues/rx-*; do echo {steer} > $q/rps_cpus; done; \
             echo {defer} > {class}/napi_defer_hard_irqs; echo {timeout} > {class}/gro_flush_timeout"
        ))?;
        if defer == FOR_EVER {
            self.bind_timer(timeout)?;
        }
        self.mode = Some(mode);
        Ok(())
    }

    /// Sends a packet from the server's processor, which binds the device's poll and its
    /// timer to it, and verifies the binding.
    fn bind_timer(&self, period: u64) -> anyhow::Result<()> {
        let queues = self.config.queues;
        if queues < 2 {
            return self.bind_queue(period, 1);
        }
        // One after the other: packets sent from that processor are steered to each queue
        // in turn. The client's own entry stays.
        for queue in 0..queues {
            if queue != self.client_queue() {
                self.send_on(self.config.server_cpu, queue)?;
                self.bind_queue(period, u64::from(queue) + 1)?;
                self.clear_queue(queue)?;
            }
        }
        let own = self.client_queue();
        self.send_on(self.config.server_cpu, own)?;
        let bound = self.bind_queue(period, queues.into());
        self.send_on(self.config.client_cpu, own)?;
        bound
    }

    fn clear_queue(&self, queue: u32) -> anyhow::Result<()> {
        self.in_client_shell(&format!(
            "echo 0 > /sys/class/net/{CLIENT_INTERFACE}/queues/tx-{queue}/xps_cpus"
        ))
    }

    /// Binds one queue; `bound` queues are bound then, this one included.
    fn bind_queue(&self, period: u64, bound: u64) -> anyhow::Result<()> {
        const LOOK: Duration = Duration::from_millis(30);
        // A third of the number that follows from the period: an idle poll may be
        // delayed. Timers as close as those of the timer mode share softirqs.
        let bound = if period > TIMER_PERIOD { bound } else { 1 };
        let enough = LOOK.as_nanos() as u64 / period * bound / 3;
        let cpu = self.config.server_cpu;
        let pin = cpu.to_string();
        // A socket's packets from that processor use that processor's queue.
        let script = format!("printf tidewall > /dev/udp/{}/{DISCARD_PORT}", SERVER.0);
        let mut polls = 0;
        for _ in 0..5 {
            self.in_client(&["taskset", "-c", &pin, "bash", "-c", &script])?;
            let before = receive_softirqs(cpu);
            thread::sleep(LOOK);
            polls = receive_softirqs(cpu).saturating_sub(before);
            if polls >= enough {
                return Ok(());
            }
        }
        bail!(
            "the device's poll does not run on CPU {cpu}: {polls} receive softirqs in {LOOK:?}, \
             expected over {enough}"
        )
    }
}

/// Returns the receive softirqs of a processor so far.
fn receive_softirqs(cpu: usize) -> u64 {
    let text = fs::read_to_string("/proc/softirqs").unwrap_or_default();
    softirqs(&text, "NET_RX", cpu)
}

fn softirqs(text: &str, kind: &str, cpu: usize) -> u64 {
    let mut lines = text.lines();
    let heading = format!("CPU{cpu}");
    let column = lines
        .next()
        .and_then(|line| line.split_whitespace().position(|name| name == heading));
    lines
        .find_map(|line| line.trim().strip_prefix(kind)?.strip_prefix(':'))
        .zip(column)
        .and_then(|(counts, column)| counts.split_whitespace().nth(column)?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_are_read_by_kind_and_processor() {
        let text = "                    CPU0       CPU2\n          HI:          1          2\n      NET_TX:          3          4\n      NET_RX:         50         60\n";
        assert_eq!(softirqs(text, "NET_RX", 0), 50);
        assert_eq!(softirqs(text, "NET_RX", 2), 60);
        assert_eq!(softirqs(text, "NET_RX", 1), 0);
        assert_eq!(softirqs("", "NET_RX", 0), 0);
    }
}
