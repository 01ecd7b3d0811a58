//! What peer and members do in a case.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Case, Load};
use crate::worker::{
    Child, FrameJob, FrameRole, FrameSegment, Job, Mix, Responses, StorageJob, StorageRole,
};

/// How long an end may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

impl Case {
    /// What members and peer are, of whom the peer connects to `address`.
    pub(super) fn ends(&self, addresses: Vec<SocketAddr>, address: SocketAddr) -> [Job; 2] {
        let (outstanding, mix) = match self.load {
            Load::Frames => return self.frame_ends(&addresses, address),
            Load::Requests(outstanding, mix) => (outstanding, mix),
            Load::OneAtATime => (1, Mix::Metadata),
        };
        let client = StorageRole::Client {
            server: address,
            connections: self.connections,
            outstanding,
            mix,
        };
        [StorageRole::Nodes(addresses), client].map(|role| {
            Job::Storage(StorageJob {
                role,
                piece: self.segment,
            })
        })
    }

    fn frame_ends(&self, addresses: &[SocketAddr], address: SocketAddr) -> [Job; 2] {
        let gives = Some(FrameSegment {
            frames: self.frames,
            size: self.size(),
        });
        let slow = |(number, &address): (usize, &SocketAddr)| {
            let slowed = if number == 0 { self.slowed_us } else { 0 };
            (address, slowed)
        };
        let members = FrameJob {
            role: FrameRole::Members(addresses.iter().enumerate().map(slow).collect()),
            gives: gives.filter(|_| self.outbound),
        };
        let peer = FrameJob {
            role: FrameRole::Peer(address, self.connections),
            gives: gives.filter(|_| !self.outbound),
        };
        [members, peer].map(Job::Frames)
    }

    /// Bytes that have come so far, or requests that were answered.
    pub(super) fn count(&self, peer: &mut Child, members: &mut Child) -> anyhow::Result<Responses> {
        if self.load != Load::Frames {
            return peer.ask_for("responses", ANSWER);
        }
        let taker = if self.outbound { peer } else { members };
        let counts: Vec<u64> = taker.ask_for("bytes", ANSWER)?;
        Ok(Responses {
            count: counts.iter().sum(),
            median_us: 0.0,
        })
    }
}
