//! What all threads and all protocols of a stack share.

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
    /// The process that it is in: in a forked child nothing of it is left.
    pub process: Process,
    pub receiver: Receiver,
    pub tables: Arc<ApplicationTables>,
    pub ip: Ip,
    pub channels: ChannelPool,
    pub timers: Timers,
    pub output: Arc<Output>,
    pub helper: Arc<Helper>,
    pub protocols: Vec<Arc<dyn Protocol>>,
    pub causes: Causes,
    pub trace: TraceLog,
    /// What an operator wants done by the program.
    pub operator: Operator,
    /// Held while a socket is bound, connected or closed.
    pub binding: Mutex<(), rank::Binding>,
    pub clock: Clock,
    pub netdev: NetDevice,
    /// Lists the process's sockets that stay with the kernel.
    pub unprotected: OnceLock<fn() -> Vec<Record>>,
}

impl Core {
    /// Time since the stack started.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The interface is no more. Listeners and datagram sockets go on by the kernel sockets
    /// that hold their ports, also once there is an interface again; what has none gets ENODEV,
    /// and connections end as if their peers were silent.
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
