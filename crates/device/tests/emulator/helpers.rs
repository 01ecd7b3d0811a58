//! The helpers (man 7 bpf-helpers) that our XDP programs may call.

use aya_obj::generated::bpf_func_id::{self, *};
use aya_obj::generated::bpf_map_type::*;

use super::{CONTEXT, Emulator, Fault, MAPS};

const REDIRECT: u64 = 4;
const NO_EXISTING: u64 = 1;
const EXISTING: u64 = 2;

fn error(number: i32) -> u64 {
    -i64::from(number) as u64
}

/// The return value of a helper that succeeds or refuses.
fn status(good: bool) -> u64 {
    if good { 0 } else { error(libc::EINVAL) }
}

const HELPERS: [(bpf_func_id, &str); 17] = [
    (BPF_FUNC_map_lookup_elem, "map_lookup_elem"),
    (BPF_FUNC_map_update_elem, "map_update_elem"),
    (BPF_FUNC_ktime_get_ns, "ktime_get_ns"),
    (BPF_FUNC_get_smp_processor_id, "get_smp_processor_id"),
    (BPF_FUNC_sk_lookup_udp, "sk_lookup_udp"),
    (BPF_FUNC_skc_lookup_tcp, "skc_lookup_tcp"),
    (BPF_FUNC_sk_release, "sk_release"),
    (BPF_FUNC_redirect, "redirect"),
    (BPF_FUNC_redirect_map, "redirect_map"),
    (BPF_FUNC_xdp_adjust_head, "xdp_adjust_head"),
    (BPF_FUNC_xdp_adjust_meta, "xdp_adjust_meta"),
    (BPF_FUNC_xdp_adjust_tail, "xdp_adjust_tail"),
    (BPF_FUNC_xdp_get_buff_len, "xdp_get_buff_len"),
    (BPF_FUNC_xdp_load_bytes, "xdp_load_bytes"),
    (BPF_FUNC_xdp_store_bytes, "xdp_store_bytes"),
    (BPF_FUNC_ringbuf_reserve, "ringbuf_reserve"),
    (BPF_FUNC_ringbuf_submit, "ringbuf_submit"),
];

impl Emulator<'_> {
    /// Calls a helper; returns its result.
    pub(super) fn helper(&mut self, number: u32, arguments: [u64; 5]) -> Result<u64, Fault> {
        let known = HELPERS.iter().find(|(id, _)| *id as u32 == number);
        let Some(&(id, name)) = known else {
            return Err(self.fault(format!("calls helper {number}, which is not here")));
        };
        *self.helpers.entry(name).or_default() += 1;
        let result = match id {
            BPF_FUNC_ktime_get_ns => Ok(self.time),
            BPF_FUNC_get_smp_processor_id => Ok(0),
            BPF_FUNC_redirect => Ok(REDIRECT),
            BPF_FUNC_map_lookup_elem | BPF_FUNC_map_update_elem | BPF_FUNC_redirect_map => {
                self.of_map(id, arguments)
            }
            BPF_FUNC_sk_lookup_udp | BPF_FUNC_skc_lookup_tcp => self.socket(name, arguments),
            BPF_FUNC_sk_release => {
                self.memory.remove(arguments[0]);
                Ok(0)
            }
            BPF_FUNC_ringbuf_reserve => self.number_of(arguments[0]).map(|map| {
                let ring = self.maps[map].most;
                self.memory.open_record(arguments[1] as usize, ring)
            }),
            BPF_FUNC_ringbuf_submit => match self.memory.close_record(arguments[0]) {
                Some(record) => {
                    self.records.push(record);
                    Ok(0)
                }
                None => Err("submits what is no record".into()),
            },
            _ => self.of_frame(id, arguments),
        };
        result.map_err(|what: String| self.fault(format!("{name}: {what}")))
    }

    /// A `bpf_sock` with only its state, or none.
    fn socket(&mut self, name: &'static str, arguments: [u64; 5]) -> Result<u64, String> {
        const STATE: usize = 72;
        let [context, tuple, length, namespace, flags] = arguments;
        if context != CONTEXT || namespace as i32 != -1 || flags != 0 {
            return Err("arguments that are not ours".into());
        }
        let tuple = self.memory.load(tuple, length as u32 as usize)?;
        let Some(state) = self.sockets.get(&(name, tuple)) else {
            return Ok(0);
        };
        let mut bytes = vec![0; STATE + 8];
        bytes[STATE..STATE + 4].copy_from_slice(&state.to_ne_bytes());
        Ok(self.memory.add(bytes))
    }

    fn number_of(&self, pointer: u64) -> Result<usize, String> {
        let number = pointer.wrapping_sub(MAPS) as usize;
        if number < self.maps.len() {
            return Ok(number);
        }
        Err(format!("{pointer:#x} is no map"))
    }

    fn of_map(&mut self, id: bpf_func_id, arguments: [u64; 5]) -> Result<u64, String> {
        let [pointer, key, value, flags, _] = arguments;
        let number = self.number_of(pointer)?;
        let map = &mut self.maps[number];
        if id == BPF_FUNC_redirect_map {
            // The third argument, flags, is the return value if nothing is found.
            let there = map.elements.contains_key(&(key as u32).to_ne_bytes()[..]);
            return Ok(if there { REDIRECT } else { value & 3 });
        }
        let key = self.memory.load(key, map.key)?;
        let found = map.elements.get(&key).copied();
        let hash = matches!(map.kind, BPF_MAP_TYPE_HASH | BPF_MAP_TYPE_LRU_HASH);
        match (id, found) {
            (BPF_FUNC_map_lookup_elem, _) => Ok(found.unwrap_or(0)),
            (_, Some(_)) if flags == NO_EXISTING => Ok(error(libc::EEXIST)),
            (_, Some(at)) => {
                let bytes = self.memory.load(value, map.value)?;
                self.memory.store(at, &bytes).map(|()| 0)
            }
            (_, None) if flags == EXISTING => Ok(error(libc::ENOENT)),
            (_, None) if hash => {
                let bytes = self.memory.load(value, map.value)?;
                if map.elements.len() == map.most {
                    if map.kind == BPF_MAP_TYPE_HASH {
                        return Ok(error(libc::E2BIG));
                    }
                    // Some element; the kernel's choice is not exact either.
                    if let Some((_, oldest)) = map.elements.pop_first() {
                        self.memory.remove(oldest);
                    }
                }
                map.elements.insert(key, self.memory.add(bytes));
                Ok(0)
            }
            (_, None) => Ok(error(libc::E2BIG)),
        }
    }

    fn of_frame(&mut self, id: bpf_func_id, arguments: [u64; 5]) -> Result<u64, String> {
        let [context, first, buffer, length, _] = arguments;
        if context != CONTEXT {
            return Err(format!("{context:#x} is not the context"));
        }
        let delta = first as i32;
        let (offset, length) = (u64::from(first as u32), u64::from(length as u32));
        let place = self.memory.in_frame(offset, length);
        match id {
            BPF_FUNC_xdp_get_buff_len => Ok(self.memory.frame_length() as u64),
            BPF_FUNC_xdp_adjust_meta => Ok(status(self.memory.adjust_metadata(delta))),
            BPF_FUNC_xdp_adjust_head => Ok(status(self.memory.adjust_head(delta))),
            BPF_FUNC_xdp_adjust_tail => Ok(status(self.memory.adjust_tail(delta))),
            BPF_FUNC_xdp_load_bytes => {
                // The buffer must exist even if the frame is too short.
                self.memory.load(buffer, length as usize)?;
                let Some(place) = place else {
                    return Ok(status(false));
                };
                let bytes = self.memory.load(place, length as usize)?;
                self.memory.store(buffer, &bytes).map(|()| 0)
            }
            BPF_FUNC_xdp_store_bytes => {
                let bytes = self.memory.load(buffer, length as usize)?;
                let Some(place) = place else {
                    return Ok(status(false));
                };
                self.memory.store(place, &bytes).map(|()| 0)
            }
            _ => Err("is not here".into()),
        }
    }
}
