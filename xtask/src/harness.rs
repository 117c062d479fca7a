//! Builds a crate's test binary in one of three modes, lists its tests, and runs some of them.
//!
//! Each mode has a target directory of its own, so that switching between them rebuilds nothing.
//! The copy of the workspace in which mutants are built uses the same directories, and so the same
//! dependencies. The models are optimised, with debug assertions: they explore many executions, and
//! the assertions are half of what they check.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use wait_timeout::ChildExt;

use crate::process::{add_rustflags, cargo, root};

/// How a test binary is built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    /// The plain suite.
    Test,
    /// `--cfg loom`.
    Loom,
    /// `--cfg shuttle`.
    Shuttle,
}

impl Mode {
    /// Returns the mode's name, as on the command line and in the claims of mutants.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Test => "test",
            Mode::Loom => "loom",
            Mode::Shuttle => "shuttle",
        }
    }

    /// Returns the mode called `name`.
    pub(crate) fn named(name: &str) -> Option<Mode> {
        [Mode::Test, Mode::Loom, Mode::Shuttle]
            .into_iter()
            .find(|mode| mode.name() == name)
    }

    /// Creates `cargo VERB` in `tree` with the mode's flags, features and target directory.
    fn cargo(self, tree: &Path, verb: &str) -> Command {
        let mut command = cargo();
        command.current_dir(tree).arg(verb);
        match self {
            Mode::Test => {
                let shared = std::env::var_os("CARGO_TARGET_DIR")
                    .map_or_else(|| root().join("target"), PathBuf::from);
                // A mutant is built for one short test: only the libraries below are optimised.
                command
                    .env("CARGO_TARGET_DIR", shared)
                    .env("CARGO_INCREMENTAL", "1")
                    .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
                    .args(["--config", "profile.dev.package.'*'.opt-level=1"])
                    .arg("--all-features")
            }
            Mode::Loom | Mode::Shuttle => {
                add_rustflags(&mut command, &format!("--cfg {}", self.name()));
                command
                    .env("CARGO_TARGET_DIR", root().join("target").join(self.name()))
                    .env("CARGO_PROFILE_DEV_OPT_LEVEL", "3")
                    .args(["--features", "test-util"])
            }
        };
        command
    }
}

/// A test binary: its package, and whether it is the library's own or that of an integration test.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Target {
    pub(crate) mode: Mode,
    pub(crate) package: String,
    pub(crate) integration: Option<String>,
}

/// Where the compiler's messages are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Messages {
    /// To the terminal.
    Shown,
    /// To the error, if the build fails.
    Kept,
}

/// Builds the target in `tree`, the workspace or its copy, and returns the path of the test binary.
pub(crate) fn build(tree: &Path, target: &Target, messages: Messages) -> Result<PathBuf> {
    let mut command = target.mode.cargo(tree, "test");
    command.args([
        "--no-run",
        "--package",
        &target.package,
        "--message-format=json-render-diagnostics",
    ]);
    match &target.integration {
        None => command.arg("--lib"),
        Some(name) => command.args(["--test", name]),
    };
    command.stdout(Stdio::piped()).stderr(match messages {
        Messages::Shown => Stdio::inherit(),
        Messages::Kept => Stdio::piped(),
    });
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!(
            "the build failed\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    test_binary(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo built no test binary for {}", target.package))
}

/// Returns the test binary that cargo's messages name. The last one belongs to the requested crate.
fn test_binary(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["profile"]["test"] == Value::Bool(true))
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
}

/// Returns the full names of all tests in the binary.
pub(crate) fn list(binary: &Path) -> Result<Vec<String>> {
    let output =
        crate::process::output(Command::new(binary).args(["--list", "--format", "terse"]))?;
    Ok(output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

/// The end of a run of tests.
#[derive(Debug)]
pub(crate) struct Run {
    /// The exit status; `None` if it was killed after its time was up.
    pub(crate) status: Option<ExitStatus>,
    /// Both output streams together.
    pub(crate) output: String,
}

/// Runs exactly the named tests in the folder of their package, for at most `time`, and writes
/// their output to `log`.
pub(crate) fn run(
    binary: &Path,
    package: &Path,
    tests: &[String],
    time: Duration,
    log: &Path,
) -> Result<Run> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = Command::new(binary)
        .current_dir(package)
        .args(tests)
        .arg("--exact")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    let status = child.wait_timeout(time)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    Ok(Run { status, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_binary_is_read_from_the_messages() {
        let messages = r#"
            {"reason":"compiler-artifact","profile":{"test":false},"executable":"/a"}
            not json
            {"reason":"compiler-artifact","profile":{"test":true},"executable":"/b"}
            {"reason":"build-finished","success":true}
        "#;
        assert_eq!(test_binary(messages), Some(PathBuf::from("/b")));
        assert_eq!(test_binary(r#"{"reason":"build-finished"}"#), None);
    }

    #[test]
    fn modes_are_found_by_name() {
        assert_eq!(Mode::named("loom"), Some(Mode::Loom));
        assert_eq!(Mode::named("Loom"), None);
    }
}
