/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Owned datagrams turned over to a helper socket, from which it learns the NAPI
 * id of their queue (crates/device/src/afxdp/napi.rs).
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

#endif
