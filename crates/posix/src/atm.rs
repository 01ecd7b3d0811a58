//! The C interface to circuits: AF_ATMPVC, and the options of `linux/atm.h`.

use std::ops::RangeInclusive;

use tidewall::{AtmOptions, AtmSocket, Circuit, OpenFile, Rates};

use crate::socket::Socket;
use crate::svc::{SO_ATMSAP, SapBytes, SvcAddress};
use crate::{Errno, Posix, Result, errno, lock};

/// Any interface, path or channel (`ATM_ITF_ANY`, `ATM_VPI_ANY`, `ATM_VCI_ANY`).
const ANY: i32 = -1;
/// The number of a stack's only interface.
const INTERFACE: i16 = 0;

/// The highest virtual path that a circuit's label can hold.
const VPI_MAX: u16 = 14;

/// `SO_SETCLP`.
pub const SO_SETCLP: i32 = 0x4200_0004;
/// `SO_ATMQOS`.
pub const SO_ATMQOS: i32 = 0x4202_0054;
/// `SO_ATMPVC`.
pub const SO_ATMPVC: i32 = 0x4204_000c;

/// Traffic classes (`ATM_NONE`, `ATM_UBR`, `ATM_CBR`, `ATM_ANYCLASS`).
const NONE: u8 = 0;
const UBR: u8 = 1;
const CBR: u8 = 2;
pub(crate) const ANY_CLASS: u8 = 5;
/// No bound on a rate (`ATM_MAX_PCR`).
const PCR_MAX: i32 = -1;
/// The highest rate that a call can carry, in cells per second.
const RATE_MAX: i32 = 0xff_ffff;
/// `ATM_MAX_CDV`.
const CDV_MAX: i32 = 9999;
/// `ATM_MAX_AAL5_PDU`.
const SDU_MAX: i32 = 65_535;
/// Adaptation layers (`ATM_NO_AAL`, `ATM_AAL5`).
const NO_AAL: u8 = 0;
const AAL5: u8 = 5;

/// `struct sockaddr_atmpvc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PvcAddress {
    /// The interface; a stack has one, 0. -1 is any.
    pub interface: i16,
    /// Virtual path identifier, 0 to 14; -1 is any.
    pub vpi: i16,
    /// Virtual channel identifier, 0 to 65,535; -1 is any from 32 on.
    pub vci: i32,
}

impl PvcAddress {
    /// Length of the structure in bytes.
    pub const LEN: usize = 12;

    /// Parses the bytes that a C caller passes.
    ///
    /// # Errors
    /// EINVAL for another length, EAFNOSUPPORT for another family.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Errno(libc::EINVAL))?;
        let [f0, f1, _, _, i0, i1, p0, p1, c0, c1, c2, c3] = *bytes;
        if i32::from(u16::from_ne_bytes([f0, f1])) != libc::AF_ATMPVC {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        Ok(Self {
            interface: i16::from_ne_bytes([i0, i1]),
            vpi: i16::from_ne_bytes([p0, p1]),
            vci: i32::from_ne_bytes([c0, c1, c2, c3]),
        })
    }

    /// Returns the C structure.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&(libc::AF_ATMPVC as u16).to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.interface.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.vpi.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.vci.to_ne_bytes());
        bytes
    }
}

/// `struct atm_qos`: a `struct atm_trafprm` for each direction, and the adaptation layer.
#[derive(Clone, Copy)]
pub(crate) struct Qos([u8; Self::LEN]);

/// Offsets at which a direction's parameters begin.
pub(crate) const SEND: usize = 0;
pub(crate) const RECEIVE: usize = 40;
/// Offsets of the fields within those parameters.
const MAX_PCR: usize = 4;
const PCR: usize = 8;
const MIN_PCR: usize = 12;
const MAX_CDV: usize = 16;
const MAX_SDU: usize = 20;

impl Qos {
    const LEN: usize = 84;
    const AAL: usize = 80;

    /// Parses and checks the structure as Linux's `check_qos` and `adjust_tp` do.
    ///
    /// # Errors
    /// EINVAL for another length, no direction, contradictory parameters, or a CBR rate over
    /// 24 bits. EOPNOTSUPP for classes other than UBR and CBR.
    fn parse(value: &[u8]) -> Result<Self> {
        let mut qos = Self(value.try_into().map_err(|_| Errno(libc::EINVAL))?);
        let classes = [SEND, RECEIVE].map(|direction| qos.0[direction]);
        let named = classes.map(|class| class != NONE && class != ANY_CLASS);
        if classes == [NONE; 2] || (named == [true; 2] && classes[0] != classes[1]) {
            return Err(Errno(libc::EINVAL));
        }
        for (direction, class) in [SEND, RECEIVE].into_iter().zip(classes) {
            if class == NONE {
                continue;
            }
            let [most, rate, least] = [MAX_PCR, PCR, MIN_PCR].map(|at| qos.int(direction + at));
            let no_rate = class != UBR && class != ANY_CLASS && [most, rate, least] == [0; 3];
            let bounded = least != 0 && most != 0 && most != PCR_MAX;
            if no_rate || least == PCR_MAX || (bounded && least > most) {
                return Err(Errno(libc::EINVAL));
            }
            if ![UBR, CBR, ANY_CLASS].contains(&class) {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if class == CBR && !(1..=RATE_MAX).contains(&qos.rate(direction)) {
                return Err(Errno(libc::EINVAL));
            }
            if !(1..=SDU_MAX).contains(&qos.int(direction + MAX_SDU)) {
                qos.set(direction + MAX_SDU, SDU_MAX);
            }
            if qos.int(direction + MAX_CDV) == 0 {
                qos.set(direction + MAX_CDV, CDV_MAX);
            }
        }
        Ok(qos)
    }

    fn int(&self, at: usize) -> i32 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    }

    fn set(&mut self, at: usize, value: i32) {
        if let Some(place) = self.0.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Returns a direction's rate in cells per second (SELECT_TOP_PCR).
    fn rate(&self, direction: usize) -> i32 {
        let [most, rate, least] = [MAX_PCR, PCR, MIN_PCR].map(|at| self.int(direction + at));
        match (rate, most) {
            (0, 0 | PCR_MAX) => least,
            (0, most) => most,
            (rate, _) => rate,
        }
    }

    /// Returns the rates of both directions for CBR. An unused direction reports the
    /// other's rate.
    fn rates(&self) -> Option<Rates> {
        let of = |direction| {
            let rate = (self.class(direction) == CBR).then(|| self.rate(direction))?;
            u32::try_from(rate).ok()
        };
        let (send, receive) = (of(SEND), of(RECEIVE));
        Some(Rates {
            send: send.or(receive)?,
            receive: receive.or(send)?,
        })
    }

    /// Returns the longest payload of a direction; 0 if the direction is unused.
    fn longest(&self, direction: usize) -> usize {
        match self.0[direction] {
            NONE => 0,
            _ => self.int(direction + MAX_SDU).max(0) as usize,
        }
    }

    /// Returns a direction's class.
    pub(crate) fn class(&self, direction: usize) -> u8 {
        self.0[direction]
    }

    /// Returns EPROTOTYPE for an adaptation layer other than AAL5.
    pub(crate) fn check_layer(&self) -> Result<()> {
        match self.0[Qos::AAL] {
            NO_AAL | AAL5 => Ok(()),
            _ => Err(Errno(libc::EPROTOTYPE)),
        }
    }

    pub(crate) fn options(&self) -> AtmOptions {
        AtmOptions {
            send_max: self.longest(SEND),
            receive_max: self.longest(RECEIVE).max(1),
            rates: self.rates(),
        }
    }
}

/// The parameters that a circuit socket was configured with.
#[derive(Clone, Default)]
pub(crate) struct AtmState {
    pub(crate) qos: Option<Qos>,
    pub(crate) low_priority: bool,
    /// AF_ATMSVC: the address that it is bound to, and SO_ATMSAP.
    pub(crate) service: Option<SvcAddress>,
    pub(crate) sap: SapBytes,
}

/// The range that an address field stands for: itself, or all of `any`.
fn numbers(number: i32, any: RangeInclusive<u16>) -> Result<RangeInclusive<u16>> {
    match (number, u16::try_from(number)) {
        (ANY, _) => Ok(any),
        (_, Ok(one)) => Ok(one..=one),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Returns the circuit of an open file, if it is one.
pub(crate) fn circuit_of(file: &OpenFile) -> Option<&AtmSocket> {
    match file {
        OpenFile::Circuit(socket) => Some(socket),
        _ => None,
    }
}

impl Posix {
    /// `bind(2)` and `connect(2)` of AF_ATMPVC, which do the same: they open the circuit.
    ///
    /// # Errors
    /// As Linux:
    ///
    /// - EAFNOSUPPORT for a socket of another family;
    /// - EBADFD before SO_ATMQOS was set;
    /// - EISCONN when bound;
    /// - EINVAL for ATM_ANYCLASS, or for an address outside the ranges of [`PvcAddress`];
    /// - ENODEV for another interface;
    /// - EPROTOTYPE for an adaptation layer other than AAL5;
    /// - the errors that [`AtmSocket::bind`] reports.
    pub fn bind_circuit(&self, fd: i32, address: PvcAddress) -> Result<()> {
        let socket = self.atm_socket(fd)?;
        if circuit_of(&*self.file(fd)?).is_some() {
            return Err(Errno(libc::EISCONN));
        }
        let (state, read_timeout) = {
            let state = lock(&socket.state);
            (state.atm(), state.options.read_timeout)
        };
        let qos = state.qos.ok_or(Errno(libc::EBADFD))?;
        // No particular class: signalling would choose it.
        if [SEND, RECEIVE].map(|at| qos.class(at)).contains(&ANY_CLASS) {
            return Err(Errno(libc::EINVAL));
        }
        if ![INTERFACE, ANY as i16].contains(&address.interface) {
            return Err(Errno(libc::ENODEV));
        }
        qos.check_layer()?;
        let vpis = numbers(address.vpi.into(), 0..=VPI_MAX)?;
        let vcis = numbers(address.vci, Circuit::FIRST_USER_VCI..=u16::MAX)?;
        let bound = vpis
            .flat_map(|vpi| vcis.clone().map(move |vci| Circuit { vpi, vci }))
            .map(|circuit| AtmSocket::bind_with(self.stack(), circuit, qos.options()))
            .find(|bound| match bound {
                Err(error) => error.raw_os_error() != Some(libc::EADDRINUSE),
                Ok(_) => true,
            })
            .ok_or(Errno(libc::EADDRINUSE))?
            .map_err(errno)?;
        bound.set_low_priority(state.low_priority);
        bound.set_read_timeout(read_timeout).map_err(errno)?;
        self.replace(fd, bound.into())
    }

    /// `getsockname(2)` and `getpeername(2)` of AF_ATMPVC.
    ///
    /// # Errors
    /// ENOTCONN before it is bound; EAFNOSUPPORT for a socket of another family.
    pub fn circuit_address(&self, fd: i32) -> Result<PvcAddress> {
        self.atm_socket(fd)?;
        self.circuit_of_number(fd)
    }

    /// Returns the circuit of a socket of either family: SO_ATMPVC.
    fn circuit_of_number(&self, fd: i32) -> Result<PvcAddress> {
        let file = self.file(fd)?;
        let circuit = circuit_of(&file).and_then(AtmSocket::circuit);
        let circuit = circuit.ok_or(Errno(libc::ENOTCONN))?;
        Ok(PvcAddress {
            interface: INTERFACE,
            vpi: circuit.vpi as i16,
            vci: circuit.vci.into(),
        })
    }

    fn atm_socket(&self, fd: i32) -> Result<std::sync::Arc<Socket>> {
        let socket = self.socket_of(fd)?;
        match socket.domain {
            libc::AF_ATMPVC => Ok(socket),
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }

    /// `setsockopt(2)` of SOL_ATM.
    pub(crate) fn set_atm(
        &self,
        file: &OpenFile,
        socket: &Socket,
        option: i32,
        value: &[u8],
    ) -> Result<()> {
        let mut state = lock(&socket.state);
        let state = state.atm_mut();
        match option {
            // An open circuit keeps the agreed parameters.
            SO_ATMQOS if !matches!(file, OpenFile::Kernel(_)) => Err(Errno(libc::EOPNOTSUPP)),
            SO_ATMQOS => {
                state.qos = Some(Qos::parse(value)?);
                Ok(())
            }
            SO_ATMSAP if socket.domain == libc::AF_ATMSVC => {
                state.sap = SapBytes::parse(value)?;
                Ok(())
            }
            SO_SETCLP => {
                let low: [u8; 4] = value.try_into().map_err(|_| Errno(libc::EINVAL))?;
                state.low_priority = low != [0; 4];
                if let Some(circuit) = circuit_of(file) {
                    circuit.set_low_priority(state.low_priority);
                }
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// `getsockopt(2)` of SOL_ATM.
    pub(crate) fn atm_option(&self, fd: i32, socket: &Socket, option: i32) -> Result<Vec<u8>> {
        let state = lock(&socket.state).atm();
        match option {
            SO_ATMQOS => {
                let qos = state.qos.ok_or(Errno(libc::EINVAL))?;
                Ok(qos.0.to_vec())
            }
            SO_ATMSAP if socket.domain == libc::AF_ATMSVC => Ok(state.sap.to_vec()),
            SO_SETCLP => Ok(i32::from(state.low_priority).to_ne_bytes().to_vec()),
            SO_ATMPVC => Ok(self.circuit_of_number(fd)?.to_bytes().to_vec()),
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}
