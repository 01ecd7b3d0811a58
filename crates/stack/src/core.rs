//! The state that all threads and all protocols of a stack share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidewall_device::demux::ApplicationTables;
use tidewall_device::forked::Process;
use tidewall_device::queue::KernelDelivered;
use tidewall_manager::record::Record;

use crate::causes::Causes;
use crate::channels::ChannelPool;
use crate::clock::Clock;
use crate::helper::Helper;
use crate::ip::Ip;
use crate::lock::{Mutex, lock, rank};
use crate::netdev::NetDevice;
use crate::operator::Operator;
use crate::output::Output;
use crate::protocol::Protocol;
use crate::receiver::Receiver;
use crate::timers::Timers;
use crate::trace::TraceLog;

/// The state that threads of the stack share.
pub struct Core {
    /// The process that the stack belongs to: in a forked child nothing of it is left.
    pub process: Process,
    /// The queues, and the threads that poll them or sleep on them.
    pub receiver: Receiver,
    /// The driver program's tables that this application may write.
    pub tables: Arc<ApplicationTables>,
    /// Routes, path MTUs and fragments.
    pub ip: Ip,
    /// The channels and their owners.
    pub channels: ChannelPool,
    /// The timers of all endpoints.
    pub timers: Timers,
    /// The sockets and devices with something to send.
    pub output: Arc<Output>,
    /// The thread that serves connections while the application is busy elsewhere.
    pub helper: Arc<Helper>,
    /// The protocols, those looked up most often first.
    pub protocols: Vec<Arc<dyn Protocol>>,
    /// Protocols with work of their own before each wait.
    pub workers: Vec<Arc<dyn Protocol>>,
    /// Counters of the stages after the channel.
    pub causes: Causes,
    /// Lines of the frames that are traced.
    pub trace: TraceLog,
    /// An operator's requests to the program.
    pub operator: Operator,
    /// Held while a socket is bound, connected or closed.
    pub binding: Mutex<(), rank::Binding>,
    /// The stack's clock.
    pub clock: Clock,
    /// The device.
    pub netdev: NetDevice,
    /// Lists the process's sockets that stay with the kernel.
    pub unprotected: OnceLock<fn() -> Vec<Record>>,
}

impl Core {
    /// Time since the stack started.
    #[inline]
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Marks the interface as gone. Listeners and datagram sockets continue on the kernel
    /// sockets that hold their ports, even if an interface appears again. Sockets without
    /// a kernel socket get ENODEV. Connections end as if their peers were silent.
    pub fn lose_device(&self) {
        if self.netdev.link.gone.swap(true, Ordering::SeqCst) {
            return;
        }
        let name = &self.netdev.name;
        self.netdev.warn(format!(
            "{name} is no more: sockets are the kernel's until this process is restarted"
        ));
        if let Some(say) = self.netdev.when_gone.get() {
            say(name);
        }
        lock(&self.ip.routes).lose_interface();
        for protocol in &self.protocols {
            protocol.lose_device(self);
        }
        self.receiver.leadership.wake_leader();
    }

    /// Hands a datagram or segment that came through the kernel while NAPI ids were
    /// discovered to the protocol that it is for.
    pub fn deliver_from_kernel(&self, from: KernelDelivered, payload: &[u8]) {
        self.causes.kernel_delivered();
        let mut protocols = self.protocols.iter();
        if !protocols.any(|it| it.take_kernel_delivered(self, from, payload)) {
            self.causes.no_socket();
        }
    }
}
