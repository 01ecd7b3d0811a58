//! `libtidewall_packetdrill.so`: the library that the public packetdrill tool
//! loads (`--so_filename`), so that its scripts judge Tidewall's TCP. See
//! `tidewall_conformance::raw_interface`, and docs/tcp.md for how to use it.

mod raw_exports {
    use core::ffi::{c_char, c_int, c_void};

    use libc::{off64_t, size_t, socklen_t, ssize_t};
    use tidewall_conformance::raw_interface::{self, Interface};

    /// What the tool calls first.
    ///
    /// # Safety
    /// See [`raw_interface::initialize`].
    // SAFETY: nobody else has a function of this name.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn packetdrill_interface_init(
        flags: *const c_char,
        interface: *mut Interface,
    ) {
        // SAFETY: as the caller promises.
        unsafe { raw_interface::initialize(flags, interface) };
    }

    /// See [`raw_interface::getsockopt`].
    ///
    /// # Safety
    /// As `getsockopt(2)`.
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn getsockopt(
        fd: c_int,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { raw_interface::getsockopt(fd, level, option, value, length) }
    }

    /// See [`raw_interface::sendfile`].
    ///
    /// # Safety
    /// As `sendfile(2)`.
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn sendfile(
        to: c_int,
        from: c_int,
        offset: *mut off64_t,
        count: size_t,
    ) -> ssize_t {
        // SAFETY: as the caller promises.
        unsafe { raw_interface::sendfile(to, from, offset, count) }
    }

    /// See [`raw_interface::close`].
    ///
    /// # Safety
    /// As `close(2)`.
    // SAFETY: it does for all other descriptors what the C library's does.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn close(fd: c_int) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { raw_interface::close(fd) }
    }
}
