//! Anything in any order, while frames are lost.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use tidewall::{AtmSocket, Side};
use tidewall_device::memory::{Impairments, Side as End};

use super::{FAR, NEAR, assert_idle, call, connected, controlled, listen, number, pass, received};

/// A step of a test, at either end.
#[derive(Clone, Copy, Debug)]
enum Step {
    Call(bool),
    Accept(bool),
    /// Closes one of the sockets.
    Close(usize),
    Send(usize),
    Receive(usize),
    Wait(u16),
    /// So many frames of a hundred are lost from now on.
    Lose(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<bool>().prop_map(Step::Call),
        3 => any::<bool>().prop_map(Step::Accept),
        2 => any::<usize>().prop_map(Step::Close),
        3 => any::<usize>().prop_map(Step::Send),
        3 => any::<usize>().prop_map(Step::Receive),
        3 => (0u16..3000).prop_map(Step::Wait),
        1 => (0u8..60).prop_map(Step::Lose),
    ]
}

/// A socket, and which call it is of: the one whose caller says so in its first payload.
struct Held {
    socket: AtmSocket,
    /// For a caller its call, for a called end the call that a payload named.
    call: Option<u8>,
    caller: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is lost, a payload arrives on its own call or nowhere. When all sockets are
    /// closed, and time has passed, nothing is left of any call.
    #[test]
    fn calls_end_and_never_mix_whatever_is_lost(
        steps in prop::collection::vec(step(), 1..80),
        network in any::<bool>(),
    ) {
        let bed = controlled(if network { Side::Network } else { Side::User });
        let listeners = [
            listen(&bed.near, number(NEAR, 7), 4),
            listen(&bed.far, number(FAR, 7), 4),
        ];
        let mut held: VecDeque<Held> = VecDeque::new();
        let mut calls = 0u8;
        let lose = |percent: u8| {
            let impairments = Impairments {
                loss: f64::from(percent) / 100.0,
                ..Impairments::default()
            };
            for end in [End::A, End::B] {
                bed.link.set_impairments(end, impairments).unwrap();
            }
        };
        for step in steps {
            match step {
                Step::Call(from_near) => {
                    let (stack, to) = match from_near {
                        true => (&bed.near, number(FAR, 7)),
                        false => (&bed.far, number(NEAR, 7)),
                    };
                    calls += 1;
                    let socket = call(stack, to);
                    held.push_back(Held { socket, call: Some(calls), caller: true });
                }
                Step::Accept(near) => {
                    if let Ok((socket, _)) = listeners[usize::from(!near)].accept() {
                        socket.set_nonblocking(true).unwrap();
                        held.push_back(Held { socket, call: None, caller: false });
                    }
                }
                Step::Close(n) if !held.is_empty() => {
                    held.remove(n % held.len());
                }
                Step::Send(n) if !held.is_empty() => {
                    let n = n % held.len();
                    if let Some(call) = held[n].call {
                        let _ = held[n].socket.send(&[call, u8::from(held[n].caller)]);
                    }
                }
                Step::Receive(n) if !held.is_empty() => {
                    let n = n % held.len();
                    let mut buffer = [0; 8];
                    if let Ok(2) = held[n].socket.recv(&mut buffer) {
                        let [call, by_caller, ..] = buffer;
                        prop_assert_ne!(by_caller == 1, held[n].caller);
                        prop_assert!(held[n].call.is_none_or(|known| known == call));
                        held[n].call = Some(call);
                    }
                }
                Step::Wait(milliseconds) => pass(&bed, Duration::from_millis(milliseconds.into())),
                Step::Lose(percent) => lose(percent),
                Step::Close(_) | Step::Send(_) | Step::Receive(_) => {}
            }
        }
        drop(held);
        drop(listeners);
        lose(0);
        pass(&bed, Duration::from_secs(150));
        assert_idle(&bed);
        prop_assert_eq!(bed.outstanding(), 0);
        // And calls go on as before.
        let listener = listen(&bed.far, number(FAR, 7), 8);
        let [caller, called] = connected(&bed, &listener);
        caller.send(b"after all").unwrap();
        prop_assert_eq!(received(&called), b"after all");
    }
}
