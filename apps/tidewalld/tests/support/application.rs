//! The tests' own serving processes, with and without privileges.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions, kill_process, waitpid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A process that serves, in the body `inside::serve` of this test; killed at the end.
pub struct Application(Child);

impl Application {
    /// Starts one that reports when it serves.
    pub fn start(variables: &[(&str, String)]) -> Self {
        Self::of(Self::begin(variables))
    }

    /// Starts a process that does not serve yet.
    pub fn begin(variables: &[(&str, String)]) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "inside::serve", "--ignored", "--nocapture"])
            .envs(variables.iter().cloned())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Wraps it, once it serves.
    pub fn of(mut child: Child) -> Self {
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("serves") {}
        // A full pipe must stop no process.
        std::thread::spawn(move || lines.for_each(drop));
        Application(child)
    }

    /// The process has stopped when this returns.
    pub fn stop(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).unwrap();
        let stopped = waitpid(Some(process), WaitOptions::UNTRACED).unwrap();
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    /// Resumes it, after [`Application::stop`].
    pub fn proceed(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).unwrap();
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes this thread, and those that it starts, those of an unprivileged user.
pub fn drop_privileges(user: u32) {
    set_thread_groups(&[]).unwrap();
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
}
