//! Frames, builds and hosts: each row once.
use super::{Merging, rows_of};
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::frames::Frames;
use crate::read::TableReader;
use crate::schema::Table;
use crate::store::StoredFile;
use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// A host: its id, its texts in their order, CPUs, and the bits of its rate.
type HostKey = (i64, [Vec<u8>; 4], i32, u64);

/// A column of texts that has a value in every row.
fn texts(reader: &TableReader, column: &str) -> Result<Vec<Vec<u8>>, DatasetError> {
    let values = reader.required(column, reader.text(column)?)?;
    Ok(values.iter().map(|text| text.data().to_vec()).collect())
}

impl Merging<'_> {
    fn readers(
        &self,
        table: Table,
        files: &[StoredFile],
    ) -> impl Iterator<Item = Result<TableReader, DatasetError>> {
        files.iter().map(move |file| self.open(file, table))
    }

    pub(super) fn hosts(&self, path: String, files: &[StoredFile]) -> Result<TableFile, DatasetError> {
        // By all but the moment, the earliest one.
        let mut hosts: BTreeMap<HostKey, i64> = BTreeMap::new();
        for reader in self.readers(Table::Hosts, files) {
            let reader = reader?;
            let id = reader.required("host_id", reader.int64("host_id")?)?;
            let of = |column| texts(&reader, column);
            let (host, kernel, arch, version) =
                (of("host")?, of("kernel")?, of("arch")?, of("kymo_version")?);
            let cpus = reader.required("cpus", reader.int32("cpus")?)?;
            let rate = reader.required("rate_hz", reader.double("rate_hz")?)?;
            let seen = reader.required("first_seen", reader.int64("first_seen")?)?;
            for row in 0..id.len() {
                let texts = [&host, &kernel, &arch, &version].map(|column| column[row].clone());
                let key = (id[row], texts, cpus[row], rate[row].to_bits());
                hosts.entry(key).and_modify(|first| *first = seen[row].min(*first)).or_insert(seen[row]);
            }
        }
        let mut file = TableFile::new(Table::Hosts, "", path, rows_of(files))?;
        let rows = || hosts.iter();
        let text = |at: usize| rows().map(move |(key, _)| ByteArray::from(key.1[at].clone()));
        file.row_group(|columns| {
            columns.int64(rows().map(|(key, _)| key.0));
            (0..3).for_each(|at| columns.text(text(at)));
            columns.int32(rows().map(|(key, _)| key.2));
            columns.double(rows().map(|(key, _)| f64::from_bits(key.3)));
            columns.text(text(3));
            columns.int64(rows().map(|(_, first)| *first));
        })?;
        Ok(file)
    }

    pub(super) fn builds(&self, path: String, files: &[StoredFile]) -> Result<TableFile, DatasetError> {
        // By all texts, the earliest moment and a bias if a host knew it.
        let mut builds: BTreeMap<[Vec<u8>; 4], (i64, Option<i64>)> = BTreeMap::new();
        for reader in self.readers(Table::Builds, files) {
            let reader = reader?;
            let of = |column| texts(&reader, column);
            let (build_id, path, module, arch) = (of("build_id")?, of("path")?, of("module")?, of("arch")?);
            let seen = reader.required("first_seen", reader.int64("first_seen")?)?;
            let bias = reader.int64("code_bias")?;
            for row in 0..seen.len() {
                let key = [&build_id, &path, &module, &arch].map(|column| column[row].clone());
                let known = builds.entry(key).or_insert((seen[row], bias[row]));
                *known = (known.0.min(seen[row]), known.1.or(bias[row]));
            }
        }
        let mut file = TableFile::new(Table::Builds, "", path, rows_of(files))?;
        if !builds.is_empty() {
            let text = |at: usize| builds.keys().map(move |key| ByteArray::from(key[at].clone()));
            file.row_group(|columns| {
                (0..4).for_each(|at| columns.text(text(at)));
                columns.int64(builds.values().map(|(seen, _)| *seen));
                columns.optional_int64(builds.values().map(|(_, bias)| *bias));
            })?;
        }
        Ok(file)
    }

    /// Each location once; one whose functions have names is taken before one whose have none.
    pub(super) fn frames(&self, path: String, files: &[StoredFile]) -> Result<TableFile, DatasetError> {
        let mut kept = Frames::default();
        let mut places: FxHashMap<i64, Range<usize>> = FxHashMap::default();
        for reader in self.readers(Table::Frames, files) {
            let frames = Frames::read(&reader?)?;
            let mut row = 0;
            while row < frames.len() {
                let id = frames.location_id[row];
                let end =
                    (row..frames.len()).find(|at| frames.location_id[*at] != id).unwrap_or(frames.len());
                let is_named = |frames: &Frames, rows: Range<usize>| {
                    rows.into_iter().all(|at| frames.function[at].is_some())
                };
                let is_new = match places.get(&id) {
                    None => true,
                    Some(known) => !is_named(&kept, known.clone()) && is_named(&frames, row..end),
                };
                if is_new {
                    places.insert(id, kept.len()..kept.len() + (end - row));
                    (row..end).for_each(|at| kept.push(&frames, at));
                }
                row = end;
            }
        }
        // Code of one file, in its order; what was replaced is left out.
        let mut order: Vec<Range<usize>> = places.into_values().collect();
        order.sort_unstable_by_key(|rows| {
            let at = rows.start;
            (kept.module[at].data(), kept.address[at], kept.location_id[at])
        });
        let mut sorted = Frames::default();
        order.into_iter().flatten().for_each(|row| sorted.push(&kept, row));
        drop(kept);
        let mut file = TableFile::new(Table::Frames, "", path, rows_of(files))?;
        sorted.write(&mut file)?;
        Ok(file)
    }
}
