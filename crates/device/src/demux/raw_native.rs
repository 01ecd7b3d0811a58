//! The driver program compiled for the processor (`bpf/native.c`), over [`Tables`].

use std::ffi::c_int;

use super::drive::{Answer, Verdict};
use super::ends::Ends;
use super::layout::{
    Application, Class, Counter, Device, FragmentKey, Metadata, OwnerKey, QUEUES, Queue,
};
use super::{ApplicationTables, Tables, TrustedTables};

/// Ethernet, IPv6 and TCP header with the options of a cookie answer.
pub(super) const ANSWER_MAX: usize = 14 + 40 + 40;

/// `struct native_tables`.
#[repr(C)]
struct Program<'a> {
    device: &'a Device,
    queues: &'a [Queue; QUEUES],
    application: &'a Application,
    owner: extern "C" fn(&TrustedTables, &OwnerKey, &mut u32) -> c_int,
    decision: extern "C" fn(&TrustedTables, &FragmentKey, &mut u32) -> c_int,
    decide: extern "C" fn(&TrustedTables, &FragmentKey, u32),
    maps: &'a TrustedTables,
}

/// `struct native_result`.
#[repr(C)]
struct Outcome {
    cause: u32,
    class: u32,
    length: u32,
    value: u32,
    metadata: Metadata,
    answer: [u8; ANSWER_MAX],
}

unsafe extern "C" {
    fn tidewall_drive(
        tables: &Program<'_>,
        frame: *mut u8,
        length: u32,
        queue: u32,
        now: u64,
        outcome: &mut Outcome,
    ) -> u32;
    fn tidewall_classify(
        application: &Application,
        key: &[u64; 2],
        frame: *const u8,
        length: u32,
        metadata: &mut Metadata,
    ) -> u32;
    safe fn tidewall_flow_hash(key: &[u64; 2], ends: &Ends) -> u64;
    safe fn tidewall_local_slot(high: u64, low: u64) -> u32;
}

/// Writes a value to its destination, if there is one.
fn give(found: Option<u32>, place: &mut u32) -> c_int {
    *place = found.unwrap_or(0);
    found.is_some().into()
}

extern "C" fn owner(tables: &TrustedTables, key: &OwnerKey, value: &mut u32) -> c_int {
    give(tables.owner_by_address(key), value)
}

extern "C" fn decision(tables: &TrustedTables, key: &FragmentKey, value: &mut u32) -> c_int {
    give(tables.fragment_decision(key), value)
}

extern "C" fn decide(tables: &TrustedTables, key: &FragmentKey, value: u32) {
    tables.decide_fragments(*key, value);
}

/// Decides a frame's destination, for a queue in the tables.
pub(super) fn drive(tables: &Tables, queue: u32, frame: &mut [u8], now_ns: u64) -> Verdict {
    const PASS: u32 = 2;
    let mut outcome = Outcome {
        cause: 0,
        class: 0,
        length: 0,
        value: 0,
        metadata: Metadata::default(),
        answer: [0; ANSWER_MAX],
    };
    let program = Program {
        device: tables.trusted.map(),
        queues: tables.trusted.queues(),
        application: tables.embedded.map(),
        owner,
        decision,
        decide,
        maps: &tables.trusted,
    };
    // SAFETY: the program accesses three things and keeps no pointer.
    //
    // - The frame's bytes, each after a comparison with their end, on which the kernel's
    //   verifier insists.
    // - The tables, with indices bounded for the same reason, and only fields that are
    //   atomics here.
    // - The outcome.
    let action = unsafe {
        tidewall_drive(
            &program,
            frame.as_mut_ptr(),
            frame.len() as u32,
            queue,
            now_ns,
            &mut outcome,
        )
    };
    match Counter::from_index(outcome.cause) {
        Some(Counter::Channel) => Verdict::Channel(outcome.metadata),
        Some(Counter::Raw) => Verdict::Raw(outcome.metadata),
        Some(Counter::NapiProbe) => Verdict::NapiProbe,
        Some(Counter::CookieSent) => Verdict::Answered(Answer {
            bytes: outcome.answer,
            length: outcome.length as usize,
        }),
        _ if action == PASS => Verdict::Kernel {
            class: Class::from_index(outcome.class).unwrap_or(Class::Other),
        },
        counter => Verdict::Drop {
            counter: counter.unwrap_or(Counter::Frames),
        },
    }
}

/// Returns the channel of a frame that was not demultiplexed, 0 for none; completes its
/// metadata.
pub(super) fn classify(tables: &ApplicationTables, frame: &[u8], metadata: &mut Metadata) -> u32 {
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let (map, start) = (tables.map(), frame.as_ptr());
    // SAFETY: as in `drive`; `length` is at most the frame's, and the frame is not
    // written.
    unsafe { tidewall_classify(map, &tables.hash_key, start, length, metadata) }
}

/// SipHash-1-3 of a flow (`bpf/flows.h`).
pub(super) fn flow_hash(key: [u64; 2], ends: &Ends) -> u64 {
    tidewall_flow_hash(&key, ends)
}

/// Slot at which probing for a local address begins (`bpf/owners.h`).
pub(super) fn local_slot([high, low]: [u64; 2]) -> usize {
    tidewall_local_slot(high, low) as usize
}
