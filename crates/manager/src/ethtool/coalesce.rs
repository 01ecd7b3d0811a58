//! Interrupt coalescing: T of receive control on a real card
//! (`ethtool -C … rx-usecs`).

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zerocopy::FromZeros;

use super::layout::Coalesce;
use super::{Device, finish_undo};
use crate::restore::{Restorer, Undo};
use tidewall_sys::ethtool::{GET_COALESCE, SET_COALESCE};

const TIME: &str = "rx-usecs (interrupt coalescing, ethtool -C)";
const FRAMES: &str = "rx-frames (interrupt coalescing, ethtool -C)";
const INSTEAD: &str = "; T of a virtual device is its gro_flush_timeout in /sys/class/net";

/// When a device interrupts for received frames: at the first of the two limits that is
/// reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moderation {
    /// Longest wait after a frame arrived; zero: only the count decides.
    pub time: Duration,
    /// Number of frames to wait for; zero: only the time decides.
    pub frames: u32,
    /// True while the driver adapts the time by itself.
    pub adaptive: bool,
}

impl Moderation {
    /// Queries the driver of `interface`.
    ///
    /// # Errors
    /// `Unsupported` where the driver has no coalescing (veth, the loopback device);
    /// `NotFound` for no such interface; `InvalidInput` for what cannot be an interface
    /// name.
    pub fn read(interface: &str) -> io::Result<Moderation> {
        Ok(Moderation::of(&Device::open(interface)?.coalesce()?))
    }

    fn of(values: &Coalesce) -> Moderation {
        Moderation {
            time: Duration::from_micros(u64::from(values.rx_usecs)),
            frames: values.rx_frames,
            adaptive: values.adaptive_rx != 0,
        }
    }
}

impl Device {
    fn coalesce(&self) -> io::Result<Coalesce> {
        let mut values = Coalesce::new_zeroed();
        values.command = GET_COALESCE;
        self.call(&mut values)
            .map_err(|error| self.refused(TIME, INSTEAD, &error))?;
        Ok(values)
    }

    /// Applies `change` to the current values, leaving the rest as it is. The error is
    /// the kernel's own.
    fn change_coalesce(&self, change: impl FnOnce(&mut Coalesce)) -> io::Result<()> {
        let mut values = Coalesce::new_zeroed();
        values.command = GET_COALESCE;
        self.call(&mut values)?;
        values.command = SET_COALESCE;
        change(&mut values);
        self.call(&mut values)
    }
}

/// Control over a device's coalescing. The initial values are restored when it is dropped
/// or the process dies; only changed values are restored.
///
/// Setting a value takes the kernel's lock on network configuration and makes the driver
/// talk to the device, from microseconds to milliseconds. It is meant for changes of
/// policy, not for each round. Setting the present value again costs nothing.
#[derive(Debug)]
#[must_use = "dropping it puts the old values back at once"]
pub struct Coalescing {
    device: Device,
    restorer: Restorer,
    owner: u32,
    found: Coalesce,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The intended count: initial, or the caller's.
    frames: u32,
    /// The last requested time, and the device's result. Microseconds.
    time: Option<(u32, u32)>,
    /// Largest time worth requesting, in microseconds.
    ceiling: u32,
    /// Whether time and count were ever set.
    set_time: bool,
    set_frames: bool,
    /// Restores the driver's own adaptation, if it was on. After the values: some drivers
    /// refuse them while they adapt.
    undo_adaptive: Option<Undo>,
    /// Restores the values, once one was changed.
    undo_values: Option<Undo>,
}

impl Coalescing {
    /// Remembers the values of `interface` and switches off the driver's own adaptation,
    /// which would overwrite what is set here. Time and count stay as they are until set.
    ///
    /// # Errors
    /// Nothing is left changed.
    ///
    /// - `Unsupported`: the driver has no coalescing (veth, the loopback device); names
    ///   knob and interface
    /// - `PermissionDenied`: without CAP_NET_ADMIN; names knob and interface
    /// - `NotFound`
    /// - `InvalidInput`: what cannot be an interface name
    /// - what registering with the restorer reports
    pub fn take(restorer: &Restorer, interface: &str) -> io::Result<Coalescing> {
        let device = Device::open(interface)?;
        let found = device.coalesce()?;
        let undo_adaptive = match found.adaptive_rx {
            0 => None,
            _ => Some(device.on_exit(restorer, &put_back(&found, found.adaptive_rx))?),
        };
        let state = State {
            frames: found.rx_frames,
            time: None,
            ceiling: u32::MAX,
            set_time: false,
            set_frames: false,
            undo_adaptive,
            undo_values: None,
        };
        let taken = Coalescing {
            device,
            restorer: restorer.clone(),
            owner: std::process::id(),
            found,
            state: Mutex::new(state),
        };
        // Written even where nothing changes: a device that reports its values but
        // accepts none must be detected now.
        taken
            .device
            .change_coalesce(|values| values.adaptive_rx = 0)
            .map_err(|error| taken.device.refused(TIME, INSTEAD, &error))?;
        Ok(taken)
    }

    /// Sets T: how long an interrupt may wait after a frame arrived. It is rounded up to
    /// whole microseconds, so that only zero is zero. It is at most what the device
    /// accepts, to within a factor of two, found by halving. Zero with no count set means
    /// an interrupt per frame.
    ///
    /// Returns the device's resulting value: drivers round too.
    ///
    /// # Errors
    /// `Unsupported` naming knob and interface where the driver has coalescing but no
    /// rx-usecs (tap). What registering with the restorer reports, and then nothing is
    /// changed. What the driver reports.
    pub fn set(&self, time: Duration) -> io::Result<Duration> {
        let wanted = whole_microseconds(time);
        let mut state = self.lock();
        if let Some((asked, held)) = state.time
            && asked == wanted
        {
            return Ok(Duration::from_micros(u64::from(held)));
        }
        self.register(&mut state)?;
        state.set_time = true;
        let State {
            frames,
            ceiling,
            set_frames,
            ..
        } = &mut *state;
        let write = |usecs, frames| {
            self.device.change_coalesce(|values| {
                values.rx_usecs = usecs;
                values.rx_frames = frames;
            })
        };
        let mut result = largest_accepted(wanted, ceiling, |usecs| write(usecs, *frames));
        // linux/ethtool.h: "It is illegal to set both usecs and max_frames to zero"; few
        // drivers mind. A count of one frame is equivalent.
        if wanted == 0 && *frames == 0 && result.as_ref().is_err_and(out_of_range) {
            *set_frames = true;
            result = write(0, 1).map(|()| 0);
        }
        result.map_err(|error| self.device.refused(TIME, INSTEAD, &error))?;
        let held = self.device.coalesce()?.rx_usecs;
        state.time = Some((wanted, held));
        Ok(Duration::from_micros(u64::from(held)))
    }

    /// Sets the number of frames after which the interrupt comes although T is not over;
    /// zero: only T decides. If a driver counts frames, T works only as far as this count
    /// permits. Set T first when both are zero: some drivers refuse a moment with
    /// neither.
    ///
    /// # Errors
    /// As [`Coalescing::set`], for rx-frames.
    pub fn set_frames(&self, frames: u32) -> io::Result<()> {
        let mut state = self.lock();
        if state.frames == frames {
            return Ok(());
        }
        self.register(&mut state)?;
        state.set_frames = true;
        self.device
            .change_coalesce(|values| values.rx_frames = frames)
            .map_err(|error| self.device.refused(FRAMES, "", &error))?;
        state.frames = frames;
        Ok(())
    }

    /// The device's earlier moderation.
    pub fn old(&self) -> Moderation {
        Moderation::of(&self.found)
    }

    /// Registers the restoration of the values, before one is changed for the first time.
    fn register(&self, state: &mut State) -> io::Result<()> {
        if state.undo_values.is_none() {
            let request = put_back(&self.found, 0);
            state.undo_values = Some(self.device.on_exit(&self.restorer, &request)?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Coalescing {
    /// Restores only what was changed; the restorer knows only the initial values.
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        let found = &self.found;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (set_time, set_frames) = (state.set_time, state.set_frames);
        if let Some(undo) = state.undo_values.take() {
            let undone = self.device.change_coalesce(|values| {
                if set_time {
                    values.rx_usecs = found.rx_usecs;
                }
                if set_frames {
                    values.rx_frames = found.rx_frames;
                }
            });
            finish_undo(Some(undo), &undone);
        }
        if let Some(undo) = state.undo_adaptive.take() {
            let adaptive = found.adaptive_rx;
            let undone = self
                .device
                .change_coalesce(|values| values.adaptive_rx = adaptive);
            finish_undo(Some(undo), &undone);
        }
    }
}

/// The request for all initial values, with the driver's own adaptation or not.
fn put_back(found: &Coalesce, adaptive: u32) -> Coalesce {
    Coalesce {
        command: SET_COALESCE,
        adaptive_rx: adaptive,
        ..*found
    }
}

/// Rounded up: a nonzero time must not become "an interrupt per frame".
fn whole_microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX)
}

/// True for a driver's error for a value that is too large.
fn out_of_range(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ERANGE | libc::EOVERFLOW)
    )
}

/// Writes `wanted`, or the first of its halves that is accepted. Drivers do not report
/// their limit (1022 to 65535 µs are in use); `ceiling` remembers the result.
fn largest_accepted(
    wanted: u32,
    ceiling: &mut u32,
    mut write: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<u32> {
    let mut value = wanted.min(*ceiling);
    let first = value;
    loop {
        match write(value) {
            Ok(()) => {
                if value < first {
                    *ceiling = value;
                }
                return Ok(value);
            }
            Err(error) if out_of_range(&error) && value > 1 => value /= 2,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_up_to_whole_microseconds_and_stop_at_the_field() {
        let usecs = |nanos| whole_microseconds(Duration::from_nanos(nanos));
        assert_eq!(usecs(0), 0);
        assert_eq!(usecs(1), 1);
        assert_eq!(usecs(1000), 1);
        assert_eq!(usecs(1001), 2);
        assert_eq!(usecs(200_000), 200);
        assert_eq!(whole_microseconds(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_time_beyond_the_device_is_halved_once_and_remembered() {
        let mut ceiling = u32::MAX;
        let mut tried = Vec::new();
        let mut device = |value: u32| {
            tried.push(value);
            if value > 1022 {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            } else {
                Ok(())
            }
        };
        let mut set = |wanted| largest_accepted(wanted, &mut ceiling, &mut device).unwrap();
        assert_eq!(set(200), 200);
        assert_eq!(set(5000), 625);
        assert_eq!(set(5000), 625);
        assert_eq!(set(100), 100);
        assert_eq!(set(0), 0);
        assert_eq!(tried, [200, 5000, 2500, 1250, 625, 625, 100, 0]);
        assert_eq!(ceiling, 625);
    }

    #[test]
    fn a_refusal_that_is_not_about_size_is_not_tried_again() {
        let mut ceiling = u32::MAX;
        let mut calls = 0;
        let error = largest_accepted(5000, &mut ceiling, |_| {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        })
        .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!((calls, ceiling), (1, u32::MAX));
        // A device that accepts nothing also ends, with its own error.
        let none = |_| Err(io::Error::from_raw_os_error(libc::ERANGE));
        let error = largest_accepted(u32::MAX, &mut ceiling, none).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ERANGE));
        assert_eq!(ceiling, u32::MAX);
    }

    #[test]
    fn only_the_named_fields_differ_between_reading_and_writing() {
        use zerocopy::IntoBytes;
        let mut values = Coalesce::new_zeroed();
        values.command = SET_COALESCE;
        values.rx_usecs = 0x0102;
        values.rx_frames = 0x0304;
        values.adaptive_rx = 1;
        let bytes = values.as_bytes();
        let mut expected = [0u8; 92];
        expected[..4].copy_from_slice(&0x0fu32.to_ne_bytes());
        expected[4..8].copy_from_slice(&0x0102u32.to_ne_bytes());
        expected[8..12].copy_from_slice(&0x0304u32.to_ne_bytes());
        expected[40..44].copy_from_slice(&1u32.to_ne_bytes());
        assert_eq!(bytes, expected);
    }
}
