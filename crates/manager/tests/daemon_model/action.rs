//! The possible actions.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::device::Fault;
use crate::kernel::Bound;
use crate::world::{ADDRESSES, PORTS, STRANGERS, UIDS};

#[derive(Clone, Debug)]
pub enum Action {
    Connect(usize),
    /// With queues or without.
    Join(usize, bool),
    Bind {
        process: usize,
        address: usize,
        port: usize,
        tcp: bool,
        only_v6: bool,
        shares: bool,
        device: Bound,
        listens: bool,
    },
    Change(usize, Change),
    /// Any socket, its own or not.
    Own(usize, usize),
    /// A socket that is bound elsewhere, in another namespace, or none.
    OwnWrongly(usize, usize, u8),
    Disown(usize, usize),
    CloseSocket(usize),
    Lease(usize, bool),
    Return(usize, usize),
    ReturnForeign(usize, u16),
    Present(usize),
    /// A part of what was handed over to it outlives the application.
    Keep(usize),
    /// All such parts are gone.
    DropKept,
    Leave(usize),
    Die(usize),
    Garbage(usize, Vec<u8>),
    Inject(Fault),
    Kill,
    Wait(u16),
}

/// A process's change of its own socket, whether or not the manager has seen the socket.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Listen,
    Shut,
    Connect,
    Share(bool),
    BindToDevice(Bound),
}

fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        4 => Just(Bound::Nowhere),
        1 => Just(Bound::Here),
        1 => Just(Bound::Elsewhere),
    ]
}

pub fn action() -> impl Strategy<Value = Action> {
    let process = 0..UIDS.len();
    let change = prop_oneof![
        Just(Change::Listen),
        Just(Change::Shut),
        Just(Change::Connect),
        any::<bool>().prop_map(Change::Share),
        bound().prop_map(Change::BindToDevice),
    ];
    let fault = prop_oneof![
        (0..6u8).prop_map(Fault::Fail),
        (0..6u8).prop_map(Fault::FailAfter),
        (0..6u8).prop_map(Fault::Kill),
        // In the middle of a lease or its end.
        (0..250u8).prop_map(Fault::Kill),
        (0..250u8).prop_map(Fault::Fail),
    ];
    prop_oneof![
        6 => process.clone().prop_map(Action::Connect),
        6 => (process.clone(), any::<bool>()).prop_map(|(process, queues)| Action::Join(process, queues)),
        // As likely as everything that follows: the test is about who may own which of
        // them.
        16 => (
            0..UIDS.len() + STRANGERS.len(),
            0..ADDRESSES.len(),
            0..PORTS.len(),
            any::<[bool; 4]>(),
            bound(),
        )
            .prop_map(|(process, address, port, [tcp, only_v6, shares, listens], device)| {
                Action::Bind {
                    process,
                    address,
                    port,
                    tcp,
                    only_v6,
                    shares,
                    device,
                    listens,
                }
            }),
        6 => (0..8usize, change).prop_map(|(socket, change)| Action::Change(socket, change)),
        12 => (process.clone(), 0..8usize).prop_map(|(process, socket)| Action::Own(process, socket)),
        2 => (process.clone(), 0..8usize, 0..4u8)
            .prop_map(|(process, socket, how)| Action::OwnWrongly(process, socket, how)),
        3 => (process.clone(), 0..8usize)
            .prop_map(|(process, socket)| Action::Disown(process, socket)),
        2 => (0..8usize).prop_map(Action::CloseSocket),
        4 => (process.clone(), any::<bool>()).prop_map(|(process, tcp)| Action::Lease(process, tcp)),
        2 => (process.clone(), 0..2usize).prop_map(|(process, block)| Action::Return(process, block)),
        1 => (process.clone(), any::<u16>())
            .prop_map(|(process, first)| Action::ReturnForeign(process, first)),
        6 => process.clone().prop_map(Action::Present),
        2 => process.clone().prop_map(Action::Keep),
        1 => Just(Action::DropKept),
        1 => process.clone().prop_map(Action::Leave),
        3 => process.clone().prop_map(Action::Die),
        1 => (process, vec(any::<u8>(), 0..300))
            .prop_map(|(process, bytes)| Action::Garbage(process, bytes)),
        5 => fault.prop_map(Action::Inject),
        2 => Just(Action::Kill),
        3 => (0..3000u16).prop_map(Action::Wait),
    ]
}
