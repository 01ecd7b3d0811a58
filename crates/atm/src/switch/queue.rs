//! The queue of a port and priority: how many of its places are used, kept and free, and
//! which circuits have cells in it. The cells themselves are stored with their circuits.

use std::collections::VecDeque;

use tidewall_wire::atm::{CELL_PAYLOAD_LEN, PayloadType};

use super::{CELLS_OF_CIRCUIT, DropReason, RouteError};

/// A waiting cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) payload_type: PayloadType,
    pub(super) low_priority: bool,
    pub(super) payload: [u8; CELL_PAYLOAD_LEN],
}

/// The state of a circuit's PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PduState {
    /// None is in progress.
    None,
    /// All of it so far was accepted. A place is kept for its last cell.
    Passing,
    /// A part of it was accepted and the next cell had no room. It is dropped up to its
    /// last cell, for which a place is kept.
    Partial,
    /// Nothing of it was accepted, and nothing will be.
    Refused,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    /// Waiting cells.
    len: usize,
    /// Places kept for the last cells of PDUs in progress. `len + kept` is at most
    /// `limit`.
    kept: usize,
    /// Circuits that may have cells here.
    circuits: usize,
    /// Circuits that have cells here, the next to be served first.
    active: VecDeque<usize>,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            len: 0,
            kept: 0,
            circuits: 0,
            active: VecDeque::new(),
        }
    }

    /// Adds a circuit: each may need a place for a last cell.
    pub(super) fn open(&mut self) -> Result<(), RouteError> {
        let queue = self.limit;
        if self.circuits >= queue / CELLS_OF_CIRCUIT {
            return Err(RouteError::TooMany { queue });
        }
        self.circuits += 1;
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True while this many places are neither used nor kept.
    pub(super) fn has_room(&self, places: usize) -> bool {
        self.len + self.kept + places <= self.limit
    }

    pub(super) fn is_half_full(&self) -> bool {
        self.len + self.kept > self.limit / 2
    }

    /// Uses a place for a cell of a PDU, of a circuit that has `held` cells waiting here.
    pub(super) fn admit(
        &mut self,
        pdu: &mut PduState,
        held: usize,
        last: bool,
        low_priority: bool,
    ) -> Result<(), DropReason> {
        match (*pdu, last) {
            (PduState::None, _) => {
                // A cell that is not the last also needs a place for the last.
                let places = if last { 1 } else { 2 };
                if !self.has_room(places) || self.is_short(held, low_priority) {
                    if !last {
                        *pdu = PduState::Refused;
                    }
                    return Err(DropReason::EarlyDiscard);
                }
                if !last {
                    *pdu = PduState::Passing;
                    self.kept += 1;
                }
            }
            (PduState::Passing, false) if !self.has_room(1) => {
                *pdu = PduState::Partial;
                return Err(DropReason::QueueFull);
            }
            (PduState::Passing, false) => {}
            (PduState::Passing | PduState::Partial, true) => {
                *pdu = PduState::None;
                self.kept = self.kept.saturating_sub(1);
            }
            (PduState::Partial, false) => return Err(DropReason::Rest),
            (PduState::Refused, _) => {
                if last {
                    *pdu = PduState::None;
                }
                return Err(DropReason::Rest);
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Uses a place for a cell outside any PDU.
    pub(super) fn admit_one(&mut self, low_priority: bool) -> Result<(), DropReason> {
        let short = low_priority && self.is_half_full();
        if short || !self.has_room(1) {
            return Err(DropReason::QueueFull);
        }
        self.len += 1;
        Ok(())
    }

    /// True if a circuit with `held` cells waiting may not begin a PDU.
    fn is_short(&self, held: usize, low_priority: bool) -> bool {
        let used = self.len + self.kept;
        // Equal shares of the circuits with cells here and of one more, which may arrive.
        let parts = self.active.len() + 1;
        used >= self.limit / 4 * 3
            || self.is_half_full() && (low_priority || held * parts > self.len)
    }

    /// Records that a part of a PDU was forwarded without a place.
    pub(super) fn passed(&mut self, pdu: &mut PduState, last: bool) {
        match (*pdu, last) {
            (PduState::None, false) => {
                *pdu = PduState::Passing;
                self.kept += 1;
            }
            (PduState::Passing, true) => {
                *pdu = PduState::None;
                self.kept = self.kept.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// Records the first cell of a circuit that had none here.
    pub(super) fn begin(&mut self, place: usize) {
        self.active.push_back(place);
    }

    /// The circuit to be served next.
    pub(super) fn next(&self) -> Option<usize> {
        self.active.front().copied()
    }

    /// Records that this many cells of that circuit have left; another circuit is next.
    pub(super) fn served(&mut self, cells: usize, has_more: bool) {
        self.len = self.len.saturating_sub(cells);
        if let Some(place) = self.active.pop_front().filter(|_| has_more) {
            self.active.push_back(place);
        }
    }

    /// Removes a circuit.
    pub(super) fn remove(&mut self, place: usize, cells: usize, pdu: PduState) {
        self.circuits = self.circuits.saturating_sub(1);
        self.len = self.len.saturating_sub(cells);
        self.active.retain(|&it| it != place);
        if matches!(pdu, PduState::Passing | PduState::Partial) {
            self.kept = self.kept.saturating_sub(1);
        }
    }
}
