//! AAL5 at a receiver: cells and parts of frames in, payloads out (I.363.5 §9.2), within
//! limits.
//!
//! A circuit has at most one PDU in progress, of no more than the circuit's longest. The
//! total memory of all of them is limited. Above three quarters of the limit no PDU is
//! begun (*early packet discard*, Romanow and Floyd, JSAC 1995). At the limit the PDU
//! that needs more is given up. In both cases its further cells are skipped to its last.
//! A PDU that has not ended after [`Limits::timeout`] is given up at the next cell of any
//! circuit, or by [`Reassembly::expire`]. So cells without an end hold memory for no
//! longer.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

use tidewall_wire::atm::aal5::{self, Crc32, Pdu};
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, Circuit, PayloadType};

/// Time since any fixed moment.
pub type Time = Duration;

/// Buffers of ended PDUs kept for the next ones.
const KEPT: usize = 64;

/// Limits of a [`Reassembly`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all PDUs in progress, in memory for whole cells.
    pub memory: usize,
    /// Circuits open at one time.
    pub circuits: usize,
    /// Time from a PDU's first cell within which its last must arrive.
    pub timeout: Duration,
}

impl Default for Limits {
    /// 4 MiB, 10,000 circuits, one second.
    fn default() -> Self {
        Self {
            memory: 4 << 20,
            circuits: 10_000,
            timeout: Duration::from_secs(1),
        }
    }
}

/// The reason why cells did not become a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// No such circuit is open.
    NoCircuit,
    /// Not a user cell: OAM or resource management.
    NotUser,
    /// The PDU would be longer than the circuit's longest.
    TooLong,
    /// The PDU began while memory was short.
    EarlyDiscard,
    /// Memory ran out within the PDU.
    Memory,
    /// A further cell of a PDU that was given up.
    Rest,
    /// The CRC-32 does not match.
    Crc,
    /// The length implies another number of cells, or the common part indicator is not 0.
    Trailer,
    /// The sender gave the PDU up.
    Aborted,
    /// The last cell did not arrive in time.
    TimedOut,
}

impl DropReason {
    /// Every cause.
    pub const ALL: [Self; 10] = [
        Self::NoCircuit,
        Self::NotUser,
        Self::TooLong,
        Self::EarlyDiscard,
        Self::Memory,
        Self::Rest,
        Self::Crc,
        Self::Trailer,
        Self::Aborted,
        Self::TimedOut,
    ];

    /// The cause's name in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoCircuit => "aal5-no-circuit",
            Self::NotUser => "aal5-not-user",
            Self::TooLong => "aal5-too-long",
            Self::EarlyDiscard => "aal5-early-discard",
            Self::Memory => "aal5-memory",
            Self::Rest => "aal5-rest",
            Self::Crc => "aal5-crc",
            Self::Trailer => "aal5-trailer",
            Self::Aborted => "aal5-aborted",
            Self::TimedOut => "aal5-timed-out",
        }
    }
}

/// The reason why a circuit is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is already open (EADDRINUSE).
    #[error("the circuit is in use")]
    InUse,
    /// The maximum number is open (ENOBUFS).
    #[error("as many circuits are open as may be")]
    TooMany,
}

/// The PDU in progress of one circuit.
#[derive(Debug)]
struct Partial {
    /// The longest PDU, in bytes of whole cells.
    pdu_max: usize,
    bytes: Vec<u8>,
    crc: Crc32,
    /// Arrival of the first cell; valid while `bytes` is not empty.
    began: Time,
    /// Cells are skipped up to the PDU's last.
    discarding: bool,
}

/// Reassembles PDUs of many circuits from their cells.
#[derive(Debug)]
pub struct Reassembly {
    limits: Limits,
    circuits: HashMap<Circuit, Partial>,
    /// Circuits with cells in progress, oldest first.
    under_way: BTreeSet<(Time, Circuit)>,
    held: usize,
    /// The PDU returned last.
    whole: Vec<u8>,
    kept: Vec<Vec<u8>>,
    dropped: [u64; DropReason::ALL.len()],
    pdus: u64,
}

impl Reassembly {
    /// Starts without any circuit.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            circuits: HashMap::new(),
            under_way: BTreeSet::new(),
            held: 0,
            whole: Vec::new(),
            kept: Vec::new(),
            dropped: [0; DropReason::ALL.len()],
            pdus: 0,
        }
    }

    /// Opens a circuit whose payloads have `payload_max` bytes at most; larger values
    /// mean 65,535, the maximum.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, circuit: Circuit, payload_max: usize) -> Result<(), OpenError> {
        if self.circuits.contains_key(&circuit) {
            return Err(OpenError::InUse);
        }
        if self.circuits.len() >= self.limits.circuits {
            return Err(OpenError::TooMany);
        }
        let partial = Partial {
            pdu_max: aal5::pdu_len(payload_max.min(aal5::PAYLOAD_MAX)),
            bytes: Vec::new(),
            crc: Crc32::new(),
            began: Time::ZERO,
            discarding: false,
        };
        self.circuits.insert(circuit, partial);
        Ok(())
    }

    /// Closes a circuit, and discards its PDU in progress. False if it is not open.
    pub fn close(&mut self, circuit: Circuit) -> bool {
        let Some(partial) = self.circuits.remove(&circuit) else {
            return false;
        };
        if !partial.bytes.is_empty() {
            self.under_way.remove(&(partial.began, circuit));
            self.held -= partial.bytes.len();
            keep(&mut self.kept, partial.bytes);
        }
        true
    }

    /// Processes a received cell. Returns the PDU that it completes.
    ///
    /// # Errors
    /// [`DropReason`], counted.
    pub fn cell<'a>(
        &'a mut self,
        now: Time,
        circuit: Circuit,
        payload_type: PayloadType,
        payload: &'a [u8; CELL_PAYLOAD_LEN],
    ) -> Result<Option<Pdu<'a>>, DropReason> {
        if !payload_type.is_user() {
            return Err(self.count(DropReason::NotUser));
        }
        self.part(now, circuit, payload, payload_type.is_last())
    }

    /// Processes payloads of whole cells, a frame of a pseudowire; `last` if they include
    /// the PDU's last cell. A PDU in one frame is read where it lies.
    ///
    /// # Errors
    /// [`DropReason`], counted.
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub fn part<'a>(
        &'a mut self,
        now: Time,
        circuit: Circuit,
        bytes: &'a [u8],
        last: bool,
    ) -> Result<Option<Pdu<'a>>, DropReason> {
        let taken = self.take(now, circuit, bytes, last);
        match taken {
            Ok(None) => Ok(None),
            Ok(Some(crc)) => {
                let read = match crc {
                    None => Pdu::new(bytes),
                    Some(crc) => Pdu::continued(&self.whole, crc),
                };
                let pdu = read.map_err(|error| {
                    let reason = reason(error);
                    self.dropped[reason as usize] += 1;
                    reason
                })?;
                self.pdus += 1;
                Ok(Some(pdu))
            }
            Err(reason) => Err(self.count(reason)),
        }
    }

    /// Counts a PDU that its owner has read where it lies, and rejected.
    pub fn refused(&mut self, error: aal5::Error) -> DropReason {
        self.count(reason(error))
    }

    /// Adds the cells to the PDU in progress. At the last cell, returns `Some(None)` if
    /// the PDU is this part itself. Otherwise returns the CRC of all but its last cell,
    /// with the PDU in `whole`.
    fn take(
        &mut self,
        now: Time,
        circuit: Circuit,
        bytes: &[u8],
        last: bool,
    ) -> Result<Option<Option<Crc32>>, DropReason> {
        self.expire(now);
        let Some(partial) = self.circuits.get_mut(&circuit) else {
            return Err(DropReason::NoCircuit);
        };
        if bytes.is_empty() && !last {
            // No cell: nothing begins with it.
            return Ok(None);
        }
        // The last cell may have been lost: a much later cell belongs to another PDU.
        partial.discarding &= now.saturating_sub(partial.began) < self.limits.timeout;
        if partial.discarding {
            partial.discarding = !last;
            return Err(DropReason::Rest);
        }
        let first = partial.bytes.is_empty();
        let length = partial.bytes.len() + bytes.len();
        let early = self.limits.memory / 4 * 3;
        let refused = if length > partial.pdu_max {
            Some(DropReason::TooLong)
        } else if first && last {
            return Ok(Some(None));
        } else if first && self.held > early {
            Some(DropReason::EarlyDiscard)
        } else if self.held + bytes.len() > self.limits.memory {
            Some(DropReason::Memory)
        } else {
            None
        };
        if let Some(reason) = refused {
            partial.discarding = !last;
            if first {
                partial.began = now;
            } else {
                self.under_way.remove(&(partial.began, circuit));
                self.held -= partial.bytes.len();
                keep(&mut self.kept, mem::take(&mut partial.bytes));
            }
            return Err(reason);
        }
        if first {
            partial.bytes = self.kept.pop().unwrap_or_default();
            partial.began = now;
            partial.crc = Crc32::new();
            self.under_way.insert((now, circuit));
        }
        partial.bytes.extend_from_slice(bytes);
        self.held += bytes.len();
        if !last {
            partial.crc = partial.crc.update(bytes);
            return Ok(None);
        }
        let earlier = bytes.len().saturating_sub(CELL_PAYLOAD_LEN);
        let crc = partial.crc.update(bytes.get(..earlier).unwrap_or_default());
        self.under_way.remove(&(partial.began, circuit));
        self.held -= partial.bytes.len();
        let old = mem::replace(&mut self.whole, mem::take(&mut partial.bytes));
        keep(&mut self.kept, old);
        Ok(Some(Some(crc)))
    }

    /// Gives up PDUs whose time is over, as each received cell also does. The next cell
    /// begins a PDU: most likely, the last one of the old was lost. If it was not, the
    /// rest of the old PDU fails its CRC.
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub fn expire(&mut self, now: Time) {
        while let Some(&(began, circuit)) = self.under_way.first()
            && now.saturating_sub(began) >= self.limits.timeout
        {
            self.under_way.pop_first();
            if let Some(partial) = self.circuits.get_mut(&circuit) {
                self.held -= partial.bytes.len();
                keep(&mut self.kept, mem::take(&mut partial.bytes));
                self.dropped[DropReason::TimedOut as usize] += 1;
            }
        }
    }

    /// Time at which [`Reassembly::expire`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let (began, _) = self.under_way.first()?;
        Some(*began + self.limits.timeout)
    }

    /// Bytes of PDUs in progress.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }

    /// PDUs returned.
    #[must_use]
    pub const fn pdus(&self) -> u64 {
        self.pdus
    }

    /// How often a cause occurred.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    fn count(&mut self, reason: DropReason) -> DropReason {
        self.dropped[reason as usize] += 1;
        reason
    }
}

/// Keeps a buffer for a later PDU, unless enough are kept.
fn keep(kept: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if kept.len() < KEPT && buffer.capacity() > 0 {
        buffer.clear();
        kept.push(buffer);
    }
}

const fn reason(error: aal5::Error) -> DropReason {
    match error {
        aal5::Error::Crc { .. } => DropReason::Crc,
        aal5::Error::Aborted => DropReason::Aborted,
        aal5::Error::Size(_) | aal5::Error::CommonPart(_) | aal5::Error::Length { .. } => {
            DropReason::Trailer
        }
    }
}

/// The cells of a PDU in order: the payload type in each header, and the payload. Bytes
/// after whole cells are left out: a PDU has none.
pub fn cells(pdu: &[u8]) -> impl Iterator<Item = (PayloadType, &[u8; CELL_PAYLOAD_LEN])> {
    let (cells, _) = pdu.as_chunks::<CELL_PAYLOAD_LEN>();
    let last = cells.len().saturating_sub(1);
    cells.iter().enumerate().map(move |(index, cell)| {
        let payload_type = if index == last {
            PayloadType::USER_LAST
        } else {
            PayloadType::USER
        };
        (payload_type, cell)
    })
}

#[cfg(test)]
mod tests;
