//! The messages between a manager and its applications (docs/manager.md).
//!
//! Lives here: their layout, and nothing that sends or interprets them. Both ends are on
//! one machine, so numbers are in its byte order. A message is [`MESSAGE_BYTES`] long,
//! one per packet of a SOCK_SEQPACKET socket; descriptors travel beside it (SCM_RIGHTS,
//! unix(7)). Every message that can be parsed is emitted again as the same bytes.

mod body;
mod circuits;

use std::net::IpAddr;

use tidewall_device::demux::layout::Protocol;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub use body::*;
pub use circuits::*;

/// Version of the protocol, in every header.
pub const VERSION: u16 = 3;
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 256;
/// Maximum number of descriptors beside a message.
pub const DESCRIPTORS: usize = 16;

/// Bytes of a message after its header.
const BODY_BYTES: usize = MESSAGE_BYTES - size_of::<Header>();

/// The start of each message of any version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// The kind of the message.
    pub kind: u16,
    /// Chosen by the requester; the answers repeat it.
    pub id: u32,
}

/// The reason why bytes are not a message known to this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not [`MESSAGE_BYTES`] long.
    #[error("a message has {MESSAGE_BYTES} bytes")]
    Length,
    /// From another version.
    #[error("version {0} of the protocol, where {VERSION} is spoken: restart the older end")]
    Version(u16),
    /// Not a message of this direction.
    #[error("no message is of kind {0}")]
    Kind(u16),
    /// Nonzero bytes follow the body.
    #[error("bytes that mean nothing are not zero")]
    Surplus,
}

/// The header of a message that may be another version's; `None` if it is not a message.
pub fn header(bytes: &[u8]) -> Option<Header> {
    let whole: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
    let (header, _) = Header::read_from_prefix(whole).ok()?;
    Some(header)
}

#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct Message {
    header: Header,
    body: [u8; BODY_BYTES],
}

fn emit(kind: u16, id: u32, body: &(impl IntoBytes + Immutable)) -> [u8; MESSAGE_BYTES] {
    let header = Header {
        version: VERSION,
        kind,
        id,
    };
    let mut message = Message {
        header,
        body: [0; BODY_BYTES],
    };
    for (to, from) in message.body.iter_mut().zip(body.as_bytes()) {
        *to = *from;
    }
    zerocopy::transmute!(message)
}

fn body<T: FromBytes>(bytes: &[u8]) -> Result<T, Malformed> {
    let (body, surplus) = T::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
    match surplus.iter().all(|&byte| byte == 0) {
        true => Ok(body),
        false => Err(Malformed::Surplus),
    }
}

macro_rules! messages {
    ($(#[$documentation:meta])* $name:ident {
        $($(#[$of_kind:meta])* $kind:ident($body:ty) = $number:literal,)*
    }) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        // It is copied once, into a message of that size.
        #[allow(clippy::large_enum_variant)]
        pub enum $name {
            $($(#[$of_kind])* $kind($body),)*
        }

        $(const _: () = assert!(size_of::<$body>() <= BODY_BYTES);)*

        impl $name {
            /// Encodes the message, with the id of a request.
            pub fn emit(&self, id: u32) -> [u8; MESSAGE_BYTES] {
                match self {
                    $($name::$kind(body) => emit($number, id, body),)*
                }
            }

            /// Decodes a message and the id of the request.
            ///
            /// # Errors
            /// [`Malformed`].
            pub fn parse(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
                let header = header(bytes).ok_or(Malformed::Length)?;
                if header.version != VERSION {
                    return Err(Malformed::Version(header.version));
                }
                let rest = bytes.get(size_of::<Header>()..).unwrap_or_default();
                let message = match header.kind {
                    $($number => $name::$kind(body::<$body>(rest)?),)*
                    kind => return Err(Malformed::Kind(kind)),
                };
                Ok((header.id, message))
            }
        }
    };
}

messages! {
    /// An application's request to a manager.
    Request {
        /// Become an application of the device. Answered by `Joined`, then by a `Queue`
        /// for each.
        Join(Join) = 1,
        /// Continue as an application that joined an earlier run of the manager. Answered
        /// by `Joined`, without descriptors.
        Present(Present) = 2,
        /// Get a port's frames; the bound kernel socket goes beside it. Answered by
        /// `Owned`.
        OwnPort(Port) = 3,
        /// Leave a port's frames to the kernel, as far as this socket received them.
        DisownPort(Holder) = 4,
        /// Get a block of outgoing ports. Answered by `Leased`.
        Lease(Transport) = 5,
        /// Return a block.
        ReturnLease(Block) = 6,
        /// Set when a queue may interrupt.
        Moderation(Moderation) = 7,
        /// Turn a frame of a queue into a NAPI probe.
        Probe(Probe) = 8,
        /// Get the original fields of a NAPI probe. Answered by `Probed`.
        GetProbe(QueueNumber) = 9,
        /// Make the kernel receive a datagram as if it had arrived.
        Input(Input) = 10,
        /// Keep a neighbour resolved.
        Resolve(Address) = 11,
        /// Get the manager's counters. Answered by `Counters`.
        GetCounters(Empty) = 12,
        /// Stop being an application.
        Leave(Empty) = 13,
        /// Get replacements for the helper sockets of a queue, whose NAPI id no longer
        /// exists. Answered by `Helpers`.
        GetHelpers(Empty) = 14,
        /// Get the first application from this number on that the asking user may see:
        /// all for user 0, else the user's own. Answered by `Status`, or by `Done` if
        /// there is none.
        GetStatus(ApplicationNumber) = 16,
        /// Get the driver program's counters of a queue, for user 0. Answered by
        /// `QueueCounters`.
        GetQueueCounters(QueueNumber) = 17,
        /// Enable virtual circuits. Answered by `AtmAttached`; beside it goes a
        /// connection by which the manager sends notices about calls.
        AttachAtm(Empty) = 20,
        /// Get the frames of a permanent circuit.
        OpenCircuit(CircuitNumber) = 21,
        /// Leave them to the kernel.
        CloseCircuit(CircuitNumber) = 22,
        /// Accept calls.
        AtmListen(AtmListen) = 23,
        /// Stop accepting calls.
        AtmUnlisten(ListenerNumber) = 24,
        /// Place a call. This, the next two and AtmAcknowledge go by the connection of
        /// notices, which also carries all replies to them.
        AtmCall(AtmCall) = 25,
        /// Accept a waiting call, whose circuit is open; for a local one the caller's end
        /// of the circuit goes beside it. Or reject it.
        AtmAccept(AtmAccept) = 26,
        /// End a call.
        AtmRelease(AtmRelease) = 27,
        /// Continue a call of an earlier run of the manager.
        AtmPresent(AtmPresent) = 28,
        /// The application has presented all of them.
        AtmPresented(Empty) = 29,
        /// The circuit of a connected call is open at the caller: the other end may send
        /// on it.
        AtmAcknowledge(CallNumber) = 30,
    }
}

messages! {
    /// A manager's answer.
    Answer {
        /// The request was carried out.
        Done(Empty) = 128,
        /// The request was not carried out.
        Error(Failure) = 129,
        /// The application's number and the device. The map of its tables goes beside it,
        /// and that of the driver program's counters.
        Joined(Joined) = 130,
        /// A queue of the application. Its AF_XDP socket, its frame memory, the socket
        /// for frames that may wait and its helper sockets go beside it.
        Queue(Queue) = 131,
        /// The application owns the port by this socket.
        Owned(Holder) = 132,
        /// A block of outgoing ports.
        Leased(Block) = 133,
        /// The original fields of a queue's NAPI probe.
        Probed(Probed) = 134,
        /// The manager's counters.
        Counters(Counters) = 135,
        /// Two helper sockets go beside it.
        Helpers(Empty) = 136,
        /// An application.
        Status(Status) = 140,
        /// The driver program's counters of a queue.
        QueueCounters(QueueCounters) = 141,
        /// Unsolicited report to a private application of who polls the device from now
        /// on.
        Polling(Polling) = 142,
        /// Circuits may be opened; beside it goes the connection of notices.
        AtmAttached(AtmAttached) = 143,
        /// Notice: a call waits for a listener.
        AtmIncoming(AtmIncoming) = 146,
        /// Notice: a call that waited was withdrawn.
        AtmWithdrawn(AtmWithdrawn) = 147,
        /// Notice: a call has its circuit, whose frames reach the application.
        AtmCircuit(AtmCircuit) = 148,
        /// Notice: payloads flow both ways; for a local call its circuit goes beside it.
        AtmConnected(AtmConnected) = 149,
        /// Notice: a call is released, or was not established.
        AtmEnded(AtmEnded) = 150,
    }
}

impl Request {
    /// Number of descriptors that go beside it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::OwnPort(_) => 1,
            Request::AtmAccept(of) => (of.cause == 0 && of.reference.local != 0).into(),
            _ => 0,
        }
    }
}

/// A transport protocol by its number; `None` for one without ports here.
pub fn transport(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .find(|&protocol| protocol as u8 == number)
}

/// An address in the messages' form: 16 bytes, IPv4 mapped.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address of these bytes.
pub fn address(bytes: [u8; 16]) -> IpAddr {
    IpAddr::from(bytes).to_canonical()
}
