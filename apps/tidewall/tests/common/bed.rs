//! Two namespaces joined by a veth pair, with the program in either.

use std::process::{Command, Stdio};

use super::PROGRAM;

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// Two namespaces joined by a veth pair; gone when dropped.
pub struct Bed {
    pub client: String,
    pub server: String,
    /// The server's end.
    pub interface: String,
}

impl Bed {
    /// `test` distinguishes the beds of this file's tests.
    pub fn new(test: &str) -> Result<Self, String> {
        let id = format!("{}{test}", std::process::id());
        let bed = Bed {
            client: format!("tw-cli-{id}-c"),
            server: format!("tw-cli-{id}-s"),
            interface: format!("twcs{id}"),
        };
        for namespace in [&bed.client, &bed.server] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        bed.join()?;
        Ok(bed)
    }

    /// Creates the pair, also after it was deleted.
    pub fn join(&self) -> Result<(), String> {
        let Bed {
            client,
            server,
            interface,
        } = self;
        let other = interface.replacen("twcs", "twcc", 1);
        ip(&format!(
            "-n {client} link add {other} type veth peer name {interface} netns {server}"
        ))?;
        for (namespace, device, host) in [(client, &other, 1), (server, interface, 2)] {
            ip(&format!(
                "-n {namespace} addr add 10.99.0.{host}/24 dev {device}"
            ))?;
            ip(&format!("-n {namespace} link set {device} up"))?;
        }
        Ok(())
    }

    /// Returns a bed if the privileges are there; otherwise reports that `test` is
    /// skipped and returns `None`.
    pub fn or_skip(test: &str, name: &str) -> Option<Self> {
        let bed = Bed::new(name).map_err(|error| tidewall_skip::missing(test, error));
        bed.ok()
    }

    /// The program in a namespace of the bed.
    pub fn command(namespace: &str, arguments: &[&str]) -> Command {
        Self::other(namespace, PROGRAM, arguments)
    }

    /// Acts as [`Bed::command`], for any program.
    pub fn other(namespace: &str, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace, program])
            .args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Returns the output of a program that ends by itself; `None`, with a report, if it
    /// is not installed.
    pub fn output(namespace: &str, program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
        // Whatever is wrong, a test ends.
        let limited = [&["20", program], arguments].concat();
        let output = Self::other(namespace, "timeout", &limited)
            .output()
            .unwrap();
        // The exit code of timeout for a missing program.
        if output.status.code() == Some(127) {
            tidewall_skip::missing(program, "not installed (scripts/setup.sh)");
            return None;
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{namespace}: {program} {arguments:?}: {said}\n{errors}"
        );
        Some(output.stdout)
    }
}

/// Ends what still runs in a namespace, and removes it: a program whose `tidewall run` was
/// killed by a test that failed would go on.
fn remove(namespace: &str) {
    let pids = Command::new("ip")
        .args(["netns", "pids", namespace])
        .output();
    for pid in String::from_utf8_lossy(&pids.map_or(Vec::new(), |pids| pids.stdout)).lines() {
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    let _ = ip(&format!("netns del {namespace}"));
}

impl Drop for Bed {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            remove(namespace);
        }
    }
}
