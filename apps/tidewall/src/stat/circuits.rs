//! The meaning of the circuit counters.

use super::causes::entry;
use super::explain::Counts::{Loss, Way};
use super::explain::Entry;
use super::explain::Place::Circuit;

const CELLS_LOST: &str = "Parts of PDUs are lost or change their order on the way: see what the \
     interfaces between have dropped; payloads that fit into one frame do not suffer from order.";
const MEMORY_SHORT: &str = "PDUs that do not end hold the memory that all circuits share: an attack, or many \
     circuits with long PDUs that come slowly.";

/// Counters of AAL5 reassembly, and of cells.
pub(super) const CIRCUITS: &[Entry] = &[
    entry(
        Circuit,
        "aal5-no-circuit",
        Loss,
        "A cell of a circuit that is not open.",
        "",
    ),
    entry(
        Circuit,
        "aal5-not-user",
        Loss,
        "A cell of OAM or resource management where a PDU's was expected.",
        "",
    ),
    entry(
        Circuit,
        "aal5-too-long",
        Loss,
        "A PDU with more cells than the longest payload of its circuit has.",
        "Both ends must agree: bind with a longer receive_max (max_sdu of SO_ATMQOS), or send less at a time.",
    ),
    entry(
        Circuit,
        "aal5-early-discard",
        Loss,
        "The first part of a PDU that came while the memory for parts was short; the rest is aal5-rest.",
        MEMORY_SHORT,
    ),
    entry(
        Circuit,
        "aal5-memory",
        Loss,
        "A part for which no memory was left, with the PDU that it is of.",
        MEMORY_SHORT,
    ),
    entry(
        Circuit,
        "aal5-rest",
        Loss,
        "A further part of a PDU that was given up.",
        "See why it was, among the others.",
    ),
    entry(
        Circuit,
        "aal5-crc",
        Loss,
        "A PDU with lost, doubled or damaged cells.",
        CELLS_LOST,
    ),
    entry(
        Circuit,
        "aal5-trailer",
        Loss,
        "A PDU whose length does not fit its cells, or whose common part indicator is not 0.",
        "The other end does not speak AAL5 on this circuit.",
    ),
    entry(
        Circuit,
        "aal5-aborted",
        Loss,
        "A PDU that its sender gave up.",
        "",
    ),
    entry(
        Circuit,
        "aal5-timed-out",
        Loss,
        "A PDU whose last part did not come within a second.",
        CELLS_LOST,
    ),
    entry(
        Circuit,
        "circuit-malformed",
        Loss,
        "A frame of a circuit that is neither a PDU nor a cell of the AAL5 PDU frame mode (RFC 4717).",
        "The other end uses another mode, or another protocol has this label: look at it with tidewall trace.",
    ),
    entry(
        Circuit,
        "oam-answered",
        Way,
        "Loopback cells (I.610) of the other end that were answered.",
        "",
    ),
    entry(
        Circuit,
        "oam-ignored",
        Loss,
        "Cells of OAM or resource management that are damaged, or that nobody here answers.",
        "",
    ),
];
