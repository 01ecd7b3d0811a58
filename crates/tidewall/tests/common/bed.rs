//! Two namespaces joined by a veth pair, with the program in either.
#![allow(dead_code, reason = "each test file uses a part")]

use std::process::{Child, Command, Stdio};

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tidewall");

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
    /// `test` tells the beds of this file's tests apart.
    pub fn new(test: &str) -> Result<Self, String> {
        let id = format!("{}{test}", std::process::id());
        let bed = Bed {
            client: format!("tw-cli-{id}-c"),
            server: format!("tw-cli-{id}-s"),
            interface: format!("twcs{id}"),
        };
        let Bed {
            client,
            server,
            interface,
        } = &bed;
        ip(&format!("netns add {client}"))?;
        ip(&format!("netns add {server}"))?;
        ip(&format!(
            "-n {client} link add twcc{id} type veth peer name {interface} netns {server}"
        ))?;
        for (namespace, device, host) in [(client, &format!("twcc{id}"), 1), (server, interface, 2)]
        {
            ip(&format!(
                "-n {namespace} addr add 10.99.0.{host}/24 dev {device}"
            ))?;
            ip(&format!("-n {namespace} link set {device} up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(bed)
    }

    /// The program in a namespace of the bed.
    pub fn command(namespace: &str, arguments: &[&str]) -> Command {
        Self::other(namespace, PROGRAM, arguments)
    }

    /// As [`Bed::command`], for any program.
    pub fn other(namespace: &str, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace, program])
            .args(arguments);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// A child that does not outlive the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal.
pub fn signal(name: &str, child: &Running) {
    let killed = Command::new("kill")
        .args([name, &child.0.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
}
