//! Circuits of unprivileged applications:
//! - permanent ones
//! - calls through one manager, and over a link between two
//! - the leftovers of killed processes
//! - calls whose signalling is disturbed

mod ends;
#[path = "../../../../crates/wire/tests/judge/mod.rs"]
mod judge;
#[path = "../../../../crates/tidewall/tests/signals/raw_signals.rs"]
#[allow(dead_code, reason = "a part is used")]
mod raw_signals;
mod relay;
#[path = "../support/mod.rs"]
mod support;

use support::*;

#[test]
fn permanent_circuits_are_those_that_are_granted() {
    run_with_peer("calls::permanent_circuits_are_those_that_are_granted", 60);
}

#[test]
fn private_applications_of_one_manager_call_each_other() {
    run("calls::private_applications_of_one_manager_call_each_other");
}

#[test]
fn a_manager_of_threads_does_the_same() {
    run("calls::a_manager_of_threads_does_the_same");
}

#[test]
fn applications_call_each_other_over_a_link() {
    run_with_peer("calls::applications_call_each_other_over_a_link", 120);
}

#[test]
fn calls_outlive_their_manager() {
    run_with_peer("calls::calls_outlive_their_manager", 120);
}

#[test]
fn callers_killed_at_any_point_leave_nothing() {
    let limit = 60 + killed_callers() / 10;
    run_with_peer("calls::callers_killed_at_any_point_leave_nothing", limit);
}

#[test]
fn a_signal_ends_waiting() {
    run_with_peer("faults::a_signal_ends_waiting", 60);
}

#[test]
fn closes_cross() {
    run_with_gap("faults::closes_cross", 60);
}

#[test]
fn callers_give_up_while_they_are_answered() {
    run_with_peer("faults::callers_give_up_while_they_are_answered", 60);
}

#[test]
fn signalling_is_lost_and_late() {
    run_with_gap("faults::signalling_is_lost_and_late", 180);
}

#[test]
fn managers_die_amid_calls() {
    run_with_peer("faults::managers_die_amid_calls", 120);
}

#[test]
fn tshark_reads_what_managers_say() {
    run_with_gap("captures::tshark_reads_what_managers_say", 60);
}

#[test]
fn sockets_of_c_call_through_one_manager() {
    run("c_face::sockets_of_c_call_through_one_manager");
}

#[test]
fn sockets_of_c_call_over_a_link() {
    run_with_peer("c_face::sockets_of_c_call_over_a_link", 90);
}

#[test]
fn sockets_of_c_know_where_there_is_no_way() {
    run("c_face::sockets_of_c_know_where_there_is_no_way");
}

/// Returns how many callers are killed: 10,000 take some minutes.
fn killed_callers() -> u32 {
    let text = std::env::var("TIDEWALL_KILLED_CALLERS").ok();
    text.map_or(60, |text| text.parse().expect("a number"))
}

mod inside {
    mod c_face;
    mod calls;
    mod captures;
    mod faults;

    /// The process that [`crate::ends::End::serve`] starts.
    #[test]
    #[ignore = "started by the tests"]
    fn serve() {
        crate::ends::serve();
    }
}
