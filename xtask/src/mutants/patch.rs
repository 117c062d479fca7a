//! Patches: a mutant as a file `mutants/ID.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::claim::Claim;

/// A mutant: its changes, and the tests that notice them.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    pub(super) id: String,
    /// The description of the bug: the comment in the file's first line.
    pub(super) title: String,
    pub(super) claims: Vec<Claim>,
    changes: Vec<Change>,
}

/// The text of a patch file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    claims: Vec<String>,
    change: Vec<Change>,
}

/// Some whole lines of one file, and the lines that replace them to make the bug.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Change {
    file: String,
    lines: String,
    bug: String,
}

impl Patch {
    /// Reads all patches of `folder`, in the order of their names. Errors in a patch are added to
    /// `wrong`.
    pub(super) fn read_all(folder: &Path, wrong: &mut Vec<String>) -> Result<Vec<Patch>> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let mut patches = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let id = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            match Patch::parse(&id, &text) {
                Ok(patch) => patches.push(patch),
                Err(error) => wrong.push(format!("{id}: {error:#}")),
            }
        }
        patches.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(patches)
    }

    fn parse(id: &str, text: &str) -> Result<Patch> {
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let title = title.context("the first line is no comment that says what the bug is")?;
        let contents: Contents = toml::from_str(text)?;
        let first = contents.change.first().context("nothing is changed")?;
        let package = first.file.strip_prefix("crates/");
        let package = package
            .and_then(|rest| rest.split('/').next())
            .with_context(|| format!("{} is not below crates/", first.file))?;
        ensure!(!contents.claims.is_empty(), "no test is named");
        for change in &contents.change {
            let is_whole = |text: &str| text.is_empty() || text.ends_with('\n');
            ensure!(!change.lines.is_empty(), "no lines to change are named");
            ensure!(
                is_whole(&change.lines) && is_whole(&change.bug),
                "the lines are not whole"
            );
            ensure!(change.lines != change.bug, "nothing is changed");
        }
        let claims = contents.claims.iter();
        Ok(Patch {
            id: id.to_owned(),
            title: title.to_owned(),
            claims: claims
                .map(|text| Claim::parse(text, package))
                .collect::<Result<_>>()?,
            changes: contents.change,
        })
    }

    /// Returns the changed files: their paths below `tree`, and their texts with the bug in them.
    pub(super) fn apply(&self, tree: &Path) -> Result<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        for change in &self.changes {
            let text = match files.remove(&change.file) {
                Some(text) => text,
                None => fs::read_to_string(tree.join(&change.file))
                    .with_context(|| format!("cannot read {}", change.file))?,
            };
            let text = change.apply(&text).with_context(|| change.file.clone())?;
            files.insert(change.file.clone(), text);
        }
        Ok(files)
    }
}

impl Change {
    fn apply(&self, text: &str) -> Result<String> {
        let at_line_start = |at: &usize| *at == 0 || text.as_bytes()[*at - 1] == b'\n';
        let places: Vec<usize> = text
            .match_indices(&self.lines)
            .map(|(at, _)| at)
            .filter(at_line_start)
            .collect();
        let [at] = places[..] else {
            bail!(
                "these lines occur {} times, and not once:\n{}",
                places.len(),
                self.lines
            );
        };
        let mut changed = text.to_owned();
        changed.replace_range(at..at + self.lines.len(), &self.bug);
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "# No grace period.
claims = ['loom: z1_, may hang', 'test model: reuse']
[[change]]
file = 'crates/innerspace/src/a.rs'
lines = '''
    wait();
'''
bug = ''
";

    #[test]
    fn a_patch_has_a_title_claims_and_changes() {
        let patch = Patch::parse("Z1", WHOLE).unwrap();
        assert_eq!(patch.title, "No grace period.");
        let claims = ["loom: z1_, may hang", "test model: reuse"];
        assert_eq!(
            patch.claims,
            claims.map(|text| Claim::parse(text, "innerspace").unwrap())
        );
        assert_eq!(patch.changes[0].lines, "    wait();\n");
    }

    #[test]
    fn an_incomplete_patch_is_an_error() {
        for (was, is) in [
            ("# No grace period.\n", ""),
            ("['loom: z1_, may hang', 'test model: reuse']", "[]"),
            ("['loom: z1_, may hang', 'test model: reuse']", "['loom']"),
            ("bug = ''", "bug = ''\nbag = ''"),
            ("bug = ''", "bug = 'wait'"),
            ("bug = ''", "bug = '''\n    wait();\n'''"),
            ("crates/", ""),
            ("'''\n    wait();\n'''", "''"),
        ] {
            assert!(WHOLE.contains(was), "{was}");
            assert!(Patch::parse("Z1", &WHOLE.replace(was, is)).is_err(), "{is}");
        }
    }

    #[test]
    fn lines_must_occur_once_and_whole() {
        let change = Patch::parse("Z1", WHOLE).unwrap().changes.remove(0);
        assert_eq!(
            change.apply("    wait();\n    go();\n").unwrap(),
            "    go();\n"
        );
        assert_eq!(
            change.apply("        wait();\n    wait();\n").unwrap(),
            "        wait();\n"
        );
        assert!(change.apply("    go();\n").is_err());
        assert!(change.apply("    wait();\n    wait();\n").is_err());
    }
}
