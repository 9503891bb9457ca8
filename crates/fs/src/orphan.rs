//! Unlinked but open inodes: the node that removed the last link lists the inode in its orphan
//! blocks (same transaction) until it is deleted.
