//! `braid advise`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use braid_pool::Pool;
use braid_pool::advise::{
    Advice, DeviceBench, Finding, Measurements, advise, judge, measure, measure::REQUESTS, rules,
};
use serde_json::{Value, json};

use crate::pools::sources;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Measure devices, and say which pool to make of them; or a pool, and say what is wrong with it.
///
/// Reads only. Each device is read alone, with requests of several sizes; then all at once. If that
/// is less than their sum, all but one are read, for each one, which shows which devices share a
/// full bus. Nothing else should use the devices meanwhile.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices, or a pool's name or all of its devices
    #[arg(required = true, value_name = "DEVICE|POOL")]
    sources: Vec<String>,
    /// Seconds that it may take, about
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let devices = sources::open_devices(&sources::resolve(&args.sources)?, true)?;
    let pool = Pool::assemble(devices.clone()).ok();
    let devices = pool.as_ref().map_or(devices, Pool::devices);
    let least = REQUESTS.last().copied().unwrap_or(0) * 4;
    if let Some(small) = devices.iter().find(|d| d.info().size.get() < least) {
        bail!("{}: too small to be measured ({} at least)", small.info().name, size::show(least));
    }
    let names: Vec<String> = devices.iter().map(|d| d.info().name.clone()).collect();
    let runs = devices.len() as u64 * (REQUESTS.len() as u64 + 2) + 1;
    let each = Duration::from_millis((args.seconds * 1000 / runs).clamp(10, 500));
    let bar = ui::bar("measuring");
    let mut bench = DeviceBench::new(devices, each);
    let found = measure(&mut bench, &mut ui::progress(&bar))?;
    bar.finish_and_clear();
    let advice = advise(&found);
    let findings = pool.as_ref().map(|p| judge(&p.label(), &found, &advice));
    if answer::is_json() {
        answer::add_all(as_json(&names, &found, &advice, findings.as_deref()));
        return Ok(ExitCode::SUCCESS);
    }
    show(&names, &found);
    say(&names, &found, &advice);
    if let (Some(findings), Some(pool)) = (findings, &pool) {
        say!("\npool {} as it is:", pool.info().name);
        if findings.is_empty() {
            say!("  measurement finds nothing wrong with it");
        }
        for f in &findings {
            say!("  costs {:.0} %: {}", f.percent, f.what);
            quote(f.guideline);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn mb(rate: u64) -> u64 {
    rate / 1_000_000
}

fn quote(guideline: rules::Guideline) {
    say!("      \"{}\" ({})", guideline.says, guideline.source);
}

fn show(names: &[String], found: &Measurements) {
    let sizes: Vec<String> = REQUESTS.iter().map(|r| size::show(*r)).collect();
    let mut header = vec!["member", "device", "MB/s alone", "with all"];
    header.extend(sizes.iter().map(String::as_str));
    let mut table = ui::table(&header);
    let members = names.iter().zip(&found.alone).zip(&found.together).zip(&found.by_request);
    for (i, (((name, alone), together), curve)) in members.enumerate() {
        let mut row =
            vec![i.to_string(), name.clone(), mb(*alone).to_string(), mb(*together).to_string()];
        row.extend(curve.iter().map(|r| mb(*r).to_string()));
        table.add_row(row);
    }
    say!("{table}");
    say!("(sizes: one request of that size at a time)\n");
}

fn say(names: &[String], found: &Measurements, advice: &Advice) {
    say!(
        "stripe unit {}: one row at a time then loses {:.0} %; several at a time hide it",
        size::show(advice.unit),
        100.0 * advice.unit_loss
    );
    quote(rules::UNIT);
    say!("width {}; requests of that size, or several at a time", size::show(advice.width));
    quote(rules::REQUEST);
    match advice.enough {
        Some(request) => say!(
            "a member gives its full rate from requests of {} on, one at a time",
            size::show(request)
        ),
        None => say!("no request size alone reaches the rate of several requests at a time"),
    }
    if advice.weights.iter().any(|w| *w != 1) {
        let list: Vec<String> = advice.weights.iter().map(ToString::to_string).collect();
        say!("weights {} (--weights)", list.join(","));
        quote(rules::SLOWEST);
    }
    let (alone, together) = (mb(advice.sums.0), mb(advice.sums.1));
    say!("all members together: {together} MB/s, of {alone} MB/s alone");
    for (shared, fill) in found.shared.iter().zip(&advice.disks_per_bus) {
        say!(
            "members {:?} share a bus that carries {} MB/s: {fill} of them fill it",
            shared.members,
            mb(shared.rate)
        );
    }
    if found.buses_not_sought {
        say!("too many members to find out which share a bus: ask for some of them at a time");
    }
    if !found.shared.is_empty() {
        quote(rules::CONTROLLER);
        let order: Vec<&str> =
            advice.order.iter().filter_map(|i| names.get(*i).map(String::as_str)).collect();
        say!("order: {}", order.join(" "));
        quote(rules::ORDER);
        let buses = names.iter().zip(&advice.buses).filter(|(_, b)| **b != 0);
        let buses: Vec<String> = buses.map(|(n, b)| format!("--bus {n}={b}")).collect();
        say!("give to `braid create`: {}", buses.join(" "));
    }
}

fn as_json(
    names: &[String],
    found: &Measurements,
    advice: &Advice,
    findings: Option<&[Finding]>,
) -> Value {
    use rules::{CONTROLLER, ORDER, REQUEST, SLOWEST, UNIT};
    let guideline = |g: rules::Guideline| json!({"says": g.says, "source": g.source});
    let guidelines = [UNIT, REQUEST, CONTROLLER, ORDER, SLOWEST].map(guideline);
    json!({
        "members": names.iter().enumerate().map(|(i, name)| json!({
            "path": name,
            "alone": found.alone.get(i),
            "together": found.together.get(i),
            "by_request": REQUESTS.iter().zip(found.by_request.get(i).into_iter().flatten())
                .map(|(request, rate)| json!({"request": request, "rate": rate}))
                .collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "shared": found.shared.iter().zip(&advice.disks_per_bus).map(|(s, fill)| json!({
            "members": s.members, "rate": s.rate, "filled_by": fill,
        })).collect::<Vec<_>>(),
        "advice": {
            "unit": advice.unit,
            "unit_loss": advice.unit_loss,
            "width": advice.width,
            "enough": advice.enough,
            "weights": advice.weights,
            "order": advice.order,
            "buses": advice.buses,
            "guidelines": guidelines,
        },
        "findings": findings.map(|all| all.iter().map(|f| json!({
            "what": f.what, "percent": f.percent, "guideline": guideline(f.guideline),
        })).collect::<Vec<_>>()),
    })
}
