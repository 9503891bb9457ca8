//! From text to a [`Layout`].
//!
//! ```text
//! layout  := tree | subpool { ';' subpool }
//! subpool := ( 'data' | 'metadata' | 'journal' ) '=' tree
//! tree    := ( kind [ '/' SIZE ] '(' [ tree { ',' tree } ] ')' | device [ '[' SIZE ']' ] | group )
//!            [ '*' WEIGHT ]
//! kind    := 'stripe' | 'concat' | 'mirror' | 'mirror+1' .. 'mirror+3' | 'parity+1' | 'parity+2'
//! device  := 'all' | 'rest' | PLACE | PLACE '-' PLACE | path | '"' path '"'
//! ```
//! A word ends at a space or one of `()[],;*="`; a path with one of these, or that looks like a
//! place, is quoted (`\` quotes within quotes). A group is a name that a layout file defines.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::label::SubpoolKind;
use braid_format::{Bytes, StripeUnit};

use super::tree::{MARKS, which};
use super::{Layout, LayoutError, LayoutFault, Part, Place, Subpool, Tree, Which, size, weights};

/// Deepest nesting.
const DEPTH_MAX: usize = 16;
/// Most nodes of a tree.
const PARTS_MAX: usize = 4096;

/// Parts of a layout by name, as a file defines them.
pub type Groups = BTreeMap<String, Arc<str>>;

/// Reads a layout.
///
/// # Errors
/// [`LayoutError`], with its place in the text.
pub fn layout(text: &str, groups: &Groups) -> Result<Layout, LayoutError> {
    let text: Arc<str> = text.into();
    let mut parts = 0;
    let mut p = Parser::new(&text, groups, &[], 0, &mut parts);
    let subpools = if p.names_a_subpool() {
        p.subpools(Parser::tree)?
    } else {
        vec![Subpool { kind: SubpoolKind::General, tree: p.tree()? }]
    };
    p.end()?;
    Ok(Layout { subpools })
}

/// Reads one tree.
///
/// # Errors
/// [`LayoutError`], with its place in the text.
pub fn tree(text: &str, groups: &Groups) -> Result<Tree, LayoutError> {
    let text: Arc<str> = text.into();
    let mut parts = 0;
    let mut p = Parser::new(&text, groups, &[], 0, &mut parts);
    let tree = p.tree()?;
    p.end()?;
    Ok(tree)
}

/// Reads which devices are of which kind: `metadata=sdb,sdc; journal=sdd`. Each subpool's tree is a
/// concat of what stands there.
///
/// # Errors
/// [`LayoutError`], with its place in the text.
pub(super) fn classes(text: &str) -> Result<Vec<Subpool>, LayoutError> {
    let text: Arc<str> = text.into();
    let (mut parts, groups) = (0, Groups::new());
    let mut p = Parser::new(&text, &groups, &[], 0, &mut parts);
    let subpools = p.subpools(Parser::list)?;
    p.end()?;
    Ok(subpools)
}

struct Parser<'a> {
    text: &'a Arc<str>,
    at: usize,
    groups: &'a Groups,
    /// Groups that are being read.
    open: &'a [&'a str],
    depth: usize,
    parts: &'a mut usize,
}

impl<'a> Parser<'a> {
    fn new(
        text: &'a Arc<str>,
        groups: &'a Groups,
        open: &'a [&'a str],
        depth: usize,
        parts: &'a mut usize,
    ) -> Self {
        Self { text, at: 0, groups, open, depth, parts }
    }

    fn place(&self) -> Place {
        Place { text: Some(self.text.clone()), at: self.at }
    }
    fn fault<T>(place: &Place, fault: LayoutFault) -> Result<T, LayoutError> {
        Err(LayoutError::at(place, fault))
    }
    /// What follows, without spaces before it.
    fn rest(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or("");
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }
    fn eat(&mut self, mark: char) -> bool {
        let found = self.rest().starts_with(mark);
        self.at += if found { mark.len_utf8() } else { 0 };
        found
    }
    fn unexpected<T>(&mut self, expected: &'static str) -> Result<T, LayoutError> {
        let found = match self.rest().chars().next() {
            Some(c) => format!("'{c}'"),
            None => "the end".to_owned(),
        };
        Self::fault(&self.place(), LayoutFault::Expected { expected, found })
    }
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let stops = |c: char| c.is_whitespace() || c.is_control() || MARKS.contains(c);
        let word = rest.split(stops).next().unwrap_or("");
        self.at += word.len();
        word
    }
    /// After the opening quote.
    fn quoted(&mut self, place: &Place) -> Result<String, LayoutError> {
        let mut out = String::new();
        let mut chars = self.text.get(self.at..).unwrap_or("").chars();
        while let Some(c) = chars.next() {
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => {
                    let Some(next) = chars.next() else { break };
                    self.at += next.len_utf8();
                    out.push(next);
                }
                c => out.push(c),
            }
        }
        Self::fault(place, LayoutFault::Unclosed)
    }

    fn names_a_subpool(&mut self) -> bool {
        let start = self.at;
        let found = !self.word().is_empty() && self.eat('=');
        self.at = start;
        found
    }

    /// Subpools with what `read` reads after each '='.
    fn subpools(
        &mut self,
        read: fn(&mut Self) -> Result<Tree, LayoutError>,
    ) -> Result<Vec<Subpool>, LayoutError> {
        let mut all: Vec<Subpool> = Vec::new();
        loop {
            self.rest();
            let place = self.place();
            let word = self.word();
            let Some(kind) = subpool_kind(word) else {
                return Self::fault(&place, LayoutFault::UnknownSubpool { word: word.to_owned() });
            };
            if all.iter().any(|s| s.kind == kind) {
                let name = super::subpool_name(kind);
                return Self::fault(&place, LayoutFault::SubpoolTwice { name });
            }
            if !self.eat('=') {
                return self.unexpected("'='");
            }
            all.push(Subpool { kind, tree: read(self)? });
            if !self.eat(';') || self.rest().is_empty() {
                return Ok(all);
            }
        }
    }

    /// Devices between commas, without more.
    fn list(&mut self) -> Result<Tree, LayoutError> {
        self.rest();
        let place = self.place();
        let mut of = Vec::new();
        loop {
            let tree = self.tree()?;
            if !matches!(tree.part, Part::Devices { size: None, .. }) || tree.weight.is_some() {
                let (expected, found) = ("devices between commas", format!("'{tree}'"));
                return Self::fault(&tree.place, LayoutFault::Expected { expected, found });
            }
            of.push(tree);
            if !self.eat(',') {
                return Ok(Tree { part: Part::Concat { of }, weight: None, place });
            }
        }
    }

    fn end(&mut self) -> Result<(), LayoutError> {
        if self.rest().is_empty() { Ok(()) } else { self.unexpected("the end") }
    }

    fn tree(&mut self) -> Result<Tree, LayoutError> {
        self.rest();
        let place = self.place();
        *self.parts += 1;
        if *self.parts > PARTS_MAX {
            return Self::fault(&place, LayoutFault::TooLarge { max: PARTS_MAX });
        }
        if self.depth > DEPTH_MAX {
            return Self::fault(&place, LayoutFault::TooDeep { max: DEPTH_MAX });
        }
        let mut tree = if self.eat('"') {
            let which = Which::Named(self.quoted(&place)?);
            Tree { part: self.devices(which)?, weight: None, place }
        } else {
            let word = self.word();
            if word.is_empty() {
                return self.unexpected("a device, or a kind of node as in stripe(...)");
            }
            if self.eat('(') {
                Tree { part: self.node(word, &place)?, weight: None, place }
            } else if let Some(text) = self.groups.get(word) {
                self.group(word, text, &place)?
            } else {
                Tree { part: self.devices(which(word))?, weight: None, place }
            }
        };
        if self.eat('*') {
            self.rest();
            let place = self.place();
            let text = self.word();
            let weight = text.parse().ok().filter(|w| (1..=weights::MAX).contains(w));
            let bad = || LayoutError::at(&place, LayoutFault::BadWeight { text: text.to_owned() });
            tree.weight = Some(weight.ok_or_else(bad)?);
        }
        Ok(tree)
    }

    fn group(&mut self, name: &str, text: &Arc<str>, place: &Place) -> Result<Tree, LayoutError> {
        if self.open.contains(&name) {
            return Self::fault(place, LayoutFault::Cycle { name: name.to_owned() });
        }
        let mut open = self.open.to_vec();
        open.push(name);
        let mut inner = Parser::new(text, self.groups, &open, self.depth + 1, self.parts);
        let tree = inner.tree()?;
        inner.end()?;
        Ok(tree)
    }

    fn devices(&mut self, which: Which) -> Result<Part, LayoutError> {
        if !self.eat('[') {
            return Ok(Part::Devices { which, size: None });
        }
        self.rest();
        let place = self.place();
        let bad = |text| LayoutError::at(&place, LayoutFault::BadSize { text });
        let bytes = size::parse(self.word()).map_err(bad)?;
        if bytes == 0 {
            return Self::fault(&place, LayoutFault::ZeroSize);
        }
        if self.eat(']') {
            return Ok(Part::Devices { which, size: Some(bytes) });
        }
        self.unexpected("']'")
    }

    /// A node whose word and opening parenthesis have been read.
    fn node(&mut self, word: &str, place: &Place) -> Result<Part, LayoutError> {
        let (kind, unit) = match word.split_once('/') {
            Some((kind, unit)) => (kind, Some(unit)),
            None => (word, None),
        };
        let mut part = match kind {
            "stripe" => Part::Stripe { unit: None, of: Vec::new() },
            "concat" => Part::Concat { of: Vec::new() },
            "mirror" => Part::Mirror { of: Vec::new() },
            "mirror+1" => Part::Mirrors { copies: 2, unit: None, of: Vec::new() },
            "mirror+2" => Part::Mirrors { copies: 3, unit: None, of: Vec::new() },
            "mirror+3" => Part::Mirrors { copies: 4, unit: None, of: Vec::new() },
            "parity+1" => Part::Parity { parity: 1, unit: None, of: Vec::new() },
            "parity+2" => Part::Parity { parity: 2, unit: None, of: Vec::new() },
            _ => return Self::fault(place, LayoutFault::UnknownKind { word: word.to_owned() }),
        };
        if let Some(text) = unit {
            let bad = || LayoutError::at(place, LayoutFault::BadUnit { text: text.to_owned() });
            let bytes = size::parse(text).ok().and_then(|b| StripeUnit::new(Bytes(b)));
            let bytes = bytes.ok_or_else(bad)?;
            match &mut part {
                Part::Stripe { unit, .. }
                | Part::Mirrors { unit, .. }
                | Part::Parity { unit, .. } => *unit = Some(bytes),
                Part::Mirror { .. } => {
                    return Self::fault(place, LayoutFault::UnitNotHere { kind: "mirror" });
                }
                _ => return Self::fault(place, LayoutFault::UnitNotHere { kind: "concat" }),
            }
        }
        let children = self.children()?;
        if let Part::Stripe { of, .. }
        | Part::Mirror { of }
        | Part::Mirrors { of, .. }
        | Part::Parity { of, .. }
        | Part::Concat { of } = &mut part
        {
            *of = children;
        }
        Ok(part)
    }

    fn children(&mut self) -> Result<Vec<Tree>, LayoutError> {
        let mut of = Vec::new();
        if self.eat(')') {
            return Ok(of);
        }
        self.depth += 1;
        loop {
            of.push(self.tree()?);
            if self.eat(')') {
                self.depth -= 1;
                return Ok(of);
            }
            if !self.eat(',') {
                return self.unexpected("',' or ')'");
            }
        }
    }
}

/// The kind of subpool that a word means.
pub(super) fn subpool_kind(word: &str) -> Option<SubpoolKind> {
    [SubpoolKind::Data, SubpoolKind::Metadata, SubpoolKind::Journal]
        .into_iter()
        .find(|k| super::subpool_name(*k) == word)
}
