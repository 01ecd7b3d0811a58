//! The options of a socket, and the options that its connections inherit.

mod calls;
mod kept;
mod set;
mod table;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tidewall::{ListenOptions, TcpStream};
use tidewall_protocol::tcp::{FastOpenKeys, Framing, Keepalive, StreamOptions, Sysctl};

use crate::{Posix, Result};

use kept::Kept;
pub(crate) use set::{between, int, set, timeval};
pub(crate) use table::{Carry, TABLE, place_of};

/// Constants of `linux/tcp.h` that the libc crate lacks.
mod name {
    pub(super) const TCP_NOTSENT_LOWAT: i32 = 25;
    pub(super) const TCP_FASTOPEN_KEY: i32 = 33;
    pub(super) const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
    pub(super) const TCP_INQ: i32 = 36;
    pub(super) const TCP_CC_INFO: i32 = 26;
    pub(super) const SO_MEMINFO: i32 = 55;
    pub(super) const SO_PREFER_BUSY_POLL: i32 = 69;
    /// Flags of SO_BUF_LOCK (socket(7), Linux 5.14): buffers whose sizes have been set.
    pub(super) const SOCK_SNDBUF_LOCK: i32 = 1;
    pub(super) const SOCK_RCVBUF_LOCK: i32 = 2;
    /// The length of a congestion control algorithm's name (`TCP_CA_NAME_MAX`).
    pub(super) const CONGESTION_NAME: usize = 16;
}

/// Flags of `tcp_fastopen` (`Documentation/networking/ip-sysctl.rst`).
pub(crate) const SYSCTL_FAST_OPEN_CLIENT: u32 = 1;
const SYSCTL_FAST_OPEN_SERVER: u32 = 2;
pub(crate) const SYSCTL_FAST_OPEN_NO_COOKIE: u32 = 4;
const SYSCTL_FAST_OPEN_SERVER_NO_COOKIE: u32 = 0x200;
/// Enables Fast Open on every listener, with its backlog as the queue length.
const SYSCTL_FAST_OPEN_EVERY_LISTENER: u32 = 0x400;

/// The options of a socket: the values that its connections inherit, and those that are
/// read back.
///
/// Stored in place are the options that receiving reads, those that programs set on each
/// connection, and those that connections do not inherit. A listener and all connections that it
/// has accepted share one allocation for the others, until one of them is set.
#[derive(Clone, Default)]
pub(crate) struct Options {
    rare: Arc<Rare>,
    keepalive: KeepaliveSeconds,
    keepalive_on: bool,
    nodelay: bool,
    cork: bool,
    /// `TCP_QUICKACK` is off; sockets begin with it on.
    delayed_ack: bool,
    /// `TCP_INQ`.
    pub(crate) inquires: bool,
    /// `SOF_TIMESTAMPING_…`
    pub(crate) timestamping: u32,
    pub(crate) stamps: Stamps,
    /// `TCP_DEFER_ACCEPT`, in timeouts of a SYN-ACK.
    defer_accept: u8,
    pub(crate) backlog: u32,
    /// `TCP_FASTOPEN`.
    fast_open_queue: Option<u32>,
}

/// The control message that carries the arrival time: SO_TIMESTAMP or SO_TIMESTAMPNS.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stamps {
    #[default]
    None,
    Micros,
    Nanos,
}

/// See [`Options`].
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Rare {
    /// Without the options that [`Options`] holds in place.
    stream: StreamOptions,
    pub(crate) reuse_address: bool,
    pub(crate) only_v6: bool,
    linger: Option<Duration>,
    pub(crate) read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    zero_copy: bool,
    /// SO_MAX_PACING_RATE, in bytes per second.
    pacing_rate: Option<u64>,
    /// TCP_WINDOW_CLAMP, in bytes.
    window_clamp: Option<u32>,
    fast_open_keys: Option<FastOpenKeys>,
    fast_open_no_cookie: bool,
    pub(crate) fast_open_connect: bool,
    /// IP_TTL, IPV6_UNICAST_HOPS.
    hops: Option<u8>,
    kept: Kept,
}

/// [`Keepalive`] as it is set and read.
#[derive(Clone, Copy, Default)]
struct KeepaliveSeconds {
    idle: u32,
    interval: u32,
    count: u8,
}

impl Deref for Options {
    type Target = Rare;

    fn deref(&self) -> &Rare {
        &self.rare
    }
}

impl Options {
    pub(crate) fn new(sysctl: &Sysctl) -> Self {
        let Keepalive {
            idle,
            interval,
            count,
        } = sysctl.keepalive;
        Self {
            keepalive: KeepaliveSeconds {
                idle: idle.as_secs() as u32,
                interval: interval.as_secs() as u32,
                count,
            },
            ..Self::default()
        }
    }

    /// Changes options that may be shared with other sockets, copying them first if so.
    fn change<R>(&mut self, change: impl FnOnce(&mut Rare) -> Result<R>) -> Result<R> {
        let mut rare = Rare::clone(&self.rare);
        let changed = change(&mut rare)?;
        if rare != *self.rare {
            self.rare = Arc::new(rare);
        }
        Ok(changed)
    }

    /// Sets SO_RCVTIMEO of a socket that is not a stream.
    pub(crate) fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.change(|rare| {
            rare.read_timeout = timeout;
            Ok(())
        })
    }

    /// Initial parameters of connections.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        let KeepaliveSeconds {
            idle,
            interval,
            count,
        } = self.keepalive;
        StreamOptions {
            nodelay: self.nodelay,
            keepalive: self.keepalive_on.then_some(Keepalive {
                idle: Duration::from_secs(idle.into()),
                interval: Duration::from_secs(interval.into()),
                count,
            }),
            receive_buffer: match (self.stream.receive_buffer, self.window_clamp) {
                (Some(buffer), Some(clamp)) => Some(buffer.min(clamp)),
                (buffer, clamp) => buffer.or(clamp),
            },
            ..self.stream
        }
    }

    /// Timestamps that a stream records: SO_TIMESTAMPING's flags, and the one that the
    /// other two options need.
    fn timestamping_flags(&self) -> u32 {
        match self.stamps {
            Stamps::None => self.timestamping,
            _ => self.timestamping | libc::SOF_TIMESTAMPING_RX_SOFTWARE,
        }
    }

    /// SOCK_SEQPACKET.
    pub(crate) fn carry_frames(&mut self) {
        Arc::make_mut(&mut self.rare).stream.framing = Framing::Acp;
    }

    /// Returns the configuration of a listener.
    pub(crate) fn listen(&self, sysctl: &Sysctl) -> ListenOptions {
        let has = |flag| sysctl.fast_open & flag != 0;
        let queue = match self.fast_open_queue {
            None if has(SYSCTL_FAST_OPEN_EVERY_LISTENER) => self.backlog.saturating_sub(1),
            own => own.unwrap_or(0),
        };
        ListenOptions {
            backlog: self.backlog.max(1),
            fast_open: if has(SYSCTL_FAST_OPEN_SERVER) {
                queue
            } else {
                0
            },
            fast_open_keys: self.fast_open_keys.or(sysctl.fast_open_keys),
            fast_open_without_cookie: self.fast_open_no_cookie
                || has(SYSCTL_FAST_OPEN_SERVER_NO_COOKIE),
            defer_accept: self.defer_accept,
            reuse_address: self.reuse_address,
            reuse_port: false,
            only_v6: self.only_v6,
            stream: self.stream_options(),
        }
    }

    /// Returns the options of an accepted connection.
    pub(crate) fn inherited(&self) -> Self {
        let mut own = Self {
            backlog: 0,
            fast_open_queue: None,
            defer_accept: 0,
            ..self.clone()
        };
        if self.fast_open_keys.is_some() || self.kept.is_only_the_listeners() {
            let rare = Arc::make_mut(&mut own.rare);
            rare.fast_open_keys = None;
            rare.kept.inherit();
        }
        own
    }

    /// Sets the options that a new stream does not begin with. An option that a stream
    /// refuses stays unset, for example zero copy on a kernel stream.
    pub(crate) fn begin(&self, stream: &TcpStream, posix: &Posix) {
        for row in &TABLE {
            if let (Some(begins), Some(apply)) = (row.begins, row.apply)
                && begins(self)
            {
                let _ = apply(stream, self, posix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewall::OpenFile;

    use crate::Errno;
    use crate::socket::{Socket, State, kernel_socket};

    fn shares(one: &State, other: &State) -> bool {
        Arc::ptr_eq(&one.options.rare, &other.options.rare)
    }

    /// Bytes per idle connection, beyond those of the stack.
    #[test]
    fn connections_share_what_their_program_does_not_set_of_each() {
        let file = kernel_socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let file = OpenFile::from(file);
        let set = |state: &mut State, which, value: &[i32]| {
            let bytes: Vec<u8> = value.iter().flat_map(|it| it.to_ne_bytes()).collect();
            set(state, &file, false, which, &bytes)
        };
        let lingers = (libc::SOL_SOCKET, libc::SO_LINGER);
        let mut listener = State::default();
        set(&mut listener, lingers, &[1, 5]).unwrap();
        let mut connection = listener.accepted();
        // The options that redis, nginx and haproxy set.
        for which in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
            (libc::IPPROTO_TCP, libc::TCP_CORK),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        ] {
            set(&mut connection, which, &[100]).unwrap();
        }
        set(&mut connection, lingers, &[1, 5]).unwrap();
        let refused = set(&mut connection, (libc::IPPROTO_TCP, libc::TCP_MAXSEG), &[1]);
        assert_eq!(refused, Err(Errno::INVAL));
        assert!(shares(&connection, &listener));
        let stream = connection.options.stream_options();
        assert!(stream.nodelay);
        assert_eq!(stream.keepalive.unwrap().idle, Duration::from_secs(100));
        assert!(!listener.options.stream_options().nodelay);
        set(&mut connection, lingers, &[1, 7]).unwrap();
        assert!(!shares(&connection, &listener));
        assert_eq!(connection.options.linger, Some(Duration::from_secs(7)));
        assert_eq!(listener.options.linger, Some(Duration::from_secs(5)));
        assert!(size_of::<Socket>() <= 120, "{}", size_of::<Socket>());
    }

    /// An option that `set` supports and the table lacks would be lost when the stack adopts a
    /// socket.
    #[test]
    fn each_option_of_the_table_is_set_or_kept_and_read() {
        for (place, row) in TABLE.into_iter().enumerate() {
            let which = row.which;
            assert_eq!(place_of(which), Some(place), "twice: {which:?}");
            let file = OpenFile::from(kernel_socket(libc::AF_INET6, libc::SOCK_STREAM).unwrap());
            let mut state = State::default();
            // As long as any value: an algorithm's name, a key, a time.
            let values = [vec![1, 0, 0, 0], vec![1; 16], b"reno".to_vec(), vec![0; 16]];
            let results = values.map(|value| set(&mut state, &file, true, which, &value));
            assert!(results.iter().any(Result::is_ok), "{which:?}: {results:?}");
        }
        let mut state = State::default();
        let file = OpenFile::from(kernel_socket(libc::AF_INET, libc::SOCK_STREAM).unwrap());
        let of_no_table = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        let refused = set(&mut state, &file, true, of_no_table, &[0; 16]);
        assert_eq!(refused, Err(Errno(libc::ENOPROTOOPT)));
    }
}
