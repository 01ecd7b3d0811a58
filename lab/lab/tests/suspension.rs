//! Event loops may suspend the interrupts of a test bed's server. Needs root and Linux
//! 6.13; otherwise skipped, with a report.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tidewall_lab::testbed::{Config, Mode, SERVER_INTERFACE, Testbed, privilege};
use tidewall_lab::worker::Job;
use tidewall_lab::worker_main;
use tidewall_sys::netlink::Netdev;

const WORKER: &str = "TW_TEST_WORKER";

/// Returns the timeouts of an interface's NAPIs in a namespace.
fn timeouts(namespace: &str) -> Vec<Option<Duration>> {
    let namespace = format!("/run/netns/{namespace}");
    let thread = std::thread::spawn(move || {
        let namespace = File::open(namespace).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        let index = tidewall_sys::interface::index(SERVER_INTERFACE).unwrap();
        let napis = Netdev::open().unwrap().napi_states(index).unwrap();
        napis.iter().map(|napi| napi.suspend_timeout).collect()
    });
    thread.join().unwrap()
}

#[test]
fn a_worker_sets_the_timeout_of_the_servers_napi() {
    const NAME: &str = "a_worker_sets_the_timeout_of_the_servers_napi";
    if let Ok(job) = std::env::var(WORKER) {
        return worker_main(&job).unwrap();
    }
    if let Err(missing) = privilege::check() {
        return tidewall_skip::missing(NAME, missing);
    }
    let mut testbed = Testbed::new(Config::default()).unwrap();
    testbed.set_mode(Mode::Suspend).unwrap();
    if timeouts(testbed.server()) != [Some(Duration::ZERO)] {
        return tidewall_skip::inapplicable(NAME, "the kernel suspends no interrupts");
    }
    let status = Command::new("ip")
        .args(["netns", "exec", testbed.server()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(WORKER, serde_json::to_string(&Job::Suspend).unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(
        timeouts(testbed.server()),
        [Some(Duration::from_millis(20))]
    );
}
