//! The vocabulary of the reassembly tests, which read as exchanges of fragments.

mod honest;
mod hostile;
mod properties;

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tidewall_wire::ipv4::FragmentOffset;
use tidewall_wire::{Protocol, ipv4, ipv6};

const SECOND: Duration = Duration::from_secs(1);
const START: Duration = Duration::from_secs(1000);

/// The fields of a fragment that differ between tests; the rest is the same for all.
#[derive(Clone, Copy)]
struct Send<'a> {
    id: u32,
    at: usize,
    more: bool,
    ecn: u8,
    /// IPv4 options, or whole IPv6 extension headers before the fragment header.
    extra: &'a [u8],
    payload: &'a [u8],
}

const SEND: Send<'static> = Send {
    id: 7,
    at: 0,
    more: true,
    ecn: 0,
    extra: &[],
    payload: b"first fragment..",
};

impl Send<'_> {
    fn v4(self) -> Vec<u8> {
        let header = ipv4::Header {
            tos: 0x20 | self.ecn,
            identification: self.id as u16,
            dont_fragment: false,
            more_fragments: self.more,
            fragment_offset: FragmentOffset::from_bytes(self.at as u16).unwrap(),
            ttl: 64,
            protocol: Protocol::UDP,
            source: Ipv4Addr::new(192, 0, 2, 1),
            destination: Ipv4Addr::new(192, 0, 2, 2),
            options: ipv4::Options::new(self.extra).unwrap(),
        };
        let mut bytes = vec![0; header.header_len()];
        header.emit(self.payload.len(), &mut bytes).unwrap();
        bytes.extend(self.payload);
        bytes
    }

    fn v6(self) -> Vec<u8> {
        let fragment = ipv6::Fragment {
            at: 0,
            announced_at: 0,
            next_header: Protocol::UDP,
            offset: FragmentOffset::from_bytes(self.at as u16).unwrap(),
            more: self.more,
            identification: self.id,
        };
        let header = ipv6::Header {
            traffic_class: 0x20 | self.ecn,
            flow_label: 0x54321,
            next_header: if self.extra.is_empty() {
                Protocol::FRAGMENT
            } else {
                Protocol::DESTINATION_OPTIONS
            },
            hop_limit: 64,
            source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
            destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
        };
        let mut bytes = vec![0; 40];
        header
            .emit(self.extra.len() + 8 + self.payload.len(), &mut bytes)
            .unwrap();
        bytes.extend(self.extra);
        let mut field = [0; 8];
        fragment.emit(&mut field).unwrap();
        bytes.extend(field);
        bytes.extend(self.payload);
        bytes
    }
}

type Family = fn(Send<'_>) -> Vec<u8>;
const FAMILIES: [Family; 2] = [|send| send.v4(), |send| send.v6()];

fn payload_of(whole: &Reassembled) -> &[u8] {
    &whole.bytes[whole.transport..]
}

/// The next fragment is held and nothing is complete.
fn held(reassembler: &mut Reassembler, bytes: &[u8]) {
    assert_eq!(reassembler.insert(START, bytes, None), Ok(None));
}

fn completes(reassembler: &mut Reassembler, bytes: &[u8]) -> Reassembled {
    reassembler
        .insert(START, bytes, None)
        .unwrap()
        .expect("complete")
}

fn refused(reassembler: &mut Reassembler, bytes: &[u8]) -> DropReason {
    reassembler.insert(START, bytes, None).unwrap_err()
}

fn is_empty(reassembler: &Reassembler) -> bool {
    reassembler.bytes() == 0 && reassembler.datagrams() == 0 && reassembler.next_expiry().is_none()
}
