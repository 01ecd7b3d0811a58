//! Asks the kernel whether an interface transmits XDP frames: one question of
//! the generic netlink family `netdev`.
//!
//! Numbers are those of `include/uapi/linux/{netlink,genetlink,netdev}.h`; see
//! Documentation/netlink/specs/netdev.yaml in the Linux tree.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::raw_socket::generic_netlink;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
/// Bytes of `struct nlmsghdr` and `struct genlmsghdr` together.
const HEADERS_LEN: usize = 20;
/// Bytes before an attribute's value.
const ATTRIBUTE_LEN: usize = 4;

/// True when frames can be redirected to the interface of this index in the
/// caller's namespace. For a veth that is so while its peer has XDP or GRO.
///
/// # Errors
/// What the kernel answers: ENOENT before Linux 6.3, which has no such family.
pub(crate) fn transmits_xdp_frames(index: u32) -> io::Result<bool> {
    let mut socket = File::from(generic_netlink()?);
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = ask(
        &mut socket,
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        &name,
        CTRL_ATTR_FAMILY_ID,
    )?;
    let [low, high, ..] = family[..] else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let features = ask(
        &mut socket,
        u16::from_ne_bytes([low, high]),
        NETDEV_CMD_DEV_GET,
        &attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()),
        NETDEV_A_DEV_XDP_FEATURES,
    )?;
    let features = features.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(u64::from_ne_bytes(*features) & NETDEV_XDP_ACT_NDO_XMIT != 0)
}

/// Sends one command and returns the value of one attribute of the answer.
fn ask(
    socket: &mut File,
    family: u16,
    command: u8,
    attributes: &[u8],
    wanted: u16,
) -> io::Result<Vec<u8>> {
    let length = (HEADERS_LEN + attributes.len()) as u32;
    let mut message = Vec::with_capacity(HEADERS_LEN + attributes.len());
    message.extend(length.to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port: one question at a time needs neither.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    socket.write_all(&message)?;
    // Larger than any answer to these questions.
    let mut answer = vec![0; 16384];
    let length = socket.read(&mut answer)?;
    let answer = answer.get(..length).unwrap_or_default();
    if word(answer, 4) == Some(NLMSG_ERROR) {
        let code = answer.get(16..).and_then(|rest| rest.first_chunk());
        let code = code.map_or(libc::EINVAL, |code| -i32::from_ne_bytes(*code));
        return Err(io::Error::from_raw_os_error(code));
    }
    find(answer.get(HEADERS_LEN..).unwrap_or_default(), wanted)
        .map(<[u8]>::to_vec)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// One attribute, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE_LEN + value.len()) as u16;
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(word(attributes, 0)?);
        if word(attributes, 2)? == wanted {
            return attributes.get(ATTRIBUTE_LEN..length);
        }
        let next = length.max(ATTRIBUTE_LEN).next_multiple_of(4);
        attributes = attributes.get(next..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_padding() {
        let mut bytes = attribute(2, b"netdev\0");
        assert_eq!(bytes.len(), 12);
        bytes.extend(attribute(7, &[]));
        bytes.extend(attribute(3, &99u64.to_ne_bytes()));
        assert_eq!(find(&bytes, 3), Some(&99u64.to_ne_bytes()[..]));
        assert_eq!(find(&bytes, 2), Some(&b"netdev\0"[..]));
        assert_eq!(find(&bytes, 4), None);
    }

    #[test]
    fn damaged_attributes_end_the_search() {
        assert_eq!(find(&[], 1), None);
        assert_eq!(find(&[0; 64], 1), None);
        let mut long = attribute(1, &[5]);
        long[0] = 200;
        assert_eq!(find(&long, 1), None);
    }

    #[test]
    fn loopback_transmits_no_xdp_frames() {
        // Index 1 is lo in every namespace; an older kernel says ENOENT.
        match transmits_xdp_frames(1) {
            Ok(able) => assert!(!able),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT)),
        }
    }
}
