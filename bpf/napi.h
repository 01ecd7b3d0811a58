/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * NAPI probes: owned datagrams passed to a helper socket, which learns from them the
 * NAPI id of their queue (crates/device/src/afxdp/napi.rs).
 */
#ifndef TIDEWALL_NAPI_H
#define TIDEWALL_NAPI_H

#include "headers.h"

/* The checksum of a header in which one word changed (RFC 1624, equation 3). */
INLINE __u16 checksum_update(__u16 checksum, __u16 old, __u16 new)
{
	__u32 sum = (__u16)~checksum + (__u16)~old + new;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The checksum of a UDP datagram in which one word changed; no checksum stays none. */
INLINE __u16 checksum_port(__u16 checksum, __u16 old, __u16 new)
{
	if (!checksum)
		return 0;
	/* Zero is written in its other form. */
	__u16 updated = checksum_update(checksum, old, new);
	return updated ? updated : 0xffff;
}

/* Passes an owned datagram to the helper socket of its queue, which learns the queue's
 * NAPI id from it and forwards the payload. A TCP segment becomes a UDP datagram in
 * place. UDP's length and checksum replace its sequence number, which is kept in
 * `control`, so nothing is lost. The sender's link address is kept as well, for an
 * answer that cannot wait for neighbour resolution. Only a bare acknowledgment of TCP
 * is used: a firewall may drop the probe, and the next segment replaces a lost
 * acknowledgment. Returns false for an unsuitable frame. */
GLOBAL int probe_napi(struct xdp_md *ctx, struct tw_control *control, __u64 place)
{
	__u32 queue = ctx->rx_queue_index, protocol = PLACE_PROTOCOL(place);
	__u8 *frame = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u16 *data = (void *)(frame + (place & FRAME_MASK));
	CHECKED_ALONE(data);
	if (!control || queue >= TW_QUEUES || (__u8 *)(data + 4) > data_end || frame + NETWORK + V4_HEADER > data_end)
		return 0;
	__u16 port = htons(READ_ONCE(control->probe_port[queue]));
	__u16 source = htons(READ_ONCE(control->probe_source[queue]));
	__u16 original = data[1], sender = data[0];
	if (protocol == TCP) {
		__u8 *segment = (__u8 *)data;
		__u32 length = PLACE_END(place) - PLACE_TRANSPORT(place);
		if (segment + 14 > data_end || (segment[13] & 0x3f) != 0x10 || length != (segment[12] >> 4) * 4)
			return 0;
		WRITE_ONCE(control->probed_sequence[queue], (__u32)ntohs(data[2]) << 16 | ntohs(data[3]));
		data[2] = htons(length);
		data[3] = 0;
		if (!(place & PLACE_V6)) {
			__u16 *word = (__u16 *)(frame + NETWORK + 8), *checksum = (__u16 *)(frame + NETWORK + 10);
			__u16 old = *word;
			frame[NETWORK + 9] = UDP;
			*checksum = checksum_update(*checksum, old, *word);
		} else {
			frame[NETWORK + 6] = UDP;
		}
	} else {
		data[3] = checksum_port(checksum_port(data[3], original, port), sender, source);
	}
	data[0] = source;
	data[1] = port;
	for (int i = 0; i < 6; i++)
		WRITE_ONCE(control->probed_link[queue][i], frame[6 + i]);
	WRITE_ONCE(control->probe_source[queue], ntohs(sender));
	WRITE_ONCE(control->probed_protocol[queue], protocol);
	WRITE_ONCE(control->probed_port[queue], ntohs(original));
	WRITE_ONCE(control->probe_port[queue], 0);
	return 1;
}

#endif
