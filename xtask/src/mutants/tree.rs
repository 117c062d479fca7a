//! The copy of the workspace in which mutants are built.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::patch::Patch;
use crate::process::root;

/// A copy of the workspace, which no other process changes as long as this value lives.
///
/// Only files that differ are written, so that cargo rebuilds little. If an interrupted run has
/// left a patch in the copy, this also repairs it.
pub(super) struct Tree {
    folder: PathBuf,
    _lock: File,
}

impl Tree {
    /// Brings the copy up to date.
    pub(super) fn copied() -> Result<Tree> {
        let mutants = root().join("target/mutants");
        fs::create_dir_all(&mutants)?;
        let lock = File::create(mutants.join("lock"))?;
        lock.lock()
            .context("cannot lock the copy of the workspace")?;
        let folder = mutants.join("tree");
        copy(&root(), &folder)?;
        Ok(Tree {
            folder,
            _lock: lock,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Does `work` while the copy has the bug.
    pub(super) fn with<T>(&self, patch: &Patch, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let changed = patch.apply(&root())?;
        for (path, text) in &changed {
            fs::write(self.folder.join(path), text)?;
        }
        let done = work();
        for path in changed.keys() {
            let source = root().join(path);
            fs::write(self.folder.join(path), fs::read(&source)?)?;
            // The workspace and its copy share what cargo builds. It would take what it has built
            // with the bug for the workspace's own, unless the workspace's file is newer.
            let source = File::options().append(true).open(source)?;
            source.set_modified(SystemTime::now())?;
        }
        done
    }
}

/// Makes `to` a copy of the folder `from`, except for build products and git's files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let (source, copied) = (entry.path(), to.join(&name));
        if source.is_dir() {
            copy(&source, &copied)?;
        } else {
            let bytes =
                fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            if fs::read(&copied).ok().as_ref() != Some(&bytes) {
                fs::write(&copied, bytes)
                    .with_context(|| format!("cannot write {}", copied.display()))?;
            }
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}
