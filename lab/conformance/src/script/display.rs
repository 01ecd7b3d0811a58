//! Packets and calls in the script's notation, for messages.

use core::fmt;

use super::packet::LETTERS;
use super::{
    Call, Direction, EcnCheck, Icmp, IpFields, Packet, Quoted, Tcp, TcpFlags, TcpOption,
    TcpOptions, Transport, Udp,
};

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.direction {
            Direction::Inbound => "< ",
            Direction::Outbound => "> ",
        })?;
        write!(f, "{}", self.ip)?;
        match &self.transport {
            Transport::Tcp(tcp) => write!(f, "{tcp}"),
            Transport::Udp(udp) => write!(f, "{udp}"),
            Transport::Icmp(icmp) => write!(f, "{icmp}"),
        }
    }
}

impl fmt::Display for IpFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(ecn) = self.ecn {
            parts.push(
                match ecn {
                    EcnCheck::NotCapable => "noecn",
                    EcnCheck::Capable0 => "ect0",
                    EcnCheck::Capable1 => "ect1",
                    EcnCheck::Experienced => "ce",
                    EcnCheck::CapableAny => "ect01",
                }
                .to_owned(),
            );
        }
        if let Some(class) = self.traffic_class {
            parts.push(format!("tos {class:#04x}"));
        }
        if let Some(hops) = self.hop_limit {
            parts.push(format!("ttl {hops}"));
        }
        if let Some(label) = self.flow_label {
            parts.push(format!("flowlabel {label:#x}"));
        }
        if parts.is_empty() {
            return Ok(());
        }
        write!(f, "[{}] ", parts.join(","))
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bits == 0 && !self.accurate_ecn {
            return f.write_str("-");
        }
        for (letter, bit) in LETTERS {
            if letter == '.' && self.accurate_ecn {
                f.write_str("A")?;
            }
            if self.bits & bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((source, destination)) = self.ports {
            write!(f, "{source} > {destination} ")?;
        }
        let end = self.sequence.wrapping_add(self.length.into());
        write!(f, "{} {}:{end}({})", self.flags, self.sequence, self.length)?;
        if let Some(acknowledgment) = self.acknowledgment {
            write!(f, " ack {acknowledgment}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match &self.options {
            TcpOptions::Any => f.write_str(" <...>"),
            TcpOptions::List(list) if list.is_empty() => Ok(()),
            TcpOptions::List(list) => {
                for (index, option) in list.iter().enumerate() {
                    write!(f, "{}{option}", if index == 0 { " <" } else { "," })?;
                }
                f.write_str(">")
            }
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hexadecimal = |f: &mut fmt::Formatter<'_>, name: &str, data: &[u8]| {
            f.write_str(name)?;
            for (index, byte) in data.iter().enumerate() {
                write!(f, "{}{byte:02x}", if index == 0 { " " } else { "" })?;
            }
            Ok(())
        };
        match self {
            Self::Nop => f.write_str("nop"),
            Self::End => f.write_str("eol"),
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::WindowScale(shift) => write!(f, "wscale {shift}"),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                f.write_str("sack")?;
                for (first, end) in blocks {
                    write!(f, " {first}:{end}")?;
                }
                Ok(())
            }
            Self::Timestamps { value, echo } => write!(f, "TS val {value} ecr {echo}"),
            Self::FastOpen(data) => hexadecimal(f, "FO", data),
            Self::FastOpenExperimental(data) => hexadecimal(f, "FOEXP", data),
            Self::Md5(data) => hexadecimal(f, "md5", data),
            Self::Other { kind, data } => hexadecimal(f, &format!("generic {kind}"), data),
        }
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("udp ")?;
        if let Some((source, destination)) = self.ports {
            write!(f, "{source} > {destination} ")?;
        }
        write!(f, "({})", self.length)
    }
}

impl fmt::Display for Icmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "icmp {}", self.kind)?;
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        if let Some(id) = self.id {
            write!(f, " id {id}")?;
        }
        match self.quoted {
            Some(Quoted::Tcp { sequence, length }) => {
                let end = sequence.wrapping_add(length.into());
                write!(f, " [{sequence}:{end}({length})]")
            }
            Some(Quoted::Udp { length }) => write!(f, " [udp ({length})]"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            write!(f, "{}{argument}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, ") = {}", self.result)?;
        match &self.errno {
            Some(errno) => write!(f, " {errno}"),
            None => Ok(()),
        }
    }
}
