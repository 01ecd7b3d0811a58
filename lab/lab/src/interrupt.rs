//! Ctrl-C: checked between steps, so that everything is restored in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The user asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted; everything was put back")
    }
}

impl std::error::Error for Interrupted {}

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes SIGINT and SIGTERM set the flag that [`check`] reads. A second signal ends the
/// process at once; the restorer then restores settings. May be called again.
///
/// # Errors
/// The error of installing a handler.
pub(crate) fn install() -> std::io::Result<()> {
    let mut result = Ok(());
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order: the first signal finds the flag unset.
            let installed =
                signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
                    .and_then(|_| signal_hook::flag::register(signal, flag.clone()));
            if let Err(error) = installed {
                result = Err(error);
            }
        }
        flag
    });
    result
}

/// Returns true once the user has asked to stop.
pub(crate) fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if the user has asked to stop.
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check() -> Result<(), Interrupted> {
    if requested() {
        Err(Interrupted)
    } else {
        Ok(())
    }
}
