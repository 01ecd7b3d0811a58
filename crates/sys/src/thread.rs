//! Short rustix calls that several crates share.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Duration {
    // These clocks start at zero.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// CLOCK_MONOTONIC, the clock of `bpf_ktime_get_ns`.
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

/// CPU time that the calling thread has used (CLOCK_THREAD_CPUTIME_ID).
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time that all threads of this process have used (CLOCK_PROCESS_CPUTIME_ID).
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Restricts the calling thread to one CPU.
///
/// # Errors
/// EINVAL for a CPU that does not exist.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Raises the soft limit of open files to `wanted`, or to the hard limit if that is
/// lower. Returns the resulting limit, which may have been higher before.
///
/// # Errors
/// Errors of `setrlimit`.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    // `None` is RLIM_INFINITY.
    let now = limit.current.unwrap_or(u64::MAX);
    let target = wanted.min(limit.maximum.unwrap_or(u64::MAX));
    if now >= target {
        return Ok(now);
    }
    limit.current = Some(target);
    setrlimit(Resource::Nofile, limit)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        let first = monotonic();
        assert!(first > Duration::ZERO && monotonic() >= first);
        let before = thread_time();
        while thread_time() == before {}
        assert!(thread_time() > before && process_time() > before);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        assert!(pin(1023).is_err());
        assert!(pin(usize::MAX).is_err());
    }

    #[test]
    fn open_files_that_are_allowed_already_change_nothing() {
        let now = raise_open_files(3).unwrap();
        assert_eq!(raise_open_files(now).unwrap(), now);
    }
}
