//! An application's access to the driver's tables: one map, and nothing of the trusted
//! level.

mod demux_support;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use demux_support::{HASH_KEY, af_xdp, corpus, set_up};
use tidewall_device::demux::layout::{Counter, Kind, Protocol};
use tidewall_device::demux::{ApplicationTables, ChannelId, DriverCounters, EMBEDDED_APPLICATION};
use tidewall_manager::Program;

const REDIRECT: u32 = 4;

/// Identifiers of the BPF maps that this process has descriptors of.
fn map_ids() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fdinfo").unwrap();
    entries
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .filter_map(|text| {
            let line = text.lines().find(|line| line.starts_with("map_id:"))?;
            Some(line.to_owned())
        })
        .collect()
}

#[test]
fn an_application_s_own_map_is_all_that_its_tables_need() {
    let name = "an_application_s_own_map_is_all_that_its_tables_need";
    let loaded = Program::load_with_key(HASH_KEY).and_then(|program| Ok((program, af_xdp()?)));
    let (mut program, socket) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{error}"
            );
            let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW ({error})");
            return tidewall_skip::missing(name, what);
        }
    };
    program
        .set_socket(EMBEDDED_APPLICATION, 0, socket.as_fd())
        .unwrap();
    set_up(&program.tables());
    let counters: DriverCounters = program.tables().trusted.counters(0);

    // As another process would have it that received this descriptor.
    let map = program.embedded().try_clone_to_owned().unwrap();
    let before = map_ids();
    // Nor the device's key: it has its own.
    let key = HASH_KEY.map(|word| !word);
    let tables = ApplicationTables::of_map(map.as_fd(), EMBEDDED_APPLICATION, key).unwrap();
    assert_eq!(map_ids().len(), before.len(), "it opens no other map");
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).unwrap();
    let own = info.lines().find(|line| line.starts_with("map_id:"));
    let shared = before.iter().filter(|&id| Some(id.as_str()) == own).count();
    assert_eq!(shared, 2, "the owner's descriptor of it, and this one");

    let channel = ChannelId::new(1, 1);
    let frame = &corpus()
        .into_iter()
        .find(|sample| {
            let result = program.test_run(&sample.bytes).ok();
            let metadata = result.and_then(|result| result.metadata);
            metadata.is_some_and(|metadata| {
                metadata.channel_id().index() == channel.index()
                    && metadata.kind == Kind::Datagram as u8
            })
        })
        .expect("a frame for port 7")
        .bytes;
    tables.unlisten(Protocol::Udp, None, 7);
    assert_ne!(program.test_run(frame).unwrap().action, REDIRECT);
    tables.listen(Protocol::Udp, None, 7, channel).unwrap();
    let (head, admitted) = (tables.head(0, 1), counters.counter(Counter::Channel));
    assert_eq!(program.test_run(frame).unwrap().action, REDIRECT);
    assert_eq!(tables.head(0, 1), head + 1);
    assert_eq!(counters.counter(Counter::Channel), admitted + 1);
    tables.set_limit(0, 1, 0);
    assert_ne!(program.test_run(frame).unwrap().action, REDIRECT);

    // The trusted level decides who owns the port, whatever the application writes.
    tables.set_limit(0, 1, u32::MAX);
    let trusted = program.tables().trusted;
    trusted.disown_port(Protocol::Udp, None, 7).unwrap();
    assert_ne!(program.test_run(frame).unwrap().action, REDIRECT);

    // A descriptor that is not an application's table is refused, not mapped.
    let null = fs::File::open("/dev/null").unwrap();
    ApplicationTables::of_map(null.as_fd(), EMBEDDED_APPLICATION, HASH_KEY).unwrap_err();
}
