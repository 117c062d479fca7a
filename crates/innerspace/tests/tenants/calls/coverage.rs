//! The tables of calls against the library's sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::TABLES;

/// Types whose calls a tenant does not have, or whose calls touch nothing of a memory.
const OTHERS: [(&str, &[&str]); 4] = [
    (
        "errors, and what is asked of them",
        &[
            "DaxError",
            "DeviceError",
            "Fault",
            "FaultKind",
            "FileError",
            "GroupError",
            "LimitError",
            "MemoryError",
            "FileOpenError",
            "OpenError",
            "SnapshotFileError",
            "SpaceError",
            "StoreErrorKind",
        ],
    ),
    (
        "values",
        &[
            "AddressWidth",
            "Identity",
            "Limits",
            "PageCount",
            "Protection",
            "Version",
            "VirtAddr",
        ],
    ),
    (
        "calls of the memory's owner",
        &[
            "Limit",
            "MemoryBuilder",
            "MemoryStats",
            "MissCurve",
            "Totals",
        ],
    ),
    ("means of testing", &["FaultyStore", "Rule"]),
];

/// Calls of [`Memory`](innerspace::Memory), a handle that only the owner of all groups should have.
/// A tenant gets what the other calls of it make.
const OWNERS: [&str; 20] = [
    "builder",
    "create",
    "create_dax_on",
    "create_group",
    "create_space",
    "limit",
    "load_snapshot",
    "miss_curve",
    "open",
    "open_dax",
    "open_dax_rw",
    "open_rw",
    "pressure",
    "reclaim",
    "root_group",
    "set_error_hook",
    "stats",
    "take_errors",
    "tick",
    "with_limit",
];

/// Calls by which others are begun, and those that are not documented.
const IN_OTHERS: [&str; 6] = [
    "FileOptions::new",
    "Memory::dax_options",
    "Memory::file_options",
    "SpaceOptions::new",
    "Batch::new",
    "validate",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = name.contains("tests") || name.contains("models");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if name.ends_with(".rs") && !is_test {
            found.push(path);
        }
    }
}

/// The name at the start of `text`.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The type that an `impl` is of, if it is one of a type's own.
fn subject(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let mut depth = 0;
    let generics = rest.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    });
    let rest = rest[generics? + 1..].trim_start();
    let name = rest.split(['<', ' ']).next()?.rsplit("::").next()?;
    (!rest.contains(" for ")).then_some(name)
}

/// The name in `fn name`, or the two names of a call's forms, in a table of forms.
fn names(line: &str) -> Vec<&str> {
    let line = line.trim_start();
    let public = line
        .strip_prefix("pub const ")
        .or(line.strip_prefix("pub "));
    if let Some(rest) = public.and_then(|line| line.strip_prefix("fn ")) {
        return Some(word(rest))
            .filter(|name| !name.is_empty())
            .into_iter()
            .collect();
    }
    let rest = line.strip_prefix("fn ").unwrap_or(line);
    match rest.split_once(", try_") {
        Some((name, other)) if name == word(name) && word(other) == name => {
            vec![name, &rest[name.len() + 2..][..name.len() + 4]]
        }
        _ => Vec::new(),
    }
}

/// Returns the public calls that a source file declares, as `Type::name`.
fn calls_of(text: &str) -> Vec<String> {
    let (mut types, mut found) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some((_, header)) = line.split_once("forms! { ") {
            types = header.split("; ").map(word).collect();
        } else if line.starts_with("impl") {
            types = subject(line).into_iter().collect();
        }
        for name in names(line) {
            found.extend(types.iter().map(|of| format!("{of}::{name}")));
        }
    }
    found
}

fn is_tenants(call: &str) -> bool {
    let (of, name) = call.split_once("::").unwrap();
    let is_other = OTHERS.iter().any(|(_, types)| types.contains(&of));
    let is_owners = of == "Memory" && OWNERS.contains(&name);
    let in_others = IN_OTHERS
        .iter()
        .any(|other| *other == call || *other == name);
    !is_other && !is_owners && !in_others
}

#[test]
fn every_call_of_the_api_that_a_tenant_has_is_tried() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    let public: BTreeSet<_> = texts.flat_map(|text| calls_of(&text)).collect();
    assert!(public.len() > 300, "{}", public.len());
    let entries = TABLES.iter().copied().flatten();
    let tried: BTreeSet<_> = entries.map(|entry| entry.name.to_owned()).collect();
    let missing: Vec<_> = public
        .difference(&tried)
        .filter(|call| is_tenants(call))
        .collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    let unknown: Vec<_> = tried.difference(&public).collect();
    assert!(unknown.is_empty(), "not of the API: {unknown:?}");
}
