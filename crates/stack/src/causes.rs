//! Counts frames by cause in the stages after the channel.

use std::sync::atomic::{AtomicU64, Ordering};

use tidewall_protocol::DropReason;

use crate::snapshot::StackCounters;

/// Counters of the stages after the channel.
#[derive(Debug)]
pub struct Causes {
    protocol: Box<[AtomicU64]>,
    no_socket: AtomicU64,
    socket_full: AtomicU64,
    icmp_errors: AtomicU64,
    copied_out: AtomicU64,
    kernel_delivered: AtomicU64,
}

impl Default for Causes {
    fn default() -> Self {
        Causes {
            protocol: (0..DropReason::COUNT).map(|_| AtomicU64::new(0)).collect(),
            no_socket: AtomicU64::new(0),
            socket_full: AtomicU64::new(0),
            icmp_errors: AtomicU64::new(0),
            copied_out: AtomicU64::new(0),
            kernel_delivered: AtomicU64::new(0),
        }
    }
}

impl Causes {
    /// Counts a frame that the protocol rejected.
    pub fn protocol(&self, cause: DropReason) {
        if let Some(counter) = self.protocol.get(cause.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a complete datagram whose socket is gone.
    pub fn no_socket(&self) {
        self.no_socket.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reassembled datagram for a socket whose buffer is full.
    pub fn socket_full(&self) {
        self.socket_full.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an ICMP error about one of the stack's flows.
    pub fn icmp_error(&self) {
        self.icmp_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a datagram or segment that came through the kernel.
    pub fn kernel_delivered(&self) {
        self.kernel_delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts datagrams moved out of frames because frame memory was short.
    pub fn copied_out(&self, datagrams: u64) {
        self.copied_out.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Returns all counters.
    pub fn counters(&self) -> StackCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StackCounters {
            protocol: DropReason::ALL
                .iter()
                .zip(&self.protocol)
                .map(|(cause, count)| (cause.name().to_owned(), read(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            no_socket: read(&self.no_socket),
            socket_full: read(&self.socket_full),
            icmp_errors: read(&self.icmp_errors),
            copied_out: read(&self.copied_out),
            kernel_delivered: read(&self.kernel_delivered),
            ..StackCounters::default()
        }
    }
}
