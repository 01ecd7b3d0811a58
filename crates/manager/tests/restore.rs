//! The restorer against real process deaths. The process that dies is this
//! test program again, running [`subject`] (ignored unless named).

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidewall_manager::restore::record::Record;
use tidewall_manager::restore::{Knob, Restorer, STEP_BYTES, STEPS};

const DIRECTORY: &str = "TW_RESTORE_DIRECTORY";

/// A separate directory for each test, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("tw-restore-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("knob"), "old\n").unwrap();
        Directory(path)
    }

    fn knob(&self) -> PathBuf {
        self.0.join("knob")
    }

    fn value(&self) -> String {
        fs::read_to_string(self.knob()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits, with a limit, for another process to make `done` true.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    done()
}

/// True when the process is gone, or only waits for its parent to notice.
fn ended(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => true,
    }
}

fn send_signal(signal: &str, target: &str) {
    let status = Command::new("/bin/kill")
        .args([signal, "--", target])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Sets the knob twice with a command registered between, reports that, and waits to be
/// killed.
#[test]
#[ignore = "the process that the other tests kill"]
fn subject() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by another test"));
    let knob = directory.join("knob");
    let (record, _) = Record::open(&directory.join("record")).unwrap();
    let restorer = Restorer::start_recorded(record).unwrap();
    // The restorer's last step but one, for the test that makes it wait.
    let wait = format!(
        "while test -e {}/wait; do sleep 0.01; done",
        directory.display()
    );
    let _wait = restorer.on_exit_run(&["/bin/sh", "-c", &wait]).unwrap();
    let _one = Knob::set(&restorer, &knob, "one\n").unwrap();
    let script = format!("cat {0}/knob >> {0}/log", directory.display());
    let _log = restorer.on_exit_run(&["/bin/sh", "-c", &script]).unwrap();
    let _two = Knob::set(&restorer, &knob, "two\n").unwrap();
    let made = directory.join("made");
    let _made = restorer.on_exit_remove(&made).unwrap();
    fs::write(made, "").unwrap();
    // Threads and a child that outlives us must not keep the restorer waiting.
    let _thread = std::thread::spawn(|| {
        loop {
            std::thread::park()
        }
    });
    println!("\nrestorer {}", restorer.process_id());
    // Ends only if the test that started us does.
    let _ = std::io::stdin().read(&mut [0]);
}

fn start_subject(directory: &Path) -> (Child, i32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "subject", "--nocapture"])
        .env(DIRECTORY, directory)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = lines
        .find_map(|line| line.unwrap().strip_prefix("restorer ")?.parse().ok())
        .unwrap();
    (child, pid)
}

#[test]
fn killed_process_is_undone_newest_first() {
    let directory = Directory::new("killed");
    let (mut child, restorer) = start_subject(&directory.0);
    assert_eq!(directory.value(), "two\n");
    assert!(directory.0.join("made").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        wait_until(|| ended(restorer)),
        "the restorer did not finish"
    );
    assert_eq!(directory.value(), "old\n");
    assert!(!directory.0.join("made").exists());
    assert!(!directory.0.join("record").exists());
    // The command ran after the newer value was undone, before the older.
    assert_eq!(
        fs::read_to_string(directory.0.join("log")).unwrap(),
        "one\n"
    );
}

#[test]
fn signals_to_the_group_do_not_reach_the_restorer() {
    let directory = Directory::new("group");
    let (mut child, restorer) = start_subject(&directory.0);
    for signal in ["-INT", "-TERM", "-HUP", "-USR1"] {
        send_signal(signal, &restorer.to_string());
    }
    let name = fs::read_to_string(format!("/proc/{restorer}/comm")).unwrap();
    assert_eq!(name, "tw-restorer\n");
    // Only its socket, the pidfd, the record and /dev/null: none of our pipes is held
    // open.
    let mut open: Vec<String> = fs::read_dir(format!("/proc/{restorer}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    open.sort();
    assert_eq!(open, ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(directory.value(), "two\n");
    send_signal("-KILL", &format!("-{}", child.id()));
    child.wait().unwrap();
    assert!(
        wait_until(|| ended(restorer)),
        "the restorer did not finish"
    );
    assert_eq!(directory.value(), "old\n");
}

#[test]
fn orderly_end_undoes_in_the_parent() {
    let directory = Directory::new("orderly");
    let restorer = Restorer::start().unwrap();
    let pid = restorer.process_id();
    let knob = Knob::set(&restorer, directory.knob(), "new").unwrap();
    assert_eq!((knob.old(), directory.value().as_str()), ("old", "new"));
    drop(knob);
    assert_eq!(directory.value(), "old\n");

    let knob = Knob::set(&restorer, directory.knob(), "new").unwrap();
    knob.restore().unwrap();
    assert_eq!(directory.value(), "old\n");

    let made = directory.0.join("made");
    let undo = restorer
        .on_exit_run(&["/bin/rm", made.to_str().unwrap()])
        .unwrap();
    fs::write(&made, "").unwrap();
    undo.now().unwrap();
    assert!(!made.exists());

    let undo = restorer.on_exit_remove(&made).unwrap();
    fs::write(&made, "").unwrap();
    drop(undo);
    assert!(!made.exists());
    // A file that is already gone has been removed.
    restorer.on_exit_remove(&made).unwrap().now().unwrap();

    let kept = restorer.on_exit_write(directory.knob(), b"never").unwrap();
    kept.keep().unwrap();
    assert!(!ended(pid));
    drop(restorer);
    assert!(ended(pid), "the last handle waits for the restorer");
    assert_eq!(directory.value(), "old\n");
}

#[test]
fn failed_undo_is_reported_and_tried_again_at_the_end() {
    let directory = Directory::new("failed");
    let late = directory.0.join("late");
    let restorer = Restorer::start().unwrap();
    let undo = restorer.on_exit_write(&late, b"undone").unwrap();
    assert_eq!(undo.now().unwrap_err().kind(), ErrorKind::NotFound);
    let undo = restorer
        .on_exit_run(&["/bin/sh", "-c", "echo why >&2; exit 3"])
        .unwrap();
    assert!(undo.now().unwrap_err().to_string().contains("why"));
    fs::write(&late, "changed").unwrap();
    drop(restorer);
    assert_eq!(fs::read_to_string(&late).unwrap(), "undone");
}

#[test]
fn limits_are_met_before_anything_is_touched() {
    let directory = Directory::new("limits");
    let restorer = Restorer::start().unwrap();
    let full = |error: std::io::Error| error.raw_os_error() == Some(28); // ENOSPC
    let path = directory.knob();
    let room = STEP_BYTES - path.as_os_str().len() - 1;
    assert!(full(
        restorer
            .on_exit_write(&path, &vec![b'x'; room + 1])
            .unwrap_err()
    ));
    assert!(full(restorer.on_exit_run(&["/bin/true"; 65]).unwrap_err()));
    let relative = restorer.on_exit_write("knob", b"x").unwrap_err();
    assert_eq!(relative.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        restorer.on_exit_run(&[]).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );

    let largest = vec![b'x'; room];
    let mut undos: Vec<_> = (0..STEPS)
        .map(|_| restorer.on_exit_write(&path, &largest).unwrap())
        .collect();
    assert!(full(Knob::set(&restorer, &path, "new").unwrap_err()));
    assert_eq!(directory.value(), "old\n");

    // A step that is gone makes room for another, here and in the restorer.
    undos.remove(7).keep().unwrap();
    let late = directory.0.join("late");
    let last = restorer.on_exit_write(&late, b"from the restorer").unwrap();
    for undo in undos {
        undo.keep().unwrap();
    }
    // The file is not there yet, so this stays with the restorer.
    last.now().unwrap_err();
    fs::write(&late, "changed").unwrap();
    drop(restorer);
    assert_eq!(fs::read_to_string(&late).unwrap(), "from the restorer");
    assert_eq!(directory.value(), "old\n");
}

#[test]
fn dead_restorer_refuses_before_anything_is_touched() {
    let directory = Directory::new("dead");
    let restorer = Restorer::start().unwrap();
    let pid = restorer.process_id();
    send_signal("-KILL", &pid.to_string());
    assert!(wait_until(|| ended(pid)));
    let error = Knob::set(&restorer, directory.knob(), "new").unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ),
        "{error}"
    );
    assert_eq!(directory.value(), "old\n");
}

/// Kills both, as a kill of the whole cgroup does.
fn kill_with_restorer(child: &mut Child, restorer: i32) {
    send_signal("-KILL", &restorer.to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(wait_until(|| ended(restorer)));
}

#[test]
fn what_was_killed_with_its_restorer_is_undone_by_the_next() {
    let directory = Directory::new("cgroup");
    let record = directory.0.join("record");
    // Twice: the second one undoes what the first has left, then changes it.
    for _ in 0..2 {
        let (mut child, restorer) = start_subject(&directory.0);
        assert_eq!(directory.value(), "two\n");
        kill_with_restorer(&mut child, restorer);
        assert_eq!(directory.value(), "two\n", "nobody was left to undo it");
    }
    let (record_file, undone) = Record::open(&record).unwrap();
    assert_eq!(directory.value(), "old\n");
    let log = fs::read_to_string(directory.0.join("log")).unwrap();
    assert!(log.ends_with("one\n"), "newest first: {log}");
    assert!(!directory.0.join("made").exists());
    let knob_at = directory.knob().display().to_string();
    assert!(
        undone.contains(&format!("{knob_at} set to old")),
        "{undone:?}"
    );
    // It restores the value that the first one had found.
    let restorer = Restorer::start_recorded(record_file).unwrap();
    let knob = Knob::set(&restorer, directory.knob(), "new").unwrap();
    assert_eq!(knob.old(), "old");
    drop(knob);
    drop(restorer);
    assert_eq!(directory.value(), "old\n");
    assert!(!record.exists(), "nothing is left of an orderly end");
}

/// The first is dead, its restorer not done: the knob's value is not the original one.
#[test]
fn a_restart_waits_for_the_restorer() {
    let directory = Directory::new("restart");
    let (mut child, restorer) = start_subject(&directory.0);
    let wait = directory.0.join("wait");
    fs::write(&wait, "").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let (record, knob) = (directory.0.join("record"), directory.knob());
    let next = std::thread::spawn(move || {
        let (record, undone) = Record::open(&record).unwrap();
        (record, undone, fs::read_to_string(knob).unwrap())
    });
    // The restorer's younger steps are done, it hangs in the oldest.
    assert!(wait_until(|| directory.value() == "old\n"));
    fs::write(directory.knob(), "not yet\n").unwrap();
    assert!(!ended(restorer) && !next.is_finished());
    fs::write(directory.knob(), "old\n").unwrap();
    fs::remove_file(wait).unwrap();
    let (record, undone, value) = next.join().unwrap();
    assert!(wait_until(|| ended(restorer)), "it was waited for");
    assert_eq!((undone.as_slice(), value.as_str()), (&[][..], "old\n"));
    // And it is ours now, although the restorer has removed its own.
    let busy = Record::open(&directory.0.join("record")).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy, "{busy}");
    drop(record);
}

#[test]
fn a_live_process_keeps_its_record() {
    let directory = Directory::new("live");
    let (mut child, restorer) = start_subject(&directory.0);
    let busy = Record::open(&directory.0.join("record")).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
    let said = busy.to_string();
    assert!(
        said.starts_with(&format!("process {} has it", child.id())),
        "{said}"
    );
    assert_eq!(directory.value(), "two\n");
    // It also keeps it without its restorer.
    send_signal("-KILL", &restorer.to_string());
    let busy = Record::open(&directory.0.join("record")).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
    child.kill().unwrap();
    child.wait().unwrap();
}
