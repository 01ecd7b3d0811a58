//! Detects a module that does not return: a loop over its own memory, which the machine
//! cannot detect (`tidewall_switch::modules`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::gettid;
use tidewall_switch::MemberId;
use tidewall_switch::modules::{
    Frame, Lost, MemberView, Members, Module, Modules, Verdict, Windows,
};

/// CPU time after which an event counts as endless. An event takes a millionth of this; a
/// thread that waits for a processor, or was stopped, uses none.
const LIMIT: Duration = Duration::from_secs(1);
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(100);

/// State that the forwarding thread shares with the watchdog.
#[derive(Default)]
struct Watch {
    /// Incremented when an event begins and when it ends: odd while one runs.
    events: AtomicU64,
    /// The thread that runs them; 0 before the first.
    thread: AtomicI32,
}

/// Returns the same modules, watched. When one has used a second of CPU time for one
/// event, calls `stuck` with that time, once, in a thread of the watchdog. The thread in
/// the event cannot be stopped; the only remedy is to end the process.
///
/// # Errors
/// The error of creating a thread.
pub fn watched(
    modules: Box<dyn Modules>,
    stuck: impl FnOnce(Duration) + Send + 'static,
) -> io::Result<Box<dyn Modules>> {
    watch(modules, LIMIT, LOOK, stuck)
}

fn watch(
    mut modules: Box<dyn Modules>,
    limit: Duration,
    look: Duration,
    stuck: impl FnOnce(Duration) + Send + 'static,
) -> io::Result<Box<dyn Modules>> {
    let watch = Arc::new(Watch::default());
    let looking = Arc::downgrade(&watch);
    std::thread::Builder::new()
        .name("tw-modules".to_owned())
        .spawn(move || {
            // The event that ran at the last check, and its thread's CPU time at the
            // first.
            let mut running = (0, Duration::ZERO);
            while let Some(watch) = looking.upgrade() {
                let event = watch.events.load(Ordering::Relaxed);
                // Between two events there is nothing to measure.
                let used = used(&watch).filter(|_| event % 2 == 1);
                if let Some(used) = used {
                    if running.0 != event {
                        running = (event, used);
                    }
                    let spent = used.saturating_sub(running.1);
                    if spent >= limit {
                        return stuck(spent);
                    }
                }
                drop(watch);
                std::thread::sleep(look);
            }
        })?;
    Ok(Box::new(move || -> Box<dyn Module> {
        let thread = gettid().as_raw_nonzero().get();
        watch.thread.store(thread, Ordering::Relaxed);
        let event = watch.begin();
        let module = modules.connect();
        drop(event);
        Box::new(Watched {
            module,
            watch: watch.clone(),
        })
    }))
}

/// Returns the CPU time of the thread that runs the modules (proc_pid_stat(5)).
fn used(watch: &Watch) -> Option<Duration> {
    /// Ticks of those times, on every architecture (USER_HZ).
    const TICK: Duration = Duration::from_millis(10);
    let thread = watch.thread.load(Ordering::Relaxed);
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // Behind the name, which may contain any bytes: the state is field 3, utime 14, stime
    // 15.
    let (_, fields) = text.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u32 = times.map_while(|it| it.parse::<u32>().ok()).sum();
    Some(TICK * ticks)
}

impl Watch {
    /// Begins an event, which lasts until the returned value is dropped, also by a panic.
    fn begin(&self) -> Event<'_> {
        self.count();
        Event(self)
    }

    /// Only the thread that runs the events writes.
    fn count(&self) {
        let events = self.events.load(Ordering::Relaxed);
        self.events.store(events.wrapping_add(1), Ordering::Relaxed);
    }
}

struct Event<'a>(&'a Watch);

impl Drop for Event<'_> {
    fn drop(&mut self) {
        self.0.count();
    }
}

struct Watched {
    module: Box<dyn Module>,
    watch: Arc<Watch>,
}

impl Module for Watched {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let _event = self.watch.begin();
        self.module.frame(frame, members)
    }

    fn ack(&mut self, member: MemberView) {
        let _event = self.watch.begin();
        self.module.ack(member);
    }

    fn member_up(&mut self, member: MemberId) {
        let _event = self.watch.begin();
        self.module.member_up(member);
    }

    fn member_down(&mut self, member: MemberId) -> Lost {
        let _event = self.watch.begin();
        self.module.member_down(member)
    }

    fn retire(&mut self, member: MemberId, state: u32) {
        let _event = self.watch.begin();
        self.module.retire(member, state);
    }

    fn windows(&self) -> Windows {
        let _event = self.watch.begin();
        self.module.windows()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use super::*;

    const SOME: Duration = Duration::from_millis(200);

    /// In its events: waits (0), panics (1), or loops until the flag is set.
    struct Slow(Arc<AtomicBool>);

    impl Module for Slow {
        fn frame(&mut self, _: Frame<'_>, _: Members<'_>) -> Verdict {
            Verdict::Reset
        }

        fn retire(&mut self, member: MemberId, _: u32) {
            match member.0 {
                0 => std::thread::sleep(2 * SOME),
                // Unlike panic!, it prints no backtrace, which takes longer than an event may.
                1 => resume_unwind(Box::new("a module's mistake")),
                _ => while !self.0.load(Ordering::Relaxed) {},
            }
        }
    }

    fn begin(end: &Arc<AtomicBool>) -> (Box<dyn Modules>, Receiver<Duration>) {
        let (found, finds) = channel();
        let end = end.clone();
        let modules = Box::new(move || Box::new(Slow(end.clone())) as Box<dyn Module>);
        let stuck = move |spent| found.send(spent).unwrap();
        let modules = watch(modules, SOME, Duration::from_millis(10), stuck).unwrap();
        (modules, finds)
    }

    #[test]
    fn an_event_that_loops_is_found() {
        let end = Arc::new(AtomicBool::new(false));
        let (mut modules, finds) = begin(&end);
        let looping = std::thread::spawn(move || modules.connect().retire(MemberId(2), 0));
        let spent = finds.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(spent >= SOME && !looping.is_finished());
        end.store(true, Ordering::Relaxed);
        looping.join().unwrap();
    }

    #[test]
    fn waiting_many_events_and_a_panic_are_no_loop() {
        let (mut modules, finds) = begin(&Arc::new(AtomicBool::new(true)));
        let mut module = modules.connect();
        module.retire(MemberId(0), 0);
        // Each ends at once; together they take longer.
        let begun = tidewall_sys::thread_time();
        while tidewall_sys::thread_time() - begun < 2 * SOME {
            module.retire(MemberId(2), 0);
        }
        catch_unwind(AssertUnwindSafe(|| module.retire(MemberId(1), 0))).unwrap_err();
        let begun = Instant::now();
        while begun.elapsed() < 2 * SOME {}
        drop((module, modules));
        // The watchdog has ended without a finding.
        let left = finds.recv_timeout(Duration::from_secs(60));
        assert!(left.is_err_and(|it| it == std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
