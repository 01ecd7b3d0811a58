//! Measures what the library adds to a call that is not the stack's. Both are timed in one
//! process and in turns, so that nothing but the library differs. Prints nanoseconds per
//! call. With `-- --instructions` it counts the added instructions instead, under valgrind,
//! and judges them against `benches/foreign_instructions.txt`. With `--keep` it writes that
//! file.
//!
//! `cargo bench -p tidewall-preload --bench foreign`; under `tidewall run --interface IF --`
//! the library has a stack in the timed process, so a call also reads its descriptor table.
//! Instructions are counted in a process without a stack.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Calls per turn, and turns of each; instructions are counted over as many calls.
const CALLS: u32 = 2_000;
const PAIRS: usize = 1_000;
const COUNTED: u32 = 100_000;
const CHILD: &str = "TIDEWALL_BENCH_CHILD";

/// The file of kept counts, and the tolerance above them, in hundredths.
const KEPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/foreign_instructions.txt"
);
const TOLERANCE: u64 = tidewall_bench_instructions::TOLERANCE;

/// The measured calls: read(2), write(2).
type Call = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;

/// The function of this name that programs call, and the C library's original.
fn functions(name: &CStr) -> [Call; 2] {
    // SAFETY: the library is loaded, and its function has that type.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
        [libc::RTLD_DEFAULT, library].map(|where_| {
            let found = libc::dlsym(where_, name.as_ptr());
            assert!(!found.is_null());
            core::mem::transmute::<*mut c_void, Call>(found)
        })
    }
}

/// Returns nanoseconds per read or write of one byte.
fn turn(call: Call, file: &File, calls: u32) -> f64 {
    let mut byte = 0u8;
    let begun = Instant::now();
    for _ in 0..calls {
        // SAFETY: the byte is on this stack.
        let moved = unsafe { call(file.as_raw_fd(), (&raw mut byte).cast(), 1) };
        assert_eq!(moved, 1);
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

/// Runs in the process that has the library.
fn child(how: &str) {
    let (name, how) = how.split_once(' ').unwrap();
    let [through, plain] = functions(&CString::new(name).unwrap());
    let same = std::ptr::fn_addr_eq(through, plain);
    assert!(!same, "the library is not there");
    let mut options = File::options();
    let zero = options.read(true).write(true).open("/dev/zero").unwrap();
    match how {
        "through" => drop(turn(through, &zero, COUNTED)),
        "plain" => drop(turn(plain, &zero, COUNTED)),
        _ => {
            // With a manager, this listener belongs to the stack from here on.
            let listener = TcpListener::bind("0.0.0.0:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err());
            // A process with a stack has threads, which makes any call on a descriptor more
            // expensive.
            std::thread::spawn(std::thread::park);
            for _ in 0..PAIRS {
                let plain = turn(plain, &zero, CALLS);
                println!("{plain} {}", turn(through, &zero, CALLS));
            }
        }
    }
}

fn library() -> PathBuf {
    // The bench is in target/release/deps.
    let program = env::current_exe().unwrap();
    program.parent().unwrap().with_file_name("libtidewall.so")
}

fn run(mut command: Command, how: &str) -> String {
    command.env(CHILD, how).env("LD_PRELOAD", library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).unwrap()
}

/// Counts the instructions of a whole process.
fn instructions(how: &str) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(env::current_exe().unwrap());
    let said = run(command, how);
    let line = said.lines().find(|line| line.contains("Collected : "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns what the library adds to a call, in instructions.
fn added(name: &str) -> (String, u64, String) {
    let of = |how: &str| instructions(&format!("{name} {how}"));
    let added = of("through").saturating_sub(of("plain"));
    let each = (added + u64::from(COUNTED) / 2) / u64::from(COUNTED);
    (format!("{name}, another's descriptor"), each, String::new())
}

/// Formats the median, and the range that holds nine tenths.
fn words(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
    format!("{:.1} ({:.1} to {:.1})", at(0.5), at(0.05), at(0.95))
}

fn main() -> ExitCode {
    if let Ok(how) = env::var(CHILD) {
        child(&how);
        return ExitCode::SUCCESS;
    }
    assert!(
        library().exists(),
        "{}: cargo build --release -p tidewall-preload",
        library().display()
    );
    if env::args().any(|argument| argument == "--instructions") {
        let counts = ["read", "write"].map(added);
        let compiler = tidewall_bench_instructions::compiler();
        return tidewall_bench_instructions::judge(KEPT, compiler, TOLERANCE, counts);
    }
    let said = run(Command::new(env::current_exe().unwrap()), "read time");
    let pairs: Vec<(f64, f64)> = said
        .lines()
        .map(|line| {
            let (plain, through) = line.split_once(' ').unwrap();
            (plain.parse().unwrap(), through.parse().unwrap())
        })
        .collect();
    println!("a read of one byte of /dev/zero, ns, {PAIRS} pairs of {CALLS} calls in turns:");
    println!("  plain   {}", words(pairs.iter().map(|pair| pair.0)));
    println!("  library {}", words(pairs.iter().map(|pair| pair.1)));
    println!(
        "  added   {}",
        words(pairs.iter().map(|pair| pair.1 - pair.0))
    );
    ExitCode::SUCCESS
}
