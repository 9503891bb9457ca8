use braid_device::{FaultPlan, FaultyDevice, MemoryDevice, Power, ScriptedDevice};
use braid_format::{ByteOffset, MemberIndex};

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::reshape::tests::Content;

const MIB: u64 = 1 << 20;

/// A device with what `from` holds, and room behind it.
pub(crate) fn enlarged(from: &Arc<dyn Device>, mib: u64) -> Arc<dyn Device> {
    let info = from.info();
    let to = MemoryDevice::new(&info.name, Bytes(info.size.0 + mib * MIB), Bytes(512));
    let mut bytes = vec![0; info.size.to_usize()];
    from.read(ByteOffset(0), &mut bytes).unwrap();
    to.write(ByteOffset(0), &bytes).unwrap();
    to
}

fn made(n: usize, redundancy: Redundancy, mib: u64) -> (Vec<Arc<dyn Device>>, Content) {
    let disk = |i| MemoryDevice::new(&format!("d{i}"), Bytes(mib * MIB), Bytes(512)) as _;
    let devices: Vec<Arc<dyn Device>> = (0..n).map(disk).collect();
    let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
    let pool = Pool::create(devices.clone(), &options).unwrap();
    let content = Content::fill(&pool, 3);
    (devices, content)
}

/// Finds devices by name.
fn among(devices: &[Arc<dyn Device>]) -> impl Fn(&str) -> Result<Arc<dyn Device>, PoolError> {
    let devices = devices.to_vec();
    move |name| Ok(devices.iter().find(|d| d.info().name == name).unwrap().clone())
}

#[test]
fn what_devices_have_more_is_used() {
    for redundancy in [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)] {
        let (small, content) = made(4, redundancy, 24);
        let large: Vec<_> = small.iter().map(|d| enlarged(d, 20)).collect();
        let pool = Pool::assemble(large.clone()).unwrap();
        pool.attach(0).unwrap();
        let before = pool.info();
        assert!(before.members.iter().all(|m| m.size > m.known));
        let e = pool.grow(&among(&small)).unwrap_err();
        assert!(matches!(e, PoolError::Change(ChangeError::NotLarger)), "{e}");
        let planned = pool.plan_grow(&among(&large)).unwrap();
        let added = pool.grow(&among(&large)).unwrap();
        assert_eq!(planned.info.size, added.info.size);
        let now = pool.info();
        assert!(now.size.0 > before.size.0 * 3 / 2 && now.members.len() == 4, "{redundancy:?}");
        content.check(&pool);
        let len = now.size.0 - before.size.0;
        let bytes: Vec<u8> = (0..len).map(|i: u64| (i / 512 % 239).to_le_bytes()[0]).collect();
        pool.write(ByteOffset(before.size.0), &bytes).unwrap();
        content.check(&pool);
        if redundancy != Redundancy::None {
            pool.fail_member(MemberIndex(2)).unwrap();
        }
        let again = Pool::assemble(large.clone()).unwrap();
        let mut back = vec![0; bytes.len()];
        again.read(ByteOffset(before.size.0), &mut back).unwrap();
        assert!(back == bytes, "{redundancy:?}");
        content.check(&again);
        assert!(matches!(
            again.grow(&among(&large)),
            Err(PoolError::Change(ChangeError::NotLarger))
        ));
    }
}

#[test]
fn one_of_a_mirror_is_not_enough_and_another_device_is_refused() {
    let (mut devices, content) = made(2, Redundancy::Mirror(2), 24);
    devices[0] = enlarged(&devices[0], 30);
    let pool = Pool::assemble(devices.clone()).unwrap();
    let e = pool.grow(&among(&devices)).unwrap_err();
    assert!(matches!(e, PoolError::Layout(_)), "{e}");
    let other = MemoryDevice::new("d1", Bytes(80 * MIB), Bytes(512));
    let with = [devices[0].clone(), other as _];
    let e = pool.grow(&among(&with)).unwrap_err();
    assert!(matches!(e, PoolError::Change(ChangeError::Another { .. })), "{e}");
    devices[1] = enlarged(&devices[1], 40);
    let pool = Pool::assemble(devices.clone()).unwrap();
    pool.grow(&among(&devices)).unwrap();
    content.check(&pool);
}

#[test]
fn power_may_be_cut_at_any_write_of_a_growth() {
    for redundancy in [Redundancy::None, Redundancy::Mirror(2)] {
        let (small, content) = made(3, redundancy, 8);
        let mut seen = std::collections::BTreeSet::new();
        'cuts: for cut in 0.. {
            for seed in 0..4 {
                let volatile = |d: &Arc<dyn Device>| {
                    let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
                    FaultyDevice::new(enlarged(d, 8), plan)
                };
                let all: Vec<_> = small.iter().map(volatile).collect();
                let power = Power::on();
                let powered = |d: &Arc<FaultyDevice>| {
                    ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
                };
                let live: Vec<_> = all.iter().map(powered).collect();
                let pool = Pool::assemble(live.clone()).unwrap();
                let before = pool.info().size;
                power.cut_after(cut);
                let done = pool.grow(&among(&live)).is_ok();
                let over = power.is_on();
                drop(pool);
                for (d, salt) in all.iter().zip(0..) {
                    d.crash(cut * 31 + seed * 1009 + salt).unwrap();
                }
                let found = all.iter().map(|d| d.clone() as _).collect();
                let pool = Pool::assemble(found).unwrap();
                content.check(&pool);
                let grown = pool.info().size > before;
                assert!(grown || !done, "cut at {cut}");
                seen.insert(grown);
                if over && seed == 3 {
                    assert!(done && cut > 12);
                    assert_eq!(seen.len(), 2);
                    break 'cuts;
                }
            }
        }
    }
}

/// The label that is kept at the new end must not be found there when the pool has gone on.
#[test]
fn a_growth_that_failed_leaves_no_label_behind() {
    use braid_device::{AlignedBuf, FaultKind, On};
    let (small, content) = made(2, Redundancy::None, 8);
    let all: Vec<_> =
        small.iter().map(|d| FaultyDevice::new(enlarged(d, 8), FaultPlan::default())).collect();
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
    let pool = Pool::assemble(devices.clone()).unwrap();
    // The label at the new end is written, that of the new epoch is not.
    all[1].arm(On::Write, 1, FaultKind::Fails);
    pool.grow(&among(&devices)).unwrap_err();
    let behind = |d: &Arc<dyn Device>| {
        let at = Label::copy1_at(d.info().size).unwrap();
        let mut room = AlignedBuf::zeroed(Label::LEN_MAX);
        d.read(at, &mut room).unwrap();
        Label::decode(&room, at).is_ok()
    };
    assert!(!devices.iter().any(behind));
    content.check(&pool);
    // The same holds if the node died in between.
    let larger = larger(&pool.0.epochs.read(), &among(&devices)).unwrap();
    larger.iter().for_each(|l| l.keep(&pool.label()).unwrap());
    assert!(devices.iter().all(behind));
    Pool::assemble(devices.clone()).unwrap().heal_labels().unwrap();
    assert!(!devices.iter().any(behind));
    content.check(&Pool::assemble(devices).unwrap());
}
