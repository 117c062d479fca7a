//! Choices for a memory, and the refusals.

use std::collections::HashMap;
use std::io;

use thiserror::Error;

use super::service::Service;
use super::{Limit, Memory, MemoryInner};
use crate::cache::Cache;
use crate::frame::{ArenaError, ArenaOptions, LOOKASIDE_BYTES_PER_FRAME};
use crate::reclaim::{EvictionPolicy, Pool, PoolOptions, SAMPLER_BYTES, SHADOW_BYTES_PER_FRAME};
use crate::sync::{Arc, Mutex, Rank};
use crate::sys;
use crate::units::{ByteSize, KIB, PAGE_SIZE};

/// The smallest limit of a memory: 256 KiB. With [`MemoryOptions::sample_misses`] it is larger.
pub const MINIMUM_LIMIT: u64 = 256 * KIB;

/// What every memory takes besides its frames: the wait table, counters, lists.
const FIXED: u64 = 64 * KIB;
/// Bytes of metadata a frame.
const METADATA: u64 = 64;

/// Who does the work that nobody asked for: writing old blocks back, evicting ahead of need, waking
/// futures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Threads {
    /// One thread of the memory's own.
    #[default]
    Service,
    /// The caller, in [`Memory::tick`]: everything runs in the program's own threads, and
    /// deterministically in one.
    None,
}

/// Choices for a [`Memory`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    limit: Limit,
    threads: Threads,
    policy: EvictionPolicy,
    sampling: bool,
}

/// Why a memory could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The limit leaves no room to work in.
    #[error("limit {} is below the minimum of {}", Short(*limit), Short(*minimum))]
    TooSmall {
        /// The limit asked for, in bytes.
        limit: u64,
        /// The least with what was chosen, in bytes.
        minimum: u64,
    },
    /// The limit is more than the machine, or the container, has.
    #[error("limit {} is above the {} that this machine has", ByteSize(*limit), ByteSize(*machine))]
    AboveMachine {
        /// The limit asked for, in bytes.
        limit: u64,
        /// What there is, in bytes.
        machine: u64,
    },
    /// The limit is a share that is no share, or of a machine that does not say how much memory it
    /// has.
    #[error("a limit of {fraction} of the machine: {reason}")]
    Fraction {
        /// The share asked for.
        fraction: f64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The system refused address space or a thread.
    #[error("no memory of {}: {source}", ByteSize(*limit))]
    System {
        /// The limit asked for, in bytes.
        limit: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl MemoryError {
    /// The nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            MemoryError::TooSmall { .. } | MemoryError::Fraction { .. } => {
                io::ErrorKind::InvalidInput
            }
            MemoryError::AboveMachine { .. } => io::ErrorKind::OutOfMemory,
            MemoryError::System { source, .. } => source.kind(),
        }
    }
}

impl From<MemoryError> for io::Error {
    fn from(error: MemoryError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// A size without a needless fraction: `32 KiB`.
struct Short(u64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(KIB) => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

impl MemoryOptions {
    /// A memory of `limit` (bytes, or a [`Limit`]), with one service thread.
    pub fn new(limit: impl Into<Limit>) -> MemoryOptions {
        MemoryOptions {
            limit: limit.into(),
            threads: Threads::Service,
            policy: EvictionPolicy::default(),
            sampling: false,
        }
    }

    /// What is evicted first.
    pub fn policy(mut self, policy: EvictionPolicy) -> MemoryOptions {
        self.policy = policy;
        self
    }

    /// Samples uses of file blocks, for [`Memory::miss_curve`]. Takes 408 KiB of the limit, which
    /// has to be as much larger than [`MINIMUM_LIMIT`], and next to no time: for a four hundredth
    /// of it calls count their uses, and each access to a sampled page through a mapping is a page
    /// fault.
    pub fn sample_misses(mut self) -> MemoryOptions {
        self.sampling = true;
        self
    }

    /// Who does the background work.
    pub fn threads(mut self, threads: Threads) -> MemoryOptions {
        self.threads = threads;
        self
    }

    /// Makes the memory. Address space is reserved at once; pages are taken from the system as they
    /// are used.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn build(self) -> Result<Memory, MemoryError> {
        let limit = self.limit.bytes(sys::memory::memory_of_machine())?;
        let sample = if self.sampling { SAMPLER_BYTES } else { 0 };
        let minimum = MINIMUM_LIMIT + sample;
        if limit < minimum {
            return Err(MemoryError::TooSmall { limit, minimum });
        }
        match sys::memory::memory_of_machine() {
            Some(machine) if limit > machine => {
                return Err(MemoryError::AboveMachine { limit, machine });
            }
            _ => {}
        }
        let system = |source| MemoryError::System { limit, source };
        // One frame is the zero frame, which is not counted among the usable ones.
        let frames = (limit - FIXED)
            / (PAGE_SIZE as u64 + METADATA + LOOKASIDE_BYTES_PER_FRAME + SHADOW_BYTES_PER_FRAME)
            - 1;
        let frames =
            u32::try_from(frames).map_err(|_| system(io::ErrorKind::OutOfMemory.into()))?;
        let options = PoolOptions {
            arena: ArenaOptions::new(frames),
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
        let files = Mutex::ranked(Rank::Registry, HashMap::new());
        Ok(Memory(Arc::new(MemoryInner {
            pool,
            cache,
            root,
            limit,
            service,
            files,
        })))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::GIB;

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
        let _ = GIB;
    }

    fn works(options: MemoryOptions) {
        let memory = options.threads(Threads::None).build().unwrap();
        let space = memory.space().unwrap();
        let at = space.map(crate::Map::anonymous(8 * 4096)).unwrap();
        let mut a = space.accessor();
        for page in 0..8 {
            a.store(at + page * 4096, page).unwrap();
        }
        memory.tick();
        drop((a, space));
        memory.validate();
    }

    #[test]
    fn the_smallest_memory_works() {
        works(MemoryOptions::new(MINIMUM_LIMIT));
    }

    #[test]
    fn the_smallest_memory_that_samples_has_as_much_besides() {
        let sampling = |limit: u64| MemoryOptions::new(limit).sample_misses();
        let error = sampling(MINIMUM_LIMIT).build().map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            "limit 256 KiB is below the minimum of 664 KiB"
        );
        works(sampling(664 * KIB));
    }
}
