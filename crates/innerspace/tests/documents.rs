//! Checks that the documents name files that exist, and that the tests cite cases of the
//! specification.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Pages of the specification for features that are not built yet.
const NOT_BUILT: [&str; 2] = ["swap.md", "tenants.md"];

/// Names that stand for several files.
const PATTERNS: [&str; 4] = [
    "mod.rs",
    "tests/NAME.rs",
    "mutants/ID.toml",
    "mutants/L3.toml",
];

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.join("../..").canonicalize().expect("a checkout")
}

/// Returns the files below `folder` whose names end in `ending`.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<PathBuf> {
    files(&root().join("crates"), ".rs")
}

/// Returns the words of a text that may be names of files.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_other = |c: char| !(c.is_ascii_alphanumeric() || "_-./*".contains(c));
    text.split(is_other).map(|word| word.trim_end_matches('.'))
}

/// Whether a word names a file.
fn is_file_name(word: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".sh"];
    endings.iter().any(|ending| word.ends_with(ending)) && !word.contains('*')
}

/// Returns a text without its links, and the targets of the links to files.
fn part_links(text: &str) -> (String, Vec<&str>) {
    let (mut rest, mut targets) = (String::new(), Vec::new());
    for (number, piece) in text.split("](").enumerate() {
        let (target, after) = match number {
            0 => ("", piece),
            _ => piece.split_once(')').unwrap_or((piece, "")),
        };
        let file = target.split('#').next().unwrap_or(target);
        if !file.is_empty() && !file.contains("://") {
            targets.push(file);
        }
        let end = after.rfind('[').unwrap_or(after.len());
        rest.push_str(&after[..end]);
        rest.push(' ');
    }
    (rest, targets)
}

#[test]
fn every_file_that_a_document_names_exists() {
    let root = root();
    let library = root.join("crates/innerspace/src");
    let mut missing = Vec::new();
    for document in files(&root, ".md") {
        let text = fs::read_to_string(&document).expect("a document");
        let (rest, targets) = part_links(&text);
        let beside = document.parent().expect("a folder");
        let above = beside.ancestors().take_while(|dir| dir.starts_with(&root));
        let folders: Vec<&Path> = above.chain([&*library]).collect();
        let exists = |name: &str| folders.iter().any(|folder| folder.join(name).exists());
        let named = words(&rest).filter(|word| is_file_name(word) && !PATTERNS.contains(word));
        let shown = document.strip_prefix(&root).expect("below the root");
        for name in named.filter(|name| !exists(name)) {
            missing.push(format!("{}: {name}", shown.display()));
        }
        for target in targets.iter().filter(|name| !beside.join(name).exists()) {
            missing.push(format!("{}: link to {target}", shown.display()));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_code_map_has_every_layer_and_no_room_that_does_not_exist() {
    let root = root();
    let library = root.join("crates/innerspace/src");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("a document");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let (layers, others): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with('/'));
    let layers: BTreeSet<_> = layers
        .iter()
        .map(|name| name.trim_end_matches('/'))
        .collect();
    let entries = fs::read_dir(&library).expect("the library");
    let paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    let folders = paths.iter().filter(|path| path.is_dir());
    let folders = folders.filter_map(|path| path.file_name().and_then(|name| name.to_str()));
    assert_eq!(
        layers,
        folders.collect(),
        "ARCHITECTURE.md, and the folders"
    );
    let rooms = others
        .iter()
        .filter(|name| name.contains('/') && !name.contains("::"));
    let missing: Vec<_> = rooms.filter(|room| !library.join(room).is_dir()).collect();
    assert!(missing.is_empty(), "no such rooms: {missing:?}");
}

/// Returns the names of functions, types and constants that a source defines.
fn defined(source: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<_> = source.split(|c| !is_word(c)).collect();
    let kinds = ["fn", "struct", "enum", "trait", "const", "type"];
    let pairs = words.windows(2).filter(|pair| kinds.contains(&pair[0]));
    pairs.map(|pair| pair[1]).collect()
}

/// Returns the faults in the rows of "Where to change what": a file that does not exist, a name
/// that its file does not define, a row without a name.
fn faults_of_rows(section: &str, library: &Path) -> Vec<String> {
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let mut faults = Vec::new();
    for row in rows.skip(1) {
        let (mut source, mut named) = (None, 0);
        for name in row.split('`').skip(1).step_by(2) {
            if name.ends_with(".rs") {
                source = fs::read_to_string(library.join(name)).ok();
                if source.is_none() {
                    faults.push(format!("no file {name}"));
                }
                continue;
            }
            named += 1;
            if source
                .as_deref()
                .is_some_and(|text| !defined(text).contains(name))
            {
                faults.push(format!("{name} is not defined there: {row}"));
            }
        }
        if named == 0 {
            faults.push(format!("names nothing: {row}"));
        }
    }
    faults
}

#[test]
fn every_place_to_change_something_exists() {
    let library = root().join("crates/innerspace/src");
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a document");
    let (_, rest) = text
        .split_once("## Where to change what\n")
        .expect("a section");
    let section = rest.split("\n## ").next().expect("its text");
    let faults = faults_of_rows(section, &library);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .count();
    assert!(rows > 20, "{rows} rows");

    let wrong = "| question | where |\n|---|---|\n| a | `reclaim/nowhere.rs`: `pass` |\n\
                 | b | `reclaim/uses.rs`: `mark_accessed`, `unused` |\n| c | `reclaim/uses.rs` |";
    assert_eq!(faults_of_rows(wrong, &library).len(), 3);
}

#[test]
fn every_document_that_a_comment_names_exists() {
    let root = root();
    let mut missing = Vec::new();
    for source in sources() {
        let text = fs::read_to_string(&source).expect("a source");
        let named = words(&text).filter(|word| word.starts_with("docs/") && word.ends_with(".md"));
        for name in named.filter(|name| !root.join(name).exists()) {
            missing.push(format!("{}: {name}", source.display()));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Returns the number of the case (`P18`) with which a text begins.
fn case(text: &str) -> Option<&str> {
    let letter = text.chars().next().filter(char::is_ascii_uppercase)?;
    let digits = text[letter.len_utf8()..].find(|c: char| !c.is_ascii_digit());
    let end = digits.map_or(text.len(), |at| at + 1);
    (end > 1).then(|| &text[..end])
}

/// Returns the cases that a line cites: `// spec: L3, L4`.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    let list = line.split_once("// spec: ").map_or("", |(_, list)| list);
    list.split(", ").map_while(case)
}

#[test]
fn tests_cite_cases_that_there_are_and_every_case_is_cited() {
    let mut page_of = BTreeMap::new();
    for page in files(&root().join("docs/spec"), ".md") {
        let text = fs::read_to_string(&page).expect("a page");
        let name = page.file_name().expect("a name").to_string_lossy();
        let heads = text.lines().filter_map(|line| line.strip_prefix("- "));
        for number in heads.filter_map(case) {
            let before = page_of.insert(number.to_owned(), name.clone().into_owned());
            assert_eq!(before, None, "{number} stands on two pages");
        }
    }
    let mut unknown = Vec::new();
    let mut uncited = page_of.clone();
    for source in sources() {
        let text = fs::read_to_string(&source).expect("a source");
        for number in text.lines().flat_map(cited) {
            if !page_of.contains_key(number) {
                unknown.push(format!("{}: {number}", source.display()));
            }
            uncited.remove(number);
        }
    }
    uncited.retain(|_, page| !NOT_BUILT.contains(&page.as_str()));
    assert!(unknown.is_empty(), "no such case: {unknown:?}");
    assert!(uncited.is_empty(), "cited by no test: {uncited:?}");
}
