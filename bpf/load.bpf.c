/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The kernel part of the load generator (lab/load): live frames that go to an
 * interface, and a sink. The sink takes the answers to addresses that no host has.
 */
#include "helpers.h"

static __u32 (*const bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;

/* Set when the programs are loaded, so the verifier knows them. Offsets are in the
 * frame; addresses and masks are in memory order. */
const volatile __u32 redirect_interface = 0;
/* Bits to randomize in the last four bytes of the source address, which are zero there. */
const volatile __u32 scatter_mask = 0;
const volatile __u32 scatter_address = 0;
const volatile __u32 scatter_ip_checksum = 0; /* 0: IPv6 has none */
const volatile __u32 scatter_transport_checksum = 0;

const volatile __u32 sink_type = 0; /* EtherType */
const volatile __u32 sink_offset = 0;
const volatile __u32 sink_length = 0;
const volatile __u32 sink_address[4] = {0};
const volatile __u32 sink_mask[4] = {0};

/* RFC 1624; the sum does not depend on the byte order (RFC 1071 §2). */
INLINE void add_to_checksum(__u16 *checksum, __u32 sum)
{
	sum += (__u16)~*checksum;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*checksum = ~sum;
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	if (scatter_mask) {
		__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
		__u8 *transport = data + scatter_transport_checksum;
		if (transport + 2 > end)
			return XDP_ABORTED;
		__u32 bits = bpf_get_prandom_u32() & scatter_mask;
		__u32 sum = (bits & 0xffff) + (bits >> 16);
		__u32 ip = scatter_ip_checksum;
		*(__u32 *)(data + scatter_address) |= bits;
		if (ip)
			add_to_checksum((__u16 *)(data + ip), sum);
		add_to_checksum((__u16 *)transport, sum);
	}
	return bpf_redirect(redirect_interface, 0);
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *destination = data + sink_offset;
	if (destination + sink_length > end || *(__u16 *)(data + 12) != sink_type)
		return XDP_PASS;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 mask = sink_mask[i];
		if (mask && (*(__u32 *)(destination + 4 * i) & mask) != sink_address[i])
			return XDP_PASS;
	}
	return XDP_DROP;
}

char license_text[] SEC("license") = "Dual MIT/GPL";
