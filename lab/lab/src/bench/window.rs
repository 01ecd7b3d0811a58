//! The account of a service over the measured time only.

use crate::worker::Account;

/// The fate of packets between the beginning of the measured time and the load's end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// Packets/s that found the buffer of their socket full.
    pub(crate) overflow: f64,
    /// Rounds/s of receiving, and those that used up their budget.
    pub(crate) rounds: f64,
    pub(crate) exhausted: f64,
    /// Wake-ups/s by the device.
    pub(crate) interrupts: f64,
    /// Receive control at the end.
    pub(crate) control: Option<tidewall::snapshot::ControlSnapshot>,
}

impl Window {
    /// Returns the difference of two accounts, `seconds` apart.
    pub(super) fn between(first: &Account, last: &Account, seconds: f64) -> Self {
        let rate = |of: &dyn Fn(&Account) -> u64| {
            of(last).saturating_sub(of(first)) as f64 / seconds.max(1e-9)
        };
        let control = |of: fn(&tidewall::snapshot::ControlSnapshot) -> u64| {
            move |account: &Account| account.control.as_ref().map_or(0, of)
        };
        Window {
            overflow: rate(&Account::overflowed),
            rounds: rate(&|account| account.rounds),
            exhausted: rate(&control(|control| control.exhausted_rounds)),
            interrupts: rate(&control(|control| control.interrupts)),
            control: last.control.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Drops;

    #[test]
    fn a_window_is_the_difference_of_two_accounts() {
        let account = |overflowed, rounds, interrupts| Account {
            drops: Drops::from([("channel".to_owned(), overflowed)]),
            rounds,
            control: Some({
                let mut control = tidewall::snapshot::ControlSnapshot::default();
                control.interrupts = interrupts;
                control.exhausted_rounds = rounds / 2;
                control.budget = 75;
                control
            }),
        };
        let window = Window::between(&account(10, 100, 5), &account(20, 300, 6), 0.5);
        assert_eq!(window.overflow, 20.0);
        assert_eq!((window.rounds, window.exhausted), (400.0, 200.0));
        assert_eq!(window.interrupts, 2.0);
        assert_eq!(window.control.unwrap().budget, 75);
    }
}
