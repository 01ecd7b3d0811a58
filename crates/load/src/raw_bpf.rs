//! `bpf(2)` for the frame sender: a small program that redirects whatever it is
//! run on to one interface, having scattered its source address if it is to, and
//! running it on live frames.
//!
//! Numbers are those of `include/uapi/linux/bpf.h`.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};
use tidewall_sys::{Attach, attach_xdp, bpf};

use crate::prefix::Prefix;
use crate::template::Places;

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP`: ordinary attachment, as opposed to device and processor maps.
const ATTACH_XDP: u32 = 37;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// What an XDP program says of a packet (`enum xdp_action`).
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// `BPF_FUNC_get_prandom_u32`.
const HELPER_RANDOM: i32 = 7;
/// `BPF_FUNC_redirect`.
const HELPER_REDIRECT: i32 = 23;
/// The loopback interface is the first one of every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// `struct bpf_insn`; the two registers share a byte, destination low.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Instructions by the names of Documentation/bpf/standardization in the Linux
/// tree. Registers go by number.
impl Instruction {
    const fn of(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Instruction {
            code,
            registers: destination | (source << 4),
            offset,
            immediate,
        }
    }

    /// BPF_ALU64 | BPF_MOV | BPF_K
    const fn set(to: u8, value: i32) -> Self {
        Self::of(0xb7, to, 0, 0, value)
    }

    /// BPF_ALU64 | BPF_MOV | BPF_X
    const fn copy(to: u8, from: u8) -> Self {
        Self::of(0xbf, to, from, 0, 0)
    }

    /// BPF_ALU64 | BPF_ADD | BPF_X
    const fn add(to: u8, from: u8) -> Self {
        Self::of(0x0f, to, from, 0, 0)
    }

    /// BPF_ALU64 | BPF_ADD | BPF_K
    const fn add_value(to: u8, value: i32) -> Self {
        Self::of(0x07, to, 0, 0, value)
    }

    /// BPF_ALU64 | BPF_OR | BPF_X
    const fn or(to: u8, from: u8) -> Self {
        Self::of(0x4f, to, from, 0, 0)
    }

    /// BPF_ALU | BPF_AND | BPF_K, which clears the upper half
    const fn mask(to: u8, value: i32) -> Self {
        Self::of(0x54, to, 0, 0, value)
    }

    /// BPF_ALU64 | BPF_RSH | BPF_K
    const fn shift_right(to: u8, bits: i32) -> Self {
        Self::of(0x77, to, 0, 0, bits)
    }

    /// BPF_ALU64 | BPF_XOR | BPF_K
    const fn flip(to: u8, bits: i32) -> Self {
        Self::of(0xa7, to, 0, 0, bits)
    }

    /// BPF_LDX | BPF_MEM | BPF_W
    const fn load_double_word(to: u8, from: u8, offset: i16) -> Self {
        Self::of(0x61, to, from, offset, 0)
    }

    /// BPF_LDX | BPF_MEM | BPF_H
    const fn load_word(to: u8, from: u8, offset: i16) -> Self {
        Self::of(0x69, to, from, offset, 0)
    }

    /// BPF_STX | BPF_MEM | BPF_W
    const fn store_double_word(to: u8, offset: i16, from: u8) -> Self {
        Self::of(0x63, to, from, offset, 0)
    }

    /// BPF_STX | BPF_MEM | BPF_H
    const fn store_word(to: u8, offset: i16, from: u8) -> Self {
        Self::of(0x6b, to, from, offset, 0)
    }

    /// BPF_JMP | BPF_JGT | BPF_X
    const fn jump_if_above(left: u8, right: u8, over: i16) -> Self {
        Self::of(0x2d, left, right, over, 0)
    }

    /// BPF_JMP32 | BPF_JNE | BPF_K
    const fn jump_if_not(register: u8, value: i32, over: i16) -> Self {
        Self::of(0x56, register, 0, over, value)
    }

    /// BPF_JMP | BPF_CALL
    const fn call(helper: i32) -> Self {
        Self::of(0x85, 0, 0, 0, helper)
    }

    /// BPF_JMP | BPF_EXIT
    const fn exit() -> Self {
        Self::of(0x95, 0, 0, 0, 0)
    }
}

/// Which bits of the source address differ from frame to frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Where the frame's words are.
    pub(crate) places: Places,
    /// Of the address's last four bytes. The frames handed over have zeros
    /// there.
    pub(crate) mask: u32,
}

impl Scatter {
    /// Sets the bits of the mask pseudo-randomly and brings the checksums up to
    /// date (RFC 1624; the sum does not depend on the byte order, RFC 1071 §2).
    fn instructions(self) -> io::Result<Vec<Instruction>> {
        let place = |at: usize| i16::try_from(at).map_err(|_| io::ErrorKind::InvalidInput);
        let address = place(self.places.address_end)? - 4;
        let transport_checksum = place(self.places.transport_checksum)?;
        let mut change = vec![
            Instruction::load_double_word(1, 2, address),
            Instruction::or(1, 7),
            Instruction::store_double_word(2, address, 1),
            // The sum of the two words that were added.
            Instruction::copy(1, 7),
            Instruction::shift_right(1, 16),
            Instruction::mask(7, 0xffff),
            Instruction::add(7, 1),
        ];
        let ip_checksum = self.places.ip_checksum.map(place).transpose()?;
        for at in ip_checksum.into_iter().chain([transport_checksum]) {
            change.push(Instruction::load_word(1, 2, at));
            change.push(Instruction::flip(1, 0xffff));
            change.push(Instruction::add(1, 7));
            for _ in 0..2 {
                change.extend([
                    Instruction::copy(5, 1),
                    Instruction::shift_right(5, 16),
                    Instruction::mask(1, 0xffff),
                    Instruction::add(1, 5),
                ]);
            }
            change.push(Instruction::flip(1, 0xffff));
            change.push(Instruction::store_word(2, at, 1));
        }
        let over = place(change.len())?;
        let mut all = vec![
            Instruction::copy(6, 1),
            Instruction::call(HELPER_RANDOM),
            Instruction::copy(7, 0),
            Instruction::mask(7, i32::from_ne_bytes(self.mask.to_be_bytes())),
            // `data` and `data_end` of struct xdp_md.
            Instruction::load_double_word(2, 6, 0),
            Instruction::load_double_word(3, 6, 4),
            Instruction::copy(4, 2),
            Instruction::add_value(4, i32::from(transport_checksum) + 2),
            Instruction::jump_if_above(4, 3, over),
        ];
        all.append(&mut change);
        Ok(all)
    }
}

/// The attributes of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

/// The attributes of `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch_size: u32,
    padding: u32,
}

/// A loaded program that redirects every frame to one interface.
#[derive(Debug)]
pub(crate) struct Redirect {
    program: OwnedFd,
    /// Keeps the program in the kernel's XDP dispatcher, see [`register`].
    _registration: Registration,
}

impl Redirect {
    /// Loads the program for the interface of this index in the caller's
    /// namespace.
    pub(crate) fn new(interface: u32, scatter: Option<Scatter>) -> io::Result<Self> {
        let mut instructions = match scatter {
            Some(scatter) => scatter.instructions()?,
            None => Vec::new(),
        };
        let interface = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
        instructions.extend([
            Instruction::set(1, interface),
            Instruction::set(2, 0),
            Instruction::call(HELPER_REDIRECT),
            Instruction::exit(),
        ]);
        let program = load(&instructions)?;
        let registration = register(&program)?;
        Ok(Redirect {
            program,
            _registration: registration,
        })
    }

    /// Sends `frame` `count` times, in the kernel, as `xdp_frame`s.
    pub(crate) fn send(&self, frame: &[u8], count: u32) -> io::Result<()> {
        let mut run = TestRun {
            program: self.program.as_raw_fd() as u32,
            data_size_in: u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            data_in: frame.as_ptr() as u64,
            repeat: count,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            // What is handed to the interface at once; the kernel allows 256.
            batch_size: count.min(64),
            ..TestRun::default()
        };
        // SAFETY: the command reads the frame, which is as long as is said.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut run) }.map(drop)
    }
}

/// Loads an XDP program.
fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..13].copy_from_slice(b"tidewall_load");
    let mut load = Load {
        program_type: BPF_PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        name,
        expected_attach_type: ATTACH_XDP,
        ..Load::default()
    };
    // SAFETY: the command reads so many instructions and the licence. A
    // descriptor just returned to us is owned by nobody else.
    unsafe { bpf(BPF_PROG_LOAD, &mut load).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Attaches a program that drops what comes for these addresses to the
/// interface of this index in the caller's namespace, in the driver, where it
/// costs least. It goes with the descriptor.
pub(crate) fn attach_swallowing(interface: u32, prefix: &Prefix) -> io::Result<OwnedFd> {
    let program = load(&swallowing(prefix))?;
    attach_xdp(program.as_fd(), interface, Attach::Native)
}

/// Drops packets of Ethernet whose destination lies in the prefix.
fn swallowing(prefix: &Prefix) -> Vec<Instruction> {
    let in_memory = |word: u32| i32::from_ne_bytes(word.to_be_bytes());
    // Where destination and packet begin, and the number of the EtherType.
    let (at, address, bits, ethertype) = match prefix.address() {
        IpAddr::V4(address) => (30, u128::from(address.to_bits()) << 96, 32, 0x0800u16),
        IpAddr::V6(address) => (38, address.to_bits(), 128, 0x86dd),
    };
    let length = u32::from(prefix.length().min(bits));
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    let mut compare = vec![
        Instruction::load_word(1, 2, 12),
        Instruction::jump_if_not(1, i32::from(u16::from_ne_bytes(ethertype.to_be_bytes())), 0),
    ];
    for (number, offset) in (0..4u32).zip([at, at + 4, at + 8, at + 12]) {
        let word = |of: u128| (of >> (96 - 32 * number)) as u32;
        if word(mask) != 0 {
            compare.extend([
                Instruction::load_double_word(1, 2, offset),
                Instruction::mask(1, in_memory(word(mask))),
                Instruction::jump_if_not(1, in_memory(word(address & mask)), 0),
            ]);
        }
    }
    compare.extend([Instruction::set(0, XDP_DROP), Instruction::exit()]);
    // All jumps lead behind the drop.
    let behind = compare.len() as i16;
    for (place, instruction) in (0..).zip(&mut compare) {
        if instruction.code == 0x56 {
            instruction.offset = behind - place - 1;
        }
    }
    let needed = i32::from(at) + i32::from(bits / 8);
    let mut all = vec![
        // `data` and `data_end` of struct xdp_md.
        Instruction::load_double_word(2, 1, 0),
        Instruction::load_double_word(3, 1, 4),
        Instruction::copy(4, 2),
        Instruction::add_value(4, needed),
        Instruction::jump_if_above(4, 3, behind),
    ];
    all.append(&mut compare);
    all.extend([Instruction::set(0, XDP_PASS), Instruction::exit()]);
    all
}

/// An attachment of the program to the loopback interface of a network
/// namespace that nobody uses and that ends with it.
#[derive(Debug)]
struct Registration {
    _link: OwnedFd,
    _namespace: File,
}

/// Attaches the program where no packet ever passes.
///
/// Each test run enters its program into the XDP dispatcher and takes it out
/// again; both rewrite the dispatcher's code and wait for an RCU grace period,
/// 1.5 to 24 ms together. A program that is attached anywhere is in the
/// dispatcher already, and its test runs only count references: they take about
/// 10 µs. So the program is attached to `lo` of a new, empty namespace, made by
/// a thread that then ends: the caller's own namespace is not touched.
fn register(program: &OwnedFd) -> io::Result<Registration> {
    let attach = || -> io::Result<Registration> {
        // SAFETY: descriptors stay shared; only this short-lived thread changes
        // its namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
        let namespace = File::open("/proc/thread-self/ns/net")?;
        let link = attach_xdp(program.as_fd(), LOOPBACK_INDEX, Attach::Generic)?;
        Ok(Registration {
            _link: link,
            _namespace: namespace,
        })
    };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("tw-load-register".into())
            .spawn_scoped(scope, attach)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the registering thread ended early")))
    })
}
