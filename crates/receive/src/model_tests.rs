//! Channels and credit against simple models, on random sequences.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::channel::{Run, Sender};
use crate::credit::{Account, Adjust};
use crate::raw::test_frame;
use crate::slots::Slots;

proptest! {
    /// A channel is a queue.
    #[test]
    fn channel_behaves_like_a_queue(steps in prop::collection::vec((any::<bool>(), 1usize..5), 1..200)) {
        const FRAMES: u32 = 64;
        let slots = Slots::new(FRAMES, 1);
        let sender = Sender::new(&slots, 0);
        let mut receiver = sender.receiver();
        let mut free: VecDeque<u32> = (0..FRAMES).collect();
        let mut model = VecDeque::new();
        for (append, count) in steps {
            if append {
                let mut run = Run::default();
                for _ in 0..count {
                    if let Some(frame) = free.pop_front() {
                        run.add(&slots, test_frame(frame));
                        model.push_back(frame);
                    }
                }
                sender.append(&slots, run);
            } else {
                for _ in 0..count {
                    let frame = sender.remove(&slots, &mut receiver).map(|frame| frame.index());
                    prop_assert_eq!(frame, model.pop_front());
                    free.extend(frame);
                }
            }
            prop_assert_eq!(sender.looks_empty(&receiver), model.is_empty());
        }
    }

    /// Frames may be lost, late or reconciled too early. Once everything has been seen
    /// and consumed, exactly as much credit is back as was given.
    #[test]
    fn credit_balances(
        start in any::<u32>(),
        fates in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut account = Account::starting_at(start);
        let (mut head, mut tail) = (start, start);
        let mut published: VecDeque<u32> = VecDeque::new();
        let apply = |adjust, tail: &mut u32| match adjust {
            Adjust::Keep => {}
            Adjust::WriteOff(frames) => *tail = tail.wrapping_add(frames),
            Adjust::TakeBack => *tail = tail.wrapping_sub(1),
        };
        for (lost, receive, reconcile) in fates {
            head = head.wrapping_add(1);
            if !lost {
                published.push_back(head);
            }
            if receive && let Some(number) = published.pop_front() {
                apply(account.arrived(number), &mut tail);
                tail = tail.wrapping_add(1);
            }
            if reconcile {
                apply(account.caught_up(head), &mut tail);
            }
            let outstanding = head.wrapping_sub(tail) as i32;
            prop_assert!(outstanding >= 0, "more credit came back than was given");
        }
        for number in published {
            apply(account.arrived(number), &mut tail);
            tail = tail.wrapping_add(1);
        }
        apply(account.caught_up(head), &mut tail);
        prop_assert_eq!(head, tail);
    }
}
