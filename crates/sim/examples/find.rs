use braid_sim::{Cluster, Sabotage, run};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let s = match a[1].as_str() { "its" => Sabotage::LeaveItsDead, "split" => Sabotage::SplitCopies, "flush" => Sabotage::IgnoreFailedFlushes, _ => Sabotage::WaitForUnclaimed };
    let of = if a[2] == "p" { Cluster::of_parity } else { Cluster::of_mirrors };
    let (f, l): (u64, u64) = (a[3].parse().unwrap(), a[4].parse().unwrap());
    let trace = a.len() > 5;
    for seed in f..=l {
        if let Err(e) = run(seed, &Cluster { sabotage: Some(s), ..of(seed) }, trace) {
            for line in &e.trace { println!("{line}"); }
            eprintln!("{e}");
        }
    }
}
