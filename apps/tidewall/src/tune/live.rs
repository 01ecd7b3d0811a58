//! Sets Bp and T of a live stack. Its process answers for itself, as to `tidewall stat`;
//! a manager's application asks the manager for T.

use std::io;
use std::time::Duration;

use tidewall::control::{self, Tuned};
use tidewall::tuning::{PolicyKind, ReceiveControl};

use crate::end::{Failure, Outcome, say_line};
use crate::serve::{budget, interval, policy};
use crate::stat::control::line;
use crate::stat::stacks;

/// Settings of receive control.
#[derive(clap::Args)]
pub struct Control {
    /// Policy that sets Bp and T of PID from now on, starting afresh
    #[arg(long, value_name = "NAME", value_parser = policy, requires = "process")]
    policy: Option<PolicyKind>,
    /// Largest Bp that the policy of PID may set, 2 to 3000; for napi, the Bp itself
    /// [default: as `serve`]
    #[arg(long, value_name = "FRAMES", value_parser = budget, requires = "process")]
    budget: Option<u32>,
    /// Longest T that the policy of PID may set, 0 to 1ms, in µs (or as 50us); for napi,
    /// the T itself [default: as `serve`]
    #[arg(long, value_name = "TIME", value_parser = interval, requires = "process")]
    interval: Option<Duration>,
}

/// Sets receive control of all stacks of a process, even if one of them refuses.
pub fn set(process: u32, wanted: &Control) -> Outcome {
    let request = control::tune_request(&ReceiveControl {
        policy: wanted.policy.unwrap_or_default(),
        budget: wanted.budget,
        interrupt_interval: wanted.interval,
    });
    let mut refused = Ok(());
    for path in stacks(Some(process))? {
        let answer = control::ask(&path, &request).map_err(|error| asking(process, &error))?;
        if answer.is_empty() {
            return Err(asking(process, &io::ErrorKind::ConnectionReset.into()));
        }
        let tuned: Tuned = serde_json::from_str(&answer).map_err(|error| {
            let path = path.display();
            Failure::answer(format!(
                "{path} answers in another form ({error}); use the tidewall command of the same version"
            ))
        })?;
        if let Some(error) = tuned.error {
            refused = Err(Failure::usage(format!("process {process}: {error}")));
        }
        for (number, queue) in tuned.queues.iter().enumerate() {
            say_line(&format!(
                "process {process} queue {number}: {}",
                line(queue)
            ))?;
        }
    }
    refused
}

fn asking(process: u32, error: &io::Error) -> Failure {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, PermissionDenied};
    match error.kind() {
        // A name in the abstract namespace has no permissions: its process hangs up.
        PermissionDenied | ConnectionReset | BrokenPipe => Failure::usage(format!(
            "process {process} answers its own user and user 0 only: sudo tidewall tune {process} …"
        )),
        _ => Failure::io(&format!("asking process {process}"), error),
    }
}
