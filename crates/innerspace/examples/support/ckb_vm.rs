//! A space as the memory of a `ckb-vm` machine.

use ckb_vm::memory::{FLAG_EXECUTABLE, fill_page_data};
use ckb_vm::{Bytes, Error, Memory, RISCV_MAX_MEMORY, Register};
use innerspace::{
    Accessor, MIB, Map, PAGE_SIZE, Space, VirtAddr,
    space::{Fault, FaultKind, Protection, Scalar, SpaceError},
};

/// The first bytes of a space, where a machine has its program, its data and its stack.
pub(crate) struct SpaceMemory<R> {
    pub(crate) space: Space,
    pub(crate) accessor: Accessor,
    /// The machine's flags of each page.
    flags: Vec<u8>,
    reserved: R,
}

impl<R: Register> SpaceMemory<R> {
    fn of(space: Space, flags: Vec<u8>, reserved: R) -> Result<SpaceMemory<R>, SpaceError> {
        Ok(SpaceMemory {
            accessor: space.accessor()?,
            space,
            flags,
            reserved,
        })
    }

    /// Creates a memory of `bytes` bytes from address 0 of the space on, without the first page, so
    /// that a null pointer is an error. Fails if something is mapped there.
    pub(crate) fn map(space: Space, bytes: usize) -> Result<SpaceMemory<R>, SpaceError> {
        let pages = Map::anonymous((bytes - PAGE_SIZE) as u64);
        space.map(pages.at(VirtAddr(PAGE_SIZE as u64)))?;
        let flags = vec![0; bytes / PAGE_SIZE];
        SpaceMemory::of(space, flags, R::from_u64(u64::MAX))
    }

    /// Forks the memory for a second machine; from then on each sees only its own stores.
    pub(crate) fn fork(&self) -> Result<SpaceMemory<R>, SpaceError> {
        let (flags, reserved) = (self.flags.clone(), self.reserved.clone());
        SpaceMemory::of(self.space.fork()?, flags, reserved)
    }

    /// Turns a fault into the machine's error.
    fn told<T>(&self, done: Result<T, Fault>) -> Result<T, Error> {
        done.map_err(|fault| match fault.kind() {
            FaultKind::NotMapped => Error::MemOutOfBound,
            FaultKind::Forbidden => Error::MemWriteOnExecutablePage,
            _ => Error::External(self.space.explain(fault).to_string()),
        })
    }

    #[inline]
    fn load<T: Scalar>(&mut self, at: &R, register: fn(T) -> R) -> Result<R, Error> {
        let loaded = self.accessor.load(VirtAddr(at.to_u64()));
        self.told(loaded).map(register)
    }

    #[inline]
    fn store<T: Scalar>(&mut self, at: &R, value: T) -> Result<(), Error> {
        let stored = self.accessor.store(VirtAddr(at.to_u64()), value);
        self.told(stored)
    }

    fn flag(&mut self, page: u64) -> Result<&mut u8, Error> {
        let page = usize::try_from(page).map_err(|_| Error::MemOutOfBound)?;
        self.flags.get_mut(page).ok_or(Error::MemOutOfBound)
    }
}

/// The trait's loads and stores of each size.
macro_rules! loads_and_stores {
    ($($load:ident $store:ident $from:ident $to:ident,)+) => {$(
        #[inline]
        fn $load(&mut self, at: &R) -> Result<R, Error> {
            self.load(at, R::$from)
        }

        #[inline]
        fn $store(&mut self, at: &R, value: &R) -> Result<(), Error> {
            self.store(at, value.$to())
        }
    )+};
}

impl<R: Register> Memory for SpaceMemory<R> {
    type REG = R;

    fn new() -> Self {
        Self::new_with_memory(RISCV_MAX_MEMORY)
    }

    /// The trait has no way to report failure here. The limit is twice the bytes, which leaves room
    /// for tables.
    fn new_with_memory(bytes: usize) -> Self {
        let memory = innerspace::Memory::with_limit(2 * bytes as u64 + MIB).expect("a memory");
        SpaceMemory::map(memory.create_space().expect("a space"), bytes).expect("an empty space")
    }

    fn init_pages(
        &mut self,
        at: u64,
        size: u64,
        flags: u8,
        source: Option<Bytes>,
        skipped: u64,
    ) -> Result<(), Error> {
        fill_page_data(self, at, size, source, skipped)?;
        for page in at / PAGE_SIZE as u64..(at + size).div_ceil(PAGE_SIZE as u64) {
            self.set_flag(page, flags)?;
        }
        if flags & FLAG_EXECUTABLE != 0 {
            let code = Protection::READ | Protection::EXECUTE;
            let kept = self.space.protect(VirtAddr(at), size, code);
            kept.map_err(|error| Error::External(error.to_string()))?;
        }
        Ok(())
    }

    fn fetch_flag(&mut self, page: u64) -> Result<u8, Error> {
        self.flag(page).copied()
    }

    fn set_flag(&mut self, page: u64, flag: u8) -> Result<(), Error> {
        self.flag(page).map(|flags| *flags |= flag)
    }

    fn clear_flag(&mut self, page: u64, flag: u8) -> Result<(), Error> {
        self.flag(page).map(|flags| *flags &= !flag)
    }

    fn memory_size(&self) -> usize {
        self.flags.len() * PAGE_SIZE
    }

    fn store_byte(&mut self, at: u64, size: u64, value: u8) -> Result<(), Error> {
        let filled = self.accessor.fill(VirtAddr(at), value, size as usize);
        self.told(filled)
    }

    fn store_bytes(&mut self, at: u64, value: &[u8]) -> Result<(), Error> {
        let written = self.accessor.write(VirtAddr(at), value);
        self.told(written)
    }

    fn load_bytes(&mut self, at: u64, size: u64) -> Result<Bytes, Error> {
        if size > self.memory_size() as u64 {
            return Err(Error::MemOutOfBound);
        }
        let mut bytes = vec![0; size as usize];
        let read = self.accessor.read(VirtAddr(at), &mut bytes);
        self.told(read).map(|()| bytes.into())
    }

    fn execute_load16(&mut self, at: u64) -> Result<u16, Error> {
        let fetched = self.accessor.fetch(VirtAddr(at));
        self.told(fetched)
    }

    fn execute_load32(&mut self, at: u64) -> Result<u32, Error> {
        let fetched = self.accessor.fetch(VirtAddr(at));
        self.told(fetched)
    }

    loads_and_stores! {
        load8 store8 from_u8 to_u8,
        load16 store16 from_u16 to_u16,
        load32 store32 from_u32 to_u32,
        load64 store64 from_u64 to_u64,
    }

    fn lr(&self) -> &R {
        &self.reserved
    }

    fn set_lr(&mut self, value: &R) {
        self.reserved = value.clone();
    }
}
