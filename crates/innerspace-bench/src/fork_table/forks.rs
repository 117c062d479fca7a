//! The cost of the fork itself.

use std::error::Error;

use super::Resident;
use crate::harness::{Budget, Contender, Plan, Row, Sample, Unit, thread_nanoseconds, thread_time};
use crate::host::{Child, PAGE, Region};
use crate::translation::HostPages;

/// Whether the drops count, when a space forks `count` times and drops each child before the next
/// fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timed {
    Fork,
    ForkAndDrop,
}

fn repeat<C>(
    count: u64,
    timed: Timed,
    mut fork: impl FnMut() -> Result<C, Box<dyn Error>>,
) -> crate::harness::Outcome {
    let mut total = 0;
    for _ in 0..count {
        let start = thread_nanoseconds();
        let child = fork()?;
        let forked = thread_nanoseconds();
        drop(child);
        total += match timed {
            Timed::Fork => forked - start,
            Timed::ForkAndDrop => thread_nanoseconds() - start,
        };
    }
    Ok(Sample {
        operations: count,
        total,
    })
}

/// Returns how many times the kernel forks: seldom enough with many pages, but at least a few
/// times.
fn kernel_count(plan: Plan, resident: &Resident) -> u64 {
    plan.operations(400_000 / resident.pages.max(1))
        .clamp(1, 200)
}

fn contenders<'a>(plan: Plan, resident: &'a Resident, timed: Timed) -> Vec<Contender<'a>> {
    let kernel = kernel_count(plan, resident);
    let ours = plan.operations(2_000);
    vec![
        Contender::new("innerspace", move || {
            repeat(ours, timed, || Ok(resident.space.fork()?))
        }),
        Contender::new("fork(2)", move || {
            repeat(kernel, timed, || Ok(Child::ends_at_once()?))
        }),
    ]
}

/// Measures a fork, whose child is dropped outside the figures, compared with fork(2) and with a
/// copy of all bytes to existing memory.
pub(super) fn fork<'a>(plan: Plan, resident: &'a Resident) -> Result<Row<'a>, Box<dyn Error>> {
    let mut copy = Region::anonymous(resident.bytes() as usize, HostPages::Base)?;
    copy.keep_from_children();
    copy.write_every(PAGE, 1);
    let count = kernel_count(plan, resident);
    let mut contenders = contenders(plan, resident, Timed::Fork);
    contenders.push(Contender::new("full copy", move || {
        let region = resident.region.borrow();
        thread_time(count, || {
            for _ in 0..count {
                copy.bytes_mut().copy_from_slice(region.bytes());
                std::hint::black_box(copy.bytes());
            }
            Ok(())
        })
    }));
    Ok(Row {
        name: format!("fork, {} resident pages", resident.pages),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "fork(2)",
        budget: Budget::Absolute(50_000.0),
    })
}

/// Measures a fork and its end. For the kernel, the end is the wait for the child, whose own CPU
/// time is not in the figure.
pub(super) fn fork_and_drop<'a>(plan: Plan, resident: &'a Resident) -> Row<'a> {
    Row {
        name: format!("fork and drop, {} resident pages", resident.pages),
        unit: Unit::Nanoseconds,
        contenders: contenders(plan, resident, Timed::ForkAndDrop),
        subject: "innerspace",
        baseline: "fork(2)",
        budget: Budget::None,
    }
}
