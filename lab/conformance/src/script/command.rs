//! The content of backticks: settings, not a shell.

/// Settings by their names in `/proc/sys`, with dots: `net.ipv4.tcp_ecn`.
///
/// These forms are accepted, separated by newlines, `;` or `&&`:
/// - `sysctl -q net.ipv4.tcp_ecn=1 …`;
/// - `…/set_sysctls.py /proc/sys/net/ipv4/tcp_ecn=1 …`;
/// - `…/defaults.sh`: the public suite's settings, as far as they are not the defaults
///   here;
/// - the suite's restoring of settings, which does nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// Names and values, in order.
    pub settings: Vec<(String, String)>,
}

/// Settings that the public suite's scripts presume.
const SUITE_DEFAULTS: [(&str, &str); 5] = [
    ("net.ipv4.tcp_rmem", "4096 540000 15728640"),
    ("net.ipv4.tcp_wmem", "4096 262144 4194304"),
    ("net.ipv4.tcp_syn_retries", "5"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_ecn", "0"),
];

impl Command {
    /// Parses the content of the backticks; `Err` describes the error.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut command = Self::default();
        let text = text.replace("\\\n", " ").replace("&&", "\n");
        for line in text.split(['\n', ';']) {
            let line = line.split('#').next().unwrap_or_default();
            let words = words(line);
            let Some((program, arguments)) = words.split_first() else {
                continue;
            };
            let program = program.rsplit('/').next().unwrap_or_default();
            match program {
                "sysctl" | "set_sysctls.py" => command.settings(arguments)?,
                "defaults.sh" if arguments.is_empty() => {
                    let all = SUITE_DEFAULTS.into_iter();
                    let owned = all.map(|(name, value)| (name.into(), value.into()));
                    command.settings.extend(owned);
                }
                "true" | ":" if arguments.is_empty() => {}
                restore if restore.starts_with("sysctl_restore_") => {}
                _ => {
                    return Err(format!(
                        "shell commands are not run; expected `sysctl name=value …`, found `{}`",
                        line.trim()
                    ));
                }
            }
        }
        Ok(command)
    }

    fn settings(&mut self, arguments: &[String]) -> Result<(), String> {
        for argument in arguments {
            if matches!(argument.as_str(), "-q" | "-w" | "-e" | "-qw" | "-wq") {
                continue;
            }
            let Some((name, value)) = argument.split_once('=') else {
                return Err(format!("expected name=value, found `{argument}`"));
            };
            let name = name.strip_prefix("/proc/sys/").unwrap_or(name);
            let name = name.replace('/', ".");
            self.settings.push((name, value.to_owned()));
        }
        Ok(())
    }
}

/// Words, split at blanks outside quotes; the quotes are dropped.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut begun = false;
    for char in line.chars() {
        match quote {
            Some(end) if char == end => quote = None,
            Some(_) => word.push(char),
            None if char == '"' || char == '\'' => {
                quote = Some(char);
                begun = true;
            }
            None if char.is_whitespace() => {
                if begun {
                    words.push(core::mem::take(&mut word));
                }
                begun = false;
            }
            None => {
                word.push(char);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_either_form() {
        let text = "sysctl -q net.ipv4.tcp_ecn=1 net.ipv4.tcp_rmem=\"4096 1 2\" # a comment\n\
            ../common/set_sysctls.py \\\n /proc/sys/net/ipv4/tcp_min_tso_segs=4";
        let expected = [
            ("net.ipv4.tcp_ecn", "1"),
            ("net.ipv4.tcp_rmem", "4096 1 2"),
            ("net.ipv4.tcp_min_tso_segs", "4"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(Command::parse(text).unwrap().settings, expected);
        let defaults = Command::parse("../common/defaults.sh").unwrap();
        assert_eq!(defaults.settings.len(), SUITE_DEFAULTS.len());
    }

    #[test]
    fn a_shell_there_is_not() {
        for text in [
            "rm -rf /",
            "sysctl net.ipv4.tcp_ecn",
            "true; ls",
            "defaults.sh x",
        ] {
            assert!(Command::parse(text).is_err(), "{text}");
        }
        let error = Command::parse("tc qdisc add").unwrap_err();
        assert!(error.contains("shell commands are not run"), "{error}");
    }
}
