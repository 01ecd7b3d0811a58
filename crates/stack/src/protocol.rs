//! The interface of the protocols above the stack, which the stack's threads call.

use std::any::Any;
use std::io;
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_device::queue::KernelDelivered;
use tidewall_sys::netlink::SocketDiag;

use crate::core::Core;
use crate::snapshot::StackSnapshot;

/// Sockets that a burst of sending leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None: the thread may sleep.
    Nothing,
    /// Connections with nothing but an acknowledgment that data may carry
    /// ([`tidewall_protocol::tcp::Connection::may_piggyback`]), for a short time, while they
    /// are few.
    Acknowledgments,
    /// Those, and connections that were reported to the application, which will write to
    /// them.
    Reported,
    /// Those of [`Hold::Acknowledgments`], and each connection's last segment that is not
    /// full: the application goes on writing.
    Partial,
}

/// A protocol, registered with a stack when that starts.
///
/// Each method has a default that does nothing. No caller holds a lock.
pub trait Protocol: Any + Send + Sync {
    /// Called when the stack starts: the protocol takes its fixed channels.
    fn begin(&self, _core: &Core) {}

    /// Returns true for one that has work of its own before each wait: [`Protocol::run`] and
    /// [`Protocol::send`] are called for no other.
    fn works_between_waits(&self) -> bool {
        false
    }

    /// Runs what is due at `now` and has no timer: frames left for later, scarce memory.
    fn run(&self, _core: &Core, _now: Duration) {}

    /// Sends a burst of what sockets have to send, without what `hold` leaves out. Returns
    /// true when there is more, for after the next round of receiving.
    fn send(&self, _core: &Core, _hold: Hold) -> bool {
        false
    }

    /// Returns true when frames wait that no thread asleep in the stack may process.
    fn has_waiting_frames(&self) -> bool {
        false
    }

    /// Processes frames of sockets that no context polls.
    fn process_pending(&self, _core: &Core) {}

    /// Accepts a datagram or segment that came through the kernel while NAPI ids were
    /// discovered. Returns true if it was for this protocol.
    fn take_kernel_delivered(&self, _core: &Core, _from: KernelDelivered, _payload: &[u8]) -> bool {
        false
    }

    /// Changes the longest IP packet that the link sends, in bytes.
    fn set_mtu(&self, _mtu: usize) {}

    /// Called when the interface is gone: sockets without a kernel socket fail.
    fn lose_device(&self, _core: &Core) {}

    /// Asks the kernel for what sockets need from it, on the control thread. Returns the
    /// time until it must be called again.
    fn ask_kernel(&self, _core: &Core, _sockets: Option<&mut SocketDiag>) -> Option<Duration> {
        None
    }

    /// Local ports of datagram sockets, with their channels.
    fn datagram_ports(&self) -> Vec<(u16, ChannelId)> {
        Vec::new()
    }

    /// Returns true while sockets listen for connections.
    fn has_listeners(&self) -> bool {
        false
    }

    /// Adds sockets and counters to what an operator sees.
    fn describe(&self, _core: &Core, _snapshot: &mut StackSnapshot) {}

    /// Called when the stack ends: closed sockets send their remaining data, for a while.
    fn end(&self, _core: &Core) {}
}

impl Core {
    /// Returns the state of a protocol; `None` if the stack was started without it.
    pub fn find_protocol<P: Protocol>(&self) -> Option<&P> {
        let mut states = self.protocols.iter().map(|it| &**it as &dyn Any);
        states.find_map(<dyn Any>::downcast_ref)
    }

    /// Fails if the stack was started without a protocol, before the protocol's first
    /// socket is created.
    ///
    /// # Errors
    /// EPROTONOSUPPORT.
    pub fn check_protocol<P: Protocol>(&self) -> io::Result<()> {
        match self.find_protocol::<P>() {
            Some(_) => Ok(()),
            None => Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)),
        }
    }

    /// The state of a protocol that has sockets.
    #[inline]
    pub fn protocol<P: Protocol>(&self) -> &P {
        self.find_protocol()
            .expect("sockets are made of registered protocols only")
    }
}
