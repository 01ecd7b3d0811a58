//! A stack whose device another process owns.

use std::path::Path;

use tidewall_manager::client::Application;
use tidewall_manager::protocol::Join;

use super::*;

impl StackHandle {
    /// Starts a stack in a process without privileges, on a manager's interface. The
    /// manager (`tidewalld`) listens at a path and hands over queues. While it is gone,
    /// existing sockets continue; new sockets are bound when it is back.
    ///
    /// The manager decides the parts of `config` that concern the device: the interface,
    /// its queues and the place at which the driver program runs. There are no threads
    /// that receive and no traffic classes. The process serves no `tidewall stat` by
    /// itself.
    ///
    /// In private mode policy and spin of `config` hold while the application is alone on
    /// the device, which it then polls itself. Otherwise a kernel thread polls it, and a
    /// thread that waits sleeps.
    ///
    /// # Errors
    /// - `NotFound`, `ConnectionRefused` when no manager listens.
    /// - EPERM for a user that it does not trust.
    /// - EBUSY while another application has the queues.
    /// - EINVAL for a configuration out of range, or before Linux 6.4.
    pub fn managed(
        manager: &Path,
        config: EmbeddedConfig,
        protocols: Protocols,
    ) -> io::Result<Self> {
        let config = config.checked()?;
        let Receiving {
            architecture,
            classes,
            ..
        } = &config.receiving;
        if architecture.has_threads() || !classes.is_empty() || config.xdp.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "of a manager's queues there are no traffic classes, and the architecture \
                     is {}; where the driver program runs is the manager's to say",
                    Architecture::Tidewall
                ),
            ));
        }
        let join = Join {
            queues: config.queues,
            frames: config.frames,
            receive_ring: 0,
            flags: 0,
        };
        let (device, queues) = Application::join(manager, &join)?;
        if !config.interface.is_empty() && config.interface != device.interface {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the manager at {} has {}, not {}",
                    manager.display(),
                    device.interface,
                    config.interface
                ),
            ));
        }
        let receiving = config.receiving;
        let interface = Interface::read(&device.interface)?;
        // XDP_TX leaves a veth's peer only where that has a program of its own.
        device
            .tables
            .set_cookie_redirect(device.checksum_offload_possible);
        let snapshot = DeviceSnapshot::of_application(&device, queues.len() as u32);
        let parts = Parts {
            queues,
            tables: device.tables,
            mac: interface.mac,
            mtu: interface.mtu,
            routes: Routes::of_interface(interface.index, Some(device.client.clone()))?,
            receiving,
            input_options: InputOptions {
                checksum_offload_possible: device.checksum_offload_possible,
                verified: false,
            },
            has_kernel: true,
            helper: true,
            driver_answers: driver_answers(
                interface.index,
                device.checksum_offload_possible,
                device.mode,
            ),
            sysctl: config.tcp.unwrap_or_else(host::sysctl),
            name: device.interface,
            warnings: Vec::new(),
            snapshot: Some(snapshot),
            owner: DeviceOwner::managed(device.client),
            adaptor: None,
        };
        let tcp = (config.tcp_memory, config.tcp_orphans);
        Self::assemble(parts, config.control, Clock::real(), protocols, tcp)
    }
}
