/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The tables that the driver program (demux.bpf.c) shares with user space.
 * crates/device/src/demux/layout.rs mirrors every struct and constant here; a
 * test there and static assertions in the program hold both to one set of
 * sizes and offsets. Each field names its single writer.
 *
 * Addresses are 16 bytes; an IPv4 address is written as IPv4-mapped
 * (::ffff:a.b.c.d). Ports are in network order, also where they index an array:
 * no byte swap, after which older verifiers would know nothing of the index.
 */
#ifndef TIDEWALL_TABLES_H
#define TIDEWALL_TABLES_H

#define TW_QUEUES 8             /* receive queues of one device */
#define TW_APPLICATIONS 16      /* trust domains on one device */
#define TW_CHANNELS 4096        /* channels of one application; index 0 is "none" */
#define TW_FLOW_BUCKETS 32768   /* a power of two */
#define TW_FLOW_WAYS 8          /* tags of a bucket are one word; a flow is in one of two buckets */
#define TW_LOCALS 256           /* local addresses; a power of two */
#define TW_LOCAL_PROBES 8
#define TW_KERNEL_SHARES 512          /* places for shares of kernel-bound frames; a power of two */

/* A channel id: index in the low 16 bits, generation in the high 16. 0 = none. */

/* A flow that shares its channel with others may have a part of it: tw_flow.channel
 * then has 1 + the place of a tw_share in these bits of the index, which no
 * channel has. Of its frames beyond that part the channel has the last bit. */
#define TW_SHARE 0x7000u
#define TW_SHARE_SHIFT 12
#define TW_SHARES 4             /* a power of two */
#define TW_OVER_SHARE 0x8000u

/* What kind of frame a channel got: decides which protocol code reads it. */
enum tw_kind {
	TW_KIND_DATAGRAM = 1,       /* whole IP datagram with its transport header */
	TW_KIND_FIRST_FRAGMENT = 2, /* first fragment: has the transport header */
	TW_KIND_FRAGMENT = 3,       /* later fragment: in the fragment channel */
	TW_KIND_ICMP_ERROR = 4,     /* ICMP error quoting a flow of the channel's owner */
	TW_KIND_RAW = 5,            /* owned, but not demultiplexed (host demux architectures) */
};

/* Frame metadata, written just below the frame's first byte (24 bytes), or as
 * the first bytes of the frame (tw_queue.metadata_in_frame).
 * Writer: the driver program. */
struct tw_metadata {
	__u32 channel;   /* channel id; 0 for TW_KIND_RAW */
	__u32 credit;    /* the channel's head on this queue after this frame */
	__u32 trace;     /* trace id, 0 = not traced */
	__u8 kind;       /* enum tw_kind */
	__u8 version;    /* 4 or 6 */
	__u8 protocol;   /* transport protocol number after extension headers */
	__u8 pad;
	__u16 network;   /* offset of the IP header from the frame's first byte */
	__u16 transport; /* offset of the transport header, or of the fragment's payload */
	__u16 end;       /* offset one past the IP datagram (link padding excluded) */
	__u16 fragment;  /* offset of the fragment header for IPv6, else 0 */
};

/* Classes of kernel-bound frames, each a token bucket a queue. */
enum tw_class {
	TW_CLASS_NEIGHBOUR = 0,   /* IPv6 neighbour and router discovery from this link */
	TW_CLASS_ARP = 1,
	TW_CLASS_ICMP = 2,        /* other ICMP and ICMPv6, MLD, IGMP */
	TW_CLASS_ESTABLISHED = 3, /* TCP segments with ACK or RST set */
	TW_CLASS_SYN = 4,         /* TCP segments with neither */
	TW_CLASS_UDP = 5,
	TW_CLASS_OPEN = 6,        /* of the last three beyond their rates, what the kernel has a socket for */
	TW_CLASS_MULTICAST = 7,   /* other IP datagrams in frames to a group or to all */
	TW_CLASS_OTHER = 8,       /* other IP protocols, later fragments */
	TW_CLASS_FORWARDED = 9,   /* to other hosts, tagged, of unknown type: unlimited unless asked for */
	TW_CLASS_NO_CONNECTION = 10, /* TCP segments to a strict listener's port that belong to nothing */
	TW_CLASSES = 11,
};

/* A class's frames pass while its bucket has tokens. When it has none, a frame
 * passes if there is a token in one of its two places among tw_device.kernel_shares:
 * that of its sender and that of what it is for. So whoever empties the bucket
 * leaves others their share, and what the kernel has a socket for has a bucket
 * more: looking for that costs more than all else here. Rate and burst are drawn anew, 0.5 to 1.5 of what
 * is set, and the places change, in each epoch (1.07 s). */
struct tw_class_bucket {
	__u64 rate;    /* frames a second; 0 = unlimited. Writer: manager */
	__u64 burst;   /* most tokens held; 0 = shares alone. Writer: manager */
	__u64 tokens;  /* in billionths of a frame. Writer: driver */
	__u64 updated; /* ns of the last refill. Writer: driver */
	__u64 passed;  /* Writer: driver */
	__u64 dropped; /* over the rate, and over the shares. Writer: driver */
	__u64 share_interval;  /* ns between the frames of one place; 0: no shares. Writer: manager */
	__u64 share_tolerance; /* ns that they may be early: (burst - 1) intervals. Writer: manager */
	__u64 drawn;   /* 256ths of rate and burst in this epoch. Writer: driver */
};

/* Per-queue counters: one for each way a frame can go in the driver.
 * Writer: the driver program on that queue. */
enum tw_counter {
	TW_COUNT_FRAMES = 0,           /* every frame seen */
	TW_COUNT_CHANNEL,              /* redirected to a channel */
	TW_COUNT_RAW,                  /* redirected without demultiplexing */
	TW_COUNT_TRUNCATED,            /* dropped: shorter than its headers or lengths say */
	TW_COUNT_MALFORMED,            /* dropped: contradictory header fields */
	TW_COUNT_CHANNEL_FULL,         /* dropped: channel at its limit (early discard) */
	TW_COUNT_CHANNEL_CLOSED,       /* dropped: table entry names a closed channel */
	TW_COUNT_NO_SOCKET,            /* owned, but no AF_XDP socket on this queue: datagrams and SYNs are kernel-bound, the rest is dropped */
	TW_COUNT_NO_METADATA,          /* passed to the kernel: no room for metadata before the frame or in it */
	TW_COUNT_TAGGED,               /* VLAN-tagged, kernel-bound */
	TW_COUNT_UNKNOWN,              /* unknown ethertype, kernel-bound */
	TW_COUNT_MULTICAST,            /* group or broadcast destination, kernel-bound */
	TW_COUNT_NOT_LOCAL,            /* destination not an address of this host, kernel-bound */
	TW_COUNT_UNOWNED,              /* local unicast with no owner, kernel-bound */
	TW_COUNT_FRAGMENT_ORPHAN,      /* later fragment whose first was not seen */
	TW_COUNT_NAPI_PROBE,           /* passed to a helper socket, which has the NAPI id from it */
	TW_COUNT_COOKIE_SENT,          /* SYN answered with a cookie (XDP_TX); Linux: SyncookiesSent */
	TW_COUNT_COOKIE_VALID,         /* ACK with a valid cookie, beside where it went; SyncookiesRecv */
	TW_COUNT_COOKIE_FAILED,        /* ACK without one, beside where it went; SyncookiesFailed */
	TW_COUNT_NO_CONNECTION,        /* TCP of no flow at a strict port: kernel-bound, at a bounded rate */
	TW_COUNT_OVER_SHARE,           /* dropped: the flow has had its part of a channel that many share */
	TW_COUNTERS = 24,
};

struct tw_hash_key {               /* of SipHash */
	__u64 words[2];
};

/* Device-wide state. Writer: manager, unless a field says otherwise. */
struct tw_control {
	struct tw_hash_key hash_key;   /* of flows and of places */
	__u32 raw;                     /* 1: redirect owned frames without demultiplexing */
	__u32 fragment_application;    /* 1 + application that gets orphan fragments; 0: none */
	__u32 trace_remaining;         /* frames still to sample. Writer: manager sets, driver counts down */
	__u32 trace_next;              /* last trace id given. Writer: driver */
	__u16 probe_port[TW_QUEUES];   /* host order; nonzero: send a NAPI probe there. Driver clears it */
	__u16 probed_port[TW_QUEUES];  /* host order: original port of the probe. Writer: driver */
	__u8 locals[TW_LOCALS][16];    /* open-addressed set of local addresses; all zero = free */
	__u32 probed_sequence[TW_QUEUES]; /* host order: sequence number of a probe that was a segment. Writer: driver */
	__u8 probed_protocol[TW_QUEUES];  /* of the probe: UDP or TCP. Writer: driver */
	__u8 probed_link[TW_QUEUES][6];   /* of the probe: its source link address. Writer: driver */
	/* Host order: the source port that a probe is given, by which its helper
	 * knows it; the driver leaves the original one in its place. */
	__u16 probe_source[TW_QUEUES];
};

/* What one receive queue counts. Writer: the driver program on that queue. */
struct tw_queue {
	__u64 counters[TW_COUNTERS];                 /* by enum tw_counter */
	struct tw_class_bucket classes[TW_CLASSES];  /* by enum tw_class */
	/* 1: the metadata are the first bytes of each redirected frame, since the
	 * driver has no place for them before it (XDP metadata). */
	__u32 metadata_in_frame;
	__u32 pad;
};

/* Trusted level: ports[0 for UDP, 65536 for TCP + port]. Writer: manager. */
#define TW_OWNER_ANY 0x10000u       /* application owns the port on every local address */
#define TW_OWNER_BY_ADDRESS 0x20000u /* look in `owners` for (protocol, address, port) first */
#define TW_OWNER_APPLICATION 0xffffu /* 1 + application, valid with TW_OWNER_ANY */

struct tw_owner_key {              /* key of the `owners` hash; value: __u32 application */
	__u8 address[16];
	__u16 port;                    /* network order */
	__u8 protocol;
	__u8 pad;
};

/* Trusted level, the one value of the map `device`: one map, so that the
 * program pays for one look-up and the manager for one mapping (elements of an
 * array map are padded to 8 bytes, so an array of __u32 would be twice as big). */
struct tw_device {
	struct tw_control control;
	struct tw_queue queues[TW_QUEUES];
	__u32 ports[2 * 65536];
	/* Of senders and of purposes: when the next frame of a place is due, ns
	 * (GCRA, ITU-T I.371). Writer: driver */
	__u64 kernel_shares[TW_QUEUES][2][TW_KERNEL_SHARES];
};

/* Application level, one per application, memory-mapped by it. */
#define TW_LISTEN_LOCAL 1u          /* flows hold entries for (local address, port, no remote) */
#define TW_LISTEN_CONNECTED 2u      /* flows hold entries with a remote end */
/* A TCP port of which every connection is in `flows`: a channel gets only SYNs,
 * valid cookies and its own flows' segments. */
#define TW_LISTEN_TCP_STRICT 4u
#define TW_LISTEN_COOKIES 8u        /* SYNs are answered here, with cookies */
#define TW_LISTEN_COOKIES_VALID 16u /* cookies are taken: some were sent lately */
#define TW_LISTEN_TIMESTAMPS 32u    /* cookie answers may have timestamps */
#define TW_LISTEN_SACK 64u          /* and, with those, SACK */
#define TW_LISTEN_ECN 128u          /* and, with those, ECN */
#define TW_LISTEN_SCALE_SHIFT 8     /* 4 bits: our window scale in cookie answers, 15 none */
#define TW_LISTEN_WINDOW_SHIFT 16   /* 16 bits: our window in cookie answers */
struct tw_listener {
	__u32 channel[2];              /* channel id for any address of IPv4, of IPv6; 0 none */
	__u32 flags;
};

/* What SYN cookies are made of (RFC 4987 section 3.6); crates/protocol/src/tcp/cookie.rs
 * has the same bits. Writer: application. */
struct tw_cookies {
	__u64 key[2];                  /* SipHash key */
	__u64 epoch;                   /* ns, CLOCK_MONOTONIC: when the application's clock was 0 */
	__u16 mss[2];                  /* announced to IPv4, to IPv6 peers; host order */
	__u8 hop_limit;
	__u8 redirect;                 /* 1: answers leave by XDP_REDIRECT to their own interface */
	__u8 pad[2];
};

struct tw_flow {                   /* 48 bytes */
	__u8 local[16];
	__u8 remote[16];               /* zero for a listener on one address */
	__u16 local_port;              /* network order */
	__u16 remote_port;             /* network order, 0 for a listener */
	__u8 protocol;
	__u8 pad[3];
	__u32 channel;                 /* 0 = slot free; written last, cleared first */
	/* With a share: frames that came in `epoch`. Writer: driver. */
	__u16 epoch;
	__u16 came;
};

/* What each of many flows may have of the channel that they share. Writer:
 * application. */
struct tw_share {
	__u16 epoch;                   /* changes when the channel was emptied */
	__u16 most;                    /* frames of a flow in one epoch; 0: any number */
};

struct tw_channel_application {    /* writer: application */
	__u32 tail;                    /* frames no longer outstanding */
	__u32 limit;                   /* most frames outstanding; 0 = closed */
};

struct tw_channel_driver {         /* writer: driver program on that queue */
	__u32 head;                    /* frames ever admitted */
	__u32 pad;
	__u64 dropped;                 /* at the limit */
};

struct tw_application {
	struct tw_listener listeners[2 * 65536];  /* UDP, then TCP. Writer: application */
	/* A byte of each flow's hash, 0 = free: a look-up that finds nothing, as
	 * for each SYN of a flood, touches these and no flow. */
	__u8 tags[TW_FLOW_BUCKETS][TW_FLOW_WAYS];
	struct tw_flow flows[TW_FLOW_BUCKETS][TW_FLOW_WAYS];
	struct tw_channel_application channels[TW_QUEUES][TW_CHANNELS];
	struct tw_channel_driver heads[TW_QUEUES][TW_CHANNELS];
	struct tw_cookies cookies;
	__u32 fragment_channel;        /* channel id that gets later fragments */
	struct tw_share shares[TW_SHARES];
	__u32 pad;
};

/* Where datagrams are being fragmented: who got the first fragment. */
struct tw_fragment_key {
	__u8 source[16];
	__u8 destination[16];
	__u32 identification;
	__u8 protocol;                 /* IPv4 only; 0 for IPv6 */
	__u8 pad[3];
};
/* value: __u32, 1 + application, or 0 for the kernel */

/* One record of the `traces` ring buffer. */
#define TW_TRACE_BYTES 256
struct tw_trace {
	__u64 time;                    /* ns, CLOCK_MONOTONIC */
	__u32 trace;
	__u32 channel;
	__u32 verdict;                 /* enum xdp_action as returned */
	__u32 cause;                   /* enum tw_counter that was counted */
	__u32 queue;
	__u32 length;                  /* of the frame */
	__u32 captured;
	__u8 bytes[TW_TRACE_BYTES];
	__u32 pad;
};

#endif
