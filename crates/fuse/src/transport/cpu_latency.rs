//! Keeps idle processors from sleeping deep while requests come fast.
//!
//! A program that makes one call after another sleeps for every answer, and its processor with it.
//! Waking a processor can cost several times what the answer does: in a virtual machine, its sleep
//! hands it back to the host. So in a burst of requests the kernel is asked, by its interface for
//! bounds of wake-up latency, to let idle processors sleep but lightly. That holds for the whole
//! machine: it ends soon after the burst, and with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Asks for a bound (32-bit microseconds) as long as the file is open. Root may.
const REQUEST: &str = "/dev/cpu_dma_latency";
/// How processors sleep here.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The driver of virtual machines: its only sleep hands the processor back to the host, and says
/// that this takes 1 us.
const DRIVER_OF_GUESTS: &str = "haltpoll";
/// Elsewhere: the lightest sleep takes no longer to wake from, and the others do.
const LIGHT_MICROS: i32 = 2;
/// Requests between two looks that make a burst: 2,000 in a second.
const BURST: u64 = 4;
/// After so many looks without a burst it is over.
pub const LOOKS_QUIET: u32 = 10;

/// Whether idle processors are being kept from that.
#[derive(Debug)]
pub struct CpuLatency {
    /// The request, while it stands.
    request: Option<File>,
    /// It is to be made in bursts, and was not refused.
    may: bool,
    quiet: u32,
}

impl CpuLatency {
    /// Asks for nothing yet; never will unless it `may`.
    pub fn new(may: bool) -> Self {
        Self { request: None, may, quiet: 0 }
    }
    /// Call this regularly with the number of requests that have come since.
    pub fn look(&mut self, requests: u64) {
        self.look_with(requests, || ask(Path::new(REQUEST), bound(Path::new(DRIVER))));
    }
    fn look_with(&mut self, requests: u64, ask: impl FnOnce() -> io::Result<File>) {
        if !self.may {
            return;
        }
        if requests < BURST {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet >= LOOKS_QUIET {
                self.request = None;
            }
            return;
        }
        self.quiet = 0;
        if self.request.is_some() {
            return;
        }
        match ask() {
            Ok(request) => self.request = Some(request),
            Err(error) => {
                self.may = false;
                tracing::debug!(%error, "cannot keep idle processors from sleeping deeply ({REQUEST})");
            }
        }
    }
}

/// The longest time that an idle processor may take to wake.
fn bound(driver: &Path) -> i32 {
    let driver = std::fs::read_to_string(driver).unwrap_or_default();
    if driver.trim() == DRIVER_OF_GUESTS { 0 } else { LIGHT_MICROS }
}

fn ask(path: &Path, micros: i32) -> io::Result<File> {
    let mut request = OpenOptions::new().write(true).open(path)?;
    request.write_all(&micros.to_ne_bytes())?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> io::Result<File> {
        ask(Path::new("/dev/null"), LIGHT_MICROS)
    }

    #[test]
    fn it_lasts_as_long_as_the_burst_and_a_little() {
        let mut latency = CpuLatency::new(true);
        latency.look_with(BURST - 1, || unreachable!("no burst"));
        latency.look_with(BURST, null);
        for _ in 0..2 {
            for _ in 1..LOOKS_QUIET {
                latency.look_with(BURST - 1, || unreachable!("no burst"));
                assert!(latency.request.is_some());
            }
            latency.look_with(BURST, || unreachable!("it stands"));
        }
        for _ in 0..LOOKS_QUIET {
            latency.look_with(0, || unreachable!("no burst"));
        }
        assert!(latency.request.is_none());
        latency.look_with(BURST, null);
        assert!(latency.request.is_some());
    }

    #[test]
    fn whoever_is_refused_does_not_ask_again() {
        let mut latency = CpuLatency::new(true);
        latency.look_with(BURST, || Err(io::ErrorKind::PermissionDenied.into()));
        latency.look_with(BURST, || unreachable!("refused before"));
        CpuLatency::new(false).look_with(BURST, || unreachable!("switched off"));
    }

    #[test]
    fn the_bound_depends_on_how_processors_sleep() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert_eq!(bound(&file), LIGHT_MICROS);
        for (driver, micros) in [("haltpoll\n", 0), ("intel_idle\n", LIGHT_MICROS)] {
            std::fs::write(&file, driver).unwrap();
            assert_eq!(bound(&file), micros);
            ask(&file, micros).unwrap();
            assert_eq!(std::fs::read(&file).unwrap()[..4], micros.to_ne_bytes());
        }
    }
}
