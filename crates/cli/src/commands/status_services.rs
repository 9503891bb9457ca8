//! `braid status` of servers (`braid serve`) of this host.

use serde_json::{Value, json};

use crate::control::clients::{ClientView, ServiceView};
use crate::control::{self, Order};
use crate::process::mounts::Mount;
use crate::terminal::{answer::say, size, ui};

/// What a server says of its clients. `None`: it does not answer.
fn look(service: &Mount) -> Option<ServiceView> {
    let said = control::values(std::slice::from_ref(service), &Order::Clients).pop()?;
    serde_json::from_value(said.1).ok()
}

fn clients(count: usize) -> String {
    format!("{count} client{}", if count == 1 { "" } else { "s" })
}

/// A line of the table of mounts; `health`: of its pool.
pub fn row(service: &Mount, health: &str) -> [String; 4] {
    let url = service.mount_point.display();
    let served = look(service)
        .map_or_else(String::new, |view| format!(", for {}", clients(view.clients.len())));
    let pid = service.pid.to_string();
    [service.pool.clone(), health.to_owned(), format!("served at {url}{served}"), pid]
}

/// For programs.
pub fn json(service: &Mount) -> Value {
    let view = look(service);
    json!({
        "pid": service.pid,
        "pool": service.pool,
        "url": service.mount_point,
        "clients": view.as_ref().map(|view| &view.clients),
        "leases": view.as_ref().map(|view| &view.leases),
    })
}

/// Tells of a server's clients.
pub fn show(service: &Mount) {
    let url = service.mount_point.display();
    let Some(view) = look(service) else {
        say!("served at {url} (process {}), which does not answer", service.pid);
        return;
    };
    let count = clients(view.clients.len());
    say!("served at {url} (process {}), for {count}", service.pid);
    if view.clients.is_empty() {
        return;
    }
    let mut table = ui::table(&[
        "client",
        "address",
        "since",
        "connections",
        "open files",
        "locks",
        "leases",
        "requests",
        "repeated",
        "read",
        "written",
    ]);
    table.add_rows(view.clients.iter().map(client_row));
    say!("{table}");
}

fn client_row(client: &ClientView) -> [String; 11] {
    let all = &client.requests;
    let requests = all.reads.plus(&all.writes).plus(&all.others).requests;
    [
        client.said(),
        client.address.clone().unwrap_or_else(|| "-".to_owned()),
        client.age(),
        client.connections.to_string(),
        client.open_files.to_string(),
        client.locks.to_string(),
        client.leases.to_string(),
        requests.to_string(),
        client.repeated.to_string(),
        size::show(all.reads.bytes),
        size::show(all.writes.bytes),
    ]
}
