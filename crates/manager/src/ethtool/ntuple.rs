//! Steering flows to receive queues (`ethtool -N`).

use std::io;
use std::net::IpAddr;

use super::layout::{FLAG_NTUPLE, LOCATION_ANY, Value};
use super::{Channels, Device, Features, finish_undo, rules};
use crate::restore::{Restorer, Undo};
use tidewall_device::demux::layout::Protocol;
use tidewall_sys::ethtool::{GET_FLAGS, SET_FLAGS};

const KNOB: &str = "steering flows to receive queues (ntuple rules, ethtool -N)";
/// The alternative where no rule can be inserted.
const INSTEAD: &str = ": frames arrive on the queue that it, or on veth the sender, picks; on \
     veth choose the peer's transmit queue, which is the receive queue here: \
     echo MASK > /sys/class/net/PEER/queues/tx-N/xps_cpus, or set the queue mapping of the \
     sender's packets (tc skbedit queue_mapping N)";

/// The flow to steer: packets to one port of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NtupleRule {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Local address; `None`: all of both families; the unspecified address of a family:
    /// all of that family.
    pub address: Option<IpAddr>,
    /// Destination port, 1 to 65535.
    pub port: u16,
}

/// The device's switch for rules (`ethtool -K … ntuple`), on while this lives. Switching
/// it off removes all rules on most devices, so drop it after every [`Steering`] of the
/// interface.
#[derive(Debug)]
#[must_use = "dropping it switches the feature back at once"]
pub struct Filters {
    /// `None` if it was already on.
    _features: Option<Features>,
}

impl Filters {
    /// Switches the feature on if it is off. It is switched off again when this is
    /// dropped or the process dies.
    ///
    /// # Errors
    /// - `Unsupported`, with the alternative: the device has no such feature (veth, the
    ///   loopback device)
    /// - `PermissionDenied`: without CAP_NET_ADMIN
    /// - `NotFound`
    /// - `InvalidInput`: what cannot be an interface name
    /// - what registering with the restorer reports
    pub fn enable(restorer: &Restorer, interface: &str) -> io::Result<Filters> {
        let device = Device::open(interface)?;
        let refused = |error| device.refused(KNOB, INSTEAD, &error);
        let flags = device.flags().map_err(refused)?;
        if flags & FLAG_NTUPLE != 0 {
            return Ok(Filters { _features: None });
        }
        let mut features = Features::remember(interface)?;
        device.set_flags(flags | FLAG_NTUPLE).map_err(refused)?;
        features.changed(Some(restorer))?;
        // A driver may refuse a feature without an error.
        if device.flags().map_err(refused)? & FLAG_NTUPLE == 0 {
            return Err(refused(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        Ok(Filters {
            _features: Some(features),
        })
    }
}

impl Device {
    fn flags(&self) -> io::Result<u32> {
        let mut value = Value {
            command: GET_FLAGS,
            data: 0,
        };
        self.call(&mut value)?;
        Ok(value.data)
    }

    fn set_flags(&self, data: u32) -> io::Result<()> {
        let command = SET_FLAGS;
        self.call(&mut Value { command, data })
    }
}

/// A flow that the device steers to one receive queue, until this is dropped or the
/// process dies.
///
/// A rule moves only its own flow. The device's hash still spreads the others over all
/// queues, including this one. To reserve a queue for a class, shrink the hash's share
/// (`ethtool -X IF equal N`). Fragments after the first have no port and are spread with
/// the others; so is the first on most devices.
#[derive(Debug)]
#[must_use = "dropping it removes the rules at once"]
pub struct Steering {
    device: Device,
    restorer: Restorer,
    owner: u32,
    /// In the order of insertion.
    rules: Vec<Rule>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Rule {
    location: u32,
    undo: Undo,
}

impl Steering {
    /// Steers `flow` to receive queue `queue` of `interface`. [`Filters`] must be enabled
    /// first. Without an address it takes two rules. If the device does not support them
    /// for IPv6, the one for IPv4 is kept and [`Steering::warnings`] reports it.
    ///
    /// If the driver chooses the location of a rule, the rule can be registered with the
    /// restorer only once it exists. A crash in between leaves it.
    ///
    /// # Errors
    /// Nothing is left behind.
    ///
    /// - `Unsupported`, with the alternative: the device cannot steer (veth, the loopback
    ///   device)
    /// - `InvalidInput`: port 0, a queue that does not exist, or what cannot be an
    ///   interface name
    /// - `StorageFull`: a full rule table
    /// - `PermissionDenied`: without CAP_NET_ADMIN
    /// - `NotFound`
    /// - what registering with the restorer reports
    pub fn add(
        restorer: &Restorer,
        interface: &str,
        flow: NtupleRule,
        queue: u32,
    ) -> io::Result<Steering> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if flow.port == 0 {
            return invalid(format!("{interface}: port 0 cannot be steered"));
        }
        let device = Device::open(interface)?;
        // A driver without this report will itself refuse the queue.
        if let Ok(channels) = Channels::of(&device)
            && queue >= channels.receive()
        {
            let present = channels.receive();
            return invalid(format!(
                "{interface}: no receive queue {queue}, it has {present} (ethtool -L changes that)"
            ));
        }
        let mut steering = Steering {
            device,
            restorer: restorer.clone(),
            owner: std::process::id(),
            rules: Vec::new(),
            warnings: Vec::new(),
        };
        for address in rules::families(flow.address) {
            match steering.insert(flow, address, queue) {
                Ok(()) => {}
                Err(error) if !steering.rules.is_empty() => steering
                    .warnings
                    .push(format!("{error}: IPv6 packets are not steered")),
                Err(error) => return Err(error),
            }
        }
        Ok(steering)
    }

    fn insert(&mut self, flow: NtupleRule, address: IpAddr, queue: u32) -> io::Result<()> {
        let Steering {
            device, restorer, ..
        } = self;
        let spec = rules::encode(flow.protocol, address, flow.port, queue);
        let mut call = |request: &mut [u8]| device.call_bytes(request);
        let registered = |location| device.on_exit(restorer, &rules::deletion(location));
        let wanted = rules::free_location(&mut call).map_err(|error| refused(device, &error))?;
        let before = match wanted {
            LOCATION_ANY => None,
            wanted => Some(registered(wanted)?),
        };
        let location = match rules::insert(&mut call, &spec, wanted) {
            Ok(location) => location,
            Err(error) => {
                finish_undo(before, &Ok(()));
                return Err(refused(device, &error));
            }
        };
        let undo = match before.map_or_else(|| registered(location), Ok) {
            Ok(undo) => undo,
            Err(error) => {
                // It must not stay where nothing would remove it.
                let _ = rules::delete(&mut call, location);
                return Err(error);
            }
        };
        self.rules.push(Rule { location, undo });
        Ok(())
    }

    /// Locations of the rules in the device's table (`ethtool -n`).
    pub fn locations(&self) -> impl Iterator<Item = u32> {
        self.rules.iter().map(|rule| rule.location)
    }

    /// Warnings for the user, in words: that IPv6 is not steered, that a crash could not
    /// be undone.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        let device = &self.device;
        while let Some(rule) = self.rules.pop() {
            let mut call = |request: &mut [u8]| device.call_bytes(request);
            let undone = match rules::delete(&mut call, rule.location) {
                // Another process has already removed it.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                undone => undone,
            };
            finish_undo(Some(rule.undo), &undone);
        }
    }
}

/// The error for a rule that the device refused.
fn refused(device: &Device, error: &io::Error) -> io::Error {
    let refused = device.refused(KNOB, INSTEAD, error);
    if error.raw_os_error() == Some(libc::ENODEV) {
        return refused;
    }
    match device.flags() {
        // Some drivers report "not supported" for "switched off"; the flag alone does not
        // show whether this one could be switched on.
        Ok(flags) if flags & FLAG_NTUPLE == 0 => {
            let interface = &device.interface;
            io::Error::new(
                refused.kind(),
                format!(
                    "{refused}; a driver that knows rules may want them switched on first: \
                     ethtool -K {interface} ntuple on"
                ),
            )
        }
        _ => refused,
    }
}
