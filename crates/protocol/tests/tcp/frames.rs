//! An application that writes and reads frames.

use tidewall_protocol::tcp::{Connection, Errno};

/// Behaviour of an application with a connection of frames.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    pub to_send: Vec<Vec<u8>>,
    pub sent: usize,
    pub received: Vec<Vec<u8>>,
}

impl Frames {
    /// Writes what fits; returns true when all has been written.
    pub fn send(&mut self, connection: &mut Connection) -> Result<bool, Errno> {
        while let Some(frame) = self.to_send.get(self.sent) {
            match connection.write_frame(&[frame.as_slice()], false) {
                Ok(()) => self.sent += 1,
                Err(Errno::AGAIN) => {
                    assert!(!connection.writable(), "the longest frame fits");
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
