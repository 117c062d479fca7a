//! The suite, the lints, the documentation and the other platforms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::mutants;
use crate::process::{cargo, output, program, root, step};

/// Platforms for which the library must at least compile. The last one has neither files nor
/// threads.
const OTHER_PLATFORMS: [&str; 4] = [
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "wasm32-unknown-unknown",
];

/// The ways to read a file that `FileStore` falls back to, by their names in
/// `INNERSPACE_FALLBACK`.
const FALLBACKS: [&str; 3] = ["pool", "dontcache", "dropped"];

/// Runs everything but the models and the mutants, which have commands of their own.
pub(crate) fn all() -> Result<()> {
    lint()?;
    test()?;
    cross()
}

/// Checks the patches of the mutants, the compiler version, format, clippy and documentation; a
/// warning is an error.
pub(crate) fn lint() -> Result<()> {
    mutants::check()?;
    compiler_version()?;
    step("format", cargo().args(["fmt", "--all", "--check"]))?;
    step(
        "clippy",
        cargo()
            .args(["clippy", "--workspace", "--all-targets", "--all-features"])
            .args(["--", "-D", "warnings"]),
    )?;
    // Runs it twice: links of the public pages must not lead to private items, and the pages of the
    // private modules must be correct as well.
    for (title, extra) in [
        ("documentation", None),
        (
            "documentation of private items",
            Some("--document-private-items"),
        ),
    ] {
        step(
            title,
            cargo()
                .args([
                    "doc",
                    "--package",
                    "innerspace",
                    "--no-deps",
                    "--all-features",
                ])
                .args(extra)
                .env("RUSTDOCFLAGS", "-D warnings"),
        )?;
    }
    Ok(())
}

/// Runs the command that README.md names: all tests; the library's tests again with plain fences in
/// place of membarrier, and those of files with each engine that is not the default; then every
/// example, which must exit with 0. The fronts have no barrier and no engine of their own.
pub(crate) fn test() -> Result<()> {
    step(
        "tests",
        cargo().args(["test", "--workspace", "--all-features"]),
    )?;
    let programs = library_tests()?;
    again(&programs, "without membarrier", |test| {
        test.env("INNERSPACE_BARRIER", "fences");
    })?;
    for fallback in FALLBACKS {
        let title = format!("with the fallback {fallback} of files");
        again(&programs, &title, |test| {
            test.args(["store", "cache", "memory"])
                .env("INNERSPACE_FALLBACK", fallback);
        })?;
    }
    for (name, program) in examples()? {
        step(&format!("example {name}"), &mut Command::new(program))?;
    }
    Ok(())
}

/// Runs the library's tests once more, in the way that `set` says.
fn again(programs: &[Program], title: &str, set: impl Fn(&mut Command)) -> Result<()> {
    let folder = root().join("crates/innerspace");
    for (name, program) in programs {
        let mut test = Command::new(program);
        set(test.current_dir(&folder));
        step(&format!("tests of {name} {title}"), &mut test)?;
    }
    Ok(())
}

/// Runs random hostile programs of one tenant next to another, for this many seconds.
pub(crate) fn tenants(seconds: u64) -> Result<()> {
    step(
        &format!("tenants, for {seconds} s"),
        cargo()
            .args(["test", "--workspace", "--all-features", "--test", "tenants"])
            .args(["random", "--", "--nocapture"])
            .env("INNERSPACE_TENANTS_SECONDS", seconds.to_string()),
    )
}

/// A name, and where the program is.
type Program = (String, PathBuf);

/// Builds the examples of the library and of its adapters.
fn examples() -> Result<Vec<Program>> {
    let is_example = |message: &Value| message["target"]["kind"][0] == "example";
    let mut examples = programs(&["build", "--examples"], is_example)?;
    examples.sort();
    Ok(examples)
}

/// Builds the library's tests.
fn library_tests() -> Result<Vec<Program>> {
    let manifest = root().join("crates/innerspace/Cargo.toml");
    let is_own = |message: &Value| {
        message["profile"]["test"] == true
            && message["manifest_path"].as_str().map(Path::new) == Some(&manifest)
    };
    programs(&["test", "--lib", "--tests", "--no-run"], is_own)
}

/// Builds what a call of cargo names, in the whole workspace and with all features, so that nothing
/// is built again; returns the programs that are wanted.
fn programs(call: &[&str], is_wanted: impl Fn(&Value) -> bool) -> Result<Vec<Program>> {
    let messages = output(cargo().args(call).args([
        "--workspace",
        "--all-features",
        "--message-format=json-render-diagnostics",
    ]))?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cannot read cargo's messages")?;
        if let (Some(name), Some(program)) = (
            message["target"]["name"].as_str(),
            message["executable"].as_str(),
        ) && is_wanted(&message)
        {
            programs.push((name.to_owned(), PathBuf::from(program)));
        }
    }
    Ok(programs)
}

/// Type-checks the library for every other platform whose standard library is installed or can be
/// installed.
pub(crate) fn cross() -> Result<()> {
    let mut skipped = Vec::new();
    for target in OTHER_PLATFORMS {
        if let Err(reason) = ensure_target(target) {
            skipped.push(format!("{target} ({reason:#})"));
            continue;
        }
        step(
            &format!("check for {target}"),
            cargo().args([
                "check",
                "--package",
                "innerspace",
                "--all-features",
                "--target",
                target,
            ]),
        )?;
    }
    for line in &skipped {
        eprintln!("    skipped: {line}");
    }
    if skipped.len() == OTHER_PLATFORMS.len() {
        eprintln!("    no other platform was checked");
    }
    Ok(())
}

/// Ensures that the standard library for `target` is installed.
fn ensure_target(target: &str) -> Result<()> {
    let folder = output(program("rustc").args(["--print", "target-libdir", "--target", target]))?;
    if fs::read_dir(folder.trim()).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    output(program("rustup").args(["target", "add", target])).map(|_| ())
}

/// Checks that the compiler is at least the `rust-version` of the manifest. If it is newer, and the
/// stated version is installed as well, the workspace must also compile with that one.
fn compiler_version() -> Result<()> {
    let manifest =
        fs::read_to_string(root().join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let stated = stated_version(&manifest).context("Cargo.toml states no rust-version")?;
    let version = output(program("rustc").arg("--version"))?;
    let here = version
        .split_whitespace()
        .nth(1)
        .and_then(parse_version)
        .with_context(|| format!("cannot read the compiler's version: {version}"))?;
    let (major, minor) = stated;
    if here < stated {
        bail!(
            "the manifest asks for Rust {major}.{minor}, but this is {}",
            version.trim()
        );
    }
    eprintln!(
        "==> compiler: {} (at least {major}.{minor} is asked for)",
        version.trim()
    );
    if here == stated {
        return Ok(());
    }
    let toolchain = format!("{major}.{minor}");
    let installed = output(program("rustup").args(["run", &toolchain, "rustc", "--version"]));
    if installed.is_err() {
        eprintln!("    Rust {toolchain} itself is not installed, so it was not tried");
        return Ok(());
    }
    step(
        &format!("check with Rust {toolchain}"),
        program("rustup")
            .args([
                "run",
                &toolchain,
                "cargo",
                "check",
                "--workspace",
                "--all-features",
            ])
            .env("CARGO_TARGET_DIR", root().join("target/rust-version")),
    )
}

/// Returns the `rust-version = "X.Y"` of a manifest.
fn stated_version(manifest: &str) -> Option<(u32, u32)> {
    let line = manifest
        .lines()
        .find(|line| line.trim_start().starts_with("rust-version"))?;
    parse_version(line.split('"').nth(1)?)
}

/// Returns the major and minor number of `1.95`, `1.95.0` or `1.95.0-nightly`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', '-']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(
            stated_version("[package]\nrust-version = \"1.95\"\n"),
            Some((1, 95))
        );
        assert_eq!(stated_version("[package]\n"), None);
        assert_eq!(parse_version("1.100.0-nightly"), Some((1, 100)));
        assert!(parse_version("1.100.0") > parse_version("1.95"));
        assert_eq!(parse_version("nightly"), None);
    }
}
