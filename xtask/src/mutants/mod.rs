//! Mutants: known bugs that a named test must notice.
//!
//! Each is a file `mutants/ID.toml` at the root of the workspace, here `mutants/Z1.toml`:
//!
//! ```text
//! # The block is reused before the grace period is over.
//! claims = ["loom: name_of_the_test"]
//! [[change]]
//! file = "crates/innerspace/src/frame/hold.rs"
//! lines = '''
//!         self.domain.synchronize();
//! '''
//! bug = ""
//! ```
//!
//! The first line describes the bug. `lines` must occur exactly once in the file, as whole lines;
//! `bug` replaces them in a copy of the workspace while the tests are built and run. A further
//! `[[change]]` of a file is applied to the result of the earlier ones.
//!
//! A claim has the form `MODE [TARGET]: NAME [, may hang] [, may abort]`. MODE is `test`, `loom` or
//! `shuttle`; TARGET is an integration test of the crate (default: its unit tests); NAME is the end
//! of a test's path, or else a part of it. A claim holds if the mutant compiles, the tests of that
//! name run, and the run is reported as failed (exit code 101, `test result: FAILED`). A run that
//! hangs or aborts counts only where the claim says that it may.

mod claim;
mod patch;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::claim::Claim;
use self::patch::Patch;
use self::tree::Tree;
use crate::harness::{self, Messages, Run, Target};
use crate::process::root;

/// How long one run of a mutant's test may take.
const TIME: Duration = Duration::from_secs(120);

/// The exit code of a test binary whose tests failed.
const TESTS_FAILED: i32 = 101;

/// Whether to list the mutants instead of running them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum List {
    #[default]
    No,
    Only,
}

/// Whether the same tests must also pass without the mutant.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Unchanged {
    #[default]
    NotRun,
    MustPass,
}

/// The options of the command.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Options {
    pub(crate) list: List,
    pub(crate) unchanged: Unchanged,
    pub(crate) budget: Option<Duration>,
}

/// The result of a mutant for one claim.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Caught,
    CaughtByHang,
    CaughtByAbort,
    Survived,
    Hung,
    Aborted,
    FailsUnchanged,
    NoBuild,
    NoTest,
    NotRun,
}

impl Verdict {
    fn holds(&self) -> bool {
        use Verdict::*;
        matches!(self, Caught | CaughtByHang | CaughtByAbort | NotRun)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Caught => "caught",
            Verdict::CaughtByHang => "caught (hang)",
            Verdict::CaughtByAbort => "caught (abort)",
            Verdict::Survived => "SURVIVED",
            Verdict::Hung => "HUNG",
            Verdict::Aborted => "ABORTED",
            Verdict::FailsUnchanged => "FAILS UNCHANGED",
            Verdict::NoBuild => "DOES NOT BUILD",
            Verdict::NoTest => "NO SUCH TEST",
            Verdict::NotRun => "not run",
        })
    }
}

/// Checks that each patch still applies, that the tests that it names exist, and that the library's
/// sources do not mention mutants.
pub(crate) fn check() -> Result<()> {
    let patches = read()?;
    let library = root().join("crates/innerspace/src");
    let mut traces = Vec::new();
    sources(&library, &mut |path, text| {
        if text.to_lowercase().contains("mutant") {
            traces.push(path.display().to_string());
        }
    })?;
    ensure!(
        traces.is_empty(),
        "mutants are patches in mutants/, and are not named in:\n{}",
        traces.join("\n")
    );
    eprintln!("==> mutants: {} apply", patches.len());
    Ok(())
}

/// Reads all mutants, and fails if one of them does not apply.
fn read() -> Result<Vec<Patch>> {
    let mut wrong = Vec::new();
    let patches = Patch::read_all(&root().join("mutants"), &mut wrong)?;
    let mut names = BTreeMap::new();
    for patch in &patches {
        if let Err(error) = patch.apply(&root()) {
            wrong.push(format!("{}: {error:#}", patch.id));
        }
        for claim in &patch.claims {
            let place = place(claim);
            if !names.contains_key(&place) {
                names.insert(place.clone(), functions(&place)?);
            }
            let name = claim.test.rsplit("::").next().unwrap_or_default();
            if !names[&place].iter().any(|function| function.contains(name)) {
                let place = place.display();
                wrong.push(format!("{}: {place} has no test {name}", patch.id));
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "mutants that cannot be put back:\n{}",
        wrong.join("\n")
    );
    Ok(patches)
}

/// Returns the file or the folder that has the test of a claim.
fn place(claim: &Claim) -> PathBuf {
    let package = root().join("crates").join(&claim.target.package);
    match &claim.target.integration {
        None => package.join("src"),
        Some(name) => {
            let folder = package.join("tests").join(name);
            match folder.is_dir() {
                true => folder,
                false => folder.with_extension("rs"),
            }
        }
    }
}

/// Returns the names of all functions in a Rust source, or in those below a folder.
fn functions(place: &Path) -> Result<BTreeSet<String>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = BTreeSet::new();
    let mut add = |text: &str| {
        let after = text.split("fn ").skip(1);
        let found = after.filter_map(|rest| rest.split(|c| !is_part(c)).next());
        names.extend(found.filter(|name| !name.is_empty()).map(str::to_owned));
    };
    match place.is_dir() {
        true => sources(place, &mut |_, text| add(text))?,
        false => add(&fs::read_to_string(place)
            .with_context(|| format!("cannot read {}", place.display()))?),
    }
    Ok(names)
}

/// Calls `each` with the path and the text of every Rust source below `folder`.
fn sources(folder: &Path, each: &mut impl FnMut(&Path, &str)) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, each)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            each(&path, &text);
        }
    }
    Ok(())
}

/// Runs the mutants named by `wanted`, or all of them, and fails if a claim does not hold.
pub(crate) fn run(wanted: &[String], options: &Options) -> Result<()> {
    let patches = read()?;
    for id in wanted {
        let is_known = patches.iter().any(|patch| patch.id == *id);
        ensure!(is_known, "there is no mutants/{id}.toml");
    }
    let rows: Vec<(&Patch, &Claim)> = patches
        .iter()
        .filter(|patch| wanted.is_empty() || wanted.contains(&patch.id))
        .flat_map(|patch| patch.claims.iter().map(move |claim| (patch, claim)))
        .collect();
    if options.list == List::Only {
        for (patch, claim) in &rows {
            println!("{:14} {}", patch.id, shown(claim));
        }
        return Ok(());
    }
    let tree = Tree::copied()?;
    let start = Instant::now();
    let mut unchanged = BTreeMap::new();
    let mut broken = BTreeSet::new();
    let mut left = 0;
    println!("mutant         verdict         seconds  mode     test");
    for (patch, claim) in rows {
        let began = Instant::now();
        let late = options
            .budget
            .is_some_and(|budget| start.elapsed() >= budget);
        let verdict = match late {
            true => Verdict::NotRun,
            false => judge(&tree, patch, claim, options.unchanged, &mut unchanged)?,
        };
        left += usize::from(verdict == Verdict::NotRun);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{:14} {verdict:15} {seconds:7.1}  {}",
            patch.id,
            shown(claim)
        );
        if !verdict.holds() {
            broken.insert(patch.id.as_str());
            println!("               {}", patch.title);
        }
    }
    if left > 0 {
        println!("{left} not run: the time budget was used up");
    }
    if !broken.is_empty() {
        let names: Vec<&str> = broken.into_iter().collect();
        bail!(
            "not caught as claimed: {} (logs in target/mutants/logs)",
            names.join(" ")
        );
    }
    Ok(())
}

/// Returns the mode and the test of a claim, for the tables.
fn shown(claim: &Claim) -> String {
    format!("{:8} {}", claim.target.mode.name(), claim.test)
}

/// Builds one mutant and runs the test that a claim names.
fn judge(
    tree: &Tree,
    patch: &Patch,
    claim: &Claim,
    want: Unchanged,
    unchanged: &mut BTreeMap<Target, PathBuf>,
) -> Result<Verdict> {
    let name = format!("{}-{}-{}", patch.id, claim.target.mode.name(), claim.test);
    let log = root()
        .join("target/mutants/logs")
        .join(name.replace("::", "-") + ".log");
    let package = tree.folder().join("crates").join(&claim.target.package);
    let build = || harness::build(tree.folder(), &claim.target, Messages::Kept);
    // The test runs while the bug is in the copy, because it may read sources.
    let test = || {
        let binary = match build() {
            Ok(binary) => binary,
            Err(error) => {
                eprintln!("{error:#}");
                return Ok(Err(Verdict::NoBuild));
            }
        };
        let tests = claim.matching(&harness::list(&binary)?);
        if tests.is_empty() {
            return Ok(Err(Verdict::NoTest));
        }
        let run = harness::run(&binary, &package, &tests, TIME, &log)?;
        Ok(Ok((verdict(&run, claim), tests)))
    };
    let (verdict, tests) = match tree.with(patch, test)? {
        Ok(done) => done,
        Err(verdict) => return Ok(verdict),
    };
    if !verdict.holds() || want == Unchanged::NotRun {
        return Ok(verdict);
    }
    if !unchanged.contains_key(&claim.target) {
        // The binary is copied, since the next mutant is built in its place.
        let built = build()?;
        let kept = built.with_extension("unchanged");
        fs::copy(&built, &kept).with_context(|| format!("cannot copy {}", built.display()))?;
        unchanged.insert(claim.target.clone(), kept);
    }
    let log = log.with_extension("unchanged.log");
    let run = harness::run(&unchanged[&claim.target], &package, &tests, TIME, &log)?;
    Ok(if run.status.is_some_and(|status| status.success()) {
        verdict
    } else {
        Verdict::FailsUnchanged
    })
}

/// Judges the run of a mutant's test.
fn verdict(run: &Run, claim: &Claim) -> Verdict {
    let Some(status) = run.status else {
        return if claim.may_hang {
            Verdict::CaughtByHang
        } else {
            Verdict::Hung
        };
    };
    if status.success() {
        Verdict::Survived
    } else if status.code() == Some(TESTS_FAILED) && run.output.contains("test result: FAILED") {
        Verdict::Caught
    } else if claim.may_abort && run.output.contains("panicked at") {
        Verdict::CaughtByAbort
    } else {
        Verdict::Aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> Claim {
        Claim::parse(text, "innerspace").unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn only_a_reported_failure_counts() {
        use std::os::unix::process::ExitStatusExt;
        use std::process::ExitStatus;
        let run = |raw: Option<i32>, output: &str| Run {
            status: raw.map(ExitStatus::from_raw),
            output: output.to_owned(),
        };
        let plain = claim("test: x");
        let failed = "test result: FAILED";
        assert_eq!(
            verdict(&run(Some(101 << 8), failed), &plain),
            Verdict::Caught
        );
        assert_eq!(
            verdict(&run(Some(0), "test result: ok"), &plain),
            Verdict::Survived
        );
        assert_eq!(
            verdict(&run(Some(101 << 8), "thread panicked at"), &plain),
            Verdict::Aborted
        );
        assert_eq!(
            verdict(&run(Some(6), "thread panicked at"), &plain),
            Verdict::Aborted
        );
        assert_eq!(verdict(&run(None, failed), &plain), Verdict::Hung);
        let lenient = claim("test: x, may hang, may abort");
        assert_eq!(verdict(&run(None, ""), &lenient), Verdict::CaughtByHang);
        assert_eq!(
            verdict(&run(Some(6), "thread panicked at"), &lenient),
            Verdict::CaughtByAbort
        );
        assert_eq!(verdict(&run(Some(11), ""), &lenient), Verdict::Aborted);
        assert_eq!(verdict(&run(Some(0), ""), &lenient), Verdict::Survived);
    }
}
