//! Determines which processes descend from another (proc_pid_stat(5)).

use std::fs;
use std::os::fd::AsFd;

use super::process::looked_up;

/// How often to read the parents. A parent that ends in between, as that of a daemon
/// does, leaves its children to the subreaper.
const LOOKS: usize = 3;
/// Generations that are examined; a process with more counts as a stranger.
const GENERATIONS: usize = 64;

/// Whether the process at the other end of a Unix socket was started by `from`, directly
/// or through any number of other processes. `process`: its id, as SO_PEERCRED reports
/// it. `from` must be their subreaper (prctl(2)); otherwise a process whose parent has
/// ended is no longer a descendant.
///
/// Process ids are reused once a process is gone, and parents may end while they are
/// being read. So the process must still live afterwards (Linux 6.5; before, its id is
/// trusted), with the same parents as before.
pub fn descends(connection: impl AsFd, process: u32, from: u32) -> bool {
    let is_descendant = || {
        let all = ancestors(process);
        all.contains(&from) && ancestors(process) == all
    };
    looked_up(connection, || {
        (0..LOOKS).any(|_| is_descendant()).then_some(())
    })
    .is_some()
}

/// Parent, the parent's parent and so on.
pub fn ancestors(process: u32) -> Vec<u32> {
    let generations = std::iter::successors(parent(process), |&process| parent(process));
    // No process has id 0: the kernel reports it for one that is not visible from here.
    let generations = generations.take_while(|&ancestor| ancestor != 0);
    generations.take(GENERATIONS).collect()
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
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use tidewall_sys::peer_process;

    use super::*;
    use crate::connection::Credentials;

    #[test]
    fn a_name_may_look_like_the_rest() {
        assert_eq!(parse(b"4711 (a) S 1 2 (b)) R 99 4711 4711 0"), Some(99));
        assert_eq!(parse(b"4711 (a"), None);
        assert_eq!(parse(b""), None);
    }

    /// A process that connects, and exits when told to.
    fn connect(path: &PathBuf) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "daemon::descent::tests::one_that_connects"])
            .args(["--ignored", "--nocapture"])
            .env("TW_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    #[ignore = "a part of the test below"]
    fn one_that_connects() {
        let _connection = UnixStream::connect(std::env::var("TW_PATH").unwrap()).unwrap();
        std::io::read_to_string(std::io::stdin()).unwrap();
    }

    #[test]
    fn a_child_descends_and_who_has_its_number_after_it_does_not() {
        let me = std::process::id();
        let name = format!("tw-descent-{me}");
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = connect(&path);
        let (connection, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let number = Credentials::of_peer(&connection).unwrap().pid;
        assert_eq!(number, child.id());
        assert!(descends(&connection, number, me));
        // No process descends from itself, or from its child.
        assert!(!descends(&connection, number, number));
        assert!(!ancestors(me).contains(&number));
        assert!(ancestors(0).is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!descends(&connection, number, me));

        // Another child gets the id.
        let Some(mut second) = numbered(number) else {
            return;
        };
        assert!(ancestors(number).contains(&me));
        let before_linux_6_5 = peer_process(&connection)
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENOPROTOOPT));
        assert_eq!(descends(&connection, number, me), before_linux_6_5);
        second.kill().unwrap();
        second.wait().unwrap();
    }

    /// A child with a given id, unless other processes take it again and again.
    fn numbered(number: u32) -> Option<Child> {
        for _ in 0..1000 {
            // Makes the next process get it (CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN).
            let last = (number - 1).to_string();
            if let Err(error) = fs::write("/proc/sys/kernel/ns_last_pid", last) {
                tidewall_skip::missing("numbers that are used again", error);
                return None;
            }
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            if child.id() == number {
                return Some(child);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        tidewall_skip::missing("numbers that are used again", "others are quicker");
        None
    }
}
