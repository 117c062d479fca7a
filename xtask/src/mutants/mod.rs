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
//! The first line says what the bug is. `lines` must occur exactly once in the file, as whole lines;
//! `bug` stands in their place in a copy of the workspace while the tests are built and run. A
//! further `[[change]]` of a file sees what the earlier ones have made of it.
//!
//! A claim has the form `MODE [TARGET]: NAME [, may hang] [, may abort]`. MODE is `test`, `loom` or
//! `shuttle`; TARGET is an integration test of the crate (default: its unit tests); NAME is the end
//! of a test's path, or else a part of it. A claim holds if the mutant compiles, the tests of that
//! name run, and the run is reported as failed (exit code 101, `test result: FAILED`). A run that
//! hangs or aborts counts only where the claim says that it may.

mod claim;
mod in_source;
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

/// Whether to run the mutants or to list them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum List {
    #[default]
    No,
    Only,
}

/// What is asked of the same tests without the mutant.
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

/// A mutant, in either form.
#[derive(Debug)]
enum Bug {
    Patch(Patch),
    Cfg(String, Vec<Claim>),
}

impl Bug {
    fn id(&self) -> &str {
        match self {
            Bug::Patch(patch) => &patch.id,
            Bug::Cfg(id, _) => id,
        }
    }

    fn claims(&self) -> &[Claim] {
        match self {
            Bug::Patch(patch) => &patch.claims,
            Bug::Cfg(_, claims) => claims,
        }
    }
}

/// How a mutant fared against one claim.
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

/// Checks that each patch still applies and that the tests it names exist.
pub(crate) fn check() -> Result<()> {
    let bugs = read()?;
    eprintln!("==> mutants: {} can be put back", bugs.len());
    Ok(())
}

/// All mutants by name, each of which can be put back.
fn read() -> Result<Vec<Bug>> {
    let mut wrong = Vec::new();
    let patches = Patch::read_all(&root().join("mutants"), &mut wrong)?;
    let mut names = BTreeMap::new();
    for patch in &patches {
        if let Err(error) = patch.apply(&root()) {
            wrong.push(format!("{}: {error:#}", patch.id));
        }
        for claim in &patch.claims {
            let package = &claim.target.package;
            if !names.contains_key(package) {
                names.insert(package, functions(&root().join("crates").join(package))?);
            }
            let name = claim.test.rsplit("::").next().unwrap_or_default();
            if !names[package]
                .iter()
                .any(|function| function.contains(name))
            {
                wrong.push(format!("{}: no test is called {name}", patch.id));
            }
        }
    }
    let mut bugs: Vec<Bug> = patches.into_iter().map(Bug::Patch).collect();
    for (id, claims) in in_source::find(&root().join("crates"))? {
        if claims.is_empty() {
            wrong.push(format!("{id}: no test is named"));
        }
        if bugs.iter().any(|bug| bug.id() == id) {
            wrong.push(format!("{id}: both a patch and a cfg"));
        }
        bugs.push(Bug::Cfg(id, claims.into_iter().collect()));
    }
    ensure!(
        wrong.is_empty(),
        "mutants that cannot be put back:\n{}",
        wrong.join("\n")
    );
    bugs.sort_by(|one, other| one.id().cmp(other.id()));
    Ok(bugs)
}

/// The names of all functions in the Rust sources below `folder`.
fn functions(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            names.append(&mut functions(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            names.extend(text.split("fn ").skip(1).filter_map(|rest| {
                let name = rest.split(|c| !is_part(c)).next()?;
                (!name.is_empty()).then(|| name.to_owned())
            }));
        }
    }
    Ok(names)
}

/// Runs the mutants named by `wanted`, or all of them, and fails if a claim does not hold.
pub(crate) fn run(wanted: &[String], options: &Options) -> Result<()> {
    let bugs = read()?;
    for id in wanted {
        let is_known = bugs.iter().any(|bug| bug.id() == id);
        ensure!(is_known, "there is no mutants/{id}.toml");
    }
    let rows: Vec<(&Bug, &Claim)> = bugs
        .iter()
        .filter(|bug| wanted.is_empty() || wanted.iter().any(|id| id == bug.id()))
        .flat_map(|bug| bug.claims().iter().map(move |claim| (bug, claim)))
        .collect();
    if options.list == List::Only {
        for (bug, claim) in &rows {
            println!("{:14} {}", bug.id(), shown(claim));
        }
        return Ok(());
    }
    let tree = Tree::copied()?;
    let start = Instant::now();
    let mut unchanged = BTreeMap::new();
    let mut broken = BTreeSet::new();
    let mut left = 0;
    println!("mutant         verdict         seconds  mode     test");
    for (bug, claim) in rows {
        let began = Instant::now();
        let late = options
            .budget
            .is_some_and(|budget| start.elapsed() >= budget);
        let verdict = match late {
            true => Verdict::NotRun,
            false => judge(&tree, bug, claim, options.unchanged, &mut unchanged)?,
        };
        left += usize::from(verdict == Verdict::NotRun);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{:14} {verdict:15} {seconds:7.1}  {}",
            bug.id(),
            shown(claim)
        );
        if !verdict.holds() {
            broken.insert(bug.id());
            if let Bug::Patch(patch) = bug {
                println!("               {}", patch.title);
            }
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

/// Mode and test of a claim, for the tables.
fn shown(claim: &Claim) -> String {
    format!("{:8} {}", claim.target.mode.name(), claim.test)
}

/// Builds one mutant and runs the test that a claim names.
fn judge(
    tree: &Tree,
    bug: &Bug,
    claim: &Claim,
    want: Unchanged,
    unchanged: &mut BTreeMap<Target, PathBuf>,
) -> Result<Verdict> {
    let name = format!("{}-{}-{}", bug.id(), claim.target.mode.name(), claim.test);
    let log = root()
        .join("target/mutants/logs")
        .join(name.replace("::", "-") + ".log");
    let package = tree.folder().join("crates").join(&claim.target.package);
    let build = |cfg| harness::build(tree.folder(), &claim.target, cfg, Messages::Kept);
    // The test runs while the bug is in the copy: it may read sources.
    let test = |cfg| {
        let binary = match build(cfg) {
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
    let done = match bug {
        Bug::Patch(patch) => tree.with(patch, || test(None))?,
        Bug::Cfg(id, _) => test(Some(id.as_str()))?,
    };
    let (verdict, tests) = match done {
        Ok(done) => done,
        Err(verdict) => return Ok(verdict),
    };
    if !verdict.holds() || want == Unchanged::NotRun {
        return Ok(verdict);
    }
    if !unchanged.contains_key(&claim.target) {
        // A copy: the next mutant is built in its place.
        let built = build(None)?;
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

/// What the run of a mutant's test says.
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
