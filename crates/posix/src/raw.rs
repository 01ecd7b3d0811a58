//! Access to a C caller's memory: pointer arguments, vectors, messages.
//!
//! A function that C calls has these types in place of pointers. C creates them as it
//! calls; Rust can only lend a slice ([`Pointer::lend`]). The function itself needs no
//! `unsafe`.

use core::cell::Cell;
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::{fmt, ptr, slice};
use std::net::{IpAddr, SocketAddr};

use libc::{cmsghdr, iovec, msghdr, socklen_t};
use tidewall_sys::RawAddress;

use crate::{ControlMessage, Errno, Result};

/// Invariant: ties a pointer and its count to one call, neither longer nor shorter.
type Call<'a> = PhantomData<Cell<&'a ()>>;

/// A pointer argument: null, or a pointer to as many `T` as the [`Count`] of the same
/// lifetime states. The callee has exclusive access to them during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Pointer<'a, T>(*mut T, Call<'a>);

/// The argument that states how many elements a [`Pointer`] points to.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Count<'a, N>(N, Call<'a>);

/// Bytes that C reads after the call.
pub type Place<'a> = Pointer<'a, MaybeUninit<u8>>;

impl<'a, N: Copy + TryInto<usize>> Count<'a, N> {
    /// Returns the count; 0 for a negative one.
    pub fn get(self) -> usize {
        self.0.try_into().unwrap_or(0)
    }
}

impl<'a, T> Pointer<'a, T> {
    /// Returns the null pointer.
    #[must_use]
    pub fn null() -> Self {
        Pointer(ptr::null_mut(), PhantomData)
    }

    /// Makes a call as C does, with a pointer and the number of elements behind it.
    pub fn lend<N: TryFrom<usize> + Default, R>(
        elements: &mut [T],
        call: impl for<'b> FnOnce(Pointer<'b, T>, Count<'b, N>) -> R,
    ) -> R {
        // A count that the type cannot hold promises nothing.
        let count = N::try_from(elements.len()).unwrap_or_default();
        call(
            Pointer(elements.as_mut_ptr(), PhantomData),
            Count(count, PhantomData),
        )
    }

    /// Returns true for null.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns the pointer, for a kernel call.
    pub fn as_ptr(&self) -> *mut T {
        self.0
    }

    /// Returns the elements, to read.
    ///
    /// # Errors
    /// EFAULT for null, unless the count is zero.
    pub fn read<N: Copy + TryInto<usize>>(self, count: Count<'a, N>) -> Result<&'a [T]> {
        match self.check(count)? {
            0 => Ok(&[]),
            // SAFETY: not null. The count has the same lifetime, so it came with the
            // pointer; both types state what that promises.
            count => Ok(unsafe { slice::from_raw_parts(self.0, count) }),
        }
    }

    /// Returns the elements, to write.
    ///
    /// # Errors
    /// Those of [`Pointer::read`].
    pub fn write<N: Copy + TryInto<usize>>(self, count: Count<'a, N>) -> Result<&'a mut [T]> {
        match self.check(count)? {
            0 => Ok(&mut []),
            // SAFETY: as in `read`; only one pointer has this lifetime.
            count => Ok(unsafe { slice::from_raw_parts_mut(self.0, count) }),
        }
    }

    fn check<N: Copy + TryInto<usize>>(&self, count: Count<'a, N>) -> Result<usize> {
        match count.get() {
            1.. if self.is_null() => Err(Errno(libc::EFAULT)),
            count => Ok(count),
        }
    }
}

impl<'a> Place<'a> {
    /// Writes as much of `value` as fits, and stores its length.
    ///
    /// # Errors
    /// EFAULT for null, unless the room is zero.
    pub fn put<N: Copy + TryInto<usize> + TryFrom<usize>>(
        self,
        length: &mut Count<'a, N>,
        value: &[u8],
    ) -> Result<()> {
        let place = self.write(*length)?;
        copy(value, place);
        length.0 = N::try_from(value.len()).map_err(|_| Errno(libc::EOVERFLOW))?;
        Ok(())
    }
}

/// Copies as much as fits; returns how much that is.
pub fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) -> usize {
    let length = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..length), to.get_mut(..length)) {
        to.write_copy_of_slice(from);
    }
    length
}

/// A string argument: null, or a pointer to bytes that end with a zero.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    /// Returns the string; `None` for null.
    #[must_use]
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: not null; the type guarantees the rest.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

impl<'a> From<&'a CStr> for Text<'a> {
    fn from(text: &'a CStr) -> Self {
        Text(text.as_ptr(), PhantomData)
    }
}

/// Parses an address argument; `None` for null, for one that is too short, and for one of
/// another family.
#[must_use]
pub fn address<'a>(address: Pointer<'a, u8>, length: Count<'a, socklen_t>) -> Option<SocketAddr> {
    let address = RawAddress::parse(address.read(length).ok()?)?;
    Some(SocketAddr::new(address.ip(), address.port()))
}

/// Writes as much of an address as fits, and its length. Does nothing if C does not
/// request the address.
pub fn put_address<'a>(
    address: SocketAddr,
    place: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) {
    let (bytes, used) = RawAddress::new(address);
    if let (Some(length), Some(bytes)) = (length, bytes.0.get(..used as usize))
        && !place.is_null()
    {
        // It is not null.
        let _ = place.put(length, bytes);
    }
}

/// An element of a vector (`struct iovec`): null, or a pointer to as many bytes as it
/// states. The callee has exclusive access to them during the call.
#[repr(transparent)]
pub struct Buffer(iovec);

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.0.iov_len).finish()
    }
}

impl Buffer {
    /// Pointer and length belong to one element, whose type guarantees the length.
    fn parts<'a, T>(&self) -> (Pointer<'a, T>, Count<'a, usize>) {
        let pointer = Pointer(self.0.iov_base.cast(), PhantomData);
        (pointer, Count(self.0.iov_len, PhantomData))
    }
}

/// Returns how many bytes fit into a vector.
#[must_use]
pub fn room(vector: &[Buffer]) -> usize {
    let lengths = vector.iter().map(|buffer| buffer.0.iov_len);
    lengths.fold(0, usize::saturating_add)
}

/// Returns the memory that a vector points to.
///
/// # Errors
/// EFAULT for a null element with a nonzero length.
pub fn gather(vector: &[Buffer]) -> Result<Vec<&[u8]>> {
    let each = vector.iter().map(Buffer::parts);
    each.map(|(bytes, length)| bytes.read(length)).collect()
}

/// Fills the memory that a vector points to, in order.
///
/// # Errors
/// Those of [`gather`].
pub fn scatter(mut from: &[u8], vector: &[Buffer]) -> Result<()> {
    for (place, length) in vector.iter().map(Buffer::parts) {
        let copied = copy(from, place.write(length)?);
        from = from.get(copied..).unwrap_or_default();
    }
    Ok(())
}

/// A message argument (`struct msghdr`). Its pointers follow the rules above.
#[repr(transparent)]
pub struct Message(msghdr);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Message").field(&self.0.msg_flags).finish()
    }
}

impl Message {
    /// Returns the vector.
    ///
    /// # Errors
    /// EFAULT for a null vector with a nonzero element count.
    pub fn vector(&self) -> Result<&[Buffer]> {
        let vector = Pointer(self.0.msg_iov.cast(), PhantomData);
        vector.read(Count(self.0.msg_iovlen, PhantomData))
    }

    /// Returns the destination address, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        let name = Pointer(self.0.msg_name.cast(), PhantomData);
        address(name, Count(self.0.msg_namelen, PhantomData))
    }

    /// Returns the source of a datagram that the control messages request.
    pub fn source(&self) -> Source {
        let control = Pointer(self.0.msg_control.cast(), PhantomData);
        let control: Result<&[u8]> = control.read(Count(self.0.msg_controllen, PhantomData));
        match control {
            Ok(control) if control.len() < size_of::<cmsghdr>() => Source::Any,
            Ok(control) => source_of(control).map_or(Source::Other, Source::Address),
            Err(_) => Source::Other,
        }
    }

    /// Reports a received message: no address, the flags, and as many control messages as
    /// fit (else MSG_CTRUNC).
    pub fn finish(&mut self, flags: i32, control: &[ControlMessage]) {
        self.0.msg_namelen = 0;
        self.0.msg_flags = flags;
        let place: Place<'_> = Pointer(self.0.msg_control.cast(), PhantomData);
        let place = place.write(Count(self.0.msg_controllen, PhantomData));
        // A null place has no room.
        let mut rest = place.unwrap_or_default();
        let room = rest.len();
        for message in control {
            let length = size_of::<cmsghdr>() + message.data.len();
            if rest.len() < length {
                self.0.msg_flags |= libc::MSG_CTRUNC;
            }
            if rest.len() < size_of::<cmsghdr>() {
                break;
            }
            // A truncated message states its truncated length.
            copy(&message.bytes(length.min(rest.len())), rest);
            let space = length.next_multiple_of(size_of::<usize>());
            rest = rest.split_at_mut(space.min(rest.len())).1;
        }
        self.0.msg_controllen = room - rest.len();
    }
}

/// The request that the control messages of an outgoing datagram make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing: there are no control messages.
    Any,
    /// To leave from this address (IP_PKTINFO, IPV6_PKTINFO), by any interface.
    Address(IpAddr),
    /// Anything else.
    Other,
}

/// Returns the address of IP_PKTINFO or IPV6_PKTINFO without an interface, if that is the
/// only message.
fn source_of(control: &[u8]) -> Option<IpAddr> {
    let field = |at: usize| control.get(at..)?.first_chunk::<4>().copied();
    let length = control.first_chunk().map(|it| usize::from_ne_bytes(*it))?;
    let level = i32::from_ne_bytes(field(offset_of!(cmsghdr, cmsg_level))?);
    let kind = i32::from_ne_bytes(field(offset_of!(cmsghdr, cmsg_type))?);
    let data = control.get(size_of::<cmsghdr>()..length)?;
    // Less than a header follows.
    let behind = control
        .len()
        .saturating_sub(length.next_multiple_of(size_of::<usize>()));
    let (address, interface) = match (level, kind, data) {
        // struct in_pktinfo: ipi_ifindex, ipi_spec_dst, ipi_addr.
        (libc::IPPROTO_IP, libc::IP_PKTINFO, [a, b, c, d, rest @ ..]) if rest.len() == 8 => {
            let source = *rest.first_chunk::<4>()?;
            (IpAddr::from(source), [*a, *b, *c, *d])
        }
        // struct in6_pktinfo: ipi6_addr, ipi6_ifindex.
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, [.., a, b, c, d]) if data.len() == 20 => {
            let source = *data.first_chunk::<16>()?;
            (IpAddr::from(source), [*a, *b, *c, *d])
        }
        _ => return None,
    };
    (interface == [0; 4] && behind < size_of::<cmsghdr>()).then_some(address)
}

impl ControlMessage {
    /// Returns the C form: header and data, without the padding that aligns the next
    /// message; `length` bytes in all.
    fn bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<cmsghdr>()];
        bytes.extend(&self.data);
        bytes.truncate(length);
        let length = length.to_ne_bytes();
        for (at, field) in [
            (offset_of!(cmsghdr, cmsg_len), &length[..]),
            (offset_of!(cmsghdr, cmsg_level), &self.level.to_ne_bytes()),
            (offset_of!(cmsghdr, cmsg_type), &self.kind.to_ne_bytes()),
        ] {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFAULT: Errno = Errno(libc::EFAULT);

    fn buffer(bytes: &mut [u8]) -> Buffer {
        Buffer(iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        })
    }

    fn missing(iov_len: usize) -> Buffer {
        let iov_base = ptr::null_mut();
        Buffer(iovec { iov_base, iov_len })
    }

    #[test]
    fn null_has_no_elements() {
        let null = || Pointer::<u8>::null();
        assert_eq!(null().read(Count(0_i32, PhantomData)), Ok(&[][..]));
        assert_eq!(null().read(Count(-1_i32, PhantomData)), Ok(&[][..]));
        assert_eq!(null().read(Count(1_i32, PhantomData)), Err(EFAULT));
    }

    #[test]
    fn a_vector_is_filled_in_order() {
        let (mut first, mut second) = (*b"....", *b"....");
        let vector = [buffer(&mut first), missing(0), buffer(&mut second)];
        assert_eq!(room(&vector), 8);
        scatter(b"hello", &vector).unwrap();
        assert_eq!(gather(&vector).unwrap().concat(), b"hello...");
        let vector = [buffer(&mut first), missing(1)];
        assert_eq!(gather(&vector), Err(EFAULT));
        assert_eq!(scatter(b"hello", &vector), Err(EFAULT));
    }

    #[test]
    fn an_address_fills_what_room_there_is() {
        let address = SocketAddr::from(([192, 0, 2, 1], 80));
        let mut place = [MaybeUninit::new(0); 4];
        let length = Pointer::lend(&mut place, |place, mut length| {
            put_address(address, place, Some(&mut length));
            length.get()
        });
        assert_eq!(length, size_of::<libc::sockaddr_in>());
        let (mut bytes, used) = RawAddress::new(address);
        let read = Pointer::lend(&mut bytes.0[..used as usize], super::address);
        assert_eq!(read, Some(address));
        let read = Pointer::lend(&mut bytes.0[..used as usize - 1], super::address);
        assert_eq!(read, None);
    }

    #[test]
    fn a_control_message_that_finds_no_room_is_cut() {
        let control = ControlMessage {
            level: 1,
            kind: 2,
            data: vec![7; 4],
        };
        let control = [control.clone(), control];
        let each = (size_of::<cmsghdr>() + 4).next_multiple_of(size_of::<usize>());
        for (room, used, cut) in [
            (2 * each, 2 * each, false),
            (2 * each - 4, 2 * each - 4, false),
            (2 * each - 5, 2 * each - 5, true),
            (each + size_of::<cmsghdr>() - 1, each, true),
            (0, 0, true),
        ] {
            let mut memory = vec![0u8; room];
            let mut message = Message(msghdr {
                msg_name: ptr::null_mut(),
                msg_namelen: 0,
                msg_iov: ptr::null_mut(),
                msg_iovlen: 0,
                msg_control: memory.as_mut_ptr().cast(),
                msg_controllen: room,
                msg_flags: 0,
            });
            message.finish(0, &control);
            assert_eq!(message.0.msg_controllen, used, "{room}");
            assert_eq!(message.0.msg_flags & libc::MSG_CTRUNC != 0, cut, "{room}");
            if room > 0 {
                assert_eq!(memory[..8], (each - 4).to_ne_bytes());
            }
            if used > each {
                let second = (each - 4).min(used - each);
                assert_eq!(memory[each..each + 8], second.to_ne_bytes());
            }
        }
    }
}
