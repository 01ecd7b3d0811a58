//! The contents of a message's information elements (Q.2931 §4.5).

use crate::EmitError;
use crate::atm::arp::Digits;
use crate::atm::{Circuit, NSAP_LEN, Nsap};

/// Identifiers (Q.2931 §4.5.1).
pub(super) mod id {
    pub const CAUSE: u8 = 0x08;
    pub const CALL_STATE: u8 = 0x14;
    pub const AAL: u8 = 0x58;
    pub const TRAFFIC: u8 = 0x59;
    pub const CONNECTION: u8 = 0x5a;
    pub const QOS: u8 = 0x5c;
    pub const HIGH_LAYER: u8 = 0x5d;
    pub const BEARER: u8 = 0x5e;
    pub const LOW_LAYER: u8 = 0x5f;
    pub const LOCKING_SHIFT: u8 = 0x60;
    pub const NON_LOCKING_SHIFT: u8 = 0x61;
    pub const SENDING_COMPLETE: u8 = 0x62;
    pub const REPEAT: u8 = 0x63;
    pub const CALLING: u8 = 0x6c;
    pub const CALLING_SUBADDRESS: u8 = 0x6d;
    pub const CALLED: u8 = 0x70;
    pub const CALLED_SUBADDRESS: u8 = 0x71;
    pub const RESTART: u8 = 0x79;
}

/// Appends elements to a buffer. Elements that do not fit are counted all the same, so
/// that the error can report the size needed.
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    pub(super) fn byte(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.used) {
            *place = byte;
        }
        self.used += 1;
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.byte(*byte));
    }

    /// An element, if there is one.
    pub(super) fn put<T>(&mut self, id: u8, value: Option<&T>, write: impl Fn(&T, &mut Self)) {
        let Some(value) = value else {
            return;
        };
        self.bytes(&[id, 0x80, 0, 0]);
        let start = self.used;
        write(value, self);
        let length = ((self.used - start) as u16).to_be_bytes();
        if let Some(place) = self.buffer.get_mut(start - 2..start) {
            place.copy_from_slice(&length);
        }
    }

    pub(super) fn finish(self) -> Result<usize, EmitError> {
        let (needed, available) = (self.used, self.buffer.len());
        if needed > available {
            return Err(EmitError::BufferTooSmall { needed, available });
        }
        Ok(needed)
    }
}

/// Contents of at most `N` bytes that are compared and passed on, but not interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opaque<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

impl<const N: usize> Opaque<N> {
    /// `None` unless there are 1 to `N` bytes.
    #[must_use]
    pub fn new(contents: &[u8]) -> Option<Self> {
        if contents.is_empty() {
            return None;
        }
        let mut bytes = [0; N];
        bytes.get_mut(..contents.len())?.copy_from_slice(contents);
        let length = u8::try_from(contents.len()).ok()?;
        Some(Self { bytes, length })
    }

    /// The contents.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or_default()
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.bytes(self.as_bytes());
    }
}

/// The cause of an event (Q.2931 §4.5.15, Q.2610).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The location that reports it: 0 the user, 1 the private network of the local user
    /// (Q.2610 §2.2.2).
    location: u8,
    value: u8,
    diagnostic: [u8; 4],
    diagnostic_len: u8,
}

impl Cause {
    /// Unallocated number.
    pub const UNALLOCATED_NUMBER: u8 = 1;
    /// No route to the destination.
    pub const NO_ROUTE: u8 = 3;
    /// Normal call clearing.
    pub const NORMAL: u8 = 16;
    /// The called user accepts no more calls.
    pub const USER_BUSY: u8 = 17;
    /// The called user does not answer.
    pub const NO_USER_RESPONDING: u8 = 18;
    /// The called user rejects the call.
    pub const CALL_REJECTED: u8 = 21;
    /// The signalling link is down.
    pub const DESTINATION_OUT_OF_ORDER: u8 = 27;
    /// An answer to a STATUS ENQUIRY.
    pub const RESPONSE_TO_STATUS_ENQUIRY: u8 = 30;
    /// Normal, unspecified.
    pub const NORMAL_UNSPECIFIED: u8 = 31;
    /// The requested circuit is in use.
    pub const CIRCUIT_NOT_AVAILABLE: u8 = 35;
    /// The assigned circuit does not work.
    pub const CIRCUIT_ASSIGNMENT_FAILURE: u8 = 36;
    /// The requested cell rate is not available.
    pub const CELL_RATE_NOT_AVAILABLE: u8 = 37;
    /// A temporary failure.
    pub const TEMPORARY_FAILURE: u8 = 41;
    /// No circuit is free.
    pub const NO_CIRCUIT_AVAILABLE: u8 = 45;
    /// A resource is exhausted.
    pub const RESOURCES_UNAVAILABLE: u8 = 47;
    /// These traffic parameters cannot be combined.
    pub const UNSUPPORTED_TRAFFIC: u8 = 73;
    /// No call has this reference.
    pub const INVALID_CALL_REFERENCE: u8 = 81;
    /// There is no such circuit.
    pub const NO_SUCH_CIRCUIT: u8 = 82;
    /// The user at this number does not accept such calls.
    pub const INCOMPATIBLE_DESTINATION: u8 = 88;
    /// The adaptation layer is not supported.
    pub const AAL_NOT_SUPPORTED: u8 = 93;
    /// A mandatory element is missing.
    pub const MANDATORY_ELEMENT_MISSING: u8 = 96;
    /// A message of this type is not known.
    pub const MESSAGE_TYPE_UNKNOWN: u8 = 97;
    /// An element is not known.
    pub const ELEMENT_UNKNOWN: u8 = 99;
    /// An element's contents are wrong.
    pub const INVALID_CONTENTS: u8 = 100;
    /// The message is not compatible with the call's state.
    pub const MESSAGE_NOT_COMPATIBLE: u8 = 101;
    /// A timer has expired.
    pub const RECOVERY_ON_TIMER_EXPIRY: u8 = 102;
    /// Another protocol error.
    pub const PROTOCOL_ERROR: u8 = 111;

    /// A cause from the user, without a diagnostic; uses the lowest seven bits of
    /// `value`.
    #[must_use]
    pub const fn new(value: u8) -> Self {
        Self {
            location: 0,
            value: value & 0x7f,
            diagnostic: [0; 4],
            diagnostic_len: 0,
        }
    }

    /// Sets the location that reports it, its lowest four bits.
    #[must_use]
    pub const fn at(mut self, location: u8) -> Self {
        self.location = location & 0x0f;
        self
    }

    /// Sets the first four bytes of a diagnostic: elements, a message's type, a timer.
    #[must_use]
    pub fn with(mut self, diagnostic: &[u8]) -> Self {
        self.diagnostic = [0; 4];
        for (place, byte) in self.diagnostic.iter_mut().zip(diagnostic) {
            *place = *byte;
        }
        self.diagnostic_len = diagnostic.len().min(4) as u8;
        self
    }

    /// The cause value, 0 to 127.
    #[must_use]
    pub const fn value(&self) -> u8 {
        self.value
    }

    /// The location that reports it.
    #[must_use]
    pub const fn location(&self) -> u8 {
        self.location
    }

    /// The first four bytes of its diagnostic.
    #[must_use]
    pub fn diagnostic(&self) -> &[u8] {
        let length = usize::from(self.diagnostic_len);
        self.diagnostic.get(..length).unwrap_or_default()
    }

    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&[location, value], diagnostic) = contents.split_first_chunk()?;
        Some(Self::new(value).at(location).with(diagnostic))
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.bytes(&[0x80 | self.location, 0x80 | self.value]);
        out.bytes(self.diagnostic());
    }
}

/// The adaptation layer (Q.2931 §4.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aal {
    /// AAL5, with the longest payload in each direction, if stated.
    Five {
        /// From the caller.
        forward_max: Option<u16>,
        /// To the caller.
        backward_max: Option<u16>,
    },
    /// Another adaptation layer, by its number.
    Other(u8),
}

impl Aal {
    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = contents.split_first()?;
        if kind != 5 {
            return Some(Self::Other(kind));
        }
        let (mut forward_max, mut backward_max) = (None, None);
        while let Some((&parameter, behind)) = rest.split_first() {
            let length = match parameter {
                0x8c | 0x81 => 2,
                // Mode (UNI 3.0) and the service-specific part.
                0x83 | 0x84 => 1,
                _ => return None,
            };
            let (value, behind) = behind.split_at_checked(length)?;
            match (parameter, value) {
                (0x8c, [high, low]) => forward_max = Some(u16::from_be_bytes([*high, *low])),
                (0x81, [high, low]) => backward_max = Some(u16::from_be_bytes([*high, *low])),
                _ => {}
            }
            rest = behind;
        }
        Some(Self::Five {
            forward_max,
            backward_max,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        match *self {
            Self::Other(kind) => out.byte(kind),
            Self::Five {
                forward_max,
                backward_max,
            } => {
                out.byte(5);
                for (parameter, value) in [(0x8c, forward_max), (0x81, backward_max)] {
                    if let Some(value) = value {
                        out.byte(parameter);
                        out.bytes(&value.to_be_bytes());
                    }
                }
            }
        }
    }
}

/// A parameter of a [`TrafficDescriptor`], in cells per second or, for bursts, cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TrafficParameter {
    /// Peak rate of high-priority cells from the caller.
    ForwardPeakHigh,
    /// The same to the caller.
    BackwardPeakHigh,
    /// Peak rate of all cells from the caller.
    ForwardPeak,
    /// The same to the caller.
    BackwardPeak,
    /// Sustainable rate of high-priority cells from the caller.
    ForwardSustainedHigh,
    /// The same to the caller.
    BackwardSustainedHigh,
    /// Sustainable rate of all cells from the caller.
    ForwardSustained,
    /// The same to the caller.
    BackwardSustained,
    /// Longest burst of high-priority cells from the caller.
    ForwardBurstHigh,
    /// The same to the caller.
    BackwardBurstHigh,
    /// Longest burst of all cells from the caller.
    ForwardBurst,
    /// The same to the caller.
    BackwardBurst,
}

/// The identifiers of [`TrafficParameter`], in the same order (Q.2931 §4.5.6).
const PARAMETERS: [u8; 12] = [
    0x82, 0x83, 0x84, 0x85, 0x88, 0x89, 0x90, 0x91, 0xa0, 0xa1, 0xb0, 0xb1,
];
const BEST_EFFORT: u8 = 0xbe;
const MANAGEMENT: u8 = 0xbf;

/// The traffic of a circuit (Q.2931 §4.5.6, UNI 3.1 §5.4.5.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficDescriptor {
    parameters: [Option<u32>; PARAMETERS.len()],
    /// Best effort, without guarantees (UBR).
    pub best_effort: bool,
    /// Traffic management options, as encoded in the element.
    pub management: Option<u8>,
}

impl TrafficDescriptor {
    /// Best effort, with a peak rate in each direction that no link has.
    #[must_use]
    pub const fn best_effort() -> Self {
        let mut descriptor = Self::constant(0xff_ffff, 0xff_ffff);
        descriptor.best_effort = true;
        descriptor
    }

    /// Peak rates from and to the caller, in cells per second; 24 bits of each are sent.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub const fn constant(forward: u32, backward: u32) -> Self {
        let mut parameters = [None; PARAMETERS.len()];
        parameters[TrafficParameter::ForwardPeak as usize] = Some(forward & 0xff_ffff);
        parameters[TrafficParameter::BackwardPeak as usize] = Some(backward & 0xff_ffff);
        Self {
            parameters,
            best_effort: false,
            management: None,
        }
    }

    /// A parameter, if stated.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub const fn get(&self, parameter: TrafficParameter) -> Option<u32> {
        self.parameters[parameter as usize]
    }

    /// True if only peak rates of all cells, and best effort, are requested.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        let peaks = [
            TrafficParameter::ForwardPeak,
            TrafficParameter::BackwardPeak,
        ];
        let mut parameters = self.parameters.iter().enumerate();
        parameters.all(|(index, value)| {
            value.is_some() == peaks.iter().any(|peak| *peak as usize == index)
        })
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "`position` returned the index of an array of the same length"
    )]
    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let mut descriptor = Self::default();
        let mut rest = contents;
        while let Some((&identifier, behind)) = rest.split_first() {
            rest = behind;
            match identifier {
                BEST_EFFORT => descriptor.best_effort = true,
                MANAGEMENT => {
                    let (&options, behind) = rest.split_first()?;
                    descriptor.management = Some(options);
                    rest = behind;
                }
                _ => {
                    let index = PARAMETERS.iter().position(|known| *known == identifier)?;
                    let (&[a, b, c], behind) = rest.split_first_chunk()?;
                    descriptor.parameters[index] = Some(u32::from_be_bytes([0, a, b, c]));
                    rest = behind;
                }
            }
        }
        Some(descriptor)
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        for (identifier, value) in PARAMETERS.into_iter().zip(self.parameters) {
            if let Some(value) = value {
                let [_, a, b, c] = value.to_be_bytes();
                out.bytes(&[identifier, a, b, c]);
            }
        }
        if self.best_effort {
            out.byte(BEST_EFFORT);
        }
        if let Some(options) = self.management {
            out.bytes(&[MANAGEMENT, options]);
        }
    }
}

/// The circuit of a call (Q.2931 §4.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIdentifier {
    /// The virtual path.
    pub vpi: u16,
    /// The virtual channel; `None` for any channel of the path.
    pub vci: Option<u16>,
}

impl ConnectionIdentifier {
    /// This circuit and no other.
    #[must_use]
    pub const fn exclusive(circuit: Circuit) -> Self {
        Self {
            vpi: circuit.vpi,
            vci: Some(circuit.vci),
        }
    }

    /// The circuit, if one is named.
    #[must_use]
    pub fn circuit(&self) -> Option<Circuit> {
        let vpi = self.vpi;
        self.vci.map(|vci| Circuit { vpi, vci })
    }

    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&[how, a, b], rest) = contents.split_first_chunk()?;
        let vpi = u16::from_be_bytes([a, b]);
        // Explicit VPCI; then exclusive, or any VCI.
        if how & 0x18 != 0x08 {
            return None;
        }
        let vci = match how & 7 {
            0 => {
                let (vci, _) = rest.split_first_chunk()?;
                Some(u16::from_be_bytes(*vci))
            }
            1 => None,
            _ => return None,
        };
        Some(Self { vpi, vci })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.byte(0x88 | u8::from(self.vci.is_none()));
        out.bytes(&self.vpi.to_be_bytes());
        out.bytes(&self.vci.unwrap_or(0).to_be_bytes());
    }
}

/// Classes of service from and to the caller; 0 is unspecified (Q.2931 §4.5.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosClasses {
    /// From the caller.
    pub forward: u8,
    /// To the caller.
    pub backward: u8,
}

impl QosClasses {
    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&[forward, backward], _) = contents.split_first_chunk()?;
        Some(Self { forward, backward })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.bytes(&[self.forward, self.backward]);
    }
}

/// The bearer capability required of the network (Q.2931 §4.5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// 1 (A), 3 (C), 16 (X): 0 to 31.
    class: u8,
    /// Traffic type and timing, 0 to 127, if stated.
    transfer: Option<u8>,
    /// The user cannot tolerate clipping of the start.
    pub susceptible_to_clipping: bool,
    /// The call has several parties.
    pub multipoint: bool,
}

impl Bearer {
    /// Class X without timing, as data requests.
    #[must_use]
    pub const fn data() -> Self {
        Self {
            class: 16,
            transfer: Some(0),
            susceptible_to_clipping: false,
            multipoint: false,
        }
    }

    /// The class's number.
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.class
    }

    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&class, mut rest) = contents.split_first()?;
        let mut transfer = None;
        if class & 0x80 == 0 {
            let (&octet, behind) = rest.split_first()?;
            transfer = Some(octet & 0x7f);
            rest = behind;
        }
        let user = rest.first()?;
        Some(Self {
            class: class & 0x1f,
            transfer,
            susceptible_to_clipping: user & 0x60 == 0x20,
            multipoint: user & 3 == 1,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        match self.transfer {
            None => out.byte(0x80 | self.class),
            Some(transfer) => out.bytes(&[self.class, 0x80 | transfer]),
        }
        let clipping = u8::from(self.susceptible_to_clipping) << 5;
        out.byte(0x80 | clipping | u8::from(self.multipoint));
    }
}

/// A number, of one of UNI 3.1's numbering plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// An ATM end system address.
    Nsap(Nsap),
    /// An international E.164 number.
    E164(Digits),
}

/// A called or calling party's number (Q.2931 §4.5.11, §4.5.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The number.
    pub number: Number,
    /// For a calling party: presentation and screening, as encoded in the element; `None`
    /// if not stated.
    presentation: Option<u8>,
}

impl From<Nsap> for Party {
    fn from(address: Nsap) -> Self {
        Self {
            number: Number::Nsap(address),
            presentation: None,
        }
    }
}

impl Party {
    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        let (&plan, mut rest) = contents.split_first()?;
        let mut presentation = None;
        if plan & 0x80 == 0 {
            let (&octet, behind) = rest.split_first()?;
            presentation = Some(octet & 0x7f);
            rest = behind;
        }
        let number = match plan & 0x0f {
            2 => Number::Nsap(Nsap(<[u8; NSAP_LEN]>::try_from(rest).ok()?)),
            1 => Number::E164(Digits::new(rest)?),
            _ => return None,
        };
        Some(Self {
            number,
            presentation,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        let (plan, digits): (u8, &[u8]) = match &self.number {
            Number::Nsap(address) => (0x02, &address.0),
            // International.
            Number::E164(digits) => (0x11, digits.as_bytes()),
        };
        match self.presentation {
            None => out.byte(0x80 | plan),
            Some(presentation) => out.bytes(&[plan, 0x80 | presentation]),
        }
        out.bytes(digits);
    }
}

/// The scope of a RESTART (Q.2931 §4.5.20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// The named circuit.
    Circuit,
    /// All circuits of the named path.
    Path,
    /// All circuits of the link.
    Link,
}

impl Restart {
    pub(super) fn parse(contents: &[u8]) -> Option<Self> {
        match contents.first()? & 7 {
            0 => Some(Self::Circuit),
            1 => Some(Self::Path),
            2 => Some(Self::Link),
            _ => None,
        }
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.byte(0x80 | *self as u8);
    }
}
