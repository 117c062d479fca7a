//! The slow tools: model checkers, ThreadSanitizer, Miri.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::harness::{self, Messages, Mode, Target};
use crate::process::{add_rustflags, output, program, root, step};

/// The modules whose tests Miri can run: they make no foreign calls beyond those that it emulates,
/// have no assembly, and their models have a size that it finishes. Modules that map memory or
/// files are not here.
const MIRI_CAN: [&str; 5] = [
    "units::",
    "sync::",
    "frame::flags::",
    "group::",
    "space::tlb::layout_tests::",
];

/// Runs the models of one checker: those unit tests, in a build for it, that have the checker's
/// name in theirs or are in a module `models`. The other tests of such a build are plain ones.
pub(crate) fn explore(mode: Mode, filter: Option<&str>) -> Result<()> {
    let target = Target {
        mode,
        package: "innerspace".to_owned(),
        integration: None,
    };
    eprintln!("==> {} models: build", mode.name());
    let binary = harness::build(&root(), &target, Messages::Shown)?;
    let models: Vec<String> = harness::list(&binary)?
        .into_iter()
        .filter(|name| name.contains(mode.name()) || name.contains("models::"))
        .filter(|name| filter.is_none_or(|filter| name.contains(filter)))
        .collect();
    if models.is_empty() {
        bail!(
            "no {} model has a name that contains \"{}\"",
            mode.name(),
            filter.unwrap_or("")
        );
    }
    step(
        &format!("{} models: {} of them", mode.name(), models.len()),
        program(&binary.to_string_lossy())
            .args(&models)
            .arg("--exact"),
    )
}

/// Runs the suite under ThreadSanitizer, with the portable forms of the primitives, because it
/// models neither assembly nor lone fences. The standard library is built with it as well, so its
/// source is needed.
pub(crate) fn tsan(filter: Option<&str>) -> Result<()> {
    const HOST: &str = "x86_64-unknown-linux-gnu";
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("this command is written for {HOST}");
    }
    let sysroot = output(program("rustc").args(["--print", "sysroot"]))?;
    if !Path::new(sysroot.trim())
        .join("lib/rustlib/src/rust/library/Cargo.toml")
        .exists()
    {
        step(
            "install rust-src",
            program("rustup").args(["component", "add", "rust-src"]),
        )
        .context("ThreadSanitizer needs the component rust-src")?;
    }
    let suite = || {
        let mut command = crate::process::cargo();
        command
            .args([
                "test",
                "--package",
                "innerspace",
                "--all-features",
                "--lib",
                "--tests",
                "--no-fail-fast",
            ])
            .args(["-Zbuild-std", "--target", HOST])
            .args(filter)
            // The sanitizer's runtime does not support work in the child of a process with threads:
            // its own locks stay as other threads had them.
            .args(["--", "--skip", "forked::a_child_of_fork"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_DIR", root().join("target/tsan"))
            // An allocation that fails must return an error, which tests rely on, and must not end
            // the process.
            .env("TSAN_OPTIONS", "allocator_may_return_null=1");
        add_rustflags(&mut command, "-Zsanitizer=thread --cfg portable");
        command
    };
    check_filter(filter, suite())?;
    step("ThreadSanitizer", &mut suite())
}

/// Refuses a filter that matches no test of `suite`: such a run would succeed.
fn check_filter(filter: Option<&str>, mut suite: Command) -> Result<()> {
    let Some(filter) = filter else {
        return Ok(());
    };
    suite.args(["--list", "--format", "terse"]);
    // The suite is built first, which the user may see.
    let output = suite.stderr(Stdio::inherit()).output()?;
    let tests = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && !tests.lines().any(|line| line.ends_with(": test")) {
        bail!("no test has a name that contains \"{filter}\"");
    }
    Ok(())
}

/// Runs those parts that Miri can run. Needs a nightly toolchain.
pub(crate) fn miri(filter: Option<&str>) -> Result<()> {
    output(program("cargo").args(["+nightly", "miri", "--version"])).context(
        "Miri is missing; install it with: rustup toolchain install nightly \
         --component miri --component rust-src",
    )?;
    let suite = || {
        let mut command = program("cargo");
        command
            .args([
                "+nightly",
                "miri",
                "test",
                "--package",
                "innerspace",
                "--all-features",
                "--lib",
            ])
            .arg("--")
            .env_remove("CARGO")
            // Miri is a hundred times slower than a processor, so each property gets few cases.
            .env("PROPTEST_CASES", "4")
            .env("MIRIFLAGS", "-Zmiri-env-forward=PROPTEST_CASES")
            .env("CARGO_TARGET_DIR", root().join("target/miri"));
        match filter {
            Some(filter) => command.arg(filter),
            None => command.args(MIRI_CAN),
        };
        command
    };
    check_filter(filter, suite())?;
    step("Miri", &mut suite())
}
