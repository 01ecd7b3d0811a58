//! Selects the transmit queue of a CPU's frames (XPS, `xps_cpus`).
//!
//! It affects frames that the kernel sends. A frame sent through an AF_XDP socket leaves
//! on the queue that the socket is bound to, whatever is set here.
//!
//! On a veth pair it also steers flows: a frame that the peer puts on its transmit queue
//! N arrives here on receive queue N. So assign the peer's transmit queue N the CPUs that
//! the sender of class N runs on. If there are fewer receive queues than that, the frame
//! bypasses the device's poll and with it XDP; a veth with an attached program rules this
//! out.

use std::fmt::Write;
use std::io;

use super::name_bytes;
use crate::restore::{Knob, Restorer};

/// An upper bound on the CPUs that Linux can be built for (CONFIG_NR_CPUS).
const CPUS: u32 = 8192;

/// Restricts transmit queue `queue` of `interface` to frames sent from `cpus` (a CPU on
/// no queue's list picks by flow). An empty list takes the queue out of use for those
/// choices. The old list is restored when the knob is dropped or the process dies.
///
/// Works on the interfaces that `/sys` shows, those of the network namespace that it was
/// mounted in.
///
/// # Errors
/// `InvalidInput`: no interface name, or a CPU number of 8192 or more. Otherwise what
/// reading or writing the file reports, naming it:
///
/// - `NotFound`: no such interface or queue, or an interface with a single transmit
///   queue, which has no choice to make
/// - `PermissionDenied`: without CAP_NET_ADMIN
/// - EOVERFLOW: a CPU that this machine cannot have
pub fn set(restorer: &Restorer, interface: &str, queue: u32, cpus: &[u32]) -> io::Result<Knob> {
    name_bytes(interface)?;
    let mask = mask(cpus)?;
    let path = format!("/sys/class/net/{interface}/queues/tx-{queue}/xps_cpus");
    Knob::set(restorer, &path, &mask).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => {
                " (no such interface or queue, or it has only one transmit queue)"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{path}: {error}{why}"))
    })
}

/// CPUs in the kernel's format: hexadecimal words of 32, highest first.
fn mask(cpus: &[u32]) -> io::Result<String> {
    if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= CPUS) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("CPU {cpu} does not exist: Linux numbers them below {CPUS}"),
        ));
    }
    let words = cpus.iter().max().map_or(0, |highest| highest / 32);
    let mut text = String::new();
    for word in (0..=words).rev() {
        let bits = cpus
            .iter()
            .filter(|&&cpu| cpu / 32 == word)
            .fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
        let separator = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{bits:08x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_words_of_32_cpus_highest_first() {
        assert_eq!(mask(&[]).unwrap(), "00000000");
        assert_eq!(mask(&[0]).unwrap(), "00000001");
        assert_eq!(mask(&[1, 3, 1]).unwrap(), "0000000a");
        assert_eq!(mask(&[31]).unwrap(), "80000000");
        assert_eq!(mask(&[32, 0]).unwrap(), "00000001,00000001");
        assert_eq!(mask(&[95]).unwrap(), "80000000,00000000,00000000");
        assert_eq!(mask(&[8191]).unwrap().len(), 256 * 9 - 1);
        let error = mask(&[0, 8192]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("8192"), "{error}");
    }

    #[test]
    fn a_name_that_would_leave_the_directory_is_refused() {
        let restorer = Restorer::start().unwrap();
        let error = set(&restorer, "../eth0", 0, &[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
