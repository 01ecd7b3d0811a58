//! bpf(2), for uses that are too small for a loader.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_LINK_CREATE: i32 = 28;
/// `BPF_XDP`: ordinary attachment, as opposed to device and CPU maps.
const BPF_XDP: u32 = 37;

/// Execution mode of an XDP program (linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Attach {
    /// `XDP_FLAGS_SKB_MODE`: generic XDP.
    Generic = 1 << 1,
    /// `XDP_FLAGS_DRV_MODE`: in the driver.
    Native = 1 << 2,
}

/// Attaches an XDP program to the interface of this index in the caller's network
/// namespace. The attachment is a link (Linux 5.9) and lasts as long as the descriptor.
///
/// # Errors
/// EBUSY if another program is attached; EPERM without CAP_NET_ADMIN and CAP_BPF.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32, attach: Attach) -> io::Result<OwnedFd> {
    // Program, target, type of attachment, flags.
    let mut attributes = [
        program.as_raw_fd() as u32,
        interface,
        BPF_XDP,
        attach as u32,
    ];
    // SAFETY: the kernel reads as much of the attributes as the length states, and they
    // contain no pointers. A descriptor that was just returned has no other owner.
    unsafe {
        let size = size_of_val(&attributes);
        match libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw mut attributes, size) {
            fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_OBJ_PIN: i32 = 6;
const BPF_OBJ_GET: i32 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i32 = 15;
const BPF_LINK_TYPE_XDP: u32 = 6;
const BPF_MAP_FREEZE: i32 = 22;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// A BPF array to create.
#[derive(Clone, Copy, Debug)]
pub struct ArrayMap<'a> {
    /// A name for operators; at most 15 letters, digits, `_` and `.`.
    pub name: &'a str,
    /// Bytes of an element.
    pub value_bytes: u32,
    /// Number of elements.
    pub entries: u32,
    /// Whether it can be mapped.
    pub mapped: bool,
}

/// Calls bpf(2).
///
/// # Safety
/// Pointers in the attributes must be those of `command`, and valid for what it reads or
/// writes.
unsafe fn bpf<const N: usize>(command: i32, mut attributes: [u64; N]) -> io::Result<i32> {
    let size = size_of_val(&attributes);
    // SAFETY: the kernel reads as much of the attributes as the length states; the caller
    // guarantees what they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Two fields of 32 bits, in memory order.
fn pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Creates a BPF array, filled with zeros.
///
/// # Errors
/// EPERM without CAP_BPF; ENOMEM; EINVAL for an invalid name.
pub fn create_array(map: &ArrayMap<'_>) -> io::Result<OwnedFd> {
    let mut name = [0u8; 16];
    for (to, from) in name.iter_mut().take(15).zip(map.name.bytes()) {
        *to = from;
    }
    let words = name.as_chunks::<4>().0;
    let word = |at: usize| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word));
    let flags = if map.mapped { BPF_F_MMAPABLE } else { 0 };
    let attributes = [
        pair(BPF_MAP_TYPE_ARRAY, 4),
        pair(map.value_bytes, map.entries),
        // Flags; no inner map. No NUMA node; then the name, at offset 28.
        pair(flags, 0),
        pair(0, word(0)),
        pair(word(1), word(2)),
        pair(word(3), 0),
    ];
    // SAFETY: no pointers; the new descriptor has no other owner.
    unsafe { bpf(BPF_MAP_CREATE, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// The index of the interface to which an XDP link is attached, in any network namespace,
/// and the id of its program. `None` for a link whose interface no longer exists.
///
/// # Errors
/// EINVAL if it is not an XDP link.
pub fn interface_of_link(link: BorrowedFd<'_>) -> io::Result<Option<(u32, u32)>> {
    // struct bpf_link_info: type, id, program and, for an XDP link, the interface (after
    // a pad).
    let mut info = [0u32; 8];
    let length = size_of_val(&info) as u32;
    let attributes = [
        pair(link.as_raw_fd() as u32, length),
        info.as_mut_ptr() as u64,
    ];
    // SAFETY: the kernel writes at most as many bytes as are stated beside the pointer,
    // which `info` has.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, attributes) }?;
    let [kind, _, program, _, interface, ..] = info;
    match (kind, interface) {
        (BPF_LINK_TYPE_XDP, 0) => Ok(None),
        (BPF_LINK_TYPE_XDP, interface) => Ok(Some((interface, program))),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Makes a map read-only for all processes that have it open: from now on only the
/// kernel's programs change it.
///
/// # Errors
/// EBUSY while it is mapped for writing, or already frozen.
pub fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    unsafe { bpf(BPF_MAP_FREEZE, [pair(map.as_raw_fd() as u32, 0)]).map(|_| ()) }
}

/// Enters a map or an AF_XDP socket, by its descriptor, in an array of such objects.
///
/// # Errors
/// E2BIG for an index out of range; EINVAL for a map that differs from the others;
/// EOPNOTSUPP for an object that is not an AF_XDP socket.
pub fn set_object(array: BorrowedFd<'_>, index: u32, object: BorrowedFd<'_>) -> io::Result<()> {
    let value = object.as_raw_fd() as u32;
    let attributes = [
        pair(array.as_raw_fd() as u32, 0),
        &raw const index as u64,
        &raw const value as u64,
        0,
    ];
    // SAFETY: keys and values of such arrays have 32 bits, and live until the call
    // returns.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, attributes).map(|_| ()) }
}

/// Removes an element from an array of maps, sockets or devices, if there is one.
///
/// # Errors
/// EINVAL for an index out of range or another kind of map.
pub fn delete_element(array: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let attributes = [pair(array.as_raw_fd() as u32, 0), &raw const index as u64];
    // SAFETY: the key of an array has 32 bits, and lives until the call returns.
    match unsafe { bpf(BPF_MAP_DELETE_ELEM, attributes) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Pins a map, program or link in bpffs under a name, which keeps it alive.
///
/// # Errors
/// EEXIST; EPERM if the directory is in another file system; that file system's errors.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_text(path)?;
    let attributes = [path.as_ptr() as u64, pair(object.as_raw_fd() as u32, 0)];
    // SAFETY: the path is zero-terminated and lives until the call returns.
    unsafe { bpf(BPF_OBJ_PIN, attributes).map(|_| ()) }
}

/// Opens an object that is pinned in bpffs.
///
/// # Errors
/// ENOENT; the file system's errors.
pub fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = path_text(path)?;
    // SAFETY: the path is zero-terminated and lives until the call returns. The new
    // descriptor has no other owner, and is closed on exec (as every BPF descriptor).
    unsafe { bpf(BPF_OBJ_GET, [path.as_ptr() as u64, 0]).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

fn path_text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
