//! Parsing and setting options: values in Linux's layouts.

use std::time::Duration;

use tidewall::OpenFile;
use tidewall_protocol::tcp::{Congestion, FastOpenKeys};

use super::table::{Given, TABLE, Treatment, place_of};
use crate::socket::State;
use crate::{Errno, Result};

/// The smallest send and receive buffers that Linux sets (`SOCK_MIN_SNDBUF`,
/// `SOCK_MIN_RCVBUF`).
pub(super) const SEND_BUFFER_MIN: u32 = 4608;
pub(super) const RECEIVE_BUFFER_MIN: u32 = 2304;
/// `net.core.wmem_max`, above Linux's default, so a program gets the size it requests.
const BUFFER_MAX: u32 = 1 << 26;

/// Parses an option's value as an int. One byte is enough for the IP options.
pub(crate) fn int(value: &[u8]) -> Result<i32> {
    match value {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([*a, *b, *c, *d])),
        [byte, ..] => Ok((*byte).into()),
        [] => Err(Errno::INVAL),
    }
}

pub(crate) fn between(value: i32, least: i32, most: i32) -> Result<u32> {
    if (least..=most).contains(&value) {
        Ok(value as u32)
    } else {
        Err(Errno::INVAL)
    }
}

/// Converts `SO_SNDBUF` and `SO_RCVBUF` for the engine. Linux doubles the requested size
/// and uses half of that for data.
pub(super) fn buffer(value: i32, least: u32) -> u32 {
    let bytes = u32::try_from(value).unwrap_or(u32::MAX).min(BUFFER_MAX);
    bytes.max(least / 2)
}

pub(super) fn milliseconds(value: i32) -> Result<Option<Duration>> {
    match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(Duration::from_millis(value))),
        Err(_) => Err(Errno::INVAL),
    }
}

/// Parses `struct timeval` of SO_RCVTIMEO and SO_SNDTIMEO; zero means no timeout.
pub(crate) fn timeval(value: &[u8]) -> Result<Option<Duration>> {
    let (seconds, micros) = value.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let micros = micros.first_chunk::<8>().ok_or(Errno::INVAL)?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).unwrap_or(0);
    let micros = i64::from_ne_bytes(*micros);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros as u64);
    Ok((!time.is_zero()).then_some(time))
}

pub(super) fn timeval_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let micros = i64::from(time.subsec_micros());
    [(time.as_secs() as i64).to_ne_bytes(), micros.to_ne_bytes()].concat()
}

/// Parses `TCP_FASTOPEN_KEY`: one key, or two.
pub(super) fn keys_of(value: &[u8]) -> Result<FastOpenKeys> {
    let (primary, backup) = match value.as_chunks::<16>() {
        ([primary], []) => (*primary, None),
        ([primary, backup], []) => (*primary, Some(*backup)),
        _ => return Err(Errno::INVAL),
    };
    Ok(FastOpenKeys { primary, backup })
}

/// Parses `TCP_CONGESTION`: a name, which may end with a zero byte.
pub(super) fn congestion_of(value: &[u8]) -> Result<Congestion> {
    let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
    let known = core::str::from_utf8(name).ok();
    let known = known.and_then(Congestion::from_name);
    known.ok_or(Errno(libc::ENOENT))
}

/// Sets an option.
pub(crate) fn set(
    state: &mut State,
    file: &OpenFile,
    fast_client: bool,
    which: (i32, i32),
    value: &[u8],
) -> Result<()> {
    let (level, name) = which;
    let place = place_of(which).ok_or(Errno(libc::ENOPROTOOPT))?;
    let row = TABLE.get(place).ok_or(Errno(libc::ENOPROTOOPT))?;
    let is_text = level == libc::IPPROTO_TCP && name == libc::TCP_CONGESTION;
    if level != libc::IPPROTO_IP && !is_text && value.len() < size_of::<i32>() {
        return Err(Errno::INVAL);
    }
    let options = &mut state.options;
    match row.treatment {
        Treatment::Applied { set, .. } => set(
            options,
            &Given {
                file,
                fast_client,
                value,
            },
        ),
        // For a listener, the kernel socket that holds its port has these.
        Treatment::Kept(_) if matches!(file, OpenFile::Listener(_)) => {
            Err(Errno(libc::ENOPROTOOPT))
        }
        Treatment::Kept(values) => options.change(|rare| rare.kept.set(place, values, value)),
    }
}
