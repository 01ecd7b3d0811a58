//! A stack with all its protocols.

use std::io;
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

/// The protocols of every stack. Those looked up most often come first; an operator sees
/// them in the reverse order, and so they end.
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
/// Clones share it. It closes its device when the last clone and the last socket are gone.
/// [`StackHandle`] has what concerns all protocols.
///
/// A stack belongs to one process. In a forked child every call that needs it fails with
/// EOWNERDEAD, and dropping it or its sockets does nothing. What the child inherited of the
/// interface and the ports is closed at once, so that the parent's end frees them. A server
/// that forks workers forks first and starts one stack per worker.
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
    /// `NotFound` where there is no such interface; `Unsupported` where its driver takes no
    /// such program; EPERM without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON (and
    /// CAP_SYS_NICE for host architectures); EBUSY when something else is
    /// attached to the interface; EINVAL for a configuration out of range.
    pub fn embedded(config: EmbeddedConfig) -> io::Result<Self> {
        StackHandle::embedded(config, protocols).map(|handle| Stack { handle })
    }

    /// A stack of a process that needs no privilege: the interface is a manager's, who
    /// listens at a path (`tidewalld`) and hands over queues. While it is gone, what is
    /// there goes on; sockets are bound when it is back.
    ///
    /// Of `config` the manager decides what concerns the device: the interface, its queues
    /// and where the driver program runs; there are neither threads that receive nor
    /// traffic classes. The process serves no `tidewall stat` by itself. In private mode
    /// policy and spin of `config` hold while the application is alone on the device, which
    /// it then polls itself; otherwise a thread of the kernel's does, and a thread that
    /// waits sleeps.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused` where no manager listens; EPERM for a user that it
    /// does not trust; EBUSY while another application has the queues; EINVAL for a
    /// configuration out of range, or before Linux 6.4.
    pub fn managed(manager: &Path, config: EmbeddedConfig) -> io::Result<Self> {
        StackHandle::managed(manager, config, protocols).map(|handle| Stack { handle })
    }

    /// A stack at the far end of a tap that it makes. It is a host of its own:
    /// ports are its own too, no kernel socket holds them, and nobody answers
    /// what comes for no socket of it.
    ///
    /// # Errors
    /// EINVAL for a configuration out of range or without addresses; EBUSY when
    /// there is an interface of this name; EPERM without CAP_NET_ADMIN; ENOENT
    /// where the kernel has no /dev/net/tun.
    pub fn tap(config: TapConfig) -> io::Result<Self> {
        StackHandle::tap(config, protocols).map(|handle| Stack { handle })
    }

    #[cfg(feature = "testutil")]
    /// A stack on one end of an in-memory link: no privileges, no kernel, and
    /// whatever clock the link has.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn in_memory(port: LinkPort, config: MemoryConfig) -> io::Result<Self> {
        StackHandle::in_memory(port, config, protocols).map(|handle| Stack { handle })
    }

    #[cfg(feature = "testutil")]
    /// As [`Stack::in_memory`], with `clock` for the protocols' own timers:
    /// time since any fixed moment. Timeouts of calls that wait are in real time
    /// all the same. Nothing happens by itself: frames and timers are seen to
    /// when somebody calls, and connections that were closed are driven by
    /// calls about others, or not at all.
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
    /// As [`Stack::in_memory`], on virtual time: timeouts of calls that wait are on
    /// that clock too.
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

    /// Waits until one of `sockets` has something to receive. Returns their
    /// places in the list, highest priority first ([`UdpSocket::set_priority`]);
    /// none on timeout. `None` waits for ever.
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

    /// The kernel's parameters of TCP as they were when the stack started, or as
    /// `Stack::set_sysctl` has set them: what its connections begin with.
    pub fn sysctl(&self) -> Sysctl {
        settings::sysctl(self)
    }

    /// Sets the keys of Fast Open cookies (`tcp_fastopen_key`): for several
    /// machines that serve one address. At the start they are the network
    /// namespace's, or random where that has none.
    pub fn set_fast_open_keys(&self, keys: FastOpenKeys) {
        settings::set_fast_open_keys(self, keys);
    }

    /// Sets for how long no client uses Fast Open once the network seems to have
    /// swallowed it (`tcp_fastopen_blackhole_timeout_sec`, in whole seconds, an hour
    /// unless set; zero goes on using it).
    pub fn set_fast_open_black_hole(&self, time: Duration) {
        settings::set_fast_open_black_hole(self, time);
    }

    /// The keys of Fast Open cookies (`Stack::set_fast_open_keys`).
    pub fn fast_open_keys(&self) -> FastOpenKeys {
        settings::fast_open_keys(self)
    }

    /// Draws a new key for Fast Open cookies. Those that the last one has made are
    /// still taken, and replaced; older ones no more (RFC 7413 §4.1.2 wants this
    /// done now and then).
    ///
    /// # Errors
    /// What `/dev/urandom` reports.
    pub fn rotate_fast_open_key(&self) -> io::Result<()> {
        settings::rotate_fast_open_key(self)
    }

    /// Has the stack say what other processes do to adopted listeners. The first watcher stays.
    pub fn on_shared_listener(&self, watcher: Watcher) {
        settings::on_shared_listener(self, watcher);
    }

    #[cfg(feature = "atm")]
    /// Controls the circuits of the interface in this stack: sockets call and are called
    /// by [`AtmSocket::connect`] and [`AtmListener`]. Signalling runs on circuit 0.5 (UNI
    /// 3.1), which the other end of the link, a stack or a switch, must do as well. The
    /// link is brought up by the first call, of either end.
    ///
    /// # Errors
    /// EADDRINUSE when the interface is controlled already, or circuit 0.5 is open; ENODEV
    /// where it is none of ATM (`Stack::attach_atm`); what binding a circuit reports.
    ///
    /// [`AtmSocket::connect`]: crate::AtmSocket::connect
    /// [`AtmListener`]: super::AtmListener
    pub fn control_atm(&self, config: AtmControl) -> io::Result<()> {
        Atm::control_atm(self, config)
    }

    #[cfg(feature = "atm")]
    /// True where the stack controls its circuits, or its manager does; in a forked child
    /// never.
    pub fn controls_atm(&self) -> bool {
        Atm::controls_atm(self)
    }

    #[cfg(feature = "atm")]
    /// Makes the interface an ATM interface whose circuits lead to `next_hop`, a neighbour
    /// on its link: another stack, a cell switch, or a router. Frames go to its link
    /// address, which is resolved like that of any neighbour. Open circuits lead there from
    /// now on, too.
    ///
    /// # Errors
    /// EOWNERDEAD in a forked child; `Unsupported` for an application of a manager.
    pub fn attach_atm(&self, next_hop: IpAddr) -> io::Result<()> {
        Atm::attach_atm(self, next_hop)
    }

    /// Sets the bytes of memory that data of all TCP connections may take: what waits
    /// to be read, came out of order, or was written and not acknowledged. From two
    /// thirds of it on nothing is held out of order and windows and buffers stay small;
    /// at the limit no connection holds more than 4 KiB of new data either way, nobody
    /// new gets in, and the largest connections that are closed are reset (Linux
    /// `tcp_mem`). What an application has not read, and what a connection that is not
    /// closed has to send, is kept.
    pub fn set_tcp_memory(&self, bytes: u64) {
        settings::set_tcp_memory(self, bytes);
    }

    /// Sets how many connections that are closed the stack drives at most, until
    /// what was written has arrived; those closed beyond are reset (Linux
    /// `tcp_max_orphans`).
    pub fn set_tcp_orphans(&self, connections: u64) {
        settings::set_tcp_orphans(self, connections);
    }

    /// The process is about to end, and with it all sockets, of which none is used any
    /// more: connections that were closed send what they have, for a while. In a forked
    /// child it does nothing.
    pub fn linger(&self) {
        settings::linger(self);
    }

    /// Changes the kernel's parameters of TCP, for connections that begin from now
    /// on.
    pub fn set_sysctl(&self, sysctl: &Sysctl) {
        settings::set_sysctl(self, sysctl);
    }
}
