//! The meaning of each counter and its remedy, for `tidewall stat`, `tidewall stat
//! --explain` and `tidewall trace`. The lists of the driver program (`bpf/tables.h`) and
//! of the engines (`DropReason`) have theirs; the rest is here.

use std::sync::LazyLock;

use tidewall_device::demux::layout::{Class, Counter};
use tidewall_protocol::DropReason;

use super::cells::CELLS;
use super::circuits::CIRCUITS;
use super::explain::{Counts, Entry, Place};

use Counts::{Loss, Way};
use Place::{Device, Driver, Kernel, Protocol, Reassembly, Ring, Socket, Switch, Transmit};

pub(super) const fn entry(
    place: Place,
    name: &'static str,
    counts: Counts,
    meaning: &'static str,
    advice: &'static str,
) -> Entry {
    Entry {
        place,
        name,
        counts,
        meaning,
        advice,
    }
}

const FRAGMENTS: &str = DropReason::FragmentEnd.advice();

/// Every counter, in the order in which a frame passes them.
pub static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let counts = |loss| if loss { Loss } else { Way };
    let driver = Counter::ALL.map(|counter| {
        let (name, counts) = (counter.name(), counts(counter.is_loss()));
        entry(Driver, name, counts, counter.meaning(), counter.advice())
    });
    let kernel = Class::ALL.map(|class| {
        let (name, counts) = (class.name(), counts(class.is_loss()));
        entry(Kernel, name, counts, class.meaning(), class.advice())
    });
    let engines = DropReason::ALL.iter().map(|reason| {
        let (meaning, advice) = (reason.explanation(), reason.advice());
        entry(Protocol, reason.name(), Loss, meaning, advice)
    });
    let lists = driver.into_iter().chain(kernel).chain(engines);
    let others = OTHERS.iter().chain(CIRCUITS).chain(SWITCH).chain(CELLS);
    lists.chain(others.copied()).collect()
});

/// Counters that are in no other list.
const OTHERS: &[Entry] = &[
    entry(
        Device,
        "ring-full",
        Loss,
        "A frame came while the device's receive ring was full: it was not polled in time (on a veth, counted by its peer).",
        "Give the receiver a higher priority or a processor of its own, and see that the application does not stay away for long between two calls; a card's ring can be larger: ethtool -G IF rx N.",
    ),
    entry(
        Ring,
        "lost-in-ring",
        Loss,
        "The driver admitted a frame, but the receive ring or the frame memory had no room.",
        "The application did not receive for too long: more frame memory or a higher priority for it, and see that nothing else runs on its processor.",
    ),
    entry(
        Ring,
        "stale",
        Loss,
        "A frame for a channel that was closed while the frame was under way.",
        "Nothing: a socket was closed with frames in it.",
    ),
    entry(
        Reassembly,
        "fragments",
        Way,
        "Fragments taken for reassembly.",
        "",
    ),
    entry(
        Reassembly,
        "reassembled",
        Way,
        "Datagrams made whole again.",
        "",
    ),
    entry(
        Reassembly,
        "atomic",
        Way,
        "Whole datagrams with a needless fragment header (RFC 6946).",
        "",
    ),
    entry(
        Reassembly,
        "malformed",
        Loss,
        "Fragments whose lengths cannot be right.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "duplicates",
        Loss,
        "Fragments received before, byte for byte.",
        "Harmless: something on the way duplicates packets.",
    ),
    entry(
        Reassembly,
        "overlaps",
        Loss,
        "Datagrams refused because fragments overlapped (RFC 5722).",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "contradictions",
        Loss,
        "Datagrams refused because fragments disagreed about the end.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "too-many-fragments",
        Loss,
        "Datagrams refused for more fragments than one may have.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "ecn-mismatches",
        Loss,
        "Datagrams refused because ECN marks contradicted each other.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "refused",
        Loss,
        "Fragments of datagrams refused before.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "no-memory",
        Loss,
        "Fragments that the bounded memory had no room for.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "evicted",
        Loss,
        "Incomplete datagrams given up to make room for newer ones.",
        FRAGMENTS,
    ),
    entry(
        Reassembly,
        "timeouts",
        Loss,
        "Incomplete datagrams given up after the reassembly time.",
        "Fragments are lost on the way: keep datagrams below the path's MTU.",
    ),
    entry(
        Socket,
        "socket-gone",
        Loss,
        "A whole datagram whose socket was gone.",
        "Nothing: a socket was closed with datagrams under way.",
    ),
    entry(
        Socket,
        "socket-full",
        Loss,
        "A reassembled datagram for a socket that takes no more.",
        "As for channel-full: the application receives too slowly.",
    ),
    entry(
        Socket,
        "icmp-errors",
        Way,
        "ICMP errors about flows of Tidewall's sockets, reported to them.",
        "",
    ),
    entry(
        Socket,
        "copied-out",
        Way,
        "Datagrams moved out of frames because frame memory was short; not lost.",
        "Slow receivers hold much: lower their receive limits, or give the stack more frames.",
    ),
    entry(
        Socket,
        "strays",
        Way,
        "Datagrams that came through the kernel while polls were learned; delivered.",
        "",
    ),
    entry(
        Transmit,
        "dropped-by-device",
        Loss,
        "A frame that was sent and that the device dropped: on a veth, because the receiver's ring was full.",
        "A few are what a sender finds out a path's room by, and TCP sends them again. Many: the receiver is too slow for what is sent; ethtool -S IF says where a card dropped them.",
    ),
    entry(
        Transmit,
        "no-transmit-frame",
        Loss,
        "A send refused because every transmit frame was under way.",
        "The device sends more slowly than the application: send in batches, wait after WouldBlock.",
    ),
    entry(
        Transmit,
        "long-dropped",
        Loss,
        "A long TCP segment that the kernel dropped on its way out (ENOBUFS), whole or in part. TCP sends it again.",
        "The queueing discipline is full, or an egress rule drops: tc -s qdisc show dev IF; nft list ruleset (hook egress).",
    ),
    entry(
        Transmit,
        "long-no-room",
        Way,
        "A long TCP segment that waited, since the device had not sent those before.",
        "",
    ),
];

/// Counters of a transport switch.
const SWITCH: &[Entry] = &[
    entry(
        Switch,
        "frames-in-repeated",
        Way,
        "Frames of peers that came again and went to the same member again.",
        "Many: paths lose frames; see the drops here, and each interface's.",
    ),
    entry(
        Switch,
        "null-frames",
        Way,
        "Null frames sent in place of frames that went to another member.",
        "Frames are lost between peers and the switch.",
    ),
    entry(
        Switch,
        "sack-blocks",
        Way,
        "SACK blocks in acknowledgments to peers and members, of what was received beyond something missing.",
        "Paths lose or reorder frames; see the drops here, and each interface's.",
    ),
    entry(
        Switch,
        "acknowledgments-delayed",
        Way,
        "Acknowledgments of members that did not move what is acknowledged to the peer, since another member is behind.",
        "Many: one member is slower than the others, and a module that steers by load (speed, least-outstanding) may do better.",
    ),
    entry(
        Switch,
        "reset-framing",
        Loss,
        "A connection reset because a segment was not whole frames, or repeated frames had other bounds.",
        "See that the end speaks ACP, one frame a call, and that nothing on the path joins or cuts segments: ethtool -K IF tso off gso off gro off.",
    ),
    entry(
        Switch,
        "reset-module",
        Loss,
        "A connection reset by its module: it panicked, asked for it, or named a member that takes no frames.",
        "The frames are not what the module reads, or the member that it needs is missing.",
    ),
    entry(
        Switch,
        "reset-module-work",
        Loss,
        "A connection reset because its module looked at more bytes and members than one frame allows.",
        "The module loops over what this peer sends: it is to be mended. Other connections go on.",
    ),
    entry(
        Switch,
        "reset-member",
        Loss,
        "A connection reset because a member died, or none was left.",
        "Where frames may be repeated at another member: lost = \"resend\" in the configuration.",
    ),
    entry(
        Switch,
        "reset-timeout",
        Loss,
        "A connection reset because it was silent for too long, or its handshake was not completed in time.",
        "Ends that are silent for hours use keep-alives; for handshakes see that members answer.",
    ),
    entry(
        Switch,
        "reset-acknowledgment",
        Loss,
        "A connection reset because an end acknowledged what was never sent.",
        "A broken or hostile end: look where its segments come from with tidewall trace.",
    ),
    entry(
        Switch,
        "reset-by-end",
        Loss,
        "A connection that an end has reset.",
        "Nothing here: see the end's own log.",
    ),
    entry(
        Switch,
        "dropped-no-connection",
        Loss,
        "Segments that belong to no connection; answered with a reset.",
        "Some after a restart of the switch; many are a scan or a flood.",
    ),
    entry(
        Switch,
        "dropped-refused",
        Loss,
        "SYNs refused: they did not ask for ACP, or there was no member.",
        "For kernel ends with a framing library: kernel-ends = true. Otherwise see the members below.",
    ),
    entry(
        Switch,
        "dropped-table-full",
        Loss,
        "SYNs dropped because the table of connections or the range of ports is full.",
        "A wider range in the configuration's ports.",
    ),
    entry(
        Switch,
        "dropped-ring-full",
        Loss,
        "Frames dropped because the frame ring was full.",
        "The round trip holds more frames than the ring: a larger ring in the configuration, or larger frames.",
    ),
    entry(
        Switch,
        "dropped-too-long",
        Loss,
        "Segments longer than was agreed on in the handshake.",
        "Something on the path joins segments or does not cut them: ethtool -K IF tso off gso off gro off, at the ends too.",
    ),
    entry(
        Switch,
        "dropped-window",
        Loss,
        "Frames beyond the window that was announced.",
        "A few are probes of windows. Many: an end that ignores windows.",
    ),
    entry(
        Switch,
        "dropped-member-window",
        Loss,
        "Frames dropped because their member's window had no room.",
        "The module steers to members without room: take one that does not, or speed up that member.",
    ),
    entry(
        Switch,
        "dropped-unacceptable",
        Loss,
        "Segments whose sequence numbers, acknowledgment or flags are out of place.",
        "A few are old duplicates; many are a broken or hostile end.",
    ),
    entry(
        Switch,
        "not-sent-unresolved",
        Loss,
        "Frames dropped while the next hop's link address was looked for.",
        "Some at the beginning. Many: the next hop does not answer ARP or neighbour discovery.",
    ),
    entry(
        Switch,
        "not-sent-unasked",
        Loss,
        "Frames dropped because their next hop is not known and too many questions about others were asked.",
        "The host has policy rules or several paths, so the kernel is asked per destination: see ip rule, ip route.",
    ),
    entry(
        Switch,
        "not-sent-unreachable",
        Loss,
        "Frames dropped because no route leads to the end by its interface.",
        "See: ip route get ADDRESS.",
    ),
    entry(
        Switch,
        "not-sent-full",
        Loss,
        "Frames dropped because the device took no more.",
        "The outgoing link is slower than the incoming: ends slow down by it.",
    ),
    entry(
        Switch,
        "not-sent-refused",
        Loss,
        "Frames longer than the outgoing interface's MTU.",
        "Give all interfaces of the switch one MTU.",
    ),
];
