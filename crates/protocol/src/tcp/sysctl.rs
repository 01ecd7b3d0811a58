//! Linux's parameters of TCP that the engine supports (`net.ipv4.tcp_…`, see
//! `Documentation/networking/ip-sysctl.rst`): their names, their text format, and the
//! [`Config`] that they produce. A process with a network namespace reads them there.

use core::time::Duration;

use super::{Config, Congestion, Ecn, FastOpenKeys, Keepalive, MtuProbing};

/// Why a parameter was not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SysctlError {
    /// The engine has no parameter of that name.
    Unknown,
    /// The text is not a value of the parameter.
    Value,
}

/// The parameters. The default is Linux's.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sysctl {
    /// `tcp_rmem`: least, first and largest receive buffer, in bytes of memory.
    pub receive_memory: [u32; 3],
    /// `tcp_wmem`: least, first and largest send buffer, in bytes of memory.
    pub send_memory: [u32; 3],
    /// `tcp_timestamps`: offer and take timestamps.
    pub timestamps: bool,
    /// `tcp_sack`: offer and take selective acknowledgments.
    pub sack: bool,
    /// `tcp_window_scaling`: offer and take scaled windows.
    pub window_scaling: bool,
    /// `tcp_ecn`: 0 never, 1 asked for and granted, 2 and above granted.
    pub ecn: u8,
    /// `tcp_mtu_probing`: 0 and 1 when a black hole is suspected, 2 always.
    pub mtu_probing: u8,
    /// `tcp_syn_retries`: SYNs retransmitted.
    pub syn_retries: u8,
    /// `tcp_synack_retries`: SYN-ACKs retransmitted.
    pub syn_ack_retries: u8,
    /// `tcp_retries2`: how often data is retransmitted.
    pub retries: u8,
    /// `tcp_orphan_retries`: the same once the application has closed; 0 is 8.
    pub orphan_retries: u8,
    /// `tcp_slow_start_after_idle`: a window that was unused for a retransmission timeout
    /// is not trusted.
    pub slow_start_after_idle: bool,
    /// `tcp_notsent_lowat`: unsent bytes above which a socket is not writable.
    pub not_sent_low_water: u32,
    /// `tcp_fin_timeout`, in whole seconds: how long FIN-WAIT-2 lasts.
    pub fin_timeout: Duration,
    /// `tcp_min_tso_segs`: the smallest size to which a burst is cut, in segments.
    pub burst_min: u8,
    /// `tcp_congestion_control`, if the engine has the named algorithm.
    pub congestion: Option<Congestion>,
    /// `tcp_keepalive_time`, `tcp_keepalive_intvl` and `tcp_keepalive_probes`: the
    /// initial values of a socket that asks for probes.
    pub keepalive: Keepalive,
    /// `tcp_fastopen`: flags.
    pub fast_open: u32,
    /// `tcp_fastopen_key`; a random key is drawn if it is not set.
    pub fast_open_keys: Option<FastOpenKeys>,
}

impl Default for Sysctl {
    fn default() -> Self {
        Self {
            receive_memory: [4096, 131_072, 6 << 20],
            send_memory: [4096, 16_384, 4 << 20],
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: 2,
            mtu_probing: 0,
            syn_retries: 6,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 0,
            slow_start_after_idle: true,
            not_sent_low_water: u32::MAX,
            fin_timeout: Duration::from_secs(60),
            burst_min: 2,
            congestion: None,
            keepalive: Keepalive::default(),
            fast_open: 1,
            fast_open_keys: None,
        }
    }
}

impl Sysctl {
    /// Every name that [`Sysctl::set`] accepts, without `net.ipv4.`.
    pub const NAMES: [&str; 21] = [
        "tcp_rmem",
        "tcp_wmem",
        "tcp_timestamps",
        "tcp_sack",
        "tcp_window_scaling",
        "tcp_ecn",
        "tcp_mtu_probing",
        "tcp_syn_retries",
        "tcp_synack_retries",
        "tcp_retries2",
        "tcp_orphan_retries",
        "tcp_slow_start_after_idle",
        "tcp_notsent_lowat",
        "tcp_fin_timeout",
        "tcp_min_tso_segs",
        "tcp_congestion_control",
        "tcp_keepalive_time",
        "tcp_keepalive_intvl",
        "tcp_keepalive_probes",
        "tcp_fastopen",
        "tcp_fastopen_key",
    ];

    /// Reads the parameters; `text` returns the value for each of [`Sysctl::NAMES`]. A
    /// parameter without a value has Linux's default.
    pub fn read(mut text: impl FnMut(&str) -> Option<String>) -> Self {
        let mut sysctl = Self::default();
        for name in Self::NAMES {
            if let Some(value) = text(name) {
                // A value of this kernel that the engine does not know counts as the
                // default.
                let _ = sysctl.set(name, &value);
            }
        }
        sysctl
    }

    /// Sets a parameter by its name, without `net.ipv4.`, from Linux's text format.
    ///
    /// # Errors
    /// [`SysctlError::Unknown`] for a name that is not in [`Sysctl::NAMES`],
    /// [`SysctlError::Value`] for a text that is not a value of the parameter.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), SysctlError> {
        let text = text.trim();
        let number = || number(text).ok_or(SysctlError::Value);
        let byte = || u8::try_from(number()?).map_err(|_| SysctlError::Value);
        let seconds = || Ok(Duration::from_secs(number()?.into()));
        match name {
            "tcp_rmem" => self.receive_memory = three(text)?,
            "tcp_wmem" => self.send_memory = three(text)?,
            "tcp_timestamps" => self.timestamps = number()? != 0,
            "tcp_sack" => self.sack = number()? != 0,
            "tcp_window_scaling" => self.window_scaling = number()? != 0,
            "tcp_ecn" => self.ecn = byte()?,
            "tcp_mtu_probing" => self.mtu_probing = byte()?,
            "tcp_syn_retries" => self.syn_retries = byte()?,
            "tcp_synack_retries" => self.syn_ack_retries = byte()?,
            "tcp_retries2" => self.retries = byte()?,
            "tcp_orphan_retries" => self.orphan_retries = byte()?,
            "tcp_slow_start_after_idle" => self.slow_start_after_idle = number()? != 0,
            "tcp_notsent_lowat" => self.not_sent_low_water = number()?,
            "tcp_fin_timeout" => self.fin_timeout = seconds()?,
            "tcp_min_tso_segs" => self.burst_min = byte()?,
            "tcp_congestion_control" => self.congestion = Congestion::from_name(text),
            "tcp_keepalive_time" => self.keepalive.idle = seconds()?,
            "tcp_keepalive_intvl" => self.keepalive.interval = seconds()?,
            "tcp_keepalive_probes" => self.keepalive.count = byte()?,
            "tcp_fastopen" => self.fast_open = number()?,
            "tcp_fastopen_key" => {
                let keys = fast_open_keys(text).ok_or(SysctlError::Value)?;
                // Linux writes zeros for keys that it has not drawn yet.
                self.fast_open_keys = Some(keys).filter(|keys| keys.primary != [0; 16]);
            }
            _ => return Err(SysctlError::Unknown),
        }
        Ok(())
    }

    /// The initial configuration of connections; the link's part (`mss`, `offload`) is
    /// the default's. Half of `tcp_rmem` counts, as Linux reserves the other half for
    /// overhead; the window scale follows from all of it.
    pub fn config(&self) -> Config {
        Config {
            receive_buffer: self.receive_memory[1] / 2,
            receive_buffer_max: self.receive_memory[2],
            send_buffer_max: self.send_memory[2],
            timestamps: self.timestamps,
            sack: self.sack,
            window_scaling: self.window_scaling,
            ecn: match self.ecn {
                0 => Ecn::Off,
                1 => Ecn::Active,
                _ => Ecn::Passive,
            },
            // A stalled connection is worse than one probe, whatever the namespace is set
            // to: see docs/deviations.md.
            mtu_probing: match self.mtu_probing {
                0 | 1 => MtuProbing::BlackHole,
                _ => MtuProbing::Always,
            },
            syn_retries: self.syn_retries,
            syn_ack_retries: self.syn_ack_retries,
            retries: self.retries,
            orphan_retries: match self.orphan_retries {
                0 => 8,
                count => count,
            },
            slow_start_after_idle: self.slow_start_after_idle,
            not_sent_low_water: (self.not_sent_low_water != u32::MAX)
                .then_some(self.not_sent_low_water),
            fin_timeout: self.fin_timeout,
            burst_min: self.burst_min,
            congestion: self.congestion.unwrap_or_default(),
            ..Config::default()
        }
    }
}

/// Parses a decimal or hexadecimal number. A negative number becomes as large as Linux
/// makes it.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text
            .parse()
            .or_else(|_| text.parse::<i32>().map(i32::cast_unsigned))
            .ok(),
    }
}

fn three(text: &str) -> Result<[u32; 3], SysctlError> {
    let numbers: Option<Vec<u32>> = text.split_whitespace().map(number).collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or(SysctlError::Value)
}

/// One key or two of four hexadecimal words each, hyphens between them, a comma
/// between the keys.
fn fast_open_keys(text: &str) -> Option<FastOpenKeys> {
    let mut keys = text.split(',').map(|key| {
        let mut bytes = [0; 16];
        let mut words = key.split('-');
        for place in bytes.as_chunks_mut::<4>().0 {
            *place = u32::from_str_radix(words.next()?, 16).ok()?.to_le_bytes();
        }
        words.next().is_none().then_some(bytes)
    });
    let primary = keys.next()??;
    let backup = match keys.next() {
        Some(key) => Some(key?),
        None => None,
    };
    keys.next()
        .is_none()
        .then_some(FastOpenKeys { primary, backup })
}

#[cfg(test)]
mod tests;
