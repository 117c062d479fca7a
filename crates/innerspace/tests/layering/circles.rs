//! Checks that inside a layer, files import each other in no circle except the few named here.
//!
//! An import is a path in code: in a `use`, a type or an expression. If a module re-exports a name
//! that another one defines, a path to the name counts as one to the definition. Re-exports
//! themselves do not count, nor does code that is compiled for tests only.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenTree};

use super::{Written, expand, ident, is_punct, module_of, sources, tokens};

/// The circles that exist, each with its files in order. Do not add one: move a type down instead,
/// or away from the code that works on it.
const CIRCLES: [&[&str]; 3] = [
    &["cache::core", "cache::core::ready_list", "cache::service"],
    &["frame::frames", "frame::owned"],
    &["store::file::ring::flights", "store::request"],
];

const _: () = assert!(CIRCLES.len() <= 5);

/// A module, as the names that lead to it from the crate's root.
type Module = Vec<String>;

/// The files of the crate as modules, and which of them import which.
#[derive(Default)]
struct Imports {
    /// The paths that each file refers to, as written.
    paths: BTreeMap<Module, Vec<Written>>,
    /// The names that each file re-exports, each with its origin.
    reexports: BTreeMap<(Module, String), Written>,
}

impl Imports {
    /// Collects the imports of files, given as paths below `src` with their text.
    fn read(files: &[(String, String)]) -> Imports {
        let mut read = BTreeMap::new();
        let mut of_tests = BTreeSet::new();
        for (path, text) in files {
            let module = module_of(path);
            let (code, tests) = without_tests(&tokens(text, path));
            of_tests.extend(tests.into_iter().map(|name| child(&module, &name)));
            read.insert(module, code);
        }
        read.retain(|module, _| !(1..=module.len()).any(|len| of_tests.contains(&module[..len])));
        let mut imports = Imports::default();
        for (module, code) in read {
            let mut paths = Vec::new();
            collect(&code, &mut |path, is_reexport| {
                if !is_reexport {
                    paths.push(path);
                } else if let Some(name) = path.names.last() {
                    imports
                        .reexports
                        .insert((module.clone(), name.clone()), path);
                }
            });
            imports.paths.insert(module, paths);
        }
        imports
    }

    /// Returns the file that defines the target of a path in `module`, if it is one of the crate's.
    fn target(&self, module: &Module, path: &Written) -> Option<Module> {
        let (mut found, mut rest) = self.follow(module, &path.names)?;
        // A chain of re-exports has at most as many links as there are modules.
        for _ in 0..self.paths.len() {
            let Some(name) = rest.first() else { break };
            let Some(exported) = self.reexports.get(&(found.clone(), name.clone())) else {
                break;
            };
            let mut names = exported.names.clone();
            names.extend(rest[1..].iter().cloned());
            match self.follow(&found, &names) {
                Some(next) if next.0 != found => (found, rest) = next,
                _ => break,
            }
        }
        Some(found)
    }

    /// Returns the file that a path leads into, and the names that are left of the path.
    fn follow(&self, module: &Module, names: &[String]) -> Option<(Module, Vec<String>)> {
        let is_keyword = |name: &String| ["crate", "self", "super"].contains(&name.as_str());
        let first = names.first()?;
        if !is_keyword(first) && !self.paths.contains_key(&child(module, first)) {
            return None;
        }
        let mut here = module.clone();
        let mut left = names.iter().peekable();
        while let Some(name) = left.next_if(|name| is_keyword(name)) {
            match name.as_str() {
                "crate" => here.clear(),
                "super" => drop(here.pop()),
                _ => {}
            }
        }
        while let Some(name) = left.next_if(|name| self.paths.contains_key(&child(&here, name))) {
            here.push(name.clone());
        }
        let rest = left.cloned().collect();
        self.paths.contains_key(&here).then_some((here, rest))
    }

    /// Returns which files of its own layer each file imports.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let edges_of = |(module, paths): (&Module, &Vec<Written>)| {
            let targets = paths.iter().filter_map(|path| self.target(module, path));
            let own = targets.filter(|target| target != module && target[0] == module[0]);
            (module.clone(), own.collect())
        };
        self.paths.iter().map(edges_of).collect()
    }
}

fn child(module: &Module, name: &str) -> Module {
    let mut child = module.clone();
    child.push(name.to_owned());
    child
}

/// Whether a `cfg` compiles an item for tests only: it names `test` outside of a `not`.
fn is_of_tests(attribute: &[TokenTree]) -> bool {
    fn names_test(tokens: &[TokenTree]) -> bool {
        tokens.iter().enumerate().any(|(at, token)| match token {
            TokenTree::Ident(name) => name == "test",
            TokenTree::Group(group) => {
                let before = ident(tokens.get(at.wrapping_sub(1)));
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                before.as_deref() != Some("not") && names_test(&inner)
            }
            _ => false,
        })
    }
    ident(attribute.first()).as_deref() == Some("cfg") && names_test(attribute)
}

/// Returns the tokens without the items that are compiled for tests only, and the modules among
/// these items.
fn without_tests(tokens: &[TokenTree]) -> (Vec<TokenTree>, Vec<String>) {
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        if let (true, Some(TokenTree::Group(group))) =
            (is_punct(tokens.get(at), '#'), tokens.get(at + 1))
            && group.delimiter() == Delimiter::Bracket
            && is_of_tests(&group.stream().into_iter().collect::<Vec<_>>())
        {
            at += 2;
            while let Some(token) = tokens.get(at) {
                if ident(tokens.get(at)).as_deref() == Some("mod") {
                    modules.extend(ident(tokens.get(at + 1)));
                }
                at += 1;
                let is_body = matches!(token, TokenTree::Group(group)
                    if group.delimiter() == Delimiter::Brace);
                if is_body || is_punct(Some(token), ';') || is_punct(Some(token), ',') {
                    break;
                }
            }
            continue;
        }
        kept.push(match &tokens[at] {
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let (inner, _) = without_tests(&inner);
                let stream = inner.into_iter().collect();
                let mut kept = proc_macro2::Group::new(group.delimiter(), stream);
                kept.set_span(group.span());
                TokenTree::Group(kept)
            }
            token => token.clone(),
        });
        at += 1;
    }
    (kept, modules)
}

/// Calls `found` with every path, and whether the path is in a re-export.
fn collect(tokens: &[TokenTree], found: &mut dyn FnMut(Written, bool)) {
    let mut at = 0;
    while at < tokens.len() {
        let is_start = at == 0 || !is_punct(tokens.get(at - 1), ':');
        let goes_on = is_punct(tokens.get(at + 1), ':') && is_punct(tokens.get(at + 2), ':');
        if is_start && goes_on && ident(tokens.get(at)).is_some() {
            let is_use = at > 0 && ident(tokens.get(at - 1)).as_deref() == Some("use");
            let before = at.checked_sub(2).and_then(|before| tokens.get(before));
            let is_visible = match before {
                Some(TokenTree::Ident(word)) => word == "pub",
                Some(TokenTree::Group(group)) => {
                    let is_scope = group.delimiter() == Delimiter::Parenthesis;
                    is_scope && ident(tokens.get(at.wrapping_sub(3))).as_deref() == Some("pub")
                }
                _ => false,
            };
            let (paths, next) = expand(tokens, at);
            paths
                .into_iter()
                .for_each(|path| found(path, is_use && is_visible));
            at = next.max(at + 1);
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            let is_scope = ident(tokens.get(at.wrapping_sub(1))).as_deref() == Some("pub");
            if !is_scope {
                collect(&group.stream().into_iter().collect::<Vec<_>>(), found);
            }
        }
        at += 1;
    }
}

/// Returns the sets of files in which each reaches each other, the largest first.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Module> = vec![from];
        while let Some(module) = next.pop() {
            next.extend(edges[module].iter().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> = edges
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let mut circles = BTreeSet::new();
    for (module, reached) in &reach {
        let back = reached
            .iter()
            .filter(|other| reach[other].contains(*module));
        let circle: BTreeSet<Module> = back.cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// Returns the text of a circle: each file, and its imports from the others.
fn described(circle: &BTreeSet<Module>, edges: &BTreeMap<Module, BTreeSet<Module>>) -> String {
    let line = |module: &Module| {
        let others = edges[module]
            .intersection(circle)
            .map(|other| other.join("::"));
        let others: Vec<String> = others.collect();
        format!("  {} imports {}\n", module.join("::"), others.join(", "))
    };
    circle.iter().map(line).collect()
}

#[test]
fn files_of_a_layer_import_each_other_in_no_circle() {
    let edges = Imports::read(&sources()).edges();
    let found = circles(&edges);
    let names = |circle: &BTreeSet<Module>| -> Vec<String> {
        circle.iter().map(|module| module.join("::")).collect()
    };
    let is_known = |circle: &&BTreeSet<Module>| CIRCLES.iter().any(|known| names(circle) == *known);
    let new: Vec<String> = found
        .iter()
        .filter(|circle| !is_known(circle))
        .map(|circle| described(circle, &edges))
        .collect();
    assert!(new.is_empty(), "circles of imports:\n{}", new.join("\n"));
    for known in CIRCLES {
        assert!(known.len() <= 3, "too large: {known:?}");
        let is_there = found.iter().any(|circle| names(circle) == *known);
        assert!(is_there, "no circle any more, take it off: {known:?}");
    }
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let root = "mod a; mod b; mod c; pub(crate) use a::A; pub use c::deep::D;";
    let found = |a: &str, b: &str| {
        let files = [
            ("l/mod.rs", root),
            ("l/a.rs", a),
            ("l/b.rs", b),
            ("l/c/mod.rs", "pub mod deep;"),
            ("l/c/deep.rs", "use super::super::A; pub struct D;"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        circles(&Imports::read(&files).edges()).len()
    };
    let uses_a = "use super::A;";
    for uses_b in [
        "use super::b::B;",
        "use crate::l::b;",
        "use super::{b::{B, C}, c};",
        "fn f(b: &super::b::B) {}",
        "impl X { fn f() -> Vec<crate::l::b::B> { vec![] } }",
        "#[cfg(not(test))] use super::b::B;",
    ] {
        assert_eq!(found(uses_b, uses_a), 1, "{uses_b}");
    }
    assert_eq!(found("use super::D;", ""), 1, "through re-exports");
    for none in [
        "use super::c;",
        "#[cfg(test)] use super::b::B;",
        "#[cfg(all(test, not(loom)))] mod tests { use super::super::b::B; }",
        "// use super::b::B;",
        "const B: &str = \"super::b::B\";",
    ] {
        assert_eq!(found(none, uses_a), 0, "{none}");
    }
}
