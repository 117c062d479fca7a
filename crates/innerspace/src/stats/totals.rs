//! The list of events and gauges, and the struct made from it.

use std::fmt;

use crate::units::Grouped;

/// Declares [`Event`], [`Totals`] and a walk over all fields, from one list. `Counters` counts the
/// events. The caller fills in the gauges, and the sums that are counted elsewhere.
macro_rules! counters {
    (
        events { $($event:ident $field:ident $help:literal)* }
        elsewhere { $($sum:ident $sum_help:literal)* }
        gauges { $($gauge:ident $gauge_help:literal)* }
    ) => {
        /// A kind of event that is counted. [`Totals`] has a field of the same name for each.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub(crate) enum Event {
            $(#[doc = $help] $event,)*
        }

        /// The number of kinds of events.
        pub(super) const EVENTS: usize = [$(Event::$event),*].len();

        /// All counts of a memory since it was created, and the present values of its gauges.
        /// `Display` prints a line for each, as in `/proc/vmstat`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Totals {
            $(#[doc = concat!($help, ".")] pub $field: u64,)*
            $(#[doc = concat!($sum_help, ".")] pub $sum: u64,)*
            $(#[doc = concat!($gauge_help, ".")] pub $gauge: u64,)*
        }

        impl Totals {
            /// Creates totals from the events' sums, in the order of [`Event`]. All other fields
            /// are 0.
            pub(super) fn from_sums(sums: [u64; EVENTS]) -> Totals {
                let mut totals = Totals::default();
                $(totals.$field = sums[Event::$event as usize];)*
                totals
            }

            /// Calls `each` with the name, description, kind and value of every field, in order.
            fn walk<E>(
                &self,
                mut each: impl FnMut(&'static str, &'static str, Kind, u64) -> Result<(), E>,
            ) -> Result<(), E> {
                $(each(stringify!($field), $help, Kind::Counter, self.$field)?;)*
                $(each(stringify!($sum), $sum_help, Kind::Counter, self.$sum)?;)*
                $(each(stringify!($gauge), $gauge_help, Kind::Gauge, self.$gauge)?;)*
                Ok(())
            }
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

counters! {
    events {
        PgAlloc pgalloc "Pages allocated"
        PgFree pgfree "Pages freed"
        PgFault pgfault "Faults handled"
        PgMajFault pgmajfault "Faults that read from a store"
        PgMapAround pgmap_around "Cached pages mapped around a page on which a load faulted"
        ZeroMap zero_map "Read faults answered with the zero frame"
        Cow cow "Pages copied by a write to a shared page"
        CowReuse cow_reuse "Copy-on-write faults on a page that was no longer shared: made writable in place"
        Fork fork "Spaces forked"
        Freeze freeze "Snapshots taken"
        RestoreInPlace restore_in_place "Restores in place: the changed pages were copied back"
        RestoreDrop restore_drop "Restores that dropped all pages changed since the snapshot"
        RestorePages restore_pages "Pages copied back or cleared by restores in place"
        TableUnshare table_unshare "Page-table nodes copied because a fork shared them"
        PgIn pgin "Pages read from stores"
        PgOut pgout "Pages written to stores"
        PgReadAhead pgreadahead "Pages read ahead of use"
        PgReadAheadUnused pgreadahead_unused "Pages read ahead that were evicted unused"
        PgDirtied pgdirtied "Pages that became dirty"
        PgCleaned pgcleaned "Pages that became clean: they were written, or their range was removed"
        PgWriteback pgwriteback "Pages handed to writeback by reclaim or the background step"
        WriteError write_error "Failed writes of blocks to their stores"
        ErrorUntaken error_untaken "Write errors that no handle could report, and that were dropped from the full list of Memory::take_errors"
        ErrorUntold error_untold "Write errors that no handle could report, and that were dropped before the error hook was called, because too many others followed"
        ViewMove view_move "Pages moved because they were viewed when they were written to, or to make a view of several blocks consecutive"
        ViewCopy view_copy "Pages copied for views over several blocks"
        PgActivate pgactivate "Pages moved to the active list"
        PgDeactivate pgdeactivate "Pages moved back to the inactive list"
        PgRefill pgrefill "Pages of active lists looked at by reclaim"
        PgScan pgscan "Pages of inactive lists looked at by reclaim"
        PgSteal pgsteal "Pages evicted"
        PgBusy pgbusy "Pages that reclaim could not evict: locked, viewed, pinned or just used"
        Refault refault "Pages read or written again after they had been evicted"
        RefaultActivate refault_activate "Pages that came back so soon after their eviction that they became active immediately"
        DirectReclaim direct_reclaim "Requests that had to reclaim before they got memory"
        ChargeRefused charge_refused "Charges that a group refused at first"
        LimitError limit_error "Requests that failed for lack of memory"
        WouldBlock would_block "Requests that failed because they may not wait"
        ReserveUse reserve_use "Pages taken from the reserve"
        GateWait gate_wait "Waits of accesses for the end of a change of their space"
        MailboxPost mailbox_post "Translations revoked by a post to an accessor"
        MailboxFlush mailbox_flush "Accessors that dropped all translations at once"
    }
    elsewhere {
        grace_period "Grace periods: waits until every open section was left"
        lock_wait "Uses of the wait table by page locks, to wait or to wake a waiter"
    }
    gauges {
        frames "Pages of the arena that can be given out"
        frames_free "Pages free now"
        frames_reserve "Pages that only writeback may take, as configured"
        usage "Pages charged, for any use"
        active "Pages on active lists"
        inactive "Pages on inactive lists"
        unevictable "Pages on lists that reclaim passes over"
        dirty "Dirty pages"
        retired "Frames and other objects that are freed after a grace period"
        groups "Groups"
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.walk(|name, _, _, value| writeln!(f, "{name:<18}{:>16}", Grouped(value).to_string()))
    }
}

impl Totals {
    /// Returns the totals in the Prometheus text format, version 0.0.4: `innerspace_NAME_total` for
    /// counters, `innerspace_NAME` for gauges.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let written = self.walk(|name, help, kind, value| {
            let (suffix, kind) = match kind {
                Kind::Counter => ("_total", "counter"),
                Kind::Gauge => ("", "gauge"),
            };
            let name = format!("innerspace_{name}{suffix}");
            fmt::Write::write_fmt(
                &mut text,
                format_args!("# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n"),
            )
        });
        debug_assert!(written.is_ok(), "a string takes all text");
        text
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn totals_print_for_people_and_for_prometheus() {
        let totals = Totals {
            pgfault: 1_234_567,
            frames_free: 12,
            ..Totals::default()
        };
        let text = totals.to_string();
        assert!(
            text.contains("\npgfault                  1,234,567\n"),
            "{text}"
        );
        let text = totals.prometheus();
        assert!(text.contains(
            "# HELP innerspace_pgfault_total Faults handled.\n\
             # TYPE innerspace_pgfault_total counter\n\
             innerspace_pgfault_total 1234567\n"
        ));
        assert!(text.contains("# TYPE innerspace_frames_free gauge\ninnerspace_frames_free 12\n"));
        assert_eq!(text.lines().count(), 3 * (EVENTS + 2 + 10));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn totals_serialize_by_name() {
        let totals = Totals {
            cow: 7,
            ..Totals::default()
        };
        let value = serde_json::to_value(totals).unwrap();
        assert_eq!(value["cow"], 7);
        assert_eq!(value["frames_free"], 0);
    }
}
