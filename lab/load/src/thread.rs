//! Changes the settings of a generator's thread while it runs, and restores them.

use std::io;
use std::num::NonZeroU64;

use rustix::thread::{
    CpuSet, current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};

/// Restores the calling thread's settings when dropped. The thread that created it must
/// drop it.
#[derive(Debug)]
pub(crate) struct ThreadSettings {
    affinity: Option<CpuSet>,
    timer_slack: Option<NonZeroU64>,
}

impl ThreadSettings {
    /// Moves the calling thread to processor `cpu`, if one is named, and makes its sleeps
    /// as exact as the kernel can (ordinary threads may sleep 50 µs longer).
    pub(crate) fn apply(cpu: Option<usize>) -> io::Result<Self> {
        let mut settings = ThreadSettings {
            affinity: None,
            timer_slack: None,
        };
        if let Some(cpu) = cpu {
            let before = sched_getaffinity(None)?;
            tidewall_sys::pin(cpu).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot run on processor {cpu}: {error}"),
                )
            })?;
            settings.affinity = Some(before);
        }
        settings.timer_slack = current_timer_slack().ok().and_then(NonZeroU64::new);
        set_timer_slack(Some(NonZeroU64::MIN));
        Ok(settings)
    }
}

impl Drop for ThreadSettings {
    fn drop(&mut self) {
        set_timer_slack(self.timer_slack);
        if let Some(affinity) = &self.affinity {
            // The processors may be gone by now; nothing can be done then.
            let _ = sched_setaffinity(None, affinity);
        }
    }
}

fn set_timer_slack(nanoseconds: Option<NonZeroU64>) {
    // No kernel without it is supported; sleeps would only be less exact.
    let _ = set_current_timer_slack(nanoseconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_moved_and_put_back() {
        let before = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU)
            .rfind(|&cpu| before.is_set(cpu))
            .unwrap();
        let settings = ThreadSettings::apply(Some(cpu)).unwrap();
        let moved = sched_getaffinity(None).unwrap();
        assert_eq!((moved.count(), moved.is_set(cpu)), (1, true));
        drop(settings);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        assert!(ThreadSettings::apply(Some(1023)).is_err());
        assert!(ThreadSettings::apply(Some(usize::MAX)).is_err());
    }
}
