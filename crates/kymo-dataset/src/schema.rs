//! The tables of a dataset: their columns, the names of their files, and the version.
use crate::error::DatasetError;
use std::fmt;

/// Version of the layout, in the metadata of every file. It grows when a column changes its meaning
/// or goes away; a new column alone does not change it.
pub const VERSION: u32 = 1;

/// Key of the version in the key-value metadata of a file.
pub const VERSION_KEY: &str = "kymo.schema";
/// Key of the table's name.
pub const TABLE_KEY: &str = "kymo.table";
/// Key of the host's name.
pub const HOST_KEY: &str = "kymo.host";

/// Key of the names of the files that a merged file stands for; see
/// [`ReplacedFiles`](crate::ReplacedFiles).
pub const REPLACES_KEY: &str = "kymo.replaces";

/// Service of samples that have nothing to name one.
pub const NO_SERVICE: &str = "unknown";
/// A name of a folder is cut after so many bytes: file systems take 255, and `service=` is in
/// front.
const MOST_SERVICE_BYTES: usize = 120;

const NS_A_DAY: i64 = 86_400_000_000_000;

/// A table of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Who measured: a row for each host.
    Hosts,
    /// Files with code, by build id.
    Builds,
    /// What lies at a location: a row for each function, those that were inlined included.
    Frames,
    /// Stacks as lists of locations.
    Stacks,
    /// What was measured.
    Samples,
}

impl Table {
    /// All tables, in the order in which their files are written: samples name the others' rows.
    pub const ALL: [Table; 5] = [Table::Hosts, Table::Builds, Table::Frames, Table::Stacks, Table::Samples];

    /// Its name: a folder below the dataset.
    pub fn name(self) -> &'static str {
        match self {
            Table::Hosts => "hosts",
            Table::Builds => "builds",
            Table::Frames => "frames",
            Table::Stacks => "stacks",
            Table::Samples => "samples",
        }
    }

    /// Its columns in Parquet's own notation. The partition columns `day` and `service` are in the
    /// paths of files only.
    pub fn schema(self) -> &'static str {
        match self {
            Table::Hosts => HOSTS,
            Table::Builds => BUILDS,
            Table::Frames => FRAMES,
            Table::Stacks => STACKS,
            Table::Samples => SAMPLES,
        }
    }

    /// The columns that are in the paths of its files: `day=2026-11-27`, `service=NAME`.
    pub fn partitions(self) -> &'static [&'static str] {
        match self {
            Table::Hosts | Table::Builds | Table::Frames => &[],
            Table::Stacks => &["day"],
            Table::Samples => &["day", "service"],
        }
    }
}

const SAMPLES: &str = "message samples {
  required int64 time (TIMESTAMP(MICROS, true));
  required int64 host_id;
  required int32 pid;
  optional int32 tid;
  required binary command (STRING);
  optional binary container (STRING);
  optional binary pod (STRING);
  optional binary systemd_unit (STRING);
  required binary event (STRING);
  required binary value_unit (STRING);
  required binary state (STRING);
  required int64 stack_id;
  required int64 value;
  required int64 samples;
  optional int64 leaf_location_id;
  optional binary waker (STRING);
}";

const STACKS: &str = "message stacks {
  required int64 stack_id;
  required int32 depth;
  required int64 location_id;
}";

const FRAMES: &str = "message frames {
  required int64 location_id;
  required int32 inline_depth;
  optional binary function (STRING);
  optional binary file (STRING);
  optional int32 line;
  required binary module (STRING);
  optional binary build_id (STRING);
  required int64 address;
  required binary kind (STRING);
}";

const BUILDS: &str = "message builds {
  required binary build_id (STRING);
  required binary path (STRING);
  required binary module (STRING);
  required binary arch (STRING);
  required int64 first_seen (TIMESTAMP(MICROS, true));
  optional int64 code_bias;
}";

const HOSTS: &str = "message hosts {
  required int64 host_id;
  required binary host (STRING);
  required binary kernel (STRING);
  required binary arch (STRING);
  required int32 cpus;
  required double rate_hz;
  required binary kymo_version (STRING);
  required int64 first_seen (TIMESTAMP(MICROS, true));
}";

/// Checks the key-value metadata of a file of a dataset: its version, and that it is of this table.
/// `file` is for the sentence.
///
/// # Errors
/// A sentence for files of other programs, other versions and other tables.
pub fn check_metadata<'a>(
    file: &str,
    table: Table,
    value: impl Fn(&str) -> Option<&'a str>,
) -> Result<(), DatasetError> {
    let of_key =
        |key: &'static str| value(key).ok_or_else(|| DatasetError::Foreign { file: file.to_owned(), key });
    let found = of_key(VERSION_KEY)?;
    if found.parse() != Ok(VERSION) {
        let found = found.chars().take(40).collect();
        return Err(DatasetError::Version { file: file.to_owned(), found, known: VERSION });
    }
    let named = of_key(TABLE_KEY)?;
    if named != table.name() {
        let named: String = named.chars().take(40).collect();
        let table = table.name();
        return Err(DatasetError::Refused(format!("{file} lies in {table}/ and is a file of `{named}`")));
    }
    Ok(())
}

/// A day of the calendar (UTC), as partitions are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Day(i32);

impl Day {
    /// The day of a moment, nanoseconds since 1970.
    pub fn of_ns(ns: i64) -> Day {
        // 292 years in either direction.
        Day(i32::try_from(ns.div_euclid(NS_A_DAY)).unwrap_or_default())
    }
}

impl fmt::Display for Day {
    /// `2026-11-27`. The months begin with March, so that the day of a leap year is the last one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAYS_OF_400_YEARS: i64 = 146_097;
        let days = i64::from(self.0) + 719_468;
        let era = days.div_euclid(DAYS_OF_400_YEARS);
        let of_era = days.rem_euclid(DAYS_OF_400_YEARS);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// A name of a service that is safe in paths and in partitions of all engines: letters, digits,
/// `.`, `_`, `-` and `@`; everything else is `_`.
pub fn safe_service(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    let mut safe: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    safe.truncate(MOST_SERVICE_BYTES);
    match safe.chars().all(|c| matches!(c, '.' | '_')) {
        true => NO_SERVICE.to_owned(),
        false => safe,
    }
}

/// What the files of one writing have in common in their names: host, moment and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStem {
    /// The host, see [`ids::host`](crate::ids::host).
    pub host_id: i64,
    /// When the rows begin, nanoseconds since 1970.
    pub start_ns: i64,
    /// Tells files of the same host and moment apart; from [`FIRST_OF_CONTENT`] on it is made of
    /// the content of a recording that does not know its moment.
    pub sequence: u32,
}

/// The host of files that were merged in place. In names it is sixteen `f`, so that they come after
/// all files that they replace in a list by name; `start_ns` is the generation of the folder.
pub const MERGED_HOST: i64 = -1;

/// The first number of files that is made of their content.
pub const FIRST_OF_CONTENT: u32 = 2;

impl FileStem {
    /// The stem of a file's name without its folder, if it has the form that this program writes.
    pub fn parse(name: &str) -> Option<FileStem> {
        let mut parts = name.strip_suffix(".parquet")?.split('-');
        let (host, start, sequence) = (parts.next()?, parts.next()?, parts.next()?);
        let stem = FileStem {
            host_id: u64::from_str_radix(host, 16).ok()?.cast_signed(),
            start_ns: start.parse().ok()?,
            sequence: sequence.parse().ok()?,
        };
        // One spelling for each: a name is found by its stem.
        (parts.next().is_none() && name == format!("{stem}.parquet")).then_some(stem)
    }

    /// Whether it is of a file that was merged in place.
    pub fn is_merged(&self) -> bool {
        self.host_id == MERGED_HOST
    }

    /// Whether a file of this name, without a folder, is of the same recording: of the same moment,
    /// or of the same content where the moment is that of a file.
    pub fn is_of(&self, name: &str) -> bool {
        if self.sequence < FIRST_OF_CONTENT {
            return name.strip_suffix(".parquet") == Some(&self.to_string());
        }
        let head = format!("{:016x}-", self.host_id);
        let tail = format!("-{}.parquet", self.sequence);
        name.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail)).is_some()
    }
}

impl fmt::Display for FileStem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:019}-{}", self.host_id, self.start_ns, self.sequence)
    }
}

/// The path of a file below the dataset, with `/` between the names. `partitions`: the values of
/// [`Table::partitions`], in their order.
pub fn file_path(table: Table, partitions: &[&str], stem: &FileStem) -> String {
    let named = table.partitions().iter().zip(partitions);
    let folders: String = named.map(|(name, value)| format!("{name}={value}/")).collect();
    format!("{}/{folders}{stem}.parquet", table.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the names of days against those that `date -u` prints, leap days included.
    #[test]
    fn days_have_the_names_of_the_calendar() {
        let name = |seconds: i64| Day::of_ns(seconds * 1_000_000_000).to_string();
        assert_eq!(name(0), "1970-01-01");
        assert_eq!(name(-1), "1969-12-31");
        assert_eq!(name(951_782_400), "2000-02-29");
        assert_eq!(name(951_868_800), "2000-03-01");
        assert_eq!(name(1_795_737_599), "2026-11-26");
        assert_eq!(name(1_795_737_600), "2026-11-27");
        assert_eq!(name(4_107_542_400), "2100-03-01");
    }

    /// Checks that no name of a service leads out of its folder or means something to a partition.
    #[test]
    fn names_of_services_are_safe() {
        for (name, safe) in [
            ("nginx.service", "nginx.service"),
            ("postgres: writer", "postgres__writer"),
            ("a/../b=c%20", "a_.._b_c_20"),
            ("..", NO_SERVICE),
            ("", NO_SERVICE),
            ("größe", "gr__e"),
        ] {
            assert_eq!(safe_service(name), safe, "{name}");
        }
        assert_eq!(safe_service(&"x".repeat(400)).len(), MOST_SERVICE_BYTES);
    }

    /// Checks the path of a file, and that sorting names sorts by host and time.
    #[test]
    fn paths_name_the_partitions() {
        let stem = FileStem { host_id: 0x1f, start_ns: 5, sequence: 2 };
        let path = file_path(Table::Samples, &["2026-11-27", "nginx"], &stem);
        assert_eq!(
            path,
            "samples/day=2026-11-27/service=nginx/000000000000001f-0000000000000000005-2.parquet"
        );
        assert_eq!(
            file_path(Table::Hosts, &[], &stem),
            "hosts/000000000000001f-0000000000000000005-2.parquet"
        );
    }

    /// Checks that the stem of each name is found, and none in names of other programs; and that
    /// merged files come last.
    #[test]
    fn stems_are_read_from_names() {
        let stem = FileStem { host_id: 0x1f, start_ns: 5, sequence: 2 };
        let merged = FileStem { host_id: MERGED_HOST, start_ns: 7, sequence: 0 };
        for stem in [stem, merged, FileStem { host_id: i64::MAX, start_ns: i64::MAX, sequence: u32::MAX }] {
            assert_eq!(FileStem::parse(&format!("{stem}.parquet")), Some(stem));
            assert!(stem.is_merged() || stem.to_string() < merged.to_string());
        }
        for name in
            ["", "x.parquet", "1f-5-2.parquet", "part-0-a.parquet", "000000000000001f-0000000000000000005-2"]
        {
            assert_eq!(FileStem::parse(name), None, "{name}");
        }
    }

    /// Checks that metadata of other programs, versions and tables are refused by a sentence.
    #[test]
    fn other_versions_are_refused() {
        let check = |pairs: &[(&str, &'static str)]| {
            let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
            check_metadata("x.parquet", Table::Stacks, value).map_err(|error| error.to_string())
        };
        assert!(check(&[(VERSION_KEY, "1"), (TABLE_KEY, "stacks")]).is_ok());
        assert!(check(&[]).unwrap_err().contains("has no `kymo.schema`"));
        assert!(check(&[(VERSION_KEY, "2"), (TABLE_KEY, "stacks")]).unwrap_err().contains("has version 2"));
        assert!(check(&[(VERSION_KEY, "1"), (TABLE_KEY, "frames")]).unwrap_err().contains("of `frames`"));
    }
}
