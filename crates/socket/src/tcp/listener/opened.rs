//! Connections that acknowledgments of cookies have opened while more frames waited.
//!
//! A cookie is valid for a connection each time that it arrives. A waiting client
//! retransmits, and the copies are in the listener's channel. One of them opens the
//! connection; the others may still be there when it has ended. They must not open it again.

use std::collections::VecDeque;

use tidewall_protocol::tcp::FourTuple;

/// The connections of one queue, kept as long as frames may wait that arrived before.
pub(super) struct Opened {
    /// Frames that the channel holds.
    limit: usize,
    /// Frames taken out of the channel so far.
    taken: u64,
    /// Flows, each with the number of frames taken out before it.
    flows: VecDeque<(u64, FourTuple)>,
}

impl Opened {
    pub(super) fn new(limit: u32) -> Self {
        Opened {
            limit: limit as usize,
            taken: 0,
            flows: VecDeque::new(),
        }
    }

    /// Counts a frame taken out of the channel.
    pub(super) fn take_one(&mut self) {
        self.taken += 1;
        while let Some(&(before, _)) = self.flows.front()
            && self.taken - before > self.limit as u64
        {
            self.flows.pop_front();
        }
    }

    /// Called when the channel is empty.
    pub(super) fn clear(&mut self) {
        self.flows.clear();
    }

    pub(super) fn enter(&mut self, flow: FourTuple) {
        if self.flows.len() == self.limit {
            self.flows.pop_front();
        }
        self.flows.push_back((self.taken, flow));
    }

    pub(super) fn contains(&self, flow: &FourTuple) -> bool {
        self.flows.iter().any(|(_, opened)| opened == flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_known_while_frames_may_wait_that_came_before() {
        let flow = |port| FourTuple {
            local: ([10, 0, 0, 2], 80).into(),
            remote: ([10, 0, 0, 1], port).into(),
        };
        let mut opened = Opened::new(2);
        opened.take_one();
        opened.enter(flow(1));
        opened.take_one();
        opened.enter(flow(2));
        opened.take_one();
        assert!(opened.contains(&flow(1)) && opened.contains(&flow(2)));
        opened.take_one();
        assert!(!opened.contains(&flow(1)) && opened.contains(&flow(2)));
        opened.clear();
        assert!(!opened.contains(&flow(2)));
    }
}
