//! The messages between a manager and its applications (docs/manager.md).
//!
//! Lives here: their layout, and nothing that sends or understands them. Both ends are
//! on one machine, so numbers are in its byte order. A message is [`MESSAGE_BYTES`] long,
//! one to a packet of a SOCK_SEQPACKET socket; descriptors travel beside it (SCM_RIGHTS,
//! unix(7)). Whatever can be parsed is emitted again as the same bytes.

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
/// Most descriptors beside a message.
pub const DESCRIPTORS: usize = 16;

/// Bytes of a message after its header.
const BODY_BYTES: usize = MESSAGE_BYTES - size_of::<Header>();

/// What each message of any version begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// Which message it is.
    pub kind: u16,
    /// Chosen by who requests; the answers repeat it.
    pub id: u32,
}

/// Why bytes are no message that this end knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not [`MESSAGE_BYTES`] long.
    #[error("a message has {MESSAGE_BYTES} bytes")]
    Length,
    /// Another version's.
    #[error("version {0} of the protocol, where {VERSION} is spoken: restart the older end")]
    Version(u16),
    /// No message of this direction.
    #[error("no message is of kind {0}")]
    Kind(u16),
    /// Something follows the body, where a message has zeros.
    #[error("bytes that mean nothing are not zero")]
    Surplus,
}

/// Where a message begins that may be another version's; `None` where it is no message.
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
        // It is copied into a message of that size, once.
        #[allow(clippy::large_enum_variant)]
        pub enum $name {
            $($(#[$of_kind])* $kind($body),)*
        }

        $(const _: () = assert!(size_of::<$body>() <= BODY_BYTES);)*

        impl $name {
            /// The message, with the id of a request.
            pub fn emit(&self, id: u32) -> [u8; MESSAGE_BYTES] {
                match self {
                    $($name::$kind(body) => emit($number, id, body),)*
                }
            }

            /// A message and the id of the request.
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
    /// What an application asks of a manager.
    Request {
        /// To become an application of the device. Answered by `Joined`, then by a `Queue`
        /// for each.
        Join(Join) = 1,
        /// To go on as an application that joined an earlier run of the manager. Answered
        /// by `Joined`, without descriptors.
        Present(Present) = 2,
        /// To get a port's frames; the bound socket of the kernel goes beside it. Answered
        /// by `Owned`.
        OwnPort(Port) = 3,
        /// To leave a port's frames to the kernel, as far as this socket had them.
        DisownPort(Holder) = 4,
        /// To get a block of outgoing ports. Answered by `Leased`.
        Lease(Transport) = 5,
        /// To give a block back.
        ReturnLease(Block) = 6,
        /// To set when a queue may interrupt.
        Moderation(Moderation) = 7,
        /// To have a NAPI probe made of a frame of a queue.
        Probe(Probe) = 8,
        /// What a NAPI probe was. Answered by `Probed`.
        GetProbe(QueueNumber) = 9,
        /// To have the kernel take a datagram as if it had come.
        Input(Input) = 10,
        /// To keep a neighbour resolved.
        Resolve(Address) = 11,
        /// What the manager counts. Answered by `Counters`.
        GetCounters(Empty) = 12,
        /// To be an application no longer.
        Leave(Empty) = 13,
        /// To get other helper sockets than those of a queue, whose NAPI id is no more.
        /// Answered by `Helpers`.
        GetHelpers(Empty) = 14,
        /// The first application from this number on that the asking user may know of: all
        /// for user 0, else his own. Answered by `Status`, or by `Done` where there is none.
        GetStatus(ApplicationNumber) = 16,
        /// What the driver program counts on a queue, for user 0. Answered by `QueueCounters`.
        GetQueueCounters(QueueNumber) = 17,
        /// To have virtual circuits. Answered by `AtmAttached`; beside it goes a connection by
        /// which the manager says what becomes of calls.
        AttachAtm(Empty) = 20,
        /// To get the frames of a permanent circuit.
        OpenCircuit(CircuitNumber) = 21,
        /// To leave them to the kernel.
        CloseCircuit(CircuitNumber) = 22,
        /// To take calls.
        AtmListen(AtmListen) = 23,
        /// To take none any more.
        AtmUnlisten(ListenerNumber) = 24,
        /// To call. This, the next two and AtmAcknowledge go by the connection of notices, by
        /// which all that is said to them comes.
        AtmCall(AtmCall) = 25,
        /// To take a call that waits, whose circuit is open; beside it goes the caller's end of
        /// the circuit of a local one. Or to refuse it.
        AtmAccept(AtmAccept) = 26,
        /// To end a call.
        AtmRelease(AtmRelease) = 27,
        /// To go on with a call of an earlier run of the manager.
        AtmPresent(AtmPresent) = 28,
        /// It has presented all of them.
        AtmPresented(Empty) = 29,
        /// The circuit of a call that is connected is open at who called: the other end may
        /// send on it.
        AtmAcknowledge(CallNumber) = 30,
    }
}

messages! {
    /// What a manager answers.
    Answer {
        /// It is done.
        Done(Empty) = 128,
        /// It is not done.
        Error(Failure) = 129,
        /// The application's number and the device; the map of its tables goes beside it,
        /// and the one of what the driver program counts.
        Joined(Joined) = 130,
        /// A queue of the application; its AF_XDP socket, its frame memory, the socket for
        /// frames that may wait and its helper sockets go beside it.
        Queue(Queue) = 131,
        /// The port is the application's by this socket.
        Owned(Holder) = 132,
        /// A block of outgoing ports.
        Leased(Block) = 133,
        /// What the NAPI probe of a queue was.
        Probed(Probed) = 134,
        /// What the manager counts.
        Counters(Counters) = 135,
        /// Two helper sockets go beside it.
        Helpers(Empty) = 136,
        /// An application.
        Status(Status) = 140,
        /// What the driver program counts on a queue.
        QueueCounters(QueueCounters) = 141,
        /// Who polls the device from now on, to a private application, which has not asked.
        Polling(Polling) = 142,
        /// Circuits may be opened; beside it goes the connection of notices.
        AtmAttached(AtmAttached) = 143,
        /// Notice: a call waits for a listener.
        AtmIncoming(AtmIncoming) = 146,
        /// Notice: a call that waited is no more.
        AtmWithdrawn(AtmWithdrawn) = 147,
        /// Notice: a call has its circuit, whose frames come to the application.
        AtmCircuit(AtmCircuit) = 148,
        /// Notice: payloads go both ways; beside it goes the circuit of a local call.
        AtmConnected(AtmConnected) = 149,
        /// Notice: a call is released, or did not come about.
        AtmEnded(AtmEnded) = 150,
    }
}

impl Request {
    /// Descriptors that go beside it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::OwnPort(_) => 1,
            Request::AtmAccept(of) => (of.cause == 0 && of.reference.local != 0).into(),
            _ => 0,
        }
    }
}

/// A transport protocol by its number; `None` for one that has no ports here.
pub fn transport(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .find(|&protocol| protocol as u8 == number)
}

/// An address as messages have it: 16 bytes, IPv4 mapped.
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
