//! LRP's worker: a computation that uses the memory of the processor's cache, and whose
//! progress shows its share of the processor.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::service::until_input_ends;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines handled between two counts: some microseconds.
const STEP: usize = 1024;

/// Runs a worker that computes and has no socket. Answers the line `steps`.
pub(super) fn compute(bytes: usize) -> anyhow::Result<()> {
    let steps = start(bytes)?;
    println!("ready");
    until_input_ends(|line| {
        if line == "steps" {
            println!("{}", steps.load(Ordering::Relaxed));
        }
        Ok(())
    })
}

/// Computes on a separate thread, forever; returns the count of its steps.
pub(super) fn start(bytes: usize) -> std::io::Result<Arc<AtomicU64>> {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = steps.clone();
    std::thread::Builder::new()
        .name("tw-compute".into())
        .spawn(move || {
            let mut memory = vec![[1u64; LINE / 8]; (bytes / LINE).max(1)];
            let mut sum = 1u64;
            let mut at = 0;
            loop {
                for _ in 0..STEP {
                    if let Some([first, ..]) = memory.get_mut(at) {
                        sum = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ *first;
                        *first = sum;
                    }
                    // A stride over several lines, so that no prefetcher does the cache's
                    // work.
                    at = (at + 37) % memory.len();
                }
                black_box(sum);
                counted.store(counted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        })?;
    Ok(steps)
}
