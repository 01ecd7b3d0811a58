/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What every part of the demultiplexer needs: its maps, and the layout of the
 * tables asserted.
 */
#ifndef TIDEWALL_PROGRAM_H
#define TIDEWALL_PROGRAM_H

#include "helpers.h"
#include "tables.h"

/* Of crates/device/src/demux/layout.rs, too. */
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define AT(type, field, offset) _Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field)
SIZE(tw_metadata, 24); AT(tw_metadata, kind, 12); AT(tw_metadata, network, 16); AT(tw_metadata, fragment, 22);
SIZE(tw_class_bucket, 72); AT(tw_class_bucket, passed, 32); AT(tw_class_bucket, drawn, 64);
SIZE(tw_control, 4264); AT(tw_control, probe_source, 4248); AT(tw_control, probed_sequence, 4160); AT(tw_control, probed_protocol, 4192); AT(tw_control, probed_link, 4200); AT(tw_control, raw, 16); AT(tw_control, trace_remaining, 24);
AT(tw_control, probe_port, 32); AT(tw_control, probed_port, 48); AT(tw_control, locals, 64);
SIZE(tw_queue, 992); AT(tw_queue, classes, 192); AT(tw_queue, metadata_in_frame, 984);
SIZE(tw_device, 602024); AT(tw_device, queues, 4264); AT(tw_device, ports, 12200); AT(tw_device, kernel_shares, 536488);
SIZE(tw_listener, 12);
SIZE(tw_flow, 48); AT(tw_flow, local_port, 32); AT(tw_flow, protocol, 36); AT(tw_flow, channel, 40); AT(tw_flow, epoch, 44);
SIZE(tw_channel_application, 8); AT(tw_channel_application, limit, 4);
SIZE(tw_channel_driver, 16); AT(tw_channel_driver, dropped, 8);
SIZE(tw_cookies, 32); AT(tw_cookies, epoch, 16); AT(tw_cookies, mss, 24); AT(tw_cookies, hop_limit, 28); AT(tw_cookies, redirect, 29);
AT(tw_application, tags, 1572864); AT(tw_application, flows, 1835008);
AT(tw_application, channels, 14417920); AT(tw_application, heads, 14680064);
AT(tw_application, cookies, 15204352); AT(tw_application, fragment_channel, 15204384);
AT(tw_application, shares, 15204388);
SIZE(tw_application, 15204408);
SIZE(tw_owner_key, 20);
SIZE(tw_fragment_key, 40);
SIZE(tw_trace, 296); AT(tw_trace, captured, 32); AT(tw_trace, bytes, 36);

#ifndef TIDEWALL_NATIVE
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
#endif

/* Offsets in a frame; the Ethernet header is never tagged when we parse on. */
#define NETWORK 14

INLINE void count(struct tw_queue *queue, enum tw_counter counter)
{
	queue->counters[counter]++;
}

#endif
