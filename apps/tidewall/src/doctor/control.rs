//! Receive control on an interface: how T reaches the device, and whether traffic classes
//! can have their own queues.

use std::fs::OpenOptions;
use std::io;

use tidewall_device::interface::queue_count;
use tidewall_manager::ethtool::Channels;

use super::interface::value_of;
use super::{Finding, line_of, tool};

/// Both are needed to set T through the kernel (Documentation/networking/napi.rst).
const FILES: [&str; 2] = ["gro_flush_timeout", "napi_defer_hard_irqs"];

const STEERING: &str = "flow steering";

/// Checks an interface of this network namespace.
pub fn check(name: &str, index: u32, kind: &str) -> Vec<Finding> {
    // sysfs shows the namespace in which it was mounted; ethtool shows this process's.
    let own = line_of(&format!("/sys/class/net/{name}/ifindex")) == Some(index.to_string());
    let files = own.then(|| writable(name));
    let coalescing = tool("ethtool", &["-c", name]);
    // Drivers whose number of queues cannot be set answer EOPNOTSUPP.
    let channels = match Channels::read(name) {
        Ok(channels) => Queues {
            now: channels.receive(),
            most: channels
                .receive_limit
                .saturating_sub(channels.combined_limit),
            most_combined: channels.combined_limit,
        },
        Err(_) => Queues {
            now: own.then(|| queue_count(name)).flatten().unwrap_or(1),
            ..Queues::default()
        },
    };
    let steering = match tool("ethtool", &["-k", name]) {
        Ok(features) => steering(name, kind, channels, value_of(&features, "ntuple-filters")),
        Err(error) => Finding::unknown(
            STEERING,
            format!("whether flows can be steered to queues of {name} is not known: {error}"),
        ),
    };
    vec![interval(name, files, &coalescing), steering]
}

/// Opens the files as for writing, and writes nothing.
fn writable(name: &str) -> io::Result<()> {
    for file in FILES {
        OpenOptions::new()
            .write(true)
            .open(format!("/sys/class/net/{name}/{file}"))?;
    }
    Ok(())
}

/// Reports how T reaches the device. `files`: whether they can be written, if they are
/// visible; `coalescing`: the output of `ethtool -c`.
fn interval(
    name: &str,
    files: Option<io::Result<()>>,
    coalescing: &Result<String, String>,
) -> Finding {
    const CHECK: &str = "interrupt interval";
    let microseconds = coalescing
        .as_ref()
        .ok()
        .and_then(|listing| value_of(listing, "rx-usecs"))
        .and_then(|value| value.parse::<u64>().ok());
    let own = match (microseconds, coalescing) {
        (Some(now), _) => format!("the device has rx-usecs ({now} now)"),
        (None, Err(error)) if error.ends_with("not installed") => {
            format!("whether the device has rx-usecs is not known: {error}")
        }
        (None, _) => "the device has no rx-usecs".to_owned(),
    };
    let alone = "without it the policies go on with Bp alone";
    match files {
        Some(Ok(())) => Finding::ok(
            CHECK,
            format!(
                "T of {name} can be set: {} are writable; {own}",
                FILES.join(" and ")
            ),
        ),
        _ if microseconds.is_some() => Finding::ok(CHECK, format!("T of {name} can be set: {own}")),
        None => Finding::unknown(
            CHECK,
            format!(
                "sysfs shows another network namespace, so whether T of {name} can be set was left out; enter it by \
                 `ip netns exec`"
            ),
        ),
        Some(Err(error)) => {
            let text = format!(
                "T of {name} cannot be set ({}: {error}; {own}); {alone}",
                FILES.join(", ")
            );
            match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    Finding::warning(CHECK, text, "mount -o remount,rw /sys")
                }
                io::ErrorKind::PermissionDenied => Finding::warning(
                    CHECK,
                    text,
                    format!("sudo tidewall doctor --interface {name}"),
                ),
                _ => Finding::unknown(CHECK, text),
            }
        }
    }
}

/// Numbers of queues.
#[derive(Clone, Copy, Default)]
struct Queues {
    /// Receive queues now.
    now: u32,
    /// Most queues for receiving only.
    most: u32,
    /// Most queues for both directions.
    most_combined: u32,
}

/// Reports whether traffic classes can have their own queues.
fn steering(name: &str, kind: &str, channels: Queues, ntuple: Option<&str>) -> Finding {
    if channels.now < 2 {
        let shared = format!(
            "{name} has one receive queue, which all classes of traffic and a port that is flooded share"
        );
        let more = if channels.most_combined >= 2 {
            "combined 2"
        } else if channels.most >= 2 {
            "rx 2 tx 2"
        } else {
            return Finding::ok(STEERING, format!("{shared}; it can have no more"));
        };
        return Finding::warning(
            STEERING,
            format!("{shared}; a stack takes more if they are there when it starts"),
            format!("ethtool -L {name} {more}"),
        );
    }
    let queues = format!("{name} has {} receive queues", channels.now);
    match ntuple {
        Some(value) if value.starts_with("on") => Finding::ok(
            STEERING,
            format!(
                "{queues}, and ntuple rules steer flows to them: a UDP port that is flooded is given one of its own"
            ),
        ),
        Some(value) if value.starts_with("off") && !value.contains("fixed") => Finding::warning(
            STEERING,
            format!(
                "{queues}, but ntuple rules, which steer flows to them, are off: a stack switches them on when a port is \
                 flooded, classes when it starts"
            ),
            format!("ethtool -K {name} ntuple on"),
        ),
        _ if kind == "veth" => Finding {
            mend: Some(
                "at the peer: echo CPUMASK > /sys/class/net/PEER/queues/tx-N/xps_cpus".to_owned(),
            ),
            ..Finding::ok(
                STEERING,
                format!(
                    "{queues}; veth has no ntuple rules: a frame arrives on the queue of the number that it was sent \
                     on, which the peer's XPS chooses by the sender's processor, and a port that is flooded shares its queue"
                ),
            )
        },
        _ => Finding::ok(
            STEERING,
            format!(
                "{queues}, but the device has no ntuple rules: its own hash chooses, classes cannot be kept apart, and a \
                 port that is flooded shares its queue"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    const COALESCING: &str =
        "Coalesce parameters for x:\nAdaptive RX: off  TX: n/a\nrx-usecs: 8\nrx-frames: 1\n";

    #[test]
    fn every_way_to_the_device_is_distinguished() {
        let none = || Err("ethtool: netlink error: Operation not supported".to_owned());
        let error = |code| Some(Err(io::Error::from_raw_os_error(code)));
        let finding = interval("x", Some(Ok(())), &none());
        assert_eq!(finding.severity, Severity::Ok);
        assert!(
            finding.text.ends_with("the device has no rx-usecs"),
            "{}",
            finding.text
        );
        let finding = interval("x", Some(Ok(())), &Ok(COALESCING.to_owned()));
        assert!(
            finding.text.ends_with("has rx-usecs (8 now)"),
            "{}",
            finding.text
        );
        // A driver lists missing settings as n/a.
        let listing = COALESCING.replace("rx-usecs: 8", "rx-usecs: n/a");
        let finding = interval("x", error(libc::EROFS), &Ok(listing));
        assert_eq!(
            (finding.severity, finding.mend.as_deref()),
            (Severity::Warning, Some("mount -o remount,rw /sys"))
        );
        assert!(finding.text.contains("with Bp alone"), "{}", finding.text);
        let finding = interval("x", error(libc::EROFS), &Ok(COALESCING.to_owned()));
        assert_eq!(finding.severity, Severity::Ok);
        let finding = interval("x", error(libc::EACCES), &none());
        assert_eq!(
            finding.mend.as_deref(),
            Some("sudo tidewall doctor --interface x")
        );
        let finding = interval(
            "x",
            error(libc::ENOENT),
            &Err("ethtool is not installed".to_owned()),
        );
        assert_eq!((finding.severity, finding.mend), (Severity::Warning, None));
        assert!(
            finding.text.contains("ethtool is not installed"),
            "{}",
            finding.text
        );
        assert_eq!(interval("x", None, &none()).severity, Severity::Warning);
    }

    #[test]
    fn what_keeps_classes_together_is_named_with_its_remedy() {
        let channels = |now, most, most_combined| Queues {
            now,
            most,
            most_combined,
        };
        let mend = |channels: Queues, ntuple| {
            let finding = steering("x", "", channels, ntuple);
            (finding.severity, finding.mend)
        };
        let warning = |mend: &str| (Severity::Warning, Some(mend.to_owned()));
        assert_eq!(
            mend(channels(1, 2, 0), None),
            warning("ethtool -L x rx 2 tx 2")
        );
        assert_eq!(
            mend(channels(1, 0, 8), None),
            warning("ethtool -L x combined 2")
        );
        assert_eq!(mend(channels(1, 0, 1), None), (Severity::Ok, None));
        assert_eq!(mend(channels(4, 0, 8), Some("on")), (Severity::Ok, None));
        assert_eq!(
            mend(channels(4, 0, 8), Some("off")),
            warning("ethtool -K x ntuple on")
        );
        let finding = steering("x", "", channels(4, 0, 8), Some("off [fixed]"));
        assert!(
            finding.text.contains("cannot be kept apart"),
            "{}",
            finding.text
        );
        let finding = steering("x", "veth", channels(2, 2, 0), Some("off [fixed]"));
        assert!(finding.mend.is_some_and(|mend| mend.contains("xps_cpus")));
    }
}
