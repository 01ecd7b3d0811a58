//! A device that a manager owns, as seen by an application of it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use tidewall_device::afxdp::{self, Checksums, Segmentation};
use tidewall_device::demux::{ApplicationTables, DriverCounters};
use tidewall_device::queue::Queue;

use super::owner::Manager;
use super::{Client, Handed};
use crate::XdpMode;
use crate::protocol::{Join, as_text};

/// The device of a stack without privileges: queues that a manager has made, the
/// application's own tables, and the manager. The counterpart of [`crate::AfXdp`].
#[derive(Debug)]
pub struct Application {
    /// Connection for requests to the manager.
    pub client: Arc<Client>,
    /// Its tables.
    pub tables: Arc<ApplicationTables>,
    /// Name of the interface.
    pub interface: String,
    /// Name of the interface's driver; empty if it reports none.
    pub driver: String,
    /// The mode in which the driver program runs.
    pub mode: XdpMode,
    /// True when the driver moves frames without copying.
    pub zero_copy: bool,
    /// Transmit queues of the interface, 0 if not known.
    pub transmit_queues: u32,
    /// As in [`crate::AfXdp`].
    pub checksums: Checksums,
    /// The party that splits long TCP segments; the stack if it does so on any queue.
    pub segmentation: Segmentation,
    /// True when frames may carry checksums that a sender on this host left to its
    /// (virtual) device.
    pub checksum_offload_possible: bool,
}

impl Application {
    /// Joins the manager at a path, and takes over the queues that it hands over.
    ///
    /// # Errors
    /// As [`Client::join`]; EINVAL before Linux 6.4, which hands no queue over; what the
    /// kernel reports.
    pub fn join(path: &Path, join: &Join) -> io::Result<(Self, Vec<Queue>)> {
        let (client, handed) = Client::join(path, join)?;
        let Handed {
            tables,
            counters,
            queues: made,
        } = handed;
        let client = Arc::new(client);
        let joined = client.joined();
        let interface = as_text(&joined.name);
        let number = joined.application as u16;
        let tables = ApplicationTables::of_map(tables.as_fd(), number, joined.hash_key)?;
        let counters = DriverCounters::of_map(counters.as_fd())?;
        let manager = Arc::new(Manager::new(client.clone()));
        let transmit_queues = joined.transmit_queues;
        // A private application's frames leave by its pair, which filters them.
        let is_trusted = joined.private == 0;
        let (mut queues, mut zero_copy) = (Vec::new(), true);
        let (mut checksums, mut segmentation) = (None, None);
        for made in made {
            let queue = made.shape().queue;
            let counters = counters.of_queue(queue);
            let opened = afxdp::adopt(made, &interface, counters, manager.clone(), is_trusted)?;
            zero_copy &= opened.zero_copy();
            let sends = transmit_queues == 0 || queue < transmit_queues;
            if sends && checksums.is_none_or(Checksums::by_device) {
                checksums = Some(opened.checksums());
            }
            if segmentation.is_none_or(Segmentation::is_offloaded) {
                segmentation = Some(opened.segmentation());
            }
            queues.push(opened.into_queue());
        }
        let application = Application {
            tables: Arc::new(tables),
            interface,
            driver: as_text(&joined.driver),
            mode: match joined.mode {
                2 => XdpMode::Generic,
                _ => XdpMode::Native,
            },
            zero_copy,
            transmit_queues,
            checksums: checksums.unwrap_or(Checksums::NoMetadata),
            segmentation: segmentation.unwrap_or(Segmentation::Untrusted),
            checksum_offload_possible: joined.checksum_offload_possible != 0,
            client,
        };
        Ok((application, queues))
    }
}
