//! What is shown.

mod api;
mod cut;
mod dns;
mod events;
mod image;
mod install;
mod network;
mod nodes;
mod outages;
mod policies;
mod published;
mod published_access;
mod published_flips;
mod published_secrets;
mod releases;
mod remains;
mod rendering;
mod rights;
mod start_order;
mod upgrades;

use crate::row::Row;

/// Every row.
pub fn all() -> Vec<Row> {
    [
        api::ROWS,
        cut::ROWS,
        dns::ROWS,
        events::ROWS,
        image::ROWS,
        install::ROWS,
        network::ROWS,
        nodes::ROWS,
        outages::ROWS,
        policies::ROWS,
        published::ROWS,
        published_access::ROWS,
        published_flips::ROWS,
        published_secrets::ROWS,
        releases::ROWS,
        remains::ROWS,
        rendering::ROWS,
        rights::ROWS,
        start_order::ROWS,
        upgrades::ROWS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}
