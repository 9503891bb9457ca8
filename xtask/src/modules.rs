//! Module edges within a crate point down: each crate's root lists its modules *bottom up*, and a module may
//! use only those listed before it.
//!
//! The list is a text block in the root's document after the words "bottom up"; each line names one or more
//! modules, then two spaces, then what they do. An edge is a path that begins with `crate::`, or with as many
//! `super::` as lead to the root. A name that the root re-exports counts as its module's; one that the root
//! itself defines counts as an edge to the root, which stands above all. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// Crates whose modules have an order.
const ORDERED: &[&str] =
    &["format", "device", "iscsi-target", "pool", "lock", "fs", "fuse", "bench", "cli"];

/// The crate root, as an edge's end.
const ROOT: &str = "the root";

/// Edges that run up today: one a line, `crate: from to`. The list only shrinks: an edge that is gone must go
/// from here, too.
const RUN_UP: &str = include_str!("modules_up.txt");

/// Reports edges that run up, and modules without a place in their crate's order.
pub fn check(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    for name in ORDERED {
        let krate = Crate::read(root, name)?;
        let order = krate.order();
        for module in krate.modules.iter().filter(|m| !order.contains_key(m.as_str())) {
            problems.push(format!(
                "crates/{name}: module {module} is not in the map \"bottom up\" of the crate's document"
            ));
        }
        let up = krate.edges_up(&order);
        let known = known(name);
        for ((from, to), file) in up.iter().filter(|(edge, _)| !known.contains(edge)) {
            problems
                .push(format!("crates/{name}: {from} uses {to}, which stands above it ({file})"));
        }
        for (from, to) in known.iter().filter(|edge| !up.contains_key(edge)) {
            problems.push(format!(
                "crates/{name}: {from} no longer uses {to}: remove that from xtask/src/modules_up.txt"
            ));
        }
    }
    Ok(())
}

/// What [`RUN_UP`] has of a crate.
fn known(krate: &str) -> BTreeSet<(String, String)> {
    let edges = RUN_UP.lines().filter_map(|line| line.split_once(": "));
    let of_it =
        edges.filter(|(name, _)| *name == krate).filter_map(|(_, edge)| edge.split_once(' '));
    of_it.map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
}

/// What one crate's sources say.
struct Crate {
    document: String,
    modules: BTreeSet<String>,
    /// (from, to) with the first file that has it.
    edges: BTreeMap<(String, String), String>,
}

impl Crate {
    fn read(root: &Path, name: &str) -> Result<Self> {
        let src = root.join("crates").join(name).join("src");
        let lib = src.join("lib.rs");
        let top = if lib.is_file() { lib } else { src.join("main.rs") };
        let text = super::tidy::read(&top)?;
        let file = syn::parse_file(&text).with_context(|| top.display().to_string())?;
        let mut modules = BTreeSet::new();
        let mut exports = BTreeMap::new();
        for item in &file.items {
            match item {
                syn::Item::Mod(m) if !for_tests(&m.attrs) => {
                    modules.insert(m.ident.to_string());
                }
                syn::Item::Use(u) if matches!(u.vis, syn::Visibility::Public(_)) => {
                    exported(&u.tree, None, &mut exports);
                }
                _ => {}
            }
        }
        let document = text
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .fold(String::new(), |t, line| t + line + "\n");
        let mut krate = Self { document, modules, edges: BTreeMap::new() };
        let mut files = Vec::new();
        super::tidy::walk(&src, &mut files)?;
        let mut parsed = Vec::new();
        for path in files.iter().filter(|path| **path != top) {
            let file = syn::parse_file(&super::tidy::read(path)?);
            let inside = path.strip_prefix(&src)?.to_owned();
            parsed.push((
                place(&inside),
                file.with_context(|| inside.display().to_string())?,
                inside,
            ));
        }
        parsed.sort_by(|a, b| a.0.cmp(&b.0));
        let tests: BTreeSet<Vec<String>> =
            parsed.iter().flat_map(|(place, file, _)| test_modules(place, file)).collect();
        for (place, file, inside) in &parsed {
            if !(1..=place.len()).any(|n| tests.contains(&place[..n])) {
                krate.add(place, file, inside, &exports);
            }
        }
        Ok(krate)
    }

    /// The edges of one file.
    fn add(
        &mut self,
        place: &[String],
        file: &syn::File,
        inside: &Path,
        exports: &BTreeMap<String, String>,
    ) {
        let Some(from) = place.first().filter(|first| self.modules.contains(*first)) else {
            return;
        };
        let mut found = Paths { supers: place.len(), ends: BTreeSet::new() };
        found.visit_file(file);
        for end in found.ends {
            let to = match exports.get(&end) {
                _ if self.modules.contains(&end) => end,
                Some(module) if self.modules.contains(module) => module.clone(),
                Some(_) => continue,
                None => ROOT.to_owned(),
            };
            if to != *from {
                let file = inside.display().to_string();
                self.edges.entry((from.clone(), to)).or_insert(file);
            }
        }
    }

    /// Each module's place in the map, from the bottom.
    fn order(&self) -> BTreeMap<&str, usize> {
        let map = self.document.split("bottom up").nth(1).unwrap_or_default();
        let map = map.split("```").nth(1).unwrap_or_default();
        let names = map.lines().skip(1).flat_map(|line| {
            let names = line.trim_start().split("  ").next().unwrap_or_default();
            names.split(", ").map(|name| name.trim().trim_end_matches(','))
        });
        let mut order = BTreeMap::new();
        for (place, name) in names.filter(|name| !name.is_empty()).enumerate() {
            order.insert(name, place);
        }
        order
    }

    fn edges_up(&self, order: &BTreeMap<&str, usize>) -> BTreeMap<(String, String), String> {
        let place = |module: &str| order.get(module).copied().unwrap_or(usize::MAX);
        let up = self.edges.iter().filter(|((from, to), _)| place(from) <= place(to));
        up.map(|(edge, file)| (edge.clone(), file.clone())).collect()
    }
}

/// A file's module path: `alloc/group.rs` is `alloc`, `group`.
fn place(inside: &Path) -> Vec<String> {
    let path = inside.with_extension("");
    let mut parts: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Module paths of the files that a file declares for tests only.
fn test_modules(place: &[String], file: &syn::File) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for item in &file.items {
        if let syn::Item::Mod(m) = item
            && m.content.is_none()
            && for_tests(&m.attrs)
        {
            found.push([place, &[m.ident.to_string()]].concat());
        }
    }
    found
}

/// Names that a `pub use` of the root exports, with the module that they come from.
fn exported(tree: &syn::UseTree, module: Option<&str>, names: &mut BTreeMap<String, String>) {
    let mut put = |name: &syn::Ident| {
        if let Some(module) = module {
            names.insert(name.to_string(), module.to_owned());
        }
    };
    match tree {
        syn::UseTree::Path(path) => {
            let first = path.ident.to_string();
            exported(&path.tree, Some(module.unwrap_or(&first)), names);
        }
        syn::UseTree::Name(name) if module.is_none() => {
            names.insert(name.ident.to_string(), name.ident.to_string());
        }
        syn::UseTree::Name(name) => put(&name.ident),
        syn::UseTree::Rename(rename) if module.is_none() => {
            names.insert(rename.rename.to_string(), rename.ident.to_string());
        }
        syn::UseTree::Rename(rename) => put(&rename.rename),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| exported(tree, module, names));
        }
        syn::UseTree::Glob(_) => {}
    }
}

/// Collects what follows `crate::`, or enough `super::`, in a file without its tests.
struct Paths {
    /// As many `super`s as lead from this file to the root.
    supers: usize,
    ends: BTreeSet<String>,
}

impl Paths {
    fn path(&mut self, names: &[String]) {
        let supers = names.iter().take_while(|name| *name == "super").count();
        let rest = match names.first().map(String::as_str) {
            Some("crate") => names.get(1),
            Some("super") if supers == self.supers => names.get(supers),
            _ => None,
        };
        self.ends.extend(rest.cloned());
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.path(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.path(&with(&rename.ident)),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(before, tree));
            }
            syn::UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !for_tests(&item.attrs) {
            self.tree(&[], &item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            self.supers += 1;
            visit::visit_item_mod(self, item);
            self.supers -= 1;
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.path(&names);
        visit::visit_path(self, path);
    }
}

/// Whether an item is there for tests only: `#[test]`, or a `cfg` that mentions `test`.
fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let path = a.path();
        let words = || match &a.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        path.is_ident("test") || (path.is_ident("cfg") && words() == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(document: &str, file: &str, text: &str) -> Crate {
        let modules = ["low", "high"].map(str::to_owned).into();
        let mut krate = Crate { document: document.to_owned(), modules, edges: BTreeMap::new() };
        let exports = [("High".to_owned(), "high".to_owned())].into();
        let (inside, file) = (Path::new(file), syn::parse_file(text).unwrap());
        krate.add(&place(inside), &file, inside, &exports);
        krate
    }

    const MAP: &str = "Map, bottom up:\n```text\n low   the floor\n high  above\n```\n";

    fn up(file: &str, text: &str) -> Vec<String> {
        let krate = krate(MAP, file, text);
        let edges = krate.edges_up(&krate.order()).into_keys();
        edges.map(|(from, to)| format!("{from} {to}")).collect()
    }

    #[test]
    fn an_edge_up_is_found_in_each_form() {
        let forms = [
            ("low.rs", "use crate::high;"),
            ("low.rs", "use super::high::Thing;"),
            ("low/part.rs", "use super::super::high;"),
            ("low/mod.rs", "use crate::{high::Thing};"),
            ("low.rs", "use crate::High;"),
            ("low.rs", "fn f() { crate::high::g(); }"),
            ("low.rs", "fn f(t: &crate::high::T) {}"),
        ];
        for (file, text) in forms {
            assert_eq!(up(file, text), ["low high"], "{file}: {text}");
        }
    }

    #[test]
    fn what_the_root_defines_stands_above_all() {
        assert_eq!(up("high.rs", "use crate::Inner;"), ["high the root"]);
    }

    #[test]
    fn edges_down_inside_a_module_and_in_tests_are_free() {
        assert!(up("high.rs", "use crate::low; use super::low::T;").is_empty());
        assert!(up("low/part.rs", "use super::high;").is_empty());
        assert!(up("low.rs", "#[cfg(test)] mod tests { use crate::high; }").is_empty());
        let parent = syn::parse_file("#[cfg(test)] mod fixture; mod part;").unwrap();
        let tests = test_modules(&place(Path::new("low/mod.rs")), &parent);
        assert_eq!(tests, [["low", "fixture"].map(str::to_owned)]);
    }
}
