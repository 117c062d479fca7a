//! Checks that a layer imports only from those below it, and that `unsafe` stays in its modules.
//!
//! The sources are read as Rust tokens, so that comments and strings do not count and every path
//! does: `use` declarations with their groups, paths in expressions and types, and `super::` chains
//! that leave a layer. A name that `lib.rs` re-exports belongs to the layer that it comes from.

mod circles;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The layers, lowest first. The modules of one row may use each other.
const LAYERS: [&[&str]; 11] = [
    &["units", "texts", "stats", "sync", "sys"],
    &["exec"],
    &["frame"],
    &["group"],
    &["reclaim"],
    &["store"],
    &["cache"],
    &["dax"],
    &["space"],
    &["memory"],
    &["error", "file"],
];

/// The modules in which `unsafe` may stand, as beginnings of paths below `src`.
const MAY_BE_UNSAFE: [&str; 12] = [
    "cache/read/as_bytes",
    "exec/loom_models",
    "sys/",
    "sync/",
    "frame/",
    "space/tlb/",
    "space/table/pinned",
    "space/table/still",
    "dax/device",
    "store/file/ring/flights",
    "dax/loom_models",
    "dax/tests/cutting",
];

/// A path as written, with groups expanded: `use a::{b, c}` is `a::b` and `a::c`.
#[derive(Clone, Debug)]
struct Written {
    names: Vec<String>,
    line: usize,
}

/// The layer from which each name in the crate's root comes.
type RootNames = BTreeMap<String, String>;

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&layer))
}

fn tokens(source: &str, place: &str) -> Vec<TokenTree> {
    let stream: TokenStream = source
        .parse()
        .unwrap_or_else(|error| panic!("{place}: cannot be read as Rust: {error}"));
    stream.into_iter().collect()
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => {
            Some(ident.to_string().trim_start_matches("r#").to_owned())
        }
        _ => None,
    }
}

/// Expands the path that begins at `at`. Returns the paths and the position after them.
fn expand(tokens: &[TokenTree], mut at: usize) -> (Vec<Written>, usize) {
    let mut names = Vec::new();
    let line = tokens[at].span().start().line;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(_)) => names.extend(ident(tokens.get(at))),
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => names.push("*".to_owned()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let mut paths = Vec::new();
                let mut next = 0;
                while next < inner.len() {
                    let (tails, after) = expand(&inner, next);
                    for tail in tails {
                        let all = names.iter().cloned().chain(tail.names).collect();
                        paths.push(Written {
                            names: all,
                            line: tail.line,
                        });
                    }
                    next = after.max(next + 1);
                    while next < inner.len() && !is_punct(inner.get(next - 1), ',') {
                        next += 1;
                    }
                }
                return (paths, at + 1);
            }
            _ => return (vec![Written { names, line }], at),
        }
        at += 1;
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            return (vec![Written { names, line }], at);
        }
        at += 2;
    }
}

/// Calls `found` with every path from `crate`, `super` or `self`, and with the module that it is
/// in.
fn walk(tokens: &[TokenTree], module: &[String], found: &mut dyn FnMut(&Written, &[String])) {
    let mut at = 0;
    while at < tokens.len() {
        let path_follows = is_punct(tokens.get(at + 1), ':') && is_punct(tokens.get(at + 2), ':');
        let start = ident(tokens.get(at))
            .is_some_and(|name| ["crate", "super", "self"].contains(&name.as_str()));
        if start && path_follows {
            let (paths, next) = expand(tokens, at);
            paths.iter().for_each(|path| found(path, module));
            at = next;
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let inline_module = at >= 2 && ident(tokens.get(at - 2)).as_deref() == Some("mod");
            match ident(tokens.get(at.wrapping_sub(1))) {
                Some(name) if inline_module => {
                    let inside: Vec<String> = module.iter().cloned().chain([name]).collect();
                    walk(&inner, &inside, found);
                }
                _ => walk(&inner, module, found),
            }
        }
        at += 1;
    }
}

/// Returns the name in the crate's root that a path goes through, if it reaches the root.
fn root_name(path: &Written, module: &[String]) -> Option<String> {
    let mut here = module.to_vec();
    for name in &path.names {
        match name.as_str() {
            "crate" => here.clear(),
            "self" => {}
            "super" => drop(here.pop()),
            name if here.is_empty() => return Some(name.to_owned()),
            _ => return None,
        }
    }
    None
}

/// Returns the module of a file below `src`: `frame/lock.rs` is `frame::lock`.
fn module_of(relative: &str) -> Vec<String> {
    let stem = relative.trim_end_matches(".rs").trim_end_matches("/mod");
    stem.split('/').map(str::to_owned).collect()
}

/// Returns the imports in one file that lead upwards, as lines of text.
fn upward(relative: &str, source: &str, roots: &RootNames) -> Vec<String> {
    let module = module_of(relative);
    let own = rank(&module[0]).unwrap_or_else(|| panic!("{relative}: is in no layer"));
    let mut wrong = Vec::new();
    walk(&tokens(source, relative), &module, &mut |path, inside| {
        let Some(name) = root_name(path, inside) else {
            return;
        };
        let layer = roots.get(&name).unwrap_or(&name);
        let written = path.names.join("::");
        match rank(layer) {
            Some(other) if other <= own => {}
            Some(_) => wrong.push(format!(
                "{relative}:{}: {written} is of the layer {layer}, above {}",
                path.line, module[0]
            )),
            None => wrong.push(format!(
                "{relative}:{}: {written} is of no known layer",
                path.line
            )),
        }
    });
    wrong
}

/// Returns the names that a `lib.rs` re-exports, each with its layer. For a glob, `module_source`
/// gives the text of the module's root file, and the names are those that it declares or
/// re-exports.
fn root_names(lib: &str, module_source: &dyn Fn(&str) -> String) -> RootNames {
    let mut roots = RootNames::new();
    for path in declared_uses(&tokens(lib, "lib.rs")) {
        let names: Vec<&String> = path
            .names
            .iter()
            .filter(|name| *name != "crate" && *name != "self")
            .collect();
        let (Some(layer), Some(last)) = (names.first(), names.last()) else {
            continue;
        };
        if *last != "*" {
            roots.insert((*last).clone(), (*layer).clone());
            continue;
        }
        let module = tokens(&module_source(layer), layer);
        let reexported = declared_uses(&module)
            .into_iter()
            .filter_map(|mut use_| use_.names.pop());
        for name in declared_items(&module).into_iter().chain(reexported) {
            roots.insert(name, (*layer).clone());
        }
    }
    roots
}

/// Returns the paths of the `use` declarations at the top of a file.
fn declared_uses(tokens: &[TokenTree]) -> Vec<Written> {
    let starts =
        (1..tokens.len()).filter(|&at| ident(tokens.get(at - 1)).as_deref() == Some("use"));
    starts.flat_map(|at| expand(tokens, at).0).collect()
}

/// Returns the names of the items declared at the top of a file.
fn declared_items(tokens: &[TokenTree]) -> Vec<String> {
    let kinds = [
        "struct", "enum", "union", "trait", "type", "const", "static", "fn", "mod",
    ];
    (1..tokens.len())
        .filter(|&at| ident(tokens.get(at - 1)).is_some_and(|kind| kinds.contains(&kind.as_str())))
        .filter_map(|at| ident(tokens.get(at)))
        .collect()
}

/// Returns the lines with the word `unsafe` in code.
fn unsafe_lines(tokens: &[TokenTree]) -> Vec<usize> {
    let mut lines = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            TokenTree::Group(group) => {
                lines.extend(unsafe_lines(
                    &group.stream().into_iter().collect::<Vec<_>>(),
                ));
            }
            _ => {}
        }
    }
    lines
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Reads every source file but `lib.rs`: returns its path below `src` and its text.
fn sources() -> Vec<(String, String)> {
    fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the source folder can be listed") {
            let path = entry.expect("the source folder can be listed").path();
            if path.is_dir() {
                collect(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    collect(&source_folder(), &mut files);
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let relative = path.strip_prefix(source_folder()).expect("found below it");
            let relative = relative.to_string_lossy().replace('\\', "/");
            (
                relative,
                fs::read_to_string(&path).expect("a source file is text"),
            )
        })
        .filter(|(relative, _)| relative != "lib.rs")
        .collect()
}

fn module_root(module: &str) -> String {
    let folder = source_folder();
    fs::read_to_string(folder.join(format!("{module}/mod.rs")))
        .or_else(|_| fs::read_to_string(folder.join(format!("{module}.rs"))))
        .unwrap_or_default()
}

#[test]
fn imports_point_down() {
    let lib = fs::read_to_string(source_folder().join("lib.rs")).expect("there is a lib.rs");
    let roots = root_names(&lib, &module_root);
    let wrong: Vec<String> = sources()
        .iter()
        .flat_map(|(path, text)| upward(path, text, &roots))
        .collect();
    assert!(
        wrong.is_empty(),
        "imports that point up:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn unsafe_stays_in_its_modules() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        if !MAY_BE_UNSAFE.iter().any(|start| path.starts_with(start)) {
            let lines = unsafe_lines(&tokens(&text, &path));
            wrong.extend(lines.into_iter().map(|line| format!("{path}:{line}")));
        }
    }
    assert!(
        wrong.is_empty(),
        "unsafe outside {MAY_BE_UNSAFE:?}:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn an_import_that_points_up_is_found_however_it_is_written() {
    let lib = "pub use cache::{PagedFile, view::View as Bytes}; mod units; pub use units::*;";
    let units = |_: &str| "pub const PAGE: usize = 1; pub struct Size; pub use x::Y;".to_owned();
    let roots = root_names(lib, &units);
    let caught = |path: &str, source: &str| upward(path, source, &roots).len();
    for source in [
        "use crate::space::Space;",
        "use crate::{units, space::{Space, Vma}};",
        "use crate::{\n    group as g,\n};",
        "use super::cache::View;",
        "use super::{self, group};",
        "pub(in crate::memory) fn f() {}",
        "fn f(x: &crate::PagedFile) {}",
        "fn f() { g([crate::store::open()]) }",
        "mod tests { use super::super::super::space; }",
        "macro_rules! m { () => { $crate::reclaim::Pool } }",
        "use crate::*;",
        "use crate::unheard_of::Thing;",
    ] {
        let inside = if source.starts_with("mod") {
            "frame/lock.rs"
        } else {
            "frame/mod.rs"
        };
        assert!(caught(inside, source) > 0, "not caught: {source}");
    }
    assert_eq!(
        caught(
            "frame/mod.rs",
            "use crate::{space::{Space, Vma}, sync, cache};"
        ),
        3
    );
}

#[test]
fn an_import_that_points_down_or_sideways_is_let_through() {
    let lib = "pub use cache::{PagedFile, view::View as Bytes}; mod units; pub use units::*;";
    let units = |_: &str| "pub const PAGE: usize = 1; pub struct Size; pub use x::Y;".to_owned();
    let roots = root_names(lib, &units);
    for (path, source) in [
        (
            "frame/mod.rs",
            "use crate::{PAGE, Size, sync::atomic, sys}; use crate::Y;",
        ),
        (
            "frame/lock.rs",
            "use super::{meta, space}; use super::super::units::PAGE;",
        ),
        (
            "frame/mod.rs",
            "//! See crate::space::X.\n/* crate::cache */ const A: &str = \"crate::space\";",
        ),
        (
            "frame/mod.rs",
            "pub(crate) fn f() { self::space::g(); std::cache::h(); }",
        ),
        (
            "frame/mod.rs",
            "mod tests { use super::*; use super::cache::X; }",
        ),
        ("sync/mod.rs", "use crate::sys::barrier;"),
        ("sys/mod.rs", "use crate::sync::atomic;"),
        (
            "space/mod.rs",
            "use crate::{PagedFile, cache::Mappers, dax};",
        ),
        ("memory/mod.rs", "use crate::space::Space;"),
    ] {
        assert_eq!(upward(path, source, &roots), [""; 0], "{path}: {source}");
    }
}

#[test]
fn every_module_of_the_crate_has_its_layer() {
    let lib = fs::read_to_string(source_folder().join("lib.rs")).expect("there is a lib.rs");
    let lib = tokens(&lib, "lib.rs");
    let modules = (1..lib.len())
        .filter(|&at| ident(lib.get(at - 1)).as_deref() == Some("mod"))
        .filter_map(|at| ident(lib.get(at)));
    for module in modules {
        assert!(
            rank(&module).is_some(),
            "give the module {module} its place in LAYERS"
        );
    }
}

#[test]
fn the_word_unsafe_is_found_in_code_alone() {
    let source = r#"// unsafe
        fn f() { g("unsafe"); unsafe { h() } }
        #[allow(unsafe_code)]
        unsafe impl A for B {}"#;
    assert_eq!(unsafe_lines(&tokens(source, "test")), [2, 4]);
}
