//! Module edges within a crate point down.
//!
//! *Between the modules of a crate*: the crate's root lists them *bottom up*, and a module may use only those
//! listed before it. The list is a text block in the root's document after the words "bottom up"; each line names
//! one or more modules, then two spaces, then what they do.
//!
//! *Inside a module with parts* (a room): the parts may not use one another in a circle. The room's own file
//! counts as a part, too: what its parts share stands in a part below them.
//!
//! An edge is a path that begins with `crate::`, `super::`, `self::` or the name of a part. A name that a module
//! re-exports counts as that of the module that defines it; `pub use` itself is no edge. What the root itself
//! defines counts as an edge to the root, which stands above all. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// Crates whose modules have an order.
const ORDERED: &[&str] = &[
    "format",
    "device",
    "iscsi-target",
    "pool",
    "lock",
    "fs",
    "bulk",
    "fuse",
    "bench",
    "python",
    "cli",
];

/// The crate root, as an edge's end.
const ROOT: &str = "the root";
/// A room's own file, as an edge's end.
const DOOR: &str = "mod";

/// Where a module is: the names from the root to it.
type Place = Vec<String>;
/// (from, to) with the first file that has the edge.
type Edges = BTreeMap<(String, String), String>;

/// Reports edges that run up, circles, and modules without a place in their crate's order.
pub fn check(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    for name in ORDERED {
        let krate = Crate::read(root, name)?;
        let order = krate.order();
        for module in krate.top_modules().filter(|m| !order.contains_key(m)) {
            problems.push(format!(
                "crates/{name}: module {module} is not in the map \"bottom up\" of the crate's document"
            ));
        }
        for ((from, to), file) in edges_up(&krate.edges(&[]), &order) {
            problems
                .push(format!("crates/{name}: {from} uses {to}, which stands above it ({file})"));
        }
        for room in krate.rooms() {
            circles(name, &room, &krate.edges(&room), problems);
        }
    }
    Ok(())
}

/// Reports the edges that close circles among the parts of a room.
fn circles(name: &str, room: &[String], edges: &Edges, problems: &mut Vec<String>) {
    let room = room.join("/");
    for ((from, to), file) in edges {
        if reaches(edges, to, from) {
            problems.push(format!(
                "crates/{name}: {room}: {from} uses {to}, which uses {from} in turn ({file})"
            ));
        }
    }
}

/// Whether edges lead from one part to another.
fn reaches(edges: &Edges, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(part) = open.pop() {
        if part == to {
            return true;
        }
        let next = edges.keys().filter(|edge| edge.0 == part).map(|edge| edge.1.as_str());
        open.extend(next.filter(|next| seen.insert(next)));
    }
    false
}

/// Those of `edges` that run up in `order`.
fn edges_up(edges: &Edges, order: &BTreeMap<&str, usize>) -> Edges {
    let place = |module: &str| order.get(module).copied().unwrap_or(usize::MAX);
    let up = edges.iter().filter(|((from, to), _)| place(from) <= place(to));
    up.map(|(edge, file)| (edge.clone(), file.clone())).collect()
}

/// What one crate's sources say.
#[derive(Default)]
struct Crate {
    document: String,
    /// All modules that are not for tests only.
    modules: BTreeSet<Place>,
    /// Names that a module re-exports, and the path that they stand for; `None`: of another crate.
    exports: BTreeMap<(Place, String), Option<Place>>,
    /// Each file's module, the file, and the paths that it uses, from the root.
    uses: Vec<(Place, String, BTreeSet<Place>)>,
}

impl Crate {
    fn read(root: &Path, name: &str) -> Result<Self> {
        let src = root.join("crates").join(name).join("src");
        let lib = src.join("lib.rs");
        let top = if lib.is_file() { lib } else { src.join("main.rs") };
        let mut krate = Self { document: document(&super::tidy::read(&top)?), ..Self::default() };
        let mut files = Vec::new();
        super::tidy::walk(&src, &mut files)?;
        let mut parsed = Vec::new();
        for path in &files {
            let file = syn::parse_file(&super::tidy::read(path)?);
            let inside = path.strip_prefix(&src)?.to_owned();
            let place = if *path == top { Place::new() } else { place(&inside) };
            let inside = inside.display().to_string();
            parsed.push((place, file.with_context(|| inside.clone())?, inside));
        }
        parsed.sort_by(|a, b| a.0.cmp(&b.0));
        let tests: BTreeSet<Place> =
            parsed.iter().flat_map(|(place, file, _)| test_modules(place, file)).collect();
        parsed.retain(|(place, ..)| !(1..=place.len()).any(|n| tests.contains(&place[..n])));
        krate.modules = parsed.iter().map(|(place, ..)| place.clone()).collect();
        for (place, file, inside) in parsed {
            krate.add(place, &file, inside);
        }
        Ok(krate)
    }

    /// What one file says.
    fn add(&mut self, place: Place, file: &syn::File, inside: String) {
        let mut found = Paths::new(&place, &self.modules);
        found.visit_file(file);
        let (used, exports) = (found.used, found.exports);
        self.exports.extend(exports.into_iter().map(|(name, at)| ((place.clone(), name), at)));
        self.uses.push((place, inside, used));
    }

    fn top_modules(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().filter_map(|m| if let [one] = &m[..] { Some(&**one) } else { None })
    }

    /// Modules that have parts, but for the root.
    fn rooms(&self) -> BTreeSet<Place> {
        let parents = self.modules.iter().filter_map(|m| m.split_last());
        parents.map(|(_, room)| room.to_vec()).filter(|room| !room.is_empty()).collect()
    }

    /// The module that a path leads to; `None`: none of this crate.
    fn module_of(&self, path: &[String]) -> Option<Place> {
        let mut path = path.to_vec();
        // No chain of re-exports is longer.
        for _ in 0..8 {
            let len = (0..=path.len()).rev().find(|n| self.modules.contains(&path[..*n]))?;
            let module = path[..len].to_vec();
            let Some(name) = path.get(len) else { return Some(module) };
            match self.exports.get(&(module.clone(), name.clone())) {
                None => return Some(module),
                Some(None) => return None,
                Some(Some(at)) => path = at.iter().chain(&path[len + 1..]).cloned().collect(),
            }
        }
        None
    }

    /// Edges among the parts of a room; the root's are the crate's modules.
    fn edges(&self, room: &[String]) -> Edges {
        let door = if room.is_empty() { ROOT } else { DOOR };
        let part = |at: &Place| {
            let rest = at.strip_prefix(room)?;
            Some(rest.first().map_or(door, String::as_str).to_owned())
        };
        let mut edges = Edges::new();
        for (place, file, used) in &self.uses {
            let Some(from) = part(place).filter(|from| from != ROOT) else { continue };
            let ends = used.iter().filter_map(|path| self.module_of(path));
            for to in ends.filter_map(|to| part(&to)).filter(|to| *to != from) {
                edges.entry((from.clone(), to)).or_insert_with(|| file.clone());
            }
        }
        edges
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
}

/// What a file says of itself.
fn document(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// A file's module path: `alloc/group.rs` is `alloc`, `group`.
fn place(inside: &Path) -> Place {
    let path = inside.with_extension("");
    let mut parts: Place =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Module paths of the files that a file declares for tests only.
fn test_modules(place: &[String], file: &syn::File) -> Vec<Place> {
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

/// Collects the paths that a file uses or re-exports, without those of its tests.
struct Paths<'a> {
    modules: &'a BTreeSet<Place>,
    /// The module that is being read: the file's, or one inside it.
    place: Place,
    used: BTreeSet<Place>,
    exports: BTreeMap<String, Option<Place>>,
    /// Inside the file's own `pub use`.
    exporting: bool,
}

impl<'a> Paths<'a> {
    fn new(place: &[String], modules: &'a BTreeSet<Place>) -> Self {
        let (used, exports) = (BTreeSet::new(), BTreeMap::new());
        Self { modules, place: place.to_vec(), used, exports, exporting: false }
    }

    /// A path from the root; `None`: one that leads out of the crate, or to a name that was brought in.
    fn place_below_root(&self, names: &[String]) -> Option<Place> {
        let (first, rest) = names.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&self.place, rest].concat()),
            "super" => {
                let supers = names.iter().take_while(|name| *name == "super").count();
                let up = self.place.len().checked_sub(supers)?;
                Some([&self.place[..up], &names[supers..]].concat())
            }
            _ => {
                let part = [&self.place[..], std::slice::from_ref(first)].concat();
                self.modules.contains(&part).then(|| [&self.place, names].concat())
            }
        }
    }

    fn path(&mut self, names: &[String], called: &str) {
        let at = self.place_below_root(names);
        if self.exporting {
            self.exports.insert(called.to_owned(), at);
        } else {
            self.used.extend(at);
        }
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let called = before.last().cloned().unwrap_or_default();
                self.path(before, &called);
            }
            syn::UseTree::Name(name) => self.path(&with(&name.ident), &name.ident.to_string()),
            syn::UseTree::Rename(rename) => {
                self.path(&with(&rename.ident), &rename.rename.to_string());
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(before, tree));
            }
            syn::UseTree::Glob(_) => self.path(before, ""),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !for_tests(&item.attrs) {
            self.exporting = !matches!(item.vis, syn::Visibility::Inherited);
            self.tree(&[], &item.tree);
            self.exporting = false;
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            self.place.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.place.pop();
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

    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Place = path.segments.iter().map(|s| s.ident.to_string()).collect();
        // One name alone is a value or a type, whatever parts there are.
        if names.len() > 1 {
            self.path(&names, "");
        }
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

    const MAP: &str = "Map, bottom up:\n```text\n low   the floor\n high  above\n```\n";

    /// A crate of these files.
    fn krate(files: &[(&str, &str)]) -> Crate {
        let mut krate = Crate { document: MAP.to_owned(), ..Crate::default() };
        let at = |file: &str| if file == "lib.rs" { Place::new() } else { place(Path::new(file)) };
        krate.modules = files.iter().map(|(file, _)| at(file)).collect();
        for (file, text) in files {
            krate.add(at(file), &syn::parse_file(text).unwrap(), (*file).to_owned());
        }
        krate
    }

    fn names(edges: Edges) -> Vec<String> {
        edges.into_keys().map(|(from, to)| format!("{from} {to}")).collect()
    }

    fn up(file: &str, text: &str) -> Vec<String> {
        let mut files = vec![("lib.rs", "pub use high::High; pub use braid_x as x;")];
        files.extend([("low.rs", ""), ("low/part.rs", ""), ("high.rs", "")]);
        files.retain(|f| f.0 != file);
        files.push((file, text));
        let krate = krate(&files);
        names(edges_up(&krate.edges(&[]), &krate.order()))
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
            ("low.rs", "pub mod inner { use super::super::high::T; }"),
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
        assert!(up("high.rs", "use crate::low; use super::low::T; use crate::x;").is_empty());
        assert!(up("low.rs", "pub(crate) fn f() {}").is_empty());
        assert!(up("low/part.rs", "use super::high;").is_empty());
        assert!(up("low.rs", "#[cfg(test)] mod tests { use crate::high; }").is_empty());
        let parent = syn::parse_file("#[cfg(test)] mod fixture; mod part;").unwrap();
        let tests = test_modules(&place(Path::new("low/mod.rs")), &parent);
        assert_eq!(tests, [["low", "fixture"].map(str::to_owned)]);
    }

    /// What is reported of a room with these parts.
    fn circles_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let (krate, mut problems) = (krate(files), Vec::new());
        for room in krate.rooms() {
            circles(name, &room, &krate.edges(&room), &mut problems);
        }
        problems.iter().filter_map(|p| Some(p.split_once(" (")?.0.to_owned())).collect()
    }

    #[test]
    fn parts_of_a_room_that_use_each_other_are_reported() {
        let files = [
            ("room/mod.rs", "mod a; mod b; mod c; pub use b::B;"),
            ("room/a.rs", "use super::B;"),
            ("room/b.rs", "use crate::room::c::C;"),
            ("room/c.rs", "fn f() { super::a::g(); }"),
        ];
        let found = [
            "crates/lock: room: a uses b, which uses a in turn",
            "crates/lock: room: b uses c, which uses b in turn",
            "crates/lock: room: c uses a, which uses c in turn",
        ];
        assert_eq!(circles_of("lock", &files), found);
        assert!(circles_of("lock", &files[..3]).is_empty());
    }

    #[test]
    fn a_rooms_own_file_is_a_part() {
        let files = [
            ("room/mod.rs", "mod a; struct Shared; fn f() { a::g() }"),
            ("room/a.rs", "use super::Shared;"),
        ];
        let found = [
            "crates/pool: room: a uses mod, which uses a in turn",
            "crates/pool: room: mod uses a, which uses mod in turn",
        ];
        assert_eq!(circles_of("pool", &files), found);
        let door = [
            ("room/mod.rs", "mod a; mod s; pub use a::g; pub use s::Shared;"),
            files[1],
            ("room/s.rs", "pub struct Shared;"),
        ];
        assert!(circles_of("pool", &door).is_empty());
        let value = [("room/mod.rs", "mod a; struct Shared; fn f(a: u8) -> u8 { a }"), files[1]];
        assert!(circles_of("pool", &value).is_empty());
    }
}
