//! The managers of this host: whether they answer, and what dead ones left behind.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use tidewall_manager::domains::threaded;
use tidewall_manager::places;
use tidewall_manager::protocol::{STATUS_AWAITED, STATUS_CLEARING, Status};
use tidewall_manager::view::View;

use super::{Finding, line_of};

const MANAGER: &str = "manager";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The state of a manager's pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pins {
    None,
    /// A process holds them.
    Held,
    /// The program is attached, and no process holds the pins.
    Left,
    /// The manager died while it began or ended.
    Broken,
    /// They cannot be examined.
    Unknown,
}

/// Checks the managers that listen, or did, and those of interfaces.
pub fn check<'a>(interfaces: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let listening = places::managers()
        .into_iter()
        .map(|(_, interface)| interface);
    let all: BTreeSet<String> = listening.chain(interfaces.map(str::to_owned)).collect();
    let mut findings = Vec::new();
    for interface in &all {
        let socket = places::socket(interface);
        let asked = View::connect(&socket).and_then(|view| view.applications());
        let daemon = pins(&places::pins(interface));
        let ephemeral = pins(&places::ephemeral_pins(interface));
        let answers = asked.is_ok();
        let found = (manager(interface, asked, daemon, socket.exists()).into_iter())
            .chain(run(interface, ephemeral))
            .chain(answers.then(|| polling(interface)));
        findings.extend(found.map(|finding| finding.of(interface)));
    }
    findings
}

fn pins(path: &Path) -> Pins {
    let directory = match File::open(path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Pins::None,
        Err(_) => return Pins::Unknown,
    };
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => Pins::Held,
        Err(TryLockError::Error(_)) => Pins::Unknown,
        Ok(()) if path.join("link").exists() => Pins::Left,
        Ok(()) => Pins::Broken,
    }
}

fn manager(
    interface: &str,
    asked: io::Result<Vec<Status>>,
    pins: Pins,
    has_socket: bool,
) -> Option<Finding> {
    let remove = format!("tidewalld --interface {interface} --remove");
    let applications = match asked {
        Ok(applications) => applications,
        Err(error) => {
            return match pins {
                Pins::Left => Some(Finding::problem(
                    MANAGER,
                    format!(
                        "none answers for {interface} ({error}), but its program is attached: \
                         applications go on, and none can begin"
                    ),
                    format!(
                        "systemctl start tidewalld@{interface}.service\nor, to give it back: {remove}"
                    ),
                )),
                Pins::Broken => Some(Finding::warning(
                    MANAGER,
                    format!("one of {interface} died while it began or ended"),
                    remove,
                )),
                Pins::Held => Some(Finding::problem(
                    MANAGER,
                    format!("that of {interface} lives, and does not answer ({error})"),
                    format!("systemctl restart tidewalld@{interface}.service"),
                )),
                Pins::None if has_socket => Some(Finding::warning(
                    MANAGER,
                    format!("that of {interface} has ended and left its socket ({error})"),
                    format!("rm -f {}", places::socket(interface).display()),
                )),
                Pins::Unknown if has_socket => Some(Finding::unknown(
                    MANAGER,
                    format!(
                        "none answers for {interface} ({error}); what it has left only user 0 sees: \
                         sudo tidewall doctor"
                    ),
                )),
                Pins::None | Pins::Unknown => None,
            };
        }
    };
    let of = |state| {
        let in_state = applications.iter().filter(|of| of.state == state);
        in_state.count()
    };
    let (awaited, clearing) = (of(STATUS_AWAITED), of(STATUS_CLEARING));
    let text = format!(
        "that of {interface} answers; {} applications are seen from here, {awaited} of them are awaited \
         after it was started anew, {clearing} cannot be cleared away yet",
        applications.len()
    );
    let blocks: u32 = applications.iter().map(|of| of.blocks).sum();
    if blocks > 0 && line_of(RESERVED).is_some_and(|line| line.is_empty()) {
        return Some(Finding::problem(
            MANAGER,
            format!(
                "{blocks} blocks of ports of {interface} are leased, but the kernel may choose them, too: \
                 somebody has emptied {RESERVED}"
            ),
            format!("systemctl restart tidewalld@{interface}.service  # and its applications"),
        ));
    }
    Some(match clearing {
        0 => Finding::ok(MANAGER, text),
        _ => Finding::unknown(MANAGER, text),
    })
}

/// Reports the pins that a `tidewall run` holds or left behind.
fn run(interface: &str, pins: Pins) -> Option<Finding> {
    const CHECK: &str = "leftover run";
    let remove = format!("tidewalld --interface {interface} --remove");
    match pins {
        Pins::None | Pins::Unknown => None,
        Pins::Held => Some(Finding::ok(
            CHECK,
            format!("none; a `tidewall run` has {interface}"),
        )),
        Pins::Left | Pins::Broken => Some(Finding::warning(
            CHECK,
            format!(
                "a `tidewall run` that was killed has left the driver program on {interface}; the next one \
                 takes it away, too"
            ),
            remove,
        )),
    }
}

/// Reports which process polls a manager's interface.
fn polling(interface: &str) -> Finding {
    const CHECK: &str = "polling";
    let read = tidewall_sys::interface::index(interface)
        .and_then(|index| threaded::read(interface, index));
    match read {
        Ok(threaded::Before { threaded: true }) => Finding::ok(
            CHECK,
            format!(
                "a thread of the kernel polls {interface}, as for applications in private mode"
            ),
        ),
        Ok(_) => Finding::ok(CHECK, format!("{interface} is polled by who uses it")),
        Err(error) => Finding::unknown(
            CHECK,
            format!("how {interface} is polled is not known: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn status(state: u32) -> Status {
        Status {
            application: 0,
            domain: 1000,
            process: 1,
            state,
            queues: 1,
            ports: 1,
            holders: 1,
            blocks: 0,
            weight: 1,
            reserved: 0,
            charged: 0,
        }
    }

    fn gone() -> io::Result<Vec<Status>> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    #[test]
    fn what_a_dead_manager_left_comes_with_what_mends_it() {
        let severity = |pins, socket| {
            let finding = manager("x", gone(), pins, socket)?;
            Some((finding.severity, finding.mend.unwrap_or_default()))
        };
        let remove = "tidewalld --interface x --remove";
        assert_eq!(severity(Pins::None, false), None);
        // Any user sees an interface like this if it never had a manager.
        assert_eq!(severity(Pins::Unknown, false), None);
        let (left, mend) = severity(Pins::Left, true).unwrap();
        assert_eq!(left, Severity::Problem);
        assert!(mend.ends_with(remove), "{mend}");
        let broken = severity(Pins::Broken, false);
        assert_eq!(broken, Some((Severity::Warning, remove.to_owned())));
        let (hung, mend) = severity(Pins::Held, true).unwrap();
        assert_eq!(hung, Severity::Problem);
        assert!(mend.starts_with("systemctl restart"), "{mend}");
        let (stale, mend) = severity(Pins::None, true).unwrap();
        assert_eq!(stale, Severity::Warning);
        assert_eq!(mend, "rm -f /run/tidewall/x.manager");
    }

    #[test]
    fn one_that_answers_says_how_its_applications_are() {
        let live = manager("x", Ok(vec![status(1)]), Pins::Held, true).unwrap();
        assert_eq!(live.severity, Severity::Ok);
        assert!(live.text.contains("1 applications"), "{}", live.text);
        let stuck = manager("x", Ok(vec![status(3)]), Pins::Held, true).unwrap();
        assert_eq!(stuck.severity, Severity::Warning);
    }

    #[test]
    fn a_killed_run_is_left_over() {
        assert_eq!(run("x", Pins::None), None);
        assert_eq!(run("x", Pins::Held).unwrap().severity, Severity::Ok);
        let left = run("x", Pins::Left).unwrap();
        assert_eq!(left.severity, Severity::Warning);
        assert!(left.mend.unwrap().ends_with("--remove"));
    }
}
