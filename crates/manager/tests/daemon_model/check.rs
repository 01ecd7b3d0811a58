//! Invariants at any time, and at the end.

use std::collections::BTreeSet;

use tidewall_manager::daemon::PRESENT_WITHIN;
use tidewall_manager::daemon::journal::{ACTIVE, FREE};

use crate::action::Action;
use crate::kernel::Socket;
use crate::world::{UIDS, World, block_keys};
use crate::{LOOK_EVERY, RETRY};

impl World {
    pub fn check(&self) {
        let device = &self.device;
        let mut leased = [0; 4];
        let owners: BTreeSet<u16> = device.table.values().copied().collect();
        for (number, entry) in (0u16..).zip(&device.journal) {
            assert_eq!(entry.state == ACTIVE, device.made.contains(&number));
            if entry.state == FREE {
                assert!(!owners.contains(&number));
                continue;
            }
            assert_eq!(entry.state, ACTIVE, "left half way: {number}");
            assert_eq!(entry.queues > 0, device.queues == Some(number));
            let live = self.processes.iter().any(|process| {
                let joined = process.joined.as_ref();
                process.client.is_some() && joined.is_some_and(|of| of.token == entry.token)
            });
            let awaited = self
                .restarted
                .is_some_and(|at| self.now < at + PRESENT_WITHIN);
            assert!(live || awaited, "application {number} has no process");
            for (word, of) in leased
                .iter_mut()
                .zip(entry.leases[0].iter().zip(&entry.leases[1]))
            {
                *word |= of.0 | of.1;
            }
        }
        assert_eq!(device.reserved, leased);
        let robbed = self.robbed();
        assert!(robbed.is_none(), "{robbed:?} {:?}", device.table);
        // The manager's answers to a process stay true while it is connected and its
        // socket exists.
        for process in self
            .processes
            .iter()
            .filter(|process| process.client.is_some())
        {
            let Some(joined) = &process.joined else {
                continue;
            };
            let number = joined.application as u16;
            for (cookie, keys) in &process.owned {
                let sockets = device.kernel.sockets.iter();
                let mut open = sockets.filter(|it| it.process.is_some() && !it.changed);
                if open.any(|socket| socket.facts.cookie == *cookie) {
                    for key in keys {
                        assert_eq!(device.table.get(key), Some(&number), "{key:?}");
                    }
                }
            }
            for key in process.blocks.iter().flat_map(block_keys) {
                assert_eq!(device.table.get(&key), Some(&number), "{key:?}");
            }
        }
        for uid in UIDS {
            let of_user = || {
                device
                    .journal
                    .iter()
                    .filter(move |of| of.uid == uid && of.state == ACTIVE)
            };
            let has_ended = |token| of_user().all(|entry| entry.token != token);
            let kept = device.kept.iter();
            let kept = kept.filter(|(token, of)| **of == uid && has_ended(**token));
            assert!(of_user().count() + kept.count() <= 2);
            let blocks = of_user().flat_map(|entry| entry.leases.iter().flatten());
            assert!(blocks.map(|word| word.count_ones()).sum::<u32>() <= 2);
        }
    }

    /// A socket whose frames reach an untrusted application of another user.
    pub fn robbed(&self) -> Option<Socket> {
        let user = |application: u16| {
            let entry = self.device.journal.get(usize::from(application))?;
            (entry.private != 0).then_some(entry.uid)
        };
        self.device.kernel.robbed(&self.device.table, user)
    }

    pub fn end(&mut self) {
        self.device.fault = None;
        for process in 0..self.processes.len() {
            self.act(Action::Die(process));
        }
        self.advance(self.now + PRESENT_WITHIN + 2 * RETRY + LOOK_EVERY);
        assert!(self.device.table.is_empty(), "{:?}", self.device.table);
        assert!(self.device.made.is_empty());
        assert_eq!(self.device.queues, None);
        assert_eq!(self.device.reserved, [0; 4]);
        assert!(self.device.kernel.held.is_empty());
        assert!(!self.device.kernel.sockets.iter().any(|socket| socket.kept));
        assert!(self.device.journal.iter().all(|entry| entry.state == FREE));
        let counters = self.manager.counters();
        let kept = [
            counters.applications,
            counters.clients,
            counters.ports,
            counters.blocks,
        ];
        assert_eq!(kept, [0; 4]);
        assert_eq!(self.manager.deadline(), None);
    }
}
