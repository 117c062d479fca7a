//! The old way, until no source uses it: mutants under `cfg(mutant = "ID")`, each beside a comment
//! `// mutant: ID (claim; claim)`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::claim::Claim;

/// All mutants in the Rust sources below `crates`, with what their comments claim, which may be
/// nothing.
pub(super) fn find(crates: &Path) -> Result<BTreeMap<String, BTreeSet<Claim>>> {
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
        .map(|claim| Claim::parse(claim, package))
        .collect::<Result<_>>()?;
    let ids = ids.split(',').map(str::trim);
    Ok(ids.map(|id| (id.to_owned(), claims.clone())).collect())
}
