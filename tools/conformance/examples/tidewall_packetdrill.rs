//! `libtidewall_packetdrill.so`: the library that the public packetdrill tool
//! loads (`--so_filename`), so that its scripts judge Tidewall's TCP. See
//! `tidewall_conformance::raw_interface`, and docs/tcp.md for how to use it.

mod raw_exports {
    use core::ffi::c_int;
    use core::mem::MaybeUninit;

    use libc::{off64_t, size_t, socklen_t, ssize_t};
    use tidewall_conformance::raw_interface::{self, Interface};
    use tidewall_posix::raw::{Count, Place, Text};

    /// What the tool calls first. See [`raw_interface::initialize`].
    // SAFETY: nobody else has a function of this name.
    #[unsafe(no_mangle)]
    extern "C" fn packetdrill_interface_init(
        flags: Text<'_>,
        interface: Option<&mut MaybeUninit<Interface>>,
    ) {
        raw_interface::initialize(flags, interface);
    }

    /// See [`raw_interface::getsockopt`].
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    extern "C" fn getsockopt<'a>(
        fd: c_int,
        level: c_int,
        option: c_int,
        value: Place<'a>,
        length: Option<&mut Count<'a, socklen_t>>,
    ) -> c_int {
        raw_interface::getsockopt(fd, level, option, value, length)
    }

    /// See [`raw_interface::sendfile`].
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    extern "C" fn sendfile(
        to: c_int,
        from: c_int,
        offset: Option<&mut off64_t>,
        count: size_t,
    ) -> ssize_t {
        raw_interface::sendfile(to, from, offset, count)
    }

    /// See [`raw_interface::close`].
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    extern "C" fn close(fd: c_int) -> c_int {
        raw_interface::close(fd)
    }
}
