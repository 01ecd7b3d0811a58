//! Functions beyond POSIX: `packaging/tidewall.h`.

use std::ffi::{CStr, c_char, c_int};

use tidewall_posix::Errno;

use super::done;
use crate::process::{inside, posix};
use crate::{promote, watch};

/// Creates the stack on an interface, or on that of the environment (null).
#[unsafe(no_mangle)]
unsafe extern "C" fn tidewall_start(interface: *const c_char) -> c_int {
    let interface = match interface.is_null() {
        true => None,
        // SAFETY: a C string, by the caller.
        false => Some(unsafe { CStr::from_ptr(interface) }),
    };
    done(inside(|| {
        let name = interface.map(|name| name.to_str().map_err(|_| Errno(libc::ENODEV)));
        promote::start(name.transpose()?).inspect(|()| watch::promote_at_once())
    }))
}

/// Reports whether a descriptor is a socket of the stack.
#[unsafe(no_mangle)]
extern "C" fn tidewall_owns(fd: c_int) -> c_int {
    posix().is_some_and(|posix| posix.owns(fd)).into()
}
