//! The cost of a descriptor, with few open, with a million, and with two threads.
//!
//! `cargo bench -p tidewall --bench descriptors` prints times, medians of
//! interleaved rounds. `-- --instructions` counts instructions instead and judges
//! them against `benches/descriptors_instructions.txt`; with `--keep` it writes that.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall::descriptor::{Allocator, Table};
use tidewall_bench_instructions::{Counter, Scenario};

type Entries = Table<Arc<u64>>;

const FEW: u32 = 100;
const MANY: u32 = 1_000_000;
/// Rounds of which the median is printed.
const ROUNDS: usize = 301;
/// Turns of a round, 50 µs or so: short, so that few rounds are disturbed on a shared
/// machine.
const TURNS: u32 = 500;
/// Rounds of two threads.
const ROUNDS_TOGETHER: usize = 9;
/// How long one measurement of two threads takes.
const TOGETHER: Duration = Duration::from_millis(20);

/// Calls of a round whose instructions are counted.
const CALLS: u32 = 8;

const KEPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/descriptors_instructions.txt"
);
const SCENARIOS: [Scenario; 7] = [
    ("open and close, 100 open", |counter| {
        count_open_and_close(Allocator::Bitmap, FEW, counter);
    }),
    ("open and close, 1,000,000 open", |counter| {
        count_open_and_close(Allocator::Bitmap, MANY, counter);
    }),
    ("close and open any, 100 open", |counter| {
        count_any(FEW, close_and_open, counter);
    }),
    ("close and open any, 1,000,000 open", |counter| {
        count_any(MANY, close_and_open, counter);
    }),
    ("get, 1,000,000 open", |counter| {
        count_any(MANY, get, counter)
    }),
    ("is it open, 1,000,000 open", |counter| {
        count_any(MANY, is_open, counter)
    }),
    ("linear: open and close, 2,000 open", |counter| {
        count_open_and_close(Allocator::Linear, 2000, counter);
    }),
];

fn count_open_and_close(allocator: Allocator, open: u32, counter: &mut Counter) {
    let table = filled(allocator, open);
    while counter.next_round() {
        counter.count(CALLS as usize, || open_and_close(&table, CALLS));
    }
}

/// Numbers from anywhere below `open`.
fn count_any(open: u32, call: fn(&Entries, u32, &mut u64, u32), counter: &mut Counter) {
    let table = filled(Allocator::Bitmap, open);
    let mut random = SEED;
    while counter.next_round() {
        counter.count(CALLS as usize, || call(&table, open, &mut random, CALLS));
    }
}

/// A table with the lowest numbers open.
fn filled(allocator: Allocator, open: u32) -> Entries {
    let table = Table::new(MANY + 8, allocator);
    for fd in 0..open {
        let entry = Arc::new(u64::from(fd));
        // Not by a walk from 0: a million of them would take an hour.
        table.open_from(entry, fd as i32, false).expect("a number");
    }
    table
}

/// The lowest free number is above all others.
fn open_and_close(table: &Entries, rounds: u32) {
    open_and_close_as(table, 0, rounds);
}

/// As above, with what `like` names.
fn open_and_close_as(table: &Entries, like: i32, rounds: u32) {
    let entry = table.get(like).expect("open");
    for _ in 0..rounds {
        let fd = table.open(entry.clone(), false).expect("a number");
        drop(black_box(table.close(fd)));
    }
}

/// A server whose connections come and go: numbers from anywhere.
fn close_and_open(table: &Entries, open: u32, random: &mut u64, rounds: u32) {
    for _ in 0..rounds {
        let fd = any(random, open);
        let entry = table.close(fd).expect("open");
        assert_eq!(table.open(entry, false).expect("a number"), fd);
    }
}

fn get(table: &Entries, open: u32, random: &mut u64, rounds: u32) {
    for _ in 0..rounds {
        let _ = black_box(table.get(any(random, open)));
    }
}

fn is_open(table: &Entries, open: u32, random: &mut u64, rounds: u32) {
    for _ in 0..rounds {
        black_box(table.is_open(any(random, open)));
    }
}

/// Seed of the sequence of numbers.
const SEED: u64 = 1;

/// The next of a sequence of numbers.
fn any(random: &mut u64, open: u32) -> i32 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    ((*random >> 33) % u64::from(open)) as i32
}

/// Nanoseconds of a round of what runs so many.
fn time(rounds: u32, run: impl Fn(u32)) -> f64 {
    let begin = Instant::now();
    run(rounds);
    begin.elapsed().as_nanos() as f64 / f64::from(rounds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Medians of two measurements, taken in turn, and of their ratios.
fn beside(what: &str, few: impl Fn() -> f64, many: impl Fn() -> f64) -> f64 {
    rounds_beside(ROUNDS, what, few, many)
}

fn rounds_beside(rounds: usize, what: &str, few: impl Fn() -> f64, many: impl Fn() -> f64) -> f64 {
    let (mut fews, mut manys, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (few, many) = (few(), many());
        fews.push(few);
        manys.push(many);
        ratios.push(many / few);
    }
    let ratio = median(ratios);
    println!(
        "{what}: {:.1} ns, {:.1} ns, ratio {ratio:.2}",
        median(fews),
        median(manys)
    );
    ratio
}

/// Nanoseconds of a turn of each of `threads` threads at once.
fn together(threads: usize, turn: impl Fn(usize) + Sync) -> f64 {
    let over = AtomicBool::new(false);
    let turns: u64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (over, turn) = (&over, &turn);
                scope.spawn(move || {
                    let mut turns = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        for _ in 0..64 {
                            turn(thread);
                        }
                        turns += 64;
                    }
                    turns
                })
            })
            .collect();
        std::thread::sleep(TOGETHER);
        over.store(true, Ordering::Relaxed);
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or(0))
            .sum()
    });
    TOGETHER.as_nanos() as f64 * threads as f64 / turns as f64
}

fn main() -> ExitCode {
    if let Some(code) = tidewall_bench_instructions::main(KEPT, &SCENARIOS) {
        return code;
    }
    println!("times: with {FEW} open, with {MANY} open; medians of {ROUNDS} rounds in turn");
    let (few, many) = (
        filled(Allocator::Bitmap, FEW),
        filled(Allocator::Bitmap, MANY),
    );
    let bound = beside(
        "bitmap: open and close the next number",
        || time(TURNS, |rounds| open_and_close(&few, rounds)),
        || time(TURNS, |rounds| open_and_close(&many, rounds)),
    );
    println!(
        "  bound 2: {}",
        if bound <= 2.0 { "kept" } else { "MISSED" }
    );
    // All the 16 MB of slots are looked at, by turns: what is above is memory's.
    beside(
        "bitmap: close and open numbers from anywhere",
        || {
            time(TURNS, |rounds| {
                close_and_open(&few, FEW, &mut SEED.clone(), rounds)
            })
        },
        || {
            time(TURNS, |rounds| {
                close_and_open(&many, MANY, &mut SEED.clone(), rounds)
            })
        },
    );
    beside(
        "bitmap: look a number from anywhere up",
        || time(TURNS, |rounds| get(&few, FEW, &mut SEED.clone(), rounds)),
        || time(TURNS, |rounds| get(&many, MANY, &mut SEED.clone(), rounds)),
    );
    drop(many);
    let linear = filled(Allocator::Linear, FEW);
    for open in [2000, 100_000, MANY] {
        let full = filled(Allocator::Linear, open);
        let turns = (1_000_000 / open).clamp(2, TURNS);
        let what = format!("linear: open and close the next number, {FEW} and {open} open");
        rounds_beside(
            ROUNDS.min(2_000_000 / open as usize).max(15),
            &what,
            || time(TURNS, |rounds| open_and_close(&linear, rounds)),
            || time(turns, |rounds| open_and_close(&full, rounds)),
        );
    }
    let table = filled(Allocator::Bitmap, 1000);
    println!("contention: one thread, two threads; ns of a turn of each");
    let open_close = |thread: usize| open_and_close_as(&table, thread as i32 * 500, 1);
    rounds_beside(
        ROUNDS_TOGETHER,
        "open and close",
        || together(1, open_close),
        || together(2, open_close),
    );
    let get_own = |thread: usize| {
        let _ = black_box(table.get(thread as i32 * 500));
    };
    rounds_beside(
        ROUNDS_TOGETHER,
        "look up, each its own number",
        || together(1, get_own),
        || together(2, get_own),
    );
    let get_beside = |thread: usize| match thread {
        0 => get_own(0),
        _ => open_and_close_as(&table, 500, 1),
    };
    rounds_beside(
        ROUNDS_TOGETHER,
        "look up, and open and close beside it",
        || together(1, get_beside),
        || together(2, get_beside),
    );
    ExitCode::SUCCESS
}
