//! The SIOCETHTOOL call: the kernel's answer overwrites the request.

use std::io;
use std::os::fd::BorrowedFd;

use crate::raw_interface::Request;

/// linux/sockios.h; the same on every architecture.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Bytes of an interface name, its closing zero included (IFNAMSIZ).
pub const NAME_BYTES: usize = libc::IFNAMSIZ;

/// ETHTOOL_GDRVINFO of linux/ethtool.h, like all that follow.
pub const GET_DRIVER: u32 = 0x03;
/// ETHTOOL_GCOALESCE.
pub const GET_COALESCE: u32 = 0x0e;
/// ETHTOOL_SCOALESCE.
pub const SET_COALESCE: u32 = 0x0f;
/// ETHTOOL_GTSO: whether the device cuts TCP segments.
pub const GET_SEGMENTATION: u32 = 0x1e;
/// ETHTOOL_GFLAGS.
pub const GET_FLAGS: u32 = 0x25;
/// ETHTOOL_SFLAGS.
pub const SET_FLAGS: u32 = 0x26;
/// ETHTOOL_GRXCLSRLCNT.
pub const GET_RULE_COUNT: u32 = 0x2e;
/// ETHTOOL_GRXCLSRLALL.
pub const GET_ALL_RULES: u32 = 0x30;
/// ETHTOOL_SRXCLSRLDEL.
pub const DELETE_RULE: u32 = 0x31;
/// ETHTOOL_SRXCLSRLINS.
pub const INSERT_RULE: u32 = 0x32;
/// ETHTOOL_GRXFHINDIR.
pub const GET_INDIRECTION: u32 = 0x38;
/// ETHTOOL_SRXFHINDIR.
pub const SET_INDIRECTION: u32 = 0x39;
/// ETHTOOL_GFEATURES.
pub const GET_FEATURES: u32 = 0x3a;
/// ETHTOOL_SFEATURES.
pub const SET_FEATURES: u32 = 0x3b;
/// ETHTOOL_GCHANNELS.
pub const GET_CHANNELS: u32 = 0x3c;

/// Bytes of `struct ethtool_drvinfo`.
pub const DRIVER_BYTES: usize = 196;
/// Bytes of `struct ethtool_coalesce`.
pub const COALESCE_BYTES: usize = 92;
/// Bytes of `struct ethtool_value`.
pub const VALUE_BYTES: usize = 8;
/// Bytes of `struct ethtool_channels`.
pub const CHANNELS_BYTES: usize = 36;
/// Bytes of `struct ethtool_gfeatures` and `struct ethtool_sfeatures` without blocks: the
/// command and the number of blocks.
pub const FEATURES_BYTES: usize = 8;
/// Bytes of `struct ethtool_get_features_block`.
pub const GET_FEATURES_BLOCK: usize = 16;
/// Bytes of `struct ethtool_set_features_block`.
pub const SET_FEATURES_BLOCK: usize = 8;
/// Bytes of `struct ethtool_rxfh_indir` without entries: the command and the number of
/// entries.
pub const INDIRECTION_BYTES: usize = 8;
/// Bytes of `struct ethtool_rxnfc` without rule locations.
pub const RULES_BYTES: usize = 192;
/// Offset of `rule_cnt` in `struct ethtool_rxnfc`.
pub const RULE_COUNT_AT: usize = 184;
/// Offset of `rule_locs` in `struct ethtool_rxnfc`.
pub const LOCATIONS_AT: usize = 188;

/// Bytes that the kernel may read and write for a request; `None` for a command that is
/// not listed above.
fn needed(request: &[u8]) -> Option<usize> {
    let word = |at: usize| {
        let word = request.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*word))
    };
    let with = |fixed: usize, count: u32, each: usize| {
        fixed.checked_add(usize::try_from(count).ok()?.checked_mul(each)?)
    };
    Some(match word(0)? {
        GET_DRIVER => DRIVER_BYTES,
        GET_COALESCE | SET_COALESCE => COALESCE_BYTES,
        GET_SEGMENTATION | GET_FLAGS | SET_FLAGS => VALUE_BYTES,
        GET_CHANNELS => CHANNELS_BYTES,
        GET_RULE_COUNT | INSERT_RULE | DELETE_RULE => RULES_BYTES,
        GET_FEATURES => with(FEATURES_BYTES, word(4)?, GET_FEATURES_BLOCK)?,
        SET_FEATURES => with(FEATURES_BYTES, word(4)?, SET_FEATURES_BLOCK)?,
        GET_INDIRECTION | SET_INDIRECTION => with(INDIRECTION_BYTES, word(4)?, 4)?,
        GET_ALL_RULES => with(LOCATIONS_AT, word(RULE_COUNT_AT)?, 4)?.max(RULES_BYTES),
        _ => return None,
    })
}

/// Executes one request on the interface with this zero-padded name, in the network
/// namespace in which `fd` was opened. Async-signal-safe.
///
/// # Errors
/// InvalidInput: a command that is not listed above, or a request shorter than its
/// command requires. Otherwise the errors of the kernel and the driver.
pub fn call(fd: BorrowedFd<'_>, name: &[u8; NAME_BYTES], request: &mut [u8]) -> io::Result<()> {
    if needed(request).is_none_or(|needed| request.len() < needed) || name[NAME_BYTES - 1] != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The kernel accesses as many bytes as `needed` returns; they are present.
    let place = request.as_mut_ptr() as usize;
    Request::new(*name, &place.to_ne_bytes()).call(fd, SIOCETHTOOL)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_request_shorter_than_the_kernel_touches_never_reaches_it() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut name = [0; NAME_BYTES];
        name[..2].copy_from_slice(b"lo");
        let kind = |command: u32, length: usize, rules: u32| {
            let mut request = vec![0; length];
            request[..4].copy_from_slice(&command.to_ne_bytes());
            if length >= LOCATIONS_AT {
                request[RULE_COUNT_AT..LOCATIONS_AT].copy_from_slice(&rules.to_ne_bytes());
            }
            call(socket.as_fd(), &name, &mut request)
                .unwrap_err()
                .kind()
        };
        let invalid = io::ErrorKind::InvalidInput;
        assert_eq!(kind(GET_DRIVER, DRIVER_BYTES - 1, 0), invalid);
        assert_eq!(kind(GET_COALESCE, COALESCE_BYTES - 1, 0), invalid);
        assert_eq!(kind(GET_CHANNELS, CHANNELS_BYTES - 1, 0), invalid);
        assert_eq!(kind(SET_FLAGS, VALUE_BYTES - 1, 0), invalid);
        for (command, block) in [
            (GET_FEATURES, GET_FEATURES_BLOCK),
            (SET_FEATURES, SET_FEATURES_BLOCK),
            (GET_INDIRECTION, 4),
            (SET_INDIRECTION, 4),
        ] {
            let mut request = vec![0; FEATURES_BYTES + 2 * block - 1];
            request[..4].copy_from_slice(&command.to_ne_bytes());
            for blocks in [2, u32::MAX] {
                request[4..8].copy_from_slice(&blocks.to_ne_bytes());
                let error = call(socket.as_fd(), &name, &mut request).unwrap_err();
                assert_eq!(error.kind(), invalid);
            }
        }
        assert_eq!(kind(INSERT_RULE, RULES_BYTES - 1, 0), invalid);
        assert_eq!(kind(GET_ALL_RULES, RULES_BYTES, 2), invalid);
        assert_eq!(kind(GET_ALL_RULES, RULES_BYTES, u32::MAX), invalid);
        // ETHTOOL_GSET, whose structure is not listed here.
        assert_eq!(kind(1, 4096, 0), invalid);
        // Long enough: the loopback device itself refuses it.
        assert_ne!(kind(GET_COALESCE, COALESCE_BYTES, 0), invalid);
        assert_ne!(kind(GET_ALL_RULES, LOCATIONS_AT + 8, 2), invalid);
    }
}
