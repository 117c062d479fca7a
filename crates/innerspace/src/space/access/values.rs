//! Values of the program's own types, through the traits of `zerocopy`. A type can be loaded if
//! every byte pattern is valid for it, and stored if it has no padding.

use std::io;
use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::accessor::Accessor;
use super::forms::forms;
use super::session::{InSession, Session};
use super::single::{Core, Sectioned, Single};
use super::what::What;
use crate::space::core::address::crosses;
use crate::space::core::fault::{AccessKind, Fault};
use crate::{PAGE_SIZE, VirtAddr};

/// A reader of the bytes of a value in a space, starting at an address.
struct Source<'core, S> {
    core: &'core mut Core,
    at: VirtAddr,
    /// The fault that ended the read, if one did.
    fault: Option<Fault>,
    mode: PhantomData<S>,
}

impl<S: Sectioned> io::Read for Source<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.core.read::<S>(self.at, buffer) {
            Ok(()) => {
                self.at = self.core.space.after(self.at, buffer.len() as u64);
                Ok(buffer.len())
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

impl Core {
    fn load_value<S: Sectioned, T: FromBytes>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        let mut source = Source::<S> {
            core: self,
            at,
            fault: None,
            mode: PhantomData,
        };
        let value = T::read_from_io(&mut source);
        value.map_err(|_| source.fault.expect("only a fault ends it"))
    }

    fn store_value<S: Sectioned, T: IntoBytes + Immutable>(
        &mut self,
        at: VirtAddr,
        value: &T,
    ) -> Result<(), Fault> {
        const { assert!(size_of::<T>() <= PAGE_SIZE, "a value of more than a page") };
        let bytes = value.as_bytes();
        if crosses(at, bytes.len()) {
            return self.write_across::<S>(at, bytes, What::page(AccessKind::Store, 0));
        }
        self.write::<S>(at, bytes)
    }
}

forms! { Accessor, Single; Session<'_>, InSession => {
    /// Loads a value at any alignment, of any type for which every byte pattern is valid.
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory};
    /// use zerocopy::{FromBytes, Immutable, IntoBytes};
    ///
    /// #[derive(FromBytes, IntoBytes, Immutable, PartialEq, Debug)]
    /// #[repr(C)]
    /// struct Descriptor {
    ///     address: u64,
    ///     len: u32,
    ///     flags: u16,
    ///     next: u16,
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// # let at = space.map(Map::anonymous(MIB))?;
    /// # let mut a = space.accessor()?;
    /// let descriptor = Descriptor { address: 0x1000, len: 64, flags: 1, next: 2 };
    /// a.store_value(at, &descriptor)?;
    /// assert_eq!(a.load_value::<Descriptor>(at)?, descriptor);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be loaded.
    fn load_value, try_load_value<T: FromBytes>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        self.core.load_value::<M, T>(at)
    }

    /// Stores a value of any type without padding, at any alignment, wholly or not at all. For
    /// devices see [`Self::store`]; but a device may accept only a part of a value that is not a
    /// scalar. The value has at most 4096 bytes, which is checked at compile time.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be stored.
    fn store_value, try_store_value<T: IntoBytes + Immutable>(
        &mut self,
        at: VirtAddr,
        value: &T,
    ) -> Result<(), Fault> {
        self.core.store_value::<M, T>(at, value)
    }

    /// Loads values into a slice.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be loaded; everything before it is in
    /// `values`.
    fn read_slice, try_read_slice<T: FromBytes + IntoBytes>(
        &mut self,
        at: VirtAddr,
        values: &mut [T],
    ) -> Result<(), Fault> {
        self.core.read::<M>(at, values.as_mut_bytes())
    }

    /// Stores the values of a slice.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be stored; everything before it is stored.
    fn write_slice, try_write_slice<T: IntoBytes + Immutable>(
        &mut self,
        at: VirtAddr,
        values: &[T],
    ) -> Result<(), Fault> {
        self.core.write::<M>(at, values.as_bytes())
    }
} }
