//! Measurement: the contenders of one row take turns (A B C A B C ...), so that drift of the
//! machine affects all alike.
//!
//! A benchmark is a small function that does some operations and returns a [`Sample`]: their
//! number, and the CPU time of the calling thread that they took. Medians over the rounds are
//! compared, never single runs.
//!
//! A benchmark itself must ensure that no two contenders of a row use the same random places in the
//! same round. The second would find them in the cache, and the last of thirty contenders once
//! looked faster than the raw pointer. [`Seeds`] returns a new seed each time.

use std::error::Error;
use std::hint::black_box;
use std::mem::MaybeUninit;

use innerspace::{Memory, Threads};

/// A number of operations, and their total cost in the row's unit: CPU time of the calling thread,
/// or bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    pub(crate) total: u64,
}

impl Sample {
    /// Returns the cost of one operation.
    fn each(self) -> f64 {
        self.total as f64 / self.operations as f64
    }
}

/// The result of a benchmark. An error ends the whole run and is printed.
pub(crate) type Outcome = Result<Sample, Box<dyn Error>>;

/// Does `work`, which performs `operations` operations, and measures the CPU time of this thread.
/// The result passes through a black box, so that the compiler cannot leave its computation out.
pub(crate) fn thread_time<T>(
    operations: u64,
    work: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Outcome {
    let start = thread_nanoseconds();
    let result = work()?;
    let total = thread_nanoseconds() - start;
    black_box(result);
    Ok(Sample { operations, total })
}

/// Like [`thread_time`], but measures wall time. For work that waits for devices.
pub(crate) fn wall_time<T>(
    operations: u64,
    work: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Outcome {
    let start = std::time::Instant::now();
    let result = work()?;
    let total = start.elapsed().as_nanos() as u64;
    black_box(result);
    Ok(Sample { operations, total })
}

/// Takes `times` samples and adds them up.
pub(crate) fn summed(times: u64, mut sample: impl FnMut() -> Outcome) -> Outcome {
    let mut sum = Sample {
        operations: 0,
        total: 0,
    };
    for _ in 0..times {
        let one = sample()?;
        sum.operations += one.operations;
        sum.total += one.total;
    }
    Ok(sum)
}

/// Like [`summed`], after the same number of samples that do not count, so that bytes left in the
/// processor's caches by the other contenders of the row have no influence.
pub(crate) fn summed_warm(times: u64, mut sample: impl FnMut() -> Outcome) -> Outcome {
    summed(times, &mut sample)?;
    summed(times, sample)
}

/// Returns the CPU time of the calling thread since it began, in nanoseconds.
pub(crate) fn thread_nanoseconds() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to a timespec of ours; the call writes nothing else.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(status, 0, "this kernel has no thread CPU clock");
    // SAFETY: the call succeeded, so it has filled the struct.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A sequence of seeds, the same in every run. They are never 0, where xorshift would stay.
#[derive(Debug, Default)]
pub(crate) struct Seeds(u64);

impl Seeds {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        // The compiler must not see the seed, or it could compute the offsets beforehand.
        black_box(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

/// Returns the next number of Marsaglia's xorshift64, shifts 13, 7, 17. The state must not be 0.
#[inline(always)]
pub(crate) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns a number below `end`, uniform if `random` is (Lemire's multiplication).
#[inline(always)]
pub(crate) fn below(end: u64, random: u64) -> u64 {
    ((u128::from(random) * u128::from(end)) >> 64) as u64
}

/// Creates a memory without background work, so that all CPU time is that of the measured thread.
pub(crate) fn memory(bytes: u64) -> Result<Memory, Box<dyn Error>> {
    Ok(Memory::builder(bytes).threads(Threads::None).build()?)
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    rounds: u32,
    divisor: u64,
    shrink: u64,
}

impl Plan {
    /// Creates a plan of `rounds` recorded rounds of full length.
    pub(crate) fn full(rounds: u32) -> Plan {
        Plan {
            rounds,
            divisor: 1,
            shrink: 1,
        }
    }

    /// Creates a plan of five short rounds with the full amount of memory.
    pub(crate) fn quick() -> Plan {
        Plan {
            rounds: 5,
            divisor: 8,
            shrink: 1,
        }
    }

    /// Returns the same work in a single round, for rows that take minutes.
    #[cfg(all(target_os = "linux", feature = "engines"))]
    pub(crate) fn short(self) -> Plan {
        Plan { rounds: 1, ..self }
    }

    /// Creates a plan of one round with almost no work, which proves that the benchmarks run.
    #[cfg(test)]
    pub(crate) fn smoke() -> Plan {
        Plan {
            rounds: 1,
            divisor: 1024,
            shrink: 64,
        }
    }

    /// Returns how many pages to use where a real run uses `full`.
    pub(crate) fn pages(&self, full: u64) -> u64 {
        (full / self.shrink).max(1)
    }

    /// Returns how many operations to do where a full run does `full`: at least one.
    pub(crate) fn operations(&self, full: u64) -> u64 {
        (full / self.divisor).max(1)
    }
}

/// The unit of a row's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    Bytes,
    Percent,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Bytes => "bytes",
            Unit::Percent => "%",
        }
    }
}

/// The requirement on the subject of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// The subject's median is at most this many times the baseline's.
    Ratio(f64),
    /// The subject's median differs from the baseline's by at most this part of it.
    Within(f64),
    /// The subject is at least this many times as fast as the baseline.
    Faster(f64),
    /// The subject's median, in the row's unit, is at most this.
    Absolute(f64),
    /// The row only informs.
    None,
}

/// One of the alternatives that a row compares.
pub(crate) struct Contender<'a> {
    name: String,
    run: Box<dyn FnMut() -> Outcome + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut() -> Outcome + 'a) -> Contender<'a> {
        Contender {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// One line of a table before it is measured. `subject` and `baseline` are names of contenders.
pub(crate) struct Row<'a> {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) contenders: Vec<Contender<'a>>,
    pub(crate) subject: &'static str,
    pub(crate) baseline: &'static str,
    pub(crate) budget: Budget,
}

/// A contender's figures over all rounds, in the row's unit per operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) median: f64,
    pub(crate) minimum: f64,
    pub(crate) maximum: f64,
}

/// A row after it was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) contenders: Vec<(String, Figures)>,
    pub(crate) subject: &'static str,
    pub(crate) baseline: &'static str,
    pub(crate) budget: Budget,
}

/// The rows of a table, each measured as it is added if it is selected.
pub(crate) struct Rows<'a> {
    plan: Plan,
    only: &'a str,
    pub(crate) measured: Vec<Measured>,
}

impl<'a> Rows<'a> {
    /// Selects the rows whose names contain `only`.
    pub(crate) fn new(plan: Plan, only: &'a str) -> Rows<'a> {
        Rows {
            plan,
            only,
            measured: Vec::new(),
        }
    }

    /// Whether a row of this name is selected.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(self.only)
    }

    /// Creates and measures a row of this name if it is selected. Otherwise nothing is prepared for
    /// it.
    pub(crate) fn add_with<'r>(
        &mut self,
        name: &str,
        make: impl FnOnce() -> Result<Row<'r>, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        if self.wants(name) {
            let row = make()?;
            assert_eq!(row.name, name, "a row has the name it is asked for by");
            self.measured.push(row.measure(self.plan)?);
        }
        Ok(())
    }

    /// Measures a row if it is selected.
    pub(crate) fn add(&mut self, row: Row<'_>) -> Result<(), Box<dyn Error>> {
        if self.wants(&row.name) {
            self.measured.push(row.measure(self.plan)?);
        }
        Ok(())
    }
}

impl Row<'_> {
    /// Runs every contender once unrecorded, then `plan.rounds` times in turn.
    pub(crate) fn measure(mut self, plan: Plan) -> Result<Measured, Box<dyn Error>> {
        let mut values = vec![Vec::new(); self.contenders.len()];
        for round in 0..=plan.rounds {
            for (contender, values) in self.contenders.iter_mut().zip(&mut values) {
                let sample = (contender.run)()
                    .map_err(|e| format!("{}, {}: {e}", self.name, contender.name))?;
                if round > 0 {
                    values.push(sample.each());
                }
            }
        }
        let contenders = self
            .contenders
            .into_iter()
            .zip(values)
            .map(|(contender, values)| (contender.name, Figures::of(values)))
            .collect();
        let Row {
            name,
            unit,
            subject,
            baseline,
            budget,
            ..
        } = self;
        Ok(Measured {
            name,
            unit,
            contenders,
            subject,
            baseline,
            budget,
        })
    }
}

impl Figures {
    /// Returns the figures of a single value.
    pub(crate) fn once(value: f64) -> Figures {
        Figures::of(vec![value])
    }

    /// Returns the figures of these values.
    ///
    /// # Panics
    /// If there are no values: a plan has at least one round.
    fn of(mut values: Vec<f64>) -> Figures {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Figures {
            median,
            minimum: values[0],
            maximum: values[values.len() - 1],
        }
    }
}

impl Measured {
    pub(crate) fn figures(&self, name: &str) -> Option<Figures> {
        self.contenders
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, figures)| *figures)
    }

    /// Returns the subject's median divided by the baseline's, or `None` if either was not
    /// measured.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.figures(self.subject)?.median / self.figures(self.baseline)?.median)
    }

    /// Whether the subject is within its budget, or `None` if it has no budget.
    pub(crate) fn met(&self) -> Option<bool> {
        match self.budget {
            Budget::Ratio(most) => Some(self.ratio()? <= most),
            Budget::Within(most) => Some((self.ratio()? - 1.0).abs() <= most),
            Budget::Faster(times) => Some(self.ratio()? <= 1.0 / times),
            Budget::Absolute(most) => Some(self.figures(self.subject)?.median <= most),
            Budget::None => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    pub(crate) fn row<'a>(budget: Budget, contenders: Vec<Contender<'a>>) -> Row<'a> {
        Row {
            name: "row".into(),
            unit: Unit::Nanoseconds,
            contenders,
            subject: "ours",
            baseline: "raw",
            budget,
        }
    }

    /// Creates a contender whose samples take `times`, one after the other, for ten operations
    /// each.
    pub(crate) fn scripted(name: &'static str, times: &'static [u64]) -> Contender<'static> {
        let mut times = times.iter();
        Contender::new(name, move || {
            Ok(Sample {
                operations: 10,
                total: *times.next().ok_or("asked too often")?,
            })
        })
    }

    #[test]
    fn contenders_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let contender = |name: &'static str| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push_str(name);
                let slow = if order.borrow().len() <= 2 {
                    1_000_000
                } else {
                    50
                };
                Ok(Sample {
                    operations: 5,
                    total: slow,
                })
            })
        };
        let measured = row(Budget::None, vec![contender("A"), contender("B")])
            .measure(Plan::full(3))
            .unwrap();
        assert_eq!(*order.borrow(), "ABABABAB");
        let figures = measured.figures("A").unwrap();
        assert_eq!(
            figures,
            Figures {
                median: 10.0,
                minimum: 10.0,
                maximum: 10.0
            }
        );
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        let odd = Figures::of(vec![9.0, 1.0, 2.0]);
        assert_eq!(
            odd,
            Figures {
                median: 2.0,
                minimum: 1.0,
                maximum: 9.0
            }
        );
        assert_eq!(Figures::of(vec![4.0, 1.0, 2.0, 9.0]).median, 3.0);
    }

    #[test]
    fn budgets_are_met_up_to_the_limit_and_missed_above() {
        let measured = |budget| {
            let contenders = vec![scripted("raw", &[0, 100]), scripted("ours", &[0, 250])];
            row(budget, contenders).measure(Plan::full(1)).unwrap()
        };
        assert_eq!(measured(Budget::Ratio(2.5)).ratio(), Some(2.5));
        assert_eq!(measured(Budget::Ratio(2.5)).met(), Some(true));
        assert_eq!(measured(Budget::Ratio(2.4)).met(), Some(false));
        assert_eq!(measured(Budget::Within(1.5)).met(), Some(true));
        assert_eq!(measured(Budget::Within(1.4)).met(), Some(false));
        let swapped = vec![scripted("raw", &[0, 250]), scripted("ours", &[0, 100])];
        let swapped = row(Budget::Within(0.5), swapped).measure(Plan::full(1));
        assert_eq!(swapped.unwrap().met(), Some(false), "far below");
        assert_eq!(measured(Budget::Faster(0.4)).met(), Some(true));
        assert_eq!(measured(Budget::Faster(0.5)).met(), Some(false));
        assert_eq!(measured(Budget::Absolute(25.0)).met(), Some(true));
        assert_eq!(measured(Budget::Absolute(24.9)).met(), Some(false));
        assert_eq!(measured(Budget::None).met(), None);
    }

    #[test]
    fn a_row_without_its_subject_has_no_ratio() {
        let measured =
            row(Budget::Ratio(2.0), vec![scripted("raw", &[0, 100])]).measure(Plan::full(1));
        let measured = measured.unwrap();
        assert_eq!((measured.ratio(), measured.met()), (None, None));
    }

    #[test]
    fn a_failing_contender_is_named() {
        let failing = Contender::new("pread", || Err("no such file".into()));
        let error = row(Budget::None, vec![failing])
            .measure(Plan::full(1))
            .unwrap_err();
        assert_eq!(error.to_string(), "row, pread: no such file");
    }

    #[test]
    fn seeds_differ_and_are_never_zero() {
        let mut seeds = Seeds::default();
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| seeds.next()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(!drawn.contains(&0));
    }
}
