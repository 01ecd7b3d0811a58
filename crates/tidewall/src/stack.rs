//! A stack with all its protocols.

use std::io;
#[cfg(feature = "atm")]
use std::net::IpAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "atm")]
use tidewall_circuits::{Atm, AtmControl};
#[cfg(feature = "testutil")]
use tidewall_device::memory::LinkPort;
#[cfg(feature = "forward")]
use tidewall_forward::Forwarding;
use tidewall_protocol::tcp::{FastOpenKeys, Sysctl};
#[cfg(feature = "mio")]
use tidewall_readiness::event_loop::Notifier;
use tidewall_readiness::registration::File;
use tidewall_socket::UdpSocket;
use tidewall_socket::listener_holders::Watcher;
use tidewall_socket::tcp::{Tcp, settings};
use tidewall_socket::udp::Udp;
use tidewall_stack::StackHandle;
use tidewall_stack::protocol::Protocol;
use tidewall_stack::stack::{EmbeddedConfig, Start, TapConfig};
use tidewall_stack::threads::Waitable;
#[cfg(feature = "testutil")]
use {tidewall_stack::clock::VirtualTime, tidewall_stack::stack::MemoryConfig};

/// Creates the protocols of every stack. Those looked up most often come first. They are
/// shown to an operator, and ended, in the reverse order.
fn protocols(start: Start<'_>) -> io::Result<Vec<Arc<dyn Protocol>>> {
    Ok(vec![
        Arc::new(Tcp::new(start)?),
        #[cfg(feature = "atm")]
        Arc::new(Atm::default()),
        Arc::new(Udp::default()),
        #[cfg(feature = "mio")]
        Arc::new(Notifier::default()),
        #[cfg(feature = "forward")]
        Arc::new(Forwarding::default()),
    ])
}

/// A stack: the queues of a device, in the application's process, and its sockets.
///
/// ```no_run
/// use std::time::Duration;
/// use tidewall::{EmbeddedConfig, Stack, UdpSocket};
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let queries = UdpSocket::bind(&stack, ([0, 0, 0, 0], 53).into())?;
/// let control = UdpSocket::bind(&stack, ([0, 0, 0, 0], 5300).into())?;
/// control.set_priority(6)?;
/// let sockets = [&queries, &control];
/// for index in stack.wait(&sockets, Some(Duration::from_secs(1)))? {
///     let mut buffer = [0; 512];
///     let (length, source) = sockets[index].recv_from(&mut buffer)?;
///     println!("{length} bytes from {source}");
/// }
/// # std::io::Result::Ok(())
/// ```
///
/// Clones share it. It closes its device when the last clone and the last socket are gone.
/// [`StackHandle`] has the calls that concern all protocols.
///
/// A stack belongs to one process. In a forked child every call that needs it fails with
/// EOWNERDEAD, and dropping it or its sockets does nothing. The child closes its inherited
/// descriptors of the interface and the ports at once, so that the parent's end frees them.
/// A server that forks workers forks first and starts one stack per worker.
#[derive(Clone)]
pub struct Stack {
    handle: StackHandle,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

impl Deref for Stack {
    type Target = StackHandle;

    fn deref(&self) -> &StackHandle {
        &self.handle
    }
}

impl Stack {
    /// Takes over an interface's queues. Frames for ports that no Tidewall
    /// socket owns stay with the kernel, through bounded channels.
    ///
    /// # Errors
    /// - `NotFound` if there is no such interface.
    /// - `Unsupported` if its driver accepts no such program.
    /// - EPERM without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON (and
    ///   CAP_SYS_NICE for host architectures).
    /// - EBUSY if another program is attached to the interface.
    /// - EINVAL for a configuration out of range.
    pub fn embedded(config: EmbeddedConfig) -> io::Result<Self> {
        StackHandle::embedded(config, protocols).map(|handle| Stack { handle })
    }

    /// Starts a stack in a process that needs no privilege. A manager (`tidewalld`), which
    /// listens at a path, owns the interface and hands over queues. While the manager is
    /// gone, existing sockets continue to work; new sockets are bound when it is back.
    ///
    /// The manager overrides the part of `config` that concerns the device: the interface,
    /// its queues and where the driver program runs. There are neither threads that receive
    /// nor traffic classes. The process does not answer `tidewall stat` itself.
    ///
    /// In private mode, the policy and spin of `config` hold while the application is alone
    /// on the device, which it then polls itself. Otherwise a kernel thread polls, and a
    /// thread that waits sleeps.
    ///
    /// # Errors
    /// - `NotFound`, `ConnectionRefused` if no manager listens.
    /// - EPERM for a user that the manager does not trust.
    /// - EBUSY while another application has the queues.
    /// - EINVAL for a configuration out of range, or before Linux 6.4.
    pub fn managed(manager: &Path, config: EmbeddedConfig) -> io::Result<Self> {
        StackHandle::managed(manager, config, protocols).map(|handle| Stack { handle })
    }

    /// Creates a tap and starts a stack at its far end. The stack is a separate host with
    /// separate ports, which no kernel socket holds. Frames for none of its sockets are not
    /// answered.
    ///
    /// # Errors
    /// - EINVAL for a configuration out of range or without addresses.
    /// - EBUSY if there is an interface of this name.
    /// - EPERM without CAP_NET_ADMIN.
    /// - ENOENT if the kernel has no /dev/net/tun.
    pub fn tap(config: TapConfig) -> io::Result<Self> {
        StackHandle::tap(config, protocols).map(|handle| Stack { handle })
    }

    #[cfg(feature = "testutil")]
    /// Starts a stack on one end of an in-memory link, without privileges or a kernel, on
    /// the link's clock.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory(port: LinkPort, config: MemoryConfig) -> io::Result<Self> {
        StackHandle::in_memory(port, config, protocols).map(|handle| Stack { handle })
    }

    #[cfg(feature = "testutil")]
    /// As [`Stack::in_memory`], with `clock` for the protocols' timers: the time since any
    /// fixed moment. Timeouts of calls that wait remain in real time. No thread runs in the
    /// background: frames and timers are processed during calls. Closed connections are
    /// driven by calls on others, or not at all.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory_on_clock(
        port: LinkPort,
        config: MemoryConfig,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> io::Result<Self> {
        StackHandle::in_memory_on_clock(port, config, clock, protocols)
            .map(|handle| Stack { handle })
    }

    #[cfg(feature = "testutil")]
    /// As [`Stack::in_memory`], on virtual time, which also applies to timeouts of calls
    /// that wait.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn on_virtual_time(
        port: LinkPort,
        config: MemoryConfig,
        time: Arc<dyn VirtualTime>,
    ) -> io::Result<Self> {
        StackHandle::on_virtual_time(port, config, time, protocols).map(|handle| Stack { handle })
    }

    /// Waits until one of `sockets` has a datagram to receive. Returns the indices of those
    /// that have one, highest priority first ([`UdpSocket::set_priority`]), and none on
    /// timeout. `None` waits for ever.
    ///
    /// # Errors
    /// EINTR when a signal arrives; EINVAL for a socket of another stack.
    pub fn wait(
        &self,
        sockets: &[&UdpSocket],
        timeout: Option<Duration>,
    ) -> io::Result<Vec<usize>> {
        if sockets.iter().any(|socket| !socket.is_of(self)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let deadline = timeout.map(|timeout| self.core().clock.instant_now() + timeout);
        let waited: Vec<&dyn Waitable> = sockets.iter().map(|it| it.waitable()).collect();
        let core = self.here()?;
        core.receiver.sleep(core, &waited, deadline)?;
        let has_input = |&n: &usize| sockets[n].waitable().has_input();
        let mut ready: Vec<usize> = (0..sockets.len()).filter(has_input).collect();
        ready.sort_by_key(|&n| std::cmp::Reverse(sockets[n].priority()));
        Ok(ready)
    }

    /// Returns the TCP parameters with which connections begin: those of the kernel when
    /// the stack started, or those of [`Stack::set_sysctl`].
    pub fn sysctl(&self) -> Sysctl {
        settings::sysctl(self)
    }

    /// Sets the keys of Fast Open cookies (`tcp_fastopen_key`), for several machines that
    /// serve one address. The default is the network namespace's keys, or random ones if it
    /// has none.
    pub fn set_fast_open_keys(&self, keys: FastOpenKeys) {
        settings::set_fast_open_keys(self, keys);
    }

    /// Sets for how long no client uses Fast Open once the network seems to have dropped it
    /// (`tcp_fastopen_blackhole_timeout_sec`). The unit is whole seconds and the default is
    /// an hour. With zero, clients continue to use it.
    pub fn set_fast_open_black_hole(&self, time: Duration) {
        settings::set_fast_open_black_hole(self, time);
    }

    /// Returns the keys of Fast Open cookies ([`Stack::set_fast_open_keys`]).
    pub fn fast_open_keys(&self) -> FastOpenKeys {
        settings::fast_open_keys(self)
    }

    /// Draws a new key for Fast Open cookies. Cookies of the previous key are still
    /// accepted, and replaced; older ones are not. RFC 7413 §4.1.2 asks for a new key from
    /// time to time.
    ///
    /// # Errors
    /// Those of `/dev/urandom`.
    pub fn rotate_fast_open_key(&self) -> io::Result<()> {
        settings::rotate_fast_open_key(self)
    }

    /// Reports to `watcher` what other processes do to adopted listeners. Only the first
    /// watcher counts.
    pub fn on_shared_listener(&self, watcher: Watcher) {
        settings::on_shared_listener(self, watcher);
    }

    #[cfg(feature = "atm")]
    /// Controls the circuits of the interface in this stack: sockets make calls by
    /// [`AtmSocket::connect`] and accept them by [`AtmListener`]. Signalling runs on circuit
    /// 0.5 (UNI 3.1); the other end of the link, a stack or a switch, must signal there as
    /// well. The first call of either end brings the link up.
    ///
    /// # Errors
    /// EADDRINUSE if the interface is controlled already, or circuit 0.5 is open. ENODEV if
    /// it is not an ATM interface ([`Stack::attach_atm`]). Those of binding a circuit.
    ///
    /// [`AtmSocket::connect`]: crate::AtmSocket::connect
    /// [`AtmListener`]: super::AtmListener
    pub fn control_atm(&self, config: AtmControl) -> io::Result<()> {
        Atm::control_atm(self, config)
    }

    #[cfg(feature = "atm")]
    /// Returns true if the stack or its manager controls its circuits; never in a forked
    /// child.
    pub fn controls_atm(&self) -> bool {
        Atm::controls_atm(self)
    }

    #[cfg(feature = "atm")]
    /// Makes the interface an ATM interface whose circuits lead to `next_hop`, a neighbour
    /// on its link: another stack, a cell switch, or a router. Frames go to its link
    /// address, which is resolved like that of any neighbour. Circuits that are open already
    /// lead there from now on, too.
    ///
    /// # Errors
    /// EOWNERDEAD in a forked child; `Unsupported` for an application of a manager.
    pub fn attach_atm(&self, next_hop: IpAddr) -> io::Result<()> {
        Atm::attach_atm(self, next_hop)
    }

    /// Sets the bytes of memory for the data of all TCP connections (Linux `tcp_mem`): data
    /// that is unread, out of order, or written and not acknowledged.
    ///
    /// From two thirds of the limit on, no data is held out of order, and windows and buffers
    /// stay small. At the limit:
    ///
    /// - no connection holds more than 4 KiB of new data in either direction;
    /// - no new connection is accepted;
    /// - the largest closed connections are reset.
    ///
    /// Data that an application has not read, or that an open connection has to send, is
    /// kept.
    pub fn set_tcp_memory(&self, bytes: u64) {
        settings::set_tcp_memory(self, bytes);
    }

    /// Sets the maximum number of closed connections that the stack drives until their
    /// written data has arrived. Those closed beyond it are reset (Linux
    /// `tcp_max_orphans`).
    pub fn set_tcp_orphans(&self, connections: u64) {
        settings::set_tcp_orphans(self, connections);
    }

    /// Waits a while for closed connections to send their data. The caller is a process that
    /// is about to end and no longer uses any socket. In a forked child it does nothing.
    pub fn linger(&self) {
        settings::linger(self);
    }

    /// Sets the TCP parameters of connections that begin from now on.
    pub fn set_sysctl(&self, sysctl: &Sysctl) {
        settings::set_sysctl(self, sysctl);
    }
}
