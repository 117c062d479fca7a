//! The crate against a real S3 server on loopback (`s3s-fs`), which fails on request, and against
//! killed processes and full disks.

mod cached;
mod common;
mod faults;
mod kills;
mod reading;
mod tier;
mod writing;
