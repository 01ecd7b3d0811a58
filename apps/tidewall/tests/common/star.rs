//! A namespace of a switch and one of each end around it, joined by veth pairs; no host
//! joins or splits segments.

use std::fs;
use std::process::{Command, Stdio};

use super::bed::Bed;
use super::{Place, Running, text};

/// Runs a script; returns its error output if it failed.
pub fn shell(script: &str) -> Result<(), String> {
    let output = Command::new("/bin/sh")
        .args(["-ec", script])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(text(&output.stderr).trim().to_owned()),
    }
}

/// End N has 10.99.N.2 on its interface `out`. The switch has 10.99.N.1 on `tw-inN`, and
/// the virtual address on the first, whose end is the peers'. Removed when dropped.
pub struct Star {
    pub switch: String,
    pub ends: Vec<String>,
    /// The path between each end and the switch, if paths are bad.
    paths: Vec<Path>,
    pub place: Place,
}

/// A namespace between an end and the switch, and what forwards there.
struct Path {
    namespace: String,
    _impair: Running,
}

impl Star {
    fn new(test: &str, ends: usize) -> Result<Self, String> {
        let id = format!("{}{test}", std::process::id());
        let star = Star {
            switch: format!("tw-st-{id}-s"),
            ends: (0..ends).map(|end| format!("tw-st-{id}-{end}")).collect(),
            paths: Vec::new(),
            place: Place::new(&format!("star-{test}")),
        };
        let switch = &star.switch;
        shell(&format!(
            "ip netns add {switch}; ip -n {switch} link set lo up"
        ))?;
        for (number, end) in star.ends.iter().enumerate() {
            shell(&format!(
                "ip netns add {end}; ip -n {end} link set lo up
                 ip -n {end} link add out type veth peer name tw-in{number} netns {switch}
                 ip -n {switch} addr add 10.99.{number}.1/24 dev tw-in{number}
                 ip -n {switch} link set tw-in{number} up
                 ip -n {end} addr add 10.99.{number}.2/24 dev out; ip -n {end} link set out up
                 ip netns exec {end} ethtool -K out tso off gso off gro off"
            ))?;
        }
        Ok(star)
    }

    /// Returns a star if the privileges are there; otherwise reports that `test` is
    /// skipped and returns `None`. `name` distinguishes the stars of one file's tests.
    pub fn or_skip(test: &str, name: &str, ends: usize) -> Option<Self> {
        let star = Star::new(name, ends).map_err(|error| tidewall_skip::missing(test, error));
        star.ok()
    }

    /// Puts a bad path between each end and the switch.
    pub fn impair(&mut self, options: &[&str]) {
        let switch = &self.switch;
        for (number, end) in self.ends.iter().enumerate() {
            let namespace = format!("{end}-m");
            shell(&format!(
                "ip netns add {namespace}; ip -n {end} link del out
                 ip -n {end} link add out type veth peer name left netns {namespace}
                 ip -n {switch} link add tw-in{number} type veth peer name right netns {namespace}
                 ip -n {switch} addr add 10.99.{number}.1/24 dev tw-in{number}
                 ip -n {end} addr add 10.99.{number}.2/24 dev out
                 ip netns exec {end} ethtool -K out tx off tso off gso off gro off
                 ip netns exec {switch} ethtool -K tw-in{number} tx off
                 for link in left right; do ip -n {namespace} link set $link up; done
                 ip -n {switch} link set tw-in{number} up; ip -n {end} link set out up"
            ))
            .unwrap();
            let arguments = [&["impair", "left", "right"], options].concat();
            let impair = Bed::command(&namespace, &arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            self.paths.push(Path {
                namespace,
                _impair: Running(impair.unwrap()),
            });
        }
    }

    /// Writes a switch's configuration: this port, the first `members` members, and more.
    pub fn file(&self, port: u16, members: usize, more: &str) -> String {
        let mut file = format!(
            "address = '10.99.0.99:{port}'\ninterface = 'tw-in0'\nkernel-ends = true\n{more}\n"
        );
        for number in 1..=members {
            file += &format!(
                "[[member]]\naddress = '10.99.{number}.2:{port}'\ninterface = 'tw-in{number}'\n"
            );
        }
        let path = self.place.name("switch.toml");
        fs::write(&path, file).unwrap();
        path
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        let paths = self.paths.iter().map(|path| &path.namespace);
        for namespace in self.ends.iter().chain([&self.switch]).chain(paths) {
            let _ = shell(&format!("ip netns del {namespace} 2>/dev/null || true"));
        }
    }
}
