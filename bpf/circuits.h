/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Virtual circuits: ATM over MPLS (RFC 4717) in Ethernet (RFC 3032 section 5). A
 * frame's label corresponds to a datagram's address and port. `labels` maps it to the
 * owning application, and that application's `flows` to a channel.
 */
#ifndef TIDEWALL_CIRCUITS_H
#define TIDEWALL_CIRCUITS_H

#include "flows.h"

#define LABEL_ENTRY 4
#define NO_LABEL 0xffffffffu

/* The label of a frame to this device's link address, if it is the only one; else
 * NO_LABEL. The link is a label's only other end. A device receives frames for other
 * stations while it is watched; their labels are not ours. */
INLINE __u32 circuit_label(struct xdp_md *ctx, const struct tw_control *control)
{
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	if (data + NETWORK + LABEL_ENTRY > data_end)
		return NO_LABEL;
	const __u16 *to = (const __u16 *)data, *link = (const __u16 *)control->link;
	if (to[0] != READ_ONCE(link[0]) || to[1] != READ_ONCE(link[1]) || to[2] != READ_ONCE(link[2]))
		return NO_LABEL;
	__u32 entry = (__u32)data[NETWORK] << 24 | (__u32)data[NETWORK + 1] << 16 | (__u32)data[NETWORK + 2] << 8;
	return entry & 0x100 ? entry >> 12 : NO_LABEL;
}

/* The application that owns a label, or NO_OWNER. */
INLINE __u32 label_owner(const struct tw_device *device, __u32 label)
{
	return READ_ONCE(device->labels[label & (TW_LABELS - 1)]) - 1u;
}

/* The application that owns the label of a frame, or NO_OWNER. */
GLOBAL __u32 circuit_owner(struct xdp_md *ctx, struct tw_device *device)
{
	if (!device)
		return NO_OWNER;
	__u32 label = circuit_label(ctx, &device->control);
	return label == NO_LABEL ? NO_OWNER : label_owner(device, label);
}

/* Channel of a frame whose label circuit_owner() knew, or 0. */
GLOBAL __u64 circuit_channel(struct xdp_md *ctx, struct tw_application *application, __u64 k0, __u64 k1)
{
	const __u8 *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct ends ends = { .protocol = TW_PROTOCOL_CIRCUIT };
	if (!application || data + NETWORK + LABEL_ENTRY > data_end)
		return 0;
	const __u8 *entry = data + NETWORK;
	__u32 label = (__u32)entry[0] << 12 | (__u32)entry[1] << 4 | entry[2] >> 4;
	ends.local[1] = MAPPED(htonl(label));
	ends.remote[1] = MAPPED(0);
	return find_flow(application, k0, k1, &ends);
}

#endif
