//! Ports that the kernel does not choose by itself: net.ipv4.ip_local_reserved_ports, in
//! which the administrator's own stay.

use std::fs;
use std::io;

use crate::protocol::{BLOCK_PORTS, Blocks};

const PATH: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const PORTS: usize = 65_536;

/// What is reserved.
pub(super) struct Reserved {
    /// Others' ports, a bit each.
    others: Box<[u64; PORTS / 64]>,
    blocks: Blocks,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reserved")
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl Reserved {
    /// What is reserved now, of which `blocks` are ours.
    pub(super) fn read(blocks: &Blocks) -> io::Result<Self> {
        let mut others = parse(&fs::read_to_string(PATH)?);
        for (port, ours) in block_ports(blocks) {
            if ours {
                mark(&mut others, port, false);
            }
        }
        Ok(Reserved {
            others,
            blocks: *blocks,
        })
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// True of a port that somebody else has reserved.
    pub(super) fn is_anothers(&self, port: u16) -> bool {
        is_marked(&self.others, port)
    }

    /// Reserves these blocks of ours and no others.
    pub(super) fn set(&mut self, blocks: &Blocks) -> io::Result<()> {
        let mut all = self.others.clone();
        for (port, ours) in block_ports(blocks) {
            if ours {
                mark(&mut all, port, true);
            }
        }
        fs::write(PATH, format!("{}\n", print(&all)))?;
        self.blocks = *blocks;
        Ok(())
    }
}

/// Every port, and whether its block is in the set.
fn block_ports(blocks: &Blocks) -> impl Iterator<Item = (u16, bool)> {
    let in_set = |port: u16| {
        let block = usize::from(port / BLOCK_PORTS);
        let word = blocks.get(block / 64).copied().unwrap_or(0);
        word & (1 << (block % 64)) != 0
    };
    (0..=u16::MAX).map(move |port| (port, in_set(port)))
}

fn is_marked(ports: &[u64; PORTS / 64], port: u16) -> bool {
    let word = ports.get(usize::from(port) / 64).copied().unwrap_or(0);
    word & (1 << (port % 64)) != 0
}

fn mark(ports: &mut [u64; PORTS / 64], port: u16, value: bool) {
    if let Some(word) = ports.get_mut(usize::from(port) / 64) {
        let bit = 1 << (port % 64);
        *word = if value { *word | bit } else { *word & !bit };
    }
}

/// As the kernel prints it: `1,2-4,10`.
fn parse(text: &str) -> Box<[u64; PORTS / 64]> {
    let mut ports = Box::new([0; PORTS / 64]);
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            for port in first..=last {
                mark(&mut ports, port, true);
            }
        }
    }
    ports
}

fn print(ports: &[u64; PORTS / 64]) -> String {
    let mut ranges: Vec<String> = Vec::new();
    let mut first = None;
    for port in 0..=u16::MAX {
        let marked = is_marked(ports, port);
        if marked && first.is_none() {
            first = Some(port);
        }
        let last = match marked {
            true if port == u16::MAX => port,
            true => continue,
            false => port.saturating_sub(1),
        };
        if let Some(first) = first.take() {
            ranges.push(match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            });
        }
    }
    ranges.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_printed_as_they_were_read() {
        for text in ["", "1", "0,2-4,10", "32768-33023,65535", "65000-65535"] {
            assert_eq!(print(&parse(&format!("{text}\n"))), text);
        }
    }

    #[test]
    fn a_block_is_256_ports() {
        let of = |blocks| block_ports(blocks).filter(|of| of.1).map(|of| of.0);
        let ports: Vec<u16> = of(&[0, 0, 1, 1 << 63]).collect();
        assert_eq!(ports.len(), 512);
        assert_eq!(ports.first(), Some(&32_768));
        assert_eq!(ports.last(), Some(&65_535));
        assert!(ports.contains(&33_023) && !ports.contains(&33_024));
    }
}
