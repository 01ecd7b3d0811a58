/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Definitions for every part of the demultiplexer: its maps.
 */
#ifndef TIDEWALL_PROGRAM_H
#define TIDEWALL_PROGRAM_H

#include "helpers.h"
#include "tables.h"

_Static_assert(TW_WAITING_SOCKETS == TW_APPLICATIONS * TW_QUEUES && TW_PRIVATE_SOCKETS == 2 * TW_WAITING_SOCKETS,
	       "two sockets of each application and queue, direct or private");

#ifndef TIDEWALL_NATIVE
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct tw_device);
} device SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, TW_QUEUES);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, __u32);
	TYPE(value, struct tw_queue);
} queues SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, TW_OWNERS);
	TYPE(key, struct tw_owner_key);
	TYPE(value, __u32);
} owners SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, TW_FRAGMENTS);
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
	NUMBER(max_entries, 2 * TW_PRIVATE_SOCKETS);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SEC(".maps");

/* Near ends of private pairs: by the slot of the socket in use behind each, and the
 * application by the interface. */
struct {
	NUMBER(type, BPF_MAP_TYPE_DEVMAP);
	NUMBER(max_entries, TW_WAITING_SOCKETS);
	TYPE(key, __u32);
	TYPE(value, __u32);
} pairs SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, TW_PAIRS);
	TYPE(key, __u32);
	TYPE(value, __u32);
} near_ends SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, TW_APPLICATIONS + 1);
	TYPE(key, __u32);
	TYPE(value, struct tw_departures);
} departures SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	NUMBER(max_entries, 256 * 1024);
} traces SEC(".maps");
#endif

/* Offsets in a frame; frames with a tag are not parsed further. */
#define NETWORK 14

INLINE void count(struct tw_queue *queue, enum tw_counter counter)
{
	queue->counters[counter]++;
}

#endif
