/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The trusted level: local addresses, the owner of each port, and the decision about a
 * datagram that arrives in fragments.
 */
#ifndef TIDEWALL_OWNERS_H
#define TIDEWALL_OWNERS_H

#include "headers.h"

INLINE __u32 local_slot(__u64 high, __u64 low)
{
	__u64 folded = high ^ low;
	__u32 word = (__u32)(folded >> 32) ^ (__u32)folded;
	return (word * 0x9e3779b1u) >> 24;
}
_Static_assert(TW_LOCALS == 1 << (32 - 24), "local_slot gives 8 bits");

GLOBAL int probe_locals(struct tw_control *control, __u64 high, __u64 low)
{
	if (!control)
		return 0;
	__u32 slot = local_slot(high, low);
	for (__u32 i = 1; i < TW_LOCAL_PROBES; i++) {
		const __u64 *entry = control->locals[(slot + i) & (TW_LOCALS - 1)];
		if (READ_ONCE(entry[0]) == high && READ_ONCE(entry[1]) == low)
			return 1;
	}
	return 0;
}

/* True for an address of this host. The set needs no keyed hash: its members are chosen
 * here, and a miss costs TW_LOCAL_PROBES whatever the peer chose. */
INLINE int is_local(struct tw_control *control, __u64 high, __u64 low)
{
	const __u64 *entry = control->locals[local_slot(high, low) & (TW_LOCALS - 1)];
	if (likely(READ_ONCE(entry[0]) == high && READ_ONCE(entry[1]) == low))
		return 1;
	return probe_locals(control, high, low);
}

/* A port in header byte order indexes both tables. */
INLINE __u64 port_index(__u32 protocol, __u16 port)
{
	__u64 index = (protocol == TCP ? 65536u : 0u) + port;
	BOUND(index, 0x1ffff);
	return index;
}

#define NO_OWNER 0xffffffffu
_Static_assert(TW_APPLICATIONS < TW_OWNER_APPLICATION, "a port's entry has room for each application");

/* The application that owns a port on every local address of a family, or NO_OWNER. */
INLINE __u32 owner_of_all(__u32 entry, __u32 version)
{
	return (entry >> (version == 4 ? 0 : TW_OWNER_SHIFT_V6) & TW_OWNER_APPLICATION) - 1;
}

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
	return owner_of_all(entry, ends->version);
}

/* The owner of a frame's flow if a port has owners by address. */
GLOBAL __u32 frame_owner(struct xdp_md *ctx, struct tw_device *device, __u64 place)
{
	struct ends ends;
	return device && frame_ends(ctx, &ends, place) ? find_owner(device, &ends) : NO_OWNER;
}

/* The owner of the flow that an ICMP error quotes. */
GLOBAL __u32 quoted_owner(struct xdp_md *ctx, struct tw_device *device, __u64 place)
{
	struct ends ends = {};
	return device && quoted_ends(ctx, &ends, place) ? find_owner(device, &ends) : NO_OWNER;
}

/* True if the AF_XDP socket of a private application in a slot is alive. */
INLINE int is_private(__u32 place)
{
	place += TW_PRIVATE_SOCKETS;
	return bpf_map_lookup_elem(&sockets, &place) != 0;
}

INLINE int has_socket_at(__u32 place)
{
	return bpf_map_lookup_elem(&sockets, &place) || is_private(place);
}

/* True for an application without any AF_XDP socket: its process has ended, and its
 * manager has not cleaned up yet. For a living one the first look-up finds a socket. */
GLOBAL int is_gone(__u32 owner, __u32 queue)
{
	for (__u32 i = 0; i < TW_QUEUES; i++) {
		__u32 place = owner * TW_QUEUES + ((queue + i) & (TW_QUEUES - 1));
		if (has_socket_at(place))
			return 0;
	}
	return 1;
}

/* True if an application has used its share of the polls for now. */
GLOBAL int is_over_budget(struct tw_account *account)
{
	if (!account || !READ_ONCE(account->interval))
		return 0;
	__u64 now = bpf_ktime_get_ns(), due = account->due;
	/* Frames that pass after the end of a bound are not the next bound's debt. */
	if (due <= now || now >= READ_ONCE(account->until)) {
		account->due = now;
		return 0;
	}
	return due - now > READ_ONCE(account->tolerance);
}

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

/* The decision about the datagram of a later fragment: 1 + its application, 0 for the
 * kernel, UNDECIDED if its first fragment was not seen. */
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

#endif
