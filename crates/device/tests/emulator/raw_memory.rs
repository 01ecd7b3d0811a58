//! Memory that the program shares with its runner, like a map that user space has mapped.

use std::marker::PhantomData;

/// The bytes of a value of integers and atomics.
pub struct Shared<'a> {
    start: *mut u8,
    length: usize,
    owner: PhantomData<&'a ()>,
}

/// Types that may be shared: integers and atomics in `repr(C)`, of which the program
/// writes only the atomics.
pub trait Table {}
impl Table for tidewall_device::demux::layout::Device {}
impl Table for tidewall_device::demux::layout::Application {}
impl Table for tidewall_device::demux::layout::Queue {}

impl<'a> Shared<'a> {
    /// Shares a table for as long as it is borrowed.
    pub fn new<T: Table>(table: &'a T) -> Self {
        Shared {
            start: std::ptr::from_ref(table).cast_mut().cast(),
            length: size_of::<T>(),
            owner: PhantomData,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies bytes from `offset` on; they must exist.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the table, which is borrowed for 'a and has no padding that is
        // not a field. Nothing writes it meanwhile: the emulator runs on the thread that
        // holds the tables.
        unsafe {
            self.start
                .add(offset)
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len())
        };
    }

    /// Writes bytes from `offset` on; they must exist.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: as for `read`; what the program writes are atomics, which may
        // change behind a shared reference.
        unsafe {
            self.start
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}
