/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The tables that the driver program (demux.bpf.c) shares with user space.
 * crates/device/build/tables.rs translates this file to Rust: each TW_ constant that is
 * a number, each enum, and each struct but the keys of hash maps. Their comments become
 * documentation there. `tidewall stat --explain` prints the text beside a counter or a
 * class: what happened, "(lost)" if a frame was dropped for it, and behind "->" what to
 * do. Each field names its single writer.
 *
 * Addresses are 16 bytes; an IPv4 address is written as IPv4-mapped (::ffff:a.b.c.d).
 * Ports are in network order, also as indexes of an array: after a byte swap older
 * verifiers would know nothing of the index.
 */
#ifndef TIDEWALL_TABLES_H
#define TIDEWALL_TABLES_H

#define TW_QUEUES 8             /* receive queues of one device */
#define TW_APPLICATIONS 128     /* applications of one device at a time */
#define TW_CHANNELS 4096        /* channels of one application; index 0 is "none" */
#define TW_FLOW_BUCKETS 32768   /* a power of two */
#define TW_FLOW_WAYS 8          /* tags of a bucket are one word; a flow is in one of two buckets */
#define TW_LOCALS 256           /* local addresses; a power of two */
#define TW_LOCAL_PROBES 8       /* slots in which one of them may be */
#define TW_TRACE_BYTES 256      /* bytes of a frame in a trace, at most */
#define TW_OWNERS 4096          /* entries of the hash of owners by address */
#define TW_FRAGMENTS 4096       /* fragmented datagrams that are remembered */
#define TW_KERNEL_SHARES 512    /* slots for shares of kernel-bound frames; a power of two */
#define TW_WAITING_SOCKETS 1024 /* from this slot of the map of sockets on: those on which no thread sleeps */
#define TW_PRIVATE_SOCKETS 2048 /* from this slot of the map of sockets on: those of private applications, in the same order */
#define TW_PAIRS 1024           /* near ends of private pairs that are in use */
#define TW_TICK_SHIFT 22        /* 2^22 ns, 4.2 ms: the time unit of frames that may wait */
#define TW_WAIT_TICKS 2         /* this many after a round, acknowledgments may still wait for the next */

/* A channel id: index in the low 16 bits, generation in the high 16. 0 = none. */

/* A flow that shares its channel with others may have a part of it.
 * tw_flow_entry.channel then has 1 + the slot of a tw_share in these bits of the index,
 * which no channel has. Frames beyond that part have the last bit set in their channel. */
#define TW_SHARE 0x7000u        /* bits of a channel's index that no channel has */
#define TW_SHARE_SHIFT 12       /* position of these bits */
#define TW_SHARE_HALF_OPEN 0x3000u /* the share of connections in their handshake */
#define TW_SHARES 4             /* kinds of flows that share channels; a power of two */
#define TW_OVER_SHARE 0x8000u   /* another such bit: the flow has had its share */

/* Kind of a channel's frame: decides which protocol code reads it. */
enum tw_kind {
	/* whole IP datagram with its transport header */
	TW_KIND_DATAGRAM = 1,
	/* first fragment: has the transport header */
	TW_KIND_FIRST_FRAGMENT = 2,
	/* later fragment: in the fragment channel */
	TW_KIND_FRAGMENT = 3,
	/* ICMP error quoting a flow of the channel's owner */
	TW_KIND_ICMP_ERROR = 4,
	/* owned, but not demultiplexed (host demux architectures) */
	TW_KIND_RAW = 5,
	/* a frame of a virtual circuit (RFC 4717): label, control word, PDU or cells */
	TW_KIND_CIRCUIT = 6,
};

/* Frame metadata, written just below the frame's first byte (24 bytes), or as
 * the first bytes of the frame (tw_queue.metadata_in_frame).
 * Writer: the driver program. */
struct tw_metadata {
	__u32 channel;   /* channel id; 0 for TW_KIND_RAW */
	__u32 credit;    /* the channel's head on this queue after this frame */
	__u32 trace;     /* trace id, 0 = not traced */
	__u8 kind;       /* enum tw_kind */
	__u8 version;    /* 4 or 6; 0 for a circuit */
	__u8 protocol;   /* transport protocol number after extension headers, or PROTOCOL_CIRCUIT */
	__u8 arrival;    /* bits 16 to 23 of the arrival time if the frame has waited, else 0 */
	__u16 network;   /* offset of the IP header, or of the label, from the frame's first byte */
	__u16 transport; /* offset of the transport header, of the fragment's payload, or of the control word */
	__u16 end;       /* offset one past the IP datagram (link padding excluded), or the frame's length; at most 65,535 */
	/* For a fragment over IPv6 the offset of the fragment header. For a frame that
	 * may wait, bits 0 to 15 of its arrival time (1,024 ns, the application's
	 * clock), bit 0 set. Else 0. */
	__u16 fragment;
};

/* Classes of kernel-bound frames, each a token bucket per queue; with each, what is
 * counted when it is dropped. */
enum tw_class {
	/* IPv6 neighbour and router discovery of this link beyond 2,000 per second and
	 * queue and beyond its sender's share. (lost) -> A storm on the link: find its
	 * source with tcpdump -eni IF icmp6. */
	TW_CLASS_NEIGHBOUR,
	/* ARP beyond 2,000 per second and queue and beyond its sender's share. (lost)
	 * -> A storm on the link: find its source with tcpdump -eni IF arp. */
	TW_CLASS_ARP,
	/* Other ICMP, MLD and IGMP beyond 2,000 per second and queue and beyond its
	 * sender's share. (lost) -> A ping flood; nothing to be done on this host. ICMP
	 * errors about Tidewall's own flows are not in this class. */
	TW_CLASS_ICMP,
	/* TCP segments with ACK or RST set, beyond 200,000 per second and queue, for
	 * which the kernel has no connection. (lost) -> A flood of segments from
	 * nowhere, or connections that the kernel translates (NAT): take those to
	 * another interface. */
	TW_CLASS_ESTABLISHED,
	/* SYNs, that is TCP segments with neither, beyond 10,000 per second and queue
	 * to ports without a listener. (lost) -> A SYN flood; senders that are not part
	 * of it keep their share. */
	TW_CLASS_SYN,
	/* UDP beyond 10,000 per second and queue to ports without a socket. (lost) ->
	 * Usually a flood at a closed port, and the bound is what protects you. Answers
	 * to the kernel's own sockets are not in it. */
	TW_CLASS_UDP,
	/* Never: a frame for which the kernel has a socket, or which it may forward, is
	 * counted by its own class if 200,000 per second do not suffice. (lost) ->
	 * Nothing to be done. */
	TW_CLASS_OPEN,
	/* IP datagrams to groups and to all beyond 10,000 per second and queue. (lost)
	 * -> A multicast stream or a storm on the link: leave the group, or take it to
	 * another interface. */
	TW_CLASS_MULTICAST,
	/* Other IP protocols (ESP, GRE, SCTP) and later fragments beyond 50,000 per
	 * second and queue. (lost) -> Take a tunnel with more traffic to another
	 * interface. */
	TW_CLASS_OTHER,
	/* Frames to other hosts, tagged or of unknown type beyond 50,000 per second and
	 * queue, if this host has no use for them. (lost) -> Usually a flood, and the
	 * bound is what protects you. An interface above this one that is in another
	 * network namespace may want them: `ip link set dev IF promisc on` lifts it. */
	TW_CLASS_FORWARDED,
	/* TCP segments of no connection to a listener's port, beyond 50 per second from
	 * one network (/24, /48). (lost) -> An ACK flood, and the bound is what
	 * protects you. */
	TW_CLASS_NO_CONNECTION,
	TW_CLASSES,
};

/* A class's frames pass while its bucket has tokens. When it has none, a frame passes
 * if there is a token in one of its two slots in tw_device.kernel_shares: that of its
 * sender and that of its purpose. So a sender that empties the bucket leaves others
 * their share. Frames for a kernel socket have one bucket more: looking for the socket
 * costs more than all else here. Rate and burst are drawn again, 0.5 to 1.5 of the
 * setting, and the slots change, in each epoch (1.07 s). */
struct tw_class_bucket {
	__u64 rate;    /* frames per second; 0 = unlimited. Writer: manager */
	__u64 burst;   /* most tokens held; 0 = only shares. Writer: manager */
	__u64 tokens;  /* in billionths of a frame. Writer: driver */
	__u64 updated; /* ns of the last refill. Writer: driver */
	__u64 passed;  /* frames let through. Writer: driver */
	__u64 dropped; /* over the rate, and over the shares. Writer: driver */
	__u64 share_interval;  /* ns between the frames of one slot; 0: no shares. Writer: manager */
	__u64 share_tolerance; /* ns by which they may be early: (burst - 1) intervals. Writer: manager */
	__u64 drawn;   /* 256ths of rate and burst in this epoch. Writer: driver */
};

/* Per-queue counters: one for each outcome of a frame in the driver. Writer: the driver
 * program on that queue. */
enum tw_counter {
	/* Every frame that the driver program saw. */
	TW_COUNT_FRAMES,
	/* Frames redirected to a socket's channel. */
	TW_COUNT_CHANNEL,
	/* Owned frames handed over without demultiplexing, as the bsd, early-demux,
	 * softirq and soft-lrp architectures require. */
	TW_COUNT_RAW,
	/* A frame shorter than its headers or lengths state. (lost) -> A few are a bad
	 * cable or a broken sender; many are an attack or a bug: look at them with
	 * `tidewall trace`. */
	TW_COUNT_TRUNCATED,
	/* Header fields that contradict each other. (lost)
	 * -> A few are a bad cable or a broken sender; many are an attack or a bug: look at them
	 * with `tidewall trace`. */
	TW_COUNT_MALFORMED,
	/* Early discard: the socket has reached its limit of waiting frames, so the
	 * excess costs nothing but this count. (lost) -> The application receives more
	 * slowly than frames arrive. For bursts raise the receive limit
	 * (set_receive_limit); for good make the application faster, or spread it over
	 * queues. See which socket it is in the list of channels. */
	TW_COUNT_CHANNEL_FULL,
	/* A frame for a socket that was being closed. (lost)
	 * -> Nothing, if sockets come and go. If it grows without that, report it. */
	TW_COUNT_CHANNEL_CLOSED,
	/* A frame for an owned port, on a device queue that the stack does not use.
	 * Datagrams and SYNs go to the kernel's socket, unprotected; segments of
	 * connections are dropped. If the stack's process has ended, all queues are
	 * without it, and the kernel answers. (lost) -> Queues were added after the
	 * stack began: restart the service, or remove them again: ethtool -L IF
	 * combined N. */
	TW_COUNT_NO_SOCKET,
	/* The device has no room for metadata, so an owned frame went to the kernel
	 * instead. It is received through the kernel socket, at the kernel's cost. ->
	 * Use another device or driver; zero-copy modes of some drivers lack the
	 * headroom. */
	TW_COUNT_NO_METADATA,
	/* VLAN-tagged frames, left to the kernel.
	 * -> Run Tidewall on the untagged interface, or strip tags in the switch. */
	TW_COUNT_TAGGED,
	/* Frames that are neither IPv4 nor IPv6 nor belong to circuits, left to the
	 * kernel: ARP and others. */
	TW_COUNT_UNKNOWN,
	/* Group and broadcast destinations, left to the kernel. */
	TW_COUNT_MULTICAST,
	/* The destination is no address of the interface, left to the kernel.
	 * -> Nothing, where this host forwards. Otherwise `tidewall trace` shows what it is, and
	 * `ip address show dev IF` which addresses are the interface's. */
	TW_COUNT_NOT_LOCAL,
	/* Frames for this host that no Tidewall socket owns, left to the kernel within the rates
	 * of their classes. */
	TW_COUNT_UNOWNED,
	/* Later fragments whose first one was not seen yet; kept for reassembly.
	 * -> A few are reordering. Many without reassembled datagrams are an attack; it is
	 * bounded. */
	TW_COUNT_FRAGMENT_ORPHAN,
	/* Datagrams passed to a helper socket, which learns the NAPI id of the queue
	 * from them; delivered all the same. -> Many: a firewall drops them (see the
	 * warnings, and tidewall doctor). */
	TW_COUNT_NAPI_PROBE,
	/* TCP SYNs that the driver answered with a SYN cookie, because a listener's queue was
	 * under attack.
	 * -> A SYN flood, or a listener whose backlog is too short for its clients. */
	TW_COUNT_COOKIE_SENT,
	/* TCP ACKs with a valid SYN cookie: clients that connected during the flood.
	 * Also counted under their outcome. */
	TW_COUNT_COOKIE_VALID,
	/* TCP ACKs that belong to no connection and carry no valid SYN cookie, while
	 * cookies were accepted. Also counted under their outcome. -> Late answers of
	 * clients, or an ACK flood; bounded either way. */
	TW_COUNT_COOKIE_FAILED,
	/* TCP segments to a listener's port that belong to no connection: dropped, or left to the
	 * kernel at a bounded rate so that it resets their senders.
	 * -> A few are peers that outlived their connection. Many are a flood; it is bounded. */
	TW_COUNT_NO_CONNECTION,
	/* Segments of a flow that had had its share of a channel that many flows share:
	 * connections without a channel of their own, half open, or in TIME-WAIT.
	 * (lost) -> One sender's flood on a connection; no other sender loses frames
	 * for it. tidewall trace shows which flow it is. */
	TW_COUNT_OVER_SHARE,
	/* MPLS frames that belong to no circuit here, left to the kernel: another
	 * label, more labels than one, or another station's link address. -> The other
	 * end has a circuit that is not bound here: `tidewall trace` shows its label,
	 * whose upper 4 bits are 1 + VPI and whose lower 16 are the VCI. */
	TW_COUNT_NO_CIRCUIT,
	/* Early discard: the application's sockets together hold so many of its frames
	 * that the last ones are reserved for sockets that hold few. (lost) -> The
	 * application receives more slowly than frames arrive at many of its sockets:
	 * make it faster, or give it more frames (EmbeddedConfig::frames). */
	TW_COUNT_APPLICATION_FULL,
	/* Early discard: an application in private mode has used its domain's share of
	 * the time of the kernel thread that polls the device for all of them. (lost)
	 * -> A flood at that application, which alone pays for it: `tidewall top` shows
	 * the time charged to each; `tidewalld --weight` gives a domain a larger share. */
	TW_COUNT_OVER_BUDGET,
	TW_COUNTERS = 24, /* places for them */
};

/* Key of SipHash. */
struct tw_hash_key {
	__u64 words[2]; /* its halves */
};

#define TW_USE_FORWARDING 1u        /* the kernel forwards packets that arrive on the interface */
#define TW_USE_NOT_FOR_HOST 2u      /* it has another use for frames that are not for this host */

/* Device-wide state. Writer: manager, unless a field says otherwise. */
struct tw_control {
	struct tw_hash_key hash_key;   /* key of the slots for shares */
	__u32 raw;                     /* 1: redirect owned frames without demultiplexing */
	__u32 fragment_application;    /* 1 + application that receives orphan fragments; 0: none */
	__u32 trace_remaining;         /* frames still to sample. Writer: manager sets, driver counts down */
	__u32 trace_next;              /* last trace id given. Writer: driver */
	__u16 probe_port[TW_QUEUES];   /* host order; nonzero: send a NAPI probe there. Driver clears it */
	__u16 probed_port[TW_QUEUES];  /* host order: original port of the probe. Writer: driver */
	__u64 locals[TW_LOCALS][2];    /* open-addressed set of local addresses; all zero = free */
	__u32 probed_sequence[TW_QUEUES]; /* host order: sequence number of a probe made from a segment. Writer: driver */
	__u8 probed_protocol[TW_QUEUES];  /* protocol of the probe: UDP or TCP. Writer: driver */
	__u8 probed_link[TW_QUEUES][6];   /* source link address of the probe. Writer: driver */
	/* Host order: the source port that a probe is given, by which its helper
	 * recognizes it; the driver replaces it with the original one. */
	__u16 probe_source[TW_QUEUES];
	__u32 interface;               /* index of the device by which frames of private applications leave */
	__u32 longest;                 /* bytes of the longest frame that it sends */
	__u8 link[6];                  /* its link address: the source of such frames, and the destination of circuits */
	__u8 kernel_uses;              /* TW_USE_. Writer: manager */
	__u8 charges;                  /* 1: frames are counted per application, which may be bounded. Writer: manager */
};

/* Counters of one receive queue, the value of the map `queues`. Writer: the driver
 * program on that queue, and the manager before frames arrive. A daemon's map is frozen
 * then, so that applications may map it to read. */
struct tw_queue {
	__u64 counters[TW_COUNTERS];                 /* by enum tw_counter */
	struct tw_class_bucket classes[TW_CLASSES];  /* by enum tw_class */
	/* 1: the metadata are the first bytes of each redirected frame, since the
	 * driver has no space for them before it (XDP metadata). */
	__u32 metadata_in_frame;
	__u32 pad; /* zero */
};

/* Trusted level: ports[0 for UDP, 65536 for TCP + port]. Writer: manager. */
#define TW_OWNER_APPLICATION 0xffu   /* 1 + application that owns the port on every local IPv4 address, or 0 */
#define TW_OWNER_SHIFT_V6 8u         /* the same for IPv6, that many bits further left */
#define TW_OWNER_BY_ADDRESS 0x10000u /* look in `owners` for (protocol, address, port) first */

/* Protocol of circuits in flows: MPLS in IP, IANA's number for labels. The label takes
 * the position of an IPv4 address. */
#define TW_PROTOCOL_CIRCUIT 137
#define TW_LABELS 1048576          /* labels of 20 bits (RFC 3032 section 2.1) */

struct tw_owner_key {              /* key of the `owners` hash; value: __u32 application */
	__u8 address[16];
	__u16 port;                    /* network order */
	__u8 protocol;
	__u8 pad;
};

/* An application's account of the polls of one queue: used, and allowed. A bound is a
 * rate at which its frames pass (GCRA, ITU-T I.371). It expires by itself: a manager
 * that has died or is stopped bounds nothing for long. */
struct tw_account {
	__u64 frames;    /* the application's frames while tw_control.charges is set. Writer: driver */
	__u64 passed;    /* frames of these that were passed to its sockets. Writer: driver */
	__u64 due;       /* ns: when the next may pass; only under a bound. Writer: driver */
	__u64 interval;  /* ns between frames that pass; 0: no bound. Writer: manager */
	__u64 tolerance; /* ns by which they may be early. Writer: manager */
	__u64 until;     /* ns, CLOCK_MONOTONIC: when the bound ends. Writer: manager */
	__u64 rest[2];   /* zero: a cache line */
};

/* Trusted level, the one value of the map `device`: with one map, the program pays for
 * one look-up and the manager for one mapping. Elements of an array map are padded to 8
 * bytes, so an array of __u32 would be twice as big. */
struct tw_device {
	struct tw_control control;       /* device-wide state */
	__u32 ports[2 * 65536];          /* TW_OWNER_, by port: UDP, then TCP. Writer: manager */
	__u8 labels[TW_LABELS];          /* 1 + application that has a circuit's label, or 0. Writer: manager */
	/* For senders and for purposes: when the next frame of a slot is due, ns (GCRA,
	 * ITU-T I.371). Writer: driver */
	__u64 kernel_shares[TW_QUEUES][2][TW_KERNEL_SHARES];
	struct tw_account accounts[TW_APPLICATIONS][TW_QUEUES]; /* by application and queue */
};

#define TW_LISTEN_LOCAL 1u          /* flows hold entries for (local address, port, no remote) */
#define TW_LISTEN_CONNECTED 2u      /* flows hold entries with a remote end */
/* A TCP port whose connections are all in `flows`: a channel gets only SYNs, valid
 * cookies and segments of its own flows. */
#define TW_LISTEN_TCP_STRICT 4u
#define TW_LISTEN_COOKIES 8u        /* SYNs are answered here, with cookies */
#define TW_LISTEN_COOKIES_VALID 16u /* cookies are accepted: some were sent recently */
#define TW_LISTEN_TIMESTAMPS 32u    /* cookie answers may have timestamps */
#define TW_LISTEN_SACK 64u          /* and, with those, SACK */
#define TW_LISTEN_ECN 128u          /* and, with those, ECN */
#define TW_LISTEN_SCALE_SHIFT 8     /* 4 bits: our window scale in cookie answers, 15 none */
#define TW_LISTEN_WINDOW_SHIFT 16   /* 16 bits: our window in cookie answers */
/* The listener on a port. Writer: application. */
struct tw_listener {
	__u32 channel[2];              /* channel id for any address of IPv4, of IPv6; 0 none */
	__u32 flags;                   /* TW_LISTEN_ */
};

/* Parameters of SYN cookies (RFC 4987 section 3.6); crates/protocol/src/tcp/cookie.rs
 * has the same bits. Writer: application. */
struct tw_cookies {
	__u64 key[2];                  /* SipHash key */
	__u64 epoch;                   /* ns, CLOCK_MONOTONIC: when the application's clock was 0 */
	__u16 mss[2];                  /* announced to IPv4, to IPv6 peers; host order */
	__u8 hop_limit;                /* of answers */
	__u8 redirect;                 /* 1: answers leave by XDP_REDIRECT to their own interface */
	__u8 pad[2];                   /* zero */
};

#define TW_WAIT_ACKNOWLEDGMENTS 1u /* acknowledgments without anything else, not even SACK, shortly after a round */
#define TW_WAIT_ALL 0x8000u        /* all but SYNs, for a time */
#define TW_WAIT_UNTIL 0x7fffu      /* bits of the tick of the application's clock at which that time ends */

#define TW_QUIET 8 /* frames: a channel that holds fewer may use an application's last ones */

/* One exact flow, a listener on one address, or a circuit. Writer: application. */
struct tw_flow_entry {
	__u64 local[2];                /* address */
	__u64 remote[2];               /* zero for a listener on one address */
	__u16 local_port;              /* network order */
	__u16 remote_port;             /* network order, 0 for a listener */
	__u8 protocol;                 /* TCP, UDP or that of circuits */
	__u8 version;                  /* 4 or 6; 0 for a circuit */
	__u16 waits;                   /* TW_WAIT_: which of its segments wake no thread; 0: none */
	__u32 channel;                 /* 0 = slot free; written last, cleared first */
	__u16 epoch;                   /* with a share: epoch of its last frames. Writer: driver */
	__u16 came;                    /* and their number. Writer: driver */
};

/* Share of each flow in the channel that many flows share. Writer: application. */
struct tw_share {
	__u16 epoch;                   /* changes when the channel was emptied */
	__u16 most;                    /* frames of a flow in one epoch; 0: any number */
};

/* The application's side of a channel's account. Writer: application. */
struct tw_channel_application {
	__u32 tail;                    /* frames no longer outstanding */
	__u32 limit;                   /* most frames outstanding; 0 = closed */
};

/* The driver's side of a channel's account. Writer: the driver program on that queue. */
struct tw_channel_driver {
	__u32 head;                    /* frames ever admitted */
	__u32 pad;                     /* zero */
	__u64 dropped;                 /* frames dropped at the limit */
};

/* The account of all channels of one queue together: this many frames fit into the
 * device's empty ones. Beyond that, the kernel would lose them after all work was done. */
struct tw_total {
	__u32 head;                    /* frames ever admitted. Writer: driver */
	__u32 pad;                     /* zero */
	__u64 dropped;                 /* frames that found no room. Writer: driver */
	__u32 padding[12];             /* zero */
	__u32 given;                   /* limit of `head`; 0: none. Writer: application */
	__u32 spare;                   /* the last of these, for quiet channels. Writer: application */
	__u32 rest[14];                /* zero */
};

/* Frames of one queue that may wait for the next round: they go to a socket of the same
 * queue on which no thread sleeps. */
struct tw_waiting {
	__u32 head;                    /* frames that went there. Writer: driver */
	__u32 tail;                    /* those that have left it. Writer: application */
	__u32 limit;                   /* most that may be there; 0: none. Writer: application */
	__u32 looked;                  /* tick of the application's last round. Writer: application */
};

/* Application level, one per application, memory-mapped by it. */
struct tw_application {
	/* Key of its flows, so that no other application can fill one of its buckets.
	 * Writer: application, before it owns a port. */
	struct tw_hash_key hash_key;
	struct tw_listener listeners[2 * 65536];  /* by port: UDP, then TCP. Writer: application */
	/* A byte of each flow's hash, 0 = free. A look-up that finds nothing, as for
	 * each SYN of a flood, touches only these and no flow. */
	__u8 tags[TW_FLOW_BUCKETS][TW_FLOW_WAYS];
	struct tw_flow_entry flows[TW_FLOW_BUCKETS][TW_FLOW_WAYS]; /* hash table of exact flows */
	struct tw_channel_application channels[TW_QUEUES][TW_CHANNELS]; /* by queue and channel */
	struct tw_channel_driver heads[TW_QUEUES][TW_CHANNELS]; /* by queue and channel */
	struct tw_cookies cookies;     /* parameters of SYN cookies */
	__u32 fragment_channel;        /* channel id that receives later fragments */
	struct tw_share shares[TW_SHARES]; /* by the share that a flow has, from 1 */
	struct tw_waiting waiting[TW_QUEUES]; /* by queue */
	struct tw_total totals[TW_QUEUES]; /* by queue */
	__u32 pad;                     /* zero */
};

/* Fragmented datagrams: the receiver of the first fragment. */
struct tw_fragment_key {
	__u8 source[16];
	__u8 destination[16];
	__u32 identification;
	__u8 protocol;                 /* IPv4 only; 0 for IPv6 */
	__u8 pad[3];
};
/* value: __u32, 1 + application, or 0 for the kernel */

/* Outcome of frames that an application in private mode sends. */
enum tw_sent {
	/* Sent on by the device. */
	TW_SENT_PASSED,
	/* Sent by a pair without an owner: its application has just ended. (lost) ->
	 * Nothing to be done. */
	TW_SENT_NOBODY,
	/* The source link address is not the device's. (lost)
	 * -> The application forges frames, or the device's address has changed: start it again. */
	TW_SENT_LINK,
	/* Neither IPv4 nor IPv6 (such as ARP), or with a tag. (lost) -> The application
	 * forges frames: only the kernel uses ARP. */
	TW_SENT_TYPE,
	/* Truncated headers, or IP options. (lost) -> The application forges frames, or
	 * overwrote its memory. */
	TW_SENT_MALFORMED,
	/* A fragment, which has no port to judge by. (lost)
	 * -> Send datagrams that fit the MTU; larger ones need direct mode. */
	TW_SENT_FRAGMENT,
	/* Neither UDP nor TCP, such as ICMP and neighbour discovery. (lost) -> The
	 * application forges frames: only the kernel uses these. */
	TW_SENT_PROTOCOL,
	/* The source address does not belong to this host. (lost) -> The application
	 * forges frames, or an address was just removed. */
	TW_SENT_ADDRESS,
	/* The application neither owns nor leases the source port. (lost) -> The
	 * application forges frames, or sends for a socket that was just closed. */
	TW_SENT_PORT,
	/* Longer than the device's MTU. (lost)
	 * -> The MTU became smaller: start the application again. */
	TW_SENT_LONG,
	TW_DEPARTURES = 16, /* slots for them */
};

/* Frames that an application in private mode sent, an element of the map `departures`;
 * the last element is for frames without an owner. Writer: the program on the near
 * ends. */
struct tw_departures {
	__u64 frames[TW_DEPARTURES];  /* by enum tw_sent */
};

/* One record of the `traces` ring buffer: a frame as seen by the driver. */
struct tw_trace_record {
	__u64 time;                    /* ns, CLOCK_MONOTONIC */
	__u32 trace;                   /* trace id, from 1; also in the frame's metadata */
	__u32 channel;                 /* channel id; 0: none */
	__u32 verdict;                 /* enum xdp_action: 1 drop, 2 pass, 4 redirect */
	__u32 cause;                   /* enum tw_counter; TW_COUNT_FRAMES when no other applies */
	__u32 queue;                   /* receive queue */
	__u32 length;                  /* bytes in the frame */
	__u32 captured;                /* bytes of it in `bytes` */
	__u8 bytes[TW_TRACE_BYTES];    /* the frame's first bytes */
	__u32 pad;                     /* zero */
};

#endif
