//! The forwarder's ports and addresses, and their release.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::net::{SocketFlags, SocketType, bind};

use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Patience;
use tidewall_manager::restore::Undo;
use tidewall_stack::core::Core;
use tidewall_stack::kernel_calls;
use tidewall_wire::atm::pseudowire::Label;

use super::Input;

/// The claims of one interface.
#[derive(Default)]
pub(super) struct Claims {
    /// In the tables of the driver program; without an address, for all.
    ports: Vec<(Option<IpAddr>, u16)>,
    /// The kernel sockets that hold ports.
    held: Vec<OwnedFd>,
    /// Addresses that were added.
    addresses: Vec<Undo>,
    labels: Vec<Label>,
}

impl Claims {
    /// Returns true if strangers' segments arrive at a port of an address.
    pub(super) fn is_open(&self) -> bool {
        self.ports.iter().any(|(address, _)| address.is_some())
    }

    /// Returns everything to the kernel.
    pub(super) fn release(&mut self, core: &Core) {
        for (address, port) in self.ports.drain(..) {
            core.netdev.owner.disown_port(Protocol::Tcp, address, port);
            core.tables.unlisten(Protocol::Tcp, address, port);
        }
        self.held.clear();
        for label in std::mem::take(&mut self.labels) {
            self.release_label(core, label);
        }
        // Dropped, each takes its address away; what fails is left to the restorer.
        self.addresses.clear();
    }

    fn release_label(&mut self, core: &Core, label: Label) {
        self.labels.retain(|&it| it != label);
        core.tables.close_circuit(label);
        core.netdev.owner.disown_circuit(label);
    }
}

impl Input {
    pub(super) fn claim(&mut self, address: SocketAddr) -> io::Result<()> {
        let core = self.stack.here()?;
        if core.netdev.has_kernel {
            let socket = kernel_calls::socket(
                address.is_ipv6(),
                SocketType::STREAM,
                SocketFlags::empty(),
                None,
            )?;
            bind(&socket, &address).map_err(|error| {
                let error = io::Error::from(error);
                io::Error::new(error.kind(), format!("{address}: {error}"))
            })?;
            self.claims.held.push(socket);
        }
        self.own(Some(address.ip()), address.port())
    }

    pub(super) fn claim_ports(&mut self, ports: RangeInclusive<u16>) -> io::Result<()> {
        let path = "/proc/sys/net/ipv4/ip_local_port_range";
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut ends = text.split_whitespace().map_while(|it| it.parse().ok());
        if self.stack.here()?.netdev.has_kernel
            && let (Some(first), Some(last)) = (ends.next(), ends.next())
            && *ports.start() <= last
            && first <= *ports.end()
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "ports {} to {}: the kernel gives sockets those from {first} to {last} \
                     (see: sysctl net.ipv4.ip_local_port_range)",
                    ports.start(),
                    ports.end()
                ),
            ));
        }
        for port in ports {
            self.own(None, port)?;
        }
        Ok(())
    }

    fn own(&mut self, address: Option<IpAddr>, port: u16) -> io::Result<()> {
        let core = self.stack.here()?;
        let id = self.sets.first().map(|set| set.id);
        let id = id.ok_or(io::ErrorKind::NotConnected)?;
        core.tables.listen(Protocol::Tcp, address, port, id)?;
        // Listed before the driver may know it, so that it is taken back if that fails.
        self.claims.ports.push((address, port));
        // The last that was bound, if this one was.
        let held = self.claims.held.last().filter(|_| address.is_some());
        let holder = held.map(AsFd::as_fd);
        let owner = &core.netdev.owner;
        owner.ask_for_port(Protocol::Tcp, address, port, holder, Patience::Restart)?;
        owner.own_port(Protocol::Tcp, address, port)
    }

    pub(super) fn claim_label(&mut self, label: Label) -> io::Result<()> {
        let core = self.stack.here()?;
        let id = self.admitted().ok_or(io::ErrorKind::NotConnected)?;
        core.netdev.owner.ask_for_circuit(label)?;
        core.netdev.owner.own_circuit(label)?;
        core.tables
            .open_circuit(label, id)
            .inspect_err(|_| core.netdev.owner.disown_circuit(label))?;
        self.claims.labels.push(label);
        Ok(())
    }

    pub(super) fn release_label(&mut self, label: Label) -> io::Result<()> {
        let core = self.stack.here()?;
        if self.claims.labels.contains(&label) {
            self.claims.release_label(core, label);
        }
        Ok(())
    }

    pub(super) fn add_address(&mut self, address: IpAddr) -> io::Result<()> {
        let core = self.stack.here()?;
        let name = &core.netdev.name;
        if !core.netdev.has_kernel || kernel_calls::local_addresses(name)?.contains(&address) {
            return Ok(());
        }
        let (prefix, duplicates) = match address {
            IpAddr::V4(_) => (32, None),
            // It would be unusable while the kernel looks for another host that has it.
            IpAddr::V6(_) => (128, Some("nodad")),
        };
        let address = format!("{address}/{prefix}");
        let ip = ip_command()?;
        let change = |verb| ["address", verb, address.as_str(), "dev", name.as_str()];
        let undo = [&[ip][..], &change("del")].concat();
        let undo = core.netdev.owner.run_on_exit(&undo)?;
        let added = Command::new(ip)
            .args(change("add"))
            .args(duplicates)
            .output()?;
        if !added.status.success() {
            // Nothing was changed.
            undo.keep()?;
            let said = String::from_utf8_lossy(&added.stderr);
            let text = format!("{name}: cannot add {address}: {}", said.trim());
            return Err(io::Error::other(text));
        }
        self.claims.addresses.push(undo);
        core.netdev.read_addresses();
        Ok(())
    }
}

/// The path of iproute2's `ip`.
fn ip_command() -> io::Result<&'static str> {
    ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no ip command (iproute2)"))
}
