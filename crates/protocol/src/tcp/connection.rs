//! One connection, as its owner sees it.
use super::{
    Config, Errno, Flow, Handshake, Info, Keepalive, Outgoing, Segment, Shutdown, State, Time,
    TimeWaitEntry,
};
use crate::icmp::FlowError;
use core::time::Duration;

/// One connection.
pub struct Connection {
    flow: Flow,
}

/// Why bytes are not a frozen connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThawError {
    /// The bytes are of another version of this engine.
    Version,
    /// The bytes end early, go on too long, or contradict themselves.
    Damaged,
}

#[allow(missing_docs, unused_variables, unused)]
impl Connection {
    pub fn connect(
        flow: Flow,
        isn: u32,
        timestamp_offset: u32,
        config: &Config,
        now: Time,
    ) -> Self {
        Self { flow }
    }
    pub fn accept(handshake: &Handshake, config: &Config, now: Time) -> Self {
        Self {
            flow: handshake.flow,
        }
    }
    pub fn input(&mut self, segment: &Segment<'_>, now: Time) {}
    pub fn output(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {}
    pub fn wants_output(&self) -> bool {
        false
    }
    pub fn next_timeout(&self) -> Option<Time> {
        None
    }
    pub fn timeout(&mut self, now: Time) {}
    pub fn icmp_error(&mut self, error: &FlowError, now: Time) {}
    pub fn readable(&self) -> bool {
        false
    }
    pub fn writable(&self) -> bool {
        false
    }
    pub fn received(&self) -> [&[u8]; 2] {
        [&[]; 2]
    }
    pub fn consume(&mut self, bytes: usize) {}
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    pub fn shutdown(&mut self, how: Shutdown, now: Time) -> Result<(), Errno> {
        Ok(())
    }
    /// `linger` zero resets; any other value is for the caller to wait by.
    pub fn close(&mut self, linger: Option<Duration>, now: Time) {}
    pub fn abort(&mut self) {}
    pub fn state(&self) -> State {
        State::Closed
    }
    pub fn flow(&self) -> &Flow {
        &self.flow
    }
    pub fn take_error(&mut self) -> Option<Errno> {
        None
    }
    pub fn info(&self) -> Info {
        unreachable!()
    }
    pub fn is_idle(&self) -> bool {
        false
    }
    pub fn time_wait(&self) -> Option<TimeWaitEntry> {
        None
    }
    /// The peer has closed its half and everything before was read (EPOLLRDHUP without the read part).
    pub fn receive_closed(&self) -> bool {
        false
    }
    /// We have closed our half (no more writing).
    pub fn send_closed(&self) -> bool {
        false
    }
    pub fn set_nodelay(&mut self, on: bool) {}
    pub fn nodelay(&self) -> bool {
        false
    }
    pub fn set_cork(&mut self, on: bool) {}
    pub fn cork(&self) -> bool {
        false
    }
    pub fn set_quick_ack(&mut self, on: bool) {}
    pub fn quick_ack(&self) -> bool {
        false
    }
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Time) {}
    pub fn keepalive(&self) -> Option<Keepalive> {
        None
    }
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {}
    pub fn user_timeout(&self) -> Option<Duration> {
        None
    }
    pub fn set_receive_buffer(&mut self, bytes: u32) {}
    pub fn receive_buffer(&self) -> u32 {
        0
    }
    pub fn set_send_buffer(&mut self, bytes: u32) {}
    pub fn send_buffer(&self) -> u32 {
        0
    }
    pub fn set_maximum_segment(&mut self, bytes: u16) {}
    pub fn maximum_segment(&self) -> u16 {
        0
    }
    pub fn set_traffic_class(&mut self, class: u8) {}
    pub fn traffic_class(&self) -> u8 {
        0
    }
    pub fn freeze(&self, now: Time) -> Vec<u8> {
        Vec::new()
    }
    pub fn thaw(bytes: &[u8], now: Time) -> Result<Self, ThawError> {
        Err(ThawError::Damaged)
    }
}
