//! The shared structures under every interleaving (and every ordering the
//! memory model allows) that loom can construct. Run by `make loom`.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::channel::{Run, Sender};
use crate::credit::{Account, Adjust};
use crate::free::{Chain, FreeStack};
use crate::raw::test_frame;
use crate::slots::Slots;

fn append(sender: &Sender, slots: &Slots, frames: &[u32]) {
    let mut run = Run::default();
    for &frame in frames {
        run.add(slots, test_frame(frame));
    }
    sender.append(slots, run);
}

/// One appender, one receiver: every frame once, in order.
#[test]
fn loom_channel_keeps_order_and_loses_nothing() {
    loom::model(|| {
        let slots = Arc::new(Slots::new(4, 1));
        let sender = Arc::new(Sender::new(&slots, 0));
        let mut receiver = sender.receiver();
        let (their_slots, their_sender) = (slots.clone(), sender.clone());
        let poller = thread::spawn(move || {
            append(&their_sender, &their_slots, &[0]);
            append(&their_sender, &their_slots, &[1, 2]);
        });
        let mut seen = Vec::new();
        for _ in 0..2 {
            while let Some(frame) = sender.remove(&slots, &mut receiver) {
                seen.push(frame.index());
            }
            thread::yield_now();
        }
        poller.join().unwrap();
        while let Some(frame) = sender.remove(&slots, &mut receiver) {
            seen.push(frame.index());
        }
        assert_eq!(seen, [0, 1, 2]);
        assert!(sender.looks_empty(&receiver));
    });
}

/// Frames put back by two threads while a third takes: each is taken once.
#[test]
fn loom_free_stack_returns_each_frame_once() {
    loom::model(|| {
        let slots = Arc::new(Slots::new(4, 0));
        let stack = Arc::new(FreeStack::default());
        let putters: Vec<_> = [[0u32, 1], [2, 3]]
            .into_iter()
            .map(|frames| {
                let (slots, stack) = (slots.clone(), stack.clone());
                thread::spawn(move || {
                    let mut chain = Chain::default();
                    for frame in frames {
                        chain.add(&slots, test_frame(frame));
                    }
                    stack.put_chain(&slots, chain);
                })
            })
            .collect();
        let mut taken = Vec::new();
        stack.take_all(&slots, &mut taken);
        for putter in putters {
            putter.join().unwrap();
        }
        stack.take_all(&slots, &mut taken);
        let mut indices: Vec<u32> = taken.iter().map(|frame| frame.index()).collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2, 3]);
    });
}

/// The driver admits three frames, of which the ring loses one, while the
/// receiver reconciles at any moment. Whatever the interleaving, the driver
/// never sees more credit than it gave, and in the end all of it is back.
#[test]
fn loom_credit_never_leaks_and_never_overflows() {
    for lost in 1..=3u32 {
        loom::model(move || {
            let head = Arc::new(AtomicU32::new(0));
            let tail = Arc::new(AtomicU32::new(0));
            let ring = Arc::new(Mutex::new(Vec::new()));
            let (their_head, their_tail, their_ring) = (head.clone(), tail.clone(), ring.clone());
            let driver = thread::spawn(move || {
                for number in 1..=3u32 {
                    let tail = their_tail.load(Ordering::Acquire);
                    let occupancy = (number - 1).wrapping_sub(tail) as i32;
                    assert!((0..3).contains(&occupancy), "driver saw {occupancy}");
                    their_head.store(number, Ordering::Release);
                    if number != lost {
                        their_ring.lock().unwrap().push(number);
                    }
                }
            });
            let mut account = Account::default();
            let adjust_credit = |adjust| match adjust {
                Adjust::Keep => {}
                Adjust::WriteOff(frames) => {
                    tail.fetch_add(frames, Ordering::AcqRel);
                }
                Adjust::TakeBack => {
                    tail.fetch_sub(1, Ordering::AcqRel);
                }
            };
            let mut round = || {
                let before = head.load(Ordering::Acquire);
                let arrived = std::mem::take(&mut *ring.lock().unwrap());
                let consumed = arrived.len() as u32;
                for number in arrived {
                    adjust_credit(account.arrived(number));
                }
                adjust_credit(account.caught_up(before));
                tail.fetch_add(consumed, Ordering::AcqRel);
            };
            round();
            driver.join().unwrap();
            round();
            assert_eq!(tail.load(Ordering::Acquire), 3);
        });
    }
}
