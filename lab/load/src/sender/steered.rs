//! Sends frames on the queue that the interface's rule table names, as a card at the
//! other end of the wire would (`bpf/adaptor.bpf.c`): AF_XDP bypasses the program that
//! steers the frames of kernel sockets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::skb::SkbSender;
use super::{Sender, Sent};
use crate::neighbour::Path;
use crate::spec::BlastSpec;

/// Bursts between two checks of the rule table.
const BURSTS: u32 = 64;
/// Protocol of the datagrams in a rule.
const UDP: u32 = 17;

/// One sender per queue.
pub(super) struct SteeredSender {
    senders: [SkbSender; 2],
    /// The interface's group: the rule table.
    table: File,
    port: u16,
    /// Number of the queue.
    queue: usize,
    /// Bursts until the next check.
    left: u32,
}

impl SteeredSender {
    pub(super) fn open(spec: &BlastSpec, path: &Path) -> io::Result<Self> {
        let open = |queue| {
            let spec = BlastSpec {
                queue,
                ..spec.clone()
            };
            SkbSender::open(&spec, path)
        };
        Ok(SteeredSender {
            senders: [open(0)?, open(1)?],
            table: File::open(format!("/sys/class/net/{}/netdev_group", path.link.name))?,
            port: spec.destination.port(),
            queue: 0,
            left: 0,
        })
    }
}

impl Sender for SteeredSender {
    fn send(&mut self, count: u32) -> io::Result<Sent> {
        if self.left == 0 {
            self.left = BURSTS;
            let mut text = [0; 16];
            let length = self.table.read_at(&mut text, 0)?;
            let text = text.get(..length).unwrap_or_default();
            self.queue = usize::from(is_steered(text, self.port));
        }
        self.left -= 1;
        match self.senders.get_mut(self.queue) {
            Some(sender) => sender.send(count),
            None => Ok(Sent::default()),
        }
    }
}

/// Returns whether the rule, as shown by sysfs, steers datagrams for `port` to queue 1.
fn is_steered(text: &[u8], port: u16) -> bool {
    let rule = std::str::from_utf8(text).ok();
    let rule = rule.and_then(|text| text.trim().parse::<u32>().ok());
    rule == Some(1 << 24 | UDP << 16 | u32::from(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_protocol_and_port() {
        assert!(is_steered(b"17891337\n", 9));
        for text in [&b"17891338\n"[..], b"0\n", b"", b"\xff"] {
            assert!(!is_steered(text, 9));
        }
    }
}
