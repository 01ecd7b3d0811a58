//! The cost of a call of `select` when ten of the descriptors are ready and the others
//! idle. `poll`, the classical `select`, and both calls of Linux are measured beside it.
//!
//! `cargo bench -p tidewall --bench select`. Each figure is the median of
//! five runs, in CPU time of the calling thread; other threads are not in it. Ready
//! input stays unread, so that every call finds the same ten. All three bitmaps are passed,
//! as a proxy does. All descriptors are in the first, the ready ones are in the second too,
//! and the third is empty.
//!
//! The interface prescribes bitmaps: a call must read three and write three, whatever
//! it does. So the cost is printed twice: as it is, and without one plain copy of the
//! three, which is measured in the same run. The bound applies to the latter. The
//! caller's time to rebuild its bitmaps is in neither.
//!
//! Linux's calls are measured as far as the limit of descriptors allows (NaN).
//!
//! `-- --instructions` counts instructions instead, under valgrind, and judges them
//! against `benches/select_instructions.txt`; with `--keep` it writes that. The
//! rebuilding of the bitmaps is not counted there.

#[path = "readiness/bed.rs"]
#[allow(dead_code)]
mod bed;

use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use tidewall::descriptor::{Descriptors, OpenFile};
use tidewall::readiness::{DescriptorEvent, DescriptorSet, Events, PollFd};
use tidewall_bench_instructions::{Counter, Scenario};

use bed::{Bed, NUMBERS_EACH};

/// Descriptors that are ready.
const READY: usize = 10;
/// The bound: 100,000 watched, over 100.
const BOUND: f64 = 1.2;
/// Time of a run.
const RUN: Duration = Duration::from_millis(40);

/// The sets of a call, and what they are before it.
struct Sets {
    before: [DescriptorSet; 3],
    now: [DescriptorSet; 3],
    nfds: i32,
}

impl Sets {
    fn new(watched: &[i32], ready: &[i32]) -> Self {
        let read: DescriptorSet = watched.iter().copied().collect();
        let width = read.width();
        let mut write = DescriptorSet::with_width(width);
        write.extend(ready.iter().copied());
        let before = [read, write, DescriptorSet::with_width(width)];
        Sets {
            nfds: before[0].nfds(),
            now: before.clone(),
            before,
        }
    }

    fn rebuild(&mut self) {
        for (now, before) in self.now.iter_mut().zip(&self.before) {
            now.copy_from(before);
        }
    }
}

/// Nanoseconds that `call` computes, `prepare` before each aside: the median of five
/// runs.
fn median<S>(state: &mut S, prepare: impl Fn(&mut S), call: impl Fn(&mut S)) -> f64 {
    let time = |state: &mut S, calls: u32, call: &dyn Fn(&mut S)| {
        let begin = tidewall_sys::thread_time();
        for _ in 0..calls {
            prepare(state);
            call(black_box(state));
        }
        tidewall_sys::thread_time() - begin
    };
    let once = time(state, 2, &call) / 2;
    let calls = (RUN.as_nanos() / once.as_nanos().max(1)).clamp(3, 100_000) as u32;
    let mut each: Vec<f64> = (0..5)
        .map(|_| {
            let with = time(state, calls, &call);
            let without = time(state, calls, &|_| ());
            (with.as_nanos() as f64 - without.as_nanos() as f64) / f64::from(calls)
        })
        .collect();
    each.sort_by(f64::total_cmp);
    each.get(2).copied().unwrap_or(f64::NAN)
}

/// Loopback connections of Linux.
struct Linux {
    watched: Vec<i32>,
    ready: Vec<i32>,
    _files: Vec<OwnedFd>,
}

impl Linux {
    fn new(count: usize) -> std::io::Result<Self> {
        let (mut watched, mut ready, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let mut listener = TcpListener::bind("127.0.0.1:0")?;
        let mut made = 0;
        while watched.len() < count {
            made += 1;
            // The ports of a pair of addresses and a service are not enough.
            if made % 10_000 == 0 {
                listener = TcpListener::bind("127.0.0.1:0")?;
            }
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (peer, _) = listener.accept()?;
            watched.push(near.as_raw_fd());
            if ready.len() < READY {
                std::io::Write::write_all(&mut &peer, &[1; 64])?;
                ready.push(near.as_raw_fd());
            } else {
                for _ in 1..NUMBERS_EACH.min(count - watched.len() + 1) {
                    let number = near.try_clone()?;
                    watched.push(number.as_raw_fd());
                    files.push(number.into());
                }
            }
            files.push(near.into());
            files.push(peer.into());
        }
        Ok(Linux {
            watched,
            ready,
            _files: files,
        })
    }
}

/// The cost of calls, in ns, with so many descriptors watched.
struct Costs {
    watched: usize,
    select: f64,
    copy: f64,
    classical: f64,
    poll: f64,
    linux_select: f64,
    linux_poll: f64,
}

/// A bed with so many connections, of which [`READY`] are ready, and their numbers.
fn watch(watched: usize) -> (Bed, Vec<i32>) {
    let mut bed = Bed::new(READY, watched - READY + NUMBERS_EACH);
    bed.send_all(true);
    let highest = bed.near.limit().min(1 << 18) as i32;
    let streams = (0..highest).filter(|&fd| {
        let file = bed.near.file(fd);
        file.is_ok_and(|file| matches!(*file, OpenFile::Stream(_)))
    });
    let idle = streams.filter(|fd| !bed.fds.contains(fd));
    let mut all = bed.fds.clone();
    all.extend(idle.take(watched - READY));
    assert_eq!(all.len(), watched);
    (bed, all)
}

fn select(near: &Descriptors, sets: &mut Sets, classical: bool) {
    let [read, write, except] = sets.now.each_mut().map(Some);
    let count = if classical {
        near.classical_select(sets.nfds, read, write, except, None)
    } else {
        near.select(sets.nfds, read, write, except, None)
    };
    assert_eq!(count.ok(), Some(2 * READY));
}

fn poll_list(numbers: &[i32]) -> Vec<PollFd> {
    let entry = |&fd| PollFd::new(fd, Events::IN);
    numbers.iter().map(entry).collect()
}

/// Measures Linux's calls: `select` and `poll`.
fn measure_linux(watched: usize) -> std::io::Result<(f64, f64)> {
    // One more for every peer.
    if tidewall_sys::raise_open_files(300_000)? < watched as u64 * 3 / 2 {
        return Ok((f64::NAN, f64::NAN));
    }
    let linux = Linux::new(watched)?;
    let mut sets = Sets::new(&linux.watched, &linux.ready);
    let select = median(&mut sets, Sets::rebuild, |sets| {
        let [read, write, except] = sets.now.each_mut().map(DescriptorSet::words_mut);
        let count = tidewall_sys::select(sets.nfds, read, write, except, None);
        assert_eq!(count.ok(), Some(2 * READY));
    });
    let mut list: Vec<libc::pollfd> = linux
        .watched
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let poll = median(
        &mut list,
        |_| (),
        |list| assert_eq!(tidewall_sys::ppoll(list, None, None).ok(), Some(READY)),
    );
    Ok((select, poll))
}

fn measure(watched: usize) -> std::io::Result<Costs> {
    let (bed, all) = watch(watched);
    let mut sets = Sets::new(&all, &bed.fds);
    let new = median(&mut sets, Sets::rebuild, |sets| {
        select(&bed.near, sets, false);
    });
    let classical = median(&mut sets, Sets::rebuild, |sets| {
        select(&bed.near, sets, true);
    });
    let mut other = Sets::new(&all, &bed.fds);
    let copy = median(
        &mut other,
        |_| (),
        |sets| {
            sets.rebuild();
            black_box(&mut sets.now);
        },
    );
    let mut list = poll_list(&all);
    let poll = median(
        &mut list,
        |_| (),
        |list| assert_eq!(bed.near.poll(list, None).ok(), Some(READY)),
    );
    drop(bed);

    let (linux_select, linux_poll) = measure_linux(watched)?;
    Ok(Costs {
        watched,
        select: new,
        copy,
        classical,
        poll,
        linux_select,
        linux_poll,
    })
}

/// Calls of `select`, the sets built anew before each.
fn count_select(counter: &mut Counter, watched: usize, classical: bool) {
    let (bed, all) = watch(watched);
    let mut sets = Sets::new(&all, &bed.fds);
    while counter.next_round() {
        sets.rebuild();
        counter.count(1, || select(&bed.near, &mut sets, classical));
    }
}

/// Calls of `select` that find nothing.
fn count_idle(counter: &mut Counter) {
    let (bed, all) = watch(4000);
    let idle: Vec<i32> = all.into_iter().filter(|fd| !bed.fds.contains(fd)).collect();
    let mut sets = Sets::new(&idle, &[]);
    while counter.next_round() {
        sets.rebuild();
        let [read, write, except] = sets.now.each_mut().map(Some);
        let now = Some(Duration::ZERO);
        let count = counter.count(1, || bed.near.select(sets.nfds, read, write, except, now));
        assert_eq!(count.ok(), Some(0));
    }
}

fn count_poll(counter: &mut Counter) {
    let (bed, all) = watch(100);
    let mut list = poll_list(&all);
    while counter.next_round() {
        let count = counter.count(1, || bed.near.poll(&mut list, None));
        assert_eq!(count.ok(), Some(READY));
    }
}

/// Ten events a call, each of which is read. `process`: the protocol has seen what
/// makes them before.
fn count_events(counter: &mut Counter, process: bool) {
    let mut bed = Bed::new(READY, 4000);
    for &fd in &bed.fds {
        let declared = bed.near.declare_interest(fd, Events::IN, None);
        assert!(declared.is_ok());
    }
    let mut events = [DescriptorEvent::default(); 64];
    while counter.next_round() {
        bed.send_all(process);
        counter.count(1, || {
            let count = bed.near.get_next_event(&mut events, None);
            assert_eq!(count.ok(), Some(READY));
            for event in events.iter().take(READY) {
                assert_eq!(bed.near.read(event.fd, &mut [0; 256]).ok(), Some(64));
            }
        });
    }
}

const SCENARIOS: [Scenario; 7] = [
    ("select, 100 watched, 10 ready", |counter| {
        count_select(counter, 100, false);
    }),
    ("select, 4000 watched, 10 ready", |counter| {
        count_select(counter, 4000, false);
    }),
    ("classical select, 100 watched, 10 ready", |counter| {
        count_select(counter, 100, true);
    }),
    ("select, 4000 watched, nothing ready", count_idle),
    ("poll, 100 watched, 10 ready", count_poll),
    ("get_next_event and 10 reads, 4000 idle", |counter| {
        count_events(counter, true);
    }),
    (
        "get_next_event and 10 reads, 4000 idle, with the protocol",
        |counter| count_events(counter, false),
    ),
];

fn main() -> ExitCode {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/select_instructions.txt"
    );
    if let Some(code) = tidewall_bench_instructions::main(file, &SCENARIOS) {
        return code;
    }
    match costs() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn costs() -> std::io::Result<()> {
    println!("ns a call, {READY} ready");
    println!("  watched   select  w/o copy  classical      poll  Linux select  Linux poll");
    let mut apart = Vec::new();
    for watched in [100, 2_000, 100_000] {
        let costs = measure(watched)?;
        let without = costs.select - costs.copy;
        println!(
            "{:9} {:8.0} {:9.0} {:10.0} {:9.0} {:13.0} {:11.0}",
            costs.watched,
            costs.select,
            without,
            costs.classical,
            costs.poll,
            costs.linux_select,
            costs.linux_poll
        );
        apart.push((without, costs.select));
    }
    if let (Some((few, few_raw)), Some((many, many_raw))) = (apart.first(), apart.last()) {
        let ratio = many / few;
        let verdict = if ratio <= BOUND {
            ""
        } else {
            ", ABOVE THE BOUND"
        };
        println!(
            "100,000 watched over 100: {ratio:.3} bitmap copying apart (at most {BOUND}{verdict}), \
             {:.3} with it",
            many_raw / few_raw
        );
    }
    Ok(())
}
