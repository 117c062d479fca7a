//! The errors of groups, and their texts: which group refused, how full it was, and what holds its
//! memory.

use std::{fmt, io};

use thiserror::Error;

use super::GroupId;
use crate::sys::process::OtherProcess;
use crate::texts::into_io_error;
use crate::units::{ByteSize, GIB, Grouped, KIB, MIB, PAGE_SIZE, PageCount};

/// An attempt to give back more pages to a group than are charged to it: an accounting bug in the
/// caller (M14). Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("group {}: {wanted} pages given back, but only {charged} are charged", group.0)]
pub(crate) struct Underflow {
    pub(crate) group: GroupId,
    pub(crate) charged: u64,
    pub(crate) wanted: u64,
}

/// The pages of a group and of the groups below it that cannot be evicted, by what holds them. They
/// are counted when a request has failed.
///
/// Each page counts in one field only: the first that applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holders {
    /// The number of live views of the pages in `viewed`.
    pub views: u64,
    /// Pages kept by views.
    pub viewed: PageCount,
    /// Dirty cached pages whose last write to their store failed.
    pub failing: PageCount,
    /// Other cached pages that must be written before they can be evicted, or are being written.
    pub dirty: PageCount,
    /// Other cached pages that are locked, pinned or otherwise in use.
    pub pinned: PageCount,
    /// Other cached pages that are mapped: just used, kept in memory by a locked mapping, or not
    /// reached by reclaim.
    pub mapped: PageCount,
    /// Page-table nodes and index nodes.
    pub tables: PageCount,
    /// Everything else: anonymous memory, accessors, memory on the heap, pages being set up.
    pub anonymous: PageCount,
    /// Whether the group was too large to count in full, so that the figures are lower bounds.
    pub partial: bool,
}

/// The reason why a request for memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LimitReason {
    /// Reclaim ran and freed too little.
    NothingEvictable,
    /// The caller asked not to wait, so reclaim did not run.
    WouldBlock,
    /// The group is over its `high`, where requests must wait, and the caller asked not to wait.
    OverHigh,
    /// The group had room, but pages in use, of any group, left no run of addresses for the block
    /// or view, and eviction did not make one.
    Fragmented,
    /// The room that the `min` of other groups leaves is full of the group's unwritten data, and
    /// none of this data can be written now.
    Unwritten,
    /// The calling process is a child of fork(2), and the memory belongs to the process that
    /// created it. Of the [`LimitDetails`], only `requested` and `reason` are filled in.
    OtherProcess {
        /// The process ID of the process that created the memory.
        pid: u32,
    },
}

/// A group refused a request for memory, usually because it is full. No memory was given.
#[derive(Clone, PartialEq, Eq, Error)]
pub struct LimitError(Box<LimitDetails>);

into_io_error!(LimitError);

/// The details of a [`LimitError`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitDetails {
    /// The path of the group that refused, which is the charged one or one above it: the names from
    /// the root to the group, joined by `/`, as in [`Group::path`](super::Group::path).
    pub group: String,
    /// The number of the group that refused, for the layers above.
    pub(crate) id: GroupId,
    /// The limit of the group that refused, at that time. If the group has no limit of its own, its
    /// usage.
    pub max: PageCount,
    /// Pages charged to the group that refused and to the groups below it.
    pub usage: PageCount,
    /// The pages requested; 0 if a limit was lowered.
    pub requested: PageCount,
    /// The reason for the refusal.
    pub reason: LimitReason,
    /// The pages that cannot be evicted, by what holds them. All zero with
    /// [`LimitReason::WouldBlock`], [`LimitReason::OverHigh`] and [`LimitReason::OtherProcess`],
    /// where nothing is counted.
    pub holders: Holders,
}

impl LimitError {
    pub(crate) fn new(details: LimitDetails) -> LimitError {
        LimitError(Box::new(details))
    }

    /// Creates the error for a child of fork(2).
    #[cold]
    pub(crate) fn other_process(pid: u32, requested: PageCount) -> LimitError {
        LimitError::new(LimitDetails {
            group: String::new(),
            id: GroupId::ROOT,
            max: PageCount(0),
            usage: PageCount(0),
            requested,
            reason: LimitReason::OtherProcess { pid },
            holders: Holders::default(),
        })
    }

    /// Returns the details: group, limit, usage, holders.
    pub fn details(&self) -> &LimitDetails {
        &self.0
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self.0.reason {
            LimitReason::WouldBlock | LimitReason::OverHigh => io::ErrorKind::WouldBlock,
            LimitReason::OtherProcess { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::OutOfMemory,
        }
    }

    /// Returns whether the request was one that must not wait, so that waiting might have helped.
    pub fn would_block(&self) -> bool {
        matches!(
            self.0.reason,
            LimitReason::WouldBlock | LimitReason::OverHigh
        )
    }
}

impl fmt::Debug for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the unit that suits `bytes`: its size and its name.
fn unit_for(bytes: u64) -> (u64, &'static str) {
    match bytes {
        n if n >= GIB => (GIB, "GiB"),
        n if n >= MIB => (MIB, "MiB"),
        _ => (KIB, "KiB"),
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitDetails {
            group,
            max,
            usage,
            requested,
            reason,
            holders,
            ..
        } = &*self.0;
        if let LimitReason::OtherProcess { pid } = reason {
            return write!(f, "{}", OtherProcess(*pid));
        }
        if *reason == LimitReason::Unwritten {
            return write!(
                f,
                "group {group} may have no more unwritten data: the rest of the memory is the \
                 `min` of other groups. {}",
                holders.advice()
            );
        }
        let (unit, unit_name) = unit_for(max.bytes());
        let digits =
            |pages: PageCount, digits| format!("{:.*}", digits, pages.bytes() as f64 / unit as f64);
        let amount = |pages: PageCount| digits(pages, 1);
        // Prints as many digits as it takes to make usage and limit differ. Seven digits show a
        // page in any unit.
        let exact = |shown: &usize| digits(*usage, *shown) != digits(*max, *shown);
        let shown = match usage == max {
            true => 1,
            false => (1..7).find(exact).unwrap_or(7),
        };
        let (usage_text, max_text) = (digits(*usage, shown), digits(*max, shown));
        let wanted = ByteSize(requested.bytes());
        let state = match reason {
            LimitReason::OverHigh => "is over its high mark".to_string(),
            LimitReason::Fragmented => format!("has no {wanted} in a row"),
            // The group has some room, but not for a whole block.
            _ if requested.0 > 1 && usage < max => format!("is too full for {wanted} more"),
            _ => "is full".to_string(),
        };
        write!(
            f,
            "group {group} {state}: {usage_text} of {max_text} {unit_name}"
        )?;
        let at_least = if holders.partial { "at least " } else { "" };
        let mut lead = ", of which ";
        for (pages, what, _) in holders.rows() {
            // A row under a hundredth of the usage, or one that would print as 0.0, explains
            // nothing.
            if pages.0 * 100 >= usage.0 && pages.bytes() * 20 >= unit {
                write!(f, "{lead}{at_least}{} {what}", amount(pages))?;
                lead = ", ";
            }
        }
        match reason {
            LimitReason::NothingEvictable => {
                write!(f, "; nothing can be evicted. {}", holders.advice())
            }
            LimitReason::WouldBlock | LimitReason::OverHigh => {
                f.write_str("; the request may not wait")
            }
            LimitReason::Fragmented => f.write_str(
                "; pages in use lie everywhere between the free ones. Drop views, pins or spaces, \
                 or make the memory larger",
            ),
            LimitReason::OtherProcess { .. } | LimitReason::Unwritten => Ok(()),
        }
    }
}

impl Holders {
    /// Returns a row for each kind of holder: its pages, their description, and advice for freeing
    /// them.
    fn rows(&self) -> [(PageCount, String, &'static str); 7] {
        let views = match self.views {
            1 => "pinned by 1 view".to_string(),
            n => format!("pinned by {} views", Grouped(n)),
        };
        let row = |pages, what: &str, advice| (pages, what.to_string(), advice);
        [
            row(self.viewed, &views, "Drop views"),
            row(
                self.failing,
                "dirty and failing to be written",
                "See the files' write errors: sync again or discard them,",
            ),
            row(self.dirty, "dirty", "Sync or discard the dirty files,"),
            row(
                self.pinned,
                "locked or in use",
                "Let running operations end",
            ),
            row(self.mapped, "mapped", "Unmap files"),
            row(
                self.tables,
                "page tables and index nodes",
                "Drop spaces and files",
            ),
            row(self.anonymous, "anonymous", "Unmap anonymous memory"),
        ]
    }

    /// Returns advice to the caller, chosen by the kind of holder that has the most pages (the
    /// first if several have the most).
    fn advice(&self) -> String {
        let rows = self.rows().into_iter().rev();
        match rows.max_by_key(|(pages, ..)| *pages) {
            Some((PageCount(1..), _, advice)) => format!("{advice} or raise the limit"),
            _ => "Raise the limit".to_string(),
        }
    }
}

/// A group could not be created or changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The limit is so small that even a single access across two pages might never succeed.
    #[error(
        "group {group}: limit {} is below the minimum of {} (8 pages and 2 for each of {accessors} accessor(s))",
        Exact(*max), ByteSize(*minimum)
    )]
    TooSmall {
        /// The path of the group, which may be one that was to be created: the names from the root
        /// to it, joined by `/`.
        group: String,
        /// The limit requested, in bytes.
        max: u64,
        /// The smallest limit that the group may have now, in bytes.
        minimum: u64,
        /// The number of accessors that the minimum allows for.
        accessors: u32,
    },
    /// The limit of a group that pays for a file, or of a group above it, has no room for a block
    /// of the file: every read would fail. The file is open already, or was to be opened.
    #[error(
        "group {group}: limit {} has no room for a block of {}; it has to be {} at least",
        Exact(*max), ByteSize(*block), ByteSize(*minimum)
    )]
    TooSmallForBlocks {
        /// The group, with the names above it.
        group: String,
        /// The group's limit, or the one requested, in bytes.
        max: u64,
        /// The size of the block in bytes.
        block: u64,
        /// The smallest limit for such blocks, in bytes.
        minimum: u64,
    },
    /// The protected minimum of a group is above its limit.
    #[error("group {group}: a minimum of {} does not fit in its limit of {}", ByteSize(*min), ByteSize(*max))]
    MinAboveMax {
        /// The path of the group: the names from the root to it, joined by `/`.
        group: String,
        /// The minimum requested, in bytes.
        min: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The name is not 1 to 128 bytes long, or has a `/` or a control character.
    #[error("group name {name:?} is not usable: 1 to 128 bytes, no '/', no control characters")]
    BadName {
        /// The name given.
        name: String,
    },
    /// The parent already has a group of this name.
    #[error("group {parent} already has a group {name}")]
    Exists {
        /// The parent, with the names above it.
        parent: String,
        /// The name that is taken.
        name: String,
    },
    /// The group would be more than [`MAX_DEPTH`](super::MAX_DEPTH) groups deep.
    #[error("group {group}: groups nest at most {} deep", super::MAX_DEPTH)]
    TooDeep {
        /// The group that was to be created, with the names above it.
        group: String,
    },
    /// All 65,536 group numbers are in use (deleted groups count until their last page is gone).
    #[error("group {group}: all 65,536 group numbers are in use")]
    TooMany {
        /// The group that was to be created, with the names above it.
        group: String,
    },
    /// A group already has [`MAX_GROUPS_BELOW`](super::MAX_GROUPS_BELOW) groups below it, at any
    /// depth (deleted groups count until their last page is gone).
    #[error("group {group}: it has {} groups below it, the most that a group may have", Grouped(super::MAX_GROUPS_BELOW as u64))]
    TooManyBelow {
        /// The group that can have no more groups below it, with the names above it.
        group: String,
    },
    /// The limit was lowered and stays lowered, but usage could not be brought under it. Or the
    /// group has no memory left for a new group below it.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl GroupError {
    /// Returns whether the cause is a full group, so that waiting or freeing memory may help.
    pub fn is_limit(&self) -> bool {
        matches!(self, GroupError::Limit(_))
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            GroupError::TooSmall { .. }
            | GroupError::TooSmallForBlocks { .. }
            | GroupError::MinAboveMax { .. }
            | GroupError::BadName { .. }
            | GroupError::TooDeep { .. } => ErrorKind::InvalidInput,
            GroupError::Exists { .. } => ErrorKind::AlreadyExists,
            GroupError::TooMany { .. } | GroupError::TooManyBelow { .. } => ErrorKind::ResourceBusy,
            GroupError::Limit(limit) => limit.kind(),
        }
    }

    /// Replaces the limit in [`GroupError::TooSmall`] by the one that the user gave, in bytes. The
    /// tree knows the limit only in whole pages.
    pub(super) fn for_limit(mut self, bytes: u64) -> GroupError {
        if let GroupError::TooSmall { max, .. } = &mut self {
            *max = bytes;
        }
        self
    }
}

into_io_error!(GroupError);

/// A size that is printed in bytes unless it is a multiple of 1 KiB: a limit just below the minimum
/// must not read like the minimum.
struct Exact(u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(KIB) => ByteSize(bytes).fmt(f),
            bytes => write!(f, "{} bytes", Grouped(bytes)),
        }
    }
}

/// Returns the smallest limit of a group with this many accessors: 8 pages, and 2 for each accessor
/// (at least one is counted).
pub(crate) fn minimum_pages(accessors: u32) -> PageCount {
    PageCount(8 + 2 * u64::from(accessors.max(1)))
}

const _: () = assert!(
    PAGE_SIZE == 4096,
    "the texts of this module name pages of 4 KiB"
);

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Holders {
        /// Returns the sum of all pages counted here.
        pub(crate) fn counted(&self) -> PageCount {
            PageCount(self.rows().iter().map(|(pages, ..)| pages.0).sum())
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
