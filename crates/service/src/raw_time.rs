//! The processor time of a thread.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Processor time that the calling thread has used (CLOCK_THREAD_CPUTIME_ID).
pub(crate) fn thread_time() -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: `time` is room for a timespec, which the call fills.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    // SAFETY: zeroes are a valid timespec, whatever the call has done.
    let time = unsafe { time.assume_init() };
    match result {
        0 => Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        ),
        // There is no such clock: nothing is known.
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let before = thread_time();
        while thread_time() == before {
            crate::multiply(1000, 1.0);
        }
        assert!(thread_time() > before);
    }
}
