/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The demultiplexer that runs in the driver (XDP): decides for every frame
 * whether it is the kernel's, an application's or nobody's, and for an
 * application's frame which channel gets it and whether that has room (LRP,
 * Druschel & Banga, OSDI 1996, sections 3.1 and 3.2).
 *
 * crates/device/src/demux/drive.rs is the same function in Rust; a test runs
 * both on one corpus and asks for the same answer. Change both or neither.
 *
 * The common case, a UDP datagram for a socket bound to any address, runs
 * straight through demux(). Everything rare is in global functions: the
 * verifier checks each of those once, for any arguments, where it follows a
 * static function again at each call and on each way to it. So loading costs
 * what the program is long, not what its ways multiply to. The verifiers of
 * Linux 6.1 to 6.18 must all follow (`make kernels`): they know nothing of a
 * register after a byte swap, and forget a scalar's bounds where ways meet.
 * Needs nothing but clang and the kernel's UAPI headers.
 */
#include <linux/bpf.h>

#include "tables.h"

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* Verified by itself, for any arguments: pointers may be null. */
#define GLOBAL __attribute__((noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define htons(x) ((__u16)__builtin_bswap16(x))
/* Last eight bytes of ::ffff:a.b.c.d as one word in memory order. */
#define MAPPED(address) ((__u64)(address) << 32 | 0xffff0000ULL)
#else
#define htons(x) ((__u16)(x))
#define MAPPED(address) (0x0000ffffULL << 32 | (__u64)(address))
#endif
#define ntohs htons

/* crates/device/src/demux/layout.rs asserts the same numbers. */
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define AT(type, field, offset) _Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field)
SIZE(tw_metadata, 24); AT(tw_metadata, kind, 12); AT(tw_metadata, network, 16); AT(tw_metadata, fragment, 22);
SIZE(tw_class_bucket, 48); AT(tw_class_bucket, passed, 32);
SIZE(tw_control, 1176); AT(tw_control, taught_sequence, 1088); AT(tw_control, taught_protocol, 1120); AT(tw_control, taught_link, 1128); AT(tw_control, raw, 16); AT(tw_control, trace_remaining, 24);
AT(tw_control, teach_port, 32); AT(tw_control, taught_port, 48); AT(tw_control, locals, 64);
SIZE(tw_queue, 440); AT(tw_queue, classes, 192); AT(tw_queue, metadata_in_frame, 432);
SIZE(tw_device, 528984); AT(tw_device, queues, 1176); AT(tw_device, ports, 4696);
SIZE(tw_listener, 12);
SIZE(tw_flow, 48); AT(tw_flow, local_port, 32); AT(tw_flow, protocol, 36); AT(tw_flow, channel, 40);
SIZE(tw_channel_application, 8); AT(tw_channel_application, limit, 4);
SIZE(tw_channel_driver, 16); AT(tw_channel_driver, dropped, 8);
SIZE(tw_cookies, 32); AT(tw_cookies, epoch, 16); AT(tw_cookies, mss, 24); AT(tw_cookies, hop_limit, 28); AT(tw_cookies, redirect, 29);
AT(tw_application, tags, 1572864); AT(tw_application, flows, 1835008);
AT(tw_application, channels, 14417920); AT(tw_application, heads, 14680064);
AT(tw_application, cookies, 15204352); AT(tw_application, fragment_channel, 15204384);
SIZE(tw_application, 15204392);
SIZE(tw_owner_key, 20);
SIZE(tw_fragment_key, 40);
SIZE(tw_trace, 296); AT(tw_trace, captured, 32); AT(tw_trace, bytes, 36);

/* The helpers used here (man 7 bpf-helpers), by number. */
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*const bpf_redirect)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*const bpf_redirect_map)(const void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static long (*const bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_head;
static long (*const bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_meta;
static __u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)BPF_FUNC_xdp_get_buff_len;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *ctx, __u32 offset, void *to, __u32 length) =
	(void *)BPF_FUNC_xdp_load_bytes;
static long (*const bpf_xdp_store_bytes)(struct xdp_md *ctx, __u32 offset, void *from, __u32 length) =
	(void *)BPF_FUNC_xdp_store_bytes;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)BPF_FUNC_xdp_adjust_tail;
static void *(*const bpf_ringbuf_reserve)(const void *map, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_reserve;
static void (*const bpf_ringbuf_submit)(void *record, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;

/* Map definitions, in the form that loaders read from BTF. */
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, type) type *name

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct tw_device);
} device SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, 4096);
	TYPE(key, struct tw_owner_key);
	TYPE(value, __u32);
} owners SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, 4096);
	TYPE(key, struct tw_fragment_key);
	TYPE(value, __u32);
} fragments SEC(".maps");

struct application_map {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct tw_application);
};

/* The application of an embedded stack, which is alone on its device. */
struct application_map embedded SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	NUMBER(max_entries, TW_APPLICATIONS);
	TYPE(key, __u32);
	struct application_map *values[];
} applications SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(max_entries, TW_APPLICATIONS * TW_QUEUES);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	NUMBER(max_entries, 256 * 1024);
} traces SEC(".maps");

/* Offsets in a frame; the Ethernet header is never tagged when we parse on. */
#define NETWORK 14
#define V4_HEADER 20
#define V6_HEADER 40
#define EXTENSION_HEADERS 8 /* more than this in one datagram is an attack */

enum { ICMP = 1, IGMP = 2, TCP = 6, UDP = 17, ICMPV6 = 58 };
enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, AUTHENTICATION = 51, DESTINATION = 60 };
enum { TCP_FIN = 0x01, TCP_SYN = 0x02, TCP_RST = 0x04, TCP_ACK = 0x10, TCP_ECE = 0x40, TCP_CWR = 0x80 };
#define TCP_HEADER 20
#define TCP_OPTIONS 40 /* the most */

/* Two ends of a flow, seen from here. */
struct ends {
	__u64 local[2];
	__u64 remote[2];
	__u16 local_port;  /* network order */
	__u16 remote_port; /* network order */
	__u8 protocol;
	__u8 v4;
	__u16 pad;
};

/* Where a datagram's transport header (or a fragment's payload) begins and the
 * datagram ends, of which protocol and version it is, in one argument. */
#define PLACE(transport, end, protocol, flags) \
	((__u64)(flags) | (__u64)(protocol) << 40 | (__u64)(end) << 16 | (transport))
#define PLACE_TRANSPORT(place) ((__u32)(place) & 0xffff)
#define PLACE_END(place) ((__u32)((place) >> 16) & 0xffff)
#define PLACE_PROTOCOL(place) ((__u32)((place) >> 40) & 0xff)
#define PLACE_WHOLE (1ULL << 32) /* no fragment */
#define PLACE_V6 (1ULL << 33)
/* Frames are shorter, which bounds offsets for the verifier. */
#define FRAME_MASK 0x3fff

/* Keeps `x` below 2^n for `mask` = 2^n - 1, where the program knows it to be and
 * a verifier, or the next, does not; the compiler may not take it out again. */
#define BOUND(x, mask) asm volatile("%0 &= %1" : "+r"(x) : "i"(mask))

/* Keeps the compiler from concluding from a check of another pointer that one
 * of this is not needed: a verifier knows only what was checked of each. */
#define CHECKED_ALONE(pointer) asm volatile("" : "+r"(pointer))

INLINE void count(struct tw_queue *queue, enum tw_counter counter)
{
	queue->counters[counter]++;
}

/* ---- The kernel's frames ------------------------------------------------ */

/* Lets a kernel-bound frame pass if its class has a token. */
GLOBAL int to_kernel(struct tw_queue *queue, __u32 class)
{
	if (!queue || class >= TW_CLASSES)
		return XDP_ABORTED;
	struct tw_class_bucket *bucket = &queue->classes[class];
	__u64 rate = READ_ONCE(bucket->rate);
	if (!rate) {
		bucket->passed++;
		return XDP_PASS;
	}
	__u64 now = bpf_ktime_get_ns();
	__u64 elapsed = now > bucket->updated ? now - bucket->updated : 0;
	/* 4.29 s: keeps the product below 2^63 for any rate below 2^31. */
	if (elapsed > 0xffffffffULL)
		elapsed = 0xffffffffULL;
	__u64 tokens = bucket->tokens + elapsed * rate;
	__u64 most = READ_ONCE(bucket->burst) * 1000000000ULL;
	if (tokens > most)
		tokens = most;
	bucket->updated = now;
	if (tokens < 1000000000ULL) {
		bucket->tokens = tokens;
		bucket->dropped++;
		return XDP_DROP;
	}
	bucket->tokens = tokens - 1000000000ULL;
	bucket->passed++;
	return XDP_PASS;
}

INLINE __u32 icmpv6_class(__u8 type)
{
	/* Router and neighbour solicitation and advertisement, redirect. */
	return type >= 133 && type <= 137 ? TW_CLASS_NEIGHBOUR : TW_CLASS_ICMP;
}

/* Class of an IP datagram whose transport header, if `whole` and present, is
 * at `transport`. */
GLOBAL __u32 datagram_class(struct xdp_md *ctx, __u32 protocol, __u32 transport, __u32 end, __u32 version)
{
	__u8 byte;
	if (protocol == TCP) {
		if (transport + 14 > end || bpf_xdp_load_bytes(ctx, transport + 13, &byte, 1))
			return TW_CLASS_OTHER;
		return (byte & (TCP_SYN | TCP_ACK)) == TCP_ACK ? TW_CLASS_ESTABLISHED : TW_CLASS_OTHER;
	}
	if (version == 4)
		return protocol == ICMP || protocol == IGMP ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	if (protocol != ICMPV6)
		return TW_CLASS_OTHER;
	if (transport >= end || bpf_xdp_load_bytes(ctx, transport, &byte, 1))
		return TW_CLASS_ICMP;
	return icmpv6_class(byte);
}

/* Class of a frame to a group, of which nothing was checked yet. */
GLOBAL __u32 group_class(struct xdp_md *ctx, __u32 ethertype)
{
	__u8 bytes[2];
	if (ethertype == 0x0806)
		return TW_CLASS_NEIGHBOUR;
	if (ethertype == 0x0800) {
		if (bpf_xdp_load_bytes(ctx, NETWORK + 9, bytes, 1))
			return TW_CLASS_OTHER;
		return bytes[0] == ICMP || bytes[0] == IGMP ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	}
	if (ethertype != 0x86dd || bpf_xdp_load_bytes(ctx, NETWORK + 6, bytes, 1))
		return TW_CLASS_OTHER;
	__u8 next = bytes[0];
	if (bpf_xdp_load_bytes(ctx, NETWORK + V6_HEADER, bytes, 2))
		return next == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_OTHER;
	if (next == ICMPV6)
		return icmpv6_class(bytes[0]);
	/* MLD comes behind a router alert (RFC 3810 section 5). */
	return next == HOP_BY_HOP && bytes[0] == ICMPV6 ? TW_CLASS_ICMP : TW_CLASS_OTHER;
}

/* ---- Headers ------------------------------------------------------------- */

/* What walk_extensions() found. */
#define WALK_OK (1ULL << 63)
#define WALK_LATER (1ULL << 62) /* a later fragment: `transport` is its payload */
#define WALK_FIRST (1ULL << 61) /* a first fragment, more follow */
#define WALK_PROTOCOL(w) ((__u8)((w) >> 32))
#define WALK_FRAGMENT(w) ((__u32)((w) >> 16) & 0xffff)
#define WALK_TRANSPORT(w) ((__u32)(w) & 0xffff)

/* Walks IPv6 extension headers from `offset`. An atomic fragment (RFC 6946) is
 * a whole datagram. A header past `end`, more than EXTENSION_HEADERS or a
 * second fragment header: 0. */
GLOBAL __u64 walk_extensions(struct xdp_md *ctx, __u32 offset, __u32 end, __u32 next)
{
	__u64 flags = WALK_OK;
	__u32 fragment = 0;
	__u8 header[8];
	for (int i = 0; i <= EXTENSION_HEADERS; i++) {
		switch (next) {
		case HOP_BY_HOP:
		case ROUTING:
		case DESTINATION:
		case FRAGMENT:
		case AUTHENTICATION:
			break;
		default:
			return flags | (__u64)(next & 0xff) << 32 | (__u64)(fragment & 0xffff) << 16 |
			       (offset & 0xffff);
		}
		if (offset + 8 > end || bpf_xdp_load_bytes(ctx, offset, header, 8))
			return 0;
		if (next == FRAGMENT) {
			if (fragment)
				return 0;
			fragment = offset;
			__u32 field = (__u32)header[2] << 8 | header[3];
			if (field & 0xfff8)
				return flags | WALK_LATER | (__u64)header[0] << 32 | (__u64)(fragment & 0xffff) << 16 |
				       ((offset + 8) & 0xffff);
			if (field & 1)
				flags |= WALK_FIRST;
			offset += 8;
		} else if (next == AUTHENTICATION) {
			offset += ((__u32)header[1] + 2) * 4;
		} else {
			offset += ((__u32)header[1] + 1) * 8;
		}
		if (offset > end)
			return 0;
		next = header[0];
	}
	return 0;
}

/* Reads the ends of the flow that an ICMP error at `transport` quotes. True if
 * it is UDP or TCP that was sent from the error's own destination. */
GLOBAL int quoted_ends(struct xdp_md *ctx, struct ends *ends, __u64 place)
{
	__u8 header[V6_HEADER];
	__u32 transport = PLACE_TRANSPORT(place), end = PLACE_END(place);
	__u32 offset = transport + 8, next;
	__u16 ports[2];
	if (!ends || offset > end || bpf_xdp_load_bytes(ctx, transport, header, 8))
		return 0;
	__u8 type = header[0];
	if (!(place & PLACE_V6)) {
		/* RFC 792: unreachable, time exceeded, parameter problem. */
		if (type != 3 && type != 11 && type != 12)
			return 0;
		if (offset + V4_HEADER > end || bpf_xdp_load_bytes(ctx, offset, header, V4_HEADER))
			return 0;
		__u32 length = (header[0] & 15) * 4;
		if (header[0] >> 4 != 4 || length < V4_HEADER)
			return 0;
		if (((__u32)header[6] << 8 | header[7]) & 0x1fff)
			return 0;
		next = header[9];
		__u32 destination;
		if (bpf_xdp_load_bytes(ctx, NETWORK + 16, &destination, 4) || destination != *(__u32 *)(header + 12))
			return 0;
		ends->local[0] = 0;
		ends->local[1] = MAPPED(destination);
		ends->remote[0] = 0;
		ends->remote[1] = MAPPED(*(__u32 *)(header + 16));
		offset += length;
	} else {
		/* RFC 4443: types 1 to 4 are errors with a defined quotation. */
		if (type < 1 || type > 4)
			return 0;
		if (offset + V6_HEADER > end || bpf_xdp_load_bytes(ctx, offset, header, V6_HEADER))
			return 0;
		if (header[0] >> 4 != 6)
			return 0;
		next = header[6];
		if (bpf_xdp_load_bytes(ctx, NETWORK + 24, ends->local, 16) ||
		    ends->local[0] != *(__u64 *)(header + 8) || ends->local[1] != *(__u64 *)(header + 16))
			return 0;
		ends->remote[0] = *(__u64 *)(header + 24);
		ends->remote[1] = *(__u64 *)(header + 32);
		__u64 walked = walk_extensions(ctx, offset + V6_HEADER, end, next);
		if (!walked || walked & WALK_LATER)
			return 0;
		next = WALK_PROTOCOL(walked);
		offset = WALK_TRANSPORT(walked);
	}
	if (next != UDP && next != TCP)
		return 0;
	if (offset + 4 > end || bpf_xdp_load_bytes(ctx, offset, ports, 4))
		return 0;
	ends->local_port = ports[0];
	ends->remote_port = ports[1];
	ends->protocol = next;
	ends->v4 = !(place & PLACE_V6);
	return 1;
}

/* Reads the ends of a frame that begins with its UDP or TCP header's ports at
 * `place`. */
INLINE int frame_ends(struct xdp_md *ctx, struct ends *ends, __u64 place)
{
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const __u16 *ports = (const __u16 *)(data + (place & FRAME_MASK));
	CHECKED_ALONE(ports);
	if ((const __u8 *)(ports + 2) > data_end)
		return 0;
	ends->local_port = ports[1];
	ends->remote_port = ports[0];
	ends->protocol = PLACE_PROTOCOL(place);
	ends->v4 = !(place & PLACE_V6);
	ends->pad = 0;
	if (!(place & PLACE_V6)) {
		if (data + NETWORK + V4_HEADER > data_end)
			return 0;
		ends->local[0] = 0;
		ends->local[1] = MAPPED(*(const __u32 *)(data + NETWORK + 16));
		ends->remote[0] = 0;
		ends->remote[1] = MAPPED(*(const __u32 *)(data + NETWORK + 12));
	} else {
		if (data + NETWORK + V6_HEADER > data_end)
			return 0;
		ends->local[0] = *(const __u64 *)(data + NETWORK + 24);
		ends->local[1] = *(const __u64 *)(data + NETWORK + 32);
		ends->remote[0] = *(const __u64 *)(data + NETWORK + 8);
		ends->remote[1] = *(const __u64 *)(data + NETWORK + 16);
	}
	return 1;
}

/* ---- Trusted level ------------------------------------------------------- */

INLINE __u32 local_slot(__u64 high, __u64 low)
{
	__u64 folded = high ^ low;
	__u32 word = (__u32)(folded >> 32) ^ (__u32)folded;
	return (word * 0x9e3779b1u) >> 26;
}
_Static_assert(TW_LOCALS == 1 << (32 - 26), "local_slot gives 6 bits");

GLOBAL int probe_locals(struct tw_control *control, __u64 high, __u64 low)
{
	if (!control)
		return 0;
	__u32 slot = local_slot(high, low);
	for (__u32 i = 1; i < TW_LOCAL_PROBES; i++) {
		const __u64 *entry = (const __u64 *)control->locals[(slot + i) & (TW_LOCALS - 1)];
		if (READ_ONCE(entry[0]) == high && READ_ONCE(entry[1]) == low)
			return 1;
	}
	return 0;
}

/* True for an address of this host. The set needs no keyed hash: its members
 * are ours, and a miss costs TW_LOCAL_PROBES whatever the peer chose. */
INLINE int is_local(struct tw_control *control, __u64 high, __u64 low)
{
	const __u64 *entry = (const __u64 *)control->locals[local_slot(high, low) & (TW_LOCALS - 1)];
	if (likely(READ_ONCE(entry[0]) == high && READ_ONCE(entry[1]) == low))
		return 1;
	return probe_locals(control, high, low);
}

/* A port as it stands in the header indexes both tables. */
INLINE __u32 port_index(__u32 protocol, __u16 port)
{
	__u32 index = (protocol == TCP ? 65536u : 0u) + port;
	BOUND(index, 0x1ffff);
	return index;
}

#define NO_OWNER 0xffffffffu

/* The application that owns a flow, or NO_OWNER. */
GLOBAL __u32 find_owner(struct tw_device *device, struct ends *ends)
{
	if (!device || !ends)
		return NO_OWNER;
	__u32 entry = READ_ONCE(device->ports[port_index(ends->protocol, ends->local_port)]);
	if (entry & TW_OWNER_BY_ADDRESS) {
		struct tw_owner_key key = { .port = ends->local_port, .protocol = ends->protocol };
		__builtin_memcpy(key.address, ends->local, 16);
		__u32 *application = bpf_map_lookup_elem(&owners, &key);
		if (application)
			return *application;
	}
	return entry & TW_OWNER_ANY ? (entry & TW_OWNER_APPLICATION) - 1 : NO_OWNER;
}

/* The owner of a frame's flow where a port has owners by address. */
GLOBAL __u32 frame_owner(struct xdp_md *ctx, struct tw_device *device, __u64 place)
{
	struct ends ends = {};
	return device && frame_ends(ctx, &ends, place) ? find_owner(device, &ends) : NO_OWNER;
}

/* The owner of the flow that an ICMP error quotes. */
GLOBAL __u32 quoted_owner(struct xdp_md *ctx, struct tw_device *device, __u64 place)
{
	struct ends ends = {};
	return device && quoted_ends(ctx, &ends, place) ? find_owner(device, &ends) : NO_OWNER;
}

/* ---- Fragments ----------------------------------------------------------- */

INLINE int fragment_key(struct xdp_md *ctx, struct tw_fragment_key *key, __u64 place, __u32 fragment)
{
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	if (!(place & PLACE_V6)) {
		if (data + NETWORK + V4_HEADER > data_end)
			return 0;
		*(__u64 *)(key->source + 8) = MAPPED(*(const __u32 *)(data + NETWORK + 12));
		*(__u64 *)(key->destination + 8) = MAPPED(*(const __u32 *)(data + NETWORK + 16));
		key->identification = *(const __u16 *)(data + NETWORK + 4);
		key->protocol = PLACE_PROTOCOL(place);
		return 1;
	}
	return !bpf_xdp_load_bytes(ctx, NETWORK + 8, key, 32) &&
	       !bpf_xdp_load_bytes(ctx, fragment + 4, &key->identification, 4);
}

#define UNDECIDED (1ULL << 32)

/* What was decided of the datagram that a later fragment is part of: 1 + its
 * application, 0 for the kernel, UNDECIDED where its first was not seen. */
GLOBAL __u64 fragment_decision(struct xdp_md *ctx, __u64 place, __u32 fragment)
{
	struct tw_fragment_key key = {};
	if (!fragment_key(ctx, &key, place, fragment))
		return UNDECIDED;
	__u32 *decision = bpf_map_lookup_elem(&fragments, &key);
	return decision ? *decision : UNDECIDED;
}

GLOBAL int decide_fragments(struct xdp_md *ctx, __u64 place, __u32 fragment, __u32 decision)
{
	struct tw_fragment_key key = {};
	if (fragment_key(ctx, &key, place, fragment))
		bpf_map_update_elem(&fragments, &key, &decision, BPF_ANY);
	return 0;
}

/* ---- Application level --------------------------------------------------- */

#define ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))
#define ROUND                                                                  \
	do {                                                                       \
		v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32);          \
		v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2;                               \
		v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0;                               \
		v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32);          \
	} while (0)
#define ABSORB(word)                                                           \
	do {                                                                       \
		__u64 w = (word);                                                      \
		v3 ^= w;                                                               \
		ROUND;                                                                 \
		v0 ^= w;                                                               \
	} while (0)

/* SipHash-1-3 (Aumasson & Bernstein, 2012) of a flow: an attacker who does not
 * know the key cannot fill one bucket. */
INLINE __u64 flow_hash(const struct tw_control *control, const struct ends *ends)
{
	__u64 k0 = control->hash_key[0], k1 = control->hash_key[1];
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	__u64 length;
	if (ends->v4) {
		const __u32 *local = (const __u32 *)ends->local, *remote = (const __u32 *)ends->remote;
		ABSORB((__u64)local[3] << 32 | remote[3]);
		length = 16;
	} else {
		ABSORB(ends->local[0]);
		ABSORB(ends->local[1]);
		ABSORB(ends->remote[0]);
		ABSORB(ends->remote[1]);
		length = 40;
	}
	ABSORB((__u64)ends->local_port << 32 | (__u64)ends->remote_port << 16 | ends->protocol);
	ABSORB(length << 56);
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The byte of a flow's hash that neither of its buckets' numbers has; never 0. */
INLINE __u8 flow_tag(__u64 hash)
{
	__u8 tag = hash >> 24;
	return tag ? tag : 1;
}

#define EACH_BYTE 0x0101010101010101ULL
_Static_assert(TW_FLOW_WAYS == 8, "the tags of a bucket are compared as one word");

/* Channel of an entry if it is this flow's, or 0. */
INLINE __u32 same_flow(const struct tw_flow *flow, const struct ends *ends)
{
	/* The application writes the channel last and clears it first, so the key
	 * belongs to it if it is the same before and after. */
	__u32 channel = READ_ONCE(flow->channel);
	const __u64 *local = (const __u64 *)flow->local, *remote = (const __u64 *)flow->remote;
	if (READ_ONCE(local[0]) == ends->local[0] && READ_ONCE(local[1]) == ends->local[1] &&
	    READ_ONCE(remote[0]) == ends->remote[0] && READ_ONCE(remote[1]) == ends->remote[1] &&
	    READ_ONCE(flow->local_port) == ends->local_port &&
	    READ_ONCE(flow->remote_port) == ends->remote_port &&
	    READ_ONCE(flow->protocol) == ends->protocol && READ_ONCE(flow->channel) == channel)
		return channel;
	return 0;
}

/* Channel of an exact entry, or 0. */
GLOBAL __u32 find_flow(struct tw_application *application, struct tw_control *control, struct ends *ends)
{
	if (!application || !control || !ends)
		return 0;
	__u64 hash = flow_hash(control, ends);
	__u64 tag = flow_tag(hash);
	for (int choice = 0; choice < 2; choice++) {
		/* Two buckets to choose from: the table fills to seven tenths before
		 * a flow finds no place, where one would overflow at a tenth. */
		__u64 bucket = (choice ? hash >> 32 : hash) & (TW_FLOW_BUCKETS - 1);
		/* The lowest set bit marks the first tag that is the same; those
		 * above may be false, as any tag may: the flow itself decides. */
		__u64 differs = READ_ONCE(*(const __u64 *)application->tags[bucket]) ^ tag * EACH_BYTE;
		if (!((differs - EACH_BYTE) & ~differs & EACH_BYTE << 7))
			continue;
		for (int way = 0; way < TW_FLOW_WAYS; way++) {
			if (READ_ONCE(application->tags[bucket][way]) != tag)
				continue;
			__u32 channel = same_flow(&application->flows[bucket][way], ends);
			if (channel)
				return channel;
		}
	}
	return 0;
}

/* Channel of the listener: by local address, then any address; 0: none. */
GLOBAL __u32 find_listener(struct tw_application *application, struct tw_control *control, struct ends *ends)
{
	if (!application || !control || !ends)
		return 0;
	struct tw_listener *listener = &application->listeners[port_index(ends->protocol, ends->local_port)];
	if (READ_ONCE(listener->flags) & TW_LISTEN_LOCAL) {
		struct ends listening = *ends;
		listening.remote[0] = 0;
		listening.remote[1] = 0;
		listening.remote_port = 0;
		__u32 channel = find_flow(application, control, &listening);
		if (channel)
			return channel;
	}
	return ends->v4 ? READ_ONCE(listener->channel[0]) : READ_ONCE(listener->channel[1]);
}

/* Channel of the flow that an ICMP error quotes: exact, then the listener's,
 * but for a strict port; 0: none. */
GLOBAL __u32 quoted_channel(struct xdp_md *ctx, struct tw_application *application, struct tw_control *control,
			    __u64 place)
{
	struct ends ends = {};
	if (!application || !control || !quoted_ends(ctx, &ends, place))
		return 0;
	__u32 flags = READ_ONCE(application->listeners[port_index(ends.protocol, ends.local_port)].flags);
	if (flags & TW_LISTEN_CONNECTED) {
		__u32 channel = find_flow(application, control, &ends);
		if (channel)
			return channel;
	}
	return flags & TW_LISTEN_TCP_STRICT ? 0 : find_listener(application, control, &ends);
}

/* What flow_channel() says besides a channel, whose index is then 0. */
#define ANSWERED (1ULL << 32)       /* the frame is now the answer */
#define REFUSED (1ULL << 33)        /* of no connection: the kernel's listening socket resets it */
#define IGNORED (1ULL << 34)        /* of no connection, and not to be reset */
#define COOKIE_VALID (1ULL << 35)
#define COOKIE_FAILED (1ULL << 36)

#include "cookie.h"

/* Channel of a segment at a strict TCP port that is of no known flow. */
GLOBAL __u64 strict_channel(struct xdp_md *ctx, struct tw_application *application, struct tw_control *control,
			    struct ends *ends, __u64 place)
{
	if (!application || !control || !ends)
		return IGNORED;
	__u32 flags = READ_ONCE(application->listeners[port_index(TCP, ends->local_port)].flags);
	const __u8 *header = (const __u8 *)(long)ctx->data + (place & FRAME_MASK);
	if (header + TCP_HEADER > (const __u8 *)(long)ctx->data_end)
		return IGNORED;
	__u8 control_bits = header[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);
	if (control_bits == TCP_SYN) {
		__u32 channel = find_listener(application, control, ends);
		if (channel && flags & TW_LISTEN_COOKIES && answer_with_cookie(ctx, application, ends, place, flags))
			return ANSWERED;
		return channel;
	}
	/* To anything else a listening socket says nothing (RFC 9293 section 3.10.7.2). */
	if ((control_bits & (TCP_RST | TCP_ACK)) != TCP_ACK)
		return IGNORED;
	if (!(flags & TW_LISTEN_COOKIES_VALID) || control_bits & TCP_SYN)
		return REFUSED;
	__u32 sequence = htonl(*(__u32 *)(header + 4)), acknowledgment = htonl(*(__u32 *)(header + 8));
	__u32 payload = PLACE_TRANSPORT(place) + (header[12] >> 4) * 4 < PLACE_END(place);
	if (cookie_is_valid(&application->cookies, ends, sequence, acknowledgment)) {
		__u32 channel = find_listener(application, control, ends);
		return channel ? COOKIE_VALID | channel : COOKIE_VALID | REFUSED;
	}
	/* Data may overtake the application, which has yet to enter the flow of
	 * the cookie before it: its sender will repeat it. */
	return COOKIE_FAILED | (payload || control_bits & TCP_FIN ? IGNORED : REFUSED);
}

/* Channel of a frame for a port with more than listeners on any address: exact
 * flow, then what a strict port makes of it, or the listener's; 0: none. */
GLOBAL __u64 flow_channel(struct xdp_md *ctx, struct tw_application *application, struct tw_control *control,
			  __u64 place)
{
	struct ends ends = {};
	if (!application || !control || !frame_ends(ctx, &ends, place))
		return 0;
	__u32 flags = READ_ONCE(application->listeners[port_index(ends.protocol, ends.local_port)].flags);
	if (flags & TW_LISTEN_CONNECTED) {
		__u32 channel = find_flow(application, control, &ends);
		if (channel)
			return channel;
	}
	return flags & TW_LISTEN_TCP_STRICT ? strict_channel(ctx, application, control, &ends, place) :
					      find_listener(application, control, &ends);
}

/* ---- Tracing ------------------------------------------------------------- */

/* Takes a trace id if there are frames left to sample; else 0. */
GLOBAL __u32 begin_trace(struct tw_control *control)
{
	if (!control)
		return 0;
	/* Several queues count down one number, hence atomics. */
	__u32 remaining = READ_ONCE(control->trace_remaining);
	if (!remaining ||
	    __sync_val_compare_and_swap(&control->trace_remaining, remaining, remaining - 1) != remaining)
		return 0;
	return __sync_fetch_and_add(&control->trace_next, 1) + 1;
}

GLOBAL int emit_trace(struct xdp_md *ctx, __u32 trace, __u32 channel, __u32 verdict, __u32 cause)
{
	__u32 zero = 0, skip = 0, index = ctx->rx_queue_index;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	if (state && (cause == TW_COUNT_CHANNEL || cause == TW_COUNT_RAW)) {
		BOUND(index, TW_QUEUES - 1);
		if (state->queues[index].metadata_in_frame)
			skip = sizeof(struct tw_metadata);
	}
	struct tw_trace *record = bpf_ringbuf_reserve(&traces, sizeof(*record), 0);
	if (!record)
		return 0;
	__u32 length = bpf_xdp_get_buff_len(ctx) - skip;
	__u32 last = length - 1;
	if (last >= TW_TRACE_BYTES)
		last = TW_TRACE_BYTES - 1;
	BOUND(last, TW_TRACE_BYTES - 1);
	record->time = bpf_ktime_get_ns();
	record->trace = trace;
	record->channel = channel;
	record->verdict = verdict;
	record->cause = cause;
	record->queue = index;
	record->length = length;
	record->captured = bpf_xdp_load_bytes(ctx, skip, record->bytes, last + 1) ? 0 : last + 1;
	record->pad = 0;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* ---- Teaching ------------------------------------------------------------ */

/* The checksum of a header in which one word changed (RFC 1624, equation 3). */
INLINE __u16 checksum_update(__u16 checksum, __u16 old, __u16 new)
{
	__u32 sum = (__u16)~checksum + (__u16)~old + new;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Turns an owned datagram over to the helper socket of its queue, which learns
 * from it the NAPI id of the queue and hands the payload on. A TCP segment
 * becomes a UDP datagram in place: its sequence number, which gives way to UDP's
 * length and checksum, is kept in `control`, so that nothing of it is lost; nor
 * is its sender's link address, to which an answer goes that cannot wait for
 * the kernel to find the neighbour. */
GLOBAL int teach(struct xdp_md *ctx, struct tw_control *control, __u64 place)
{
	__u32 queue = ctx->rx_queue_index, protocol = PLACE_PROTOCOL(place);
	__u8 *frame = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u16 *data = (void *)(frame + (place & FRAME_MASK));
	CHECKED_ALONE(data);
	if (!control || queue >= TW_QUEUES || (__u8 *)(data + 4) > data_end || frame + NETWORK + V4_HEADER > data_end)
		return 0;
	__u16 port = htons(READ_ONCE(control->teach_port[queue]));
	__u16 original = data[1];
	data[1] = port;
	if (protocol == TCP) {
		WRITE_ONCE(control->taught_sequence[queue], (__u32)ntohs(data[2]) << 16 | ntohs(data[3]));
		data[2] = htons(PLACE_END(place) - PLACE_TRANSPORT(place));
		data[3] = 0;
		if (!(place & PLACE_V6)) {
			__u16 *word = (__u16 *)(frame + NETWORK + 8), *checksum = (__u16 *)(frame + NETWORK + 10);
			__u16 old = *word;
			frame[NETWORK + 9] = UDP;
			*checksum = checksum_update(*checksum, old, *word);
		} else {
			frame[NETWORK + 6] = UDP;
		}
	} else if (!(place & PLACE_V6)) {
		data[3] = 0;
	} else if (data[3]) {
		/* Zero is written as its other form. */
		__u16 updated = checksum_update(data[3], original, port);
		data[3] = updated ? updated : 0xffff;
	}
	for (int i = 0; i < 6; i++)
		WRITE_ONCE(control->taught_link[queue][i], frame[6 + i]);
	WRITE_ONCE(control->taught_protocol[queue], protocol);
	WRITE_ONCE(control->taught_port[queue], ntohs(original));
	WRITE_ONCE(control->teach_port[queue], 0);
	return 1;
}

/* ---- Metadata ------------------------------------------------------------ */

/* Makes room for the metadata as the first bytes of the frame, for a driver
 * that has no place for it before the frame. A driver is of one kind: where
 * frames went the other way, the reader expects that of all. */
GLOBAL int metadata_in_frame(struct xdp_md *ctx, struct tw_queue *queue)
{
	if (!queue)
		return 0;
	if (!queue->metadata_in_frame &&
	    (queue->counters[TW_COUNT_CHANNEL] || queue->counters[TW_COUNT_RAW]))
		return 0;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct tw_metadata)))
		return 0;
	WRITE_ONCE(queue->metadata_in_frame, 1);
	return 1;
}

/* ---- The program --------------------------------------------------------- */

#define DROP(counter)                                                          \
	do {                                                                       \
		count(queue, counter);                                                 \
		*cause = counter;                                                      \
		return XDP_DROP;                                                       \
	} while (0)

#define KERNEL(counter, class)                                                 \
	do {                                                                       \
		count(queue, counter);                                                 \
		*cause = counter;                                                      \
		return to_kernel(queue, class);                                        \
	} while (0)

INLINE int process(struct xdp_md *ctx, struct tw_device *device, __u32 index, __u32 trace, __u32 *cause,
		   __u32 *traced_channel)
{
	struct tw_control *control = &device->control;
	struct tw_queue *queue = &device->queues[index];
	__u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;

	count(queue, TW_COUNT_FRAMES);
	if (data + NETWORK > data_end)
		DROP(TW_COUNT_TRUNCATED);
	__u16 ethertype = *(__u16 *)(data + 12);
	if (unlikely(data[0] & 1))
		KERNEL(TW_COUNT_MULTICAST, group_class(ctx, ntohs(ethertype)));

	__u32 transport, end, protocol, version, fragment = 0;
	__u32 later = 0, first = 0, length = data_end - data;
	__u64 high, low; /* the destination */
	if (likely(ethertype == htons(0x0800))) {
		if (data + NETWORK + V4_HEADER > data_end)
			DROP(TW_COUNT_TRUNCATED);
		__u32 header = (data[NETWORK] & 15) * 4;
		__u32 total = ntohs(*(__u16 *)(data + NETWORK + 2));
		if (data[NETWORK] >> 4 != 4 || header < V4_HEADER || total < header)
			DROP(TW_COUNT_MALFORMED);
		end = NETWORK + total;
		if (end > length)
			DROP(TW_COUNT_TRUNCATED);
		version = 4;
		transport = NETWORK + header;
		protocol = data[NETWORK + 9];
		__u16 offset = *(__u16 *)(data + NETWORK + 6);
		if (unlikely(offset & htons(0x3fff))) {
			later = offset & htons(0x1fff);
			first = !later;
		}
		__u32 destination = *(__u32 *)(data + NETWORK + 16);
		if (unlikely(data[NETWORK + 16] >> 4 == 14 || destination == 0xffffffff))
			KERNEL(TW_COUNT_MULTICAST,
			       datagram_class(ctx, later ? 255 : protocol, transport, end, version));
		high = 0;
		low = MAPPED(destination);
	} else if (ethertype == htons(0x86dd)) {
		if (data + NETWORK + V6_HEADER > data_end)
			DROP(TW_COUNT_TRUNCATED);
		if (data[NETWORK] >> 4 != 6)
			DROP(TW_COUNT_MALFORMED);
		end = NETWORK + V6_HEADER + ntohs(*(__u16 *)(data + NETWORK + 4));
		if (end > length)
			DROP(TW_COUNT_TRUNCATED);
		if (unlikely(data[NETWORK + 24] == 0xff))
			KERNEL(TW_COUNT_MULTICAST, group_class(ctx, 0x86dd));
		version = 6;
		transport = NETWORK + V6_HEADER;
		protocol = data[NETWORK + 6];
		high = *(__u64 *)(data + NETWORK + 24);
		low = *(__u64 *)(data + NETWORK + 32);
		if (unlikely(protocol != UDP && protocol != TCP && protocol != ICMPV6)) {
			__u64 walked = walk_extensions(ctx, transport, end, protocol);
			if (!walked)
				DROP(TW_COUNT_MALFORMED);
			protocol = WALK_PROTOCOL(walked);
			transport = WALK_TRANSPORT(walked);
			later = !!(walked & WALK_LATER);
			first = !!(walked & WALK_FIRST);
			if (later || first)
				fragment = WALK_FRAGMENT(walked);
		}
	} else if (ethertype == htons(0x0806)) {
		return to_kernel(queue, TW_CLASS_NEIGHBOUR);
	} else if (ethertype == htons(0x8100) || ethertype == htons(0x88a8)) {
		KERNEL(TW_COUNT_TAGGED, TW_CLASS_OTHER);
	} else {
		KERNEL(TW_COUNT_UNKNOWN, TW_CLASS_OTHER);
	}
	if (unlikely(!is_local(control, high, low)))
		KERNEL(TW_COUNT_NOT_LOCAL, datagram_class(ctx, later ? 255 : protocol, transport, end, version));

	__u32 owner = NO_OWNER, kind = TW_KIND_DATAGRAM, channel = 0, listener = 0;
#define HERE PLACE(transport, end, protocol, (version == 6 ? PLACE_V6 : 0) | (later || first ? 0 : PLACE_WHOLE))
	if (unlikely(later)) {
		kind = TW_KIND_FRAGMENT;
		__u64 decision = fragment_decision(ctx, HERE, fragment);
		if (decision == UNDECIDED) {
			count(queue, TW_COUNT_FRAGMENT_ORPHAN);
			*cause = TW_COUNT_FRAGMENT_ORPHAN;
			owner = READ_ONCE(control->fragment_application) - 1;
			if (owner == NO_OWNER)
				return to_kernel(queue, TW_CLASS_OTHER);
		} else {
			owner = (__u32)decision - 1;
			if (owner == NO_OWNER)
				KERNEL(TW_COUNT_UNOWNED, TW_CLASS_OTHER);
		}
	} else if (likely(protocol == UDP || protocol == TCP)) {
		if (transport + (protocol == UDP ? 8 : 20) > end)
			DROP(TW_COUNT_TRUNCATED);
		/* Always holds: end is inside the frame. The verifier wants it seen. */
		__u16 *ports = (void *)(data + (transport & FRAME_MASK));
		CHECKED_ALONE(ports);
		if ((__u8 *)(ports + 4) > data_end)
			DROP(TW_COUNT_TRUNCATED);
		if (protocol == UDP) {
			__u32 bytes = ntohs(ports[2]);
			if (bytes < 8 || (!first && transport + bytes > end))
				DROP(TW_COUNT_MALFORMED);
		}
		listener = port_index(protocol, ports[1]);
		__u32 entry = READ_ONCE(device->ports[listener]);
		if (likely((entry & (TW_OWNER_ANY | TW_OWNER_BY_ADDRESS)) == TW_OWNER_ANY))
			owner = (entry & TW_OWNER_APPLICATION) - 1;
		else if (entry & TW_OWNER_BY_ADDRESS)
			owner = frame_owner(ctx, device, HERE);
		if (unlikely(first)) {
			kind = TW_KIND_FIRST_FRAGMENT;
			decide_fragments(ctx, HERE, fragment, owner + 1);
		}
	} else if (unlikely(first)) {
		decide_fragments(ctx, HERE, fragment, 0);
	} else if (protocol == (version == 4 ? ICMP : ICMPV6)) {
		kind = TW_KIND_ICMP_ERROR;
		owner = quoted_owner(ctx, device, HERE);
	}
	if (owner == NO_OWNER)
		KERNEL(TW_COUNT_UNOWNED, datagram_class(ctx, protocol, transport, end, version));

	struct tw_application *application = 0;
	void *map = bpf_map_lookup_elem(&applications, &owner);
	if (map) {
		__u32 zero = 0;
		application = bpf_map_lookup_elem(map, &zero);
	}
	if (!application)
		KERNEL(TW_COUNT_UNOWNED, datagram_class(ctx, later ? 255 : protocol, transport, end, version));

	/* Of a segment behind extension headers, the last of them would have to
	 * change. */
	if (unlikely(READ_ONCE(control->teach_port[index])) && kind == TW_KIND_DATAGRAM &&
	    (protocol == UDP || version == 4 || transport == NETWORK + V6_HEADER)) {
		if (teach(ctx, control, HERE)) {
			count(queue, TW_COUNT_TAUGHT);
			*cause = TW_COUNT_TAUGHT;
			return XDP_PASS;
		}
		DROP(TW_COUNT_TRUNCATED);
	}

	__u32 credit = 0;
	struct tw_channel_driver *head = 0;
	if (unlikely(READ_ONCE(control->raw))) {
		kind = TW_KIND_RAW;
	} else {
		if (unlikely(kind == TW_KIND_FRAGMENT)) {
			channel = READ_ONCE(application->fragment_channel);
		} else if (unlikely(kind == TW_KIND_ICMP_ERROR)) {
			channel = quoted_channel(ctx, application, control, HERE);
		} else {
			struct tw_listener *entry = &application->listeners[listener];
			channel = version == 4 ? READ_ONCE(entry->channel[0]) : READ_ONCE(entry->channel[1]);
			if (unlikely(READ_ONCE(entry->flags))) {
				__u64 found = flow_channel(ctx, application, control, HERE);
				if (found & COOKIE_VALID)
					count(queue, TW_COUNT_COOKIE_VALID);
				if (found & COOKIE_FAILED)
					count(queue, TW_COUNT_COOKIE_FAILED);
				if (found & ANSWERED) {
					count(queue, TW_COUNT_COOKIE_SENT);
					*cause = TW_COUNT_COOKIE_SENT;
					if (READ_ONCE(application->cookies.redirect))
						return bpf_redirect(ctx->ingress_ifindex, 0);
					return XDP_TX;
				}
				if (found & IGNORED)
					DROP(TW_COUNT_NO_CONNECTION);
				if (found & REFUSED)
					KERNEL(TW_COUNT_NO_CONNECTION, TW_CLASS_NO_CONNECTION);
				channel = found;
			}
		}
		if (!channel && kind != TW_KIND_FRAGMENT)
			KERNEL(TW_COUNT_UNOWNED, datagram_class(ctx, protocol, transport, end, version));
		*traced_channel = channel;
		__u32 number = channel & 0xffff;
		if (number >= TW_CHANNELS)
			DROP(TW_COUNT_CHANNEL_CLOSED);
		struct tw_channel_application *bounds = &application->channels[index][number];
		head = &application->heads[index][number];
		__u32 limit = READ_ONCE(bounds->limit);
		if (!limit)
			DROP(TW_COUNT_CHANNEL_CLOSED);
		__u32 admitted = head->head;
		if (admitted - READ_ONCE(bounds->tail) >= limit) {
			head->dropped++;
			DROP(TW_COUNT_CHANNEL_FULL);
		}
		credit = admitted + 1;
	}

	struct tw_metadata *metadata;
	if (likely(!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))) {
		metadata = (void *)(long)ctx->data_meta;
		if ((void *)(metadata + 1) > (void *)(long)ctx->data)
			KERNEL(TW_COUNT_NO_METADATA, TW_CLASS_OTHER);
	} else {
		if (!metadata_in_frame(ctx, queue))
			KERNEL(TW_COUNT_NO_METADATA, TW_CLASS_OTHER);
		metadata = (void *)(long)ctx->data;
		if ((void *)(metadata + 1) > (void *)(long)ctx->data_end)
			DROP(TW_COUNT_NO_METADATA);
	}
	metadata->channel = channel;
	metadata->credit = credit;
	metadata->trace = trace;
	metadata->kind = kind;
	metadata->version = version;
	metadata->protocol = protocol;
	metadata->pad = 0;
	metadata->network = NETWORK;
	metadata->transport = transport;
	metadata->end = end;
	metadata->fragment = fragment;

	if (bpf_redirect_map(&sockets, owner * TW_QUEUES + index, XDP_DROP) != XDP_REDIRECT)
		DROP(TW_COUNT_NO_SOCKET);
	if (head) {
		WRITE_ONCE(head->head, credit);
		count(queue, TW_COUNT_CHANNEL);
		*cause = TW_COUNT_CHANNEL;
	} else {
		count(queue, TW_COUNT_RAW);
		*cause = TW_COUNT_RAW;
	}
	return XDP_REDIRECT;
}

SEC("xdp") int demux(struct xdp_md *ctx)
{
	__u32 zero = 0, index = ctx->rx_queue_index;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	/* Queues beyond the table stay with the kernel. */
	if (!state || index >= TW_QUEUES)
		return XDP_PASS;
	__u32 trace = 0, cause = TW_COUNT_FRAMES, channel = 0;
	if (unlikely(READ_ONCE(state->control.trace_remaining)))
		trace = begin_trace(&state->control);
	int action = process(ctx, state, index, trace, &cause, &channel);
	if (unlikely(trace))
		emit_trace(ctx, trace, channel, action, cause);
	return action;
}

char license_text[] SEC("license") = "Dual MIT/GPL";
