//! What Linux says of an interface, without privileges.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use tidewall_sys::ethtool::{DRIVER_BYTES, GET_DRIVER, NAME_BYTES, call};
use tidewall_sys::interface::any_socket;

/// Receive queues of an interface, `None` where sysfs does not show it.
pub fn queue_count(interface: &str) -> Option<u32> {
    let [receive, _] = queue_counts(interface)?;
    Some(receive).filter(|&count| count > 0)
}

/// Transmit queues of an interface, `None` where sysfs does not show it.
pub fn transmit_queue_count(interface: &str) -> Option<u32> {
    let [_, transmit] = queue_counts(interface)?;
    Some(transmit).filter(|&count| count > 0)
}

/// Receive and transmit queues of an interface, `None` where sysfs does not show it.
pub fn queue_counts(interface: &str) -> Option<[u32; 2]> {
    let entries = std::fs::read_dir(format!("/sys/class/net/{interface}/queues")).ok()?;
    let mut counts = [0; 2];
    for entry in entries.flatten() {
        let name = entry.file_name();
        for (count, prefix) in counts.iter_mut().zip(["rx-", "tx-"]) {
            *count += u32::from(name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        }
    }
    Some(counts)
}

/// True for hardware, that of a virtual machine included.
pub fn is_physical(interface: &str) -> bool {
    Path::new(&format!("/sys/class/net/{interface}/device")).exists()
}

/// True where the host forwards what comes in at an interface, of IPv4 or of IPv6.
pub fn forwards(interface: &str) -> bool {
    ["ipv4", "ipv6"].into_iter().any(|family| {
        let path = format!("/proc/sys/net/{family}/conf/{interface}/forwarding");
        // Without IPv6, or /proc, it does not.
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    })
}

/// Where `struct ethtool_drvinfo` holds the driver's name, and its length.
const DRIVER_NAME: std::ops::Range<usize> = 4..36;

/// The name of an interface's driver (`ethtool -i`), such as `virtio_net`.
///
/// # Errors
/// EOPNOTSUPP where there is no driver (the loopback device); ENODEV for no such
/// interface; `InvalidInput` for what cannot be an interface name.
pub fn driver(interface: &str) -> io::Result<String> {
    let mut request = [0; DRIVER_BYTES];
    request[..4].copy_from_slice(&GET_DRIVER.to_ne_bytes());
    let socket = any_socket()?;
    call(socket.as_fd(), &name_bytes(interface)?, &mut request)?;
    let name = request[DRIVER_NAME].split(|&byte| byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// An interface name as the kernel takes it.
///
/// # Errors
/// `InvalidInput` for what cannot be one.
pub fn name_bytes(interface: &str) -> io::Result<[u8; NAME_BYTES]> {
    let bytes = interface.as_bytes();
    // As dev_valid_name() in the kernel; names also become parts of paths.
    let allowed = |&byte: &u8| byte != 0 && byte != b'/' && !byte.is_ascii_whitespace();
    let fits = !bytes.is_empty() && bytes.len() < NAME_BYTES && bytes.iter().all(allowed);
    if !fits || matches!(interface, "." | "..") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{interface:?} is not an interface name"),
        ));
    }
    let mut name = [0; NAME_BYTES];
    for (to, from) in name.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_checked_before_they_go_anywhere() {
        assert_eq!(
            &name_bytes("eth0").unwrap(),
            b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
        assert!(name_bytes("fifteen-letters").is_ok());
        for name in ["", "sixteen-letters!", "a/b", "a b", "a\0", ".", ".."] {
            let error = name_bytes(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    fn a_device_without_a_driver_says_so() {
        let refused = |interface: &str| driver(interface).unwrap_err();
        assert_eq!(refused("lo").raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(refused("tw-none-such").raw_os_error(), Some(libc::ENODEV));
        assert_eq!(refused("a/b").kind(), io::ErrorKind::InvalidInput);
    }
}
