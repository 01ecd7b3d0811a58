//! Refusals of client requests, and their reasons.

use std::borrow::Cow;
use std::io;

use crate::protocol::{Answer, Failure};

/// The reason why a request is refused.
#[derive(Debug)]
pub struct Refusal {
    errno: i32,
    text: Cow<'static, str>,
}

impl Refusal {
    /// The answer to the client.
    pub fn answer(&self) -> Answer {
        Answer::Error(Failure::new(self.errno, &self.text))
    }

    /// The errno of the corresponding socket call.
    pub(in crate::daemon) fn errno(&self) -> i32 {
        self.errno
    }
}

pub(in crate::daemon) fn refused<T>(
    errno: i32,
    text: impl Into<Cow<'static, str>>,
) -> Result<T, Refusal> {
    let text = text.into();
    Err(Refusal { errno, text })
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let by_kind = match error.kind() {
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
            io::ErrorKind::ResourceBusy => libc::EBUSY,
            io::ErrorKind::PermissionDenied => libc::EPERM,
            io::ErrorKind::NotFound => libc::ENOENT,
            _ => libc::EIO,
        };
        Refusal {
            errno: error.raw_os_error().unwrap_or(by_kind),
            text: error.to_string().into(),
        }
    }
}
