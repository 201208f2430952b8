//! The files of one dataset in another one.
use crate::error::DatasetError;
use crate::folder::DatasetFolder;
use crate::live::find;
use crate::schema::{FileStem, Table};
use crate::store::DatasetStore;
use crate::writer::DatasetFile;

/// Adds the files of a dataset in a folder to another dataset, those with samples last.
///
/// # Errors
/// A sentence where the other one has one of the recordings already, and nothing is added then;
/// what the places say.
pub fn add(folder: &DatasetFolder, to: &dyn DatasetStore) -> Result<(), DatasetError> {
    for file in DatasetStore::files(folder, Table::Hosts.name())? {
        let stem = FileStem::parse(file.name());
        // Samples that are there twice would be counted twice.
        if let Some(known) = stem.map(|stem| find(to, &stem)).transpose()?.flatten() {
            let (name, known) = (to.name(), known.name);
            return Err(DatasetError::Refused(format!(
                "{name} has a recording of this host and moment already, as {known}.parquet"
            )));
        }
    }
    for table in Table::ALL {
        for file in DatasetStore::files(folder, table.name())? {
            let bytes = folder.read(&file.path, 0..file.bytes)?.into();
            to.put(&DatasetFile { table, path: file.path, bytes })?;
        }
    }
    Ok(())
}
