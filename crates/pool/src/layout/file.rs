//! Layouts in files.
//!
//! ```toml
//! devices = ["/dev/sdb", "/dev/sdc", "/dev/sdd", "/dev/sde"]   # or on the command line
//! unit = "256K"
//! layout = "stripe(left, right)"
//!
//! [groups]                       # names for parts
//! left = "mirror(/dev/sdb, /dev/sdd)"
//! right = "mirror(/dev/sdc, /dev/sde)"
//!
//! [buses]                        # where the system cannot tell
//! "/dev/sdb" = 1
//! ```
//! Instead of `layout` there may be a table `[subpools]` with `metadata`, `data` and `journal`.

use braid_format::{Bytes, StripeUnit};
use toml::{Table, Value};

use super::parse::Groups;
use super::tree::is_plain;
use super::{Layout, LayoutError, LayoutFault, Subpool, parse, size};

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutFile {
    /// The devices, when they are listed.
    pub devices: Vec<String>,
    /// Unit of every stripe and group that does not say its own.
    pub unit: Option<StripeUnit>,
    /// The layout.
    pub layout: Layout,
    /// Buses of devices.
    pub buses: Vec<(String, u16)>,
}

fn wrong(text: impl Into<String>) -> LayoutError {
    LayoutFault::File { text: text.into() }.into()
}

impl LayoutFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn parse(text: &str) -> Result<Self, LayoutError> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| wrong(e.to_string()))?;
        let known = ["devices", "unit", "layout", "groups", "subpools", "buses"];
        if let Some(key) = table.keys().find(|k| !known.contains(&k.as_str())) {
            let known = known.join(", ");
            return Err(wrong(format!("'{key}' is not known here; known are {known}")));
        }
        let mut groups = Groups::new();
        for (name, value) in sub_table(&table, "groups")? {
            let simple = is_plain(name) && !name.contains('/');
            if !simple {
                let what = "cannot be a group's name: take letters and digits";
                return Err(wrong(format!("'{name}' {what}")));
            }
            groups.insert(name.clone(), string(name, value)?.into());
        }
        Ok(Self {
            devices: devices(&table)?,
            unit: unit(&table)?,
            layout: layout(&table, &groups)?,
            buses: buses(&table)?,
        })
    }
}

fn string<'a>(key: &str, value: &'a Value) -> Result<&'a str, LayoutError> {
    value.as_str().ok_or_else(|| wrong(format!("{key} must be a text in quotes")))
}

fn sub_table<'a>(
    table: &'a Table,
    key: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, LayoutError> {
    let found = match table.get(key) {
        None => None,
        Some(Value::Table(t)) => Some(t),
        Some(_) => return Err(wrong(format!("{key} must be a table: write [{key}] above it"))),
    };
    Ok(found.into_iter().flatten())
}

fn devices(table: &Table) -> Result<Vec<String>, LayoutError> {
    let Some(value) = table.get("devices") else { return Ok(Vec::new()) };
    let list = value.as_array().ok_or_else(|| wrong("devices must be a list of paths"))?;
    list.iter().map(|v| string("devices", v).map(str::to_owned)).collect()
}

fn unit(table: &Table) -> Result<Option<StripeUnit>, LayoutError> {
    let bytes = match table.get("unit") {
        None => return Ok(None),
        Some(Value::Integer(n)) => u64::try_from(*n).ok(),
        Some(other) => size::parse(string("unit", other)?).ok(),
    };
    let unit = bytes.and_then(|b| StripeUnit::new(Bytes(b)));
    let text = || table.get("unit").map(ToString::to_string).unwrap_or_default();
    Ok(Some(unit.ok_or_else(|| LayoutFault::BadUnit { text: text() })?))
}

fn layout(table: &Table, groups: &Groups) -> Result<Layout, LayoutError> {
    let mut subpools = Vec::new();
    for (name, value) in sub_table(table, "subpools")? {
        let kind = parse::subpool_kind(name)
            .ok_or_else(|| LayoutFault::UnknownSubpool { word: name.clone() })?;
        subpools.push(Subpool { kind, tree: parse::tree(string(name, value)?, groups)? });
    }
    match (table.get("layout"), subpools.is_empty()) {
        (Some(text), true) => parse::layout(string("layout", text)?, groups),
        (None, false) => Ok(Layout { subpools }),
        (Some(_), false) => Err(wrong("give either layout or [subpools], not both")),
        (None, true) => Err(wrong("no layout in it: write layout = \"stripe(all)\" or the like")),
    }
}

fn buses(table: &Table) -> Result<Vec<(String, u16)>, LayoutError> {
    let mut out = Vec::new();
    for (device, value) in sub_table(table, "buses")? {
        let number = value.as_integer().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        let number =
            number.ok_or_else(|| wrong(format!("bus of {device}: write a number from 1")))?;
        out.push((device.clone(), number));
    }
    Ok(out)
}
