//! Progress, on the terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Who hears how a run goes.
pub trait Progress {
    /// An experiment of `steps` measurements begins (again).
    fn begin(&mut self, what: &str, steps: u64);
    /// A measurement is done; `what` says which and what it gave.
    fn step(&mut self, what: &str);
    /// Something worth a line of its own.
    fn line(&mut self, text: &str);
    /// The experiment is over.
    fn end(&mut self);
}

/// A bar on a terminal, plain lines anywhere else; both on standard error.
pub fn automatic() -> Box<dyn Progress> {
    if std::io::stderr().is_terminal() {
        Box::new(Bar {
            bar: ProgressBar::hidden(),
        })
    } else {
        Box::new(Lines { done: 0, steps: 0 })
    }
}

/// Says nothing.
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
        // The template is ours and valid; the default bar would do as well.
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
