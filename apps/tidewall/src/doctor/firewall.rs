//! Firewall rules that no longer see the ports that Tidewall owns: its program receives
//! their frames before nftables and iptables do.

use std::net::SocketAddr;

use tidewall::snapshot::StackSnapshot;

use super::{Finding, tool};

const CHECK: &str = "firewall";

/// A port that a stack owns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    process: u32,
    protocol: String,
    port: u16,
}

/// Reads the rules, if there is something to compare them with.
pub fn check(live: &[StackSnapshot]) -> Vec<Finding> {
    let owned = owned(live);
    if owned.is_empty() {
        return vec![Finding::ok(
            CHECK,
            "no live stack owns a port; once one does, nftables, iptables and conntrack do not see it",
        )];
    }
    let sources = [
        ("nftables", tool("nft", &["list", "ruleset"])),
        ("iptables", tool("iptables-save", &[])),
        ("ip6tables", tool("ip6tables-save", &[])),
    ];
    let mut findings = Vec::new();
    let mut read = Vec::new();
    for (name, rules) in sources {
        match rules {
            Ok(rules) => {
                read.push(name);
                findings.extend(compare(name, &rules, &owned));
            }
            Err(error) if error.ends_with("is not installed") => {}
            Err(error) => findings.push(Finding::unknown(
                CHECK,
                format!("{name} rules cannot be read: {error}"),
            )),
        }
    }
    if findings.is_empty() {
        let from = if read.is_empty() {
            "no firewall tool is installed".to_owned()
        } else {
            read.join(", ")
        };
        findings.push(Finding::ok(
            CHECK,
            format!("no rule is about a port that Tidewall owns ({from})"),
        ));
    }
    findings
}

fn owned(live: &[StackSnapshot]) -> Vec<Owned> {
    live.iter()
        .flat_map(|stack| {
            stack.sockets.iter().filter_map(|socket| {
                Some(Owned {
                    process: stack.process,
                    protocol: socket.protocol.clone(),
                    port: socket.local.parse::<SocketAddr>().ok()?.port(),
                })
            })
        })
        .collect()
}

/// Rules that name an owned port, and chains whose policy would have dropped it.
fn compare(name: &str, rules: &str, owned: &[Owned]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in rules
        .lines()
        .map(str::trim)
        .filter(|rule| !rule.starts_with('#'))
    {
        if rule.contains("hook egress") {
            findings.push(egress(name, rule));
        }
        for port in owned.iter().filter(|port| mentions(rule, port)) {
            let refuses = ["drop", "reject", "DROP", "REJECT"]
                .iter()
                .any(|word| rule.contains(word));
            let text = format!(
                "{name} rule `{rule}` no longer sees {} port {} (process {}): Tidewall takes its frames first",
                port.protocol, port.port, port.process
            );
            let mend = format!(
                "give the port back to the kernel: kill -TERM {}\nor filter in front of this host",
                port.process
            );
            findings.push(if refuses {
                Finding::problem(CHECK, format!("{text}, so the port is open"), mend)
            } else {
                Finding::warning(CHECK, text, mend)
            });
        }
        if drops_by_policy(rule) {
            let ports: Vec<String> = owned
                .iter()
                .map(|port| format!("{} {}", port.protocol, port.port))
                .collect();
            findings.push(Finding::problem(
                CHECK,
                format!("{name} drops what comes in unless allowed (`{rule}`), but owned ports bypass it: {}", ports.join(", ")),
                "filter in front of this host, or give the ports back: end the services (tidewall stat lists them)",
            ));
        }
    }
    findings
}

/// Reports a chain that sees long segments and no other frame of an owned port.
fn egress(name: &str, chain: &str) -> Finding {
    Finding::warning(
        CHECK,
        format!(
            "{name} chain `{chain}` sees TCP segments that are longer than a packet, and no other \
             frame that Tidewall sends"
        ),
        "what it drops shows as long-dropped: tidewall stat\n\
         filter all of it in front of this host, or nothing here: nft delete chain …",
    )
}

/// An input chain whose policy is to drop.
fn drops_by_policy(rule: &str) -> bool {
    rule.starts_with(":INPUT DROP") || (rule.contains("hook input") && rule.contains("policy drop"))
}

/// Returns whether a rule names the port as destination, alone, in a list or in a range,
/// for its protocol or for any.
fn mentions(rule: &str, owned: &Owned) -> bool {
    let words: Vec<&str> = rule
        .split(|c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | ';'))
        .filter(|w| !w.is_empty())
        .collect();
    let other = if owned.protocol == "udp" {
        "tcp"
    } else {
        "udp"
    };
    if words.contains(&other) && !words.contains(&owned.protocol.as_str()) {
        return false;
    }
    let Some(at) = words
        .iter()
        .position(|word| matches!(*word, "dport" | "--dport" | "--dports"))
    else {
        return false;
    };
    words
        .iter()
        .skip(at + 1)
        .filter(|word| **word != "!=")
        .map_while(|word| range(word))
        .any(|(first, last)| (first..=last).contains(&owned.port))
}

/// `7`, `7-9` (nftables) or `7:9` (iptables).
fn range(word: &str) -> Option<(u16, u16)> {
    match word.split_once(['-', ':']) {
        Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
        None => word.parse().ok().map(|port| (port, port)),
    }
}

#[cfg(test)]
pub mod tests {

    use tidewall::snapshot::SocketSnapshot;

    use super::super::Severity;
    use super::*;

    /// A stack with one socket.
    pub fn stack(process: u32, architecture: &str, local: &str) -> StackSnapshot {
        let mut stack = StackSnapshot::default();
        stack.process = process;
        stack.interface = "tw-x".to_owned();
        stack.architecture = architecture.to_owned();
        stack.deferred = true;
        stack.microseconds = 1;
        stack.sockets = vec![{
            let mut socket = SocketSnapshot::default();
            socket.channel = 2;
            socket.protocol = "udp".to_owned();
            socket.local = local.to_owned();
            socket.limit = 1;
            socket
        }];
        stack
    }

    fn port() -> Vec<Owned> {
        owned(&[stack(42, "tidewall", "0.0.0.0:7")])
    }

    #[test]
    fn a_chain_on_egress_is_found() {
        let rules = "table netdev t {\n\tchain out {\n\t\ttype filter hook egress device \"x\" \
                     priority filter; policy accept;\n\t\tcounter\n\t}\n}\n";
        let findings = compare("nftables", rules, &port());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(
            findings[0].text.contains("hook egress"),
            "{}",
            findings[0].text
        );
    }

    #[test]
    fn rules_that_name_an_owned_port_are_found() {
        for (rule, found) in [
            ("udp dport 7 drop", true),
            ("udp dport { 5-8, 53 } counter accept", true),
            ("th dport 7 accept", true),
            ("tcp dport 7 accept", false),
            ("udp sport 7 accept", false),
            ("udp dport 77 accept", false),
            ("-A INPUT -p udp -m udp --dport 7 -j DROP", true),
            (
                "-A INPUT -p udp -m multiport --dports 1,5:9 -j ACCEPT",
                true,
            ),
            ("-A INPUT -p tcp -m tcp --dport 7 -j DROP", false),
            (
                "type filter hook input priority filter; policy accept;",
                false,
            ),
        ] {
            assert_eq!(mentions(rule, &port()[0]), found, "{rule}");
        }
    }

    #[test]
    fn a_rule_that_would_have_refused_is_a_problem() {
        let rules = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\
                     \t\tudp dport 7 drop\n\t\tudp dport 7 counter\n\t}\n}\n";
        let found: Vec<Severity> = compare("nftables", rules, &port())
            .iter()
            .map(|f| f.severity)
            .collect();
        assert_eq!(
            found,
            [Severity::Problem, Severity::Problem, Severity::Warning]
        );
        let finding = &compare("nftables", "udp dport 7 drop", &port())[0];
        assert!(
            finding.text.contains("udp port 7 (process 42)"),
            "{}",
            finding.text
        );
        assert!(
            finding
                .mend
                .as_ref()
                .is_some_and(|mend| mend.contains("kill -TERM 42"))
        );
        assert_eq!(compare("iptables", ":INPUT DROP [0:0]", &port()).len(), 1);
        assert!(
            compare(
                "iptables",
                "# udp dport 7 drop\n:INPUT ACCEPT [0:0]",
                &port()
            )
            .is_empty()
        );
    }

    #[test]
    fn without_a_stack_there_is_nothing_to_compare() {
        assert_eq!(check(&[]).len(), 1);
        assert_eq!(check(&[])[0].severity, Severity::Ok);
    }
}
