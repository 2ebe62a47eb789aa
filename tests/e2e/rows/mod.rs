//! What is shown.

mod api;
mod events;
mod image;
mod install;
mod nodes;
mod rendering;
mod rights;

use crate::row::Row;

/// Every row.
pub fn all() -> Vec<Row> {
    [api::ROWS, install::ROWS, events::ROWS, image::ROWS, nodes::ROWS, rendering::ROWS, rights::ROWS]
        .into_iter()
        .flatten()
        .copied()
        .collect()
}
