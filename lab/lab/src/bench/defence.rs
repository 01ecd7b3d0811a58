//! Defences that an operator of Linux puts in front of the kernel's stack against a SYN
//! flood.

use anyhow::Context;
use tidewall_manager::restore::Undo;

use crate::command::absolute;
use crate::testbed::Testbed;
use crate::worker::{Child, Job, Place};

/// SYNs per second to each port that pass the limit. The web server could serve this many
/// new clients with room to spare, and a flood takes far more.
pub(crate) const SYN_LIMIT: u32 = 10_000;

/// The table of rules; it holds only these.
const TABLE: &str = "tidewall_lab";

/// A defence in front of the server's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defence {
    /// An XDP program that limits the SYNs to each port.
    SynLimit,
    /// The kernel's SYN proxy, by nftables: cookies before any socket, and connection
    /// tracking for clients that return one.
    Synproxy,
}

/// A defence that lasts until dropped.
pub(crate) enum Standing {
    /// The process that holds the program.
    Process { _holder: Child },
    /// Removes the rules.
    Rules { _undo: Undo },
}

impl Defence {
    /// Installs it in front of these TCP ports of the server.
    ///
    /// # Errors
    /// An error of loading the program or the rules: a kernel without either, a missing
    /// `nft`.
    pub(crate) fn put(self, testbed: &Testbed, ports: &[u16]) -> anyhow::Result<Standing> {
        if self == Defence::SynLimit {
            let place = Place {
                namespace: testbed.server(),
                cpu: testbed.config().client_cpu,
            };
            let job = Job::SynLimit(SYN_LIMIT);
            let holder = Child::start_ready(place, &job, "the limit of SYNs")?;
            return Ok(Standing::Process { _holder: holder });
        }
        let nft = absolute("nft")?;
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        testbed
            .in_server(&[&nft, &rules(&ports.join(", "))])
            .context("this kernel has no SYN proxy for nftables (CONFIG_NFT_SYNPROXY)")?;
        let ip = absolute("ip")?;
        let delete = [
            &ip,
            "netns",
            "exec",
            testbed.server(),
            &nft,
            "delete",
            "table",
            "inet",
            TABLE,
        ];
        let undo = testbed.restorer().on_exit_run(&delete)?;
        // Otherwise the tracker mistakes a segment that returns a cookie for one of a
        // connection whose beginning it missed.
        testbed.in_server_shell("echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose")?;
        Ok(Standing::Rules { _undo: undo })
    }
}

/// Returns the rules of nftables' own manual (nft(8), SYNPROXY STATEMENT).
fn rules(ports: &str) -> String {
    format!(
        "table inet {TABLE} {{
            chain early {{
                type filter hook prerouting priority raw
                tcp dport {{ {ports} }} tcp flags syn notrack
            }}
            chain input {{
                type filter hook input priority filter
                tcp dport {{ {ports} }} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
                tcp dport {{ {ports} }} ct state invalid drop
            }}
        }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Config, privilege};

    #[test]
    fn the_proxy_stands_and_leaves_no_rules() {
        let test = "the_proxy_stands_and_leaves_no_rules";
        if let Err(missing) = privilege::check() {
            return tidewall_skip::missing(test, missing);
        }
        if !tidewall_skip::has_programs(test, &["nft"]) {
            return;
        }
        let testbed = Testbed::new(Config::default()).unwrap();
        let listed = || testbed.in_server(&["nft", "list", "ruleset"]).unwrap();
        let standing = match Defence::Synproxy.put(&testbed, &[80, 81]) {
            Ok(standing) => standing,
            Err(error) => return tidewall_skip::inapplicable(test, format!("{error:#}")),
        };
        let rules = listed();
        assert!(rules.contains("tcp dport { 80, 81 } ct state invalid,untracked synproxy"));
        drop(standing);
        assert!(!listed().contains(TABLE), "{}", listed());
    }
}
