//! Ganesha's configuration.

use std::path::Path;

use uuid::Uuid;

use super::export::{Export, Security, Server, Squash};

/// A client that was not heard of for so long loses its locks, seconds. Also how long a client may take to
/// see that the server is there again.
pub const LEASE: u32 = 30;
/// Longest wait of a new server for clients of the last one, which ask for their locks again, seconds.
const GRACE: u32 = 60;
/// Number of the exported root; others are made of the directory's name.
const ROOT_ID: u16 = 1;

/// The whole file. `recovery`: the directory of the server's state.
pub fn text(server: &Server, exports: &[Export], recovery: &Path) -> String {
    let krb5 = exports.iter().any(|e| e.security == Security::Krb5p);
    let listen = server.listen.map(|a| format!("    Bind_Addr = {a};\n")).unwrap_or_default();
    let (port, mount_port) = (server.port, server.mount_port);
    let owner = format!("braid-{}-{}", server.uuid, server.name);
    let recovery = recovery.display();
    // Locks of NFSv3 (NLM) need two more daemons on each side: left out. Without `mount_path_pseudo` clients
    // of NFSv3 would mount by the directory of this host, which may be another one on the next.
    let mut text = format!(
        r#"# Written by `braid export`: what is changed here is lost.
NFS_CORE_PARAM {{
    Protocols = 3, 4;
    NFS_Port = {port};
    MNT_Port = {mount_port};
{listen}    Enable_UDP = false;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Clustered = false;
    mount_path_pseudo = true;
}}
NFSV4 {{
    Minor_Versions = 1, 2;
    Lease_Lifetime = {LEASE};
    Grace_Period = {GRACE};
    Only_Numeric_Owners = true;
    Delegations = false;
    Server_Owner = "{owner}";
    Server_Scope = "{owner}";
    RecoveryBackend = fs;
    RecoveryRoot = "{recovery}";
}}
NFS_KRB5 {{
    Active_krb5 = {krb5};
}}
# Other nodes change files, too: nothing is remembered of them.
MDCACHE {{
    Dir_Chunk = 0;
}}
"#
    );
    for (export, id) in exports.iter().zip(ids(exports)) {
        text.push_str(&block(server, export, id));
    }
    text
}

fn block(server: &Server, export: &Export, id: u16) -> String {
    let access = if export.read_only { "RO" } else { "RW" };
    let all = export.clients.is_empty();
    let others = if all { access } else { "None" };
    let clients = if all {
        String::new()
    } else {
        let clients = export.clients.join(", ");
        format!(
            "    CLIENT {{\n        Clients = {clients};\n        Access_Type = {access};\n    }}\n"
        )
    };
    let squash = match export.squash {
        Squash::Root => "Root_Squash",
        Squash::All => "All_Squash",
        Squash::None => "No_Root_Squash",
    };
    let security = match export.security {
        Security::Sys => "sys",
        Security::Krb5p => "krb5p",
    };
    let path = server.directory(export);
    let (path, pseudo) = (path.display(), export.path(&server.pool));
    let (major, _) = server.uuid.as_u64_pair();
    let minor = hash(&export.subtree);
    format!(
        r#"EXPORT {{
    Export_Id = {id};
    Path = "{path}";
    Pseudo = "{pseudo}";
    Filesystem_Id = {major}.{minor};
    Access_Type = {others};
    Squash = {squash};
    Anonymous_Uid = 65534;
    Anonymous_Gid = 65534;
    SecType = {security};
    Protocols = 3, 4;
    Transports = TCP;
    Attr_Expiration_Time = 0;
    FSAL {{
        Name = VFS;
    }}
{clients}}}
"#
    )
}

/// Numbers of exports. They stand in file handles, so each is made of the directory's name: it is the same on
/// every node, and after a restart.
fn ids(exports: &[Export]) -> Vec<u16> {
    let mut taken = vec![0, ROOT_ID];
    let mut id = |export: &Export| {
        if export.subtree == "/" {
            return ROOT_ID;
        }
        let low = hash(&export.subtree) & u64::from(u16::MAX);
        let mut id = u16::try_from(low).unwrap_or_default();
        while taken.contains(&id) {
            id = id.wrapping_add(1);
        }
        taken.push(id);
        id
    };
    exports.iter().map(&mut id).collect()
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The file system's identity in file handles, as `preload.c` takes it.
pub fn fsid(pool: &Uuid) -> String {
    let [a, b, c, d]: [i32; 4] = std::array::from_fn(|n| {
        let bytes = pool.as_bytes().iter().skip(4 * n).take(4);
        bytes.fold(0, |value: i32, byte| value << 8 | i32::from(*byte))
    });
    // None is all zeros: that would mean that there is no identity.
    format!("{} {}", a ^ c | 1, b ^ d)
}

/// A mount table with only this mount in it, as in fstab(5).
pub fn mount_table(server: &Server) -> String {
    let dir = server.mount_point.display().to_string().replace(' ', "\\040");
    format!("braid {dir} fuse.braid rw 0 0\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(subtree: &str) -> Export {
        Export {
            subtree: subtree.to_owned(),
            clients: Vec::new(),
            read_only: false,
            squash: Squash::Root,
            security: Security::Sys,
        }
    }
    fn server() -> Server {
        Server {
            name: "hosta".into(),
            pool: "safe".into(),
            uuid: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            mount_point: "/srv/safe".into(),
            listen: None,
            port: 2049,
            mount_port: 20048,
        }
    }

    #[test]
    fn what_is_asked_for_stands_in_the_configuration() {
        let mut ro = export("/a/b");
        ro.clients = vec!["10.0.0.0/8".into(), "::1".into()];
        (ro.read_only, ro.squash, ro.security) = (true, Squash::All, Security::Krb5p);
        let text = text(&server(), &[export("/"), ro], Path::new("/srv/safe/.braid-nfs/hosta"));
        for line in [
            "Path = \"/srv/safe\";",
            "Path = \"/srv/safe/a/b\";",
            "Pseudo = \"/safe\";",
            "Pseudo = \"/safe/a/b\";",
            "Clients = 10.0.0.0/8, ::1;",
            "Access_Type = None;",
            "Access_Type = RO;",
            "Squash = All_Squash;",
            "SecType = krb5p;",
            "Active_krb5 = true;",
            "RecoveryRoot = \"/srv/safe/.braid-nfs/hosta\";",
            "Filesystem_Id = 72623859790382856.",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("Bind_Addr"));
        let open = text.matches('{').count();
        assert_eq!(open, text.matches('}').count());
    }

    #[test]
    fn numbers_of_exports_depend_on_the_directory_alone() {
        let [root, a, b] = ["/", "/a", "/b"].map(export);
        let all = ids(&[root.clone(), a.clone(), b.clone()]);
        assert_eq!(ids(&[b, root, a]), [all[2], all[0], all[1]]);
        assert!(all[0] == ROOT_ID && all[1] != all[2]);
        // Two of one number get two.
        let twice = ids(&[export("/a"), export("/a")]);
        assert_ne!(twice[0], twice[1]);
    }

    #[test]
    fn the_identity_is_the_pools_and_never_none() {
        assert_eq!(fsid(&server().uuid), fsid(&server().uuid));
        assert_eq!(fsid(&Uuid::from_u128(0)), "1 0");
        assert_ne!(fsid(&Uuid::from_u128(1)), fsid(&Uuid::from_u128(2)));
    }
}
