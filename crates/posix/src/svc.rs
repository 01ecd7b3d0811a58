//! The C interface to calls: AF_ATMSVC, and the addresses of `linux/atm.h` and
//! `linux/atmsap.h`.

use tidewall::readiness::{Events, PollFd};
use tidewall::{AtmListener, AtmSocket, CallOptions, Nsap, Opaque, OpenFile, Sap};

use crate::atm::{ANY_CLASS, Qos, RECEIVE, SEND, circuit_of};
use crate::socket::{Socket, kernel_socket};
use crate::{Errno, Posix, Result, errno, lock};

/// `SO_ATMSAP`.
pub const SO_ATMSAP: i32 = 0x4203_0028;

/// Linux's `net.core.somaxconn`.
const BACKLOG_MAX: i32 = 4096;

/// `struct sockaddr_atmsvc`; only its private address is used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SvcAddress {
    /// The number (`sas_addr.prv`).
    pub number: Nsap,
}

/// The offset of the private address.
const NUMBER: std::ops::Range<usize> = 4..24;

impl SvcAddress {
    /// Length of the structure in bytes.
    pub const LEN: usize = 44;

    /// Parses the bytes that a C caller passes.
    ///
    /// # Errors
    /// EINVAL for another length, EAFNOSUPPORT for another family; EOPNOTSUPP for an E.164
    /// number alone.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Errno(libc::EINVAL))?;
        if i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) != libc::AF_ATMSVC {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let mut number = Nsap::default();
        number.0.copy_from_slice(&bytes[NUMBER]);
        // The public address follows it.
        if number == Nsap::default() && bytes[NUMBER.end] != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(Self { number })
    }

    /// Returns the C structure.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&(libc::AF_ATMSVC as u16).to_ne_bytes());
        bytes[NUMBER].copy_from_slice(&self.number.0);
        bytes
    }
}

/// `struct atm_sap`: high layer information, and three entries for low layer information.
#[derive(Clone, Copy)]
pub(crate) struct SapBytes([u8; Self::LEN]);

impl Default for SapBytes {
    fn default() -> Self {
        Self([0; Self::LEN])
    }
}

impl SapBytes {
    const LEN: usize = 40;
    /// The offset of the low layer entries, and the length of each.
    const LOW: usize = 10;
    const LOW_LEN: usize = 10;

    /// # Errors
    /// EINVAL for another length; EOPNOTSUPP for values that [`SapBytes::elements`]
    /// cannot express.
    pub(crate) fn parse(value: &[u8]) -> Result<Self> {
        let sap = Self(value.try_into().map_err(|_| Errno(libc::EINVAL))?);
        sap.elements()?;
        Ok(sap)
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Returns the contents of the elements for both layers (Q.2931 §4.5.8, §4.5.9).
    fn elements(&self) -> Result<(Option<Opaque<9>>, Option<Opaque<13>>)> {
        let unsupported = || Errno(libc::EOPNOTSUPP);
        let high = match self.0[..Self::LOW] {
            [0, ..] => None,
            // ISO, user, profile and vendor: Q.2931 counts from 0.
            [kind @ 1..=4, length, ref info @ ..] => {
                let info = info.get(..length.into()).ok_or_else(unsupported)?;
                let contents = [&[0x80 | (kind - 1)], info].concat();
                Some(Opaque::new(&contents).ok_or_else(unsupported)?)
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let places: Vec<&[u8]> = self.0[Self::LOW..].chunks(Self::LOW_LEN).collect();
        // With several, the called side would choose.
        if places
            .iter()
            .skip(1)
            .any(|place| place.iter().any(|&it| it != 0))
        {
            return Err(unsupported());
        }
        let low = places.first().copied().unwrap_or_default();
        let &[layer2, mode, _, layer3, ref rest @ ..] = low else {
            return Err(unsupported());
        };
        // X.25-style modes and windows, user-defined protocols, and H.310.
        let more = match layer3 {
            0x0b => &rest[rest.len().min(6)..],
            _ => rest,
        };
        if mode != 0 || more.iter().any(|&it| it != 0) {
            return Err(unsupported());
        }
        if [layer2, layer3].iter().any(|it| *it == 0x10 || *it > 0x1f) {
            return Err(unsupported());
        }
        let mut contents = Vec::new();
        if layer2 != 0 {
            contents.push(0xc0 | layer2);
        }
        match (layer3, rest) {
            (0, _) => {}
            // ISO TR 9577: the protocol identifier, and for SNAP (0x80) the protocol that
            // it identifies.
            (0x0b, [identifier, snap @ ..]) => {
                contents.extend([0x6b, identifier >> 1, 0x80 | (identifier & 1) << 6]);
                if *identifier == 0x80 {
                    contents.push(0x80);
                    contents.extend(snap.iter().take(5));
                }
            }
            (protocol, _) => contents.push(0xe0 | protocol),
        }
        Ok((high, Opaque::new(&contents)))
    }

    fn of(&self, number: Nsap) -> Result<Sap> {
        let (high_layer, low_layer) = self.elements()?;
        Ok(Sap {
            number,
            high_layer,
            low_layer,
        })
    }
}

impl Posix {
    fn call_socket(&self, fd: i32) -> Result<std::sync::Arc<Socket>> {
        let socket = self.socket_of(fd)?;
        match socket.domain {
            libc::AF_ATMSVC => Ok(socket),
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }

    /// Returns the traffic parameters. EBADFD before they are set, EINVAL for
    /// ATM_ANYCLASS.
    fn call_qos(socket: &Socket) -> Result<Qos> {
        let qos = lock(&socket.state).atm().qos.ok_or(Errno(libc::EBADFD))?;
        qos.check_layer()?;
        if [SEND, RECEIVE].map(|at| qos.class(at)).contains(&ANY_CLASS) {
            return Err(Errno(libc::EINVAL));
        }
        Ok(qos)
    }

    /// `bind(2)` of AF_ATMSVC: sets the number that calls arrive at or leave from. It may
    /// be bound again until it listens or calls.
    ///
    /// # Errors
    /// As Linux: EAFNOSUPPORT for a socket of another family, EISCONN once it listens or
    /// calls, EBADFD before SO_ATMQOS was set, EUNATCH where the stack does not control its
    /// circuits.
    pub fn bind_service(&self, fd: i32, address: SvcAddress) -> Result<()> {
        let socket = self.call_socket(fd)?;
        if !matches!(&*self.file(fd)?, OpenFile::Kernel(_)) {
            return Err(Errno(libc::EISCONN));
        }
        Self::call_qos(&socket)?;
        if !self.stack().controls_atm() {
            return Err(Errno(libc::EUNATCH));
        }
        lock(&socket.state).atm_mut().service = Some(address);
        Ok(())
    }

    /// `listen(2)` of AF_ATMSVC. `accept4` accepts its calls.
    ///
    /// # Errors
    /// EADDRINUSE when it already listens, as in Linux; EISCONN once it calls; EINVAL when
    /// it is not bound; the errors that [`AtmListener::bind`] reports.
    pub(crate) fn listen_service(&self, fd: i32, socket: &Socket, backlog: i32) -> Result<()> {
        match &*self.file(fd)? {
            OpenFile::Kernel(_) => {}
            OpenFile::CircuitListener(_) => return Err(Errno(libc::EADDRINUSE)),
            _ => return Err(Errno(libc::EISCONN)),
        }
        let state = lock(&socket.state).atm();
        let number = state.service.ok_or(Errno(libc::EINVAL))?.number;
        let options = Self::call_qos(socket)?.options();
        let backlog = if backlog > 0 {
            backlog.min(BACKLOG_MAX)
        } else {
            1
        };
        let sap = state.sap.of(number)?;
        let listener = AtmListener::bind(self.stack(), sap, backlog as usize, options);
        self.replace(fd, listener.map_err(errno)?.into())
    }

    /// `connect(2)` of AF_ATMSVC. On a nonblocking socket the first call sends a SETUP, and
    /// later calls report the result. After a failure it may call again.
    ///
    /// # Errors
    /// As Linux:
    ///
    /// - EINPROGRESS, then EALREADY;
    /// - EISCONN once its success was reported;
    /// - EINVAL when it listens;
    /// - EBADFD before SO_ATMQOS was set;
    /// - EINTR, after which the call is released;
    /// - the errors that [`AtmSocket::connect`] reports.
    pub fn connect_service(&self, fd: i32, address: SvcAddress) -> Result<()> {
        let socket = self.call_socket(fd)?;
        let file = self.file(fd)?;
        let nonblocking = file.is_nonblocking().map_err(errno)?;
        match &*file {
            OpenFile::Kernel(_) => {
                let qos = Self::call_qos(&socket)?;
                let state = lock(&socket.state).atm();
                let options = CallOptions {
                    from: state.service.map(|service| service.number),
                    circuit: qos.options(),
                    timeout: None,
                };
                let sap = state.sap.of(address.number)?;
                drop(file);
                let call = AtmSocket::connect_nonblocking(self.stack(), sap, &options);
                self.replace(fd, call.map_err(errno)?.into())?;
                self.begin_circuit(fd, &socket)?;
                lock(&socket.state).connecting = true;
                if nonblocking {
                    return Err(Errno(libc::EINPROGRESS));
                }
            }
            OpenFile::Circuit(call) if lock(&socket.state).connecting => {
                // Another thread may be waiting in a blocking call.
                self.poll(&mut [PollFd::new(fd, Events::OUT)], 0)?;
                if call.is_connecting() {
                    return Err(Errno(libc::EALREADY));
                }
                drop(file);
            }
            OpenFile::CircuitListener(_) => return Err(Errno(libc::EINVAL)),
            _ => return Err(Errno(libc::EISCONN)),
        }
        let file = self.file(fd)?;
        let call = circuit_of(&file).ok_or(Errno(libc::EISCONN))?;
        let answered = call.finish_connect(None).map_err(errno);
        drop(file);
        lock(&socket.state).connecting = false;
        if answered.is_err() {
            let unconnected = kernel_socket(libc::AF_INET, libc::SOCK_DGRAM).map_err(errno)?;
            self.replace(fd, unconnected.into())?;
        }
        answered
    }

    /// Applies the options that were set before the socket had a circuit.
    pub(crate) fn begin_circuit(&self, fd: i32, socket: &Socket) -> Result<()> {
        let (low_priority, read_timeout) = {
            let state = lock(&socket.state);
            (state.atm().low_priority, state.options.read_timeout)
        };
        if let Some(call) = circuit_of(&*self.file(fd)?) {
            call.set_low_priority(low_priority);
            call.set_read_timeout(read_timeout).map_err(errno)?;
        }
        Ok(())
    }

    /// `getsockname(2)` and, for `peer`, `getpeername(2)` of AF_ATMSVC. An unknown address
    /// is zero, as in Linux.
    ///
    /// # Errors
    /// EAFNOSUPPORT for a socket of another family.
    pub fn service_address(&self, fd: i32, peer: bool) -> Result<SvcAddress> {
        let socket = self.call_socket(fd)?;
        let number = match &*self.file(fd)? {
            OpenFile::Circuit(call) if peer => call.peer_number(),
            OpenFile::Circuit(call) => call.local_number(),
            _ if peer => None,
            _ => lock(&socket.state).atm().service.map(|it| it.number),
        };
        Ok(SvcAddress {
            number: number.unwrap_or_default(),
        })
    }
}
