//! The counters of a switch.

/// Makes a structure of counters with their names.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Each counter with its name, in the order of the declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of a switch since its creation.
    Counters {
        /// Connections whose handshake was completed.
        connections,
        /// Frames of peers sent to a member for the first time.
        frames_in,
        /// Frames of peers that were repeated to their member.
        frames_in_repeated,
        /// Frames of members in segments sent to a peer, including repeated ones.
        frames_out,
        /// Frames of peers that arrived again after their member had acknowledged them;
        /// they are not forwarded.
        frames_known,
        /// Holes in what peers sent.
        holes,
        /// Null frames sent in place of frames that went to another member.
        null_frames,
        /// Acknowledgments of members that did not move the peer's.
        acknowledgments_delayed,
        /// Duplicate acknowledgments passed on to peers and members.
        duplicates_forwarded,
        /// SACK blocks in acknowledgments to peers and members.
        sack_blocks,
        /// Members that died on a connection.
        members_lost,
        /// Frames taken from a dead member, to be sent to another when the peer
        /// repeats them.
        frames_reassigned,
        /// SYNs answered with a cookie.
        cookies_sent,
        /// Connections begun by a cookie's acknowledgment.
        cookies_taken,
        /// Connections reset because a segment was not whole frames, or repeated
        /// frames had other bounds.
        reset_framing,
        /// Connections reset because a module panicked, asked for it, or named a
        /// member that takes no frames.
        reset_module,
        /// Connections reset because a module looked at more than one frame permits: it
        /// loops.
        reset_module_work,
        /// Connections reset because a member died, or none was left.
        reset_member,
        /// Connections reset because they were silent for too long, or a handshake was
        /// not completed in time.
        reset_timeout,
        /// Connections reset because an end acknowledged what was never sent.
        reset_acknowledgment,
        /// Connections that an end has reset.
        reset_by_end,
        /// Segments to the switch that belong to no connection; answered with RST.
        dropped_no_connection,
        /// SYNs refused because they do not ask for ACP, or there is no member.
        dropped_refused,
        /// SYNs dropped because the table of connections or the range of ports is
        /// full.
        dropped_table_full,
        /// Frames and segments dropped because the frame ring is full.
        dropped_ring_full,
        /// Segments longer than agreed in the handshake: most likely a host on the path
        /// joins segments (GRO), or does not split them (TSO, GSO).
        dropped_too_long,
        /// Frames and segments beyond the announced window.
        dropped_window,
        /// Frames dropped because their member's window has no room for them.
        dropped_member_window,
        /// Segments whose sequence numbers, acknowledgment or flags are out of place.
        dropped_unacceptable,
    }
}

counters! {
    /// Counters of one member, over all connections.
    MemberCounters {
        /// Connections to it that were established.
        connections,
        /// Connections to it that failed: refused, unanswered, reset.
        failures,
        /// Frames of peers sent to it for the first time.
        frames_in,
        /// Their bytes, including headers.
        bytes_in,
        /// Its own frames in segments sent to a peer.
        frames_out,
        /// Their bytes, including headers.
        bytes_out,
    }
}
