//! Packet scripts, in the notation of the public packetdrill tool.
//!
//! Lives here: converting text to [`Script`] and back, without running anything. Does not
//! live here: sockets, the engine, a clock; [`crate::run`] has those.
//!
//! ```text
//! text ─► lexer ─► parser (packet, expression, assertion, command) ─► Script
//! ```
//!
//! The notation is that of "packetdrill: Scriptable Network Stack Testing, from Sockets
//! to Packets" (Cardwell et al., USENIX ATC 2013) and of the tool's `syntax.md`. The
//! differences:
//! - no shell, only settings by `sysctl` (see [`Command`]);
//! - no Python: `%{ }%` holds [`Assertion`]s;
//! - no encapsulation (GRE, MPLS, PSP);
//! - `win *` for a window that does not matter.

mod assertion;
mod command;
mod display;
mod expression;
mod lexer;
mod model;
mod packet;
mod parser;
#[cfg(test)]
mod tests;

pub use assertion::{Assertion, EvaluationError, Operator, Term};
pub use command::Command;
pub use expression::Expression;
pub use lexer::Position;
pub use model::{
    Action, Call, Direction, EcnCheck, Event, Icmp, IpFields, OptionLine, Packet, Quoted, Script,
    Tcp, TcpFlags, TcpOption, TcpOptions, Transport, Udp, When,
};
pub use parser::{ParseError, parse};
