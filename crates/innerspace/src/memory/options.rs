//! The options of a memory, and creating it.

use std::io;

use super::error::MemoryError;
use super::files::OpenFiles;
use super::limit::Limit;
use super::service::Service;
use super::{Memory, MemoryInner};
use crate::cache::Cache;
use crate::frame::{ArenaError, ArenaOptions, LOOKASIDE_BYTES_PER_FRAME};
use crate::reclaim::{EvictionPolicy, Pool, PoolOptions, SAMPLER_BYTES};
use crate::stats::tell;
use crate::sync::Arc;
use crate::sys::{self, memory::Pages};
use crate::units::{KIB, PAGE_SIZE};

/// The smallest limit of a memory: 256 KiB. With [`MemoryBuilder::sample_misses`] the smallest
/// limit is larger.
pub const MINIMUM_LIMIT: u64 = 256 * KIB;

/// The bytes that every `Memory` takes besides its frames: the wait table, counters, lists.
const FIXED: u64 = 64 * KIB;
/// The bytes of metadata for each frame.
const METADATA: u64 = 64;

/// The threads that do the background work: write old blocks back, evict ahead of need, wake
/// futures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Threads {
    /// The memory's own threads: one for the work of all files, which calls no foreign code, and
    /// others, started as needed, for calls to stores, wakers and hooks. A call that hangs or
    /// panics delays only its own file, or the group that pays for it. Each group can lose up to
    /// 128 threads to calls that hang.
    #[default]
    Service,
    /// The program's own threads, in [`Memory::tick`]. A program with one thread then runs
    /// deterministically. A call itself writes only dirty blocks of its own group; those of other
    /// groups wait for a tick. The thread that ticks calls all stores, wakers and hooks, so a call
    /// that hangs blocks that thread. No group is isolated from the stores, wakers and hooks that
    /// another group supplies.
    None,
}

/// The options of a [`Memory`]; made by [`Memory::builder`].
#[derive(Clone, Debug)]
#[must_use = "it only has the choices"]
pub struct MemoryBuilder {
    limit: Limit,
    threads: Threads,
    policy: EvictionPolicy,
    sampling: bool,
    pages: Pages,
}

impl Memory {
    /// Creates a memory that keeps everything within `limit` (bytes, or a [`Limit`]), with one
    /// service thread. The smallest limit is [`MINIMUM_LIMIT`].
    ///
    /// # Errors
    /// [`MemoryError`]: the limit is too small, larger than the machine's memory or no valid share
    /// of it, or the system refused address space or a thread for it.
    pub fn with_limit(limit: impl Into<Limit>) -> Result<Memory, MemoryError> {
        Memory::builder(limit).build()
    }

    /// Returns the options of a memory of `limit` (bytes, or a [`Limit`]), with one service thread.
    ///
    /// ```
    /// use innerspace::{EvictionPolicy, MIB, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::builder(64 * MIB).policy(EvictionPolicy::S3Fifo).build()?;
    /// # Ok(()) }
    /// ```
    pub fn builder(limit: impl Into<Limit>) -> MemoryBuilder {
        MemoryBuilder {
            limit: limit.into(),
            threads: Threads::Service,
            policy: EvictionPolicy::default(),
            sampling: false,
            pages: Pages::Huge,
        }
    }
}

impl MemoryBuilder {
    /// Sets how the memory chooses what to evict.
    pub fn policy(mut self, policy: EvictionPolicy) -> MemoryBuilder {
        self.policy = policy;
        self
    }

    /// Makes the memory sample uses of file blocks, for [`Memory::miss_curve`]. The sample takes
    /// 408 KiB of the limit, so the limit must be at least that much larger than [`MINIMUM_LIMIT`].
    /// Sampling costs hardly any time: it is on for one four-hundredth of the time. While it is on,
    /// calls count their uses, and each access to a sampled page through a mapping is a page fault.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::builder(4 * MIB).sample_misses().build()?;
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(&[1; MIB as usize]))?;
    /// for _ in 0..3 {
    ///     file.scan(.., |_| ())?;
    /// }
    /// let curve = memory.miss_curve().expect("sampled");
    /// println!("with half the memory, {:.0} % would miss", 100.0 * curve.at(2 * MIB));
    /// # Ok(()) }
    /// ```
    pub fn sample_misses(mut self) -> MemoryBuilder {
        self.sampling = true;
        self
    }

    /// Sets whether the system is asked to back the memory with huge pages (2 MiB on most
    /// machines), which need fewer translations in the processor. The default is `true`. The system
    /// clears all of a huge page at its first use, which a program that runs for a few seconds may
    /// notice. This is advice: the system may lack huge pages, or be set to use none.
    pub fn huge_pages(mut self, wanted: bool) -> MemoryBuilder {
        self.pages = if wanted { Pages::Huge } else { Pages::Small };
        self
    }

    /// Sets which threads do the background work.
    pub fn threads(mut self, threads: Threads) -> MemoryBuilder {
        self.threads = threads;
        self
    }

    /// Creates the memory. All address space is reserved here. Memory is taken from the system as
    /// it is used.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn build(self) -> Result<Memory, MemoryError> {
        let machine = sys::memory::memory_of_machine();
        let limit = self.limit.resolve(machine)?;
        let sample = if self.sampling { SAMPLER_BYTES } else { 0 };
        let minimum = MINIMUM_LIMIT + sample;
        if limit < minimum {
            return Err(MemoryError::TooSmall { limit, minimum });
        }
        if let Some(machine) = machine
            && limit > machine
        {
            return Err(MemoryError::AboveMachine { limit, machine });
        }
        let system = |source| MemoryError::System { limit, source };
        // One frame is the zero frame, which does not count as usable.
        let frames =
            (limit - FIXED) / (PAGE_SIZE as u64 + METADATA + LOOKASIDE_BYTES_PER_FRAME) - 1;
        let frames =
            u32::try_from(frames).map_err(|_| system(io::ErrorKind::OutOfMemory.into()))?;
        let options = PoolOptions {
            arena: ArenaOptions {
                pages: self.pages,
                ..ArenaOptions::new(frames)
            },
            barrier: None,
            policy: self.policy,
            sampling: self.sampling,
        };
        let pool = Pool::new(&options).map_err(|error| match error {
            ArenaError::Map { source, .. } => system(source),
            other => system(io::Error::other(other)),
        })?;
        let root = pool.root_group();
        let cache = Cache::with_root(&pool, root.clone());
        let service = match self.threads {
            Threads::Service => Some(Service::start(cache.clone()).map_err(system)?),
            Threads::None => None,
        };
        tell!(debug, limit, "memory created");
        Ok(Memory(Arc::new(MemoryInner {
            pool,
            cache,
            root,
            limit,
            service,
            files: OpenFiles::new(),
        })))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_be_are_refused_in_one_line() {
        let error = Memory::with_limit(32 * KIB).unwrap_err();
        assert_eq!(
            error.to_string(),
            "limit 32 KiB is below the minimum of 256 KiB"
        );
        let error = Memory::with_limit(1u64 << 20 << 30).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("limit 1048576.0 GiB is above the "),
            "{error}"
        );
        assert!(matches!(error, MemoryError::AboveMachine { limit, .. } if limit == 1 << 20 << 30));
    }

    fn works(options: MemoryBuilder) {
        let memory = options.threads(Threads::None).build().unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(crate::Map::anonymous(8 * 4096)).unwrap();
        let mut a = space.accessor().unwrap();
        for page in 0..8 {
            a.store(at + page * 4096, page).unwrap();
        }
        memory.tick();
        drop((a, space));
        memory.validate();
    }

    #[test]
    fn the_smallest_memory_works() {
        works(Memory::builder(MINIMUM_LIMIT));
    }

    #[test]
    fn the_smallest_memory_that_samples_has_as_much_besides() {
        let sampling = |limit: u64| Memory::builder(limit).sample_misses();
        let error = sampling(MINIMUM_LIMIT).build().map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            "limit 256 KiB is below the minimum of 664 KiB"
        );
        works(sampling(664 * KIB));
    }
}
