//! The driver program without a kernel: its object, linked as the loader links it, run on
//! one frame by an interpreter of eBPF (RFC 9669). Needs no privilege.
//!
//! Beyond a run in the kernel it has the count of instructions, a clock that the caller
//! sets, and a check of every access. An access to memory that does not exist, that lies
//! beyond the frame or that may not be written is a [`Fault`].
//!
//! It is not the verifier: a program that it runs need not be loadable.
#![allow(dead_code, reason = "each user takes a part")]

mod helpers;
mod maps;
mod memory;
mod raw_memory;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use aya_obj::Object;
use aya_obj::generated as bpf;

use maps::Map;
use memory::Memory;

/// Offset at which the kernel puts a frame in its buffer: XDP_PACKET_HEADROOM.
const HEADROOM: usize = 256;
/// Longest frame that fits into a page beside the headroom and skb_shared_info.
const LONGEST: usize = 4096 - HEADROOM - 320;
const STACK: usize = 512;
/// MAX_CALL_FRAMES.
const CALL_FRAMES: u64 = 8;
/// More than this is a loop without an end.
const INSTRUCTIONS: u64 = 1_000_000;
/// Value of registers that a function must not read.
const POISON: u64 = 0xdead_dead_dead_dead;

// Addresses of the machine; those in the context must fit in 32 bits. Maps
// follow, and pointers to maps are above all memory.
const CONTEXT: u64 = 0x1000;
const FRAME: u64 = 0x10_0000;
const STACKS: u64 = 0x20_0000;
const STACK_STRIDE: u64 = 0x1000;
const VALUES: u64 = 0x1000_0000;
const MAPS: u64 = 0xffff_0000_0000;

/// The error of a run that the verifier would not permit, or that needs something missing
/// here; described in words, with the place in the program.
#[derive(Debug)]
pub struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The result of a run on a frame.
#[derive(Debug)]
pub struct Run {
    /// `enum xdp_action`.
    pub action: u32,
    /// The frame afterwards, without metadata.
    pub frame: Vec<u8>,
    /// The metadata before it.
    pub metadata: Vec<u8>,
    /// Instructions executed. A call of a helper is one, as is a load of 64 bits.
    pub instructions: u64,
    /// Calls by helper.
    pub helpers: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    destination: usize,
    source: usize,
    offset: i16,
    immediate: i32,
}

/// The program, its maps, and the memory that they lie in.
#[derive(Default)]
pub struct Emulator<'a> {
    program: Vec<Instruction>,
    /// Functions and lines of the source, by their first instruction.
    functions: BTreeMap<usize, String>,
    lines: BTreeMap<usize, u32>,
    maps: Vec<Map>,
    memory: Memory<'a>,
    at: usize,
    instructions: u64,
    helpers: BTreeMap<&'static str, u64>,
    /// Records of ring buffers that the program has submitted.
    pub records: Vec<Vec<u8>>,
    /// The result of `bpf_ktime_get_ns`.
    pub time: u64,
    /// Kernel sockets: each its helper's `bpf_sock_tuple` and its state.
    pub sockets: HashMap<(&'static str, Vec<u8>), u32>,
}

impl<'a> Emulator<'a> {
    /// Links a program of an object file and creates the object's maps: arrays zeroed or
    /// as in their section, all others empty.
    pub fn load(object: &[u8], program: &str) -> Self {
        let mut object = Object::parse(object).expect("an object of clang's");
        let names: HashMap<u32, String> = object
            .functions
            .values()
            .flat_map(|function| {
                let infos = &function.func_info.func_info;
                infos
                    .iter()
                    .map(|info| (info.type_id, function.name.clone()))
            })
            .collect();
        let mut memory = Memory::default();
        let found: Vec<_> = object.maps.drain().collect();
        let maps = found
            .iter()
            .map(|(name, map)| Map::new(name, map, &mut memory))
            .collect();
        let sections: HashSet<usize> = object.functions.keys().map(|&(at, _)| at).collect();
        let numbered = found.iter().zip(0..);
        let numbered = numbered.map(|((name, map), number)| (name.as_str(), number, map));
        object.relocate_maps(numbered, &sections).expect("its maps");
        object.relocate_calls(&sections).expect("its functions");
        let key = object.programs[program].function_key();
        let linked = &object.functions[&key];
        let instruction = |raw: &bpf::bpf_insn| Instruction {
            code: raw.code,
            destination: raw.dst_reg().into(),
            source: raw.src_reg().into(),
            offset: raw.off,
            immediate: raw.imm,
        };
        Emulator {
            program: linked.instructions.iter().map(instruction).collect(),
            functions: (linked.func_info.func_info.iter())
                .filter_map(|info| {
                    Some((info.insn_off as usize, names.get(&info.type_id)?.clone()))
                })
                .collect(),
            lines: (linked.line_info.line_info.iter())
                .map(|info| (info.insn_off as usize, info.line_col >> 10))
                .collect(),
            maps,
            memory,
            ..Self::default()
        }
    }

    /// A program of these instructions, each a word as in memory.
    pub fn assembled(words: &[u64]) -> Self {
        let instruction = |&word: &u64| Instruction {
            code: word as u8,
            destination: (word >> 8 & 15) as usize,
            source: (word >> 12 & 15) as usize,
            offset: (word >> 16) as i16,
            immediate: (word >> 32) as i32,
        };
        Emulator {
            program: words.iter().map(instruction).collect(),
            ..Self::default()
        }
    }

    /// Runs the program on a frame that arrived on a queue.
    pub fn run(&mut self, frame: &[u8], queue: u32) -> Result<Run, Fault> {
        self.instructions = 0;
        self.helpers.clear();
        self.at = 0;
        if frame.len() > LONGEST {
            return Err(self.fault("the frame is longer than a page has room"));
        }
        self.memory.enter(frame, queue);
        let action = self.function(0, [CONTEXT, POISON, POISON, POISON, POISON], 0)?;
        if self.memory.has_open_record() {
            return Err(self.fault("ends with a record neither submitted nor discarded"));
        }
        let (metadata, frame) = self.memory.leave();
        Ok(Run {
            action: action as u32,
            frame,
            metadata,
            instructions: self.instructions,
            helpers: self.helpers.clone(),
        })
    }

    fn fault(&self, what: impl fmt::Display) -> Fault {
        let name = self.functions.range(..=self.at).next_back();
        let line = self.lines.range(..=self.at).next_back();
        Fault(format!(
            "instruction {} ({}, line {}): {what}",
            self.at,
            name.map_or("?", |(_, name)| name),
            line.map_or(0, |(_, line)| *line),
        ))
    }

    /// Calls the function at an instruction; returns its result.
    fn function(&mut self, entry: usize, arguments: [u64; 5], depth: u64) -> Result<u64, Fault> {
        if depth == CALL_FRAMES {
            return Err(self.fault("calls too deep"));
        }
        let stack = STACKS + depth * STACK_STRIDE;
        // The initial contents must not matter.
        self.memory.add_at(stack, vec![0xa5; STACK]);
        let mut registers = [POISON; 11];
        registers[1..6].copy_from_slice(&arguments);
        registers[10] = stack + STACK as u64;
        let mut next = entry;
        loop {
            self.at = next;
            let Some(&instruction) = self.program.get(next) else {
                return Err(self.fault("runs out of the program"));
            };
            self.instructions += 1;
            if self.instructions > INSTRUCTIONS {
                return Err(self.fault("does not end"));
            }
            next += 1;
            let Instruction {
                code,
                destination,
                source,
                offset,
                immediate,
            } = instruction;
            let class = u32::from(code & 7);
            let operation = u32::from(code & 0xf0);
            let unknown = |emulator: &Self| Err(emulator.fault(format!("opcode {code:#04x}")));
            let immediate_word = i64::from(immediate) as u64;
            let operand = if code & 8 == 0 {
                immediate_word
            } else {
                registers[source]
            };
            let size = [4, 2, 1, 8][usize::from(code >> 3 & 3)];
            let at = |register: usize| registers[register].wrapping_add_signed(offset.into());
            match class {
                bpf::BPF_ALU if operation == bpf::BPF_END => {
                    let value = registers[destination];
                    let big = u32::from(code & 8) == bpf::BPF_TO_BE;
                    registers[destination] = match (immediate, big) {
                        (16, true) => (value as u16).to_be().into(),
                        (32, true) => (value as u32).to_be().into(),
                        (64, true) => value.to_be(),
                        (16, false) => (value as u16).to_le().into(),
                        (32, false) => (value as u32).to_le().into(),
                        (64, false) => value.to_le(),
                        _ => return unknown(self),
                    };
                }
                bpf::BPF_ALU | bpf::BPF_ALU64 => {
                    let wide = class == bpf::BPF_ALU64;
                    let value = arithmetic(operation, registers[destination], operand, wide);
                    match value.filter(|_| offset == 0 && destination < 10) {
                        Some(value) => registers[destination] = value,
                        None => return unknown(self),
                    }
                }
                bpf::BPF_JMP if operation == bpf::BPF_EXIT => {
                    self.memory.remove(stack);
                    return Ok(registers[0]);
                }
                bpf::BPF_JMP if operation == bpf::BPF_CALL => {
                    let arguments = std::array::from_fn(|place| registers[place + 1]);
                    registers[0] = match source as u32 {
                        0 => self.helper(immediate as u32, arguments)?,
                        bpf::BPF_PSEUDO_CALL => {
                            let entry = next.wrapping_add_signed(immediate as isize);
                            self.function(entry, arguments, depth + 1)?
                        }
                        _ => return unknown(self),
                    };
                    registers[1..6].fill(POISON);
                }
                bpf::BPF_JMP if operation == bpf::BPF_JA => {
                    next = next.wrapping_add_signed(offset.into());
                }
                bpf::BPF_JMP | bpf::BPF_JMP32 => {
                    let wide = class == bpf::BPF_JMP;
                    match condition(operation, registers[destination], operand, wide) {
                        Some(true) => next = next.wrapping_add_signed(offset.into()),
                        Some(false) => {}
                        None => return unknown(self),
                    }
                }
                bpf::BPF_LDX if u32::from(code & 0xe0) == bpf::BPF_MEM => {
                    let value = self.memory.read(at(source), size);
                    registers[destination] = value.map_err(|what| self.fault(what))?;
                }
                bpf::BPF_ST | bpf::BPF_STX if u32::from(code & 0xe0) == bpf::BPF_MEM => {
                    let value = if class == bpf::BPF_ST {
                        immediate_word
                    } else {
                        registers[source]
                    };
                    let written = self.memory.write(at(destination), size, value);
                    written.map_err(|what| self.fault(what))?;
                }
                bpf::BPF_STX if u32::from(code & 0xe0) == bpf::BPF_ATOMIC && size >= 4 => {
                    let place = at(destination);
                    let old = self.memory.read(place, size);
                    let old = old.map_err(|what| self.fault(what))?;
                    let (value, accumulator) = (registers[source], registers[0]);
                    let kind = immediate as u32;
                    let mask = if size == 4 {
                        u64::from(u32::MAX)
                    } else {
                        u64::MAX
                    };
                    let new = match kind {
                        bpf::BPF_XCHG => Some(value),
                        bpf::BPF_CMPXCHG if old == accumulator & mask => Some(value),
                        bpf::BPF_CMPXCHG => Some(old),
                        _ => arithmetic(kind & !bpf::BPF_FETCH, old, value, true),
                    };
                    let Some(new) = new else {
                        return unknown(self);
                    };
                    let written = self.memory.write(place, size, new);
                    written.map_err(|what| self.fault(what))?;
                    if kind == bpf::BPF_CMPXCHG {
                        registers[0] = old;
                    } else if kind & bpf::BPF_FETCH != 0 {
                        registers[source] = old;
                    }
                }
                // A load of 64 bits, the only one of BPF_LD that is left.
                bpf::BPF_LD if code == 0x18 => {
                    let high = self.program.get(next).map_or(0, |second| second.immediate);
                    let (low, high) = (u64::from(immediate as u32), u64::from(high as u32));
                    registers[destination] = match source as u32 {
                        0 => high << 32 | low,
                        bpf::BPF_PSEUDO_MAP_FD => MAPS + low,
                        bpf::BPF_PSEUDO_MAP_VALUE => self.maps[immediate as usize].first() + high,
                        bpf::BPF_PSEUDO_FUNC => next.wrapping_add_signed(immediate as isize) as u64,
                        _ => return unknown(self),
                    };
                    next += 1;
                }
                _ => return unknown(self),
            }
        }
    }
}

/// The result of an operation on two values; `None` for an invalid operation.
fn arithmetic(operation: u32, a: u64, b: u64, wide: bool) -> Option<u64> {
    let (mask, shift) = if wide {
        (u64::MAX, b & 63)
    } else {
        (0xffff_ffff, b & 31)
    };
    let (a, b) = (a & mask, b & mask);
    let signed = if wide { a as i64 } else { (a as i32).into() };
    Some(
        mask & match operation {
            bpf::BPF_ADD => a.wrapping_add(b),
            bpf::BPF_SUB => a.wrapping_sub(b),
            bpf::BPF_MUL => a.wrapping_mul(b),
            bpf::BPF_DIV => a.checked_div(b).unwrap_or(0),
            bpf::BPF_OR => a | b,
            bpf::BPF_AND => a & b,
            bpf::BPF_LSH => a << shift,
            bpf::BPF_RSH => a >> shift,
            bpf::BPF_NEG => a.wrapping_neg(),
            bpf::BPF_MOD => a.checked_rem(b).unwrap_or(a),
            bpf::BPF_XOR => a ^ b,
            bpf::BPF_MOV => b,
            bpf::BPF_ARSH => (signed >> shift) as u64,
            _ => return None,
        },
    )
}

/// Whether a jump is taken; `None` for an invalid condition.
fn condition(operation: u32, a: u64, b: u64, wide: bool) -> Option<bool> {
    let unsigned = |value: u64| if wide { value } else { (value as u32).into() };
    let signed = |value: u64| {
        if wide {
            value as i64
        } else {
            (value as i32).into()
        }
    };
    let ((a, x), (b, y)) = ((unsigned(a), signed(a)), (unsigned(b), signed(b)));
    Some(match operation {
        bpf::BPF_JEQ => a == b,
        bpf::BPF_JGT => a > b,
        bpf::BPF_JGE => a >= b,
        bpf::BPF_JSET => a & b != 0,
        bpf::BPF_JNE => a != b,
        bpf::BPF_JSGT => x > y,
        bpf::BPF_JSGE => x >= y,
        bpf::BPF_JLT => a < b,
        bpf::BPF_JLE => a <= b,
        bpf::BPF_JSLT => x < y,
        bpf::BPF_JSLE => x <= y,
        _ => return None,
    })
}
