//! Groups.

use std::time::Duration;

use super::{Arguments, Entry, calls};
use crate::held::Held;

/// Of A's own, or below it.
fn below(h: &Held, x: &mut Arguments) -> Result<innerspace::Group, Box<dyn std::error::Error>> {
    let group = h.group.create_child_unlimited(&x.next().to_string())?;
    h.keep(group.clone());
    Ok(group)
}

calls! {
    Group {
        create_child: |h, x| {
            let name = x.one_of(&["", "/", "\n", "a", "..", "b"]);
            let name = name.repeat(x.below(1 << 12) as usize + 1);
            h.keep(h.group.create_child(&name, x.number())?)
        };
        create_child_unlimited: |h, x| below(h, x)?;
        name: |h, _| h.group.name().len();
        path: |h, _| h.group.path().len();
        set_max: |h, x| below(h, x)?.set_max(x.number())?;
        set_high: |h, x| below(h, x)?.set_high(Some(x.number()))?;
        set_low: |h, x| below(h, x)?.set_low(Some(x.number()))?;
        set_min: |h, x| below(h, x)?.set_min(Some(x.number()))?;
        reclaim: |h, x| h.group.reclaim(x.number());
        usage: |h, _| h.group.usage();
        take_peak: |h, _| h.group.take_peak();
        events: |h, _| h.group.events();
        pressure: |h, _| h.group.pressure();
        stats: |h, _| h.group.stats().to_string();
        watch: |h, _| h.keep(h.group.watch()?);
        on_events: |h, x| {
            let callee = h.callee(x.conduct());
            h.keep(h.group.on_events(move |_| callee.call())?)
        };
    }
    GroupWatch {
        events: |h, _| h.group.watch()?.events();
        wait_timeout: |h, _| {
            let watch = h.group.watch()?;
            watch.wait_timeout(&watch.events(), Duration::from_millis(1))
        };
    }
}
