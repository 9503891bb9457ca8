//! Who this host is, and whose liveness locks it sees.

use std::path::{Path, PathBuf};

use braid_device::MountTable;
use braid_format::node::{LockPlace, SlotRecord};

/// Who a host is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostIdentity {
    /// Of the running kernel.
    pub boot_id: [u8; 16],
    /// Of the installation on this hardware; zero where unknown.
    pub machine_id: [u8; 16],
    /// Host name.
    pub host: String,
}

impl HostIdentity {
    /// Whether the node of a slot runs, or ran, in this boot of this host.
    pub fn is_boot_of(&self, record: &SlotRecord) -> bool {
        record.boot_id == self.boot_id
    }
    /// Whether a process that looks for liveness locks at `places` would see that of the slot's node:
    /// it is held on an inode that is among them. Otherwise the absence of the lock says nothing.
    pub fn sees_lock_of(&self, record: &SlotRecord, places: &[LockPlace]) -> bool {
        self.is_boot_of(record) && shares_lock(record, places)
    }
    /// Whether it ran in an earlier boot of this machine, or is of a clone of it with equal names, equal
    /// hardware identity and other boot.
    pub fn is_earlier_boot_of(&self, record: &SlotRecord) -> bool {
        !self.is_boot_of(record)
            && self.machine_id != [0; 16]
            && (record.machine_id, &record.host) == (self.machine_id, &self.host)
    }
}

/// Whether the slot's node holds its liveness lock at one of `places`.
pub(super) fn shares_lock(record: &SlotRecord, places: &[LockPlace]) -> bool {
    record.lock_places.iter().any(|p| places.contains(p))
}

/// A name in the environment that makes a process count as one of another host: for tests of several
/// hosts on one.
const PRETENDED: &str = "BRAID_PRETENDED_HOST";

/// This host, asked of the system.
pub fn this_host() -> HostIdentity {
    if let Ok(host) = std::env::var(PRETENDED) {
        let mut id = [1_u8; 16];
        for (place, byte) in (0..16).cycle().zip(host.bytes()) {
            if let Some(b) = id.get_mut(place) {
                *b = b.rotate_left(3) ^ byte;
            }
        }
        return HostIdentity { boot_id: id, machine_id: id, host };
    }
    let told = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let boot_id = uuid::Uuid::try_parse(told.trim()).map_or([0; 16], uuid::Uuid::into_bytes);
    HostIdentity {
        boot_id,
        machine_id: machine_id().unwrap_or_default(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

/// Of the running kernel, anew at every start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The installation on this hardware; `None` if either is unknown. The name of the installation alone
/// would be that of every clone of its disk.
fn machine_id() -> Option<[u8; 16]> {
    // Containers may be given a boot of their own: then two of them look like two boots of one host.
    if MountTable::own().ok()?.on(Path::new(BOOT_ID)).is_some() {
        return None;
    }
    let installation = std::fs::read_to_string("/etc/machine-id").ok()?;
    let installation = uuid::Uuid::try_parse(installation.trim()).ok()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(installation.as_bytes());
    hasher.update(hardware(Path::new("/"))?.as_bytes());
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    Some(id)
}

/// What this hardware, or virtual machine, says that no other one should: its UUID, its serial number,
/// or the lowest address of its own network cards. `root`: where the kernel shows what it knows.
fn hardware(root: &Path) -> Option<String> {
    let told = |path: &Path| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_lowercase();
        // Some say zeros or ones, or a word for "unknown".
        let digits = || text.chars().filter(char::is_ascii_hexdigit);
        let first = digits().next()?;
        (digits().count() >= 8 && digits().any(|c| c != first)).then_some(text)
    };
    let names = ["sys/class/dmi/id/product_uuid", "proc/device-tree/serial-number"];
    names.into_iter().find_map(|name| told(&root.join(name))).or_else(|| {
        let cards = std::fs::read_dir(root.join("sys/class/net")).ok()?.flatten().map(|e| e.path());
        let address = |card: PathBuf| {
            let bus = std::fs::read_link(card.join("device/subsystem")).ok()?;
            let permanent = std::fs::read_to_string(card.join("addr_assign_type")).ok()?;
            let stays = permanent.trim() == "0" && bus.file_name()? != "usb";
            told(&card.join("address")).filter(|_| stays)
        };
        cards.filter_map(address).min()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::NodeId;

    #[test]
    fn a_lock_is_seen_only_at_its_own_place_and_under_its_own_kernel() {
        let place = |inode| LockPlace { kernel: 1, device: 2, inode };
        let this = HostIdentity { boot_id: [1; 16], machine_id: [2; 16], host: "h".to_owned() };
        let mut record = SlotRecord::free(NodeId(0));
        (record.boot_id, record.machine_id) = ([1; 16], [2; 16]);
        assert!(!this.sees_lock_of(&record, &[place(1)]), "it does not say where");
        record.lock_places = vec![place(1), place(2)];
        assert!(this.sees_lock_of(&record, &[place(2), place(3)]));
        assert!(!this.sees_lock_of(&record, &[place(3)]) && !this.sees_lock_of(&record, &[]));
        record.boot_id = [3; 16];
        assert!(!this.sees_lock_of(&record, &[place(1)]), "another boot");
    }

    #[test]
    fn this_host_is_the_same_at_every_look() {
        assert_eq!(this_host(), this_host());
        assert_ne!(this_host().boot_id, [0; 16]);
    }

    const UUID: &str = "sys/class/dmi/id/product_uuid";
    const SERIAL: &str = "proc/device-tree/serial-number";

    /// What a kernel shows below a directory of the test's.
    struct Shown(tempfile::TempDir);
    impl Shown {
        fn nothing() -> Self {
            Self(tempfile::tempdir().unwrap())
        }
        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        /// A network card, on this bus if it is one of hardware.
        fn card(&self, name: &str, bus: Option<&str>, assigned: &str, address: &str) {
            let card = format!("sys/class/net/{name}");
            self.write(&format!("{card}/address"), address);
            self.write(&format!("{card}/addr_assign_type"), assigned);
            if let Some(bus) = bus {
                let device = self.0.path().join(card).join("device");
                std::fs::create_dir(&device).unwrap();
                let bus = format!("../../../../bus/{bus}");
                std::os::unix::fs::symlink(bus, device.join("subsystem")).unwrap();
            }
        }
        fn hardware(&self) -> Option<String> {
            hardware(self.0.path())
        }
    }

    #[test]
    fn hardware_is_known_by_its_uuid_then_its_serial_number() {
        let shown = Shown::nothing();
        assert_eq!(shown.hardware(), None);
        shown.card("eth0", Some("pci"), "0\n", "52:54:00:12:34:56\n");
        shown.write(SERIAL, "10000000ABCDEF01\0");
        shown.write(UUID, "4C4C4544-0042-3510-8052-B4C04F4A4B32\n");
        assert_eq!(shown.hardware().as_deref(), Some("4c4c4544-0042-3510-8052-b4c04f4a4b32"));
        // What makers write who give no number is that of many machines.
        for none in [
            "",
            "00000000-0000-0000-0000-000000000000\n",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF\n",
            "Not Specified\n",
            "To be filled\n",
            "1234567\n",
        ] {
            shown.write(UUID, none);
            assert_eq!(shown.hardware().as_deref(), Some("10000000abcdef01"), "{none:?}");
        }
        std::fs::remove_file(shown.0.path().join(UUID)).unwrap();
        assert_eq!(shown.hardware().as_deref(), Some("10000000abcdef01"));
    }

    #[test]
    fn else_by_the_lowest_address_of_its_own_cards() {
        let shown = Shown::nothing();
        shown.write(SERIAL, "0000000000000000\0");
        // Loopback and bridges are of no hardware, others move, or have been given their address.
        shown.card("lo", None, "0\n", "00:00:00:00:00:00\n");
        shown.card("br0", None, "0\n", "02:00:00:00:00:01\n");
        shown.card("usb0", Some("usb"), "0\n", "02:00:00:00:00:02\n");
        shown.card("bond0", Some("pci"), "3\n", "02:00:00:00:00:03\n");
        shown.card("none0", Some("pci"), "0\n", "00:00:00:00:00:00\n");
        assert_eq!(shown.hardware(), None);
        shown.card("eth1", Some("virtio"), "0\n", "52:54:00:12:34:57\n");
        shown.card("eth0", Some("pci"), "0\n", "52:54:00:12:34:58\n");
        assert_eq!(shown.hardware().as_deref(), Some("52:54:00:12:34:57"));
    }
}
