//! The tasks of peer and members in a case.

use std::net::SocketAddr;
use std::time::Duration;

use super::star::sides;
use super::{Case, Load};
use crate::worker::{
    Child, FrameJob, FrameRole, FrameSegment, Job, Mix, Responses, SegmentCounts, SegmentJob,
    StorageJob, StorageRole,
};

/// Longest time that an end may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

impl Case {
    /// Starts members and peer; the peer connects to `address`. Without members, the
    /// peer's process plays both roles.
    pub(super) fn ends(
        &self,
        addresses: Vec<SocketAddr>,
        address: SocketAddr,
    ) -> (Option<Job>, Job) {
        let (outstanding, mix) = match self.load {
            Load::Frames => return self.frame_ends(&addresses, address),
            Load::Segments => {
                let job = SegmentJob {
                    sides: sides(self.connections),
                    server: address,
                    segment: self.segment(),
                };
                return (None, Job::Segments(job));
            }
            Load::Requests(outstanding, mix) => (outstanding, mix),
            Load::OneAtATime => (1, Mix::Metadata),
        };
        let client = StorageRole::Client {
            server: address,
            connections: self.connections,
            outstanding,
            mix,
        };
        let [nodes, client] = [StorageRole::Nodes(addresses), client].map(|role| {
            Job::Storage(StorageJob {
                role,
                piece: self.segment,
            })
        });
        (Some(nodes), client)
    }

    fn segment(&self) -> FrameSegment {
        FrameSegment {
            frames: self.frames,
            size: self.size(),
        }
    }

    fn frame_ends(&self, addresses: &[SocketAddr], address: SocketAddr) -> (Option<Job>, Job) {
        let gives = Some(self.segment());
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
        (Some(Job::Frames(members)), Job::Frames(peer))
    }

    /// Returns the counts of the ends so far.
    pub(super) fn count(
        &self,
        peer: &mut Child,
        members: Option<&mut Child>,
    ) -> anyhow::Result<Count> {
        Ok(match (self.load, members) {
            (Load::Frames, Some(members)) => {
                let taker = if self.outbound { peer } else { members };
                let counts: Vec<u64> = taker.ask_for("bytes", ANSWER)?;
                Count {
                    count: counts.iter().sum(),
                    ..Count::default()
                }
            }
            (Load::Segments | Load::Frames, _) => {
                let counts: SegmentCounts = peer.ask_for("frames", ANSWER)?;
                Count {
                    count: counts.frames,
                    idle: counts.idle,
                    repeated: counts.repeated,
                    ..Count::default()
                }
            }
            (Load::Requests(..) | Load::OneAtATime, _) => {
                let responses: Responses = peer.ask_for("responses", ANSWER)?;
                Count {
                    count: responses.count,
                    median_us: responses.median_us,
                    ..Count::default()
                }
            }
        })
    }
}

/// The counts of a case's ends so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Bytes of frames that arrived, answered requests, or frames.
    pub(super) count: u64,
    /// Median time of a request, µs.
    pub(super) median_us: f64,
    /// As in [`SegmentCounts`].
    pub(super) idle: u64,
    pub(super) repeated: u64,
}
