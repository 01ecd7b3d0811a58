//! Evaluates a filter of system calls (seccomp(2)) without the kernel.
//!
//! A program that depends on calls asks here before a filter is in force. A filter is a
//! classic BPF program over the number of a call, its arguments and its address.

/// A call as filters see it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// SYS_….
    pub number: u32,
    /// AUDIT_ARCH_….
    pub architecture: u32,
    /// The address of the next instruction.
    pub address: u64,
    /// The arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// The word at an offset of `struct seccomp_data`; `None` for an unaligned offset or
    /// one beyond the end.
    fn word(&self, place: u32) -> Option<u32> {
        let half = |value: u64| match place.is_multiple_of(8) == cfg!(target_endian = "little") {
            true => value as u32,
            false => (value >> 32) as u32,
        };
        match place {
            _ if !place.is_multiple_of(4) => None,
            0 => Some(self.number),
            4 => Some(self.architecture),
            8 | 12 => Some(half(self.address)),
            _ => {
                let argument = self.arguments.get(((place - 16) / 8) as usize);
                argument.copied().map(half)
            }
        }
    }
}

/// Length of `struct seccomp_data`.
const DATA_BYTES: u32 = 64;

/// The result of a filter for a call: SECCOMP_RET_…; `None` for a program that the kernel
/// would not accept. All jumps are forward, so no instruction is executed twice.
pub fn decide(filter: &[libc::sock_filter], call: &Call) -> Option<u32> {
    let (mut accumulator, mut index) = (0u32, 0u32);
    let mut memory = [0u32; 16];
    let mut place = 0;
    loop {
        let instruction = filter.get(place)?;
        let (code, constant) = (u32::from(instruction.code), instruction.k);
        place += 1;
        match code & 7 {
            libc::BPF_LD | libc::BPF_LDX => {
                let value = match (code & 7, code & 0xf8) {
                    (libc::BPF_LD, WORD) => call.word(constant)?,
                    (_, LENGTH) => DATA_BYTES,
                    (_, libc::BPF_IMM) => constant,
                    (_, libc::BPF_MEM) => *memory.get(constant as usize)?,
                    _ => return None,
                };
                match code & 7 {
                    libc::BPF_LD => accumulator = value,
                    _ => index = value,
                }
            }
            libc::BPF_ST => *memory.get_mut(constant as usize)? = accumulator,
            libc::BPF_STX => *memory.get_mut(constant as usize)? = index,
            libc::BPF_ALU => {
                let other = operand(code, constant, index);
                accumulator = match code & 0xf0 {
                    // As in the kernel.
                    libc::BPF_DIV if other == 0 => return Some(0),
                    operation => calculate(operation, accumulator, other)?,
                };
            }
            libc::BPF_JMP => {
                let other = operand(code, constant, index);
                let taken = match code & 0xf0 {
                    libc::BPF_JA => {
                        place = place.checked_add(constant as usize)?;
                        continue;
                    }
                    libc::BPF_JEQ => accumulator == other,
                    libc::BPF_JGT => accumulator > other,
                    libc::BPF_JGE => accumulator >= other,
                    libc::BPF_JSET => accumulator & other != 0,
                    _ => return None,
                };
                place += usize::from(if taken {
                    instruction.jt
                } else {
                    instruction.jf
                });
            }
            libc::BPF_RET => {
                return match code & 0x18 {
                    libc::BPF_K => Some(constant),
                    libc::BPF_A => Some(accumulator),
                    _ => None,
                };
            }
            _ => match code & 0xf8 {
                libc::BPF_TAX => index = accumulator,
                libc::BPF_TXA => accumulator = index,
                _ => return None,
            },
        }
    }
}

/// BPF_W | BPF_ABS: a word of the data.
const WORD: u32 = libc::BPF_W | libc::BPF_ABS;
/// BPF_W | BPF_LEN: the data's length.
const LENGTH: u32 = libc::BPF_W | libc::BPF_LEN;

fn operand(code: u32, constant: u32, index: u32) -> u32 {
    match code & libc::BPF_X {
        0 => constant,
        _ => index,
    }
}

fn calculate(operation: u32, left: u32, right: u32) -> Option<u32> {
    Some(match operation {
        libc::BPF_ADD => left.wrapping_add(right),
        libc::BPF_SUB => left.wrapping_sub(right),
        libc::BPF_MUL => left.wrapping_mul(right),
        libc::BPF_DIV => left.checked_div(right)?,
        libc::BPF_OR => left | right,
        libc::BPF_AND => left & right,
        libc::BPF_XOR => left ^ right,
        libc::BPF_LSH => left.wrapping_shl(right),
        libc::BPF_RSH => left.wrapping_shr(right),
        libc::BPF_NEG => left.wrapping_neg(),
        _ => return None,
    })
}

/// True if a filter allows a call.
pub fn allows(filter: &[libc::sock_filter], call: &Call) -> bool {
    let action = decide(filter, call).map(|it| it & libc::SECCOMP_RET_ACTION_FULL);
    matches!(
        action,
        Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG)
    )
}
