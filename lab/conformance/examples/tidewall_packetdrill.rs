//! `libtidewall_packetdrill.so`: the library that the public packetdrill tool loads
//! (`--so_filename`), so that its scripts test Tidewall's TCP. See
//! `tidewall_conformance::raw_interface`, and docs/tcp.md for its use.

mod raw_exports {
    use core::ffi::c_int;
    use core::mem::MaybeUninit;

    use libc::{off64_t, size_t, socklen_t, ssize_t};
    use tidewall_conformance::raw_interface::{self, Interface};
    use tidewall_posix::raw::{Count, Place, Text};

    /// The function that the tool calls first. See [`raw_interface::initialize`].
    // SAFETY: no other function has this name.
    #[unsafe(no_mangle)]
    extern "C" fn packetdrill_interface_init(
        flags: Text<'_>,
        interface: Option<&mut MaybeUninit<Interface>>,
    ) {
        raw_interface::initialize(flags, interface);
    }

    /// See [`raw_interface::getsockopt`].
    // SAFETY: for all other descriptors it acts as the C library's function.
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
    // SAFETY: for all other descriptors it acts as the C library's function.
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
    // SAFETY: for all other descriptors it acts as the C library's function.
    #[unsafe(no_mangle)]
    extern "C" fn close(fd: c_int) -> c_int {
        raw_interface::close(fd)
    }
}
