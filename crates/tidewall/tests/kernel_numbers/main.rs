//! The table beside Linux's own: the same random sequence of operations on real
//! kernel descriptors must give the same numbers and the same errors.
//!
//! Alone in its process: the limit on descriptors is the process's.

mod raw_kernel;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use tidewall::descriptor::{Allocator, CLOSE_RANGE_CLOEXEC, Table};

use raw_kernel::{Kernel, errno};

#[derive(Clone, Debug)]
enum Operation {
    Open(bool),
    Dup(i32),
    DupFrom(i32, i32, bool),
    Dup2(i32, i32),
    Dup3(i32, i32, bool),
    Close(i32),
    CloseRange(u32, u32, u32),
    SetFlag(i32, bool),
    GetFlag(i32),
    Limit(u32),
}

fn fds() -> impl Strategy<Value = i32> {
    prop_oneof![
        10 => 0..40i32,
        4 => 56..72i32,
        2 => 120..200i32,
        1 => Just(-1),
        1 => Just(i32::MIN),
        1 => Just(i32::MAX),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    use Operation::*;
    prop_oneof![
        12 => any::<bool>().prop_map(Open),
        5 => fds().prop_map(Dup),
        5 => (fds(), fds(), any::<bool>()).prop_map(|(fd, from, flag)| DupFrom(fd, from, flag)),
        5 => (fds(), fds()).prop_map(|(old, new)| Dup2(old, new)),
        4 => (fds(), fds(), any::<bool>()).prop_map(|(old, new, flag)| Dup3(old, new, flag)),
        9 => fds().prop_map(Close),
        1 => (0..200u32, 0..200u32, prop_oneof![Just(0), Just(CLOSE_RANGE_CLOEXEC), Just(64)])
            .prop_map(|(first, last, flags)| CloseRange(first, last, flags)),
        2 => (fds(), any::<bool>()).prop_map(|(fd, flag)| SetFlag(fd, flag)),
        3 => fds().prop_map(GetFlag),
        1 => (0..200u32).prop_map(Limit),
    ]
}

/// The result of a call: its number, or its error.
type Answer = Result<i64, i32>;

fn ours(table: &mut Table<()>, operation: &Operation) -> Answer {
    let number = match *operation {
        Operation::Open(flag) => table.open((), flag).map(i64::from),
        Operation::Dup(fd) => table.dup(fd).map(i64::from),
        Operation::DupFrom(fd, from, flag) => table.dup_from(fd, from, flag).map(i64::from),
        Operation::Dup2(old, new) => table.dup2(old, new).map(i64::from),
        Operation::Dup3(old, new, flag) => table.dup3(old, new, flag).map(i64::from),
        Operation::Close(fd) => table.close(fd).map(|()| 0),
        Operation::CloseRange(first, last, flags) => {
            table.close_range(first, last, flags).map(|()| 0)
        }
        Operation::SetFlag(fd, flag) => table.set_close_on_exec(fd, flag).map(|()| 0),
        Operation::GetFlag(fd) => table.close_on_exec(fd).map(i64::from),
        Operation::Limit(limit) => {
            table.set_limit(limit);
            Ok(0)
        }
    };
    number.map_err(errno)
}

fn linux(kernel: &Kernel, operation: &Operation) -> Answer {
    match *operation {
        Operation::Open(flag) => kernel.open(flag),
        Operation::Dup(fd) => kernel.dup(fd),
        Operation::DupFrom(fd, from, flag) => kernel.dup_from(fd, from, flag),
        Operation::Dup2(old, new) => kernel.dup2(old, new),
        Operation::Dup3(old, new, flag) => kernel.dup3(old, new, flag),
        Operation::Close(fd) => kernel.close(fd),
        Operation::CloseRange(first, last, flags) => kernel.close_range(first, last, flags),
        Operation::SetFlag(fd, flag) => kernel.set_close_on_exec(fd, flag),
        Operation::GetFlag(fd) => kernel.close_on_exec(fd),
        Operation::Limit(limit) => kernel.set_limit(limit),
    }
}

fn compare(kernel: &Kernel, sequence: &[Operation]) -> Result<(), TestCaseError> {
    kernel.empty();
    prop_assert_eq!(kernel.set_limit(100), Ok(0));
    let mut tables = [Allocator::Bitmap, Allocator::Linear].map(|how| Table::new(100, how));
    for (place, operation) in sequence.iter().enumerate() {
        let theirs = linux(kernel, operation);
        for table in &mut tables {
            let answer = ours(table, operation);
            prop_assert_eq!(answer, theirs, "{}: {:?}", place, operation);
        }
    }
    // A child gets the same numbers, and what is to be closed is closed.
    for table in &tables {
        let child = table.fork().expect("memory");
        child.exec();
        for fd in 0..200 {
            let survives = kernel.close_on_exec(fd) == Ok(0);
            prop_assert_eq!(child.get(fd).is_ok(), survives, "{}", fd);
        }
    }
    Ok(())
}

#[test]
fn the_same_numbers_and_errors_as_linux() {
    // A table of kernel descriptors of its own, empty; this thread's alone.
    let judged = std::thread::spawn(|| {
        let kernel = Kernel::with_a_table_of_its_own();
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 400,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let sequences = prop::collection::vec(operations(), 1..150);
        let result = runner.run(&sequences, |sequence| compare(&kernel, &sequence));
        result.map_err(|error| error.to_string())
    });
    if let Err(difference) = judged.join().expect("no panic") {
        panic!("{difference}");
    }
}
