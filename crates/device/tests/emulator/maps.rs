//! Maps, and their contents set from outside.

use std::collections::BTreeMap;

use aya_obj::EbpfSectionKind;
use aya_obj::generated::bpf_map_type::{self, *};

use tidewall_device::demux::Tables;
use tidewall_device::demux::layout::WAITING_SOCKETS;

use super::memory::Memory;
use super::raw_memory::Shared;
use super::{Emulator, MAPS};

/// A map. Values lie in the machine's memory.
pub(super) struct Map {
    name: String,
    pub(super) kind: bpf_map_type,
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) most: usize,
    /// Address of the value by key; of an inner map, the pointer to it.
    pub(super) elements: BTreeMap<Vec<u8>, u64>,
}

impl Map {
    pub(super) fn new(name: &str, map: &aya_obj::Map, memory: &mut Memory<'_>) -> Self {
        let kind = bpf_map_type::try_from(map.map_type())
            .ok()
            .expect("a type of map");
        let (value, most) = (map.value_size() as usize, map.max_entries());
        let mut elements = BTreeMap::new();
        // One processor runs this, so a per-CPU array is an array.
        if matches!(kind, BPF_MAP_TYPE_ARRAY | BPF_MAP_TYPE_PERCPU_ARRAY) {
            for index in 0..most {
                let mut bytes = map.data().to_vec();
                bytes.resize(value, 0);
                let at = memory.add(bytes);
                if map.section_kind() == EbpfSectionKind::Rodata {
                    memory.forbid_writing(at);
                }
                elements.insert(index.to_ne_bytes().to_vec(), at);
            }
        }
        Map {
            name: name.to_owned(),
            kind,
            key: map.key_size() as usize,
            value,
            most: most as usize,
            elements,
        }
    }

    /// Address of an array's first value.
    pub(super) fn first(&self) -> u64 {
        self.elements.values().next().copied().unwrap_or(0)
    }
}

/// The object that `build.rs` compiles.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demux.bpf.o"));

impl<'a> Emulator<'a> {
    /// The compiler's own name in the object.
    pub fn compiler() -> String {
        let mut strings = OBJECT.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let producer = strings.find(|text| text.contains("clang version"));
        producer.map_or("an unknown compiler".to_owned(), String::from)
    }

    /// The driver program over these tables, with a socket on queue 0.
    pub fn driver(tables: &'a Tables) -> Self {
        let mut emulator = Self::load(OBJECT, "demux");
        emulator.share("device", Shared::new(tables.device()));
        emulator.share("queues", Shared::new(&tables.trusted.queues()[0]));
        emulator.share("embedded", Shared::new(tables.application()));
        emulator.insert_map("applications", 0, "embedded");
        emulator.insert("sockets", &[0; 4], &[1; 4]);
        let waiting = (WAITING_SOCKETS as u32).to_ne_bytes();
        emulator.insert("sockets", &waiting, &[1; 4]);
        emulator
    }

    fn number(&self, name: &str) -> usize {
        let found = self.maps.iter().position(|map| map.name == name);
        found.unwrap_or_else(|| panic!("the program has no map {name}"))
    }

    /// Makes an array use shared memory for its first element.
    pub fn share(&mut self, map: &str, shared: Shared<'a>) {
        let at = self.maps[self.number(map)].first();
        self.memory.share(at, shared);
    }

    /// Enters an element of a hash or a socket map.
    pub fn insert(&mut self, map: &str, key: &[u8], value: &[u8]) {
        let at = self.memory.add(value.to_vec());
        let number = self.number(map);
        let map = &mut self.maps[number];
        assert_eq!((key.len(), value.len()), (map.key, map.value), "sizes");
        map.elements.insert(key.to_vec(), at);
    }

    /// Enters a map into an array of maps.
    pub fn insert_map(&mut self, outer: &str, index: u32, inner: &str) {
        let (outer, inner) = (self.number(outer), self.number(inner));
        let pointer = MAPS + inner as u64;
        let key = index.to_ne_bytes().to_vec();
        self.maps[outer].elements.insert(key, pointer);
    }
}
