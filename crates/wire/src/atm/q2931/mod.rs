//! Messages that set up and release circuits: the point-to-point part of UNI 3.1, which
//! is that of Q.2931 (ITU-T Q.2931 §4, UNI 3.1 §5.4).
//!
//! ```text
//! +------+---+-+----------------+------+-----+--------+---------- - -
//! | 0x09 | 3 |F| call reference | type | ext | length | elements
//! +------+---+-+----------------+------+-----+--------+---------- - -
//!                                             element: id, ext, length (2), contents
//! ```

mod element;

pub use element::{
    Aal, Bearer, Cause, ConnectionIdentifier, Number, Opaque, Party, QosClasses, Restart,
    TrafficDescriptor, TrafficParameter,
};

use super::split;
use crate::EmitError;
use element::{Writer, id};

/// Protocol discriminator of Q.2931 (§4.2).
const DISCRIMINATOR: u8 = 9;

/// Bytes before the elements.
pub const HEADER_LEN: usize = 9;

/// A size in bytes that suffices for every message that this module emits.
pub const MESSAGE_MAX: usize = 512;

/// Limit of the faults recorded per message; further ones are left out.
const FAULTS_MAX: usize = 8;

/// The call of a message, on its link (§4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallReference {
    /// 0 to 8,388,607, chosen by the side that originated the call.
    value: u32,
    /// The flag: true in messages to the side that originated the call.
    pub to_origin: bool,
}

impl CallReference {
    /// The highest value of a call; the one above is reserved (the dummy).
    pub const MAX: u32 = 0x7f_fffe;

    /// `None` for more than 23 bits.
    #[must_use]
    pub const fn new(value: u32, to_origin: bool) -> Option<Self> {
        if value >> 23 != 0 {
            return None;
        }
        Some(Self { value, to_origin })
    }

    /// The reference of all calls (§4.3), which RESTART carries.
    #[must_use]
    pub const fn global(to_origin: bool) -> Self {
        let value = 0;
        Self { value, to_origin }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.value
    }

    /// True for the reference of all calls.
    #[must_use]
    pub const fn is_global(self) -> bool {
        self.value == 0
    }

    /// The reference as used in an answer.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            value: self.value,
            to_origin: !self.to_origin,
        }
    }
}

/// The type of a message (§4.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// CALL PROCEEDING: the call is being set up; nothing more is needed.
    CallProceeding = 0x02,
    /// SETUP: a call to the called user.
    Setup = 0x05,
    /// CONNECT: the called user accepts the call.
    Connect = 0x07,
    /// CONNECT ACKNOWLEDGE: the call is awarded to that user.
    ConnectAcknowledge = 0x0f,
    /// RESTART: release circuits, whatever the state of their calls.
    Restart = 0x46,
    /// RELEASE: release a call.
    Release = 0x4d,
    /// RESTART ACKNOWLEDGE: the circuits are released.
    RestartAcknowledge = 0x4e,
    /// RELEASE COMPLETE: the call is released.
    ReleaseComplete = 0x5a,
    /// STATUS ENQUIRY: asks for the state of a call.
    StatusEnquiry = 0x75,
    /// STATUS: reports the state, or that a part of a message was not understood.
    Status = 0x7d,
}

impl MessageType {
    /// Every type.
    pub const ALL: [Self; 10] = [
        Self::CallProceeding,
        Self::Setup,
        Self::Connect,
        Self::ConnectAcknowledge,
        Self::Restart,
        Self::Release,
        Self::RestartAcknowledge,
        Self::ReleaseComplete,
        Self::StatusEnquiry,
        Self::Status,
    ];

    /// The type with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Why bytes are not a message at all; they are then ignored (§5.6.1 to §5.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header, or than its length.
    #[error("the message is shorter than it says")]
    Truncated,
    /// Another protocol.
    #[error("protocol discriminator {0} and not 9")]
    Discriminator(u8),
    /// A call reference whose length is not three bytes.
    #[error("a call reference of {0} bytes and not 3")]
    ReferenceLength(u8),
}

/// A checked view of a message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    reference: CallReference,
    kind: u8,
    extension: u8,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Checks the header before the elements.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let [discriminator, length, a, b, c, kind, extension, high, low] = *header;
        if discriminator != DISCRIMINATOR {
            return Err(Error::Discriminator(discriminator));
        }
        if length != 3 {
            return Err(Error::ReferenceLength(length));
        }
        let body = rest
            .get(..u16::from_be_bytes([high, low]).into())
            .ok_or(Error::Truncated)?;
        Ok(Self {
            reference: CallReference {
                value: u32::from_be_bytes([0, a & 0x7f, b, c]),
                to_origin: a & 0x80 != 0,
            },
            kind,
            extension,
            body,
        })
    }

    /// The message's call.
    #[must_use]
    pub const fn reference(&self) -> CallReference {
        self.reference
    }

    /// The type's number, known or not.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.kind
    }

    /// The action that the sender requests if the type is not known (§4.4.1).
    #[must_use]
    pub const fn action(&self) -> Option<MessageAction> {
        if self.extension & 0x10 == 0 {
            return None;
        }
        Some(match self.extension & 3 {
            0 => MessageAction::Clear,
            1 => MessageAction::Ignore,
            _ => MessageAction::Report,
        })
    }

    /// The known elements, the first of each kind, and the faults of the others.
    #[must_use]
    pub fn elements(&self) -> (Elements, Faults) {
        let mut elements = Elements::default();
        let mut faults = Faults::default();
        let mut rest = self.body;
        let mut skip = false;
        while let Some((&[id, extension, high, low], behind)) = rest.split_first_chunk() {
            let length = u16::from_be_bytes([high, low]);
            let Some((contents, behind)) = behind.split_at_checked(length.into()) else {
                // The rest cannot be split into elements.
                faults.push(id, FaultKind::Contents, extension);
                break;
            };
            rest = behind;
            match id {
                id::LOCKING_SHIFT => break,
                id::NON_LOCKING_SHIFT => skip = true,
                _ if core::mem::take(&mut skip) => {}
                _ => match elements.parse(id, contents) {
                    Parsed::Known => {}
                    Parsed::Unknown => faults.push(id, FaultKind::Unknown, extension),
                    Parsed::Wrong => faults.push(id, FaultKind::Contents, extension),
                },
            }
        }
        (elements, faults)
    }
}

/// The action that the sender of an unknown message requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageAction {
    /// Release the call.
    Clear,
    /// Ignore it.
    Ignore,
    /// Ignore it, and report that in a STATUS.
    Report,
}

/// The fault of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Its identifier is not known.
    Unknown,
    /// Its contents are invalid for its identifier.
    Contents,
}

/// The action that the sender of an element requests if it is not understood (§4.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementAction {
    /// Release the call.
    Clear,
    /// Ignore the element.
    Ignore,
    /// Ignore it, and report that in a STATUS.
    Report,
    /// Ignore the message.
    IgnoreMessage,
    /// Ignore the message, and report that in a STATUS.
    ReportMessage,
}

/// An element that was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The element's identifier.
    pub id: u8,
    /// The fault.
    pub kind: FaultKind,
    /// The action that the sender requests; `None` if it leaves it to the rules.
    pub action: Option<ElementAction>,
}

/// The faulty elements of a message, the first eight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    list: [Option<Fault>; FAULTS_MAX],
}

impl Faults {
    fn push(&mut self, id: u8, kind: FaultKind, extension: u8) {
        let action = (extension & 0x10 != 0).then_some(match extension & 7 {
            0 => ElementAction::Clear,
            1 => ElementAction::Ignore,
            5 => ElementAction::IgnoreMessage,
            6 => ElementAction::ReportMessage,
            _ => ElementAction::Report,
        });
        if let Some(place) = self.list.iter_mut().find(|place| place.is_none()) {
            *place = Some(Fault { id, kind, action });
        }
    }

    /// The faults in the message's order.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.list.iter().flatten()
    }
}

enum Parsed {
    Known,
    Unknown,
    Wrong,
}

/// The elements of a message. The receiver decides which of them a message must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    /// The cause (§4.5.15).
    pub cause: Option<Cause>,
    /// A call's state, by its number (§4.5.10).
    pub call_state: Option<u8>,
    /// The adaptation layer and its longest payloads (§4.5.5).
    pub aal: Option<Aal>,
    /// The traffic, in cells per second (§4.5.6).
    pub traffic: Option<TrafficDescriptor>,
    /// The circuit (§4.5.16).
    pub connection: Option<ConnectionIdentifier>,
    /// Classes of service (§4.5.18).
    pub qos: Option<QosClasses>,
    /// The application's protocol (§4.5.8).
    pub high_layer: Option<Opaque<9>>,
    /// The bearer capability required of the network (§4.5.7).
    pub bearer: Option<Bearer>,
    /// The protocol of the payloads below the application (§4.5.9).
    pub low_layer: Option<Opaque<13>>,
    /// The called number is complete (§4.5.21).
    pub sending_complete: bool,
    /// The calling party's number (§4.5.13).
    pub calling: Option<Party>,
    /// The calling party's subaddress (§4.5.14).
    pub calling_subaddress: Option<Opaque<21>>,
    /// The called party's number (§4.5.11).
    pub called: Option<Party>,
    /// The called party's subaddress (§4.5.12).
    pub called_subaddress: Option<Opaque<21>>,
    /// The scope of a RESTART (§4.5.20).
    pub restart: Option<Restart>,
}

/// Sets a field that is not set yet: of several elements of one kind the first counts
/// (§5.6.5.2).
fn set<T>(place: &mut Option<T>, value: Option<T>) -> Parsed {
    match value {
        None => Parsed::Wrong,
        Some(value) => {
            place.get_or_insert(value);
            Parsed::Known
        }
    }
}

impl Elements {
    fn parse(&mut self, id: u8, contents: &[u8]) -> Parsed {
        match id {
            id::CAUSE => set(&mut self.cause, Cause::parse(contents)),
            id::CALL_STATE => set(
                &mut self.call_state,
                contents.first().map(|state| state & 0x3f),
            ),
            id::AAL => set(&mut self.aal, Aal::parse(contents)),
            id::TRAFFIC => set(&mut self.traffic, TrafficDescriptor::parse(contents)),
            id::CONNECTION => set(&mut self.connection, ConnectionIdentifier::parse(contents)),
            id::QOS => set(&mut self.qos, QosClasses::parse(contents)),
            id::HIGH_LAYER => set(&mut self.high_layer, Opaque::new(contents)),
            id::BEARER => set(&mut self.bearer, Bearer::parse(contents)),
            id::LOW_LAYER => set(&mut self.low_layer, Opaque::new(contents)),
            id::SENDING_COMPLETE => {
                self.sending_complete = true;
                Parsed::Known
            }
            // The first of the repeated elements is used.
            id::REPEAT => Parsed::Known,
            id::CALLING => set(&mut self.calling, Party::parse(contents)),
            id::CALLING_SUBADDRESS => set(&mut self.calling_subaddress, Opaque::new(contents)),
            id::CALLED => set(&mut self.called, Party::parse(contents)),
            id::CALLED_SUBADDRESS => set(&mut self.called_subaddress, Opaque::new(contents)),
            id::RESTART => set(&mut self.restart, Restart::parse(contents)),
            _ => Parsed::Unknown,
        }
    }

    /// Writes a message with these elements at the start of `buffer`, and returns its
    /// length, at most [`MESSAGE_MAX`].
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    pub fn emit(
        &self,
        reference: CallReference,
        kind: MessageType,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let (header, body) = split(buffer, HEADER_LEN)?;
        let mut writer = Writer::new(body);
        // In the order of their identifiers, as Q.931 requires and Q.2931 permits.
        writer.put(id::CAUSE, self.cause.as_ref(), Cause::write);
        writer.put(id::CALL_STATE, self.call_state.as_ref(), |state, out| {
            out.byte(state & 0x3f);
        });
        writer.put(id::AAL, self.aal.as_ref(), Aal::write);
        writer.put(id::TRAFFIC, self.traffic.as_ref(), TrafficDescriptor::write);
        writer.put(
            id::CONNECTION,
            self.connection.as_ref(),
            ConnectionIdentifier::write,
        );
        writer.put(id::QOS, self.qos.as_ref(), QosClasses::write);
        writer.put(id::HIGH_LAYER, self.high_layer.as_ref(), Opaque::write);
        writer.put(id::BEARER, self.bearer.as_ref(), Bearer::write);
        writer.put(id::LOW_LAYER, self.low_layer.as_ref(), Opaque::write);
        let complete = self.sending_complete.then_some(&());
        writer.put(id::SENDING_COMPLETE, complete, |(), out| out.byte(0xa1));
        writer.put(id::CALLING, self.calling.as_ref(), Party::write);
        writer.put(
            id::CALLING_SUBADDRESS,
            self.calling_subaddress.as_ref(),
            Opaque::write,
        );
        writer.put(id::CALLED, self.called.as_ref(), Party::write);
        writer.put(
            id::CALLED_SUBADDRESS,
            self.called_subaddress.as_ref(),
            Opaque::write,
        );
        writer.put(id::RESTART, self.restart.as_ref(), Restart::write);
        let length = writer.finish()?;
        let [_, a, b, c] = reference.value.to_be_bytes();
        let [high, low] = (length as u16).to_be_bytes();
        let flag = if reference.to_origin { 0x80 } else { 0 };
        let bytes = [
            DISCRIMINATOR,
            3,
            a | flag,
            b,
            c,
            kind as u8,
            0x80,
            high,
            low,
        ];
        header.copy_from_slice(&bytes);
        Ok(HEADER_LEN + length)
    }
}

#[cfg(test)]
mod tests;
