/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Applications in private mode: each of their queues is a virtual pair. The
 * demultiplexer sends their frames to the near end, behind which to_xsk() passes them
 * to the AF_XDP socket on the far end. Frames that they send come out of the near end,
 * where sent() passes only permitted ones.
 */
#ifndef TIDEWALL_PRIVATE_H
#define TIDEWALL_PRIVATE_H

#include "circuits.h"
#include "owners.h"

/* Between the demultiplexer and to_xsk(), the slot of the socket is above the offset of
 * the network header, which is a constant. */
#define PLACE_SHIFT 4
_Static_assert(NETWORK < 1 << PLACE_SHIFT && TW_WAITING_SOCKETS << PLACE_SHIFT <= 0x10000, "both fit in metadata.network");

/* True if the frame is on its way to an application's pair. */
INLINE int to_pair(const struct tw_queue *queue, struct tw_metadata *metadata, __u32 place)
{
	if (queue->metadata_in_frame || !is_private(place) || bpf_redirect_map(&pairs, place, XDP_DROP) != XDP_REDIRECT)
		return 0;
	metadata->network = place << PLACE_SHIFT | NETWORK;
	return 1;
}

#ifndef TIDEWALL_NATIVE
/* Runs on the far end of each pair. A frame without metadata is not from the
 * demultiplexer: the kernel sent it. The kernel drops a frame that a pair held before
 * it changed owners, since the socket in the slot is bound to another interface. */
SEC("xdp.frags") int to_xsk(struct xdp_md *ctx)
{
	struct tw_metadata *metadata = (void *)(long)ctx->data_meta;
	if ((void *)(metadata + 1) > METADATA_END(ctx))
		return XDP_DROP;
	__u32 place = metadata->network >> PLACE_SHIFT;
	metadata->network = NETWORK;
	__u32 socket = TW_PRIVATE_SOCKETS + place;
	if (metadata->kind == TW_KIND_DATAGRAM && metadata->fragment)
		socket += TW_WAITING_SOCKETS;
	return place < TW_WAITING_SOCKETS ? bpf_redirect_map(&sockets, socket, XDP_DROP) : XDP_DROP;
}

/* Decides about a frame that an application sends. It refuses whatever a program with
 * CAP_NET_RAW could do beyond the sockets of its user: another's address, port or
 * circuit, ARP and ICMP, a tag, IP options. It also refuses fragments: a later one has
 * no port, and one with the identification of a neighbour's datagram would damage that. */
INLINE __u32 departure(struct __sk_buff *skb, struct tw_device *device, __u32 application)
{
	struct tw_control *control = &device->control;
	__u16 ethernet[NETWORK / 2], ports[2];
	__u8 header[V6_HEADER] __attribute__((aligned(8)));
	struct ends ends = {};
	__u32 transport, end;

	if (bpf_skb_load_bytes(skb, 0, ethernet, NETWORK))
		return TW_SENT_MALFORMED;
	const __u16 *link = (const __u16 *)control->link;
	if (ethernet[3] != READ_ONCE(link[0]) || ethernet[4] != READ_ONCE(link[1]) || ethernet[5] != READ_ONCE(link[2]))
		return TW_SENT_LINK;
	if (skb->vlan_present)
		return TW_SENT_TYPE;
	if (skb->len > READ_ONCE(control->longest))
		return TW_SENT_LONG;
	if (ethernet[6] == htons(0x8847)) {
		/* The other end identifies a circuit's frames by its label alone. */
		__u8 entry[LABEL_ENTRY];
		if (bpf_skb_load_bytes(skb, NETWORK, entry, LABEL_ENTRY))
			return TW_SENT_MALFORMED;
		if (!(entry[2] & 1))
			return TW_SENT_TYPE;
		__u32 label = (__u32)entry[0] << 12 | (__u32)entry[1] << 4 | entry[2] >> 4;
		return label_owner(device, label) == application ? TW_SENT_PASSED : TW_SENT_PORT;
	}
	if (ethernet[6] == htons(0x0800)) {
		if (bpf_skb_load_bytes(skb, NETWORK, header, V4_HEADER))
			return TW_SENT_MALFORMED;
		if (header[0] != 0x45)
			return TW_SENT_MALFORMED;
		if (*(__u16 *)(header + 6) & htons(0x3fff))
			return TW_SENT_FRAGMENT;
		transport = NETWORK + V4_HEADER;
		end = NETWORK + ntohs(*(__u16 *)(header + 2));
		ends.version = 4;
		ends.protocol = header[9];
		ends.local[1] = MAPPED(*(__u32 *)(header + 12));
	} else if (ethernet[6] == htons(0x86dd)) {
		if (bpf_skb_load_bytes(skb, NETWORK, header, V6_HEADER))
			return TW_SENT_MALFORMED;
		if (header[0] >> 4 != 6)
			return TW_SENT_MALFORMED;
		transport = NETWORK + V6_HEADER;
		end = transport + ntohs(*(__u16 *)(header + 4));
		ends.version = 6;
		ends.protocol = header[6];
		if (ends.protocol == FRAGMENT)
			return TW_SENT_FRAGMENT;
		ends.local[0] = *(__u64 *)(header + 8);
		ends.local[1] = *(__u64 *)(header + 16);
		/* Free slots of the set are zero, and those of IPv4 are mapped. */
		if (!ends.local[0] && (!ends.local[1] || *(__u32 *)(header + 16) == htonl(0xffff)))
			return TW_SENT_ADDRESS;
	} else {
		return TW_SENT_TYPE;
	}
	if (ends.protocol != UDP && ends.protocol != TCP)
		return TW_SENT_PROTOCOL;
	if (transport + (ends.protocol == UDP ? 8 : TCP_HEADER) > end || end > skb->len ||
	    bpf_skb_load_bytes(skb, transport, ports, sizeof(ports)))
		return TW_SENT_MALFORMED;
	if (!is_local(control, ends.local[0], ends.local[1]))
		return TW_SENT_ADDRESS;
	ends.local_port = ports[0];
	return find_owner(device, &ends) == application ? TW_SENT_PASSED : TW_SENT_PORT;
}

/* Runs on frames that come out of the near end of each pair. */
SEC("classifier") int sent(struct __sk_buff *skb)
{
	__u32 zero = 0, interface = skb->ifindex, number = TW_APPLICATIONS, what = TW_SENT_NOBODY;
	struct tw_device *state = bpf_map_lookup_elem(&device, &zero);
	const __u32 *application = bpf_map_lookup_elem(&near_ends, &interface);
	if (state && application) {
		number = *application;
		what = departure(skb, state, number);
	}
	struct tw_departures *counts = bpf_map_lookup_elem(&departures, &number);
	if (counts && what < TW_DEPARTURES)
		__sync_fetch_and_add(&counts->frames[what], 1);
	if (!state || what != TW_SENT_PASSED)
		return TC_ACT_SHOT;
	return bpf_redirect(READ_ONCE(state->control.interface), 0);
}
#endif

#endif
