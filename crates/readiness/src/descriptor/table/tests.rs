use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

const BOTH: [Allocator; 2] = [Allocator::Bitmap, Allocator::Linear];

fn errno<V: std::fmt::Debug>(result: io::Result<V>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

// ---- Beside a model ---------------------------------------------------------

/// A table written without regard to cost.
#[derive(Clone)]
struct Model {
    open: BTreeMap<i32, (u32, bool)>,
    limit: i32,
}

impl Model {
    fn lowest(&self, from: i32) -> Result<i32, i32> {
        (from..self.limit)
            .find(|fd| !self.open.contains_key(fd))
            .ok_or(libc::EMFILE)
    }

    fn open(&mut self, entry: u32, from: i32, flag: bool) -> Result<i32, i32> {
        let fd = self.lowest(from)?;
        self.open.insert(fd, (entry, flag));
        Ok(fd)
    }

    fn open_from(&mut self, entry: u32, from: i32, flag: bool) -> Result<i32, i32> {
        if !(0..self.limit).contains(&from) {
            return Err(libc::EINVAL);
        }
        self.open(entry, from, flag)
    }

    fn entry(&self, fd: i32) -> Result<u32, i32> {
        self.open
            .get(&fd)
            .map(|(entry, _)| *entry)
            .ok_or(libc::EBADF)
    }

    fn duplicate(&mut self, old: i32, new: i32, flag: bool) -> Result<i32, i32> {
        let entry = self.entry(old)?;
        self.install(entry, new, flag).map(|()| new)
    }

    fn install(&mut self, entry: u32, new: i32, flag: bool) -> Result<(), i32> {
        if !(0..self.limit).contains(&new) {
            return Err(libc::EBADF);
        }
        self.open.insert(new, (entry, flag));
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Open(bool),
    OpenFrom(i32, bool),
    Install(i32, bool),
    Reserve(bool),
    Dup(i32),
    DupFrom(i32, i32, bool),
    Dup2(i32, i32),
    Dup3(i32, i32, bool),
    Close(i32),
    CloseRange(u32, u32, bool),
    SetFlag(i32, bool),
    Limit(u32),
    Exec,
    Fork,
}

/// Descriptors near the ends of words and levels, and some that are never open.
fn fds() -> impl Strategy<Value = i32> {
    prop_oneof![
        8 => 0..70i32,
        2 => 60..140i32,
        1 => 4090..4100i32,
        1 => Just(-1),
        1 => Just(i32::MIN),
        1 => Just(i32::MAX),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    use Operation::*;
    prop_oneof![
        12 => any::<bool>().prop_map(Open),
        4 => (fds(), any::<bool>()).prop_map(|(from, flag)| OpenFrom(from, flag)),
        4 => (fds(), any::<bool>()).prop_map(|(fd, flag)| Install(fd, flag)),
        2 => any::<bool>().prop_map(Reserve),
        3 => fds().prop_map(Dup),
        3 => (fds(), fds(), any::<bool>()).prop_map(|(fd, from, flag)| DupFrom(fd, from, flag)),
        3 => (fds(), fds()).prop_map(|(old, new)| Dup2(old, new)),
        2 => (fds(), fds(), any::<bool>()).prop_map(|(old, new, flag)| Dup3(old, new, flag)),
        10 => fds().prop_map(Close),
        1 => (0..140u32, 0..140u32, any::<bool>()).prop_map(|(a, b, flag)| CloseRange(a, b, flag)),
        2 => (fds(), any::<bool>()).prop_map(|(fd, flag)| SetFlag(fd, flag)),
        1 => prop_oneof![0..140u32, Just(5000)].prop_map(Limit),
        1 => Just(Exec),
        1 => Just(Fork),
    ]
}

fn by_errno<V>(result: io::Result<V>) -> Result<V, i32> {
    result.map_err(|error| error.raw_os_error().unwrap())
}

fn same_as_the_model(allocator: Allocator, operations: Vec<Operation>) {
    let mut table = Table::new(130, allocator);
    let mut model = Model {
        open: BTreeMap::new(),
        limit: 130,
    };
    for (entry, operation) in operations.into_iter().enumerate() {
        let entry = entry as u32;
        match operation.clone() {
            Operation::Open(flag) => {
                assert_eq!(
                    by_errno(table.open(entry, flag)),
                    model.open(entry, 0, flag)
                );
            }
            Operation::OpenFrom(from, flag) => assert_eq!(
                by_errno(table.open_from(entry, from, flag)),
                model.open_from(entry, from, flag)
            ),
            Operation::Install(fd, flag) => assert_eq!(
                by_errno(table.install(fd, entry, flag)),
                model.install(entry, fd, flag)
            ),
            Operation::Reserve(flag) => match (table.reserve(flag), model.open(entry, 0, flag)) {
                (Ok(reserved), expected) => {
                    let next = table.open(entry, false);
                    let fd = reserved.install(entry);
                    assert_eq!(Ok(fd), expected);
                    assert_eq!(by_errno(next), model.open(entry, 0, false));
                }
                (Err(error), expected) => assert_eq!(by_errno::<i32>(Err(error)), expected),
            },
            Operation::Dup(fd) => {
                let expected = model.entry(fd).and_then(|it| model.open(it, 0, false));
                assert_eq!(by_errno(table.dup(fd)), expected);
            }
            Operation::DupFrom(fd, from, flag) => {
                let entry = model.entry(fd);
                let expected = entry.and_then(|it| model.open_from(it, from, flag));
                assert_eq!(by_errno(table.dup_from(fd, from, flag)), expected);
            }
            Operation::Dup2(old, new) => {
                let expected = match old == new {
                    true => model.entry(old).map(|_| new),
                    false => model.duplicate(old, new, false),
                };
                assert_eq!(by_errno(table.dup2(old, new)), expected);
            }
            Operation::Dup3(old, new, flag) => {
                let expected = match old == new {
                    true => Err(libc::EINVAL),
                    false => model.duplicate(old, new, flag),
                };
                assert_eq!(by_errno(table.dup3(old, new, flag)), expected);
            }
            Operation::Close(fd) => {
                let expected = model.open.remove(&fd).map(|it| it.0).ok_or(libc::EBADF);
                assert_eq!(by_errno(table.close(fd)), expected);
            }
            Operation::CloseRange(first, last, flag) => {
                let flags = if flag { CLOSE_RANGE_CLOEXEC } else { 0 };
                let result = by_errno(table.close_range(first, last, flags));
                if first > last {
                    assert_eq!(result, Err(libc::EINVAL));
                    continue;
                }
                assert_eq!(result, Ok(()));
                let inside = |fd: i32| (first..=last).contains(&(fd as u32));
                if flag {
                    let named = model.open.iter_mut().filter(|(fd, _)| inside(**fd));
                    named.for_each(|(_, it)| it.1 = true);
                } else {
                    model.open.retain(|fd, _| !inside(*fd));
                }
            }
            Operation::SetFlag(fd, flag) => {
                let place = model.open.get_mut(&fd).ok_or(libc::EBADF);
                let expected = place.map(|it| it.1 = flag);
                assert_eq!(by_errno(table.set_close_on_exec(fd, flag)), expected);
            }
            Operation::Limit(limit) => {
                table.set_limit(limit);
                model.limit = limit as i32;
                assert_eq!(table.limit(), limit);
            }
            Operation::Exec => {
                table.exec();
                model.open.retain(|_, it| !it.1);
            }
            Operation::Fork => {
                let child = table.fork().unwrap();
                // The child does not see what the parent does afterwards.
                table.close_range(0, u32::MAX, 0).unwrap();
                assert!(table.is_empty());
                table = child;
            }
        }
        assert_eq!(table.len(), model.open.len(), "after {operation:?}");
        assert_eq!(table.highest(), model.open.keys().next_back().copied());
        for fd in (-1..140).chain(4089..4100) {
            let expected = model.open.get(&fd).copied().ok_or(libc::EBADF);
            assert_eq!(by_errno(table.get(fd)), expected.map(|it| it.0));
            assert_eq!(table.is_open(fd), expected.is_ok());
            assert_eq!(by_errno(table.close_on_exec(fd)), expected.map(|it| it.1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_gives_what_the_model_gives(
        operations in prop::collection::vec(operations(), 1..120),
    ) {
        for allocator in BOTH {
            same_as_the_model(allocator, operations.clone());
        }
    }
}

// ---- One by one -------------------------------------------------------------

#[test]
fn the_limit_is_emfile_and_a_lowered_one_keeps_what_is_open() {
    for allocator in BOTH {
        let table = Table::new(3, allocator);
        for fd in 0..3 {
            assert_eq!(table.open(fd, false).unwrap(), fd);
        }
        assert_eq!(errno(table.open(9, false)), libc::EMFILE);
        assert_eq!(errno(table.reserve(false)), libc::EMFILE);
        assert_eq!(errno(table.dup(0)), libc::EMFILE);
        assert_eq!(errno(table.dup2(0, 3)), libc::EBADF);
        table.set_limit(1);
        assert_eq!(table.get(2).unwrap(), 2);
        table.close(1).unwrap();
        assert_eq!(errno(table.open(9, false)), libc::EMFILE);
        // For a descriptor onto itself the limit is not checked.
        assert_eq!(table.dup2(2, 2).unwrap(), 2);
        table.set_limit(u32::MAX);
        assert_eq!(table.limit(), i32::MAX as u32);
        assert_eq!(table.open(9, false).unwrap(), 1);
        assert_eq!(
            table.dup_from(9, 0, false).map_err(|e| e.raw_os_error()),
            Err(Some(libc::EBADF))
        );
    }
}

#[test]
fn a_reserved_number_is_taken_and_names_nothing() {
    for allocator in BOTH {
        let table = Table::new(8, allocator);
        table.open('a', false).unwrap();
        let reserved = table.reserve(true).unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(errno(table.get(1)), libc::EBADF);
        assert_eq!(errno(table.close(1)), libc::EBADF);
        assert_eq!(errno(table.close_on_exec(1)), libc::EBADF);
        assert_eq!(errno(table.dup2(0, 1)), libc::EBUSY);
        assert_eq!(errno(table.install(1, 'x', false)), libc::EBUSY);
        assert!(!table.is_open(1));
        assert_eq!(table.open('b', false).unwrap(), 2);
        // A child does not receive it: it would never be installed there.
        let child = table.fork().unwrap();
        assert_eq!(child.open('c', false).unwrap(), 1);
        assert!(!child.close_on_exec(1).unwrap());
        // Neither close_range nor exec removes it.
        table.close_range(0, u32::MAX, 0).unwrap();
        table.exec();
        assert_eq!(reserved.install('d'), 1);
        assert_eq!(table.get(1).unwrap(), 'd');
        assert!(table.close_on_exec(1).unwrap());
        // Once dropped, it is free.
        let given_up = table.reserve(true).unwrap();
        drop(given_up);
        assert_eq!(table.open('e', false).unwrap(), 0);
        assert!(!table.close_on_exec(0).unwrap());
    }
}

#[test]
fn a_reused_number_has_no_flag_of_its_past() {
    let table = Table::new(8, Allocator::Bitmap);
    table.open(1, true).unwrap();
    table.close(0).unwrap();
    table.open(2, false).unwrap();
    assert!(!table.close_on_exec(0).unwrap());
    table.open(3, true).unwrap();
    table.dup2(0, 1).unwrap();
    assert!(!table.close_on_exec(1).unwrap());
    table.dup3(0, 1, true).unwrap();
    assert!(table.close_on_exec(1).unwrap());
    table.exec();
    assert_eq!(table.highest(), Some(0));
}

#[test]
fn an_observer_is_called_once_before_a_number_is_reused() {
    struct Log(std::sync::Mutex<Vec<i32>>);
    impl Closing for Log {
        fn closing(&self, fd: i32) {
            self.0.lock().unwrap().push(fd);
        }
    }
    let table = Table::new(100, Allocator::Bitmap);
    let log = Arc::new(Log(std::sync::Mutex::default()));
    let observer: std::sync::Weak<Log> = Arc::downgrade(&log);
    table.observe(observer);
    let said = || std::mem::take(&mut *log.0.lock().unwrap());
    for fd in 0..6 {
        table.open(fd, fd == 5).unwrap();
    }
    table.dup2(0, 50).unwrap();
    assert!(said().is_empty(), "nothing was closed yet");
    table.close(1).unwrap();
    table.dup2(0, 2).unwrap();
    table.dup2(0, 0).unwrap();
    table.close_range(3, 4, 0).unwrap();
    table.exec();
    assert_eq!(said(), [1, 2, 3, 4, 5]);
    table.install(50, 7, false).unwrap();
    table.install(51, 8, false).unwrap();
    assert_eq!(said(), [50]);
    let child = table.fork().unwrap();
    child.close(0).unwrap();
    assert!(said().is_empty(), "the child's numbers are its own");
    drop(log);
    table.close(0).unwrap();
}

#[test]
fn whether_a_number_is_open_is_answered_without_a_lock() {
    let table = Table::new(1 << 20, Allocator::Bitmap);
    table.install(70_000, 'a', false).unwrap();
    // As in a signal handler that interrupts this thread's change of the table.
    let all = lock(&table.state);
    let place = table.entries.get(70_000).unwrap();
    let entry = lock(place.slot);
    assert!(table.is_open(70_000));
    for closed in [0, 69_999, 70_001, 1 << 20, -1, i32::MIN, i32::MAX] {
        assert!(!table.is_open(closed), "{closed}");
    }
    drop(entry);
    drop(all);
    table.close(70_000).unwrap();
    assert!(!table.is_open(70_000));
}

#[test]
fn an_entry_ends_with_its_last_number_or_user() {
    let table = Table::new(8, Allocator::Bitmap);
    let entry = Arc::new(());
    let uses = || Arc::strong_count(&entry) - 1;
    table.open(entry.clone(), true).unwrap();
    table.dup(0).unwrap();
    let in_use = table.get(1).unwrap();
    assert_eq!(uses(), 3);
    let child = table.fork().unwrap();
    assert_eq!(uses(), 5);
    child.exec();
    drop(child);
    assert_eq!(uses(), 3);
    table.close_range(0, 7, 0).unwrap();
    assert_eq!(uses(), 1);
    drop(in_use);
    // Replaced entries are dropped, too.
    table.open(entry.clone(), false).unwrap();
    table.open(Arc::new(()), false).unwrap();
    table.dup2(1, 0).unwrap();
    assert_eq!(uses(), 0);
    // So are those of a table that is dropped, and one for which no descriptor was left.
    table.open(entry.clone(), false).unwrap();
    table.set_limit(0);
    assert_eq!(errno(table.open(entry.clone(), false)), libc::EMFILE);
    drop(table);
    assert_eq!(uses(), 0);
}

#[test]
fn a_million_numbers_and_far_apart_ones() {
    let table = Table::new(i32::MAX as u32, Allocator::Bitmap);
    for fd in 0..1_000_000 {
        assert_eq!(table.open(fd, false).unwrap(), fd);
    }
    assert_eq!(table.len(), 1_000_000);
    for fd in (0..1_000_000).step_by(997) {
        assert_eq!(table.close(fd).unwrap(), fd);
    }
    for fd in (0..1_000_000).step_by(997) {
        assert_eq!(table.open(-fd, false).unwrap(), fd);
        assert_eq!(table.get(fd).unwrap(), -fd);
    }
    assert_eq!(table.open(0, false).unwrap(), 1_000_000);
    // Chunks in between are not created.
    assert_eq!(table.dup2(7, 5_000_000).unwrap(), 5_000_000);
    assert_eq!(table.get(5_000_000).unwrap(), 7);
    assert_eq!(errno(table.get(4_000_000)), libc::EBADF);
    assert_eq!(table.dup_from(7, 5_000_000, false).unwrap(), 5_000_001);
    assert_eq!(errno(table.dup2(7, i32::MAX)), libc::EBADF);
    assert_eq!(table.highest(), Some(5_000_001));
}

// ---- Threads ----------------------------------------------------------------

/// The entry that a descriptor names in the tests with threads.
#[derive(Debug)]
struct Named {
    fd: AtomicI32,
    /// The close counter at its close; 0: not yet.
    closed_at: AtomicU64,
}

#[test]
fn threads_never_share_a_number_or_see_a_stale_entry() {
    const THREADS: usize = 4;
    const TURNS: usize = 4000;
    const MOST: usize = 64;
    for allocator in BOTH {
        let table: Table<Arc<Named>> = Table::new(MOST as u32 + 8, allocator);
        let owners: Vec<AtomicUsize> = (0..MOST + 8).map(|_| AtomicUsize::new(0)).collect();
        let clock = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for thread in 1..=THREADS {
                let (table, owners, clock) = (&table, &owners, &clock);
                scope.spawn(move || {
                    let mut mine: Vec<i32> = Vec::new();
                    let mut random = (thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    for _ in 0..TURNS {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let dice = (random >> 40) as usize;
                        if mine.len() < MOST / THREADS && !dice.is_multiple_of(3) {
                            let named = Arc::new(Named {
                                fd: AtomicI32::new(-1),
                                closed_at: AtomicU64::new(0),
                            });
                            let fd = match dice % 4 {
                                0 => table.reserve(true).unwrap().install(named.clone()),
                                _ => table.open(named.clone(), false).unwrap(),
                            };
                            let before = owners[fd as usize].swap(thread, Ordering::SeqCst);
                            assert_eq!(before, 0, "{fd} was somebody's");
                            named.fd.store(fd, Ordering::SeqCst);
                            assert!(Arc::ptr_eq(&table.get(fd).unwrap(), &named));
                            mine.push(fd);
                        } else if let Some(fd) =
                            (!mine.is_empty()).then(|| mine.swap_remove(dice % mine.len()))
                        {
                            let before = owners[fd as usize].swap(0, Ordering::SeqCst);
                            assert_eq!(before, thread);
                            let named = table.close(fd).unwrap();
                            assert_eq!(named.fd.load(Ordering::SeqCst), fd);
                            let now = clock.fetch_add(1, Ordering::SeqCst);
                            named.closed_at.store(now, Ordering::SeqCst);
                        }
                        // A descriptor of any thread.
                        let began = clock.load(Ordering::SeqCst);
                        let fd = (dice % (MOST + 8)) as i32;
                        if let Ok(named) = table.get(fd) {
                            let at = named.fd.load(Ordering::SeqCst);
                            assert!(at == fd || at == -1, "{fd} names {at}");
                            let closed = named.closed_at.load(Ordering::SeqCst);
                            assert!(closed == 0 || closed >= began, "stale");
                        }
                    }
                    for fd in mine {
                        owners[fd as usize].store(0, Ordering::SeqCst);
                        table.close(fd).unwrap();
                    }
                });
            }
        });
        assert!(table.is_empty());
        assert_eq!(table.highest(), None);
        assert_eq!(
            table.reserve(false).unwrap().install(Arc::new(Named {
                fd: AtomicI32::new(0),
                closed_at: AtomicU64::new(0),
            })),
            0
        );
    }
}

#[test]
fn a_number_that_is_replaced_is_never_free_for_others() {
    let table: Table<Arc<u32>> = Table::new(64, Allocator::Bitmap);
    for value in 0..4 {
        table.open(Arc::new(value), false).unwrap();
    }
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = [false; 4];
                    loop {
                        // Never EBADF, and never another descriptor's entry.
                        let value = table.get(3).expect("open all the time");
                        seen[*value as usize] = true;
                        let fd = table.open(Arc::new(9), false).unwrap();
                        assert!(fd >= 4);
                        table.close(fd).unwrap();
                        if over.load(Ordering::Acquire) {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        for turn in 0..5000 {
            table.dup2(turn % 3, 3).unwrap();
        }
        over.store(true, Ordering::Release);
        for reader in readers {
            let seen = reader.join().unwrap();
            assert!(seen.iter().any(|&it| it));
        }
    });
    assert_eq!(table.len(), 4);
}
