//! Rules for every file of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file longer than this should be split.
const MOST_LINES: usize = 800;

/// Returns folders on somebody's own machine. The names are put together here so that this file
/// passes as well.
fn machine_folders() -> [String; 4] {
    ["work", "home", "root", "Users"].map(|name| format!("/{name}/"))
}

/// Returns the text files of the repository: path below its root, and contents.
fn files() -> Vec<(String, String)> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder can be listed") {
            let entry = entry.expect("the folder can be listed");
            let (path, name) = (entry.path(), entry.file_name());
            // The `.git` of a work tree is a file.
            if name == "target" || name == ".git" {
                continue;
            }
            match path.is_dir() {
                true => collect(&path, found),
                false => found.push(path),
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace's folder");
    let mut found = Vec::new();
    collect(root, &mut found);
    found
        .into_iter()
        .filter_map(|path| {
            let relative = path
                .strip_prefix(root)
                .expect("found below it")
                .display()
                .to_string();
            Some((relative, fs::read_to_string(&path).ok()?))
        })
        .collect()
}

/// Returns the first path in the text that begins with a folder on somebody's machine.
fn machine_path(text: &str) -> Option<String> {
    machine_folders().into_iter().find(|folder| {
        text.match_indices(folder.as_str()).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || "._-~*}>)".contains(c))
        })
    })
}

#[test]
fn no_source_file_is_too_long() {
    let files = files();
    let sources: Vec<_> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .collect();
    assert!(sources.len() > 10, "the sources were not found");
    let long: Vec<_> = sources
        .iter()
        .filter(|(_, text)| text.lines().count() > MOST_LINES)
        .map(|(path, _)| path)
        .collect();
    assert!(long.is_empty(), "more than {MOST_LINES} lines: {long:?}");
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let wrong: Vec<String> = files()
        .iter()
        .filter_map(|(path, text)| Some(format!("{path} names {}", machine_path(text)?)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_machine_path_is_told_from_the_middle_of_another() {
    let [work, home, ..] = machine_folders();
    assert_eq!(machine_path(&format!("cd {work}main")), Some(work));
    assert_eq!(machine_path(&format!("\"{home}me\"")), Some(home.clone()));
    assert_eq!(
        machine_path(&format!("https://example.org{home}page")),
        None
    );
}
