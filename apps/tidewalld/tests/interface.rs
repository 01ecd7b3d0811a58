//! A daemon whose interface, or whose file system of pins, is not as it should be: it
//! reports the cause and the remedy.

mod support;

use std::io::ErrorKind;
use std::process::Command;

use support::*;
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Client;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join, as_text};

#[test]
fn queues_of_an_interface_that_is_down_are_handed_out() {
    run("queues_of_an_interface_that_is_down_are_handed_out");
}

#[test]
fn a_renamed_interface_is_followed() {
    run("a_renamed_interface_is_followed");
}

#[test]
fn nothing_is_left_of_a_deleted_interface() {
    run("nothing_is_left_of_a_deleted_interface");
}

#[test]
fn nothing_is_left_of_an_interface_in_another_namespace() {
    run_with_peer("nothing_is_left_of_an_interface_in_another_namespace", 60);
}

#[test]
fn bpffs_must_be_there_and_writable() {
    run("bpffs_must_be_there_and_writable");
}

#[test]
fn a_bpffs_directory_of_another_user_is_refused() {
    run("a_bpffs_directory_of_another_user_is_refused");
}

const RENAMED: &str = "tw-new";

/// Starts a daemon with private mode, once its pairs are in stock.
fn start_private() -> Daemon {
    let (daemon, _) = start_with(command().args(["--private", "any", "--ports", "1-65535"]));
    wait_until("pairs are ready", || interfaces() == 3 + 2 * (1 + 4));
    daemon
}

fn kill(mut daemon: Daemon) {
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
}

fn direct() -> Join {
    Join { flags: 0, ..join() }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn queues_of_an_interface_that_is_down_are_handed_out() {
        let (_daemon, _) = start();
        ip(&format!("link set {INTERFACE} down"));
        let (_client, handed) = Client::join(&socket(), &direct()).unwrap();
        assert_eq!(handed.queues.len(), 1);
        ip(&format!("link set {INTERFACE} up"));
        assert!(is_attached(INTERFACE));
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_renamed_interface_is_followed() {
        let daemon = start_private();
        // Its other end is not.
        ip("link set tw-peer name tw-other");
        ip(&format!("link set {INTERFACE} down"));
        ip(&format!("link set {INTERFACE} name {RENAMED}"));
        ip(&format!("link set {RENAMED} up"));
        wait_until("it has followed", || {
            as_text(&client().joined().name) == RENAMED
        });
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        let (client, handed) = Client::join(&socket(), &private).unwrap();
        assert_eq!((client.joined().mtu, handed.queues.len()), (1500, 1));
        drop((client, handed));
        let (client, handed) = loop {
            // Until the end of the private one is noticed.
            match Client::join(&socket(), &direct()) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
                joined => break joined.unwrap(),
            }
        };
        drop((client, handed));
        kill(daemon);

        let text = refused(&mut command());
        assert!(
            text.contains(&format!("ip link set {RENAMED} name {INTERFACE}")),
            "{text}"
        );
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!is_attached(RENAMED));
        assert!(!pins().exists());
        assert_eq!(interfaces(), 3);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn nothing_is_left_of_a_deleted_interface() {
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let mut daemon = start_private();
        let application = client();
        application.lease(Protocol::Udp).unwrap();
        assert_ne!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        ip(&format!("link del {INTERFACE}"));
        // It has nothing left to do.
        assert_eq!(daemon.0.wait().unwrap().code(), Some(1));
        assert!(!pins().exists());
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        drop(application);
        let text = refused(&mut command());
        assert!(
            text.contains(&format!("there is no interface {INTERFACE}")),
            "{text}"
        );

        // Another interface of that name is taken over from the beginning.
        let add = format!("link add {INTERFACE} type veth peer name tw-peer");
        let up = || {
            ip(&add);
            ip(&format!("link set {INTERFACE} up"));
        };
        up();
        let (daemon, said) = start();
        assert!(said.contains("program=attached"), "{said}");
        assert!(is_attached(INTERFACE));
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        assert_eq!(interfaces(), 3);
        assert_eq!(counters().blocks, 0);
        client().lease(Protocol::Udp).unwrap();
        kill(daemon);

        // The interface that disappeared meanwhile is given back, too.
        ip(&format!("link del {INTERFACE}"));
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!pins().exists());
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        up();
        drop(start());
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn nothing_is_left_of_an_interface_in_another_namespace() {
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let peer = std::env::var("TW_PEER").unwrap();
        let links = interfaces();
        let away = || ip(&format!("link set {INTERFACE} netns {peer}"));
        let back = || {
            let set = format!("ip link set {INTERFACE} netns {}", std::process::id());
            let mut command = Command::new("nsenter");
            let command = command.args(["-t", &peer, "-n", "sh", "-c", &set]);
            assert!(command.status().unwrap().success());
            ip(&format!("link set {INTERFACE} up"));
        };
        let is_elsewhere = || at_peer(|| is_attached(INTERFACE));

        // While the daemon lives, which reports what it cannot restore.
        let (mut daemon, said) =
            start_saying(command().args(["--private", "any", "--ports", "1-65535"]));
        let (application, handed) = Client::join(&socket(), &direct()).unwrap();
        application.lease(Protocol::Udp).unwrap();
        away();
        assert_eq!(daemon.0.wait().unwrap().code(), Some(1));
        let said = said.join().unwrap();
        assert!(
            said.contains("was moved to another network namespace"),
            "{said}"
        );
        assert!(said.contains("napi_defer_hard_irqs was 0"), "{said}");
        let is_clean = || {
            assert!(!pins().exists());
            assert!(!is_elsewhere());
            assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
            assert_eq!(interfaces(), links - 1);
        };
        is_clean();
        drop((application, handed));

        // Without a daemon; another interface has its name and its index meanwhile.
        back();
        let index = tidewall_sys::interface::index(INTERFACE).unwrap();
        let (daemon, _) = start();
        client().lease(Protocol::Udp).unwrap();
        kill(daemon);
        away();
        assert!(is_elsewhere());
        ip(&format!(
            "link add {INTERFACE} index {index} type veth peer name tw-end"
        ));
        let (daemon, said) = start();
        assert!(said.contains("program=attached"), "{said}");
        assert!(!is_elsewhere());
        kill(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        ip(&format!("link del {INTERFACE}"));
        is_clean();

        back();
        kill(start().0);
        away();
        assert!(is_elsewhere());
        assert!(command().arg("--remove").status().unwrap().success());
        is_clean();
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn bpffs_must_be_there_and_writable() {
        let pins_at = |path: &str| {
            let mut command = Command::new(DAEMON);
            command.args(["--interface", INTERFACE, "--pins", path]);
            command
        };
        let elsewhere = std::env::temp_dir().join(format!("tw-pins-{}", std::process::id()));
        let text = refused(&mut pins_at(elsewhere.to_str().unwrap()));
        let cure = "is not in bpffs: mount -t bpf -o mode=0700 bpf /sys/fs/bpf";
        assert!(text.contains(cure), "{text}");
        assert!(!elsewhere.exists());
        // A file system without writable directories.
        let text = refused(&mut pins_at("/proc/tw-pins"));
        assert!(
            text.contains("mount -t bpf -o mode=0700 bpf /sys/fs/bpf"),
            "{text}"
        );

        let remount = |how: &str| {
            let mut mount = Command::new("mount");
            let mount = mount.arg("-o").arg(format!("remount,{how}"));
            assert!(mount.arg(directory()).status().unwrap().success());
        };
        let is_refused = |command: &mut Command| {
            remount("ro");
            let text = refused(command);
            assert!(text.contains("mount -o remount,rw"), "{text}");
            remount("rw");
        };
        // With nothing there, and with a daemon's leftovers.
        is_refused(&mut command());
        kill(start().0);
        is_refused(&mut command());
        is_refused(command().arg("--remove"));
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_bpffs_directory_of_another_user_is_refused() {
        // `mount -t bpf` without a mode: any user can create directories.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(directory(), mode).unwrap();
        let user = TRUSTED + 1;
        let taken = directory().join("taken");
        as_user(user, || std::fs::create_dir(&taken).unwrap());
        // Root without CAP_DAC_OVERRIDE cannot create any in it.
        let below = (taken.join("below"), "Permission denied".to_owned());
        for (pins, why) in [(taken, format!("is user {user}")), below] {
            let mut command = Command::new(DAEMON);
            command.args(["--interface", INTERFACE, "--pins"]).arg(pins);
            let text = refused(&mut command);
            assert!(text.contains(&why), "{text}");
            assert!(!is_attached(INTERFACE));
        }
        // A directory that the daemon makes there is its own.
        let daemon = start().0;
        let removed = as_user(user, || std::fs::remove_file(pins().join("link")));
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::PermissionDenied);
        kill(daemon);
        assert!(is_attached(INTERFACE));
        assert!(command().arg("--remove").status().unwrap().success());
    }
}
