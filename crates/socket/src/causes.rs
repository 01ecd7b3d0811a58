//! What the stages after the channel count: frames by cause.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidewall_protocol::DropReason;

use crate::lock::lock;
use crate::stack::Core;

/// Counters of the stages after the channel.
#[derive(Debug)]
pub(crate) struct Causes {
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
    /// The protocol refused a frame.
    pub(crate) fn protocol(&self, cause: DropReason) {
        if let Some(counter) = self.protocol.get(cause.index()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A complete datagram whose socket is gone.
    pub(crate) fn no_socket(&self) {
        self.no_socket.fetch_add(1, Ordering::Relaxed);
    }

    /// A reassembled datagram for a socket that takes no more.
    pub(crate) fn socket_full(&self) {
        self.socket_full.fetch_add(1, Ordering::Relaxed);
    }

    /// An ICMP error about a flow of ours.
    pub(crate) fn icmp_error(&self) {
        self.icmp_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A datagram or segment came through the kernel.
    pub(crate) fn kernel_delivered(&self) {
        self.kernel_delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Datagrams moved out of frames because frame memory was short.
    pub(crate) fn copied_out(&self, datagrams: u64) {
        self.copied_out.fetch_add(datagrams, Ordering::Relaxed);
    }
}

/// What the stages after the channel count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StackCounters {
    /// Drops of the protocol stage by cause; only causes that occurred.
    pub protocol: BTreeMap<String, u64>,
    /// Reassembly counters by name; only those that are not zero.
    pub fragments: BTreeMap<String, u64>,
    /// What became of AAL5 PDUs and cells of circuits by cause; only causes that
    /// occurred.
    #[serde(default)]
    pub circuits: BTreeMap<String, u64>,
    /// Complete datagrams whose socket was gone.
    pub no_socket: u64,
    /// Reassembled datagrams for a socket that took no more.
    pub socket_full: u64,
    /// ICMP errors about flows of ours.
    pub icmp_errors: u64,
    /// Datagrams moved out of frames because frame memory was short.
    pub copied_out: u64,
    /// Datagrams that came through the kernel while polls were learned.
    #[serde(rename = "strays")]
    pub kernel_delivered: u64,
}

impl StackCounters {
    pub(crate) fn take(core: &Core) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let fragments = lock(&core.ip.fragments).counters();
        let named = [
            ("fragments", fragments.fragments),
            ("reassembled", fragments.reassembled),
            ("atomic", fragments.atomic),
            ("malformed", fragments.malformed),
            ("duplicates", fragments.duplicates),
            ("overlaps", fragments.overlaps),
            ("contradictions", fragments.contradictions),
            ("too-many-fragments", fragments.too_many_fragments),
            ("ecn-mismatches", fragments.ecn_mismatches),
            ("refused", fragments.refused),
            ("no-memory", fragments.no_memory),
            ("evicted", fragments.evicted),
            ("timeouts", fragments.timeouts),
        ];
        StackCounters {
            protocol: DropReason::ALL
                .iter()
                .zip(&core.causes.protocol)
                .map(|(cause, count)| (cause.name().to_owned(), read(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            fragments: named
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            circuits: core.atm.counters(core.now()),
            no_socket: read(&core.causes.no_socket),
            socket_full: read(&core.causes.socket_full),
            icmp_errors: read(&core.causes.icmp_errors),
            copied_out: read(&core.causes.copied_out),
            kernel_delivered: read(&core.causes.kernel_delivered),
        }
    }
}
