//! Selects the interface by which a segment leaves.

use std::net::SocketAddr;

use tidewall_protocol::tcp::FourTuple;
use tidewall_switch::Member;

use super::PEERS;

/// The interface of the peers, and that of each member.
pub struct Sides {
    /// The address to which peers connect.
    address: SocketAddr,
    members: Vec<(Member, usize)>,
}

impl Sides {
    pub const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            members: Vec::new(),
        }
    }

    /// Routes segments to this member by that interface from now on. Forgets members for
    /// which `is_there` returns false.
    pub fn set(&mut self, member: Member, side: usize, is_there: impl Fn(&Member) -> bool) {
        (self.members).retain(|(other, _)| *other != member && is_there(other));
        self.members.push((member, side));
    }

    /// Returns the members whose segments leave by an interface.
    pub fn members_on(&self, side: usize) -> impl Iterator<Item = Member> {
        let on_it = self.members.iter().filter(move |it| it.1 == side);
        on_it.map(|(member, _)| *member)
    }

    pub fn is_of_peer(&self, flow: &FourTuple) -> bool {
        flow.local == self.address
    }

    /// Returns the interface; `None` for a flow of no peer and no member.
    pub fn of(&self, flow: &FourTuple) -> Option<usize> {
        if self.is_of_peer(flow) {
            return Some(PEERS);
        }
        let is_to =
            |member: &Member| member.address == flow.remote && member.local == flow.local.ip();
        let side = self.members.iter().find(|(member, _)| is_to(member));
        side.map(|&(_, side)| side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_local_address_are_on_interfaces_of_their_own() {
        let member = |last: u8, local: u8| Member {
            address: SocketAddr::from(([10, 0, 0, last], 80)),
            local: [10, 0, 9, local].into(),
        };
        let to = |member: Member| FourTuple {
            local: (member.local, 61_000).into(),
            remote: member.address,
        };
        let mut sides = Sides::new("10.0.9.1:80".parse().unwrap());
        let all = [member(2, 1), member(3, 1), member(3, 2)];
        for (member, side) in all.into_iter().zip(1..) {
            sides.set(member, side, |_| true);
        }
        // Peers may also use a member's local address, at the virtual port.
        let peer = FourTuple {
            local: "10.0.9.1:80".parse().unwrap(),
            remote: "10.0.0.2:80".parse().unwrap(),
        };
        assert_eq!(sides.of(&peer), Some(PEERS));
        assert_eq!(all.map(|it| sides.of(&to(it))), [1, 2, 3].map(Some));
        // A member that is added again uses another interface; one that is gone is
        // forgotten.
        sides.set(all[0], 7, |it| *it != all[2]);
        assert_eq!(all.map(|it| sides.of(&to(it))), [Some(7), Some(2), None]);
    }
}
