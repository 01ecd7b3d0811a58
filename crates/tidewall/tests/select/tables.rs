//! Numbers that come and go, tables that are copied, and threads that end.

use std::thread;
use std::time::Duration;

use tidewall::descriptor::Flags;
use tidewall::readiness::{DescriptorSet, Events, PollFd};

use super::support::*;

#[test]
fn bad_arguments() {
    let bed = Bed::new();
    let negative = bed.table.select(-1, None, None, None, NOW);
    assert_eq!(errno(negative), libc::EINVAL);
    bed.table.set_limit(2);
    let mut list = [PollFd::new(-1, Events::IN); 3];
    assert_eq!(errno(bed.table.poll(&mut list, NOW)), libc::EINVAL);
    assert_eq!(bed.table.poll(&mut list[..2], NOW).unwrap(), 0);
    let mut none = [];
    assert_eq!(
        errno(bed.table.get_next_event(&mut none, NOW)),
        libc::EINVAL
    );
    let mut far = DescriptorSet::with_width(1 << 20);
    far.insert((1 << 20) - 1);
    let nfds = far.nfds();
    let selected = bed.table.select(nfds, None, Some(&mut far), None, NOW);
    assert_eq!(errno(selected), libc::EBADF);
    // Beyond `nfds` nothing is looked at.
    assert_eq!(
        bed.table
            .select(nfds - 64, None, Some(&mut far), None, NOW)
            .unwrap(),
        0
    );
    assert!(far.contains(nfds - 1));
}

#[test]
fn sets_are_as_wide_as_their_numbers() {
    let bed = Bed::new();
    let fd = bed.datagram(7000);
    let high = bed.table.dup_from(fd, (1 << 20) - 1, Flags::NONE).unwrap();
    assert_eq!(bed.select(&[fd, high], NOW).unwrap(), NOBODY);
    bed.comes(7000);
    assert_eq!(bed.select(&[fd, high], LONG).unwrap(), [fd, high]);
    let mut list = [PollFd::new(high, Events::IN | Events::OUT)];
    assert_eq!(bed.table.poll(&mut list, NOW).unwrap(), 1);
    assert_eq!(list[0].returned(), Events::IN | Events::OUT);
    bed.table.read(high, &mut [0; 8]).unwrap();
    assert_eq!(bed.select(&[fd, high], NOW).unwrap(), NOBODY);
    bed.table.close(fd).unwrap();
    bed.comes(7000);
    assert_eq!(bed.select(&[high], LONG).unwrap(), [high]);
}

#[test]
fn a_child_starts_from_nothing() {
    let bed = Bed::new();
    let (fd, other) = (bed.datagram(7000), bed.datagram(7001));
    assert_eq!(bed.select(&[fd, other], NOW).unwrap(), NOBODY);
    let child = bed.table.fork().unwrap();
    bed.comes(7000);
    assert_eq!(bed.select(&[fd, other], LONG).unwrap(), [fd]);
    bed.table.close(fd).unwrap();
    assert_eq!(errno(bed.select(&[fd, other], NOW)), libc::EBADF);
    let of_child = |numbers: &[i32]| {
        let mut read: DescriptorSet = numbers.iter().copied().collect();
        let nfds = read.nfds();
        let count = child
            .select(nfds, Some(&mut read), None, None, LONG)
            .unwrap();
        (count, read.iter().collect::<Vec<_>>())
    };
    assert_eq!(of_child(&[fd, other]), (1, vec![fd]));
    child.close(other).unwrap();
    bed.comes(7001);
    assert_eq!(bed.select(&[other], LONG).unwrap(), [other]);
}

/// Descriptors of the process that are epoll's.
fn epoll_descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let target =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    all.filter_map(target)
        .filter(|target| target.to_string_lossy().contains("eventpoll"))
        .count()
}

#[test]
fn a_thread_that_ends_leaves_nothing() {
    let bed = Bed::new();
    let (fd, counter) = (bed.datagram(7000), bed.counter());
    let wait = || {
        assert_eq!(bed.select(&[fd, counter], NOW).unwrap(), NOBODY);
        let mut state = Events::NONE;
        let declared = bed
            .table
            .declare_interest(counter, Events::IN, Some(&mut state));
        declared.unwrap();
    };
    wait();
    // Other tests of the process come and go meanwhile.
    for _ in 0..200 {
        thread::scope(|scope| scope.spawn(wait).join()).unwrap();
    }
    assert!(epoll_descriptors() < 150, "{}", epoll_descriptors());
    bed.comes(7000);
    assert_eq!(bed.select(&[fd, counter], LONG).unwrap(), [fd]);
}

#[test]
fn tables_that_end_leave_nothing() {
    for _ in 0..100 {
        let bed = Bed::new();
        let counter = bed.counter();
        assert_eq!(bed.select(&[counter], NOW).unwrap(), NOBODY);
    }
    assert!(epoll_descriptors() < 80, "{}", epoll_descriptors());
}

/// One thread closes and reuses a descriptor all the time, while another waits for it. Each
/// report is true of some file that had the descriptor.
#[test]
fn a_number_that_is_used_again_and_again() {
    const TIMES: usize = 3000;
    let bed = Bed::new();
    let quiet = bed.counter();
    let loud = bed.counter();
    bed.add(loud);
    let fd = bed.table.dup(quiet).unwrap();
    thread::scope(|scope| {
        let bed = &bed;
        let changes = scope.spawn(move || {
            for round in 0..TIMES {
                let file = if round % 2 == 0 { loud } else { quiet };
                bed.table.dup2(file, fd).unwrap();
                if round % 7 == 0 {
                    bed.table.close(fd).unwrap();
                    assert_eq!(bed.table.dup(file).unwrap(), fd);
                }
            }
            bed.table.dup2(quiet, fd).unwrap();
        });
        let short = Some(Duration::from_millis(1));
        let mut list = [PollFd::new(fd, Events::IN), PollFd::new(quiet, Events::IN)];
        while !changes.is_finished() {
            match bed.select(&[fd, quiet], short) {
                Ok(ready) => assert!(ready.is_empty() || ready == [fd]),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EBADF)),
            }
            bed.table.poll(&mut list, short).unwrap();
            assert_eq!(list[1].revents, 0);
            assert!(list[0].is_invalid() || (list[0].returned() & !Events::IN).is_empty());
        }
        changes.join().unwrap();
    });
    assert_eq!(bed.select(&[fd, quiet], NOW).unwrap(), NOBODY);
    bed.table.dup2(loud, fd).unwrap();
    assert_eq!(bed.select(&[fd, quiet], NOW).unwrap(), [fd]);
}
