//! A RISC-V machine (RV32IM) on the interpreter `rrs-lib`, with any memory: here, with a space.

use innerspace::{
    Accessor, PAGE_SIZE, VirtAddr,
    space::{CodePage, Fault},
};
use rrs_lib::instruction_executor::{InstructionException, InstructionExecutor};
use rrs_lib::{HartState, MemAccessSize, Memory, process_instruction};

/// `ecall`, which the interpreter leaves to its user.
const ECALL: u32 = 0x73;

/// A memory that tells the fetch of an instruction from a load.
pub(crate) trait GuestMemory: Memory {
    /// The instruction at `at`.
    fn fetch(&mut self, at: u32) -> Option<u32>;
}

/// Pages of code that are kept decoded as words.
const CODE_PAGES: usize = 8;
const WORDS: usize = PAGE_SIZE / 4;
/// How often a page of code may change before its instructions are fetched one by one.
const MOST_CHANGES: u32 = 16;

/// A space as the guest's memory.
pub(crate) struct SpaceMemory {
    pub(crate) accessor: Accessor,
    /// The fault of the last access that failed.
    pub(crate) fault: Option<Fault>,
    /// The pages that are kept, by the low bits of the page's number.
    code: [Code; CODE_PAGES],
    /// The instructions of those pages, each at the index in the low bits of its address.
    words: [u32; CODE_PAGES * WORDS],
}

/// A page whose instructions are kept, valid as long as nobody stores to it.
struct Code {
    /// The page's number.
    page: u32,
    watched: Option<CodePage>,
    changes: u32,
}

impl SpaceMemory {
    pub(crate) fn new(accessor: Accessor) -> SpaceMemory {
        let empty = || Code {
            page: 0,
            watched: None,
            changes: 0,
        };
        SpaceMemory {
            accessor,
            fault: None,
            code: [(); CODE_PAGES].map(|()| empty()),
            words: [0; CODE_PAGES * WORDS],
        }
    }

    #[inline]
    fn noted<T>(&mut self, done: Result<T, Fault>) -> Option<T> {
        done.map_err(|fault| self.fault = Some(fault)).ok()
    }

    /// Fetches from a page that is not kept or has changed, and keeps the page.
    #[cold]
    fn fetch_anew(&mut self, at: u32) -> Result<u32, Fault> {
        let page = at / PAGE_SIZE as u32;
        let place = page as usize % CODE_PAGES;
        let code = &mut self.code[place];
        if code.page != page {
            (code.page, code.changes) = (page, 0);
        }
        code.watched = None;
        code.changes += 1;
        if code.changes <= MOST_CHANGES && at.is_multiple_of(4) {
            // Watched first, so that a change during the copy is noticed.
            let start = VirtAddr(u64::from(page) * PAGE_SIZE as u64);
            let watched = self.accessor.watch_code(start)?;
            let words = &mut self.words[place * WORDS..][..WORDS];
            for (index, word) in (0..).zip(words) {
                *word = self.accessor.fetch(start + index * 4)?;
            }
            code.watched = Some(watched);
        }
        self.accessor.fetch(VirtAddr(at.into()))
    }
}

impl Memory for SpaceMemory {
    #[inline]
    fn read_mem(&mut self, at: u32, size: MemAccessSize) -> Option<u32> {
        let at = VirtAddr(at.into());
        let loaded = match size {
            MemAccessSize::Byte => self.accessor.load::<u8>(at).map(u32::from),
            MemAccessSize::HalfWord => self.accessor.load::<u16>(at).map(u32::from),
            MemAccessSize::Word => self.accessor.load::<u32>(at),
        };
        self.noted(loaded)
    }

    #[inline]
    fn write_mem(&mut self, at: u32, size: MemAccessSize, value: u32) -> bool {
        let at = VirtAddr(at.into());
        let stored = match size {
            MemAccessSize::Byte => self.accessor.store(at, value as u8),
            MemAccessSize::HalfWord => self.accessor.store(at, value as u16),
            MemAccessSize::Word => self.accessor.store(at, value),
        };
        self.noted(stored).is_some()
    }
}

impl GuestMemory for SpaceMemory {
    #[inline]
    fn fetch(&mut self, at: u32) -> Option<u32> {
        let page = at / PAGE_SIZE as u32;
        let code = &self.code[page as usize % CODE_PAGES];
        if let Some(watched) = &code.watched
            && code.page == page
            && watched.is_current()
            && at.is_multiple_of(4)
        {
            return Some(self.words[at as usize / 4 % self.words.len()]);
        }
        let fetched = self.fetch_anew(at);
        self.noted(fetched)
    }
}

/// Why a machine stopped.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// At an `ecall`; the program counter is past it.
    Call,
    /// At an instruction that it could not execute.
    Exception(InstructionException),
    /// After the number of instructions that was asked for.
    Enough,
}

/// One processor and its memory.
pub(crate) struct Machine<M> {
    pub hart: HartState,
    pub memory: M,
    /// Instructions executed so far.
    pub steps: u64,
}

impl<M: GuestMemory> Machine<M> {
    /// Creates a machine whose first instruction is at `pc`, with zeros in its registers.
    pub(crate) fn new(memory: M, pc: u32) -> Machine<M> {
        let mut hart = HartState::new();
        hart.pc = pc;
        Machine {
            hart,
            memory,
            steps: 0,
        }
    }

    /// Runs to the first call or exception, but executes at most `most` instructions.
    pub(crate) fn run(&mut self, most: u64) -> Stop {
        let Machine {
            hart,
            memory,
            steps,
        } = self;
        let end = steps.saturating_add(most);
        let mut executor = InstructionExecutor {
            mem: memory,
            hart_state: hart,
        };
        while *steps < end {
            let pc = executor.hart_state.pc;
            let Some(instruction) = executor.mem.fetch(pc) else {
                return Stop::Exception(InstructionException::FetchError(pc));
            };
            match process_instruction(&mut executor, instruction) {
                Some(Ok(jumped)) => {
                    if !jumped {
                        executor.hart_state.pc = pc.wrapping_add(4);
                    }
                }
                Some(Err(exception)) => return Stop::Exception(exception),
                None if instruction == ECALL => {
                    executor.hart_state.pc = pc.wrapping_add(4);
                    *steps += 1;
                    return Stop::Call;
                }
                None => {
                    let illegal = InstructionException::IllegalInstruction(pc, instruction);
                    return Stop::Exception(illegal);
                }
            }
            *steps += 1;
        }
        Stop::Enough
    }
}
