//! The hash's table of receive queues (`ethtool -x`, RSS indirection).

use std::io;

use super::rules::Call;
use super::{Channels, Device, finish_undo};
use crate::restore::{Restorer, Undo};
use tidewall_sys::ethtool::{GET_INDIRECTION, INDIRECTION_BYTES, SET_INDIRECTION};

const KNOB: &str = "the hash's table of queues (RSS indirection, ethtool -x)";
/// An upper bound on plausible table entries.
const MOST_PLACES: u32 = 1 << 16;

/// A receive queue that the device's hash puts no flow on, until this is dropped or the
/// process dies. Only frames named by a rule arrive there.
#[derive(Debug)]
#[must_use = "dropping it widens the table at once"]
pub struct Narrowed {
    device: Device,
    owner: u32,
    /// `None` if the table was already without the queue.
    undo: Option<Undo>,
}

impl Narrowed {
    /// Removes the last receive queue of `interface` from the table. A table without the
    /// queue that an operator has set stays as it is.
    ///
    /// # Errors
    /// Nothing has changed then.
    ///
    /// - `Unsupported`: the device has no such table (veth) or only one queue, or the
    ///   operator's table uses the queue
    /// - `PermissionDenied`: without CAP_NET_ADMIN
    /// - `NotFound`
    /// - what registering with the restorer reports
    pub fn without_last(restorer: &Restorer, interface: &str) -> io::Result<Narrowed> {
        let device = Device::open(interface)?;
        let queues = Channels::of(&device)?.receive();
        let mut call = |request: &mut [u8]| device.call_bytes(request);
        let table = read(&mut call).map_err(|error| device.refused(KNOB, "", &error))?;
        let narrow = match narrowed(&table, queues) {
            Ok(narrow) => narrow,
            Err(why) => {
                let text = format!("{interface}: {KNOB}: {why}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        };
        let undo = match narrow {
            None => None,
            Some(table) => {
                let undo = device.on_exit(restorer, &RESET)?;
                if let Err(error) = call(&mut request(&table)) {
                    finish_undo(Some(undo), &Ok(()));
                    return Err(device.refused(KNOB, "", &error));
                }
                Some(undo)
            }
        };
        Ok(Narrowed {
            device,
            owner: std::process::id(),
            undo,
        })
    }
}

impl Drop for Narrowed {
    fn drop(&mut self) {
        if self.owner == std::process::id()
            && let Some(undo) = self.undo.take()
        {
            let mut bytes = [0; INDIRECTION_BYTES];
            for (to, from) in bytes.chunks_exact_mut(4).zip(RESET) {
                to.copy_from_slice(&from.to_ne_bytes());
            }
            finish_undo(Some(undo), &self.device.call_bytes(&mut bytes));
        }
    }
}

/// Requests the kernel's default table: the device's queues in turn
/// (`ethtool -X DEV default`). Having no entries, it marks the table as not set by hand
/// again. With a driver that orders its queues otherwise they are in turn from then on,
/// as evenly.
const RESET: [u32; 2] = [SET_INDIRECTION, 0];

/// The table without its last queue; `None` if it is already so.
///
/// # Errors
/// The reason, in words, why it must stay.
fn narrowed(table: &[u32], queues: u32) -> Result<Option<Vec<u32>>, &'static str> {
    let Some(last) = queues.checked_sub(1).filter(|&last| last > 0) else {
        return Err("there is one queue");
    };
    if table.is_empty() {
        return Err("the device has none, so that its flows cannot be kept off a queue");
    }
    if !table.contains(&last) {
        return Ok(None);
    }
    let places = table.len() as u32;
    let usual = |queues: u32| (0..places).map(move |place| place % queues);
    // As igb and igc set it: each queue's entries side by side.
    let block = |place: u32| (u64::from(place) * u64::from(queues) / u64::from(places)) as u32;
    let read = table.iter().copied();
    if !read.clone().eq(usual(queues)) && !read.eq((0..places).map(block)) {
        return Err("it was set by hand (ethtool -X) and uses the last queue");
    }
    Ok(Some(usual(last).collect()))
}

fn read(call: &mut Call<'_>) -> io::Result<Vec<u32>> {
    let mut size = empty(GET_INDIRECTION, 0);
    call(&mut size)?;
    let places = word(&size, 4).min(MOST_PLACES);
    let mut table = empty(GET_INDIRECTION, places);
    if places > 0 {
        call(&mut table)?;
    }
    let at = |place: usize| word(&table, INDIRECTION_BYTES + 4 * place);
    Ok((0..places as usize).map(at).collect())
}

/// The request that sets the table.
fn request(table: &[u32]) -> Vec<u8> {
    let mut bytes = empty(SET_INDIRECTION, table.len() as u32);
    let places = bytes.get_mut(INDIRECTION_BYTES..).unwrap_or_default();
    for (to, from) in places.chunks_exact_mut(4).zip(table) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    bytes
}

fn empty(command: u32, places: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INDIRECTION_BYTES + 4 * places as usize);
    bytes.extend(command.to_ne_bytes());
    bytes.extend(places.to_ne_bytes());
    bytes.resize(INDIRECTION_BYTES + 4 * places as usize, 0);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_table_loses_its_last_queue() {
        let table = [0, 1, 2, 3, 0, 1, 2, 3];
        assert_eq!(narrowed(&table, 4), Ok(Some(vec![0, 1, 2, 0, 1, 2, 0, 1])));
        assert_eq!(narrowed(&[0, 1, 0], 2), Ok(Some(vec![0, 0, 0])));
        // As igb has it.
        assert_eq!(narrowed(&[0, 0, 1, 1, 2], 3), Ok(Some(vec![0, 1, 0, 1, 0])));
    }

    #[test]
    fn an_operators_table_is_left_alone() {
        assert_eq!(narrowed(&[0, 1, 1, 0], 3), Ok(None));
        for (table, queues) in [(&[2, 2, 0, 1][..], 3), (&[0, 0], 1), (&[], 4)] {
            assert!(narrowed(table, queues).is_err(), "{table:?} {queues}");
        }
    }

    /// A device's table, in the kernel's answer.
    #[test]
    fn what_is_read_is_what_was_set() {
        let mut device = vec![0, 1, 2, 0, 1, 2];
        let mut asked = Vec::new();
        let mut call = |bytes: &mut [u8]| {
            asked.push((word(bytes, 0), word(bytes, 4)));
            match (word(bytes, 0), word(bytes, 4)) {
                (GET_INDIRECTION, 0) => bytes[4..8].copy_from_slice(&6u32.to_ne_bytes()),
                (GET_INDIRECTION, 6) => bytes.copy_from_slice(&{
                    let mut answer = request(&device);
                    answer[..4].copy_from_slice(&GET_INDIRECTION.to_ne_bytes());
                    answer
                }),
                (SET_INDIRECTION, 6) => {
                    device = (0..6).map(|place| word(bytes, 8 + 4 * place)).collect();
                }
                other => panic!("{other:?}"),
            }
            Ok(())
        };
        let table = read(&mut call).unwrap();
        assert_eq!(table, [0, 1, 2, 0, 1, 2]);
        call(&mut request(&narrowed(&table, 3).unwrap().unwrap())).unwrap();
        assert_eq!(read(&mut call).unwrap(), [0, 1, 0, 1, 0, 1]);
        assert_eq!(asked[..3], [(0x38, 0), (0x38, 6), (0x39, 6)]);
    }
}
