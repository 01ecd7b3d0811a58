//! Filters of system calls: the evaluation here compared with the kernel's.
#![allow(unsafe_code)]

use std::thread;

use libc::{BPF_ALU, BPF_JMP, BPF_LD, BPF_LDX, BPF_MISC, BPF_RET, BPF_ST, BPF_STX, sock_filter};
use tidewall_sys::seccomp::{Call, allows, decide};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The call to be filtered: with these arguments it never does anything.
const PROBE: i64 = libc::SYS_getpgid;
/// Calls of each filter.
const CALLS: usize = 4;

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// A program of instructions that the kernel accepts. It returns an errno for [`PROBE`]
/// and allows all else.
fn program(drawn: &[(u8, u8, u8, u32)]) -> Vec<sock_filter> {
    // All memory that is read must be written first.
    let mut filter = vec![
        instruction(BPF_LD | libc::BPF_ABS, 0, 0, 0),
        instruction(BPF_JMP | libc::BPF_JEQ, 1, 0, PROBE as u32),
        instruction(BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(BPF_ST, 0, 0, 0),
        instruction(BPF_STX, 0, 0, 1),
    ];
    const OPERATIONS: [u32; 10] = [
        libc::BPF_ADD,
        libc::BPF_SUB,
        libc::BPF_MUL,
        libc::BPF_OR,
        libc::BPF_AND,
        libc::BPF_XOR,
        libc::BPF_LSH,
        libc::BPF_RSH,
        libc::BPF_DIV,
        libc::BPF_NEG,
    ];
    const CONDITIONS: [u32; 4] = [libc::BPF_JEQ, libc::BPF_JGT, libc::BPF_JGE, libc::BPF_JSET];
    for (place, &(kind, jt, jf, k)) in drawn.iter().enumerate() {
        // Instructions between this one and the end of the program.
        let left = (drawn.len() - 1 - place) as u32;
        let jump = |by: u8| (u32::from(by) % (left + 1).min(256)) as u8;
        let which = kind as usize / 16;
        let x = u32::from(jt % 2) * libc::BPF_X;
        filter.push(match kind % 16 {
            0..3 => instruction(BPF_LD | libc::BPF_ABS, 0, 0, k % 16 * 4),
            3 => instruction(BPF_LD | libc::BPF_LEN, 0, 0, k),
            4 => instruction(BPF_LD, 0, 0, k),
            5 => instruction(BPF_LDX, 0, 0, k >> (k % 32)),
            6 => instruction(BPF_LD | libc::BPF_MEM, 0, 0, k % 2),
            7 => instruction(BPF_LDX | libc::BPF_MEM, 0, 0, k % 2),
            8 => instruction(BPF_ST, 0, 0, k % 2),
            9 => instruction(BPF_MISC | if k % 2 == 0 { 0x80 } else { 0 }, 0, 0, 0),
            10..13 => match OPERATIONS[which % OPERATIONS.len()] {
                // A division by zero ends the thread.
                libc::BPF_DIV => instruction(BPF_ALU | libc::BPF_DIV, 0, 0, k.max(1)),
                libc::BPF_NEG => instruction(BPF_ALU | libc::BPF_NEG, 0, 0, k),
                it @ (libc::BPF_LSH | libc::BPF_RSH) => instruction(BPF_ALU | it | x, 0, 0, k % 32),
                it => instruction(BPF_ALU | it | x, 0, 0, k),
            },
            13 => instruction(BPF_JMP, 0, 0, k % (left + 1)),
            14 => {
                let condition = CONDITIONS[which % CONDITIONS.len()];
                instruction(BPF_JMP | condition | x, jump(jt), jump(jf), k)
            }
            _ => instruction(BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | (k & 0xfff)),
        });
    }
    filter.extend([
        instruction(BPF_ALU | libc::BPF_AND, 0, 0, 0xfff),
        instruction(BPF_ALU | libc::BPF_OR, 0, 0, libc::SECCOMP_RET_ERRNO),
        instruction(BPF_RET | 0x10, 0, 0, 0),
    ]);
    filter
}

/// The errnos that calls return in a thread that has installed the filter.
fn numbers(mut filter: Vec<sock_filter>, calls: [[u64; 6]; CALLS]) -> Option<[u32; CALLS]> {
    let thread = thread::spawn(move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: affects only this thread, and the program is live.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program) == 0
        };
        installed.then(|| {
            calls.map(|[a, b, c, d, e, f]| {
                // SAFETY: the filter catches the call before the kernel executes it.
                match unsafe { libc::syscall(PROBE, a, b, c, d, e, f) } {
                    0 => 0,
                    _ => std::io::Error::last_os_error().raw_os_error().unwrap() as u32,
                }
            })
        })
    });
    thread.join().unwrap()
}

#[test]
fn filters_are_read_as_the_kernel_reads_them() {
    let name = "filters_are_read_as_the_kernel_reads_them";
    if numbers(program(&[]), Default::default()).is_none() {
        return tidewall_skip::missing(name, "seccomp");
    }
    bolero::check!(name = "seccomp_filter")
        .with_type::<(Vec<(u8, u8, u8, u32)>, [[u64; 6]; CALLS])>()
        .with_iterations(500)
        .for_each(|(drawn, calls)| {
            let filter = program(&drawn[..drawn.len().min(300)]);
            let expected = numbers(filter.clone(), *calls).expect("a program that it takes");
            for (arguments, expected) in calls.iter().zip(expected) {
                let call = Call {
                    number: PROBE as u32,
                    architecture: ARCHITECTURE,
                    arguments: *arguments,
                    ..Call::default()
                };
                // The address of the call is not known here.
                let looks = |it: &sock_filter| it.code == 0x20 && matches!(it.k, 8 | 12);
                if !filter.iter().any(looks) {
                    let decided = decide(&filter, &call).expect("a program that it takes");
                    assert_eq!(decided, libc::SECCOMP_RET_ERRNO | expected);
                }
                assert!(!allows(&filter, &call));
                assert!(allows(&filter, &Call { number: 1, ..call }));
            }
        });
}

#[test]
fn what_no_kernel_takes_allows_nothing() {
    let allow = instruction(BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW);
    let call = Call::default();
    assert!(allows(&[allow], &call));
    for wrong in [
        // An unaligned word, beyond the data, beyond the memory.
        instruction(BPF_LD | libc::BPF_ABS, 0, 0, 2),
        instruction(BPF_LD | libc::BPF_ABS, 0, 0, 64),
        instruction(BPF_LD | libc::BPF_MEM, 0, 0, 16),
        instruction(BPF_STX, 0, 0, 16),
        // Beyond the program.
        instruction(BPF_JMP, 0, 0, 1),
        instruction(BPF_JMP, 0, 0, u32::MAX),
        instruction(BPF_JMP | libc::BPF_JEQ, 1, 1, 0),
        // Instructions that are invalid in system call filters.
        instruction(BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        instruction(BPF_ALU | libc::BPF_MOD, 0, 0, 1),
        instruction(BPF_RET | libc::BPF_X, 0, 0, 0),
        instruction(BPF_MISC | 0x40, 0, 0, 0),
    ] {
        assert_eq!(decide(&[wrong, allow], &call), None, "{:#x}", wrong.code);
        assert!(!allows(&[wrong, allow], &call));
    }
    assert_eq!(decide(&[], &call), None);
    // Division by zero: the result that the kernel gives such a filter.
    let divide = instruction(BPF_ALU | libc::BPF_DIV | libc::BPF_X, 0, 0, 0);
    assert_eq!(decide(&[divide, allow], &call), Some(0));
}
