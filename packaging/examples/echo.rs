//! A TCP echo server for one connection at a time, on Tidewall, with the standard library:
//!   rustc --edition 2024 echo.rs -L /usr/lib -o echo && ./echo eth0 7
//! (The crate `tidewall_socket`, for programs written for Tidewall, is faster.)

use std::ffi::{CString, c_char, c_int};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;

#[link(name = "tidewall")]
unsafe extern "C" {
    fn tidewall_start(interface: *const c_char) -> c_int;
    fn tidewall_owns(fd: c_int) -> c_int;
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(interface), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: echo INTERFACE PORT"));
    };
    let name = CString::new(interface.clone())?;
    // SAFETY: the name outlives the call.
    if unsafe { tidewall_start(name.as_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        eprintln!("{interface}: {error}; going on by the kernel");
    }
    let listener = TcpListener::bind(format!("0.0.0.0:{port}"))?;
    loop {
        let (mut connection, _) = listener.accept()?;
        // SAFETY: the function accepts any descriptor.
        let whose = match unsafe { tidewall_owns(connection.as_raw_fd()) } {
            0 => "the kernel's",
            _ => "Tidewall's",
        };
        println!("a connection of {whose}");
        let mut buffer = [0; 65536];
        loop {
            let length = connection.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            connection.write_all(&buffer[..length])?;
        }
    }
}
