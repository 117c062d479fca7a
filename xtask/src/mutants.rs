//! Mutants: known bugs, kept in the sources under `#[cfg(mutant = "ID")]`, that a named test must
//! notice.
//!
//! Beside the `cfg` stands a one-line comment that names the test, here for the mutant `Z1`:
//!
//! ```text
//! // mutant: Z1 (loom: name_of_the_test)
//! ```
//!
//! In the brackets stand one or more claims, separated by `;`, each of the form
//! `MODE [TARGET]: NAME [, may hang] [, may abort]`. MODE is `test`, `loom` or `shuttle`; TARGET is
//! an integration test of the crate (default: its unit tests); NAME is the end of a test's path, or
//! else a part of it. A claim holds if the mutant compiles, the tests of that name run, and the run
//! is reported as failed (exit code 101, `test result: FAILED`). A run that hangs or aborts counts
//! only where the claim says that it may. Several identifiers, `Z1, Z2 (...)`, share their claims.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::harness::{self, Messages, Mode, Run, Target};
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

/// What a comment says about a mutant: this test notices it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Claim {
    target: Target,
    test: String,
    may_hang: bool,
    may_abort: bool,
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
    NoClaim,
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
            Verdict::NoClaim => "NO TEST NAMED",
            Verdict::NotRun => "not run",
        })
    }
}

/// Runs the mutants named by `wanted`, or all of them, and fails if a claim does not hold.
pub(crate) fn run(wanted: &[String], options: &Options) -> Result<()> {
    let found = find(&root().join("crates"))?;
    for id in wanted {
        ensure!(
            found.contains_key(id),
            "no cfg(mutant = \"{id}\") in the sources"
        );
    }
    ensure!(!found.is_empty(), "no cfg(mutant = ...) in the sources");
    let rows: Vec<(&str, Option<&Claim>)> = found
        .iter()
        .filter(|(id, _)| wanted.is_empty() || wanted.contains(id))
        .flat_map(|(id, claims)| {
            let unclaimed = claims.is_empty().then_some(None);
            let claims = claims.iter().map(Some).chain(unclaimed);
            claims.map(move |claim| (id.as_str(), claim))
        })
        .collect();
    if options.list == List::Only {
        for (id, claim) in &rows {
            println!("{id:6} {}", shown(*claim));
        }
        return Ok(());
    }
    let start = Instant::now();
    let mut unchanged = BTreeMap::new();
    let mut broken = BTreeSet::new();
    let mut left = 0;
    println!("mutant verdict         seconds  mode     test");
    for (id, claim) in rows {
        let began = Instant::now();
        let late = options
            .budget
            .is_some_and(|budget| start.elapsed() >= budget);
        let verdict = match claim {
            None => Verdict::NoClaim,
            Some(_) if late => Verdict::NotRun,
            Some(claim) => judge(id, claim, options.unchanged, &mut unchanged)?,
        };
        left += usize::from(verdict == Verdict::NotRun);
        let seconds = began.elapsed().as_secs_f64();
        println!("{id:6} {verdict:15} {seconds:7.1}  {}", shown(claim));
        if !verdict.holds() {
            broken.insert(id);
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
fn shown(claim: Option<&Claim>) -> String {
    claim.map_or_else(String::new, |claim| {
        format!("{:8} {}", claim.target.mode.name(), claim.test)
    })
}

/// Builds one mutant and runs the test that a claim names.
fn judge(
    id: &str,
    claim: &Claim,
    want: Unchanged,
    unchanged: &mut BTreeMap<Target, PathBuf>,
) -> Result<Verdict> {
    let name = format!("{id}-{}-{}", claim.target.mode.name(), claim.test);
    let log = root()
        .join("target/mutants/logs")
        .join(name.replace("::", "-") + ".log");
    let binary = match harness::build(&claim.target, Some(id), Messages::Kept) {
        Ok(binary) => binary,
        Err(error) => {
            eprintln!("{error:#}");
            return Ok(Verdict::NoBuild);
        }
    };
    let package = &claim.target.package;
    let tests = matching(&harness::list(&binary)?, &claim.test);
    if tests.is_empty() {
        return Ok(Verdict::NoTest);
    }
    let verdict = verdict(&harness::run(&binary, package, &tests, TIME, &log)?, claim);
    if !verdict.holds() || want == Unchanged::NotRun {
        return Ok(verdict);
    }
    if !unchanged.contains_key(&claim.target) {
        let binary = harness::build(&claim.target, None, Messages::Kept)?;
        unchanged.insert(claim.target.clone(), binary);
    }
    let log = log.with_extension("unchanged.log");
    let run = harness::run(&unchanged[&claim.target], package, &tests, TIME, &log)?;
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

/// The tests whose path ends in `name`, or, where there is none, contains it.
fn matching(tests: &[String], name: &str) -> Vec<String> {
    let suffix = format!("::{name}");
    let whole = |test: &&String| *test == name || test.ends_with(&suffix);
    let mut found: Vec<String> = tests.iter().filter(whole).cloned().collect();
    if found.is_empty() {
        found = tests
            .iter()
            .filter(|test| test.contains(name))
            .cloned()
            .collect();
    }
    found
}

/// All mutants in the Rust sources below `crates`, with what their comments claim, which may be
/// nothing.
fn find(crates: &Path) -> Result<BTreeMap<String, BTreeSet<Claim>>> {
    let mut found: BTreeMap<String, BTreeSet<Claim>> = BTreeMap::new();
    for package in sorted_entries(crates)?.iter().filter(|path| path.is_dir()) {
        let name = package
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut sources = Vec::new();
        collect_sources(package, &mut sources)?;
        let mut bugs = BTreeSet::new();
        for path in sources {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            bugs.extend(text.lines().flat_map(ids_in_cfg));
            for (number, line) in text.lines().enumerate() {
                let place = || format!("{}:{}", path.display(), number + 1);
                for (id, claims) in parse_comment(line, &name).with_context(place)? {
                    found.entry(id).or_default().extend(claims);
                }
            }
        }
        for id in &bugs {
            found.entry(id.clone()).or_default();
        }
        for (id, claims) in &found {
            let here = claims.iter().any(|claim| claim.target.package == name);
            ensure!(
                !here || bugs.contains(id),
                "{name} has a claim but no cfg for the mutant {id}"
            );
        }
    }
    Ok(found)
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

fn collect_sources(folder: &Path, sources: &mut Vec<PathBuf>) -> Result<()> {
    for path in sorted_entries(folder)? {
        if path.is_dir() && !path.ends_with("target") {
            collect_sources(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
    Ok(())
}

/// The identifiers in `mutant = "ID"` on a line of code.
fn ids_in_cfg(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    if !code.contains("cfg") && !code.trim_start().starts_with("mutant") {
        return Vec::new();
    }
    let parts = code.split("mutant = \"").skip(1);
    parts
        .filter_map(|rest| rest.split_once('"'))
        .map(|(id, _)| id.to_owned())
        .collect()
}

/// The identifiers and claims of a comment `mutant: ID, ID (claim; claim)`; none on other lines and
/// on mentions without brackets.
fn parse_comment(line: &str, package: &str) -> Result<Vec<(String, Vec<Claim>)>> {
    let Some((_, comment)) = line.split_once("//") else {
        return Ok(Vec::new());
    };
    let Some((_, rest)) = comment.split_once("mutant: ") else {
        return Ok(Vec::new());
    };
    let Some((ids, claims)) = rest.split_once('(') else {
        return Ok(Vec::new());
    };
    let claims = claims
        .split_once(')')
        .context("the claim has no closing bracket")?
        .0;
    let claims: Vec<Claim> = claims
        .split(';')
        .map(|claim| parse_claim(claim, package))
        .collect::<Result<_>>()?;
    let ids = ids.split(',').map(str::trim);
    Ok(ids.map(|id| (id.to_owned(), claims.clone())).collect())
}

/// A claim `MODE [TARGET]: NAME [, may hang] [, may abort]`.
fn parse_claim(text: &str, package: &str) -> Result<Claim> {
    let (tool, rest) = text
        .split_once(": ")
        .with_context(|| format!("\"{text}\" has no colon"))?;
    let mut words = tool.split_whitespace();
    let mode = words
        .next()
        .and_then(Mode::named)
        .with_context(|| format!("\"{tool}\" is none of test, loom, shuttle"))?;
    let integration = words.next().map(str::to_owned);
    ensure!(words.next().is_none(), "\"{tool}\" has a word too many");
    let mut parts = rest.split(',').map(str::trim);
    let test = parts
        .next()
        .filter(|name| !name.is_empty())
        .context("no test is named")?
        .to_owned();
    let target = Target {
        mode,
        package: package.to_owned(),
        integration,
    };
    let mut claim = Claim {
        target,
        test,
        may_hang: false,
        may_abort: false,
    };
    for mark in parts {
        match mark {
            "may hang" => claim.may_hang = true,
            "may abort" => claim.may_abort = true,
            other => bail!("\"{other}\" is neither \"may hang\" nor \"may abort\""),
        }
    }
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(text: &str) -> Claim {
        parse_claim(text, "innerspace").unwrap()
    }

    #[test]
    fn a_comment_names_mutants_and_tests() {
        let line = "    x(); // mutant: Z1, Z2 (loom: cannot_reuse, may abort; test model: reuse)";
        let found = parse_comment(line, "innerspace").unwrap();
        let expected = vec![
            claim("loom: cannot_reuse, may abort"),
            claim("test model: reuse"),
        ];
        assert!(expected[0].may_abort && !expected[0].may_hang);
        assert_eq!(expected[1].target.integration.as_deref(), Some("model"));
        assert_eq!(
            found,
            [
                ("Z1".to_owned(), expected.clone()),
                ("Z2".to_owned(), expected)
            ]
        );
    }

    #[test]
    fn a_mention_without_brackets_claims_nothing() {
        assert_eq!(parse_comment("// mutant: Z1", "p").unwrap(), []);
        assert_eq!(parse_comment("let mutant: Zoo = (1, 2);", "p").unwrap(), []);
    }

    #[test]
    fn a_malformed_claim_is_an_error() {
        for line in [
            "// mutant: Z1 (loom: x",
            "// mutant: Z1 (miri: x)",
            "// mutant: Z1 (loom x)",
            "// mutant: Z1 (loom: )",
            "// mutant: Z1 (loom a b: x)",
            "// mutant: Z1 (loom: x, may pass)",
        ] {
            assert!(parse_comment(line, "p").is_err(), "{line}");
        }
    }

    #[test]
    fn mutants_are_found_in_code_alone() {
        assert_eq!(ids_in_cfg("#[cfg(any(test, mutant = \"Z1\"))]"), ["Z1"]);
        assert_eq!(
            ids_in_cfg("if cfg!(mutant = \"Z1\") || cfg!(mutant = \"Z2\") {"),
            ["Z1", "Z2"]
        );
        assert!(ids_in_cfg("// #[cfg(mutant = \"Z1\")]").is_empty());
        assert!(ids_in_cfg("let mutant = \"Z1\";").is_empty());
    }

    #[test]
    fn a_test_is_named_by_the_end_of_its_path_or_a_part() {
        let tests = ["a::reuse", "a::reuse_twice", "b::other"].map(str::to_owned);
        assert_eq!(matching(&tests, "reuse"), ["a::reuse"]);
        assert_eq!(matching(&tests, "a::reu"), ["a::reuse", "a::reuse_twice"]);
        assert!(matching(&tests, "nothing").is_empty());
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
