//! The five tables of a dataset, version 1 of the layout.
//!
//! docs/reference/formats/dataset.md describes the columns. All are plain: ids, numbers and text.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

/// The version of the layout that this program reads, as `kymo.schema` says it in each file.
pub(crate) const VERSION: &str = "1";
/// The key of the version in the metadata of a file.
pub(crate) const VERSION_KEY: &str = "kymo.schema";

/// A table: a folder of the dataset.
pub(crate) struct TableSpec {
    /// The name of the table, and of its folder.
    pub(crate) name: &'static str,
    /// The columns that folders have as `column=value`, outermost first. They are text.
    pub(crate) partitions: &'static [&'static str],
    columns: fn() -> Vec<Field>,
}

impl TableSpec {
    /// The columns of its files, without those of the folders.
    pub(crate) fn file_schema(&self) -> SchemaRef {
        Arc::new(Schema::new((self.columns)()))
    }
}

/// Every table of a dataset.
pub(crate) const TABLES: [TableSpec; 5] = [
    TableSpec { name: "samples", partitions: &["day", "service"], columns: sample_columns },
    TableSpec { name: "stacks", partitions: &["day"], columns: stack_columns },
    TableSpec { name: "frames", partitions: &[], columns: frame_columns },
    TableSpec { name: "builds", partitions: &[], columns: build_columns },
    TableSpec { name: "hosts", partitions: &[], columns: host_columns },
];

fn sample_columns() -> Vec<Field> {
    vec![
        time("time"),
        number("host_id"),
        Field::new("pid", DataType::Int32, false),
        Field::new("tid", DataType::Int32, true),
        text("command"),
        text_or_null("container"),
        text_or_null("pod"),
        text_or_null("systemd_unit"),
        text("event"),
        text("value_unit"),
        text("state"),
        number("stack_id"),
        number("value"),
        number("samples"),
    ]
}

fn stack_columns() -> Vec<Field> {
    vec![number("stack_id"), Field::new("depth", DataType::Int32, false), number("location_id")]
}

fn frame_columns() -> Vec<Field> {
    vec![
        number("location_id"),
        Field::new("inline_depth", DataType::Int32, false),
        text_or_null("function"),
        text_or_null("file"),
        Field::new("line", DataType::Int32, true),
        text("module"),
        text_or_null("build_id"),
        number("address"),
        text("kind"),
    ]
}

fn build_columns() -> Vec<Field> {
    vec![text("build_id"), text("path"), text("module"), text("arch"), time("first_seen")]
}

fn host_columns() -> Vec<Field> {
    vec![
        number("host_id"),
        text("host"),
        text("kernel"),
        text("arch"),
        Field::new("cpus", DataType::Int32, false),
        Field::new("rate_hz", DataType::Float64, false),
        text("kymo_version"),
        time("first_seen"),
    ]
}

fn number(name: &str) -> Field {
    Field::new(name, DataType::Int64, false)
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, false)
}

fn text_or_null(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, true)
}

fn time(name: &str) -> Field {
    let zone = Some(Arc::from("UTC"));
    Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, zone), false)
}
