//! Settings from a script's option lines and commands.

use core::time::Duration;
use std::net::IpAddr;

use crate::host::HostConfig;
use crate::script::{Command, OptionLine, ParseError, Position, Script};
use tidewall_protocol::tcp::{Sysctl, SysctlError};
use tidewall_protocol::timer::TICK;

/// The address family with which a script runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4 packets, AF_INET sockets.
    V4,
    /// IPv6 packets, AF_INET6 sockets.
    V6,
    /// IPv4 packets, AF_INET6 sockets with mapped addresses.
    Mapped,
}

impl Family {
    /// The name used by `--ip_version`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
            Self::Mapped => "ipv4-mapped-ipv6",
        }
    }

    pub(super) const fn domain(self) -> i32 {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 | Self::Mapped => libc::AF_INET6,
        }
    }
}

/// How a script is run.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) family: Family,
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) bind_port: u16,
    pub(super) connect_port: u16,
    /// By how much an event may miss its time.
    pub(super) tolerance: Duration,
    /// The same as a fraction of the time since the previous event.
    pub(super) tolerance_percent: f64,
    /// The unit of timestamps, which are checked if it is set.
    pub(super) timestamp_tick: Option<Duration>,
    /// Timestamp echoes may belong to packets that were never sent.
    pub(super) scaled_echo: bool,
    /// One line of the script is one packet, never several consecutive ones.
    pub(super) strict_segments: bool,
    pub(super) host: HostConfig,
}

/// The families with which a script must run: the one that it names, or IPv4 and IPv6.
///
/// # Errors
/// `--ip_version` is none of the three.
pub fn families(script: &Script) -> Result<Vec<Family>, ParseError> {
    let all = [Family::V4, Family::V6, Family::Mapped];
    let named = script
        .options
        .iter()
        .rfind(|option| option.name == "ip_version");
    let Some(option) = named else {
        return Ok(vec![Family::V4, Family::V6]);
    };
    all.into_iter()
        .find(|family| option.value.as_deref() == Some(family.name()))
        .map(|family| vec![family])
        .ok_or_else(|| expected(option, "ipv4, ipv6 or ipv4-mapped-ipv6"))
}

fn expected(option: &OptionLine, what: &str) -> ParseError {
    ParseError {
        position: option.position,
        message: format!("expected --{}={what}", option.name),
    }
}

impl Settings {
    pub(super) fn new(script: &Script, family: Family) -> Result<Self, ParseError> {
        let mut host = HostConfig::default();
        let (local, remote): (IpAddr, IpAddr) = if family == Family::V6 {
            // So that a segment holds as much as over IPv4.
            host.mtu += 20;
            (
                [0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1].into(),
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
            )
        } else {
            ([192, 168, 0, 1].into(), [192, 0, 2, 1].into())
        };
        let mut settings = Self {
            family,
            local,
            remote,
            bind_port: 8080,
            connect_port: 8080,
            // The stack's timers are at most a tick late, and a line may depend on
            // several of them.
            tolerance: TICK * 4,
            tolerance_percent: 0.0,
            timestamp_tick: None,
            scaled_echo: false,
            strict_segments: false,
            host,
        };
        for option in &script.options {
            settings.option(option)?;
        }
        settings.host.addresses = vec![settings.local];
        let at = Position { line: 1, column: 1 };
        if let Some(init) = &script.init {
            apply(init, &mut settings.host.sysctl).map_err(|message| ParseError {
                position: at,
                message,
            })?;
        }
        Ok(settings)
    }

    fn option(&mut self, option: &OptionLine) -> Result<(), ParseError> {
        fn value<T: core::str::FromStr>(option: &OptionLine, what: &str) -> Result<T, ParseError> {
            option
                .value
                .as_deref()
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| expected(option, what))
        }
        // No script needs more than an hour, and no sum overflows.
        let most = Duration::from_secs(3600);
        let microseconds = || -> Result<Duration, ParseError> {
            let value = value(option, "MICROSECONDS").map(Duration::from_micros)?;
            Ok(value.min(most))
        };
        let address = |old: IpAddr| -> Result<IpAddr, ParseError> {
            let new: IpAddr = value(option, "ADDRESS")?;
            // An address of the other family is for the other run.
            Ok(if new.is_ipv4() == old.is_ipv4() {
                new
            } else {
                old
            })
        };
        match option.name.as_str() {
            "tolerance_usecs" => self.tolerance = microseconds()?,
            "tolerance_percent" => {
                self.tolerance_percent = value::<f64>(option, "PERCENT")?.clamp(0.0, 100.0);
            }
            "tcp_ts_tick_usecs" => {
                let tick = microseconds()?;
                self.timestamp_tick = (!tick.is_zero()).then_some(tick);
            }
            "tcp_ts_ecr_scaled" => self.scaled_echo = true,
            "strict_segments" => self.strict_segments = true,
            "bind_port" => self.bind_port = value(option, "PORT")?,
            "connect_port" => self.connect_port = value(option, "PORT")?,
            "mtu" => self.host.mtu = value(option, "BYTES")?,
            "local_ip" => self.local = address(self.local)?,
            "remote_ip" => self.remote = address(self.remote)?,
            // Processed elsewhere, or about how the public tool reaches a kernel.
            "ip_version" | "define" | "gateway_ip" | "netmask_ip" | "speed" | "init_scripts"
            | "send_omit_free" | "is_anyip" | "verbose" | "debug" | "code_command"
            | "code_format" | "code_sockopt" | "non_fatal" | "mss" => {}
            _ => {
                return Err(ParseError {
                    position: option.position,
                    message: format!("--{} is not known here", option.name),
                });
            }
        }
        Ok(())
    }
}

/// Applies a command's settings to kernel parameters.
pub(super) fn apply(command: &Command, sysctl: &mut Sysctl) -> Result<(), String> {
    for (name, value) in &command.settings {
        let short = name.strip_prefix("net.ipv4.").unwrap_or_default();
        let unknown = match sysctl.set(short, value) {
            Ok(()) => continue,
            Err(SysctlError::Value) => return Err(format!("{name} cannot be `{value}`")),
            Err(SysctlError::Unknown) => format!("{name} is not a setting of this stack"),
        };
        match (short, value.trim()) {
            // How long Linux waits to build a burst; the engine does not wait.
            ("tcp_tso_win_divisor", _) => {}
            // A Linux-specific setting: only the value with which Linux behaves like this
            // stack is accepted.
            ("tcp_syn_linear_timeouts", "0")
            | ("tcp_rfc1337" | "tcp_syncookies", "1")
            | ("tcp_retries1", "3") => {}
            _ => return Err(unknown),
        }
    }
    Ok(())
}
