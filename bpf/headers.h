/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Headers of a frame: their positions, and the two ends of a frame's flow. For an ICMP
 * error, also the flow of the datagram that it quotes.
 */
#ifndef TIDEWALL_HEADERS_H
#define TIDEWALL_HEADERS_H

#include "program.h"

#define V4_HEADER 20
#define V6_HEADER 40
#define EXTENSION_HEADERS 8 /* more than this in one datagram is an attack */

enum { ICMP = 1, IGMP = 2, TCP = 6, UDP = 17, ICMPV6 = 58 };
enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, AUTHENTICATION = 51, DESTINATION = 60 };
enum { TCP_FIN = 0x01, TCP_SYN = 0x02, TCP_RST = 0x04, TCP_PSH = 0x08, TCP_ACK = 0x10, TCP_ECE = 0x40, TCP_CWR = 0x80 };
#define TCP_HEADER 20
#define TCP_OPTIONS 40 /* the most */

/* Two ends of a flow, as seen from here. */
struct ends {
	__u64 local[2];
	__u64 remote[2];
	__u16 local_port;  /* network order */
	__u16 remote_port; /* network order */
	__u8 protocol;
	__u8 version;
	__u16 pad;
};

/* An offset in 16 bits, though a frame with an MTU of 65,535 is longer. */
#define END(end) ((end) > 0xffff ? 0xffff : (end))

/* Packs into one argument where a datagram's transport header (or a fragment's payload)
 * begins, where the datagram ends, its version and protocol, and whether it is a first
 * fragment. */
#define PLACE(transport, end, version, protocol, first) \
	((__u64)(transport) | (__u64)END(end) << 16 | (__u64)(version) << 32 | (__u64)(protocol) << 40 | (__u64)(first) << 48)
#define PLACE_TRANSPORT(place) ((__u32)(place) & 0xffff)
#define PLACE_END(place) ((__u32)((place) >> 16) & 0xffff)
#define PLACE_PROTOCOL(place) ((__u32)((place) >> 40) & 0xff)
#define PLACE_V6 (1ULL << 33) /* the bit in which 6 and 4 differ */
#define PLACE_FIRST (1ULL << 48)
/* Bounds offsets of headers for the verifier. */
#define FRAME_MASK 0x3fff

/* Keeps the compiler from omitting a check of this pointer because another was checked:
 * a verifier knows only what was checked of each. */
#define CHECKED_ALONE(pointer) asm volatile("" : "+r"(pointer))

/* The result of walk_extensions(). */
#define WALK_OK (1ULL << 63)
#define WALK_LATER (1ULL << 62) /* a later fragment: `transport` is its payload */
#define WALK_FIRST (1ULL << 61) /* a first fragment, more follow */
#define WALK_PROTOCOL(w) ((__u8)((w) >> 32))
#define WALK_FRAGMENT(w) ((__u32)((w) >> 16) & 0xffff)
#define WALK_TRANSPORT(w) ((__u32)(w) & 0xffff)

/* Walks IPv6 extension headers from `offset`. An atomic fragment (RFC 6946) is a whole
 * datagram. Returns 0 for a header past `end`, more than EXTENSION_HEADERS, or a second
 * fragment header. */
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
		if (offset > end || offset > FRAME_MASK)
			return 0;
		next = header[0];
	}
	return 0;
}

/* Reads the ends of the flow that an ICMP error at `transport` quotes. True for a UDP
 * or TCP packet whose source is the error's destination. */
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
	ends->version = place >> 32;
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
	ends->protocol = place >> 40;
	ends->version = place >> 32;
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

#endif
