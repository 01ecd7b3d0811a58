//! A daemon on a veth in its own network namespace, with its own bpffs.
#![allow(dead_code, reason = "each test uses a part")]

pub mod application;

use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{Array, ArrayOfMaps, Map, MapData};
use rustix::process::Uid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_res_uid};
use tidewall_device::demux::TrustedTables;
use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_manager::client::Client;
use tidewall_manager::connection::Connection;
use tidewall_manager::daemon::journal::{ENTRY_BYTES, Entry, FREE};
use tidewall_manager::pinned::kernel_maps;
use tidewall_manager::protocol::*;
use tidewall_manager::view::View;

pub const INTERFACE: &str = "tw-here";
pub const DAEMON: &str = env!("CARGO_BIN_EXE_tidewalld");
pub const TRUSTED: u32 = 12_345;
pub const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// Runs a body of the same name in namespaces that end with it.
pub fn run(name: &str) {
    run_within(name, 60);
}

/// Acts as [`run`]; a test that takes more seconds has hung.
pub fn run_within(name: &str, limit: u32) {
    let peer = "ip addr add 10.78.0.1/24 dev tw-peer; ip link set tw-peer up";
    run_with(name, limit, peer);
}

/// Acts as [`run_within`], with a peer in another namespace, which [`at_peer`] enters.
pub fn run_with_peer(name: &str, limit: u32) {
    run_with_way(name, limit, "");
}

/// Acts as [`run_with_peer`], but the two are not connected: the other end of this one's
/// interface is `tw-left`, that of the peer's `tw-right`, both in this namespace.
pub fn run_with_gap(name: &str, limit: u32) {
    // NAPI, or frames that the driver program sends on would be rejected; and no answers
    // for addresses of this namespace.
    let way = "ip link set tw-peer name tw-left
         ip link add tw-right type veth peer name tw-peer
         for I in tw-left tw-right; do ethtool -K $I gro on; ip link set $I arp off up; done";
    if tidewall_skip::has_programs(name, &["ethtool"]) {
        run_with_way(name, limit, way);
    }
}

fn run_with_way(name: &str, limit: u32, way: &str) {
    let peer = format!(
        "{way}
         unshare --net sleep 600 & P=$!
         until ip link set tw-peer netns $P && ! ip link show tw-peer; do :; done >/dev/null 2>&1
         nsenter -t $P -n sh -c 'ip addr add 10.77.0.2/24 dev tw-peer; ip link set tw-peer up'
         export TW_PEER=$P"
    );
    if tidewall_skip::has_programs(name, &["nsenter"]) {
        run_with(name, limit, &peer);
    }
}

fn run_with(name: &str, limit: u32, peer: &str) {
    let script = format!(
        "D=$(mktemp -d) && mount -t bpf bpf $D && mount -t sysfs tw-sys /sys || exit 3
         ip link add {INTERFACE} type veth peer name tw-peer
         ip addr add 10.77.0.1/24 dev {INTERFACE}
         ip link set lo up; ip link set {INTERFACE} up
         {peer}
         TW_DIRECTORY=$D timeout -k 5 {limit} \"$SELF\" --exact inside::{name} --ignored --nocapture
         R=$?; rm -f $D.socket; umount $D; rmdir $D; test -z \"$P\" || kill $P; exit $R"
    );
    tidewall_skip::in_namespaces(name, &script, "a bpffs of its own (CAP_SYS_ADMIN)");
}

/// Killed at the end.
pub struct Daemon(pub Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn directory() -> PathBuf {
    std::env::var_os("TW_DIRECTORY").unwrap().into()
}

pub fn pins() -> PathBuf {
    directory().join("pins")
}

/// Beside the bpffs, which has no sockets.
pub fn socket() -> PathBuf {
    let mut path = directory().into_os_string();
    path.push(".socket");
    path.into()
}

pub fn command() -> Command {
    let mut command = Command::new(DAEMON);
    command
        .args(["--interface", INTERFACE, "--trust", &TRUSTED.to_string()])
        .arg("--pins")
        .arg(pins())
        .arg("--socket")
        .arg(socket());
    command
}

/// Starts a daemon; returns it, and how it began.
pub fn start() -> (Daemon, String) {
    start_with(&mut command())
}

/// Starts a daemon; returns it, and its output until its end.
pub fn start_saying(command: &mut Command) -> (Daemon, JoinHandle<String>) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let said = std::thread::spawn(move || io::read_to_string(&mut errors).unwrap());
    let daemon = Daemon(child);
    wait_until("it listens", || Connection::connect(&socket()).is_ok());
    (daemon, said)
}

pub fn start_with(command: &mut Command) -> (Daemon, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    reader.read_line(&mut said).unwrap();
    // A full pipe must stop no process.
    std::thread::spawn(move || io::copy(&mut reader, &mut io::stderr()));
    let daemon = Daemon(child);
    wait_until("it listens", || Connection::connect(&socket()).is_ok());
    (daemon, said)
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the trusted tables of the pinned program.
pub fn trusted() -> TrustedTables {
    trusted_of(&pins())
}

/// Returns those of the program that is pinned there.
pub fn trusted_of(pins: &Path) -> TrustedTables {
    let [device, queues] =
        ["device", "queues"].map(|map| tidewall_sys::bpf::pinned(&pins.join(map)).unwrap());
    let maps = kernel_maps(pins).unwrap();
    TrustedTables::adopt(device.as_fd(), queues.as_fd(), maps).unwrap()
}

/// Returns the KiB of a process's memory, by a name of /proc/PID/status.
pub fn memory(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let of = |line: &str| {
        line.strip_prefix(name)?
            .strip_prefix(':')
            .map(str::to_owned)
    };
    let value = status.lines().find_map(of).unwrap();
    value.trim_end_matches("kB").trim().parse().unwrap()
}

/// Returns the time that a process's first thread has been on a processor
/// (proc_pid_schedstat(5)).
pub fn processor_time(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Returns the applications in the journal.
pub fn applications() -> Vec<u16> {
    let map = Map::Array(MapData::from_pin(pins().join("journal")).unwrap());
    let journal: Array<MapData, [u8; ENTRY_BYTES]> = map.try_into().unwrap();
    let is_used = |&number: &u16| {
        let entry = journal.get(&number.into(), 0).unwrap();
        Entry::of_bytes(entry).state != FREE
    };
    (0..APPLICATIONS as u16).filter(is_used).collect()
}

/// Returns the numbers in the driver program that have tables: of applications, and in
/// stock.
pub fn tables() -> Vec<u16> {
    let map = Map::ArrayOfMaps(MapData::from_pin(pins().join("applications")).unwrap());
    let map: ArrayOfMaps<MapData, MapData> = map.try_into().unwrap();
    let all = 0..APPLICATIONS as u16;
    all.filter(|&number| map.get(&number.into(), 0).is_ok())
        .collect()
}

/// Returns the number of interfaces: the loopback, the test's own, and those of private
/// pairs.
pub fn interfaces() -> usize {
    std::fs::read_dir("/sys/class/net").unwrap().count()
}

/// Returns whether an interface has a program.
pub fn is_attached(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["link", "show", "dev", interface])
        .output();
    String::from_utf8_lossy(&output.unwrap().stdout).contains("prog/xdp id")
}

/// Runs ip(8), which must succeed.
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Starts a daemon that fails to begin; returns its output.
pub fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    text
}

/// Returns owned ports, leases aside; one on the unspecified address of a family is owned
/// on all of them.
pub fn owned() -> Vec<(Protocol, std::net::IpAddr, u16)> {
    let mut owned: Vec<_> = trusted()
        .owned_ports()
        .unwrap()
        .into_iter()
        .map(|(protocol, address, port, _)| (protocol, address, port))
        .filter(|of| of.2 < 32_768)
        .collect();
    owned.sort();
    owned
}

/// Returns the join of an application with ports and no queues, so that there may be
/// several.
pub fn join() -> Join {
    Join {
        queues: 0,
        frames: 0,
        receive_ring: 0,
        flags: JOIN_WITHOUT_QUEUES,
    }
}

pub fn client() -> Client {
    Client::join(&socket(), &join()).unwrap().0
}

/// Returns the daemon's counters, as an outsider sees them.
pub fn counters() -> Counters {
    View::connect(&socket()).unwrap().counters().unwrap()
}

/// Runs in the peer's namespace.
pub fn at_peer<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    within(&std::env::var("TW_PEER").unwrap(), body)
}

/// Runs in a process's network namespace.
pub fn within<T: Send>(process: &str, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = std::fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
            let kind = LinkNameSpaceType::Network;
            move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

/// Runs in a thread of another user, without capabilities.
pub fn as_user<T: Send>(uid: u32, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}
