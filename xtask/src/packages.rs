//! The packages as crates.io would get them, and the interface beside that of the last release.

use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{cargo, output, program, step};

/// The crates whose interface is promised: those that are published and have one.
const PROMISED: [&str; 4] = [
    "innerspace",
    "innerspace-adapters",
    "innerspace-object-store",
    "innerspace-sqlite",
];

/// Packs every crate that is published, in the order of their dependencies, and builds each from
/// its package: with the packages of the others, which need not be on crates.io yet. Nothing is
/// uploaded. Then looks for breaking changes since the last release.
pub(crate) fn check() -> Result<()> {
    step(
        "packages",
        cargo().args(["publish", "--workspace", "--dry-run", "--locked"]),
    )?;
    match last_release(&tags()) {
        None => {
            eprintln!("    no release yet: there is no interface to compare with");
            Ok(())
        }
        Some(tag) => compatible(tag),
    }
}

/// Compares the interface with that of a tag. A change that breaks it needs a new version.
fn compatible(tag: &str) -> Result<()> {
    if output(cargo().args(["semver-checks", "--version"])).is_err() {
        bail!("cargo-semver-checks is missing: cargo install --locked cargo-semver-checks");
    }
    let packages = PROMISED.iter().flat_map(|name| ["--package", name]);
    step(
        &format!("interface since {tag}"),
        cargo()
            .args(["semver-checks", "--all-features", "--baseline-rev", tag])
            .args(packages),
    )
}

/// Returns the tags of which this commit is a descendant, the newest version first. There are none
/// outside a repository.
fn tags() -> String {
    let mut git: Command = program("git");
    git.args(["tag", "--merged", "HEAD", "--sort=-version:refname"]);
    output(&mut git).unwrap_or_default()
}

/// Returns the first tag of a version, such as `v0.1.0`.
fn last_release(tags: &str) -> Option<&str> {
    tags.lines().find(|tag| {
        let version = tag.strip_prefix('v').unwrap_or_default();
        let numbers: Vec<&str> = version.split('.').collect();
        numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::last_release;

    #[test]
    fn the_last_release_is_the_newest_tag_of_a_version() {
        assert_eq!(
            last_release("vanilla\nv0.2.0-rc.1\nv0.1.3\nv0.1.2\n"),
            Some("v0.1.3")
        );
        assert_eq!(last_release("v1\nseen\n"), None);
        assert_eq!(last_release(""), None);
    }
}
