//! One thread that polls the devices of several stacks, and sleeps on all of them.

use super::*;
use crate::core::Core;

/// The pause before the next look at a device that has frames and no room for more, or
/// another device's frames to return.
const SEND_AGAIN: Duration = Duration::from_millis(1);
/// The pause before the next look at a device that is down.
const DOWN: Duration = Duration::from_millis(100);

/// The way in which a thread waits for several devices.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// Longest sleep; `None`: until frames arrive.
    pub most: Option<Duration>,
    /// Whether it polls before it sleeps.
    pub spin: Option<&'a Spin>,
    /// Frames are still on their way, which the caller must handle.
    pub sending: bool,
}

/// Polls every device of `cores` and sorts the frames that have come. If there are none,
/// it polls on for a time if `wait` asks for it. Then it sleeps until a device has
/// something, which `has_input` reports, and sorts that. A device that is down, or whose
/// interface is gone, does not keep frames of the others waiting. The threads of host
/// architectures are not supported here.
///
/// # Errors
/// ENODEV when no interface is left; errors of a device; EINTR.
pub fn wait_for_frames(
    cores: &[&Core],
    wait: Wait<'_>,
    has_input: impl Fn() -> bool,
) -> io::Result<()> {
    let Wait {
        most,
        spin,
        sending,
    } = wait;
    if cores.iter().any(|core| core.receiver.is_polling()) {
        // A thread that finds many frames returns when they are processed.
        let mut frames = 0;
        for core in cores.iter().filter(|core| core.netdev.check().is_ok()) {
            frames += unless_down(core.receiver.round_and_return(core))?.map_or(0, |it| it.frames);
        }
        if frames > 0 {
            return Ok(());
        }
    }
    if let Some(spin) = spin.filter(|_| most != Some(Duration::ZERO)) {
        let end = Instant::now() + most.map_or(spin.most, |it| it.min(spin.most));
        while Instant::now() < end {
            for core in cores {
                unless_down(core.receiver.poll_and_return(core))?;
            }
            if has_input() {
                spin.ended(true);
                return Ok(());
            }
        }
        spin.ended(false);
    }
    let mut polls_again = true;
    while polls_again {
        polls_again = false;
        let (mut frames, mut awake) = (0, false);
        let mut timeout = most;
        let mut at_most = |time: Duration| timeout = Some(timeout.map_or(time, |it| it.min(time)));
        let mut up = Vec::with_capacity(cores.len());
        let is_there = |core: &&&Core| core.netdev.check().is_ok();
        if cores.iter().filter(is_there).count() == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for core in cores.iter().filter(is_there) {
            let Some(progress) = unless_down(core.receiver.round(core, true))? else {
                at_most(DOWN);
                continue;
            };
            up.push(core);
            frames += progress.frames;
            let waiting = core.receiver.waiting();
            awake |= !progress.stopped
                && match waiting {
                    Waiting::Poll => true,
                    Waiting::Sleep(Duration::ZERO) => !progress.armed,
                    Waiting::Sleep(_) => false,
                };
            if progress.stopped {
                at_most(STOPPED_SLEEP);
            }
            if progress.missing {
                at_most(RECONCILE_AFTER);
            }
        }
        if frames > 0 || awake || most == Some(Duration::ZERO) {
            return Ok(());
        }
        if sending {
            at_most(SEND_AGAIN);
        }
        for core in &up {
            if let Waiting::Sleep(interval) = core.receiver.waiting() {
                polls_again |= core.receiver.set_interrupt_interval(interval);
            }
        }
        if polls_again {
            continue;
        }
        let queues = up.iter().flat_map(|core| &core.receiver.queues);
        let descriptors: Vec<_> = queues
            .flat_map(|queue| {
                let mut poller = queue.poller.lock();
                poller.refill_to_sleep();
                poller.descriptors()
            })
            .collect();
        if let Some(core) = cores.first() {
            core.clock
                .sleep_on(&descriptors, timeout, None, &mut Vec::new())?;
        }
        for core in &up {
            core.receiver.collect(core);
        }
    }
    Ok(())
}

/// `None` for a device that is down, or that is gone, which is soon known.
fn unless_down<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    let passes = [libc::ENETDOWN, libc::ENODEV, libc::ENXIO].map(Some);
    match result {
        Err(error) if passes.contains(&error.raw_os_error()) => Ok(None),
        other => other.map(Some),
    }
}
