//! `TCP_DEFER_ACCEPT`: a program passes seconds; a listener counts timeouts of its answer
//! to a SYN, as Linux does.

use super::half_open::timeout;

/// The number of timeouts of an answer that cover `seconds`, at most 255; 0 for zero and
/// less.
pub fn timeouts_of(seconds: i32) -> u8 {
    let (mut count, mut past) = (0u8, 0);
    while u64::try_from(seconds).is_ok_and(|seconds| seconds > past) && count < u8::MAX {
        past += timeout(count).as_secs();
        count += 1;
    }
    count
}

/// The seconds that `timeouts` cover.
pub fn seconds_of(timeouts: u8) -> i32 {
    let seconds: u64 = (0..timeouts).map(|count| timeout(count).as_secs()).sum();
    i32::try_from(seconds).unwrap_or(i32::MAX)
}
