//! Which controller a device hangs on, and the order of members that uses all controllers at once.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The system's view of its devices.
#[derive(Debug, Clone)]
pub struct Sysfs {
    root: PathBuf,
}
impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// A view that begins at `root` instead of `/sys`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The kernel's name of the block device at `path`; `None` for files.
    pub fn name_of(&self, path: &Path) -> Option<String> {
        let node = std::fs::canonicalize(path).ok()?;
        let block = std::fs::metadata(&node).ok()?.file_type().is_block_device();
        let name = node.file_name()?.to_str()?.to_owned();
        (block && self.root.join("class/block").join(&name).exists()).then_some(name)
    }

    /// The controller of block device `name` (as in `/sys/class/block`): its PCI function, else
    /// its SCSI host. `None`: loop devices, memory, and what lies on several controllers.
    pub fn controller(&self, name: &str) -> Option<String> {
        self.controller_within(name, 4)
    }

    fn controller_within(&self, name: &str, depth: u8) -> Option<String> {
        let device = ["class/block", "block"]
            .iter()
            .find_map(|dir| std::fs::canonicalize(self.root.join(dir).join(name)).ok())?;
        if let Some(found) = controller_in(&device) {
            return Some(found);
        }
        // A device made of others (device mapper), or an NVMe namespace with several paths.
        let mut below: Vec<Option<String>> = entries(&device.join("slaves"))
            .iter()
            .filter_map(|slave| Some(slave.file_name()?.to_str()?.to_owned()))
            .map(|slave| (depth > 0).then(|| self.controller_within(&slave, depth - 1)).flatten())
            .collect();
        for path in entries(&device.join("device")) {
            let is_nvme = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("nvme"));
            if is_nvme && path.is_symlink() {
                below.push(std::fs::canonicalize(path).ok().and_then(|p| controller_in(&p)));
            }
        }
        below.dedup();
        if let [only] = below.as_mut_slice() { only.take() } else { None }
    }

    /// Serial number or world-wide name of block device `name`.
    pub fn serial(&self, name: &str) -> Option<String> {
        let device = self.root.join("class/block").join(name);
        let of = |file: &str| {
            let text = std::fs::read_to_string(device.join(file)).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        ["device/serial", "wwid", "device/wwid"].into_iter().find_map(of)
    }

    /// Whether block device `name`, or the disk that it is a part of, says that it rotates.
    pub fn rotates(&self, name: &str) -> Option<bool> {
        let device = std::fs::canonicalize(self.root.join("class/block").join(name)).ok()?;
        let said = |dir: &Path| std::fs::read_to_string(dir.join("queue/rotational")).ok();
        match said(&device).or_else(|| said(device.parent()?))?.trim() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    /// The bus numbers of devices, each with its kernel's name and the number told for it: where
    /// none is told, one number per controller, counted from 1; 0 where nothing is known.
    pub fn buses(&self, devices: &[(Option<String>, Option<u16>)]) -> Vec<u16> {
        let told: HashSet<u16> = devices.iter().filter_map(|(_, told)| *told).collect();
        let mut free = (1..=u16::MAX).filter(|n| !told.contains(n));
        let mut numbers: HashMap<String, u16> = HashMap::new();
        let mut number = |name: &Option<String>| {
            let Some(key) = name.as_ref().and_then(|name| self.controller(name)) else { return 0 };
            *numbers.entry(key).or_insert_with(|| free.next().unwrap_or(0))
        };
        devices.iter().map(|(name, told)| told.unwrap_or_else(|| number(name))).collect()
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(dir).into_iter().flatten().flatten();
    read.map(|e| e.path()).collect()
}

/// The last PCI function on the way to a device, else its SCSI host.
fn controller_in(device: &Path) -> Option<String> {
    let parts: Vec<&str> = device.iter().filter_map(|p| p.to_str()).collect();
    let host = |p: &&&str| p.strip_prefix("host").is_some_and(|n| n.parse::<u32>().is_ok());
    let last = parts.iter().rev().find(|p| is_pci(p)).or_else(|| parts.iter().find(host));
    last.map(|p| (*p).to_owned())
}

/// `0000:00:1f.2`: domain, bus, device, function.
fn is_pci(part: &str) -> bool {
    let hex = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_hexdigit());
    let fields: Vec<&str> = part.split([':', '.']).collect();
    matches!(*fields, [domain, bus, device, function]
        if domain.len() >= 4 && bus.len() == 2 && device.len() == 2
            && hex(domain) && hex(bus) && hex(device) && hex(function))
        && part.rfind('.').is_some_and(|dot| part.rfind(':').is_some_and(|colon| colon < dot))
}

/// The order of things on `buses` in which each bus comes round as evenly as it can; things on one
/// bus keep their order. Bus 0, not known, is a bus like the others.
pub fn interleave(buses: &[u16]) -> Vec<usize> {
    let mut count: HashMap<u16, u64> = HashMap::new();
    let mut first: Vec<u16> = Vec::new();
    for bus in buses {
        *count.entry(*bus).or_default() += 1;
        if !first.contains(bus) {
            first.push(*bus);
        }
    }
    // The j-th of n on a bus belongs at (2j + 1) / 2n of the whole.
    let mut seen: HashMap<u16, u64> = HashMap::new();
    let mut keyed: Vec<((u64, u64), usize, usize)> = Vec::new();
    for (i, bus) in buses.iter().enumerate() {
        let j = seen.entry(*bus).or_default();
        let rank = first.iter().position(|b| b == bus).unwrap_or(0);
        keyed.push(((2 * *j + 1, 2 * count.get(bus).copied().unwrap_or(1)), rank, i));
        *j += 1;
    }
    keyed.sort_by(|((a, n), rank_a, _), ((b, m), rank_b, _)| {
        (a * m).cmp(&(b * n)).then(rank_a.cmp(rank_b))
    });
    keyed.into_iter().map(|(_, _, i)| i).collect()
}
