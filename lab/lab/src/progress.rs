//! Progress, on the terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Receives the progress of a run.
pub trait Progress {
    /// Begins (again) an experiment of `steps` measurements.
    fn begin(&mut self, what: &str, steps: u64);
    /// Reports a finished measurement; `what` names it and its result.
    fn step(&mut self, what: &str);
    /// Reports something worth its own line.
    fn line(&mut self, text: &str);
    /// Ends the experiment.
    fn end(&mut self);
}

/// Returns a bar on a terminal, plain lines anywhere else; both on standard error.
pub fn automatic() -> Box<dyn Progress> {
    if std::io::stderr().is_terminal() {
        Box::new(Bar {
            bar: ProgressBar::hidden(),
        })
    } else {
        Box::new(Lines { done: 0, steps: 0 })
    }
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _what: &str, _steps: u64) {}
    fn step(&mut self, _what: &str) {}
    fn line(&mut self, _text: &str) {}
    fn end(&mut self) {}
}

struct Bar {
    bar: ProgressBar,
}

impl Progress for Bar {
    fn begin(&mut self, what: &str, steps: u64) {
        self.bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        // The template is a valid constant; the default bar would do as well.
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:.bold} {bar:30} {pos}/{len} {elapsed} {wide_msg}")
        {
            self.bar.set_style(style);
        }
        self.bar.set_prefix(what.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn step(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }

    fn line(&mut self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Lines {
    done: u64,
    steps: u64,
}

impl Progress for Lines {
    fn begin(&mut self, what: &str, steps: u64) {
        (self.done, self.steps) = (0, steps);
        eprintln!("{what}: {steps} measurements");
    }

    fn step(&mut self, what: &str) {
        self.done += 1;
        eprintln!("[{}/{}] {what}", self.done, self.steps);
    }

    fn line(&mut self, text: &str) {
        eprintln!("{text}");
    }

    fn end(&mut self) {}
}
