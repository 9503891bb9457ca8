//! See the tests against a mounted core below.
