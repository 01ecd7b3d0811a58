//! What a call costs that is not the stack's, through the library and without it: both in
//! one process and in turns, so that nothing but the library differs. Prints nanoseconds a
//! call, and how many instructions it adds where valgrind is there.
//!
//! `cargo bench -p tidewall-preload --bench foreign`; under `tidewall run --interface IF --`
//! the library has a stack in the process that is timed, and a call looks into its table of
//! numbers, too. Instructions are counted in a process without one.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Calls of a turn, and turns of each; of so many calls instructions are counted.
const CALLS: u32 = 2_000;
const PAIRS: usize = 1_000;
const COUNTED: u32 = 100_000;
const CHILD: &str = "TIDEWALL_BENCH_CHILD";

type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;

/// The function of this name that programs call, and the C library's own.
fn functions() -> [Read; 2] {
    // SAFETY: a library that is loaded, and a function of it with that type.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
        [libc::RTLD_DEFAULT, library].map(|where_| {
            let found = libc::dlsym(where_, c"read".as_ptr());
            assert!(!found.is_null());
            core::mem::transmute::<*mut c_void, Read>(found)
        })
    }
}

/// Nanoseconds of each of so many reads of one byte.
fn turn(read: Read, file: &File, calls: u32) -> f64 {
    let mut byte = 0u8;
    let begun = Instant::now();
    for _ in 0..calls {
        // SAFETY: a byte that is here.
        let read = unsafe { read(file.as_raw_fd(), (&raw mut byte).cast(), 1) };
        assert_eq!(read, 1);
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

/// In the process that has the library.
fn child(how: &str) {
    let [through, plain] = functions();
    let same = std::ptr::fn_addr_eq(through, plain);
    assert!(!same, "the library is not there");
    let zero = File::open("/dev/zero").unwrap();
    match how {
        "through" => drop(turn(through, &zero, COUNTED)),
        "plain" => drop(turn(plain, &zero, COUNTED)),
        _ => {
            // Where there is a manager this is the stack's from here on.
            let listener = TcpListener::bind("0.0.0.0:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err());
            // A process with a stack has threads, which makes any call on a descriptor dearer.
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

/// Instructions of a whole process; `None` without valgrind.
fn instructions(how: &str) -> Option<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(env::current_exe().unwrap());
    Command::new("valgrind").arg("--version").output().ok()?;
    let said = run(command, how);
    let line = said.lines().find(|line| line.contains("Collected : "))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The median, and between what nine tenths are.
fn words(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
    format!("{:.1} ({:.1} to {:.1})", at(0.5), at(0.05), at(0.95))
}

fn main() {
    if let Ok(how) = env::var(CHILD) {
        return child(&how);
    }
    assert!(
        library().exists(),
        "{}: cargo build --release -p tidewall-preload",
        library().display()
    );
    let said = run(Command::new(env::current_exe().unwrap()), "time");
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
    if let (Some(through), Some(plain)) = (instructions("through"), instructions("plain")) {
        let added = through.saturating_sub(plain) as f64 / f64::from(COUNTED);
        println!("  added   {added:.1} instructions");
    }
}
