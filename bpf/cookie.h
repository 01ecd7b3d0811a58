/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * SYN cookies (RFC 4987 section 3.6). crates/protocol/src/tcp/cookie.rs makes and
 * checks the same bits.
 *
 * The 32 bits of a cookie, our initial sequence number:
 *   31..4  MAC of the flow, the peer's initial sequence number and the rest
 *   3      lowest bit of the count of COOKIE_PERIODs
 *   2..0   which of cookie_mss the peer's MSS is, rounded down
 * The peer's other options go into the lowest bits of our timestamp, which its
 * ACK echoes, as Linux does:
 *   5      it uses ECN
 *   4      it takes SACK
 *   3..0   its window scale, 15 for none
 */
#ifndef TIDEWALL_COOKIE_H
#define TIDEWALL_COOKIE_H

#include "flows.h"
#include "headers.h"

#define COOKIE_PERIOD 64000000000ULL /* ns; a cookie is valid for one to two */
#define COOKIE_OPTIONS 63
#define NO_SCALE 15

static const __u16 cookie_mss[8] = { 536, 1220, 1300, 1400, 1440, 1460, 4036, 8940 };

#define ABSORB_TWICE(word)                                                     \
	do {                                                                       \
		__u64 w = (word);                                                      \
		v3 ^= w;                                                               \
		ROUND;                                                                 \
		ROUND;                                                                 \
		v0 ^= w;                                                               \
	} while (0)

/* SipHash-2-4 of a flow and of `word`, which is left out when 0. The hash of the flow
 * alone is the offset of its timestamps (RFC 7323 section 5.4). */
GLOBAL __u64 cookie_hash(const struct tw_cookies *cookies, const struct ends *ends, __u64 word)
{
	if (!cookies || !ends)
		return 0;
	__u64 k0 = READ_ONCE(cookies->key[0]), k1 = READ_ONCE(cookies->key[1]);
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	__u64 length;
	if (ends->version == 4) {
		const __u32 *local = (const __u32 *)ends->local, *remote = (const __u32 *)ends->remote;
		ABSORB_TWICE((__u64)local[3] << 32 | remote[3]);
		length = 16;
	} else {
		ABSORB_TWICE(ends->local[0]);
		ABSORB_TWICE(ends->local[1]);
		ABSORB_TWICE(ends->remote[0]);
		ABSORB_TWICE(ends->remote[1]);
		length = 40;
	}
	ABSORB_TWICE((__u64)ends->local_port << 32 | (__u64)ends->remote_port << 16 | ends->protocol);
	if (word) {
		ABSORB_TWICE(word);
		length += 8;
	}
	ABSORB_TWICE(length << 56);
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The application's clock, ns. */
INLINE __u64 cookie_clock(const struct tw_cookies *cookies)
{
	__u64 now = bpf_ktime_get_ns(), epoch = READ_ONCE(cookies->epoch);
	return now > epoch ? now - epoch : 0;
}

INLINE __u32 make_cookie(const struct tw_cookies *cookies, const struct ends *ends, __u32 remote, __u32 count,
			 __u32 mss)
{
	/* Never 0: bit 31 distinguishes it from a hash of the flow alone. */
	__u64 word = (__u64)remote << 32 | 1u << 31 | (count << 3 & 0x7fffffff) | mss;
	return ((__u32)cookie_hash(cookies, ends, word) & ~15u) | (count & 1) << 3 | mss;
}

/* True for an ACK of one of our cookies that is not too old. */
GLOBAL int cookie_is_valid(const struct tw_cookies *cookies, const struct ends *ends, __u32 sequence,
			    __u32 acknowledgment)
{
	if (!cookies || !ends)
		return 0;
	__u32 cookie = acknowledgment - 1, count = cookie_clock(cookies) / COOKIE_PERIOD;
	count -= (count ^ cookie >> 3) & 1;
	return make_cookie(cookies, ends, sequence - 1, count, cookie & 7) == cookie;
}

struct syn_options {
	__u32 mss;        /* 0: none */
	__u32 timestamp;  /* host order */
	__u8 has_timestamp;
	__u8 sack;
	__u8 scale;       /* NO_SCALE: none */
	__u8 pad;
};

/* Reads `length` bytes of options, at most TCP_OPTIONS. As Linux: an option of a wrong
 * length is skipped; one that extends beyond the end ends the reading. */
GLOBAL int read_options(struct xdp_md *ctx, struct syn_options *found, __u32 offset, __u32 length)
{
	const __u8 *options = (const __u8 *)(long)ctx->data + (offset & FRAME_MASK);
	const __u8 *data_end = (const __u8 *)(long)ctx->data_end;
	__u32 at = 0;
	if (!found || length > TCP_OPTIONS)
		return 0;
	for (int i = 0; i < TCP_OPTIONS && at < length; i++) {
		BOUND(at, 63);
		const __u8 *option = options + at;
		if (option + 1 > data_end || option[0] == 0)
			break;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (option + 2 > data_end)
			break;
		__u32 size = option[1];
		if (size < 2 || at + size > length)
			break;
		if (option[0] == 2 && size == 4 && option + 4 <= data_end) {
			found->mss = (__u32)option[2] << 8 | option[3];
		} else if (option[0] == 3 && size == 3 && option + 3 <= data_end) {
			found->scale = option[2] > 14 ? 14 : option[2];
		} else if (option[0] == 4 && size == 2) {
			found->sack = 1;
		} else if (option[0] == 8 && size == 10 && option + 10 <= data_end) {
			found->timestamp = (__u32)option[2] << 24 | (__u32)option[3] << 16 | (__u32)option[4] << 8 | option[5];
			found->has_timestamp = 1;
		}
		at += size;
	}
	return 0;
}

struct v4_header {
	__u8 version_length, service;
	__u16 length, identification, fragment;
	__u8 hop_limit, protocol;
	__u16 checksum;
	__u32 source, destination;
};

struct v6_header {
	__u32 version_class_label;
	__u16 length;
	__u8 protocol, hop_limit;
	__u64 source[2], destination[2];
};

struct tcp_header {
	__u16 source, destination;
	__u32 sequence, acknowledgment;
	__u8 offset, flags;
	__u16 window, checksum, urgent;
	__u32 options[5];
};

/* For summing headers, whatever their fields. */
typedef __u32 __attribute__((may_alias)) word;

/* The Internet checksum of a sum of 16-bit words. */
INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Turns the SYN at `place` into its answer. Returns false, and leaves the frame
 * unchanged, for a SYN that no cookie can answer: its listener must see it. The SYN's
 * checksum is not checked: a damaged SYN only costs an answer that no host accepts.
 *
 * The answer leaves by XDP_TX. On veth it comes out of the peer only if that has an XDP
 * program, even one that passes everything. Without one, the kernel drops it. With GRO
 * on, it leaves it in the peer's ring and wakes nothing (veth_xdp_flush in
 * drivers/net/veth.c). It reports neither. With tw_cookies.redirect it leaves by
 * XDP_REDIRECT, for which GRO is enough. */
GLOBAL int answer_with_cookie(struct xdp_md *ctx, struct tw_application *application, struct ends *ends,
			       __u64 place, __u32 flags)
{
	if (!application || !ends || place & PLACE_FIRST)
		return 0;
	struct tw_cookies *cookies = &application->cookies;
	struct tcp_header tcp = {};
	struct syn_options options = { .scale = NO_SCALE };
	__u32 transport = PLACE_TRANSPORT(place), end = PLACE_END(place);
	__u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	const __u8 *header = data + (transport & FRAME_MASK);
	CHECKED_ALONE(header);
	if (header + TCP_HEADER > data_end)
		return 0;
	__u32 length = (header[12] >> 4) * 4;
	if (length < TCP_HEADER || transport + length > end)
		return 0;
	__u32 remote = htonl(*(__u32 *)(header + 4));
	/* A SYN with an ECN codepoint was mangled (RFC 3168 section 6.1.1). */
	const __u8 *network_header = data + NETWORK;
	if (network_header + 2 > data_end)
		return 0;
	__u32 codepoint = (ends->version == 4 ? network_header[1] : network_header[1] >> 4) & 3;
	__u32 ecn = flags & TW_LISTEN_ECN && (header[13] & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR) && !codepoint;
	if (length > TCP_HEADER)
		read_options(ctx, &options, transport + TCP_HEADER, length - TCP_HEADER);

	/* RFC 9293 section 3.7.1 and RFC 8200 section 5 if the SYN names none. */
	__u32 mss = options.mss ? options.mss : ends->version == 4 ? 536 : 1220;
	if (mss < cookie_mss[0])
		return 0;
	/* No host sends from 0/8, 127/8, 224/4 and above, ::/64 (unspecified, loopback,
	 * IPv4-mapped) or ff00::/8. */
	const __u8 *source = (const __u8 *)ends->remote;
	if (ends->version == 4 ? source[12] == 0 || source[12] == 127 || source[12] >= 224 :
		       source[0] == 0xff || !ends->remote[0])
		return 0;

	__u32 number = 0;
	for (__u32 i = 1; i < 8; i++)
		if (mss >= cookie_mss[i])
			number = i;
	__u64 now = cookie_clock(cookies);
	__u32 size = TCP_HEADER + 4;
	tcp.source = ends->local_port;
	tcp.destination = ends->remote_port;
	tcp.sequence = make_cookie(cookies, ends, remote, now / COOKIE_PERIOD, number);
	tcp.sequence = htonl(tcp.sequence);
	tcp.acknowledgment = htonl(remote + 1);
	tcp.flags = TCP_SYN | TCP_ACK;
	tcp.window = htons(flags >> TW_LISTEN_WINDOW_SHIFT);
	__u16 announced = ends->version == 4 ? READ_ONCE(cookies->mss[0]) : READ_ONCE(cookies->mss[1]);
	tcp.options[0] = htonl(0x02040000u | announced);
	/* Without a timestamp to remember them, options count as not offered. */
	if (options.has_timestamp && flags & TW_LISTEN_TIMESTAMPS) {
		__u32 scale = flags >> TW_LISTEN_SCALE_SHIFT & 15;
		__u32 sack = options.sack && flags & TW_LISTEN_SACK;
		__u32 peer = options.scale;
		if (scale == NO_SCALE)
			peer = NO_SCALE;
		__u32 clock = (__u32)(now / 1000000) + (__u32)cookie_hash(cookies, ends, 0);
		__u32 timestamp = (clock & ~(__u32)COOKIE_OPTIONS) | ecn << 5 | sack << 4 | peer;
		/* Never ahead of the clock: later segments must not be older. */
		if ((__s32)(timestamp - clock) > 0)
			timestamp -= COOKIE_OPTIONS + 1;
		if (ecn)
			tcp.flags |= TCP_ECE;
		tcp.options[1] = sack ? htonl(0x0402080au) : htonl(0x0101080au);
		tcp.options[2] = htonl(timestamp);
		tcp.options[3] = htonl(options.timestamp);
		size += 12;
		if (peer != NO_SCALE) {
			tcp.options[4] = htonl(0x01030300u | scale);
			size += 4;
		}
	}
	tcp.offset = size / 4 << 4;

	__u32 network = ends->version == 4 ? V4_HEADER : V6_HEADER;
	__u32 total = NETWORK + network + size;
	if (bpf_xdp_adjust_tail(ctx, (int)total - (int)bpf_xdp_get_buff_len(ctx)))
		return 0;

	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;

	/* Words that are 0 do not count: those of the omitted options are 0. */
	const word *words = (const word *)&tcp;
	__u64 sum = (__u64)htons(size) + htons(TCP);
	for (int i = 0; i < 10; i++)
		sum += words[i];
	if (ends->version == 4) {
		struct v4_header *ip = (void *)(data + NETWORK);
		if ((__u8 *)(ip + 1) > data_end)
			return 0;
		ip->version_length = 0x45;
		ip->service = 0;
		ip->length = htons(V4_HEADER + size);
		ip->identification = 0;
		ip->fragment = htons(0x4000);
		ip->hop_limit = READ_ONCE(cookies->hop_limit);
		ip->protocol = TCP;
		ip->checksum = 0;
		ip->source = ((const __u32 *)ends->local)[3];
		ip->destination = ((const __u32 *)ends->remote)[3];
		sum += (__u64)ip->source + ip->destination;
		words = (const word *)ip;
		__u64 header_sum = 0;
		for (int i = 0; i < V4_HEADER / 4; i++)
			header_sum += words[i];
		ip->checksum = fold(header_sum);
	} else {
		struct v6_header *ip = (void *)(data + NETWORK);
		if ((__u8 *)(ip + 1) > data_end)
			return 0;
		ip->version_class_label = htonl(0x60000000u);
		ip->length = htons(size);
		ip->protocol = TCP;
		ip->hop_limit = READ_ONCE(cookies->hop_limit);
		for (int i = 0; i < 2; i++) {
			__u64 source = ends->local[i], destination = ends->remote[i];
			__builtin_memcpy(ip->source + i, &source, 8);
			__builtin_memcpy(ip->destination + i, &destination, 8);
			sum += (source >> 32) + (__u32)source + (destination >> 32) + (__u32)destination;
		}
	}
	tcp.checksum = fold(sum);
	bpf_xdp_store_bytes(ctx, NETWORK + network, &tcp, size);
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (data + NETWORK > data_end)
		return 0;
	__u16 *address = (__u16 *)data;
	for (int i = 0; i < 3; i++) {
		__u16 word = address[i];
		address[i] = address[3 + i];
		address[3 + i] = word;
	}
	return 1;
}

#endif
