//! Operations on names: lookup, create, link, unlink, rename.
