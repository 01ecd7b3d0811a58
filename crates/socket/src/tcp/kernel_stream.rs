//! Connections that the kernel has: those with peers on this host, and those
//! that do not go by the stack's interface.

use std::io;
use std::net::TcpStream as KernelTcp;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use tidewall_protocol::tcp::{Keepalive, SendFlags};

use crate::raw::options;
use crate::readiness::watch::Watch;

/// A stream of the kernel's.
pub(crate) struct KernelStream {
    pub(crate) stream: KernelTcp,
    pub(crate) watch: Watch,
}

/// Whole seconds for an option that knows no finer ones; at least one.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs().max(1)).unwrap_or(i32::MAX)
}

impl KernelStream {
    pub(crate) fn new(stream: KernelTcp) -> Self {
        KernelStream {
            stream,
            watch: Watch::default(),
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.stream.as_raw_fd()
    }

    pub(crate) fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        options::set(self.stream.as_fd(), level, name, value)
    }

    pub(crate) fn get(&self, level: i32, name: i32) -> io::Result<i32> {
        options::get(self.stream.as_fd(), level, name)
    }

    pub(crate) fn send(&self, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = flag(flags.more, libc::MSG_MORE) | flag(flags.record, libc::MSG_EOR);
        options::send(self.stream.as_fd(), bytes, flags)
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        if let Some(keepalive) = keepalive {
            let tcp = libc::IPPROTO_TCP;
            self.set(tcp, libc::TCP_KEEPIDLE, seconds(keepalive.idle))?;
            self.set(tcp, libc::TCP_KEEPINTVL, seconds(keepalive.interval))?;
            self.set(tcp, libc::TCP_KEEPCNT, keepalive.count.into())?;
        }
        let on = i32::from(keepalive.is_some());
        self.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, on)
    }

    pub(crate) fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        if self.get(libc::SOL_SOCKET, libc::SO_KEEPALIVE)? == 0 {
            return Ok(None);
        }
        let tcp = libc::IPPROTO_TCP;
        let time = |name| {
            self.get(tcp, name)
                .map(|seconds| Duration::from_secs(seconds.max(0) as u64))
        };
        Ok(Some(Keepalive {
            idle: time(libc::TCP_KEEPIDLE)?,
            interval: time(libc::TCP_KEEPINTVL)?,
            count: u8::try_from(self.get(tcp, libc::TCP_KEEPCNT)?).unwrap_or(u8::MAX),
        }))
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let seconds = linger.map(|time| i32::try_from(time.as_secs()).unwrap_or(i32::MAX));
        options::set_linger(self.stream.as_fd(), seconds)
    }
}
