//! Member labels: who belongs to which pool, and the whole topology, on every member.
//! docs/FORMAT.md section 1.
