//! Accessors and sessions, with every access in both forms.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::{Arguments, Entry};
use crate::held::Held;

/// Defines the table from accesses of accessors and sessions, from those of accessors alone, and
/// from calls that are not accesses.
macro_rules! accesses {
    ($held:ident, $with:ident:
        both { $($both:ident, $try_both:ident $(::<$T:ty>)? ($($argument:expr),*);)+ }
        one { $($one:ident, $try_one:ident ($($other:expr),*);)+ }
        else { $($name:literal: $call:expr;)+ }
    ) => {
        pub(super) const CALLS: &[Entry] = &[
            $(
                accesses!(@one $held, $with, $both $(::<$T>)? ($($argument),*)),
                accesses!(@one $held, $with, $try_both $(::<$T>)? ($($argument),*)),
                accesses!(@session $held, $with, $both $(::<$T>)? ($($argument),*)),
                accesses!(@session $held, $with, $try_both $(::<$T>)? ($($argument),*)),
            )+
            $(
                accesses!(@one $held, $with, $one ($($other),*)),
                accesses!(@one $held, $with, $try_one ($($other),*)),
            )+
            $(Entry {
                name: $name,
                call: |$held: &Held, $with: &mut Arguments| {
                    let _ = $call;
                    Ok(())
                },
            },)+
        ];
    };
    (@one $held:ident, $with:ident, $name:ident $(::<$T:ty>)? ($($argument:expr),*)) => {
        Entry {
            name: concat!("Accessor::", stringify!($name)),
            call: |$held: &Held, $with: &mut Arguments| {
                let mut accessor = $held.accessor($with)?;
                let _ = accessor.$name$(::<$T>)?($($argument),*)?;
                Ok(())
            },
        }
    };
    (@session $held:ident, $with:ident, $name:ident $(::<$T:ty>)? ($($argument:expr),*)) => {
        Entry {
            name: concat!("Session::", stringify!($name)),
            call: |$held: &Held, $with: &mut Arguments| {
                $held.accessor($with)?.session(|session| {
                    let _ = session.$name$(::<$T>)?($($argument),*)?;
                    Ok(())
                })
            },
        }
    };
}

accesses! { h, x:
    both {
        load, try_load::<u64>(h.at(x));
        fetch, try_fetch::<u32>(h.at(x));
        store, try_store(h.at(x), 7_u64);
        read, try_read(h.at(x), &mut x.buffer());
        write, try_write(h.at(x), &x.buffer());
        fill, try_fill(h.at(x), 1, x.len());
        copy_within, try_copy_within(h.at(x), x.len(), h.at(x));
        compare, try_compare(h.at(x), &x.buffer());
        load_atomic, try_load_atomic::<u64>(h.at(x), x.one_of(&[Relaxed, Acquire, SeqCst]));
        store_atomic, try_store_atomic(h.at(x), 1_u16, x.one_of(&[Relaxed, Release, SeqCst]));
        compare_exchange, try_compare_exchange(h.at(x), 0_u64, 1, AcqRel, Acquire);
        swap, try_swap(h.at(x), 1_u8, SeqCst);
        fetch_add, try_fetch_add(h.at(x), 1_u32, SeqCst);
        fetch_sub, try_fetch_sub(h.at(x), 1_u32, AcqRel);
        fetch_and, try_fetch_and(h.at(x), 1_u64, Release);
        fetch_or, try_fetch_or(h.at(x), 1_u64, Acquire);
        fetch_xor, try_fetch_xor(h.at(x), 1_u64, Relaxed);
        fetch_max, try_fetch_max(h.at(x), 1_u64, SeqCst);
        fetch_min, try_fetch_min(h.at(x), 1_u64, SeqCst);
        load_value, try_load_value::<[u32; 5]>(h.at(x));
        store_value, try_store_value(h.at(x), &[1_u32; 5]);
        read_slice, try_read_slice(h.at(x), &mut [0_u16; 99]);
        write_slice, try_write_slice(h.at(x), &[1_u16; 99]);
    }
    one {
        gather, try_gather(&mut [(h.at(x), &mut [0; 8][..]), (h.at(x), &mut [0; 99][..])]);
        copy_from, try_copy_from(h.at(x), &mut h.space()?.accessor()?, h.at(x), x.len());
    }
    else {
        "Accessor::space": h.keep(h.accessor(x)?.space());
        "Accessor::session": h.accessor(x)?.session(|_| ());
        "Accessor::explain": {
            let mut accessor = h.accessor(x)?;
            let fault = accessor.load::<u8>(h.at(x));
            fault.map_err(|fault| accessor.explain(fault).to_string())
        };
        "Accessor::prefetch": h.accessor(x)?.prefetch(h.at(x), x.number());
        "Accessor::layout": h.accessor(x)?.layout();
        "Accessor::watch_code": {
            let mut accessor = h.accessor(x)?;
            let page = accessor.watch_code(h.at(x))?;
            accessor.store(h.at(x), 1_u8)?;
            h.keep(page)
        };
        "CodePage::is_current": h.accessor(x)?.watch_code(h.at(x))?.is_current();
        "CodePage::generation": h.accessor(x)?.watch_code(h.at(x))?.generation();
        "Session::safepoint": h.accessor(x)?.session(|session| session.safepoint());
        "Explanation::fault": {
            let mut accessor = h.accessor(x)?;
            let fault = accessor.load::<u8>(h.at(x));
            fault.map_err(|fault| accessor.explain(fault).fault().to_string())
        };
        "Explanation::cause": {
            let mut accessor = h.accessor(x)?;
            let fault = accessor.load::<u8>(h.at(x));
            fault.map_err(|fault| match accessor.explain(fault).cause() {
                Some(cause) => cause.to_string(),
                None => fault.to_string(),
            })
        };
    }
}
