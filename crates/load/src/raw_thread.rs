//! What a generator changes about its thread while it runs, and changes back.

use std::io;
use std::mem;

/// Puts the calling thread back as it was when dropped. To be dropped by the
/// thread that made it.
#[derive(Debug)]
pub(crate) struct ThreadSettings {
    affinity: Option<libc::cpu_set_t>,
    timer_slack: Option<libc::c_ulong>,
}

impl ThreadSettings {
    /// Moves the calling thread to processor `cpu`, if one is named, and makes
    /// its sleeps end as exactly as the kernel can (ordinary threads may sleep
    /// 50 µs longer).
    pub(crate) fn apply(cpu: Option<usize>) -> io::Result<Self> {
        let mut settings = ThreadSettings {
            affinity: None,
            timer_slack: None,
        };
        if let Some(cpu) = cpu {
            let before = affinity()?;
            set_affinity(&only(cpu)?).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot run on processor {cpu}: {error}"),
                )
            })?;
            settings.affinity = Some(before);
        }
        // SAFETY: PR_GET_TIMERSLACK takes no pointers.
        let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
        if let Ok(slack) = libc::c_ulong::try_from(slack) {
            set_timer_slack(1);
            settings.timer_slack = Some(slack);
        }
        Ok(settings)
    }
}

impl Drop for ThreadSettings {
    fn drop(&mut self) {
        if let Some(slack) = self.timer_slack {
            set_timer_slack(slack);
        }
        if let Some(affinity) = &self.affinity {
            // The processors may have gone meanwhile; nothing can be done then.
            let _ = set_affinity(affinity);
        }
    }
}

fn set_timer_slack(nanoseconds: libc::c_ulong) {
    // SAFETY: PR_SET_TIMERSLACK takes a number and no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0) };
}

fn only(cpu: usize) -> io::Result<libc::cpu_set_t> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(crate::spec::invalid(format!("there is no processor {cpu}")));
    }
    // SAFETY: a cpu_set_t is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `cpu` is under CPU_SETSIZE, so the bit lies within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    Ok(set)
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: a cpu_set_t is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most the size given into `set`.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(set)
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: `set` is valid for reads of the size given.
    let result = unsafe { libc::sched_setaffinity(0, mem::size_of_val(set), set) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors(set: &libc::cpu_set_t) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: the index is under CPU_SETSIZE.
            .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, set) })
            .collect()
    }

    #[test]
    fn the_thread_is_moved_and_put_back() {
        let before = processors(&affinity().unwrap());
        let cpu = *before.last().unwrap();
        let settings = ThreadSettings::apply(Some(cpu)).unwrap();
        assert_eq!(processors(&affinity().unwrap()), [cpu]);
        drop(settings);
        assert_eq!(processors(&affinity().unwrap()), before);
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        assert!(ThreadSettings::apply(Some(1023)).is_err());
        assert!(ThreadSettings::apply(Some(usize::MAX)).is_err());
    }
}
