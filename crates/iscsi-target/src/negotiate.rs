//! What both sides agree on at login (RFC 7143, section 13).

use crate::pdu::{DATA_MAX, Digests};

/// Longest burst of solicited data.
const BURST_MAX: u32 = 1 << 20;
/// Most unsolicited data of one command.
const FIRST_BURST_MAX: u32 = 256 << 10;
/// What a side can take that has said nothing.
const SEGMENT_DEFAULT: u32 = 8192;

/// What was agreed on, by defaults where nothing was said.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// Digests of both directions.
    pub digests: Digests,
    /// Longest data segment that the initiator takes.
    pub send_max: usize,
    /// Longest sequence of data that is sent on one request, either way.
    pub burst: u32,
    /// Most data of a command that comes unasked.
    pub first_burst: u32,
    /// No unsolicited Data-Out.
    pub initial_r2t: bool,
    /// Data may stand in the command's own PDU.
    pub immediate: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            send_max: SEGMENT_DEFAULT as usize,
            burst: 256 << 10,
            first_burst: 64 << 10,
            initial_r2t: true,
            immediate: true,
        }
    }
}

fn yes(value: &str) -> bool {
    value == "Yes"
}

fn said(yes: bool) -> String {
    if yes { "Yes" } else { "No" }.to_owned()
}

/// The first of the offered digests that is known.
fn digest(offered: &str) -> Option<bool> {
    offered.split(',').find_map(|d| match d {
        "CRC32C" => Some(true),
        "None" => Some(false),
        _ => None,
    })
}

impl Params {
    /// Takes one operational key in; the answer to it, if it has one.
    pub fn take(&mut self, key: &str, value: &str) -> Option<String> {
        let number = |max: u32| -> Option<u32> {
            value.parse::<u32>().ok().filter(|n| (512..=0xff_ffff).contains(n)).map(|n| n.min(max))
        };
        let reject = || "Reject".to_owned();
        Some(match key {
            "HeaderDigest" | "DataDigest" => {
                let Some(on) = digest(value) else { return Some(reject()) };
                let which = &mut self.digests;
                *(if key == "HeaderDigest" { &mut which.header } else { &mut which.data }) = on;
                if on { "CRC32C" } else { "None" }.to_owned()
            }
            "MaxRecvDataSegmentLength" => match number(u32::MAX) {
                Some(n) => {
                    self.send_max = n as usize;
                    return None;
                }
                None => reject(),
            },
            "MaxBurstLength" => self.number(number(BURST_MAX), |p| &mut p.burst),
            "FirstBurstLength" => self.number(number(FIRST_BURST_MAX), |p| &mut p.first_burst),
            "InitialR2T" => {
                self.initial_r2t = yes(value);
                said(self.initial_r2t)
            }
            "ImmediateData" => {
                self.immediate = yes(value);
                said(self.immediate)
            }
            "MaxConnections" | "MaxOutstandingR2T" => "1".to_owned(),
            "DefaultTime2Wait" => value.parse::<u16>().map_or_else(|_| reject(), |n| n.to_string()),
            "DefaultTime2Retain" | "ErrorRecoveryLevel" => "0".to_owned(),
            "DataPDUInOrder" | "DataSequenceInOrder" => "Yes".to_owned(),
            "IFMarker" | "OFMarker" => "No".to_owned(),
            "IFMarkInt" | "OFMarkInt" => "Irrelevant".to_owned(),
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => return None,
            _ => "NotUnderstood".to_owned(),
        })
    }
    fn number(&mut self, agreed: Option<u32>, which: impl Fn(&mut Self) -> &mut u32) -> String {
        match agreed {
            Some(n) => {
                *which(self) = n;
                n.to_string()
            }
            None => "Reject".to_owned(),
        }
    }
    /// What the target says of itself.
    pub fn declared() -> (String, String) {
        ("MaxRecvDataSegmentLength".to_owned(), DATA_MAX.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_and_the_known_are_agreed_on() {
        let mut p = Params::default();
        let mut take = |k: &str, v: &str| p.take(k, v);
        assert_eq!(take("MaxBurstLength", "65536").as_deref(), Some("65536"));
        assert_eq!(take("FirstBurstLength", "16777215").as_deref(), Some("262144"));
        assert_eq!(take("FirstBurstLength", "1").as_deref(), Some("Reject"));
        assert_eq!(take("HeaderDigest", "X,CRC32C,None").as_deref(), Some("CRC32C"));
        assert_eq!(take("DataDigest", "None,CRC32C").as_deref(), Some("None"));
        assert_eq!(take("InitialR2T", "No").as_deref(), Some("No"));
        assert_eq!(take("X-y", "1").as_deref(), Some("NotUnderstood"));
        assert_eq!(take("MaxRecvDataSegmentLength", "262144"), None);
        assert_eq!((p.burst, p.first_burst, p.send_max), (65536, 262_144, 262_144));
        assert!(p.digests.header && !p.digests.data && !p.initial_r2t);
    }
}
