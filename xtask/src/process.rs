//! Runs commands as titled, timed steps from the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Returns the root of the workspace: the parent of this crate's folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Returns the cargo that runs this program, or the one in the path.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Returns a program in the path.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Adds `flags` to the compiler flags of the caller's environment.
pub(crate) fn add_rustflags(command: &mut Command, flags: &str) {
    let own = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{own} {flags}").trim());
    command.env_remove("CARGO_ENCODED_RUSTFLAGS");
}

/// Prints a title, runs the command with its output shown, and prints how long it took.
pub(crate) fn step(title: &str, command: &mut Command) -> Result<()> {
    eprintln!("==> {title}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        bail!(
            "{title}: failed after {seconds:.1} s ({status}): {}",
            shown(command)
        );
    }
    eprintln!("    {title}: ok, {seconds:.1} s");
    Ok(())
}

/// Returns the command's standard output, or an error if it cannot run or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", shown(command), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the program and its arguments as one would type them.
fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program())
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    command.get_args().fold(name.into_owned(), |line, word| {
        line + " " + &word.to_string_lossy()
    })
}
