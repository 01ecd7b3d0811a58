//! Which processes descend from one (proc_pid_stat(5)).

use std::fs;

/// Generations that are looked at; a process with more is taken for a stranger.
const GENERATIONS: usize = 64;

/// Whether a process was started by another or, at any number of removes, by one that was.
/// The other must be their subreaper (prctl(2)), or a process whose parent has ended is a
/// descendant no more.
pub fn descends(process: u32, from: u32) -> bool {
    let parents = std::iter::successors(Some(process), |&process| parent(process));
    // Nobody is 0: so the kernel names who cannot be seen from here.
    let ancestors = parents
        .take(GENERATIONS)
        .take_while(|&ancestor| ancestor != 0);
    ancestors.skip(1).any(|ancestor| ancestor == from)
}

fn parent(process: u32) -> Option<u32> {
    let text = fs::read(format!("/proc/{process}/stat")).ok()?;
    parse(&text)
}

/// The fourth field. The second, a name in parentheses, may hold anything.
fn parse(stat: &[u8]) -> Option<u32> {
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest() {
        assert_eq!(parse(b"4711 (a) S 1 2 (b)) R 99 4711 4711 0"), Some(99));
        assert_eq!(parse(b"4711 (a"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn children_descend_and_strangers_do_not() {
        let me = std::process::id();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(descends(child.id(), me));
        assert!(!descends(me, child.id()));
        // Nobody descends from himself.
        assert!(!descends(me, me));
        assert!(!descends(0, me));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descends(child.id(), me));
    }
}
