//! Structs to sections.

use super::*;
use crate::abi::*;
use crate::attr::ATTR_SIZE_MAX;
use crate::build;

/// perf pads strings to this, and so do we: the bytes are then the same.
const STRING_ALIGN: usize = 64;

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    let len = (text.len() + 1).next_multiple_of(STRING_ALIGN);
    put_u32(out, len as u32);
    out.extend_from_slice(text.as_bytes());
    out.resize(out.len() + len - text.len(), 0);
}

fn put_strings(out: &mut Vec<u8>, texts: &[String]) {
    put_u32(out, texts.len() as u32);
    for text in texts {
        put_string(out, text);
    }
}

fn one(text: &Option<String>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    put_string(&mut out, text.as_deref()?);
    Some(out)
}

/// `None` for an empty list: then the feature bit stays unset.
fn many<T>(list: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) -> Option<Vec<u8>> {
    if list.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    put_u32(&mut out, list.len() as u32);
    for entry in list {
        put(&mut out, entry);
    }
    Some(out)
}

impl Features {
    /// The bits of the sections that this would write, ascending.
    pub fn bits(&self) -> Vec<u32> {
        (1..256).filter(|&bit| self.section(bit).is_some()).collect()
    }

    /// The payload of one section, or `None` when there is nothing to tell.
    pub fn section(&self, bit: u32) -> Option<Vec<u8>> {
        if let Some((_, bytes)) = self.other.iter().find(|(other, _)| *other == bit) {
            return Some(bytes.clone());
        }
        let mut out = Vec::new();
        match bit {
            HEADER_TRACING_DATA => return self.tracing_data.clone(),
            HEADER_BUILD_ID => {
                if self.build_ids.is_empty() {
                    return None;
                }
                for id in &self.build_ids {
                    // In the file's section the record type is 0, unlike in a pipe.
                    out.extend_from_slice(&build::build_id_entry(0, id));
                }
            }
            HEADER_HOSTNAME => return one(&self.hostname),
            HEADER_OSRELEASE => return one(&self.os_release),
            HEADER_VERSION => return one(&self.version),
            HEADER_ARCH => return one(&self.arch),
            HEADER_NRCPUS => {
                let nr = self.nr_cpus?;
                put_u32(&mut out, nr.available);
                put_u32(&mut out, nr.online);
            }
            HEADER_CPUDESC => return one(&self.cpu_desc),
            HEADER_CPUID => return one(&self.cpuid),
            HEADER_TOTAL_MEM => put_u64(&mut out, self.total_mem_kb?),
            HEADER_CMDLINE => return many(&self.cmdline, |out, text| put_string(out, text)),
            HEADER_EVENT_DESC => {
                if self.event_desc.is_empty() {
                    return None;
                }
                put_u32(&mut out, self.event_desc.len() as u32);
                // As perf writes it: older versions of it skip here what they do not know.
                put_u32(&mut out, ATTR_SIZE_MAX);
                for event in &self.event_desc {
                    out.extend_from_slice(&event.attr.to_bytes());
                    put_u32(&mut out, event.ids.len() as u32);
                    put_string(&mut out, &event.name);
                    for &id in &event.ids {
                        put_u64(&mut out, id);
                    }
                }
            }
            HEADER_CPU_TOPOLOGY => {
                let topology = self.cpu_topology.as_ref()?;
                put_strings(&mut out, &topology.core_siblings);
                put_strings(&mut out, &topology.thread_siblings);
                for cpu in &topology.cpus {
                    put_u32(&mut out, cpu.core);
                    put_u32(&mut out, cpu.socket);
                }
                if topology.cpus.iter().any(|cpu| cpu.die.is_some()) {
                    put_strings(&mut out, &topology.die_siblings);
                    for cpu in &topology.cpus {
                        put_u32(&mut out, cpu.die.unwrap_or(0));
                    }
                }
            }
            HEADER_NUMA_TOPOLOGY => {
                return many(&self.numa, |out, node| {
                    put_u32(out, node.node);
                    put_u64(out, node.total_kb);
                    put_u64(out, node.free_kb);
                    put_string(out, &node.cpus);
                });
            }
            HEADER_BRANCH_STACK => return self.branch_stack.then(Vec::new),
            HEADER_PMU_MAPPINGS => {
                return many(&self.pmu_mappings, |out, (number, name)| {
                    put_u32(out, *number);
                    put_string(out, name);
                });
            }
            HEADER_GROUP_DESC => {
                return many(&self.groups, |out, group| {
                    put_string(out, &group.name);
                    put_u32(out, group.leader);
                    put_u32(out, group.members);
                });
            }
            _ => return self.later_section(bit),
        }
        Some(out)
    }

    /// The sections that perf added later.
    fn later_section(&self, bit: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match bit {
            HEADER_STAT => return self.stat.then(Vec::new),
            HEADER_CACHE => {
                let levels = many(&self.caches, |out, cache| {
                    for value in [cache.level, cache.line_bytes, cache.sets, cache.ways] {
                        put_u32(out, value);
                    }
                    for text in [&cache.kind, &cache.size, &cache.cpus] {
                        put_string(out, text);
                    }
                })?;
                put_u32(&mut out, 1);
                out.extend_from_slice(&levels);
            }
            HEADER_SAMPLE_TIME => {
                let (first, last) = self.sample_time?;
                put_u64(&mut out, first);
                put_u64(&mut out, last);
            }
            HEADER_CLOCKID => put_u64(&mut out, self.clockid_resolution_ns?),
            HEADER_DIR_FORMAT => put_u64(&mut out, self.dir_format?),
            HEADER_COMPRESSED => {
                let info = self.compressed?;
                for value in [info.version, info.kind, info.level, info.ratio, info.mmap_len] {
                    put_u32(&mut out, value);
                }
            }
            HEADER_CPU_PMU_CAPS => {
                return many(&self.cpu_pmu_caps, |out, (name, value)| {
                    put_string(out, name);
                    put_string(out, value);
                });
            }
            HEADER_KYMO_IMPORTED => return self.imported.as_ref().map(ImportedFacts::section),
            HEADER_CLOCK_DATA => {
                let clock = self.clock_data?;
                put_u32(&mut out, clock.version);
                put_u32(&mut out, clock.clockid);
                put_u64(&mut out, clock.wall_clock_ns);
                put_u64(&mut out, clock.clockid_time_ns);
            }
            _ => return None,
        }
        Some(out)
    }
}
