//! Sections to structs.

use super::*;
use crate::abi::*;
use crate::cursor::{RecordCursor, WholeRecord};
use crate::record::RecordHeader;
use crate::words::{Cursor, until_nul};

fn string(cursor: &mut Cursor<'_>) -> Option<String> {
    let len = cursor.u32()?;
    let bytes = until_nul(cursor.take(len as usize)?);
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// A `u32` count and then entries; an entry that does not fit ends the reading, so that a false
/// count costs nothing.
fn list<T>(cursor: &mut Cursor<'_>, mut entry: impl FnMut(&mut Cursor<'_>) -> Option<T>) -> Option<Vec<T>> {
    let count = cursor.u32()?;
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(entry(cursor)?);
    }
    Some(out)
}

fn event_desc(bytes: &[u8]) -> Option<Vec<EventDesc>> {
    let mut cursor = Cursor::new(bytes);
    let count = cursor.u32()?;
    let attr_size = cursor.u32()? as usize;
    let mut out = Vec::new();
    for _ in 0..count {
        let attr = Attr::parse(cursor.take(attr_size)?)?;
        let ids = cursor.u32()?;
        let name = string(&mut cursor)?;
        let ids = crate::Words::new(cursor.take((ids as usize).checked_mul(8)?)?).iter().collect();
        out.push(EventDesc { attr, name, ids });
    }
    Some(out)
}

fn cpu_topology(bytes: &[u8], cpus: usize) -> Option<CpuTopology> {
    let mut cursor = Cursor::new(bytes);
    let mut topology = CpuTopology {
        core_siblings: list(&mut cursor, string)?,
        thread_siblings: list(&mut cursor, string)?,
        ..CpuTopology::default()
    };
    for _ in 0..cpus {
        let (Some(core), Some(socket)) = (cursor.u32(), cursor.u32()) else { break };
        topology.cpus.push(CpuPlace { core, socket, die: None });
    }
    if let Some(dies) = list(&mut cursor, string) {
        topology.die_siblings = dies;
        for cpu in &mut topology.cpus {
            cpu.die = cursor.u32();
        }
    }
    Some(topology)
}

fn build_ids(bytes: &[u8]) -> Option<Vec<BuildId>> {
    let mut cursor = RecordCursor::new(bytes);
    let entry = |record: WholeRecord<'_>| BuildId::parse_body(record.header.misc, record.body());
    let entries = cursor.by_ref().map(entry).collect::<Option<_>>()?;
    RecordHeader::parse(cursor.rest()).is_none().then_some(entries)
}

/// Whether a section is one string.
fn is_text(bit: u32) -> bool {
    matches!(
        bit,
        HEADER_HOSTNAME | HEADER_OSRELEASE | HEADER_VERSION | HEADER_ARCH | HEADER_CPUDESC | HEADER_CPUID
    )
}

impl Features {
    /// Takes in the payload of one feature section. Sections must come in ascending order of their
    /// bits, because the CPU topology needs the number of CPUs. What is not understood goes to
    /// [`Features::other`].
    ///
    /// Returns whether it was understood or is of a kind that is only kept.
    pub fn set_section(&mut self, bit: u32, bytes: &[u8]) -> bool {
        let understood = self.try_section(bit, bytes);
        if understood.is_none() {
            self.other.retain(|(other, _)| *other != bit);
            self.other.push((bit, bytes.to_vec()));
            self.other.sort_by_key(|(bit, _)| *bit);
        }
        understood.is_some() || !Self::has_struct(bit)
    }

    /// Whether this library has a struct for the section.
    pub(super) fn has_struct(bit: u32) -> bool {
        bit > 0
            && bit <= HEADER_CLOCK_DATA
            && !matches!(bit, HEADER_AUXTRACE | HEADER_MEM_TOPOLOGY | HEADER_BPF_PROG_INFO | HEADER_BPF_BTF)
    }

    fn try_section(&mut self, bit: u32, bytes: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(bytes);
        let cursor = &mut cursor;
        if bytes.is_empty() && is_text(bit) {
            // A recorder that could not find out leaves the section empty.
            return Some(());
        }
        match bit {
            HEADER_TRACING_DATA => self.tracing_data = Some(bytes.to_vec()),
            HEADER_BUILD_ID => self.build_ids = build_ids(bytes)?,
            HEADER_HOSTNAME => self.hostname = Some(string(cursor)?),
            HEADER_OSRELEASE => self.os_release = Some(string(cursor)?),
            HEADER_VERSION => self.version = Some(string(cursor)?),
            HEADER_ARCH => self.arch = Some(string(cursor)?),
            HEADER_NRCPUS => {
                self.nr_cpus = Some(NrCpus { available: cursor.u32()?, online: cursor.u32()? });
            }
            HEADER_CPUDESC => self.cpu_desc = Some(string(cursor)?),
            HEADER_CPUID => self.cpuid = Some(string(cursor)?),
            HEADER_TOTAL_MEM => self.total_mem_kb = Some(cursor.u64()?),
            HEADER_CMDLINE => self.cmdline = list(cursor, string)?,
            HEADER_EVENT_DESC => self.event_desc = event_desc(bytes)?,
            HEADER_CPU_TOPOLOGY => {
                let cpus = self.nr_cpus.map_or(0, |nr| nr.available);
                self.cpu_topology = Some(cpu_topology(bytes, cpus as usize)?);
            }
            HEADER_NUMA_TOPOLOGY => {
                self.numa = list(cursor, |c| {
                    Some(NumaNode { node: c.u32()?, total_kb: c.u64()?, free_kb: c.u64()?, cpus: string(c)? })
                })?;
            }
            HEADER_BRANCH_STACK => self.branch_stack = true,
            HEADER_PMU_MAPPINGS => self.pmu_mappings = list(cursor, |c| Some((c.u32()?, string(c)?)))?,
            HEADER_GROUP_DESC => {
                self.groups = list(cursor, |c| {
                    Some(GroupDesc { name: string(c)?, leader: c.u32()?, members: c.u32()? })
                })?;
            }
            HEADER_STAT => self.stat = true,
            HEADER_CACHE => {
                if cursor.u32()? != 1 {
                    return None;
                }
                self.caches = list(cursor, |c| {
                    Some(CacheLevel {
                        level: c.u32()?,
                        line_bytes: c.u32()?,
                        sets: c.u32()?,
                        ways: c.u32()?,
                        kind: string(c)?,
                        size: string(c)?,
                        cpus: string(c)?,
                    })
                })?;
            }
            HEADER_SAMPLE_TIME => self.sample_time = Some((cursor.u64()?, cursor.u64()?)),
            HEADER_CLOCKID => self.clockid_resolution_ns = Some(cursor.u64()?),
            HEADER_DIR_FORMAT => self.dir_format = Some(cursor.u64()?),
            HEADER_COMPRESSED => {
                self.compressed = Some(CompressedInfo {
                    version: cursor.u32()?,
                    kind: cursor.u32()?,
                    level: cursor.u32()?,
                    ratio: cursor.u32()?,
                    mmap_len: cursor.u32()?,
                });
            }
            HEADER_CPU_PMU_CAPS => self.cpu_pmu_caps = list(cursor, |c| Some((string(c)?, string(c)?)))?,
            HEADER_CLOCK_DATA => {
                self.clock_data = Some(ClockData {
                    version: cursor.u32()?,
                    clockid: cursor.u32()?,
                    wall_clock_ns: cursor.u64()?,
                    clockid_time_ns: cursor.u64()?,
                });
            }
            HEADER_KYMO_IMPORTED => self.imported = Some(ImportedFacts::parse(cursor)?),
            _ => return None,
        }
        Some(())
    }
}
