//! Domains that are systemd units and not users: control groups as systemd creates them.

mod support;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;
use tidewall_manager::client::Client;
use tidewall_manager::daemon::Limits;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join};

#[test]
fn a_unit_is_a_domain() {
    run("a_unit_is_a_domain");
}

/// A mounted cgroup file system with a control group like a service's.
struct Group {
    mounted: PathBuf,
    directory: PathBuf,
}

impl Group {
    /// Creates one; `None` without version 2, which is reported.
    fn make(test: &str, name: &str) -> Option<Self> {
        let mounted = std::env::temp_dir().join(format!("tw-cgroup-{}", std::process::id()));
        fs::create_dir(&mounted).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "cgroup2", "tw-cgroup"]).arg(&mounted);
        let directory = mounted.join(name);
        let made = mount.status().is_ok_and(|status| status.success())
            && fs::create_dir(&directory).is_ok();
        let group = Group { mounted, directory };
        if !made {
            tidewall_skip::missing(test, "control groups of version 2 that may be made");
            return None;
        }
        Some(group)
    }

    fn enter(directory: &Path) {
        let process = std::process::id().to_string();
        fs::write(directory.join("cgroup.procs"), process).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let process = std::process::id().to_string();
        let _ = fs::write(self.mounted.join("cgroup.procs"), process);
        let _ = fs::remove_dir(self.directory.join("tw-other.service"));
        let _ = fs::remove_dir(&self.directory);
        let _ = Command::new("umount").arg(&self.mounted).status();
        let _ = fs::remove_dir(&self.mounted);
    }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_unit_is_a_domain() {
        let name = format!("tw-test-{}.service", std::process::id());
        let Some(group) = Group::make("a_unit_is_a_domain", &name) else {
            return;
        };
        let of_unit = || {
            let mut command = command();
            command.args(["--private", &name, "--trust", "tw-other.service"]);
            command
        };
        let (daemon, _) = start_with(&mut of_unit());
        let join_as = |user| as_user(user, || Client::join(&socket(), &join()));
        let limit = Limits::default().applications_of_domain;
        // Not by his user.
        let stranger = join_as(TRUSTED + 1).unwrap_err();
        assert_eq!(stranger.kind(), ErrorKind::PermissionDenied);

        Group::enter(&group.directory);
        // Whatever rights their users have, they belong to the unit, together.
        let all: Vec<_> = (0..limit as u32)
            .map(|number| join_as([0, TRUSTED, TRUSTED + 1][number as usize % 3]).unwrap())
            .collect();
        assert!(all.iter().all(|(client, _)| client.joined().private == 1));
        let is_full = || {
            let error = join_as(TRUSTED + 2).unwrap_err();
            assert!(error.to_string().contains("user or unit"), "{error}");
        };
        is_full();

        // And to the next daemon's.
        drop(daemon);
        let (daemon, _) = start_with(&mut of_unit());
        wait_until("all are there", || counters().presented == limit as u64);
        is_full();

        // Others are not.
        Group::enter(&group.mounted);
        let (client, _) = join_as(TRUSTED).unwrap();
        assert_eq!(client.joined().private, 0);
        assert!(join_as(TRUSTED + 1).is_err());
        drop((client, all));
        wait_until("all are gone", || counters().applications == 0);

        // Every group below it belongs to the unit, whatever its name.
        let own = group.directory.join("tw-other.service");
        fs::create_dir(&own).unwrap();
        let (client, _) = {
            Group::enter(&own);
            join_as(TRUSTED + 1).unwrap()
        };
        assert_eq!(client.joined().private, 1);
        Group::enter(&group.mounted);
        drop((client, daemon));
        let text = refused(of_unit().args(["--trust", "nginx"]));
        assert!(
            text.contains("unit's name, such as nginx.service"),
            "{text}"
        );

        // Its processes may own the device's queues.
        let mut trusting = command();
        trusting.args(["--trust", &name]);
        let (_daemon, _) = start_with(&mut trusting);
        Group::enter(&group.directory);
        let (client, _) = join_as(TRUSTED + 1).unwrap();
        assert_eq!(client.joined().private, 0);
        let private = Join {
            flags: join().flags | JOIN_PRIVATE,
            ..join()
        };
        let asked = as_user(TRUSTED + 1, || Client::join(&socket(), &private));
        assert_eq!(asked.unwrap().0.joined().private, 1);
    }
}
