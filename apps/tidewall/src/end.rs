//! The end of a command: its exit code, and one message that names the cause and the
//! remedy.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Why a command ended with a code other than 0.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    /// Empty if everything has been printed already.
    message: String,
}

impl Failure {
    /// Exit code 1: the command ran, and the answer is no.
    pub fn answer(message: impl Into<String>) -> Self {
        Failure::with_code(1, message)
    }

    /// Exit code 2: the command could not begin.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::with_code(2, message)
    }

    /// Uses a code that another crate has chosen.
    pub fn with_code(code: u8, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Exit code 1, if everything has been printed already.
    pub fn said() -> Self {
        Failure::answer("")
    }

    /// Wraps an operating-system error during `what`. The exit code is 2 if arguments,
    /// missing privileges or missing system features are to blame, and 1 otherwise.
    pub fn io(what: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{
            AddrInUse, AddrNotAvailable, InvalidInput, NotFound, PermissionDenied, Unsupported,
        };
        let blame = matches!(
            error.kind(),
            AddrInUse | AddrNotAvailable | InvalidInput | NotFound | PermissionDenied | Unsupported
        );
        // An error made from text has only its kind.
        let errno = error.raw_os_error().or(match error.kind() {
            AddrInUse => Some(libc::EADDRINUSE),
            AddrNotAvailable => Some(libc::EADDRNOTAVAIL),
            _ => None,
        });
        let remedy = match errno {
            Some(libc::EPERM | libc::EACCES) => {
                "\n  run it as root, or see: tidewall doctor (capabilities)"
            }
            Some(libc::EBUSY) => {
                "\n  something else holds the interface; see: tidewall doctor --interface IF"
            }
            Some(libc::EADDRINUSE) => "\n  another program has the port; see: ss -tulpn",
            Some(libc::EADDRNOTAVAIL) => {
                "\n  the address is not this host's (in this network namespace); see: ip address"
            }
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                "\n  too little memory may be locked; see: tidewall doctor (locked memory)"
            }
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                "\n  there is no way there; see: ip route; ip neighbour"
            }
            _ => "",
        };
        Failure {
            code: if blame { 2 } else { 1 },
            message: format!("{what}: {error}{remedy}"),
        }
    }

    fn silent(&self) -> bool {
        self.message.is_empty()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The result of every subcommand.
pub type Outcome = Result<(), Failure>;

/// Prints the message, if any, and turns the outcome into an exit code.
pub fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.silent() {
                eprintln!("tidewall: {failure}");
            }
            ExitCode::from(failure.code())
        }
    }
}

/// Prints to standard output. Unlike with `println!`, a reader that goes away (`| head`)
/// ends the command quietly.
pub fn say(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::with_code(0, "")),
        Err(error) => Err(Failure::io("writing to standard output", &error)),
    }
}

/// Prints a message to standard error; ignores a reader that has gone away.
pub fn warn(text: &str) {
    let _ = io::stderr().write_all(format!("tidewall: {text}\n").as_bytes());
}

/// Acts as [`say`], and ends the line.
pub fn say_line(text: &str) -> Outcome {
    say(&format!("{text}\n"))
}

/// Prints a value as JSON on one line.
pub fn say_json(value: &impl serde::Serialize) -> Outcome {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::answer(format!("writing JSON: {error}")))?;
    say_line(&text)
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal ends the process at once,
/// so nothing here can make it unkillable.
pub fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| Failure::io("catching signals", &error))?;
    }
    Ok(flag)
}

/// Refuses an interface that this network namespace does not have.
pub fn check_interface(name: &str) -> Outcome {
    match tidewall_sys::interface::index(name) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::usage(format!(
            "no interface {name} in this network namespace; see: ip link"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blame_decides_the_exit_code() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let failure = Failure::io("opening veth0", &error);
        assert_eq!(failure.code, 2);
        assert!(failure.to_string().contains("as root"), "{failure}");
        let error = io::Error::from_raw_os_error(libc::ENETDOWN);
        assert_eq!(Failure::io("sending", &error).code, 1);
    }

    #[test]
    fn an_unknown_interface_is_named_with_the_remedy() {
        let failure = check_interface("tw-none-such").expect_err("there is no such interface");
        assert_eq!(failure.code, 2);
        assert_eq!(
            failure.to_string(),
            "no interface tw-none-such in this network namespace; see: ip link"
        );
        assert!(check_interface("lo").is_ok());
    }
}
