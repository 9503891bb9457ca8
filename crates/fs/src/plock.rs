//! Locks of programs, fcntl and flock, across nodes. Buckets of them are metadata like any other,
//! each under its own cluster lock.
